"""Interactive panels for notebooks: controls around figures, rollouts and questions.

Panels set the values of `Image` and `HTML` widgets in `observe` callbacks. `Output` widgets are not
used, because nbval cannot replay their display messages. Setting a slider from code also redraws,
so panels can be tested without a browser.
"""

import base64
import dataclasses
import html
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import get_args, get_type_hints

import ipywidgets as ipw
from matplotlib.figure import Figure

from drlib.analysis import data_plots, plots, rendering, viewer
from drlib.analysis.figure_style import png_bytes
from drlib.demonstrations.solver import Solver
from drlib.questions.checks import find_faults, measure_effort
from drlib.questions.queries import Query, evaluate_query, from_text, measure_depth, to_text
from drlib.questions.upgrades import OPERATORS
from drlib.questions.wording import render_question
from drlib.rl.advantages import ADVANTAGES
from drlib.rl.clips import CLIPS
from drlib.rl.losses import LossConfig
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Trajectory
from drlib.worlds import World, read_facts

UPGRADE_SLIDERS = ("deepen", "widen", "fuzz")
UPGRADE_TRIES = 8  # maximum draws per upgrade


class _Panel(ipw.VBox):
    """Base panel that redraws whenever one of its controls changes.

    Attributes:
        reset: button that restores the first values.
        status: label that is filled while the panel is drawn.
    """

    def __init__(self, controls: Iterable[ipw.Widget], children: Sequence[ipw.Widget]):
        first = [(control, control.value) for control in controls]
        self.reset, self.status = ipw.Button(description="reset"), ipw.Label()
        self.reset.on_click(lambda _: self._restore(first))
        for control, _ in first:
            if control.has_trait("continuous_update"):
                control.continuous_update = False  # one drawing per move, not one per pixel
            control.observe(lambda _: self._redraw(), names="value")
        super().__init__([*children, ipw.HBox([self.reset, self.status])])
        self._redraw()

    def _redraw(self):
        self.status.value = "drawing ..."
        try:
            self._draw()
        finally:
            self.status.value = ""

    def _restore(self, first: Iterable[tuple[ipw.Widget, object]]):
        for control, value in first:
            control.value = value

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """Add the picture, which code hosts show instead of the widget."""
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle["text/plain"] = f"{type(self).__name__}: the controls need a running kernel"
        if "picture" in vars(self):
            bundle["image/png"] = base64.b64encode(self.picture.value).decode()
        return bundle


class GrpoPanel(_Panel):
    """Panel for the settings of the GRPO loss, on four rollouts.

    With aggregation "constant" the constant is the longest rollout length.

    Attributes:
        sliders: rewards, ratio and loss coefficients, by name.
        switches: dropdowns of the loss variants, by name.
        table: advantages and gradients, HTML.
        picture: the figure.

    """

    lengths = (8, 4, 2, 2)  # tokens of each rollout
    ranges = {
        "reward 1": (1.0, 0, 1),
        "reward 2": (0.0, 0, 1),
        "reward 3": (0.0, 0, 1),
        "reward 4": (0.0, 0, 1),
        "ratio": (1.0, 0.4, 1.8),
        "ε low": (0.2, 0, 0.9),
        "ε high": (0.28, 0, 0.9),
        "KL weight": (0.0, 0, 1),
    }

    def __init__(self):
        self.sliders = {
            name: ipw.FloatSlider(value, min=low, max=high, step=0.02, readout_format=".2f")
            for name, (value, low, high) in self.ranges.items()
        }
        kinds = get_type_hints(LossConfig)
        options = {
            "advantage": list(ADVANTAGES),  # registered estimators included
            "clip": list(CLIPS),
            "level": get_args(kinds["level"]),
            "aggregate": get_args(kinds["aggregate"]),
            "kl_estimator": get_args(kinds["kl_estimator"]),
        }
        self.switches = {name: ipw.Dropdown(options=some) for name, some in options.items()}
        self.switches["kl_estimator"].value = LossConfig.kl_estimator
        controls = self.sliders | self.switches
        for name, control in controls.items():
            control.description = name
            control.style.description_width = "6.5em"
        self.table = ipw.HTML()
        self.picture = ipw.Image(format="png")
        every = list(controls.values())
        columns = ipw.HBox([ipw.VBox(part) for part in (every[:4], every[4:8], every[8:])])
        super().__init__(every, [columns, self.picture, self.table])

    def _draw(self):
        *rewards, ratio, low, high, kl_coef = [slider.value for slider in self.sliders.values()]
        switches = {name: switch.value for name, switch in self.switches.items()}
        how = dict(advantage=ADVANTAGES[switches.pop("advantage")], lengths=self.lengths)
        if switches["aggregate"] == "constant":
            switches["constant_tokens"] = max(self.lengths)
        config = LossConfig(epsilon_low=low, epsilon_high=high, kl_coef=kl_coef, **switches)
        self.picture.value = png_bytes(plots.plot_grpo_step(rewards, ratio, config, **how))
        self.table.value = _render_table(
            plots.compute_grpo_step(rewards, ratio, config, **how), rewards
        )


grpo_panel = GrpoPanel  # name used in notebook 03


class TrajectoryPanel(_Panel):
    """Panel that shows the rollout of a selected policy for a selected question.

    Args:
        runs: trajectories by policy; their questions are listed once.

    Attributes:
        question: dropdown of questions.
        policy: toggle buttons of policies.
        page: the rollout, HTML.

    Raises:
        ValueError: no trajectories.

    """

    def __init__(self, runs: dict[str, list[Trajectory]]):
        if not any(runs.values()):
            raise ValueError("a trajectory panel needs at least one trajectory")
        self._found = {(name, t.task_id): t for name, some in runs.items() for t in some}
        every = [t for some in runs.values() for t in some]
        questions = {rendering.escape_unseen(t.metadata["question"]): t.task_id for t in every}
        wide = ipw.Layout(width="90%")
        self.question = ipw.Dropdown(options=questions, description="question", layout=wide)
        self.policy = ipw.ToggleButtons(options=list(runs), description="policy")
        self.page = ipw.HTML()
        controls = [self.question, self.policy]
        super().__init__(controls, [*controls, self.page])

    def _draw(self):
        name = self.policy.value
        found = self._found.get((name, self.question.value))
        page = f"<p>{name} has no rollout for this question</p>"
        self.page.value = page if found is None else rendering.render_trajectory(found, name).markup


trajectory_panel = TrajectoryPanel  # name used in notebooks 00, 04 and 05


class ContextPanel(_Panel):
    """Panel that steps through a rollout: all turns so far beside the context of this turn.

    Args:
        trajectory: rollout with token ids.
        tokenizer: tokenizer of the policy.

    Attributes:
        turn: slider.
        page: the texts, HTML.

    Raises:
        ValueError: the rollout has no sampled turns.

    """

    def __init__(self, trajectory: Trajectory, tokenizer):
        self._turns, self._contexts = rendering.decode_turns_and_contexts(trajectory, tokenizer)
        if not self._turns:
            raise ValueError(
                f"trajectory {trajectory.id} has no sampled turns; pass one with token ids"
            )
        self.turn = ipw.IntSlider(1, min=1, max=len(self._turns), description="turn")
        self.page = ipw.HTML()
        super().__init__([self.turn], [self.turn, self.page])

    def _draw(self):
        now = self.turn.value
        turns = [rendering.to_html(text) for text in self._turns[:now]]
        turns[-1] = f"<b>{turns[-1]}</b>"
        style = "width:48%;vertical-align:top;white-space:pre-wrap;text-align:left"
        cells = ("\n\n".join(turns), rendering.to_html(self._contexts[now - 1]))
        heads = "<tr><th>turns so far</th><th>context of this turn</th></tr>"
        row = "".join(f'<td style="{style}">{cell}</td>' for cell in cells)
        self.page.value = f'<table style="width:100%">{heads}<tr>{row}</tr></table>'


class TrajectoryViewer(ipw.VBox):
    """Trajectory viewer in a sandboxed frame, see `viewer.viewer_page`.

    Args:
        path: file of rollouts, or a list of trajectories.
        tokenizer: tokenizer of the model, or its folder; without one, ids are shown.
        compare: the same tokens rescored with another checkpoint.
        title: title of the page; default: file name.
        height: height of the frame in pixels.
    """

    def __init__(self, path, tokenizer=None, compare=None, *, title: str = "", height: int = 760):
        self._text = viewer.viewer_page(path, tokenizer, compare=compare, title=title)
        self._count = self._text.count('class="part"')
        style = f"width: 100%; height: {int(height)}px; border: 1px solid #8884"
        super().__init__(
            [
                ipw.HTML(
                    f'<iframe sandbox="allow-scripts" style="{style}" '
                    f'srcdoc="{html.escape(self._text)}"></iframe>'
                )
            ]
        )

    def save(self, path: str | Path) -> Path:
        """Write the page as an HTML file and return its path."""
        return viewer.save_page(path, self._text)

    def __repr__(self) -> str:
        return f"TrajectoryViewer({self._count} trajectories)"


class FigurePanel(_Panel):
    """Panel with controls for any figure.

    Args:
        draw: function from the values of all controls, in order, to a Figure.
        choices: options by control name; numeric options get a slider.
        start: initial values by control name; default: the first option.

    Attributes:
        controls: widgets by name.
        picture: the figure.

    """

    def __init__(
        self,
        draw: Callable[..., Figure],
        choices: dict[str, Sequence],
        start: dict | None = None,
    ):
        self._figure, start = draw, start or {}
        self.controls = {}
        for name, values in choices.items():
            numbers = all(isinstance(value, int | float) for value in values)
            kind = ipw.SelectionSlider if numbers else ipw.ToggleButtons
            self.controls[name] = kind(
                options=list(values),
                value=start.get(name, values[0]),
                description=name,
                style={"description_width": "110px"},
                layout=ipw.Layout(width="60%"),
            )
        self.picture = ipw.Image(format="png")
        super().__init__(self.controls.values(), [*self.controls.values(), self.picture])

    def _draw(self):
        self.picture.value = png_bytes(self._figure(*(c.value for c in self.controls.values())))


class SearchPanel(_Panel):
    """Search box over several worlds: the hits, and the facts of the first one.

    Args:
        worlds: worlds by name.
        query: first query.
        hits: number of hits shown.

    Attributes:
        box: text field of the query.
        world: toggle buttons of the worlds.
        shown: the result, HTML.

    """

    def __init__(self, worlds: dict[str, World], query: str, hits: int = 3):
        self._worlds, self._hits = worlds, hits
        self.box = ipw.Text(query, description="search", continuous_update=False)
        self.world = ipw.ToggleButtons(options=list(worlds), description="world")
        self.shown = ipw.HTML()
        super().__init__([self.box, self.world], [self.box, self.world, self.shown])

    def _draw(self):
        world = self._worlds[self.world.value]
        found = world.search(self.box.value, self._hits)
        items = [
            f"<li><b>{html.escape(hit.title)}</b><br>{html.escape(hit.snippet)}</li>"
            for hit in found
        ]
        text = f"<ol>{''.join(items)}</ol>" if items else "<i>No results.</i>"
        facts = read_facts(world.page(found[0].title).text) if found else {}
        if facts:
            listed = "; ".join(f"{name}: {', '.join(some[:6])}" for name, some in facts.items())
            text += f"<p><b>{html.escape(found[0].title)}</b> has {html.escape(listed)}</p>"
        self.shown.value = text


class QuestionPanel(_Panel):
    """Panel that makes a question harder and shows its graph, faults and solver calls.

    Each slider sets how often an upgrade operator is applied. An upgrade must keep the answer and
    pass every check; it is skipped if none is found.

    Args:
        world: world of the tasks.
        tasks: questions with queries.
        toolbox: toolbox of the scripted solver; None omits the solver.

    Attributes:
        task: dropdown of questions.
        levels: sliders by operator.
        picture: graph of the question.
        text: question and statistics, HTML.

    """

    def __init__(self, world, tasks: Sequence[Task], toolbox: Toolbox | None = None):
        self._graph = world.graph
        self._solver = None if toolbox is None else Solver(toolbox, max_calls=200)
        self.task = ipw.Dropdown(
            options={t.question: t for t in tasks},
            description="question",
            layout=ipw.Layout(width="90%"),
        )
        self.levels = {
            name: ipw.IntSlider(0, min=0, max=2, description=name) for name in UPGRADE_SLIDERS
        }
        self.picture = ipw.Image(format="png")
        self.text = ipw.HTML()
        controls = [self.task, *self.levels.values()]
        super().__init__(controls, [*controls, self.picture, self.text])

    def _draw(self):
        task = self.task.value
        query, applied = self._apply_upgrades(from_text(task.query))
        cells = {
            "upgrades": applied,
            "answers": len(evaluate_query(query, self._graph)),
            "faults": ", ".join(find_faults(query, self._graph)) or "none",
            "hops": measure_depth(query),
            "pages": measure_effort(query, self._graph),
        }
        if self._solver:
            episode = self._solver.solve(dataclasses.replace(task, query=to_text(query)))
            if episode.answer:
                outcome = "right" if episode.correct else "wrong"
            else:
                outcome = "none"
            cells["solver"] = f"{len(episode.tool_results)} calls, {outcome}"
        head = "".join(f"<th>{html.escape(name)}</th>" for name in cells)
        row = "".join(f"<td>{html.escape(str(value))}</td>" for value in cells.values())
        question = html.escape(render_question(query, self._graph, 0))
        self.text.value = f"<p>{question}</p><table><tr>{head}</tr><tr>{row}</tr></table>"
        self.picture.value = png_bytes(data_plots.plot_question_graph(query, task.answer))

    def _apply_upgrades(self, query: Query) -> tuple[Query, int]:
        """Apply the upgrades set by the sliders; return the query and the number applied."""
        applied = 0
        for name, slider in self.levels.items():
            for times in range(slider.value):
                rng = random.Random(f"{name}-{times}")
                for _ in range(UPGRADE_TRIES):
                    harder = OPERATORS[name](query, self._graph, rng)
                    if harder:
                        query = harder
                        applied += 1
                        break
        return query, applied


def _render_table(numbers: dict, rewards: list[float]) -> str:
    """Render rewards, advantages and gradients as an HTML table."""
    found = zip(rewards, numbers["advantages"], numbers["pushes"], strict=True)
    rows = "".join(
        f"<tr><td>#{i}</td><td>{len(pushes)}</td><td>{reward:.3f}</td>"
        f"<td>{advantage + 0.0:.3f}</td><td>{sum(pushes) + 0.0:.3f}</td></tr>"
        for i, (reward, advantage, pushes) in enumerate(found, start=1)
    )
    clipped = numbers["metrics"]["clip_high"] + numbers["metrics"]["clip_low"]
    return (
        "<table><tr><th>rollout</th><th>tokens</th><th>reward</th><th>advantage</th>"
        f"<th>push in all</th></tr>{rows}</table>loss {numbers['loss'] + 0.0:.3f}, "
        f"{clipped:.0%} of the tokens clipped"
    )
