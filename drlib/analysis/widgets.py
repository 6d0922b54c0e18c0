"""Panels to play with: sliders around the figures of `plots`, and nothing computed here.

A panel draws into the value of an `Image` and an `HTML` widget from an `observe` callback. An
`Output` widget would be shorter, but its display messages cannot be replayed by nbval. Moving a
slider from code redraws as well, so a notebook without a browser can test its panel.
"""

import io
from collections.abc import Callable, Sequence
from typing import get_args, get_type_hints

import ipywidgets as ipw
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from drlib.analysis import plots, rendering
from drlib.rl.advantages import batch_normalized, group_mean, group_normalized, leave_one_out
from drlib.rl.losses import LossConfig
from drlib.trajectory import Trajectory

ESTIMATORS = {
    f.__name__: f for f in (leave_one_out, group_mean, group_normalized, batch_normalized)
}


def png_bytes(fig: Figure, dpi: int = 90) -> bytes:
    """The figure as a PNG, for an Image widget; the figure is closed."""
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    plt.close(fig)
    return buffer.getvalue()


class GrpoPanel(ipw.VBox):
    """The switches of the loss on four rollouts; `sliders` and `switches` by name, `table`
    (HTML), `picture`. The longest rollout's length is the constant of "constant".
    """

    lengths = (8, 4, 2, 2)  # tokens of each rollout
    ranges = {
        "reward 1": (1.0, 0, 1), "reward 2": (0.0, 0, 1), "reward 3": (0.0, 0, 1),
        "reward 4": (0.0, 0, 1), "ratio": (1.0, 0.4, 1.8), "ε low": (0.2, 0, 0.9),
        "ε high": (0.28, 0, 0.9), "KL weight": (0.0, 0, 1),
    }  # fmt: skip

    def __init__(self):
        self.sliders = {
            name: ipw.FloatSlider(value, min=low, max=high, step=0.02, readout_format=".2f")
            for name, (value, low, high) in self.ranges.items()
        }
        fields = ("clip", "level", "aggregate", "kl_estimator")
        options = {name: get_args(get_type_hints(LossConfig)[name]) for name in fields}
        options = {"advantage": list(ESTIMATORS)} | options
        self.switches = {name: ipw.Dropdown(options=some) for name, some in options.items()}
        self.switches["kl_estimator"].value = LossConfig.kl_estimator
        for name, control in (self.sliders | self.switches).items():
            control.description = name
            control.style.description_width = "6.5em"
            control.observe(self._draw, names="value")
        self.table, self.picture = ipw.HTML(), ipw.Image(format="png")
        rows = list(self.sliders.values())
        columns = [rows[:4], rows[4:], list(self.switches.values())]
        super().__init__([ipw.HBox([ipw.VBox(c) for c in columns]), self.picture, self.table])
        self._draw()

    def _draw(self, _change=None):
        values = {name: slider.value for name, slider in self.sliders.items()}
        rewards = [value for name, value in values.items() if name.startswith("reward")]
        switches = {name: switch.value for name, switch in self.switches.items()}
        estimator = ESTIMATORS[switches.pop("advantage")]
        if switches["aggregate"] == "constant":
            switches["constant_tokens"] = max(self.lengths)
        config = LossConfig(epsilon_low=values["ε low"], epsilon_high=values["ε high"],
                            kl_coef=values["KL weight"], **switches)  # fmt: skip
        shown = (rewards, values["ratio"], config)
        how = dict(advantage=estimator, lengths=self.lengths)
        self.picture.value = png_bytes(plots.grpo_step(*shown, **how))
        self.table.value = _table(plots.grpo_numbers(*shown, **how), rewards)


grpo_panel = GrpoPanel  # notebook 05's name for it


class TrajectoryPanel(ipw.VBox):
    """Pick a question and a policy, see the rollout; `question`, `policy` and `page` (HTML).

    Args:
        runs: trajectories by policy; a question that several policies tried is offered once.
    """

    def __init__(self, runs: dict[str, list[Trajectory]]):
        if not any(runs.values()):
            raise ValueError("a trajectory panel needs at least one trajectory")
        self._found = {(name, t.task_id): t for name, some in runs.items() for t in some}
        questions = {t.metadata["question"]: t.task_id for some in runs.values() for t in some}
        wide = ipw.Layout(width="90%")
        self.question = ipw.Dropdown(options=questions, description="question", layout=wide)
        self.policy = ipw.ToggleButtons(options=list(runs), description="policy")
        self.page = ipw.HTML()
        for control in (self.question, self.policy):
            control.observe(self._draw, names="value")
        super().__init__([self.question, self.policy, self.page])
        self._draw()

    def _draw(self, _change=None):
        name = self.policy.value
        found = self._found.get((name, self.question.value))
        page = f"<p>{name} was not asked this question</p>"
        self.page.value = page if found is None else rendering.render(found, name).markup


trajectory_panel = TrajectoryPanel  # the name that notebooks 00 and 06 use


class FigurePanel(ipw.VBox):
    """Controls over any figure; `controls` by name, `picture`.

    Args:
        draw: called with the value of every control, in their order; returns a Figure.
        choices: the values to choose from by name, the first one chosen. Numbers get a slider.
    """

    def __init__(self, draw: Callable[..., Figure], choices: dict[str, Sequence]):
        self._figure, self.controls = draw, {}
        for name, values in choices.items():
            numbers = all(isinstance(value, int | float) for value in values)
            kind = ipw.SelectionSlider if numbers else ipw.ToggleButtons
            self.controls[name] = kind(
                options=list(values), value=values[0], description=name,
                style={"description_width": "110px"}, layout=ipw.Layout(width="60%"),
            )  # fmt: skip
            self.controls[name].observe(self._draw, names="value")
        self.picture = ipw.Image(format="png")
        super().__init__([*self.controls.values(), self.picture])
        self._draw()

    def _draw(self, _change=None):
        self.picture.value = png_bytes(self._figure(*(c.value for c in self.controls.values())))


def _table(numbers: dict, rewards: list[float]) -> str:
    rows = zip(rewards, numbers["advantages"], numbers["pushes"], strict=True)
    cells = "".join(
        f"<tr><td>#{i + 1}</td><td>{len(pushes)}</td>"
        + "".join(f"<td>{value + 0.0:.3f}</td>" for value in (reward, advantage, sum(pushes)))
        + "</tr>"
        for i, (reward, advantage, pushes) in enumerate(rows)
    )
    metrics = numbers["metrics"]
    clipped = metrics["clip_high"] + metrics["clip_low"]
    return (
        "<table><tr><th>rollout</th><th>tokens</th><th>reward</th><th>advantage</th>"
        f"<th>push in all</th></tr>{cells}</table>loss {numbers['loss'] + 0.0:.3f}, "
        f"{clipped:.0%} of the tokens clipped"
    )
