"""Forking tokens, the entropy lift after tool responses with controls, and reflection words.

rStar2-Agent (arXiv 2508.20722, section 5.4) reports many high-entropy tokens right after a tool
response, from coloured text. This module measures the effect with two controls:

- **lift**: the share of high-entropy tokens among the thoughts in the first W sampled tokens after
  a response, divided by their share in all other thoughts.
- **matched**: the same windows compared with the same positions of the first turn of the same
  trajectory, which follows no response. This controls for uncertain first words of a turn and for
  difficult questions.
- **permuted**: the null distribution of the lift under circular shifts of the windows within each
  trajectory. Shifts keep window lengths and runs of entropy.

Reflection words (`lexicons.yaml`, versioned) are counted as whole words. Their relation to accuracy
is measured within groups of equally long trajectories, because long ones contain more words.

Intervals are 95% percentile intervals of 2,000 bootstrap resamples over trajectories, widened for
small samples (Hesterberg 2015, arXiv 1411.5279, section 5.3). Above 2,000 trajectories, 2,000
groups of trajectories are resampled. Not included: hypothesis tests, corrections for multiple
comparisons.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import NormalDist

import numpy as np
import yaml

from drlib.analysis.entropy import EntropyScope, high_entropy
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
    """Compute a statistic of sums over trajectories with its 95% bootstrap interval.

    Args:
        parts_MC: contributions of M trajectories to C sums.
        statistic: function from sums [R, C] to values [R, ...].
        seed: seed of the resampling.
        resamples: number of bootstrap resamples.

    Returns:
        Estimate, low end and high end: [3, ...].

    Raises:
        ValueError: fewer than two trajectories.

    """
    require(len(parts_MC) > 1, f"an interval needs at least two trajectories, got {len(parts_MC)}")
    groups = min(len(parts_MC), RESAMPLES)
    starts = np.arange(groups) * len(parts_MC) // groups
    parts = np.add.reduceat(np.asarray(parts_MC, np.float64), starts)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = statistic(parts.sum(0, keepdims=True))[0]
        draws = resample(parts, statistic, seed, resamples)
    ordered = np.sort(draws, axis=0)  # draws without a value are NaN and sorted last
    last = np.maximum((~np.isnan(ordered)).sum(0) - 1, 0)
    beyond = _compute_tail_share(len(parts))
    low_at = np.floor(beyond * last).astype(int)
    high_at = np.ceil((1 - beyond) * last).astype(int)
    low = np.take_along_axis(ordered, low_at[None], 0)[0]
    high = np.take_along_axis(ordered, high_at[None], 0)[0]
    return np.stack([value, low, high])


def _compute_tail_share(n: int) -> float:
    """Return the share of draws beyond each end of a 95% interval; below 2.5% for small n.

    Replaces the normal quantile by that of Student's t (series in 1 / freedom) and corrects the
    bias of the resampled spread, sqrt(n / (n - 1)).
    """
    normal = NormalDist()
    freedom = n - 1
    z = normal.inv_cdf(0.975)
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return normal.cdf(-math.sqrt(n / freedom) * (z + first + second))


def _sum_by_trajectory(rows: np.ndarray, m: int, *columns: np.ndarray) -> np.ndarray:
    """Return the sums of C columns (bool or float) for each of m trajectories: [M, C]."""
    return np.stack([np.bincount(rows, weights=column, minlength=m) for column in columns], 1)


# ---------------------------------------------------------------------------------------------
# forking tokens and lift


def fork_tokens(
    table: TokenTable,
    share: float = 0.2,
    scope: EntropyScope = "trajectory",
    **fixed,
) -> np.ndarray:
    """Mark forking tokens, the thought tokens of highest entropy: bool [N].

    Arguments are those of `entropy.high_entropy`. Source: arXiv 2508.20722, section 5.4.
    """
    return high_entropy(table, share, scope, within=table.inside(Segment.THINK), **fixed)


def reflection_tokens(table: TokenTable, window: int = 64, **forks) -> np.ndarray:
    """Mark forking tokens among the first `window` sampled after a tool response: bool [N]."""
    return fork_tokens(table, **forks) & (table.since >= 0) & (table.since < window)


@dataclass(frozen=True)
class Lift:
    """Lift of high-entropy tokens after tool responses.

    Attributes:
        status: status of the responses, or "all".
        responses: number of responses.
        tokens: number of thought tokens in the windows.
        share: share of high-entropy tokens in the windows.
        elsewhere: share of high-entropy tokens in the other thoughts.
        lift: log of share / elsewhere with its interval; 0 is no lift.
        matched: log ratio to the same positions of first turns, with its interval.
        permuted: median and 95% range of the log lift under circular shifts.

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
    scope: EntropyScope = "batch",
    threshold: float | None = None,
    resamples: int = RESAMPLES,
    permutations: int = 500,
    seed: int = 0,
) -> list[Lift]:
    """Measure the lift after all tool responses, and after those of each status.

    Args:
        table: sampled tokens with entropies.
        window: tokens per window (W), counted from the response.
        share: share of high-entropy tokens among the thoughts.
        scope: scope of `share`, see `high_entropy`.
        threshold: nats; replaces `share` by a fixed threshold.
        resamples: bootstrap resamples per interval.
        permutations: circular shifts of the null distribution.
        seed: seed of both.

    Returns:
        One `Lift` for "all" and one per status that occurs.

    Raises:
        ValueError: no thought tokens inside or outside the windows, or one trajectory.

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
        f"{window}: a lift needs tokens inside and outside of windows",
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
    """Return the log ratio of two shares from the sums (hits, tokens, hits, tokens)."""
    hits, tokens, other_hits, other_tokens = sums_RC.T
    return np.log(hits / tokens) - np.log(other_hits / other_tokens)


def _compute_matched_lift(table: TokenTable, high, thought, inside, drawn: dict) -> Interval:
    """Return the log ratio of the windows' share to that at the same positions of first turns.

    Pairs are within a trajectory. Pooled first turns would over-represent easy questions, which
    have few windows.
    """
    at = np.flatnonzero(inside)
    first = table.starts()[table.row[at]]  # first token of the same trajectory
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
    """Return the median and 95% range of the log lift under random circular shifts.

    The windows of a trajectory are shifted together over its concatenated thoughts, so lengths and
    distances are kept. Windows of other statuses are shifted too and excluded, as in the lift.
    """
    at = np.flatnonzero(thought)
    row = table.row[at]
    label = np.where(inside[at], 1, np.where(after[at], 2, 0))
    circle = np.searchsorted(row, np.arange(len(table.names) + 1))  # start of each trajectory
    # runs of thoughts with one label, and their trajectories
    changes = (np.diff(label, prepend=-1) != 0) | (np.diff(row, prepend=-1) != 0)
    starts = np.flatnonzero(changes)
    length = np.diff([*starts, len(at)])
    run_label, run_row = label[starts], row[starts]
    begin, end = circle[run_row], circle[run_row + 1]
    high_before = np.concatenate([[0], np.cumsum(high[at])])  # high tokens before each position
    sizes = np.bincount(label, minlength=2)[:2]
    rng = np.random.default_rng(seed)
    shares = []
    for _ in range(permutations):
        shift = rng.integers(1 << 40, size=len(table.names))[run_row]
        start = begin + (starts - begin + shift) % (end - begin)
        stop = start + length
        # a run past the end of its trajectory wraps around
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
    """Compute the mean entropy around tool responses, by status.

    Only tokens of the turns next to the response count, so large offsets average long turns only.

    Args:
        table: sampled tokens with entropies.
        before: offsets before the response.
        after: offsets after the response.
        resamples: bootstrap resamples per interval.
        seed: seed of the resampling.

    Returns:
        For "all" and each status that occurs, arrays [before + after]: `offset` (0 is the first
        token sampled after the response), `mean`, `low`, `high` (nats), `tokens` (counts).

    Raises:
        ValueError: a token without entropy, or fewer than two trajectories.

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
        for k, place in enumerate(places.tolist()):
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
    """Return the tokens at offset `place` from turn starts, if they are in the expected turn.

    The expected turn is the one that begins at the start, or the previous one if `place` < 0.
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
    """Load the words of `lexicons.yaml` by lexicon."""
    text = (Path(__file__).parent / "lexicons.yaml").read_text(encoding="utf-8")
    return yaml.safe_load(text)["lexicons"]


def find_mentions(table: TokenTable, texts: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Mark the thought tokens in which a whole word or phrase of `words` begins: bool [N].

    Args:
        table: N sampled tokens.
        texts: text of each token [N], from `segments.token_texts`; a match may span several.
        words: words or phrases; case is ignored.
    """
    found = np.zeros(len(table), bool)
    found[[at for at, _ in _iter_mentions(table, texts, words)]] = True
    return found


def count_mentions(table: TokenTable, texts: np.ndarray, words: Sequence[str]) -> dict[str, int]:
    """Count each word or phrase in the thoughts; arguments are those of `find_mentions`."""
    counts = Counter(word for _, word in _iter_mentions(table, texts, words))
    return {word: counts[word] for word in words}


def _iter_mentions(
    table: TokenTable, texts: np.ndarray, words: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """Yield (index of the token in which it begins, word or phrase) of every mention."""
    spaced = (r"\s+".join(map(re.escape, word.split())) for word in words)
    pattern = re.compile(rf"(?<!\w)(?:({')|('.join(spaced)}))(?!\w)", re.I)
    # a separator prevents matches across tool calls and responses
    shown = np.where(table.inside(Segment.THINK), texts, "\1")
    shown = np.where(table.offset == 0, "\1" + shown, shown)
    starts = table.starts()
    for begin, end in zip(starts, starts[1:]):
        ends = np.cumsum([len(text) for text in shown[begin:end]])
        for match in pattern.finditer("".join(shown[begin:end])):
            assert match.lastindex is not None  # a match is one of the groups
            at = begin + np.searchsorted(ends, match.start(), side="right")
            yield int(at), words[match.lastindex - 1]


def lexicon_table(table: TokenTable, texts: np.ndarray, strata: int = 5) -> dict[str, dict]:
    """Measure the rate of each lexicon's words and their relation to accuracy.

    Args:
        table: N sampled tokens.
        texts: text of each token [N].
        strata: groups of trajectories of similar length.

    Returns:
        By lexicon: `rate` (words per 1,000 sampled tokens, with interval), `holds` (share of
        trajectories with a word), `right_with` and `right_without` (accuracy and number of judged
        trajectories with and without a word), `matched` (their difference within strata, with
        interval; NaN if no stratum has both).

    Raises:
        ValueError: fewer than two trajectories.

    """
    lengths = np.diff(table.starts())
    right_M = table.right_M
    judged = ~np.isnan(right_M)
    correct = np.where(judged, right_M, 0)
    rank = np.argsort(np.argsort(lengths, kind="stable"))
    stratum = rank * strata // len(lengths)  # similar numbers of trajectories, by length
    rows = {}
    for name, words in load_lexicons().items():
        counts = np.bincount(table.row, find_mentions(table, texts, words), minlength=len(lengths))
        holds = counts > 0
        columns = []  # per stratum: with, right with, without, right without
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
    """Return the share of right trajectories (NaN without any) and their number."""
    return (float(right.mean()) if len(right) else math.nan), len(right)


def _compute_stratified_difference(sums_RC: np.ndarray) -> np.ndarray:
    """Return accuracy with a word minus accuracy without, averaged over strata that have both.

    Weights are the numbers of trajectories with a word. sums_RC: columns per stratum are with,
    right with, without, right without.
    """
    with_S, right_with_S, without_S, right_without_S = (sums_RC[:, k::4] for k in range(4))
    both = (with_S > 0) & (without_S > 0)
    gaps = np.where(both, with_S * (right_with_S / with_S - right_without_S / without_S), 0)
    return gaps.sum(1) / (with_S * both).sum(1)


def word_entropies(
    table: TokenTable, texts: np.ndarray, min_count: int = 10, top: int = 100
) -> list[tuple[str, int, float]]:
    """Return the words of thoughts with the highest mean entropy (arXiv 2506.01939, figure 2).

    The entropy of a word is that of its first token. Case and surrounding spaces are ignored.

    Args:
        table: N sampled tokens with entropies.
        texts: text of each token [N].
        min_count: minimum number of occurrences.
        top: maximum number of words.

    Returns:
        (word, occurrences, mean entropy in nats), highest entropy first.

    """
    entropy = table.known("entropy")
    counts: Counter[str] = Counter()
    totals: defaultdict[str, float] = defaultdict(float)  # nats
    for word, at in _iter_words(table, texts):
        counts[word] += 1
        totals[word] += float(entropy[at])
    means = [(word, n, totals[word] / n) for word, n in counts.items() if n >= min_count]
    return sorted(means, key=lambda row: (-row[2], row[0]))[:top]


def _iter_words(table: TokenTable, texts: np.ndarray) -> Iterator[tuple[str, int]]:
    """Yield (word, index of its first token) of thoughts; adjacent letters join tokens."""
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
