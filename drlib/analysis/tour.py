"""The tour's run as numbers and pictures: what notebooks 00 and 06 and the README show.

`TourRun` holds one run of the whole line, of one seed or several: results, learning curves and the
trajectories that were kept. It is read from the committed reference run or gathered from the stages
of a local one, and every figure here takes it and, optionally, a second run that is drawn in pale
grey behind. Colours: blue is reinforcement learning with the real reward, orange more of the same
supervised data, green the cold start, dark grey (dashed) the random-reward control.

Intervals are 95% and clustered by question (eight samples of one question are not eight
questions). Where all questions agree a bootstrap has no width: there Wilson's interval over the
questions is given. Left out: tests of hypotheses, and everything that trains.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.config import Config
from drlib.evals.metrics import Interval, wilson_interval
from drlib.evals.results import CONTROLS, LINE, TITLES, Results, gather
from drlib.training import stages
from drlib.training.run import RunFolder, read_metrics
from drlib.trajectory import Trajectory, load_trajectories

CURVES = ("cpt", "sft", "sft_continued", "rl", "rl_random_reward")
SMOOTH = 5  # steps that a drawn point of a reinforcement-learning curve is the mean of
COLORS = {"sft": "C2", "sft_continued": "C1", "rl": "C0", "rl_random_reward": "0.45"}
BEHIND = "0.8"


@dataclass(frozen=True)
class TourRun:
    """Results, `curves[stage][seed]` (rows of metrics.jsonl) and where trajectories were kept."""

    results: Results
    curves: dict[str, dict[int, list[dict]]]
    kept: dict[tuple[str, str], Path] = field(default_factory=dict)

    @staticmethod
    def load(folder: Path) -> TourRun:
        """The reference run; ValueError when `folder` has no readable one."""
        results = Results.load(folder)
        curves: dict[str, dict[int, list[dict]]] = {}
        for path in sorted(folder.glob("seed*_*.jsonl")):
            seed, _, stage = path.stem.removeprefix("seed").partition("_")
            lines = path.read_text(encoding="utf-8").splitlines()
            curves.setdefault(stage, {})[int(seed)] = [json.loads(line) for line in lines]
        kept = {}
        for path in sorted(folder.glob("*_*.parquet")):
            stage, _, decoding = path.stem.rpartition("_")
            kept[stage, decoding] = path
        return TourRun(results, curves, kept)

    @staticmethod
    def local(config: Config, runs: Path) -> TourRun:
        """What is finished of the run of `config`; ValueError when the line itself is not."""
        complete = [
            name for name in CONTROLS
            if RunFolder.complete(stages.folder(f"evaluate_{name}", config, runs))
        ]  # fmt: skip
        command = f"python -m drlib.lab run 00 -p profile {config.profile} -p seed {config.seed}"
        results = gather([config], runs, [*LINE, *complete], command)
        curves = {
            name: {config.seed: read_metrics(stages.folder(name, config, runs))}
            for name in CURVES
            if RunFolder.complete(stages.folder(name, config, runs))
        }
        kept = {
            (name, decoding): stages.folder(f"evaluate_{name}", config, runs)
            / f"{decoding}.parquet"
            for name in ("sft", "rl")
            for decoding in ("greedy", "sampled")
        }
        return TourRun(results, curves, kept)

    def trajectories(self, stage: str, decoding: str = "greedy") -> list[Trajectory]:
        """The kept rollouts on held-out questions; ValueError names what there is."""
        if (stage, decoding) not in self.kept:
            raise ValueError(f"no trajectories {stage}/{decoding}: there are {sorted(self.kept)}")
        return load_trajectories(self.kept[stage, decoding])


# ---------------------------------------------------------------------------------------------
# numbers


def pass_name(results: Results) -> str:
    """The decoding `pass@k` that this run has (k samples a question)."""
    names = sorted({r["decoding"] for r in results.rows if r["decoding"].startswith("pass@")})
    if len(names) != 1:
        raise ValueError(f"results must have one pass@k, they have {names}")
    return names[0]


def accuracy(
    results: Results, stage: str, kind: str, decoding: str, hops: int | None = None
) -> Interval:
    """(share right, low, high), 95%; Wilson's over the questions where the bootstrap has no width."""
    by_question = results.values(stage, kind, decoding, hops)
    if not by_question:  # the demonstrator: sums only
        correct, n = results.count(stage, kind, decoding, hops)
        return correct / n, *wilson_interval(correct, n)
    mean, low, high = results.accuracy(stage, kind, decoding, hops)
    if low == high and mean in (0.0, 1.0):
        low, high = wilson_interval(round(mean * len(by_question)), len(by_question))
    return mean, low, high


def error_rate(results: Results, stage: str) -> Interval:
    """Failed calls per call of the sampled rollouts, with its interval by question."""
    return _ratio(_calls(results, stage))


def error_ratio(results: Results, stage: str, over: str) -> Interval:
    """`error_rate(stage)` divided by `error_rate(over)`, paired by question."""
    return _ratio(_calls(results, stage), _calls(results, over))


def _calls(results: Results, stage: str) -> dict[str, np.ndarray]:
    table: dict[str, np.ndarray] = {}
    for (name, _), outcomes in results.outcomes.items():
        for o in outcomes if name == stage else ():
            table[o.task] = table.get(o.task, np.zeros(2)) + (o.errors, o.calls)
    if not table:
        raise ValueError(f"stage {stage!r} was not evaluated: there are {results.stages}")
    return table


def _ratio(top: dict[str, np.ndarray], bottom: dict[str, np.ndarray] | None = None) -> Interval:
    """Errors per call, or the ratio of two such rates; 2,000 resamples of the questions."""
    names = sorted(top)
    tables = [np.array([t[name] for name in names]) for t in (top, bottom) if t is not None]
    draws = np.random.default_rng(0).integers(len(names), size=(2000, len(names)))
    picks = np.vstack([np.arange(len(names)), draws])
    with np.errstate(divide="ignore", invalid="ignore"):
        rates = [t[picks].sum(1)[:, 0] / t[picks].sum(1)[:, 1] for t in tables]
        values = rates[0] if bottom is None else rates[0] / rates[1]
    low, high = np.nanquantile(values[1:], [0.025, 0.975])
    return float(values[0]), float(low), float(high)


def percent(interval: Interval, sign: str = "") -> str:
    """`85.1 [83.0, 87.0]`, in percent; `sign="+"` for a difference in points."""
    mean, low, high = (100 * v for v in interval)
    return f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


SHORT = {
    "closed_book": "RL, closed book", "sft_continued": "SFT continued", "cpt": "pre-trained",
    "demonstrator": "demonstrator", "rl_random_reward": "random reward",
}  # fmt: skip
# a block of the table: title, kind, number of look-ups (None: all)
BLOCKS = (
    ("python questions", "python", None), ("search questions", "search", None),
    ("search questions of three look-ups, which nobody demonstrated", "search", 3),
)  # fmt: skip


def table(results: Results) -> str:
    """The results as text, at most 80 columns wide: percent right, intervals and n."""
    best = pass_name(results)
    decodings, k = ("sample", "greedy", best), best.removeprefix("pass@")
    lines = [f"held-out answers, % right [95% interval], {len(results.seeds)} seed(s);",
             f"n questions: n greedy, {k} n sampled"]  # fmt: skip
    for title, kind, hops in BLOCKS:
        lines += ["", title]
        lines.append(f"{'':<17}{'sampled':<20}{'greedy':<20}{best:<20}n".rstrip())
        for stage in results.stages:
            cells = [_cell(results, stage, kind, d, hops) for d in decodings]
            if any(cells):
                n = results.count(stage, kind, "greedy", hops)[1]
                n = n or results.count(stage, kind, "sample", hops)[1]
                name = SHORT.get(stage, TITLES[stage])
                lines.append(f"{name:<17}" + "".join(f"{c:<20}" for c in cells) + f"{n}")
    lines += ["", "The demonstrator was asked its own easy training questions."]
    return "\n".join(lines)


def _cell(results: Results, stage: str, kind: str, decoding: str, hops: int | None) -> str:
    if not results.count(stage, kind, decoding, hops)[1]:
        return ""
    return percent(accuracy(results, stage, kind, decoding, hops))


# ---------------------------------------------------------------------------------------------
# pictures


def smoothed(rows: Sequence[dict], key: str, width: int = SMOOTH) -> tuple[np.ndarray, np.ndarray]:
    """(steps, mean of the last `width` values of `key`); a step without the key counts for none."""
    steps = np.array([row["step"] for row in rows])
    values = np.array([row.get(key, np.nan) for row in rows], dtype=float)
    out = np.full(len(values), np.nan)
    for i in range(len(values)):
        window = values[max(0, i - width + 1) : i + 1]
        if not np.isnan(window).all():
            out[i] = np.nanmean(window)
    return steps, out


def draw(
    ax: Axes, run: TourRun, stage: str, key: str, color: str, label: str, *, style: str = "-",
    width: int = SMOOTH, scale: float = 1.0,
) -> bool:  # fmt: skip
    """Seeds as thin lines over their range, their mean thick; False where the run lacks the stage."""
    seeds = run.curves.get(stage, {})
    lines = [smoothed(rows, key, width) for _, rows in sorted(seeds.items())]
    length = min((len(steps) for steps, _ in lines), default=0)
    if not length:
        return False
    steps = lines[0][0][:length]
    values = scale * np.array([v[:length] for _, v in lines])
    if len(lines) > 1:
        ax.fill_between(steps, values.min(0), values.max(0), color=color, alpha=0.15, lw=0)
        ax.plot(steps, values.T, color=color, lw=0.6, alpha=0.6, ls=style)
    ax.plot(steps, values.mean(0), color=color, lw=2.0, ls=style, label=label)
    return True


def pretraining(run: TourRun, behind: TourRun | None = None) -> Figure:
    """The loss of agentic pre-training by step, in nats a token that carries loss."""
    fig, ax = plt.subplots(figsize=(6.4, 3.2))
    if behind:
        draw(ax, behind, "cpt", "loss", BEHIND, "reference run", width=1)
    draw(ax, run, "cpt", "loss", "C0", f"{len(run.curves['cpt'])} seed(s)", width=1)
    ax.set(title="Agentic pre-training on invented worlds", xlabel="step", ylim=(0, None))
    ax.set_ylabel("loss, nats a token")
    ax.legend(loc="upper right")
    return fig


def copying(curves: dict[str, Sequence[float]], chance: float) -> Figure:
    """How fast each initialisation learns to repeat a random list: nats a token by step."""
    fig, ax = plt.subplots(figsize=(6.4, 3.0))
    for color, (name, losses) in zip(("C0", "C1"), curves.items()):
        ax.plot(range(len(losses)), losses, color=color, marker="o", label=name)
    ax.axhline(chance, color="0.45", ls=":", label="guessing")
    ax.set(title="Saying a random list again", xlabel="training step", ylim=(0, 1.15 * chance))
    ax.set_ylabel("loss, nats a token")
    ax.legend(loc="center right")
    return fig


def learning(run: TourRun, behind: TourRun | None = None) -> Figure:
    """The tour's figure: RL by step for both kinds of question, and held-out accuracy by look-ups.

    Curves are the rollouts of training (its questions come from a curriculum); points and the
    dashed line are held-out questions, with intervals, so that levels are compared like with like.
    """
    fig, axes = plt.subplots(1, 3, figsize=(12, 4.1), layout="constrained")
    for ax, kind in zip(axes, ("python", "search")):
        _reward_panel(ax, run, behind, kind)
    _look_ups_panel(axes[2], run, behind)
    handles: dict[str, object] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4)
    return fig


def _reward_panel(ax: Axes, run: TourRun, behind: TourRun | None, kind: str) -> None:
    key, n = f"accuracy_{kind}", len(run.curves["rl"])
    if behind:
        draw(ax, behind, "rl", key, BEHIND, "RL, reference run", scale=100)
    control = run if "rl_random_reward" in run.curves else behind
    if control:
        draw(ax, control, "rl_random_reward", key, COLORS["rl_random_reward"],
             "RL, random reward (control)", style="--", scale=100)  # fmt: skip
    draw(ax, run, "rl", key, COLORS["rl"], f"RL, {n} seed(s), in training", scale=100)
    last = max(rows[-1]["step"] for rows in run.curves["rl"].values())
    _point(ax, 0, run, "sft", kind, "sample", "D", "after SFT, held-out")
    _point(ax, last * 1.04, run, "rl", kind, "sample", "o", "after RL, held-out")
    more = _with_stage("sft_continued", run, behind)
    if more:
        mean, low, high = accuracy(more.results, "sft_continued", kind, "sample")
        ax.axhspan(100 * low, 100 * high, color=COLORS["sft_continued"], alpha=0.15, lw=0)
        ax.axhline(100 * mean, color=COLORS["sft_continued"], ls=(0, (5, 2)), lw=1.6,
                   label="SFT continued with RL's compute, held-out")  # fmt: skip
    ax.set(title=f"{kind.capitalize()} questions, sampled", xlabel="RL step", ylim=(-2, 102))
    ax.set_ylabel("right answers, %")


def _with_stage(stage: str, run: TourRun, behind: TourRun | None) -> TourRun | None:
    """The run that evaluated `stage`: the shown one, else the one behind it."""
    return next((r for r in (run, behind) if r and stage in r.results.stages), None)


def _point(
    ax: Axes, x: float, run: TourRun, stage: str, kind: str, decoding: str, marker: str,
    label: str | None, hops: int | None = None,
) -> None:  # fmt: skip
    mean, low, high = (100 * v for v in accuracy(run.results, stage, kind, decoding, hops))
    ax.errorbar([x], [mean], [[max(mean - low, 0)], [max(high - mean, 0)]], color=COLORS[stage],
                marker=marker, capsize=3, ls="", label=label, zorder=5,
                markeredgecolor="white", markersize=7)  # fmt: skip


def _look_ups_panel(ax: Axes, run: TourRun, behind: TourRun | None) -> None:
    markers = {"sft": "D", "sft_continued": "s", "rl": "o"}
    for shift, (stage, marker) in zip((-0.16, 0.0, 0.16), markers.items()):
        source = _with_stage(stage, run, behind)
        for hops in (1, 2, 3) if source else ():
            if source.results.count(stage, "search", "greedy", hops)[1]:
                label = "SFT continued, held-out, greedy" if stage == "sft_continued" else None
                _point(ax, hops + shift, source, stage, "search", "greedy", marker, label, hops)
    ax.set(title="Search questions, greedy, held-out", ylim=(-2, 102), xlim=(0.5, 3.5))
    ax.set_xticks([1, 2, 3], ["one", "two", "three\n(never demonstrated)"])
    ax.set_xlabel("look-ups")
    ax.set_ylabel("right answers, %")


# panels of notebook 06: title, y label, {metric: (colour, label)}, scale
PANELS = (
    ("Right answers", "%", {"accuracy_python": ("C0", "python"),
                            "accuracy_search": ("C1", "search")}, 100.0),
    ("Right answers by look-ups", "%", {"accuracy_h1": ("C0", "one"), "accuracy_h2": ("C1", "two"),
                                        "accuracy_h3": ("C2", "three")}, 100.0),
    ("What goes wrong", "%", {"tool_errors": ("C1", "failed calls per call"),
                              "no_call": ("C0", "rollouts without a call"),
                              "overlong": ("C2", "over-long rollouts")}, 100.0),
    ("Tokens a rollout generates", "tokens", {"generated": ("C0", "real reward")}, 1.0),
    ("Entropy of the policy", "nats a token", {"entropy": ("C0", "real reward")}, 1.0),
    ("Groups that teach", "%", {"live_groups": ("C0", "real reward")}, 100.0),
)  # fmt: skip


def rl_closely(run: TourRun, behind: TourRun | None = None) -> Figure:
    """Notebook 06's figure: six views of the RL stage by step, each a mean of five steps."""
    fig, axes = plt.subplots(2, 3, figsize=(12, 6.6), layout="constrained")
    for ax, (title, unit, lines, scale) in zip(axes.flat, PANELS):
        for key, (color, label) in lines.items():
            if behind:
                draw(ax, behind, "rl", key, BEHIND, "", scale=scale)
            draw(ax, run, "rl", key, color, label, scale=scale)
        control = _with_curve("rl_random_reward", run, behind)
        if control and len(lines) == 1:
            draw(ax, control, "rl_random_reward", key, COLORS["rl_random_reward"],
                 "random reward", style="--", scale=scale)  # fmt: skip
        ax.set(title=title, xlabel="RL step", ylabel=unit, ylim=(0, None))
        if unit == "%":
            ax.set_ylim(-2, 102)
        handles, labels = ax.get_legend_handles_labels()
        named = [(h, text) for h, text in zip(handles, labels) if text and text[0] != "_"]
        ax.legend(*zip(*named), loc="lower center", bbox_to_anchor=(0.5, -0.42), ncols=3)
    return fig


def _with_curve(stage: str, run: TourRun, behind: TourRun | None) -> TourRun | None:
    return next((r for r in (run, behind) if r and stage in r.curves), None)
