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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import yaml

from drlib.analysis.entropy import high_entropy
from drlib.analysis.token_table import RESPONSE_STATUSES, TokenTable
from drlib.checks import require
from drlib.evals.metrics import RESAMPLES, Interval, resample
from drlib.trajectory import Segment


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
    n = len(parts)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic(parts.sum(0, keepdims=True))[0]
        draws = resample(parts, statistic, seed, resamples)
    z, f = NormalDist().inv_cdf(0.975), n - 1
    t = z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
    beyond = NormalDist().cdf(-math.sqrt(n / f) * t)
    ordered = np.sort(draws, axis=0)  # NaN, where a draw has no value, comes last
    last = np.maximum((~np.isnan(ordered)).sum(0) - 1, 0)
    ends = [np.floor(beyond * last), np.ceil((1 - beyond) * last)]
    ends = [np.take_along_axis(ordered, np.asarray(e, int)[None], 0)[0] for e in ends]
    return np.stack([value, *ends])


def _sums(rows: np.ndarray, m: int, *columns: np.ndarray) -> np.ndarray:
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
    fixed = {} if threshold is None else {"threshold": threshold}
    high = fork_tokens(table, share, scope if threshold is None else "fixed", **fixed)
    thought = table.inside(Segment.THINK)
    after = thought & (table.since >= 0) & (table.since < window)
    some = after.any() and (thought & ~after).any()
    require(
        some,
        f"{after.sum()} of {thought.sum()} thought tokens follow a tool response within "
        f"{window}: a lift needs some, and some that do not",
    )
    found = []
    for number, status in enumerate(("all", *RESPONSE_STATUSES[1:])):
        inside = after & (table.status == number) if number else after
        if inside.any():
            asked = dict(seed=seed, resamples=resamples)
            columns = high & inside, inside, high & thought & ~after, thought & ~after
            sums = _sums(table.row, len(table.names), *columns)
            hits, tokens, others, rest = sums.sum(0)
            begins = (table.since == 0) & ((table.status == number) | (number == 0))
            found.append(
                Lift(
                    status,
                    int(begins.sum()),
                    int(tokens),
                    hits / tokens,
                    others / rest,
                    tuple(cluster_interval(sums, _log_ratio, **asked).tolist()),
                    _matched(table, high, thought, inside, asked),
                    _permuted(table, high, thought, inside, after, permutations, seed),
                )
            )
    return found


def _log_ratio(sums_RC: np.ndarray) -> np.ndarray:
    a, n, b, m = sums_RC.T
    return np.log(a / n) - np.log(b / m)


def _matched(table: TokenTable, high, thought, inside, asked: dict) -> Interval:
    """Log of the windows' share over that of their partners: the same place of the first turn.

    Partners are of the same trajectory: over all trajectories together, first turns would stand for
    easy questions too, which have few windows.
    """
    at = np.flatnonzero(inside)
    begin = table.starts()[table.row[at]]
    partner = np.minimum(begin + table.since[at], len(table) - 1)
    fits = (table.row[partner] == table.row[at]) & (table.turn[partner] == table.turn[begin])
    fits &= thought[partner] & (table.offset[partner] == table.since[at])
    at, partner = at[fits], partner[fits]
    sums = _sums(table.row[at], len(table.names), high[at], high[partner])
    return tuple(cluster_interval(sums, lambda s: np.log(s[:, 0] / s[:, 1]), **asked).tolist())


def _permuted(table, high, thought, inside, after, permutations: int, seed: int) -> Interval:
    """Median and 95% range of the log lift with each trajectory's windows turned at random.

    All thoughts of a trajectory form a circle; its windows keep their lengths and distances. Those
    of another status turn along and count as nothing, as they do in the lift.
    """
    at = np.flatnonzero(thought)
    row, label = table.row[at], np.where(inside[at], 1, np.where(after[at], 2, 0))
    begins = np.searchsorted(row, np.arange(len(table.names) + 1))  # of each trajectory's circle
    edges = np.flatnonzero((np.diff(label, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0))
    length, which, home = np.diff([*edges, len(at)]), label[edges], row[edges]
    base, end = begins[home], begins[home + 1]
    before = np.concatenate([[0], np.cumsum(high[at])])  # high tokens before each place
    sizes = np.bincount(label, minlength=2)[:2]
    rng, shares = np.random.default_rng(seed), []
    for _ in range(permutations):
        shift = rng.integers(1 << 40, size=len(table.names))[home]
        start = base + (edges - base + shift) % (end - base)
        stop = start + length
        around = before[base + np.maximum(stop - end, 0)] - before[base]  # past the circle's end
        hits = before[np.minimum(stop, end)] - before[start] + around
        shares.append(np.bincount(which, hits, minlength=2)[:2] / sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(shares).T
        return tuple(np.quantile(logs[1] - logs[0], [0.5, 0.025, 0.975], method="nearest").tolist())


def event_curves(
    table: TokenTable, before: int = 32, after: int = 128, resamples: int = 500, seed: int = 0
) -> dict[str, dict[str, np.ndarray]]:
    """Mean entropy around tool responses, by status: `offset`, `mean`, `low`, `high`, `tokens`.

    Offset 0 is the first token sampled after the response, -1 the last one before it; tokens of
    other turns are left out, so long offsets are means over long turns only. All arrays [K].
    """
    entropy, curves, places = table.known("entropy"), {}, np.arange(-before, after)
    width, m = before + after, len(table.names)
    for number, status in enumerate(("all", *RESPONSE_STATUSES[1:])):
        starts = np.flatnonzero((table.since == 0) & ((table.status == number) | (number == 0)))
        if not len(starts):
            continue
        totals = np.zeros((2, m * width))
        for k, place in enumerate(places):
            near = starts + place
            ok = (near >= 0) & (near < len(table))
            home, near = starts[ok] - (place < 0), near[ok]  # which token is of the turn meant
            same = table.row[near] == table.row[starts[ok]]
            same &= table.turn[near] == table.turn[home]
            cell = table.row[near[same]] * width + k
            totals[0] += np.bincount(cell, entropy[near[same]], minlength=m * width)
            totals[1] += np.bincount(cell, minlength=m * width)
        parts = np.concatenate([t.reshape(m, width) for t in totals], 1)
        ends = cluster_interval(parts, lambda s: s[:, :width] / s[:, width:], seed, resamples)
        tokens = parts[:, width:].sum(0)
        curves[status] = dict(zip(("mean", "low", "high"), ends), offset=places, tokens=tokens)
    return curves


# ---------------------------------------------------------------------------------------------
# words


@cache
def lexicons() -> dict[str, list[str]]:
    """The words of `lexicons.yaml`, by lexicon."""
    text = (Path(__file__).parent / "lexicons.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["lexicons"]


def mentions(table: TokenTable, texts: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """bool_N: a whole word (or phrase) of `words` begins in this token of a thought.

    texts: of each token, as `token_table.token_texts` gives them; a match may span several.
    """
    spaced = (r"\s+".join(map(re.escape, word.split())) for word in words)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(spaced)})(?!\w)", re.I)
    shown = np.where(table.inside(Segment.THINK), texts, "\1")  # nothing matches across a call
    shown = np.where(table.offset == 0, "\1" + shown, shown)  # nor across a response
    found, starts = np.zeros(len(table), bool), table.starts()
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
    lengths, right_M = np.diff(table.starts()), table.right_M
    judged, rank = ~np.isnan(right_M), np.argsort(np.argsort(lengths, kind="stable"))
    stratum = rank * strata // len(lengths)
    rows = {}
    for name, words in lexicons().items():
        counts = np.bincount(table.row, mentions(table, texts, words), minlength=len(lengths))
        holds, correct = counts > 0, np.where(judged, right_M, 0)
        groups = [judged & (holds == has) & (stratum == s) for s in range(strata) for has in (1, 0)]
        cells = np.stack([x for g in groups for x in (g, g * correct)], 1)
        rate = np.stack([1000 * counts, lengths], 1)
        rows[name] = {
            "rate": tuple(cluster_interval(rate, lambda s: s[:, 0] / s[:, 1]).tolist()),
            "holds": float(holds.mean()),
            "right_with": _share_right(right_M[judged & holds]),
            "right_without": _share_right(right_M[judged & ~holds]),
            "matched": tuple(cluster_interval(cells, _difference).tolist()),
        }
    return rows


def _share_right(right: np.ndarray) -> tuple[float, int]:
    return (float(right.mean()) if len(right) else math.nan), len(right)


def _difference(sums_RC: np.ndarray) -> np.ndarray:
    n1, right1, n0, right0 = sums_RC.reshape(len(sums_RC), -1, 4).transpose(2, 0, 1)
    both = (n1 > 0) & (n0 > 0)
    gaps = np.where(both, n1 * (right1 / n1 - right0 / n0), 0)
    return gaps.sum(1) / (n1 * both).sum(1)


def word_entropies(
    table: TokenTable, texts: np.ndarray, min_count: int = 10, top: int = 100
) -> list[tuple[str, int, float]]:
    """(word, occurrences, mean entropy in nats) of the thoughts' words, the most uncertain first.

    A word's entropy is that of its first token; case and spaces around it do not count. Words that
    occur less than `min_count` times are left out (arXiv 2506.01939, figure 2).
    """
    entropy, sums = table.known("entropy"), {}
    for word, at in _words(table, texts):
        count, total = sums.get(word, (0, 0.0))
        sums[word] = count + 1, total + float(entropy[at])
    means = [(word, n, total / n) for word, (n, total) in sums.items() if n >= min_count]
    return sorted(means, key=lambda row: (-row[2], row[0]))[:top]


def _words(table: TokenTable, texts: np.ndarray) -> Iterator[tuple[str, int]]:
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
