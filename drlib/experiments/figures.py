"""The picture of a sweep: arms against their control, and how they came there.

Left: held-out accuracy with its interval, and each seed as a dot. Middle: the paired difference to
the control with its interval. Right: accuracy in training against the tokens that were generated
for it, the mean over seeds and their range. An arm has one colour in all three and a line of its
own in the first two, so eight arms are as legible as two; the control is grey and dashed.
`effects_figure` has the differences of many sweeps in one picture.

Drawn from what `drlib.experiments.tables` wrote; nothing here trains or reads a file.
"""

import textwrap
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from drlib.analysis.plots import CONTROL, STYLE, png_bytes
from drlib.analysis.tour_plots import smoothed

Curves = Mapping[str, Sequence[Sequence[Mapping]]]  # arm -> rows of the steps of each seed
COLORS = ("C0", "C1", "C2", "C3", "C4", "C5", "C6")
STYLES = ("-", "-.", ":")  # of arms beyond the colours
IN_TRAINING = {"2 conditions": "accuracy_c2", "3 conditions": "accuracy_c3"}
DPI = 150
SEED_GAP = 0.22  # below an arm's line, where its seeds' dots are


def sweep_figure(found: Mapping, curves: Curves) -> Figure:
    """The summary of a sweep (sweep.json) and its arms' curves as one figure."""
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


def effects_figure(sweeps: Sequence[Mapping], columns: int = 2) -> Figure:
    """Every arm of some sweeps (sweep.json) less the control of its own sweep, with its interval,
    in points of the first question that its sweep asks. In colour: the interval excludes zero.

    A sweep's arms stand together under its name and its control's; a sweep stays in one column.
    """
    blocks = [_effects(found) for found in sweeps]
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
    """A sweep's lines: its heading, and a label and difference for each arm that has one."""
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
        label.set_weight("normal" if less else "bold")
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(rows) - 0.45, -0.55)
    ax.grid(False, axis="y")


def drawn(fig: Figure) -> bytes:
    """The figure as a PNG: equal content gives equal bytes; it is closed."""
    with plt.style.context(STYLE):
        return png_bytes(fig, DPI)


def _looks(names: Sequence[str], control: str) -> dict[str, dict]:
    """Each arm's colour and line."""
    others = [name for name in names if name != control]
    looks = {control: {"color": CONTROL, "ls": "--"}}
    for place, name in enumerate(others):
        again, color = divmod(place, len(COLORS))
        looks[name] = {"color": COLORS[color], "ls": STYLES[again % len(STYLES)]}
    return looks


def _rows(ax: Axes, found: Mapping, labels: bool) -> None:
    """A line for each arm, the first on top; those without all their seeds say so."""
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
    """A share and its interval, in percent, on one line."""
    low, high = (100 * end for end in interval)
    ax.plot([low, high], [y, y], color=color, lw=2.5, solid_capstyle="round")
    ax.plot(100 * value, y, "o", color=color, ms=8, mec="white")


def _training_panel(ax: Axes, found: Mapping, curves: Curves, looks: Mapping) -> None:
    """By generated tokens where all arms count them, else by steps; losses where nothing is asked
    in training."""
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
    """Tokens of a step's rollouts: `generated` is the mean of one."""
    return row.get("generated", 0) * row.get("rollouts", 0)


def _in_training(kind: str, rows: Sequence[Mapping]) -> str:
    """The metric that stands for a kind of question in training."""
    wanted = (IN_TRAINING.get(kind, f"accuracy_{kind}"), "accuracy")
    return next((key for key in wanted if any(key in row for row in rows)), "loss")


def _band(
    ax: Axes,
    some: Sequence[Sequence[Mapping]],
    key: str,
    unit: float,
    look: Mapping,
    label: str,
) -> None:
    """The mean over seeds and their range, as far as all of them came; tokens are their mean.

    unit: of the tokens on the x axis; 0: steps are on it.
    """
    shared = min(map(len, some))
    scale = 100 if key.startswith("accuracy") else 1
    values_ST = np.array([scale * smoothed(rows, key)[1][:shared] for rows in some])
    places_ST = np.array([[row["step"] for row in rows[:shared]] for rows in some], dtype=float)
    if unit:
        made_ST = [[_generated(row) for row in rows[:shared]] for rows in some]
        places_ST = np.cumsum(made_ST, axis=1) / unit
    places_T = places_ST.mean(axis=0)
    if len(some) > 1:
        low_T, high_T = values_ST.min(axis=0), values_ST.max(axis=0)
        ax.fill_between(places_T, low_T, high_T, color=look["color"], alpha=0.13, lw=0)
    ax.plot(places_T, values_ST.mean(axis=0), label=label, lw=2.0, **look)
