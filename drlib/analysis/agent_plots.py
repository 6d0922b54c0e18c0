"""Plots of web agents for notebook 28: site walks, outlines, words read per turn.

Plots are drawn into given axes from recorded rollouts. Blue is content that the agent found or
read, orange failures or savings, grey the rest of the site.
"""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from drlib.analysis.figure_style import CONTROL, DOWN, UP
from drlib.validation import require

LINK_COLOR = "0.85"
LABEL_SPACE = 9.0  # angle of a labelled page, in unlabelled pages
ROTATION = 0.3  # radians; avoids labels in a row
CURVATURE = 0.18


def place_on_rings(
    links: Mapping[str, Sequence[str]], root: str, wide: Collection[str] = ()
) -> dict[str, tuple[float, float]]:
    """Place pages on rings around `root`, one ring per click of distance.

    Args:
        links: page -> pages that it links to.
        root: page at the centre.
        wide: pages with more space, for their labels.

    Returns:
        Position (x, y) of each page reachable from `root`.

    Raises:
        ValueError: `root` is not a page.

    """
    require(root in links, f"{root} is not a page of the site")
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
    """Plot a site as rings around the first page of a walk, with numbered steps.

    Links back to the first page are drawn only as steps.

    Args:
        ax: axes to draw into.
        links: page -> pages that it links to.
        walk: pages in order.
        found: pages where the critic's memory grew, drawn filled.
        labels: page -> text.

    Raises:
        ValueError: a step without a link, or a first page that is not in `links`.

    """
    places = place_on_rings(links, walk[0], {*walk})
    # Every page of a site may link back to the first one; such links would hide the others.
    pairs = {
        tuple(sorted((page, to)))
        for page in places
        for to in links.get(page, ())
        if to in places and to != walk[0]
    }
    for page, to in sorted(pairs):
        (x, y), (far_x, far_y) = places[page], places[to]
        ax.plot([x, far_x], [y, far_y], color=LINK_COLOR, lw=0.8, zorder=1)
    for number, (page, to) in enumerate(zip(walk, walk[1:]), 1):
        if to not in links[page]:
            raise ValueError(f"step {number}: no link leads from {page} to {to}")
        _draw_step(ax, places[page], places[to], number)
    xs, ys = np.array([*places.values()]).T
    ax.scatter(xs, ys, s=10, color=CONTROL, zorder=3)
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


def _draw_step(
    ax: Axes, here: tuple[float, float], there: tuple[float, float], number: int
) -> None:
    """Draw a numbered arrow, curved so that opposite steps do not overlap."""
    style = {"arrowstyle": "-|>", "color": UP, "lw": 1.6, "shrinkA": 5, "shrinkB": 5}
    style["connectionstyle"] = f"arc3,rad={CURVATURE}"
    ax.annotate("", there, here, arrowprops=style, zorder=5)
    across = np.subtract(there, here)
    x, y = np.add(here, there) / 2 + CURVATURE / 2 * np.array([across[1], -across[0]])
    box = {"boxstyle": "circle,pad=0.15", "fc": "white", "ec": UP, "lw": 0.8}
    ax.text(x, y, str(number), ha="center", va="center", fontsize=7, zorder=6, bbox=box)


def plot_answered_within(ax: Axes, clicks: Mapping[str, Sequence[int | None]], limit: int) -> None:
    """Plot the share of answered walks by number of clicks.

    Args:
        ax: axes to draw into.
        clicks: explorer -> clicks until the answer for each walk; None without an answer.
        limit: maximum clicks of every walk.
    """
    allowed = np.arange(limit + 1)
    for color, (explorer, ends) in zip((UP, "C2", DOWN, CONTROL), clicks.items(), strict=False):
        done = np.array([np.inf if end is None else end for end in ends])
        share = (done <= allowed[:, None]).mean(axis=1)
        ax.step(allowed, 100 * share, where="post", color=color, label=explorer)
    top = max(line.get_ydata().max() for line in ax.lines)
    ax.set(xlabel="clicks allowed", ylabel="% of the sites answered", ylim=(0, 1.25 * top or 1))
    ax.legend(loc="upper left", ncols=len(clicks), fontsize=8, columnspacing=1, handlelength=1.2)


def plot_outline_versions(ax: Axes, versions: Sequence[Mapping[str, Sequence[str]]]) -> None:
    """Plot the versions of an outline: one column per version, one row per section.

    Args:
        ax: axes to draw into.
        versions: for each version, heading -> ids of cited sources.
    """
    headings = [*dict.fromkeys(heading for version in versions for heading in version)]
    most = max((len(ids) for version in versions for ids in version.values()), default=0) or 1
    for x, version in enumerate(versions):
        for heading, ids in version.items():
            y = headings.index(heading)
            shade = 0.15 + 0.5 * len(ids) / most
            ax.barh(y, 0.94, 0.86, x - 0.47, color=UP, alpha=shade, lw=0)
            cited = "\n".join(_wrap_ids(ids))
            ax.text(x, y, cited, ha="center", va="center", fontsize=9)
    ax.set_yticks(range(len(headings)), headings)
    ax.set_xticks(range(len(versions)), [f"version {n}" for n in range(1, len(versions) + 1)])
    ax.set(xlim=(-0.55, len(versions) - 0.45), ylim=(len(headings) - 0.5, -0.5))
    ax.grid(visible=False)


def _wrap_ids(ids: Sequence[str], width: int = 5) -> list[str]:
    """Return the numbers of ids in lines of `width`."""
    numbers = [name.removeprefix("id_") for name in ids]
    return [" ".join(numbers[at : at + width]) for at in range(0, len(numbers), width)]


def plot_words_read(ax: Axes, read: Sequence[tuple[str, int]], gathered: int) -> None:
    """Plot the number of words in the context of each turn.

    Args:
        ax: axes to draw into.
        read: (role, words) per turn.
        gathered: words of all found sources (dashed), the size of a single context.
    """
    roles = [*dict.fromkeys(role for role, _ in read)]
    for role, color in zip(roles, (CONTROL, UP, "C2", "C4")):
        turns = [turn for turn, (who, _) in enumerate(read, 1) if who == role]
        ax.bar(turns, [read[turn - 1][1] for turn in turns], 0.8, color=color, label=role)
    ax.axhline(gathered, color=DOWN, lw=1.2, ls="--", label="all found sources")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set(
        xlabel="turn",
        ylabel="words read",
        ylim=(0, 1.35 * max(gathered, *(words for _, words in read))),
    )
    ax.legend(loc="upper left", ncols=3, fontsize=8, columnspacing=1, handlelength=1.2)
