"""95% intervals of accuracies and of their differences.

Answers to one question are not independent, so the bootstraps resample questions, never answers;
two systems asked the same questions are compared pair by pair, which is far sharper than two
separate intervals. The same data give the same interval, in whatever order they come.

Left out: tests of hypotheses (an interval says more), corrections for many comparisons, intervals
over training seeds (there are three).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np

from drlib.checks import require

Interval = tuple[float, float, float]  # estimate, low, high
Scores = Mapping[str, Sequence[float]]  # the answers' scores of each question, at least one each
Statistic = Callable[[np.ndarray], np.ndarray]  # sums [R, C] to values [R, ...]
RESAMPLES = 2000
CHUNK = 100  # draws of counts at a time: they and what comes of them are held in memory


def wilson_interval(correct: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a proportion of n independent answers (1927): honest
    near 0 and 1, where the usual p +- z sqrt(p(1-p)/n) leaves [0, 1] or has no width."""
    sensible = n >= 1 and 0 <= correct <= n
    require(sensible, f"need n >= 1 and 0 <= correct <= n, got correct={correct}, n={n}")
    share, scale = correct / n, 1 + z * z / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if correct == 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if correct == n else min(1.0, (centre + half) / scale)
    return low, high


def bootstrap_mean(values_by_question: Scores, seed: int) -> Interval:
    """Mean of the questions' means, with its percentile interval; each question weighs the same.
    ValueError: there are no questions, a question has no values, or a value is not finite."""
    return _bootstrap(_question_means(values_by_question), seed)


def bootstrap_difference(a_by_question: Scores, b_by_question: Scores, seed: int) -> Interval:
    """Mean of a - b over the questions, with its interval; both resampled together, by question.
    Errors as `bootstrap_mean`; also ValueError when the questions differ."""
    a_means, b_means = _question_means(a_by_question), _question_means(b_by_question)
    if odd := a_means.keys() ^ b_means.keys():
        raise ValueError(f"a pair needs the same questions; {min(odd)!r} is in one only")
    return _bootstrap({name: a_means[name] - b_means[name] for name in a_means}, seed)


def _question_means(values_by_question: Scores) -> dict[str, float]:
    require(bool(values_by_question), "there are no questions to average over")
    means = {}
    for question, values in values_by_question.items():
        scores = np.asarray(values, dtype=float)
        if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
            raise ValueError(f"question {question!r} needs finite scores, got {values!r}")
        means[question] = math.fsum(scores) / len(scores)
    return means


def _bootstrap(means: Mapping[str, float], seed: int) -> Interval:
    means_Q1 = np.array([[means[question]] for question in sorted(means)])
    return percentile_interval(means_Q1, lambda sums_R1: sums_R1[:, 0] / len(means_Q1), seed)


def percentile_interval(parts_MC: np.ndarray, statistic: Statistic, seed: int) -> Interval:
    """A statistic of sums over M questions, with its percentile interval.

    parts_MC: what each question adds to C sums. statistic: sums [R, C] to values [R]; a draw whose
    value is NaN (such as a ratio of nothing) does not count.
    """
    value = statistic(parts_MC.sum(axis=0, keepdims=True))[0]
    low, high = np.nanquantile(resample(parts_MC, statistic, seed), [0.025, 0.975])
    return float(value), float(low), float(high)


def resample(
    parts_MC: np.ndarray,
    statistic: Statistic,
    seed: int,
    resamples: int = RESAMPLES,
    *,
    draw: Literal["rows", "counts"] = "rows",
) -> np.ndarray:
    """The bootstrap: a statistic of the sums of M rows drawn with replacement, `resamples` times.

    parts_MC: the rows, what each question or trajectory adds to C sums. statistic: sums [R, C] to
    values [R, ...]; what comes back is all of them, [resamples, ...]. draw: M "rows" one by one, or
    at once the "counts" of how often each is drawn, which needs less memory for many rows. Both
    give the same distribution from other random numbers.
    """
    rows, rng = len(parts_MC), np.random.default_rng(seed)
    if draw == "rows":
        picks_RM = rng.integers(rows, size=(resamples, rows))
        return statistic(parts_MC[picks_RM].sum(axis=1))
    even_M = np.full(rows, 1 / rows)
    sizes = np.diff([*range(0, resamples, CHUNK), resamples])
    counts = (rng.multinomial(rows, even_M, size) for size in sizes)
    return np.concatenate([statistic(counts_RM @ parts_MC) for counts_RM in counts])
