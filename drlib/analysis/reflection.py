"""Forking tokens, and what a tool's response does to the tokens after it: measured, with controls.

rStar2-Agent (arXiv 2508.20722, section 5.4) reports dense runs of high entropy right after a tool's
response, by looking at coloured text. Here it is a number with three things to hold against it:

- **lift**: the share of high-entropy tokens among the thoughts in the first W sampled tokens after
  a response, over their share in all other thoughts; its interval is a bootstrap over trajectories
  (tokens of one trajectory are not independent).
- **matched**: the same windows over the first turn of their own trajectory, which follows no
  response, at the same places of the turn. A turn's first words are uncertain anyway, and some
  questions make all turns uncertain (and fail more); what is left is not explained by these two.
- **permuted**: the lift after each trajectory's windows were turned around it at random, which
  keeps their lengths and the runs of entropy: what chance makes of it.

Words of reflection are counted as whole words (`lexicons.yaml`, versioned), and set beside being
right only among trajectories of equal length: long ones hold more of every word.

Intervals are 95% percentile intervals of 2,000 resamples, widened as Student's t would be for few
trajectories (Hesterberg 2015, arXiv 1411.5279, section 5.3); above 2,000 trajectories, 2,000 groups
of them are resampled. Left out: tests of hypotheses, corrections for many comparisons.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import yaml

from drlib.analysis.entropy import high_entropy
from drlib.analysis.token_table import RESPONSE_STATUSES, TokenTable
from drlib.intervals import RESAMPLES, Interval, resample
from drlib.trajectory import Segment
from drlib.validation import require


def cluster_interval(
    parts_MC: np.ndarray,
    statistic: Callable[[np.ndarray], np.ndarray],
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> np.ndarray:
    """Estimate, low and high end of a statistic of sums over M trajectories: [3, ...].

    parts_MC: what each trajectory adds to C sums. statistic: sums [R, C] to values [R, ...].
    ValueError below two trajectories: one says nothing about how much they differ.
    """
    require(len(parts_MC) > 1, f"an interval needs at least two trajectories, got {len(parts_MC)}")
    groups = min(len(parts_MC), RESAMPLES)
    starts = np.arange(groups) * len(parts_MC) // groups
    parts = np.add.reduceat(np.asarray(parts_MC, np.float64), starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic(parts.sum(0, keepdims=True))[0]
        draws = resample(parts, statistic, seed, resamples)
    ordered = np.sort(draws, axis=0)  # NaN, where a draw has no value, comes last
    last = np.maximum((~np.isnan(ordered)).sum(0) - 1, 0)
    beyond = _compute_tail_share(len(parts))
    low_at = np.floor(beyond * last).astype(int)
    high_at = np.ceil((1 - beyond) * last).astype(int)
    low = np.take_along_axis(ordered, low_at[None], 0)[0]
    high = np.take_along_axis(ordered, high_at[None], 0)[0]
    return np.stack([value, low, high])


def _compute_tail_share(n: int) -> float:
    """The share of draws beyond each end of a 95% interval, less than 2.5% for few rows.

    The ends move out as far as Student's t does from the normal quantile, and by the factor that
    resampled spreads are too small.
    """
    normal = NormalDist()
    freedom = n - 1
    z = normal.inv_cdf(0.975)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return normal.cdf(-math.sqrt(n / freedom) * (z + first + second))


def _sum_by_trajectory(rows: np.ndarray, m: int, *columns: np.ndarray) -> np.ndarray:
    """[M, C]: what each of m trajectories adds to the sum of each column (bool or float)."""
    return np.stack([np.bincount(rows, weights=column, minlength=m) for column in columns], 1)


# ---------------------------------------------------------------------------------------------
# positions


def fork_tokens(
    table: TokenTable, share: float = 0.2, scope: str = "trajectory", **fixed
) -> np.ndarray:
    """bool_N: forking tokens, the thoughts' tokens of highest entropy (see `high_entropy`)."""
    return high_entropy(table, share, scope, within=table.inside(Segment.THINK), **fixed)


def reflection_tokens(table: TokenTable, window: int = 64, **forks) -> np.ndarray:
    """bool_N: forking tokens among the first `window` sampled after a tool's response."""
    return fork_tokens(table, **forks) & (table.since >= 0) & (table.since < window)


@dataclass(frozen=True)
class Lift:
    """`status`: of the responses, or "all". Intervals are natural logs of ratios: 0 is no lift.

    share, elsewhere: of high-entropy tokens, in the windows and in the other thoughts.
    tokens: thoughts' tokens in the windows. permuted: median and 95% range under the null.
    """

    status: str
    responses: int
    tokens: int
    share: float
    elsewhere: float
    lift: Interval
    matched: Interval
    permuted: Interval


def reflection_lift(
    table: TokenTable,
    *,
    window: int = 64,
    share: float = 0.2,
    scope: str = "batch",
    threshold: float | None = None,
    resamples: int = RESAMPLES,
    permutations: int = 500,
    seed: int = 0,
) -> list[Lift]:
    """The lift after tool responses: of all, and of each status that occurs.

    window: W, sampled tokens. share, scope: of `high_entropy` among the thoughts; a `threshold`
    (nats) fixes it instead. ValueError: no response, nothing outside the windows, one trajectory.
    """
    if threshold is None:
        high = fork_tokens(table, share, scope)
    else:
        high = fork_tokens(table, share, "fixed", threshold=threshold)
    thought = table.inside(Segment.THINK)
    after = thought & (table.since >= 0) & (table.since < window)
    elsewhere = thought & ~after
    require(
        bool(after.any() and elsewhere.any()),
        f"{after.sum()} of {thought.sum()} thought tokens follow a tool response within "
        f"{window}: a lift needs some, and some that do not",
    )
    drawn = dict(seed=seed, resamples=resamples)
    found = []
    for number, status in enumerate(("all", *RESPONSE_STATUSES[1:])):
        of_status = (table.status == number) | (number == 0)
        inside = after & of_status
        if not inside.any():
            continue
        parts_MC = _sum_by_trajectory(
            table.row, len(table.names), high & inside, inside, high & elsewhere, elsewhere
        )
        high_inside, tokens, high_elsewhere, others = parts_MC.sum(0)
        found.append(
            Lift(
                status=status,
                responses=int(((table.since == 0) & of_status).sum()),
                tokens=int(tokens),
                share=high_inside / tokens,
                elsewhere=high_elsewhere / others,
                lift=tuple(cluster_interval(parts_MC, _log_ratio, **drawn).tolist()),
                matched=_compute_matched_lift(table, high, thought, inside, drawn),
                permuted=_compute_permuted_lift(
                    table, high, thought, inside, after, permutations, seed
                ),
            )
        )
    return found


def _log_ratio(sums_RC: np.ndarray) -> np.ndarray:
    """Log of one share over another, of (hits, tokens, hits, tokens)."""
    hits, tokens, other_hits, other_tokens = sums_RC.T
    return np.log(hits / tokens) - np.log(other_hits / other_tokens)


def _compute_matched_lift(table: TokenTable, high, thought, inside, drawn: dict) -> Interval:
    """Log of the windows' share over that of their partners: the same place of the first turn.

    Partners are of the same trajectory: over all trajectories together, first turns would stand for
    easy questions too, which have few windows.
    """
    at = np.flatnonzero(inside)
    first = table.starts()[table.row[at]]  # of the same trajectory
    partner = np.minimum(first + table.since[at], len(table) - 1)
    same_trajectory = table.row[partner] == table.row[at]
    first_turn = table.turn[partner] == table.turn[first]
    same_place = table.offset[partner] == table.since[at]
    fits = same_trajectory & first_turn & same_place & thought[partner]
    at, partner = at[fits], partner[fits]
    parts_MC = _sum_by_trajectory(table.row[at], len(table.names), high[at], high[partner])
    interval = cluster_interval(parts_MC, lambda sums: np.log(sums[:, 0] / sums[:, 1]), **drawn)
    return tuple(interval.tolist())


def _compute_permuted_lift(
    table, high, thought, inside, after, permutations: int, seed: int
) -> Interval:
    """Median and 95% range of the log lift with each trajectory's windows turned at random.

    All thoughts of a trajectory form a circle; its windows keep their lengths and distances. Those
    of another status turn along and count as nothing, as they do in the lift.
    """
    at = np.flatnonzero(thought)
    row = table.row[at]
    label = np.where(inside[at], 1, np.where(after[at], 2, 0))
    circle = np.searchsorted(row, np.arange(len(table.names) + 1))  # where each one begins
    # runs of thoughts of one label, and the circle that each lies on
    changes = (np.diff(label, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0)
    starts = np.flatnonzero(changes)
    length = np.diff([*starts, len(at)])
    run_label, run_row = label[starts], row[starts]
    begin, end = circle[run_row], circle[run_row + 1]
    high_before = np.concatenate([[0], np.cumsum(high[at])])  # high tokens before each place
    sizes = np.bincount(label, minlength=2)[:2]
    rng = np.random.default_rng(seed)
    shares = []
    for _ in range(permutations):
        turned = rng.integers(1 << 40, size=len(table.names))[run_row]
        start = begin + (starts - begin + turned) % (end - begin)
        stop = start + length
        # a run that goes past its circle's end goes on at its beginning
        hits = high_before[np.minimum(stop, end)] - high_before[start]
        hits += high_before[begin + np.maximum(stop - end, 0)] - high_before[begin]
        shares.append(np.bincount(run_label, hits, minlength=2)[:2] / sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_elsewhere, log_inside = np.log(shares).T
        lifts = log_inside - log_elsewhere
        return tuple(np.quantile(lifts, [0.5, 0.025, 0.975], method="nearest").tolist())


def event_curves(
    table: TokenTable, before: int = 32, after: int = 128, resamples: int = 500, seed: int = 0
) -> dict[str, dict[str, np.ndarray]]:
    """Mean entropy around tool responses, by status: `offset`, `mean`, `low`, `high`, `tokens`.

    Offset 0 is the first token sampled after the response, -1 the last one before it; tokens of
    other turns are left out, so long offsets are means over long turns only. All arrays [K].
    """
    entropy = table.known("entropy")
    places = np.arange(-before, after)
    width, trajectories = len(places), len(table.names)
    curves = {}
    for number, status in enumerate(("all", *RESPONSE_STATUSES[1:])):
        starts = np.flatnonzero((table.since == 0) & ((table.status == number) | (number == 0)))
        if not len(starts):
            continue
        totals, counts = np.zeros((2, trajectories * width))
        for k, place in enumerate(places):
            near = _find_tokens_at_offset(table, starts, place)
            cell = table.row[near] * width + k
            totals += np.bincount(cell, entropy[near], minlength=trajectories * width)
            counts += np.bincount(cell, minlength=trajectories * width)
        parts_MC = np.concatenate(
            [totals.reshape(trajectories, width), counts.reshape(trajectories, width)], axis=1
        )
        mean, low, high = cluster_interval(
            parts_MC, lambda sums: sums[:, :width] / sums[:, width:], seed, resamples
        )
        curves[status] = {
            "mean": mean,
            "low": low,
            "high": high,
            "offset": places,
            "tokens": parts_MC[:, width:].sum(0),
        }
    return curves


def _find_tokens_at_offset(table: TokenTable, starts: np.ndarray, place: int) -> np.ndarray:
    """The tokens `place` places from the first ones after responses, where of the turn meant.

    That is the turn which begins there, or for places below 0 the one before.
    """
    near = starts + place
    inside = (near >= 0) & (near < len(table))
    starts, near = starts[inside], near[inside]
    of_turn = starts - (place < 0)
    same = table.row[near] == table.row[starts]
    same &= table.turn[near] == table.turn[of_turn]
    return near[same]


# ---------------------------------------------------------------------------------------------
# words


@cache
def load_lexicons() -> dict[str, list[str]]:
    """The words of `lexicons.yaml`, by lexicon."""
    text = (Path(__file__).parent / "lexicons.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["lexicons"]


def find_mentions(table: TokenTable, texts: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """bool_N: a whole word (or phrase) of `words` begins in this token of a thought.

    texts: of each token, as `segments.token_texts` gives them; a match may span several.
    """
    spaced = (r"\s+".join(map(re.escape, word.split())) for word in words)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)", re.I)
    # a mark that nothing matches: no word goes across a call, nor across a response
    shown = np.where(table.inside(Segment.THINK), texts, "\1")
    shown = np.where(table.offset == 0, "\1" + shown, shown)
    found = np.zeros(len(table), bool)
    starts = table.starts()
    for begin, end in zip(starts, starts[1:]):
        ends = np.cumsum([len(text) for text in shown[begin:end]])
        for match in pattern.finditer("".join(shown[begin:end])):
            found[begin + np.searchsorted(ends, match.start(), side="right")] = True
    return found


def lexicon_table(table: TokenTable, texts: np.ndarray, strata: int = 5) -> dict[str, dict]:
    """By lexicon: words per 1,000 sampled tokens, and how they go with being right.

    `rate` (with interval), `holds` (share of the trajectories with a word), `right_with` and
    `right_without` (share right, and of how many judged), `matched`: the difference of the two
    within `strata` groups of equally long trajectories, with interval; NaN where none has both.
    """
    lengths = np.diff(table.starts())
    right_M = table.right_M
    judged = ~np.isnan(right_M)
    correct = np.where(judged, right_M, 0)
    rank = np.argsort(np.argsort(lengths, kind="stable"))
    stratum = rank * strata // len(lengths)  # of about equally many, by length
    rows = {}
    for name, words in load_lexicons().items():
        counts = np.bincount(table.row, find_mentions(table, texts, words), minlength=len(lengths))
        holds = counts > 0
        columns = []  # for each stratum: with and right with, without and right without
        for s in range(strata):
            for has in (True, False):
                group = judged & (holds == has) & (stratum == s)
                columns += [group, group * correct]
        rate_parts = np.stack([1000 * counts, lengths], 1)
        rate = cluster_interval(rate_parts, lambda sums: sums[:, 0] / sums[:, 1])
        matched = cluster_interval(np.stack(columns, 1), _compute_stratified_difference)
        rows[name] = {
            "rate": tuple(rate.tolist()),
            "holds": float(holds.mean()),
            "right_with": _compute_accuracy(right_M[judged & holds]),
            "right_without": _compute_accuracy(right_M[judged & ~holds]),
            "matched": tuple(matched.tolist()),
        }
    return rows


def _compute_accuracy(right: np.ndarray) -> tuple[float, int]:
    return (float(right.mean()) if len(right) else math.nan), len(right)


def _compute_stratified_difference(sums_RC: np.ndarray) -> np.ndarray:
    """Right with a word less right without, over the strata that have both, weighed by the first.

    sums_RC: with, right with, without, right without; in turns for each stratum.
    """
    with_S, right_with_S, without_S, right_without_S = (sums_RC[:, k::4] for k in range(4))
    both = (with_S > 0) & (without_S > 0)
    gaps = np.where(both, with_S * (right_with_S / with_S - right_without_S / without_S), 0)
    return gaps.sum(1) / (with_S * both).sum(1)


def word_entropies(
    table: TokenTable, texts: np.ndarray, min_count: int = 10, top: int = 100
) -> list[tuple[str, int, float]]:
    """(word, occurrences, mean entropy in nats) of the thoughts' words, the most uncertain first.

    A word's entropy is that of its first token; case and spaces around it do not count. Words that
    occur less than `min_count` times are left out (arXiv 2506.01939, figure 2).
    """
    entropy = table.known("entropy")
    counts, totals = Counter(), Counter()
    for word, at in _iter_words(table, texts):
        counts[word] += 1
        totals[word] += float(entropy[at])
    means = [(word, n, totals[word] / n) for word, n in counts.items() if n >= min_count]
    return sorted(means, key=lambda row: (-row[2], row[0]))[:top]


def _iter_words(table: TokenTable, texts: np.ndarray) -> Iterator[tuple[str, int]]:
    """(word, its first token) of the thoughts; pieces belong together where letters meet."""
    at = np.flatnonzero(table.inside(Segment.THINK))
    shown = texts[at].tolist()
    opens = np.array([text[:1].isalnum() for text in shown])
    closes = np.array([text[-1:].isalnum() for text in shown])
    joined = closes[:-1] & opens[1:] & (np.diff(at) == 1) & (np.diff(table.row[at]) == 0)
    cuts = [0, *(np.flatnonzero(~joined) + 1).tolist(), len(at)]
    for start, end in zip(cuts, cuts[1:]):
        word = "".join(shown[start:end]).strip().casefold()
        if any(map(str.isalnum, word)):
            yield word, int(at[start])
