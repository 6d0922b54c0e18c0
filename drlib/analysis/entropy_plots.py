"""Plots of entropies, lifts and answer losses, most drawn into given axes.

Used by notebooks 19, 30 and 31 and by the report. Inputs are results of `entropy`, `reflection`
and `pseudo_gradient`. Blue and orange are two policies, or successful and failed tool
responses; grey is a null or a control. Colour scales go from pale (low) to dark (high), in the
tones of cividis, which are readable with colour vision deficiency.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from drlib.analysis.entropy import select_top_share
from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.analysis.pseudo_gradient import LossCurve
from drlib.analysis.token_table import TokenTable, find_responses
from drlib.chat.segments import token_texts
from drlib.trajectory import Segment, Trajectory

# colour scale of entropies and losses in nats; the stops of viewer.js on a light background
TONES = ("white", "#fcf0b0", "#e5d266", "#b1a570", "#7d7c78", "#47526c", "#00224e")
SCALE = LinearSegmentedColormap.from_list("nats", TONES)
MIN_TEXT_TONE = 0.4  # lowest tone of text, as a share of the scale
SEGMENT_COLORS = {
    Segment.THINK: 0.6,
    Segment.TOOL_CALL: (0.34, 0.71, 0.91),
    Segment.ANSWER: (0, 0.62, 0.45),
}
STATUS_COLORS = {"all": UP, "ok": UP, "error": DOWN, "empty": "C4"}  # by response status


def plot_histogram(
    ax: Axes, tables: Mapping[str, TokenTable | Sequence[TokenTable]], bins: int = 50
):
    """Plot histograms of token entropies (nats); dashed lines mark the 80th percentiles.

    Several tables per name (seeds) are drawn as thin lines; the thick line pools them.
    """
    known: dict[str, list[np.ndarray]] = {}
    for name, some in tables.items():
        some = [some] if isinstance(some, TokenTable) else some
        known[name] = [table.known("entropy") for table in some]
    edges = np.linspace(0, max(e.max() for some in known.values() for e in some) + 1e-6, bins + 1)
    for color, (name, some) in zip(cycle((CONTROL, UP, DOWN, "C2")), known.items()):
        every = np.concatenate(some)
        p80 = np.quantile(every, 0.8)
        for entropy in some:
            ax.stairs(_compute_percentages(entropy, edges), edges, color=color, lw=0.6)
        label = f"{name}: 80% below {p80:.3f}"
        ax.stairs(_compute_percentages(every, edges), edges, color=color, lw=2, label=label)
        ax.axvline(p80, color=color, lw=1, ls="--")
    ax.set(yscale="log", xlabel="entropy, nats", ylabel="% of the tokens", xlim=(0, edges[-1]))
    ax.legend(loc="upper right")


def _compute_percentages(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the percentage of values between consecutive edges."""
    return 100 * np.histogram(values, edges)[0] / len(values)


def plot_event_curves(
    ax: Axes, curves: Mapping[str, Mapping], statuses: Sequence[str] = ("ok", "error")
):
    """Plot the mean entropy around tool responses (`reflection.event_curves`), with 95% bands."""
    for status in statuses:
        if status in curves:
            curve, color = curves[status], STATUS_COLORS[status]
            offset = curve["offset"]
            label = f"{status} ({max(curve['tokens']):.0f})"
            ax.fill_between(offset, curve["low"], curve["high"], color=color, alpha=0.18, lw=0)
            ax.plot(offset, curve["mean"], color=color, label=label)
    ax.axvline(-0.5, color="0.3", lw=1)
    ax.text(
        -0.7,
        0.98,
        "response ",
        fontsize=8,
        va="top",
        ha="right",
        transform=ax.get_xaxis_transform(),
    )
    ax.set(xlabel="sampled tokens before and after a response", ylabel="mean entropy, nats")
    ax.legend(loc="upper right", handlelength=1.2)


def plot_lifts(ax: Axes, rows: Mapping[str, Mapping]) -> None:
    """Plot the lift of forking tokens after responses: ratios with 95% intervals.

    Blue: lift over the other thoughts. Orange: matched lift, over the same positions of first
    turns. Grey: range of the permuted lift, under circular shifts. Infinite interval ends are
    clipped at the edge.

    Args:
        ax: axes to draw into.
        rows: label -> fields of a `reflection.Lift`.
    """
    ratios = np.exp([row[key] for row in rows.values() for key in ("lift", "matched", "permuted")])
    seen = ratios[np.isfinite(ratios) & (ratios > 0)]
    left, right = 0.9 * min(0.5, *seen), 1.1 * max(2.0, *seen)
    for at, lift in enumerate(rows.values()):
        _, low, high = np.exp(lift["permuted"])
        ax.barh(at, high - low, 0.5, low, color="0.87", label=None if at else "permuted lift, 95%")
        for name, up, color in (("lift", -0.14, UP), ("matched", 0.14, DOWN)):
            value, low, high = np.exp(lift[name])
            label = {"lift": "lift", "matched": "matched lift"}[name]
            ends = np.clip([low, high], left, right)
            ax.plot(ends, [at + up] * 2, color=color, lw=1.6)
            ax.plot(value, at + up, "o", color=color, label=None if at else label)
    ax.axvline(1, color="0.3", lw=0.8)
    ax.set_yticks(range(len(rows)), rows)
    ax.set(xscale="log", xlabel="ratio, 1 is no lift")
    ticks = {0.125: "⅛", 0.25: "¼", 0.5: "½", 1: "1", 2: "2", 4: "4", 8: "8", 16: "16"}
    inside = [tick for tick in ticks if left <= tick <= right]
    ax.set_xticks(inside, [ticks[tick] for tick in inside])
    ax.minorticks_off()
    ax.set_xlim(left, right)
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=3)


def plot_word_grid(ax: Axes, words: Sequence[tuple[str, int, float]], columns: int = 5, most=None):
    """Plot the words of thoughts with size and tone by mean entropy, highest first.

    Args:
        ax: axes to draw into.
        words: (word, count, entropy in nats).
        columns: number of columns.
        most: nats of the largest size and darkest tone; default: maximum of `words`.
    """
    rows = max(1, -(-len(words) // columns))
    top = most or max((entropy for *_, entropy in words), default=1) or 1
    for i, (word, _, entropy) in enumerate(words):
        part = min(1, entropy / top)
        ax.text(
            (i % columns + 0.5) / columns,
            1 - (i // columns + 0.5) / rows,
            word,
            va="center",
            ha="center",
            fontsize=7 + 13 * part,
            color=SCALE(max(part, MIN_TEXT_TONE)),
        )
    ax.set_axis_off()


def plot_entropy_strip(
    ax: Axes, trajectory: Trajectory, most: float = 2.0, texts=(), above: float = 0.3
):
    """Plot the entropies of a trajectory as a strip; markers show tool responses.

    The line below marks thoughts (grey), calls (light blue) and answers (green). Observations are
    pale.

    Args:
        ax: axes to draw into.
        trajectory: the trajectory.
        most: nats of the darkest tone.
        texts: text of each token; labels the first token of each run above `above`.
        above: nats.
    """
    values = np.nan if trajectory.entropies is None else trajectory.entropies  # NaN is blank
    shown = np.where(trajectory.generated, values, np.nan)[None]
    ax.set_facecolor("0.93")
    ax.imshow(
        shown,
        aspect="auto",
        cmap=SCALE,
        vmin=0,
        vmax=most,
        interpolation="nearest",
        extent=(0, len(trajectory), 0, 1),
    )
    for start, end, status in find_responses(trajectory):
        mark = dict(ok="o", error="X", empty="s")[status]
        ax.plot(
            (start + end) / 2, 0.5, mark, color=STATUS_COLORS[status], ms=7, mec="white", mew=0.8
        )
    line = np.full((1, len(trajectory), 3), 0.93)
    for segment, color in SEGMENT_COLORS.items():
        line[:, trajectory.generated & (trajectory.segments == segment)] = color
    ax.imshow(line, aspect="auto", interpolation="nearest", extent=(0, len(trajectory), -0.14, 0))
    named = [value > above and text[:1].isalnum() for value, text in zip(shown[0], texts)]
    for at, text in enumerate(texts):
        if named[at] and not named[at - 1]:
            ax.text(at + 0.2, 1.12, text.strip()[:12], rotation=35, fontsize=8, color="0.2")
    ax.set(yticks=[], xlim=(0, len(trajectory)), ylim=(-0.14, 1), xlabel="token")
    ax.grid(visible=False)


def plot_strip_pairs(
    pairs: Sequence[tuple[Trajectory, Trajectory]],
    tokenizer,
    names: tuple[str, str] = ("before RL", "after RL"),
    most: float = 1.5,
) -> Figure:
    """Plot the entropies of trajectories under two policies, one strip per policy.

    Args:
        pairs: the same tokens with the entropies of both policies; `metadata["question"]` and the
            reward are the title.
        tokenizer: tokenizer of the policies, for the labels.
        names: names of the two policies.
        most: nats of the darkest tone.
    """
    fig, axes = plt.subplots(
        2 * len(pairs), 1, figsize=(11, 2.7 * len(pairs)), squeeze=False, layout="constrained"
    )
    for number, pair in enumerate(pairs):
        for ax, name, trajectory in zip(axes[2 * number :, 0], names, pair):
            texts = token_texts(tokenizer, trajectory.token_ids)
            plot_entropy_strip(ax, trajectory, most, texts)
            ax.set(xlabel="", xticks=[])
            ax.set_ylabel(name, rotation=0, ha="right", va="center")
        outcome = "correct" if pair[0].reward else "wrong"
        title = f"{pair[0].metadata['question']} ({outcome})"
        axes[2 * number, 0].set_title(title, pad=46)  # above the labels
    fig.colorbar(axes[0, 0].images[0], ax=axes, label="entropy, nats", aspect=40, pad=0.01)
    return fig


def plot_entropy_changes(ax: Axes, found: Mapping[str, Mapping]) -> None:
    """Plot the change of entropy from a base to a trained model, by decile of base entropy.

    Args:
        ax: axes to draw into.
        found: label -> result of `entropy.high_entropy_overlap`.
    """
    for color, (name, one) in zip(cycle((UP, DOWN, "C2")), found.items()):
        label = f"{name}: {one['overlap']:.0%} of the top 20% shared"
        ax.plot(range(1, len(one["change"]) + 1), one["change"], "o-", color=color, label=label)
    ax.axhline(0, color="0.3", lw=0.8)
    ax.set(xlabel="decile of the entropy under the base model", ylabel="mean change, nats")
    ax.legend()


def plot_answer_loss(
    ax: Axes, curves: Mapping[str, LossCurve], spans: Sequence[tuple] = ()
) -> None:
    """Plot the loss of the answer along a trajectory; dots mark turn starts.

    Args:
        ax: axes to draw into.
        curves: label -> loss curve; dotted lines bridge gaps between points.
        spans: result of `token_table.find_responses`; failed responses are orange.
    """
    for color, (name, curve) in zip(cycle((UP, DOWN, CONTROL, "C2")), curves.items()):
        ax.plot(curve.ends_P, curve.losses_P, color=color, lw=1.2, ls=":")
        for at in np.split(np.arange(len(curve.ends_P)), np.flatnonzero(curve.starts_P)[1:]):
            ax.plot(
                curve.ends_P[at],
                curve.losses_P[at],
                "o-",
                color=color,
                mec="white",
                ms=7,
                markevery=[0],
                label=None if at[0] else name,
            )
    for start, end, status in spans:
        ax.axvspan(start, end, color="0.92" if status == "ok" else "#f7e3d4", lw=0, zorder=0)
        ax.text(
            (start + end) / 2,
            0.99,
            "response",
            fontsize=8,
            color="0.4",
            va="top",
            ha="center",
            transform=ax.get_xaxis_transform(),
        )
    ax.set(xlabel="tokens of the rollout", ylabel="loss of the answer, nats a token")
    ax.set_ylim(-0.03 * ax.get_ylim()[1], 1.12 * ax.get_ylim()[1])
    ax.legend()


def plot_class_changes(
    ax: Axes, found: Mapping[str, tuple[Sequence[float], Sequence[float]]]
) -> None:
    """Plot loss changes and means per token class; grey is the control.

    Args:
        ax: axes to draw into.
        found: label -> (changes, control changes), see `pseudo_gradient.token_class_deltas`.
    """
    for at, pair in enumerate(found.values()):
        for up, values, color, of in zip((-0.18, 0.18), pair, (UP, CONTROL), ("class", "control")):
            values = np.asarray(values, float)[~np.isnan(np.asarray(values, float))]
            jitter = np.resize(np.linspace(-0.12, 0.12, 7), len(values))
            ax.plot(values, at + up + jitter, ".", color=color, ms=5, mew=0, alpha=0.45)
            if len(values):
                ax.plot(
                    values.mean(),
                    at + up,
                    "D",
                    color=color,
                    mec="black",
                    ms=7,
                    label=None if at else f"mean of the {of}",
                )
    ax.axvline(0, color="0.3", lw=0.8)
    ax.set_yticks(range(len(found)), found)
    ax.set(xlabel="change of the answer's loss, nats a token (left: progress)")
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)


def plot_landscape(
    ax: Axes, grid: Sequence[float], losses_XY: np.ndarray, most: float | None = None
):
    """Plot the loss around the weights (`pseudo_gradient.landscape`); the cross is the policy.

    Args:
        ax: axes to draw into.
        grid: coordinates along both directions.
        losses_XY: losses, nats per token.
        most: nats of the darkest tone; default: maximum of `losses_XY`.
    """
    levels = np.linspace(0, most or np.ceil(np.max(losses_XY)), 17)
    shades = ax.contourf(grid, grid, np.transpose(losses_XY), levels=levels, cmap=SCALE)
    ax.plot(0, 0, "+", color="black", ms=12, mew=2)
    ax.set(xlabel="direction 1", ylabel="direction 2", aspect="equal")
    ax.grid(visible=False)
    ax.figure.colorbar(shades, ax=ax, format="%.0f", label="loss, nats a token")


def plot_squared_scores(ax: Axes) -> None:
    """Plot the expected squared score of a choice between two tokens against its entropy."""
    p = np.linspace(1e-4, 0.5, 200)
    entropies = -p * np.log(p) - (1 - p) * np.log(1 - p)
    ax.plot(entropies, 2 * p * (1 - p), color="C0")
    for one in (0.01, 0.1, 0.5):
        entropy = -one * np.log(one) - (1 - one) * np.log(1 - one)
        ax.plot(entropy, 2 * one * (1 - one), "o", color="C0")
        label = f"({1 - one:g}, {one:g})"
        at, side = ((8, -4), "left") if one < 0.1 else ((-6, 4), "right")
        point = entropy, 2 * one * (1 - one)
        ax.annotate(label, point, at, textcoords="offset points", ha=side)
    ax.set(title="Choice between two tokens", ylim=(0, 0.56), ylabel="expected squared score")
    ax.set_xlabel("entropy, nats")


def plot_cumulative_share(
    ax: Axes, entropies: np.ndarray, squares: np.ndarray, share: float
) -> None:
    """Plot the cumulative share of squared scores over tokens sorted by falling entropy.

    Args:
        ax: axes to draw into.
        entropies: nats, one per token.
        squares: squared score of each token.
        share: share of the tokens marked by a vertical line, in (0, 1].
    """
    order = np.argsort(-entropies, kind="stable")
    held = 100 * np.cumsum(squares[order]) / squares.sum()
    ax.plot(100 * np.arange(1, len(held) + 1) / len(held), held, color="C0")
    ax.plot([0, 100], [0, 100], ":", color="0.6", label="random order")
    ax.axvline(100 * share, color="0.4", ls="--", lw=1, label=f"top {share:.0%}")
    ax.set(title="Stored rollouts", ylim=(0, 104), ylabel="squared scores held, %")
    ax.set_xlabel("tokens, % (highest entropy first)")
    ax.legend(loc="lower right")


def plot_effects(ax: Axes, effects: Mapping[str, Sequence[float]]) -> None:
    """Plot the effect of each selection of tokens with its interval.

    Args:
        ax: axes to draw into.
        effects: selection -> (effect, low, high) in points, against training on all tokens.
    """
    for at, (effect, low, high) in enumerate(effects.values()):
        ax.plot([low, high], [at, at], color="C3")
        ax.plot(effect, at, "o", color="C3")
    ax.axvline(0, color="0.4", ls="--", lw=1)
    ax.set_yticks(range(len(effects)), [name.replace("_", " ") + "%" for name in effects])
    ax.set(title="Training on selected tokens", ylim=(len(effects) - 0.5, -0.5))
    ax.set_xlabel("accuracy against all tokens, points")


def draw_selection(
    trajectory: Trajectory, texts: Sequence[str], share: float, top: bool = True
) -> Figure:
    """Return a figure: the entropies of a trajectory, and which generated tokens are selected.

    Args:
        trajectory: trajectory with entropies.
        texts: text of each token.
        share: share of the generated tokens that are selected, in (0, 1].
        top: select the highest entropies, otherwise the lowest.
    """
    entropies = trajectory.entropies[trajectory.generated]
    chosen = select_top_share(entropies if top else -entropies, share)
    selected = np.zeros(len(trajectory))
    selected[np.flatnonzero(trajectory.generated)[chosen]] = 1
    fig, axes = plt.subplots(
        2, 1, figsize=(11, 2.8), layout="constrained", sharex=True, height_ratios=(3, 1)
    )
    plot_entropy_strip(axes[0], trajectory, texts=texts)
    axes[0].set_xlabel("")
    axes[1].bar(np.arange(len(trajectory)) + 0.5, selected, 1.0, color="C0")
    axes[1].set(yticks=[], ylabel="selected", xlabel="token", ylim=(0, 1))
    axes[1].grid(visible=False)
    return fig
