"""Figures of agentic pre-training: loss masks of rows, cold starts, loss on general text."""

from collections.abc import Iterator, Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.analysis.plots import plot_seed_band
from drlib.chat.template import ChatIds
from drlib.demonstrations.agentfounder import KEPT, CptRow, sample_of

ARMS = {"none": CONTROL, "agentic": UP, "equal_compute": "C4"}  # arm -> colour
LINE = 118  # characters per line of a mask
SYMBOLS = {"<|im_start|>": "▶", "<|im_end|>": "■", "\n": "⏎"}
TINTS = {"own": "#b7d7ee", "tool": "#fdf0d5", "facts": "#fdf0d5"}
SHOWN = "#ececec"  # tint of questions, options and drafts
WORDS = {"#b7d7ee": "loss", SHOWN: "question, options, draft", "#fdf0d5": "facts, tool response"}
CHUNK = 4  # characters drawn at a time: a long text would drift from its boxes


def list_tokens(row: CptRow, chat: ChatIds) -> Iterator[tuple[str, str]]:
    """Yield (role, text) of each token of a row; tags and line breaks become symbols."""
    for part in row.parts:
        ids = sample_of(row._replace(parts=(part,)), chat).ids
        for text in chat.tokenizer.convert_ids_to_tokens(ids):
            for tag, symbol in SYMBOLS.items():
                text = text.replace(tag, symbol)
            yield part[0], text


def _wrap_tokens(tokens, line: float) -> Iterator[tuple[float, int, str, str]]:
    """Yield (line, column, role, text); a line ends after LINE characters or a line break."""
    column = 0
    for role, text in tokens:
        if column + len(text) > LINE:
            line, column = line + 1, 0
        yield line, column, role, text
        ends = text.endswith("⏎")
        line, column = line + ends, 0 if ends else column + len(text)


def plot_loss_mask(rows: Sequence[CptRow], chat: ChatIds) -> Figure:
    """Plot the tokens of rows as boxes, coloured by role; only the policy's own tokens carry loss.

    Args:
        rows: rows, each drawn below its kind and its judge's verdict.
        chat: tokenizer and template.
    """
    fig = plt.figure(layout="none")
    ax = fig.add_axes((0, 0, 1, 1), xlim=(0, LINE))
    top = 1.2
    boxes: list[tuple[float, int, str, str]] = []
    for row in rows:
        color = UP if row.judge == KEPT else DOWN
        ax.text(0, top + 0.5, f"{row.kind}: {row.judge}", color=color, size=9, weight="bold")
        boxes += _wrap_tokens(list_tokens(row, chat), top + 1)
        top = boxes[-1][0] + 1.6
    for y, x, role, text in boxes:
        tint = TINTS.get(role, SHOWN)
        ax.add_patch(Rectangle((x + 0.06, y + 0.06), len(text) - 0.12, 0.88, fc=tint, lw=0))
        for at in range(0, len(text), CHUNK):
            ax.text(
                x + at,
                y + 0.5,
                text[at : at + CHUNK],
                size=8,
                va="center",
                family="monospace",
                parse_math=False,
            )
    handles = [Patch(color=tint, label=words) for tint, words in WORDS.items()]
    ax.legend(handles=handles, loc="upper right", ncols=3, frameon=False, fontsize=8)
    fig.set_size_inches(LINE * 0.0669, top * 0.185)
    ax.set_ylim(top - 0.4, 0)
    ax.axis("off")
    return fig


def plot_cold_start(ax: Axes, rows: Sequence[Mapping], at: int) -> None:
    """Plot the loss of a cold start on held-out demonstrations: seeds thin, means thick.

    Args:
        rows: `rows` of figures/reference/cpt/results.json.
        at: index of the cold start.
    """
    for arm, color in ARMS.items():
        runs = [row["arms"][arm]["cold_starts"][at]["held_out_curve"] for row in rows]
        steps, losses_S = np.array(runs)[0, :, 0], np.array(runs)[:, :, 1]
        plot_seed_band(ax, losses_S, color, arm.replace("_", " "), steps)
    length = rows[0]["arms"]["none"]["cold_starts"][at]["steps"]
    title = f"Cold start of {length} steps"
    ax.set(yscale="log", xlabel="step", ylabel="held-out loss, nats per token", title=title)
    ax.minorticks_off()
    ax.set_yticks([0.2, 0.5, 1, 2, 4], ["0.2", "0.5", "1", "2", "4"])


def compare_general_loss(rows: Sequence[Mapping], arm: str) -> dict[str, np.ndarray]:
    """Return the loss on general text relative to the arm `none`, minus 1, per seed.

    Args:
        rows: `rows` of figures/reference/cpt/results.json.
        arm: key of ARMS.

    Returns:
        Values after the stage and after each cold start.
    """

    def losses(name: str) -> np.ndarray:
        arms = [row["arms"][name] for row in rows]
        ends = [[cold["general_after"] for cold in one["cold_starts"]] for one in arms]
        return np.column_stack([[one["general_after_cpt"] for one in arms], ends])

    lengths = [cold["steps"] for cold in rows[0]["arms"]["none"]["cold_starts"]]
    names = ["after the stage", *(f"after {length} steps" for length in lengths)]
    return dict(zip(names, (losses(arm) / losses("none") - 1).T, strict=True))


def plot_general_loss(ax: Axes, rows: Sequence[Mapping], bound: float) -> None:
    """Plot `compare_general_loss` of each arm in percent: bars are means, dots are seeds.

    Args:
        rows: `rows` of figures/reference/cpt/results.json.
        bound: largest relative loss that the claim allows.
    """
    for number, arm in enumerate(list(ARMS)[1:]):
        found = compare_general_loss(rows, arm)
        for x, values_S in enumerate(found.values()):
            at = x + 0.36 * number
            ax.bar(at, 100 * values_S.mean(), 0.3, color=ARMS[arm], alpha=0.45)
            ax.plot([at] * len(values_S), 100 * values_S, "o", color=ARMS[arm], ms=4)
    ax.axhline(0, color="0.3", lw=0.8)
    ax.axhline(100 * bound, color=DOWN, ls=":", lw=1.5, label="bound")
    ax.set_xticks(np.arange(len(found)) + 0.18, [name.replace(" ", "\n", 1) for name in found])
    ax.set(title="General text", ylabel="loss against none, %")
    ax.grid(axis="x", visible=False)


def plot_record(rows: Sequence[Mapping], bound: float) -> Figure:
    """Plot both cold starts and the loss on general text side by side.

    Args:
        rows: `rows` of figures/reference/cpt/results.json.
        bound: as in `plot_general_loss`.
    """
    fig, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    plot_cold_start(axes[0], rows, 0)
    plot_cold_start(axes[1], rows, 1)
    plot_general_loss(axes[2], rows, bound)
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return fig
