"""Plots for notebook 13, drawn into given axes: a walk over a site, a growing outline, words read
per turn, and a picture with its crops.

Blue is what the agent found or read, orange where it went wrong or what it was spared, grey the
rest of the site. Nothing here runs an agent: the numbers are those of its record.

Left out: walks of several agents in one picture.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from drlib.analysis.plots import CONTROL, DOWN, UP
from drlib.validation import require
from drlib.worlds.emblems import Box, Pixels

LINK_COLOR = "0.85"
LABEL_SPACE = 9.0  # of a page with a name, in pages
ROTATION = 0.3  # of the rings, so that names do not lie in a line
CURVATURE = 0.18


def place_on_rings(
    links: Mapping[str, Sequence[str]], root: str, wide: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Return the position (x, y) of each page on rings around `root`, one ring per click of
    distance, near the first page that links to it. Unreachable pages are left out.

    wide: pages that get more room beside them, for their names. ValueError: `root` is no page.
    """
    require(root in links, f"{root} is no page of the site")
    places, found, ring = {root: (0.0, 0.0)}, {root}, [root]
    while ring:
        near = [to for page in ring for to in links.get(page, ()) if to not in found]
        ring = [*dict.fromkeys(near)]
        found |= {*ring}
        room = np.array([LABEL_SPACE if page in wide else 1.0 for page in ring])
        angles = ROTATION + 2 * np.pi * (np.cumsum(room) - room / 2) / max(room.sum(), 1)
        far = 1 + max(np.hypot(*place) for place in places.values())
        for page, angle in zip(ring, angles):
            places[page] = (float(far * np.cos(angle)), float(far * np.sin(angle)))
    return places


def plot_site_walk(
    ax: Axes,
    links: Mapping[str, Sequence[str]],
    walk: Sequence[str],
    found: Collection[str] = (),
    labels: Mapping[str, str] | None = None,
) -> None:
    """A site, its pages in rings around where the walk begins, and the walk in it.

    links: page -> the pages that it links to. walk: pages in order, the first where it begins; each
    step is numbered. found: pages on which the critic's memory grew, filled. labels: of pages.
    ValueError: a step that no link makes.
    """
    places = place_on_rings(links, walk[0], {*walk})
    pairs = {tuple(sorted((page, to))) for page in places for to in links.get(page, ())}
    for page, to in sorted(pairs):
        if page in places and to in places:
            (x, y), (far_x, far_y) = places[page], places[to]
            ax.plot([x, far_x], [y, far_y], color=LINK_COLOR, lw=0.4, zorder=1)
    for number, (page, to) in enumerate(zip(walk, walk[1:]), 1):
        if to not in links[page]:
            raise ValueError(f"step {number}: no link leads from {page} to {to}")
        _draw_step(ax, np.array(places[page]), np.array(places[to]), number)
    ax.scatter(*np.array([*places.values()]).T, s=10, color=CONTROL, zorder=3)
    for page in dict.fromkeys(walk):
        color = UP if page in found else "white"
        ax.scatter(*places[page], s=60, color=color, edgecolors=UP, linewidths=1.5, zorder=4)
    for page, text in (labels or {}).items():
        x, y = places[page]
        box = {"fc": "white", "ec": "none", "pad": 0.6, "alpha": 0.85}
        side, up = ("left" if x >= 0 else "right"), ("bottom" if y >= 0 else "top")
        ax.annotate(
            text,
            (x, y),
            (5 if x >= 0 else -5, 4 if y >= 0 else -4),
            textcoords="offset points",
            ha=side,
            va=up,
            fontsize=8,
            zorder=7,
            bbox=box,
        )
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.margins(0.08)


def _draw_step(ax: Axes, here: np.ndarray, there: np.ndarray, number: int) -> None:
    """A numbered arrow, bent so that a way back does not lie on the way there."""
    style = {"arrowstyle": "-|>", "color": UP, "lw": 1.6, "shrinkA": 5, "shrinkB": 5}
    style["connectionstyle"] = f"arc3,rad={CURVATURE}"
    ax.annotate("", there, here, arrowprops=style, zorder=5)
    across = there - here
    x, y = (here + there) / 2 + CURVATURE / 2 * np.array([across[1], -across[0]])
    box = {"boxstyle": "circle,pad=0.15", "fc": "white", "ec": UP, "lw": 0.8}
    ax.text(x, y, str(number), ha="center", va="center", fontsize=7, zorder=6, bbox=box)


def plot_answered_within(ax: Axes, clicks: Mapping[str, Sequence[int | None]], limit: int) -> None:
    """Share of the walks that have answered, by the clicks they had.

    clicks: explorer -> of each walk, after how many clicks it answered; None where it did not.
    limit: clicks that every walk had.
    """
    allowed = np.arange(limit + 1)
    for color, (explorer, ends) in zip((UP, "C2", DOWN, CONTROL), clicks.items(), strict=False):
        done = np.array([np.inf if end is None else end for end in ends])
        share = (done <= allowed[:, None]).mean(axis=1)
        ax.step(allowed, 100 * share, where="post", color=color, label=explorer)
    ax.set(xlabel="clicks allowed", ylabel="% of the sites answered", ylim=(-2, 125))
    ax.set_yticks(range(0, 101, 25))
    ax.legend(loc="upper right", ncols=len(clicks), fontsize=8, columnspacing=1, handlelength=1.2)


def plot_outline_versions(ax: Axes, versions: Sequence[Mapping[str, Sequence[str]]]) -> None:
    """An outline's growth: a column a version, a row a section, in it what the section cites.

    versions: heading -> ids, in order.
    """
    headings = [*dict.fromkeys(heading for version in versions for heading in version)]
    most = max((len(ids) for version in versions for ids in version.values()), default=0) or 1
    for x, version in enumerate(versions):
        for heading, ids in version.items():
            y = headings.index(heading)
            shade = 0.15 + 0.5 * len(ids) / most
            ax.barh(y, 0.94, 0.86, x - 0.47, color=UP, alpha=shade, lw=0)
            told = "\n".join(name.removeprefix("id_") for name in _wrap_ids(ids))
            ax.text(x, y, told, ha="center", va="center", fontsize=9)
    ax.set_yticks(range(len(headings)), headings)
    ax.set_xticks(range(len(versions)), [f"version {n}" for n in range(1, len(versions) + 1)])
    ax.set(xlim=(-0.55, len(versions) - 0.45), ylim=(len(headings) - 0.5, -0.5))
    ax.grid(visible=False)


def _wrap_ids(ids: Sequence[str], width: int = 5) -> list[str]:
    """The numbers of ids, a few in a line."""
    numbers = [name.removeprefix("id_") for name in ids]
    return [" ".join(numbers[at : at + width]) for at in range(0, len(numbers), width)]


def plot_words_read(ax: Axes, read: Sequence[tuple[str, int]], gathered: int) -> None:
    """Plot the number of words that a policy reads in each turn.

    read: (role, words) a turn, in order. gathered: words of all that was found, dashed: what a
    single context would have come to hold.
    """
    roles = [*dict.fromkeys(role for role, _ in read)]
    for role, color in zip(roles, (CONTROL, UP, "C2", "C4")):
        turns = [turn for turn, (who, _) in enumerate(read, 1) if who == role]
        ax.bar(turns, [read[turn - 1][1] for turn in turns], 0.8, color=color, label=role)
    ax.axhline(gathered, color=DOWN, lw=1.2, ls="--", label="all that was found")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(
        xlabel="turn",
        ylabel="words read",
        ylim=(0, 1.35 * max(gathered, *(words for _, words in read))),
    )
    ax.legend(loc="upper left", ncols=3, fontsize=8, columnspacing=1, handlelength=1.2)


def plot_picture(ax: Axes, pixels: Pixels, cut: Box | None = None) -> None:
    """A picture as the policy gets it, uint8 [H, W, 3], and around the part that it cut out of it a
    frame."""
    ax.imshow(pixels, interpolation="nearest")
    if cut is not None:
        left, top, width, height = cut
        corners = np.array([(0, 0), (width, 0), (width, height), (0, height), (0, 0)]) - 0.5
        ax.plot(*(corners + (left, top)).T, color=DOWN, lw=2.5)
    ax.set_axis_off()


def plot_shares(ax: Axes, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Bars: group -> label -> a share of 0..1, shown in percent with its number."""
    labels = [*dict.fromkeys(label for row in rows.values() for label in row)]
    width = 0.8 / len(labels)
    for at, label in enumerate(labels):
        color = (UP, CONTROL, DOWN, "C2")[at % 4]
        places = np.arange(len(rows)) + (at - (len(labels) - 1) / 2) * width
        bars = ax.bar(places, [100 * row[label] for row in rows.values()], width, color=color)
        bars.set_label(label)
        ax.bar_label(bars, fmt="%.0f", fontsize=8, padding=2)
    ax.set_xticks(range(len(rows)), [*rows])
    ax.set(ylabel="% right", ylim=(0, 128), yticks=range(0, 101, 25))
    ax.grid(visible=False, axis="x")
    ax.legend(loc="upper center", ncols=len(labels), fontsize=8, columnspacing=1, handlelength=1.2)
