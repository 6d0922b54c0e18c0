"""Figures of an experiment: arms, differences to the control, and learning curves.

Left: held-out accuracy with its interval, one dot per seed. Middle: the paired difference to the
control with its interval. Right: training accuracy against generated tokens, mean and range over
seeds. An arm has the same colour in all panels; the control is grey and dashed. `effects_figure`
shows the differences of many experiments.

Figures are drawn from the summaries of `drlib.experiments.tables`.
"""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.analysis.figure_style import CONTROL, STYLE, png_bytes
from drlib.analysis.tour_plots import smooth

Curves = Mapping[str, Sequence[Sequence[dict]]]  # arm -> rows of the steps of each seed
COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6")
STYLES = ("-", "-.", ":")  # of arms beyond the colours
IN_TRAINING = {"2 conditions": "accuracy_c2", "3 conditions": "accuracy_c3"}
DPI = 150
SEED_GAP = 0.22  # below an arm's line, where its seeds' dots are


def experiment_figure(found: Mapping, curves: Curves) -> Figure:
    """Plot the summary of an experiment and the curves of its arms."""
    names = [arm["arm"] for arm in found["arms"]]
    looks = _looks(names, found["control"])
    with plt.style.context(STYLE):
        height = 2.6 + 0.34 * len(names)
        fig, axes = plt.subplots(
            1, 3, figsize=(12.5, height), layout="constrained", width_ratios=(4, 4, 5)
        )
        _accuracy_panel(axes[0], found, looks)
        _difference_panel(axes[1], found, looks)
        _training_panel(axes[2], found, curves, looks)
        fig.suptitle(textwrap.fill(f"{found['name']}: {found['about']}", 130), fontsize=11)
    return fig


def ranking_figure(found: Mapping) -> Figure:
    """Plot each arm's accuracy on both sides of a ranking, with intervals.

    Points on the dashed line are equally good on both sides. The rankings agree if the points rise
    from left to right, at any distance from the line.
    """
    ranking = found["ranking"]
    looks = _looks([*ranking["arms"]], found["control"])
    low, high = ranking["interval"]
    with plt.style.context(STYLE):
        fig, ax = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
        ax.plot([0, 100], [0, 100], color="0.75", lw=1.0, ls="--", zorder=0)
        for number, (arm, sides) in enumerate(ranking["arms"].items()):
            (x, x_ends), (y, y_ends) = (
                (100 * side["effect"], [100 * end for end in side["interval"]]) for side in sides
            )
            color = looks[arm]["color"]
            marker = "os^"[number // len(COLORS) % 3]
            ax.plot(x_ends, [y, y], color=color, lw=1.2, alpha=0.5)
            ax.plot([x, x], y_ends, color=color, lw=1.2, alpha=0.5)
            ax.plot(x, y, marker, color=color, ms=9, mec="white", label=arm)
        first, second = (f"{one['kind']}, {one['decoding']}" for one in ranking["asked"])
        ax.set(xlim=(-2, 102), ylim=(-2, 102), xlabel=f"{first}, % right")
        ax.set_ylabel(f"{second}, % right")
        ax.set_title(f"Spearman {ranking['effect']:.2f} [{low:.2f}, {high:.2f}]")
        ax.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return fig


def effects_figure(experiments: Sequence[Mapping], columns: int = 2) -> Figure:
    """Plot the difference of every arm to the control of its experiment, with its interval, in
    points.

    The first kind of question of an experiment is shown. Coloured: the interval excludes zero. Arms
    are grouped under their experiment and control; an experiment stays in one column.
    """
    blocks = [_effects(found) for found in experiments]
    total = sum(len(block) for block in blocks)
    shares: list[list] = [[] for _ in range(columns)]
    for block in blocks:  # in order, a new column once the one before has its share of the rows
        before = sum(map(len, shares))
        place = min(columns * before // max(total, 1), columns - 1)
        shares[place] += block
    with plt.style.context(STYLE):
        height = 0.9 + 0.235 * max(map(len, shares))
        fig, axes = plt.subplots(
            1, columns, figsize=(6.2 * columns, height), layout="constrained", squeeze=False
        )
        for ax, rows in zip(axes[0], shares):
            _effects_panel(ax, rows)
        widest = max((max(map(abs, ax.get_xlim())) for ax in axes[0]), default=1.0)
        for ax in axes[0]:
            ax.set(xlim=(-widest, widest), xlabel="points less the control")
    return fig


def _effects(found: Mapping) -> list[tuple[str, Mapping | None]]:
    """Return the lines of an experiment: its heading, and label and difference of each arm."""
    lines = [
        (arm["arm"], arm["asked"][0].get("difference")) for arm in found["arms"] if arm["asked"]
    ]
    return [(f"{found['name']}, less {found['control']}", None), *(row for row in lines if row[1])]


def _effects_panel(ax: Axes, rows: Sequence[tuple[str, Mapping | None]]) -> None:
    ax.axvline(0, color=CONTROL, lw=1.2, ls="--")
    for y, (_, less) in enumerate(rows):
        if less:
            low, high = less["interval"]
            color = CONTROL if low <= 0 <= high else COLORS[1]
            _interval(ax, y, less["effect"], less["interval"], color)
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    for label, (_, less) in zip(ax.get_yticklabels(), rows):
        label.set_fontweight("normal" if less else "bold")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.grid(False, axis="y")


def drawn(fig: Figure) -> bytes:
    """Return the figure as PNG bytes, equal for equal content, and close it."""
    with plt.style.context(STYLE):
        return png_bytes(fig, DPI)


def _looks(names: Sequence[str], control: str) -> dict[str, dict]:
    """Return the colour and line style of each arm."""
    others = [name for name in names if name != control]
    looks = {control: {"color": CONTROL, "ls": "--"}}
    for place, name in enumerate(others):
        again, color = divmod(place, len(COLORS))
        looks[name] = {"color": COLORS[color], "ls": STYLES[again % len(STYLES)]}
    return looks


def _rows(ax: Axes, found: Mapping, labels: bool) -> None:
    """Label one row per arm, the first on top; incomplete arms are marked."""
    names = []
    for arm in found["arms"]:
        done, wanted = len(arm["seeds"]), len(found["seeds"])
        state = f"\n{done} of {wanted} seeds" if 0 < done < wanted else ""
        names.append(arm["arm"] + (state if done else f"\n{arm['state']}"))
    ax.set_yticks(range(len(names)), names if labels else [])
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(names) - 0.45, -0.55)
    ax.grid(False, axis="y")


def _accuracy_panel(ax: Axes, found: Mapping, looks: Mapping) -> None:
    for y, arm in enumerate(found["arms"]):
        if not arm["asked"]:
            continue
        first, color = arm["asked"][0], looks[arm["arm"]]["color"]
        _interval(ax, y, first["accuracy"], first["interval"], color)
        by_seed = 100 * np.array(first["by_seed"])
        ax.plot(by_seed, np.full(len(by_seed), y + SEED_GAP), "o", color=color, ms=3.5, alpha=0.8)
    asked = found["asked"][0]
    title = f"Held-out {asked['kind']}, {asked['decoding']}"
    ax.set(title=title, xlabel="right, %   (small dots: seeds)", xlim=(-2, 102))
    _rows(ax, found, labels=True)


def _difference_panel(ax: Axes, found: Mapping, looks: Mapping) -> None:
    ax.axvline(0, color=CONTROL, lw=1.2, ls="--")
    for y, arm in enumerate(found["arms"]):
        difference = arm["asked"][0].get("difference") if arm["asked"] else None
        if difference:
            color = looks[arm["arm"]]["color"]
            _interval(ax, y, difference["effect"], difference["interval"], color)
            by_seed = 100 * np.array(difference["by_seed"])
            places = np.full(len(by_seed), y + SEED_GAP)
            ax.plot(by_seed, places, "o", color=color, ms=3.5, alpha=0.8)
    ax.margins(x=0.08)
    widest = max(map(abs, ax.get_xlim()))
    ax.set(title="Less the control", xlim=(-widest, widest))
    ax.set_xlabel(f"points   (control: {found['control']})")
    _rows(ax, found, labels=False)


def _interval(ax: Axes, y: float, value: float, interval: Sequence[float], color: str) -> None:
    """Draw a share and its interval, in percent."""
    low, high = (100 * end for end in interval)
    ax.plot([low, high], [y, y], color=color, lw=2.5, solid_capstyle="round")
    ax.plot(100 * value, y, "o", color=color, ms=8, mec="white")


def _training_panel(ax: Axes, found: Mapping, curves: Curves, looks: Mapping) -> None:
    """Plot training accuracy over generated tokens if all arms count them, else over steps; plot
    the loss without training questions.
    """
    rows = [row for some in curves.values() for one in some for row in one]
    kind = found["asked"][0]["kind"]
    key = _in_training(kind, rows)
    by_tokens = bool(rows) and all("generated" in row and "rollouts" in row for row in rows)
    most = max((sum(map(_generated, one)) for some in curves.values() for one in some), default=0)
    unit, word = (1e6, "millions") if most >= 2e6 else (1e3, "thousands")
    for name, some in curves.items():
        if any(key in row for one in some for row in one):
            _band(ax, some, key, unit if by_tokens else 0, looks[name], name)
    accuracy = key.startswith("accuracy")
    of = f", {kind}" if key not in ("accuracy", "loss") else ""
    ax.set(
        title=f"In training{of}",
        xlabel=f"tokens generated, {word}" if by_tokens else "step",
        ylabel="right answers, %" if accuracy else "loss, nats a token",
    )
    handles, labels = ax.get_legend_handles_labels()
    if handles:
        ax.legend(handles, labels, loc="center left", bbox_to_anchor=(1.01, 0.5))


def _generated(row: Mapping) -> float:
    """Return the tokens of a step's rollouts; `generated` is the mean per rollout."""
    return row.get("generated", 0) * row.get("rollouts", 0)


def _in_training(kind: str, rows: Sequence[Mapping]) -> str:
    """Return the training metric for a kind of question."""
    wanted = (IN_TRAINING.get(kind, f"accuracy_{kind}"), "accuracy")
    return next((key for key in wanted if any(key in row for row in rows)), "loss")


def _band(
    ax: Axes,
    some: Sequence[Sequence[dict]],
    key: str,
    unit: float,
    look: Mapping,
    label: str,
) -> None:
    """Draw the mean over seeds and their range, as far as all seeds have data.

    unit: of the tokens on the x axis; 0 for steps.
    """
    shared = min(map(len, some))
    scale = 100 if key.startswith("accuracy") else 1
    values_ST = np.array([scale * smooth(rows, key)[1][:shared] for rows in some])
    places_ST = np.array([[row["step"] for row in rows[:shared]] for rows in some], dtype=float)
    if unit:
        made_ST = [[_generated(row) for row in rows[:shared]] for rows in some]
        places_ST = np.cumsum(made_ST, axis=1) / unit
    places_T = places_ST.mean(axis=0)
    if len(some) > 1:
        low_T, high_T = values_ST.min(axis=0), values_ST.max(axis=0)
        ax.fill_between(places_T, low_T, high_T, color=look["color"], alpha=0.13, lw=0)
    ax.plot(places_T, values_ST.mean(axis=0), label=label, lw=2.0, **look)
