"""Plots of questions and data sets: question graphs, quality reports, funnels, findings.

In question graphs C0 is the answer, C1 a named entity, grey an intermediate node. Each world has
one colour in all plots (`WORLD_COLORS`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import cycle

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.evaluation.measures import bootstrap_interval
from drlib.intervals import wilson_interval
from drlib.questions.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    Var,
)
from drlib.worlds.graph import Graph, inverse

WORLD_COLORS = {"tour": "C4", "cldr": "C0", "pydocs": "C2"}  # by world name
OTHER_WORLDS = ("C3", "C5", "C6")  # used in turn for folders and other worlds

WALK_ROWS = 8  # titles per column of a walk

Edge = tuple[str, "Query | None", str]  # label, target, text of a leaf without a title


def list_edges(query: Query) -> list[Edge]:
    """Return the edges of the node that `query` describes: labels and targets."""
    match query:
        case Proj(relation, of):
            return [(inverse(relation), of, "")]  # from the perspective of the answer
        case And(parts):
            return [edge for part in parts for edge in list_edges(part)]
        case Or(parts):
            return [edge for part in parts for edge in _prefix_edges("or", part)]
        case Diff(left, right):
            return list_edges(left) + _prefix_edges("not", right)
        case Range(relation, low, high):
            return [(relation, None, f"{low} to {high}")]
        case Extreme(relation, of, most):
            return [*list_edges(of), (relation, None, "most" if most else "least")]
        case Count(of):
            return [("number of", of, "")]
        case Exists(name, among, of):
            return [*list_edges(of), (f"{name} is", among, "")]
        case Var() | Anything():
            return []
    return [("is", query, "")]


def _prefix_edges(word: str, query: Query) -> list[Edge]:
    """Return the edges of `query` prefixed with `word`; several edges get a common node."""
    found = list_edges(query)
    if len(found) > 1:
        return [(word, query, "")]
    return [(f"{word} {label}", target, text) for label, target, text in found]


def plot_question_graph(query: Query, answer: str = "", ax: Axes | None = None) -> Figure:
    """Plot a query as a graph, with the answer on the left and named entities on the right.

    An arrow leads from the subject of a fact to its value: "answer has this relation to ...".

    Args:
        query: query of a question.
        answer: text of the answer node; default: "?".
        ax: axes to draw into; default: a new figure.
    """
    nodes: list[tuple[str, float, float, int, str]] = []  # text, x, y, index of parent, label
    rows = _place_nodes(("", query, ""), 0, 0, -1, nodes)
    columns = 1 + max(x for _, x, *_ in nodes)
    if ax is None:
        size = (2.6 * columns, 0.4 + 0.62 * rows)
        _, ax = plt.subplots(figsize=size, layout="constrained")
    boxes: list[FancyBboxPatch | None] = []
    for place, (text, x, y, parent, label) in enumerate(nodes):
        color = UP if place == 0 else DOWN if text else CONTROL
        shown = answer or "?" if place == 0 else text or " "
        boxes.append(
            ax.text(
                x,
                y,
                shown,
                ha="center",
                va="center",
                zorder=2,
                fontsize=9,
                color="white",
                bbox={"boxstyle": "round,pad=0.35", "fc": color, "ec": "none"},
            ).get_bbox_patch()
        )
        if parent < 0:
            continue
        _, left, above, *_ = nodes[parent]
        # above the boxes, so that their sizes are known when the arrow is clipped at them
        arrow = {"arrowstyle": "-|>", "color": CONTROL, "lw": 1.2, "shrinkA": 0, "shrinkB": 1}
        arrow |= {"patchA": boxes[parent], "patchB": boxes[place]}
        ax.annotate("", (x, y), (left, above), arrowprops=arrow, zorder=3)
        ax.text(
            left + 0.58,
            above + 0.58 * (y - above),
            label,
            ha="center",
            va="center",
            zorder=4,
            fontsize=8,
            bbox={"fc": "white", "ec": "none", "pad": 0.8},
        )
    ax.set(xlim=(-0.35, columns - 0.55), ylim=(rows - 0.45, -0.55))
    ax.axis("off")
    return ax.get_figure(root=True)


def _place_nodes(edge: Edge, x: float, row: float, parent: int, nodes: list) -> float:
    """Append the target of `edge` and its subgraph to `nodes`; return the next free row."""
    label, query, leaf = edge
    here = len(nodes)
    below = row
    nodes.append(())
    for inside in list_edges(query) if query is not None and not isinstance(query, str) else ():
        below = _place_nodes(inside, x + 1, below, here, nodes)
    text = query.name if isinstance(query, Var) else query if isinstance(query, str) else leaf
    nodes[here] = (text, x, max(row, (row + below - 1) / 2), parent, label)
    return max(below, row + 1)


def plot_quality(reports: Sequence[dict]) -> Figure:
    """Plot quality reports by world: faults, depths, recall@1 of search, answers."""
    others = cycle(OTHER_WORLDS)
    colors = [WORLD_COLORS.get(report["world"]) or next(others) for report in reports]
    fig, (faults, depth, search, answers) = plt.subplots(
        1, 4, figsize=(11, 2.9), layout="constrained", width_ratios=(1.5, 1, 0.8, 0.8)
    )
    width = 0.8 / len(reports)
    depths = sorted({key for report in reports for key in report["depth"]}, key=int)
    for i, (report, color) in enumerate(zip(reports, colors)):
        shift = (i - (len(reports) - 1) / 2) * width
        sql, sets = report["by_sql"], report["by_sets"]
        n = report["questions"]
        label = f"{report['world']}, {n:,} questions"
        _draw_bars(faults, {k: max(sql[k], sets[k]) for k in sql}, shift, width, color, label)
        _draw_bars(depth, {k: report["depth"].get(k, 0) / n for k in depths}, shift, width, color)
        _draw_bars(search, report["search_finds"], shift, width, color)
        rates = {
            "largest\nshare": report["answers"]["largest_share"],
            "different\na question": report["answers"]["different"] / n,
        }
        _draw_bars(answers, rates, shift, width, color)
    faults.set(title="faults (worse of two engines)", ylim=(0, 1))
    for tick in faults.get_xticklabels():
        tick.set(rotation=30, ha="right", rotation_mode="anchor")
    faults.legend(loc="upper right", fontsize=8)
    depth.set(title="depth")
    search.set(title="recall@1 of search", ylim=(0, 1))
    answers.set(title="answers")
    return fig


def _draw_bars(
    ax: Axes, values: dict, shift: float, width: float, color: str, label: str = ""
) -> None:
    """Draw one series of grouped bars."""
    places = [x + shift for x in range(len(values))]
    ax.bar(places, list(values.values()), width, color=color, label=label or None)
    ax.set_xticks(range(len(values)), list(values), fontsize=8)


def plot_fault_rates(
    ax: Axes,
    counts: Mapping[str, Mapping[str, int]],
    sizes: Mapping[str, int],
    faults: Sequence[str],
) -> None:
    """Plot the share of questions with each fault, with 95% Wilson intervals.

    Args:
        ax: axes to draw into.
        counts: source of questions -> fault -> number of questions with it.
        sizes: number of questions by source.
        faults: faults in order, from top to bottom.
    """
    markers = zip(counts.items(), ("s", "D", "o"), (CONTROL, DOWN, UP))
    for i, ((source, found), marker, color) in enumerate(markers):
        shift = 0.25 * (i - (len(counts) - 1) / 2)
        rights = [found.get(fault, 0) for fault in faults]
        places = [y + shift for y in range(len(faults))]
        label = f"{source} (n = {sizes[source]})"
        _draw_shares(ax, places, rights, [sizes[source]] * len(faults), color, marker, label)
    ax.set_yticks(range(len(faults)), faults)
    ax.invert_yaxis()
    ax.set(xlabel="questions with the fault, %", xlim=(-2, 102))
    ax.legend(loc="upper left", bbox_to_anchor=(0, 1.16), ncols=len(counts), frameon=False)


def plot_best_guesses(ax: Axes, guesses: Mapping[str, tuple[int, int]]) -> None:
    """Plot how often the most frequent answer is correct, with 95% Wilson intervals.

    Args:
        ax: axes to draw into.
        guesses: source of questions -> (occurrences of its most frequent answer, questions).
    """
    places = list(range(len(guesses)))
    found, sizes = zip(*guesses.values(), strict=True)
    _draw_shares(ax, places, found, sizes, UP, "o")
    ax.set_yticks(places, list(guesses))
    ax.invert_yaxis()
    ax.set(xlabel="best constant guess correct, %", xlim=(-2, 102))


def plot_before_after(
    ax: Axes, pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]], label: str
) -> None:
    """Plot means before and after a change on a log axis, with 95% bootstrap intervals.

    Args:
        ax: axes to draw into.
        pairs: name of the change -> (values before, values after), question by question.
        label: quantity and unit, for the x axis.
    """
    for side, (name, color, marker) in enumerate((("before", CONTROL, "s"), ("after", UP, "o"))):
        found = [bootstrap_interval(np.array(pair[side], float)) for pair in pairs.values()]
        places = [y + 0.24 * side - 0.12 for y in range(len(pairs))]
        for y, (_, low, high) in zip(places, found):
            ax.plot([low, high], [y, y], color=color, lw=2)
        ax.plot([mean for mean, _, _ in found], places, marker, color=color, ms=5, label=name)
    ax.set_yticks(range(len(pairs)), [f"{k} (n = {len(a)})" for k, (a, _) in pairs.items()])
    ax.invert_yaxis()
    ax.set(xscale="log", xlabel=label)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.legend(loc="upper left", bbox_to_anchor=(0, 1.16), ncols=2, frameon=False)


def _draw_shares(
    ax: Axes,
    places: Sequence[float],
    found: Sequence[int],
    sizes: Sequence[int],
    color: str,
    marker: str,
    label: str = "",
) -> None:
    """Draw found / sizes in percent at the heights `places`, with Wilson intervals."""
    for y, one, n in zip(places, found, sizes, strict=True):
        low, high = wilson_interval(one, n)
        ax.plot([100 * low, 100 * high], [y, y], color=color, lw=2)
    shares = [100 * one / n for one, n in zip(found, sizes, strict=True)]
    ax.plot(shares, places, marker, color=color, ms=5, label=label or None)


def plot_funnel(ax: Axes, report: Mapping[str, Mapping], clean: Mapping[str, Mapping]) -> None:
    """Plot the rollouts left after each rule, with the reasons of rejection.

    Args:
        ax: axes to draw into.
        report: of `Funnel.run`: rule -> "in", "kept" and "reasons".
        clean: report of those rollouts that should pass, drawn in blue in front of the others.
    """
    for found, color in ((report, "0.8"), (clean, UP)):
        left = [next(iter(found.values()))["in"], *(row["kept"] for row in found.values())]
        ax.barh(["sampled", *report], left, color=color)
        for y, value in enumerate(left if found is report else ()):
            ax.text(value, y, f" {value:,}", va="center", fontsize=9)
    n = next(iter(report.values()))["in"]
    for y, row in enumerate(report.values(), 1):
        why = ", ".join(
            f"{reason.rstrip('.')}: {count}" for reason, count in row["reasons"].items()
        )
        ax.text(n * 1.14, y, why, va="center", fontsize=8.5, color="0.35")
    ax.invert_yaxis()
    ax.set(xlabel="rollouts left", xlim=(0, 2 * n), xticks=range(0, n + 1, max(n // 4, 1)))
    ax.grid(False)


def plot_word_scores(ax: Axes, lengths: Sequence[float], most: int = 10) -> None:
    """Plot the second factor of BM25 against the occurrences of a word on a page.

    Args:
        ax: axes to draw into.
        lengths: lengths of pages relative to the mean length, one curve each.
        most: largest number of occurrences.
    """
    counts_F = np.arange(most + 1)
    for length, style in zip(lengths, ("-", "--", ":")):
        scores_F = 2.2 * counts_F / (counts_F + 1.2 * (0.25 + 0.75 * length))
        ax.plot(counts_F, scores_F, f"o{style}", color="k", ms=3, label=f"{length:g} x mean length")
    ax.axhline(2.2, color=CONTROL, lw=1)
    ax.text(most, 2.2, "limit 2.2", ha="right", va="bottom", fontsize=8, color=CONTROL)
    ax.set(xlabel="occurrences of the word on the page", ylabel="factor", ylim=(0, 2.45))
    ax.legend(loc="lower right", title="page")


def plot_recall(ax: Axes, ranks: Mapping[str, Sequence[float]], most: int) -> None:
    """Plot recall@k in percent for k from 1 to `most`.

    Args:
        ax: axes to draw into.
        ranks: kind of query -> rank of the correct page of each query, infinite if not found.
        most: largest k.
    """
    ks = np.arange(1, most + 1)
    for (kind, some), color in zip(ranks.items(), ("C0", "C2", "C3")):
        shares_K = (np.array(some)[:, None] <= ks).mean(0)
        ax.plot(ks, 100 * shares_K, "o-", color=color, ms=4, label=kind)
    ax.set(xlabel="hits shown, k", ylabel="recall@k, %", ylim=(0, 102), xticks=ks)
    ax.legend(loc="lower right", title="query")


def plot_worlds(graphs: Mapping[str, Graph], page: int) -> Figure:
    """Plot the facts per relation and the degrees of worlds.

    Args:
        graphs: graph by name of the world.
        page: facts on one page; a longer list continues on a second part.
    """
    fig, axes = plt.subplots(2, len(graphs), figsize=(10.5, 6.6), height_ratios=(4, 5))
    fig.set_layout_engine("constrained")
    grid = axes[1, 0].get_gridspec()
    for ax in axes[1]:
        ax.remove()
    for ax, (name, graph) in zip(axes[0], graphs.items()):
        _draw_relations(ax, name, Counter(relation for _, relation, _ in graph.facts))
    _draw_degrees(fig.add_subplot(grid[1, :]), graphs, page)
    return fig


def _draw_relations(ax: Axes, name: str, counts: Counter, most: int = 8) -> None:
    """Draw the number of facts of the most frequent relations of a world."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    shown = rows[:most]
    color = WORLD_COLORS.get(name, OTHER_WORLDS[0])
    ax.barh([relation for relation, _ in shown], [n for _, n in shown], 0.7, color=color)
    for y, (_, n) in enumerate(shown):
        ax.text(n, y, f" {n:,}", va="center", fontsize=8)
    rest = len(rows) - len(shown)
    ax.set_xlabel(f"and {rest} smaller relations" if rest else "")
    ax.set(title=f"{name}: {counts.total():,} facts", xticks=[])
    ax.set(xlim=(0, 1.25 * shown[0][1]), ylim=(most - 0.4, -0.6))
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)
    ax.tick_params(left=False)


def _draw_degrees(ax: Axes, graphs: Mapping[str, Graph], page: int) -> None:
    """Draw the share of nodes with at least d facts, and name the largest hubs."""
    for name, graph in graphs.items():
        degrees = Counter(end for subject, _, value in graph.facts for end in {subject, value})
        color = WORLD_COLORS.get(name, OTHER_WORLDS[0])
        values_D, first_D = np.unique(np.sort([*degrees.values()]), return_index=True)
        shares_D = 1 - first_D / len(degrees)
        ax.loglog(values_D, shares_D, ".-", color=color, label=name, lw=1, ms=4)
        hub = min(degrees, key=lambda node: (-degrees[node], node))
        ax.annotate(
            f"{hub}: {degrees[hub]:,}",
            (degrees[hub], shares_D[-1]),
            (0, -6),
            textcoords="offset points",
            ha="center",
            va="top",
            fontsize=9,
            color=color,
            bbox={"fc": "white", "ec": "none", "pad": 0.5},
        )
    ax.axvline(page, color="0.4", ls=":", label="facts on one page")
    ax.set(xlabel="facts of a node, d", ylabel="share of nodes with d or more")
    low, high = ax.get_ylim()
    ax.set_ylim(low / 2.5, high)
    ax.legend(loc="upper right")


def plot_walk(graph: Graph, start: str, *relations: str) -> Figure:
    """Plot the sets of nodes that are reached from `start`, one relation per column.

    An arrow leads along a relation or its inverse. A column shows at most `WALK_ROWS` titles, and
    the number of all.

    Args:
        graph: graph of a world.
        start: title of the first node.
        relations: relations in order, inverses ("currency of") included.
    """
    columns = [[start]]
    for relation in relations:
        reached = {value for title in columns[-1] for value in graph.values(title, relation)}
        columns.append(sorted(reached))
    rows = min(max(map(len, columns)), WALK_ROWS)
    size = (3.2 * len(columns), 0.8 + 0.35 * rows)
    fig, ax = plt.subplots(figsize=size, layout="constrained")
    places: dict[str, tuple[float, float]] = {}
    for x, (column, relation) in enumerate(zip(columns, ("start", *relations))):
        shown, before, places = column[:WALK_ROWS], places, {}
        middle = (len(shown) - 1) / 2
        for i, title in enumerate(shown):
            places[title] = (x, middle - i)
            ax.text(x, middle - i, title, ha="center", va="center", fontsize=9)
            for source, place in before.items():
                if title in graph.values(source, relation):
                    arrow = {"arrowstyle": "-|>", "color": CONTROL, "shrinkA": 0, "shrinkB": 0}
                    start_x, end_x = place[0] + 0.33, x - 0.33
                    ax.annotate("", (end_x, middle - i), (start_x, place[1]), arrowprops=arrow)
        count = f"{len(column)} node{'s' * (len(column) != 1)}"
        if len(column) > WALK_ROWS:
            count += f", {WALK_ROWS} shown"
        ax.text(x, rows / 2 + 0.2, f"{relation}\n{count}", ha="center", weight="bold", fontsize=9)
    ax.set(xlim=(-0.5, len(columns) - 0.5), ylim=(-rows / 2, rows / 2 + 1.8))
    ax.axis("off")
    return fig
