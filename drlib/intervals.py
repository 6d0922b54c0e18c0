"""95% intervals of accuracies, differences and ratios over seeds and questions.

Values are in a matrix [S seeds, Q questions]; all seeds answer the same questions, and two systems
are compared pair by pair. Both seeds and questions are random, so an interval must cover both.

A bootstrap over seeds and questions is too narrow for three seeds: in simulations with 400
questions of eight samples its 95% intervals covered the truth in 97, 92, 85 and 77% of runs, for a
standard deviation between seeds of 0, 2, 4 and 8 points. `half_width` uses Student's t over seeds
and covers it in 98, 97, 96 and 96% (tests/test_intervals.py). With two degrees of freedom t is 4.3,
so three seeds give wide intervals. With one seed the interval is over questions only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri, stdtrit

from drlib.validation import require

Interval = tuple[float, float, float]  # estimate, low, high
Statistic = Callable[[np.ndarray], np.ndarray]  # sums [R, C] to values [R, ...]
RESAMPLES = 2000
TINY = 1e-12  # levels of tests are not distinguished below it
COUNTS_AT_A_TIME = 100  # draws of counts at a time: they and what comes of them are held in memory


def wilson_interval(correct: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Return Wilson's score interval (low, high) of a proportion (1927).

    Unlike p +- z sqrt(p(1-p)/n) it stays inside [0, 1] and has a width at 0 and 1. Written out
    because scipy's `binomtest` accepts whole counts only.

    Args:
        correct: number of correct answers; may be fractional (means over samples).
        n: number of independent answers.
        z: normal quantile; 1.96 for 95%.

    Raises:
        ValueError: n below 1 or `correct` outside 0..n.
    """
    sensible = n >= 1 and 0 <= correct <= n
    require(sensible, f"need n >= 1 and 0 <= correct <= n, got correct={correct}, n={n}")
    share = correct / n
    scale = 1 + z * z / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    low = 0.0 if correct == 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if correct == n else min(1.0, (centre + half) / scale)
    return low, high


# ---------------------------------------------------------------------------------------------
# over seeds and questions


def t_quantile(freedom: int, probability: float = 0.975) -> float:
    """Return the quantile of Student's t distribution with `freedom` degrees of freedom."""
    return float(stdtrit(freedom, probability))


@dataclass(frozen=True)
class IntervalParts:
    """Mean of values of S seeds and Q questions, and the two parts of its standard error.

    Attributes:
        mean: of all values.
        from_seeds: standard error of the seeds' means; 0 for one seed.
        from_questions: standard error that the questions' difficulty adds; infinite for one
            question.
    """

    mean: float
    from_seeds: float
    from_questions: float
    seeds: int
    questions: int

    def half_width(self, confidence: float = 0.95) -> float:
        """Return half the width of the interval of the mean, see `half_width`."""
        if math.isinf(self.from_questions):
            return math.inf
        probability = (1 + confidence) / 2
        from_seeds = 0.0
        if self.seeds > 1:
            from_seeds = t_quantile(self.seeds - 1, probability) * self.from_seeds
        from_questions = t_quantile(self.questions - 1, probability) * self.from_questions
        return math.hypot(from_seeds, from_questions)

    def level(self, distance: float) -> float:
        """Return 1 - confidence of the interval whose half width is `distance`; 0 without error."""
        if distance <= 0:
            return 1.0
        if self.half_width(1 - TINY) <= distance:
            return TINY if self.from_seeds or self.from_questions else 0.0
        if self.half_width(TINY) >= distance:
            return 1.0
        found = brentq(
            lambda log: self.half_width(1 - math.exp(log)) - distance,
            math.log(TINY),
            math.log1p(-TINY),
            xtol=1e-12,
        )
        return math.exp(found)


def interval_parts(values_SQ: np.ndarray) -> IntervalParts:
    """Return the parts of the interval of a mean over S seeds and Q questions."""
    seeds, questions = values_SQ.shape
    mean = float(values_SQ.mean())
    if questions == 1:
        return IntervalParts(mean, 0.0, math.inf, seeds, questions)
    question_means_Q = values_SQ.mean(axis=0)
    from_seeds = noise = 0.0
    if seeds > 1:
        seed_means_S = values_SQ.mean(axis=1)
        from_seeds = float(seed_means_S.std(ddof=1)) / math.sqrt(seeds)
        rest_SQ = values_SQ - seed_means_S[:, None] - question_means_Q + values_SQ.mean()
        noise = (rest_SQ**2).sum() / ((seeds - 1) * (questions - 1))
    difficulty = max(0.0, question_means_Q.var(ddof=1) - noise / seeds)
    return IntervalParts(mean, from_seeds, math.sqrt(difficulty / questions), seeds, questions)


def half_width(values_SQ: np.ndarray, confidence: float = 0.95) -> float:
    """Return half the width of the interval of a mean over S seeds and Q questions.

    Two parts, added as squares: Student's t interval of the seeds' means, and the part of the
    questions' difficulty, which all seeds share: the variance of the questions' means beyond the
    noise of the answers. Infinite for one question. With one seed the first part is missing, and
    noise cannot be separated from difficulty, so the second part contains both.
    """
    return interval_parts(values_SQ).half_width(confidence)


def share_interval(scores_SQ: np.ndarray) -> Interval:
    """Return the mean of scores in 0..1 with an interval inside 0..1.

    Raises:
        ValueError: not a matrix, empty, or values that are not finite.
    """
    scores_SQ = _checked(scores_SQ)
    return _inside_0_and_1(float(scores_SQ.mean()), half_width(scores_SQ), scores_SQ.shape[1])


def difference_interval(differences_SQ: np.ndarray, confidence: float = 0.95) -> Interval:
    """Return the mean of paired differences in -1..1 with its interval.

    If all differences are equal, the half width is Wilson's upper limit for 0 of Q questions.

    Args:
        confidence: above 0.95 for one of several looks (`drlib.experiments.designs`).

    Raises:
        ValueError: not a matrix, empty, or values that are not finite.
    """
    differences_SQ = _checked(differences_SQ)
    mean = float(differences_SQ.mean())
    half = half_width(differences_SQ, confidence)
    if np.ptp(differences_SQ) == 0:
        z = max(1.96, float(ndtri((1 + confidence) / 2)))  # 1.96 for 95%
        _, half = wilson_interval(0, differences_SQ.shape[1], z)
    return mean, max(-1.0, mean - half), min(1.0, mean + half)


def rate_interval(parts_SQ: np.ndarray, wholes_SQ: np.ndarray) -> Interval:
    """Return the sum of parts over the sum of wholes (failed calls of all calls) with its interval.

    Raises:
        ValueError: not matrices, empty, not finite, or wholes that sum to 0.
    """
    rate, influence_SQ = _rate(_checked(parts_SQ), _checked(wholes_SQ))
    return _inside_0_and_1(rate, half_width(influence_SQ), influence_SQ.shape[1])


def relative_rate_interval(
    parts_SQ: np.ndarray,
    wholes_SQ: np.ndarray,
    over_parts_SQ: np.ndarray,
    over_wholes_SQ: np.ndarray,
) -> Interval:
    """Return the ratio of two paired rates; the interval is symmetric on a logarithmic scale.

    If the first rate is 0, the upper end is that of its own interval over the second rate.

    Raises:
        ValueError: as `rate_interval`, or the second rate is 0.
    """
    rate, influence_SQ = _rate(_checked(parts_SQ), _checked(wholes_SQ))
    over, over_influence_SQ = _rate(_checked(over_parts_SQ), _checked(over_wholes_SQ))
    require(over > 0, "the second rate is 0: the ratio is undefined")
    if rate == 0:
        _, _, high = rate_interval(parts_SQ, wholes_SQ)
        return 0.0, 0.0, high / over
    ratio = rate / over
    factor = math.exp(half_width(influence_SQ / rate - over_influence_SQ / over))
    return ratio, ratio / factor, ratio * factor


def _checked(values_SQ: np.ndarray) -> np.ndarray:
    values_SQ = np.asarray(values_SQ, dtype=float)
    usable = values_SQ.ndim == 2 and values_SQ.size > 0 and np.isfinite(values_SQ).all()
    require(bool(usable), f"need finite values [seeds, questions], got shape {values_SQ.shape}")
    return values_SQ


def _rate(parts_SQ: np.ndarray, wholes_SQ: np.ndarray) -> tuple[float, np.ndarray]:
    """Return a rate and its influence values [S, Q], whose mean has the spread of the rate."""
    require(wholes_SQ.sum() > 0, "the wholes sum to 0: the rate is undefined")
    rate = float(parts_SQ.sum() / wholes_SQ.sum())
    return rate, (parts_SQ - rate * wholes_SQ) / wholes_SQ.mean()


def _inside_0_and_1(share: float, half: float, questions: int) -> Interval:
    """Return Wilson's interval for a share whose plain interval would be share +- half.

    Both ends solve |end - share| = half sqrt(end (1 - end) / (share (1 - share))). At 0 and 1 it is
    Wilson's interval for that number of questions.
    """
    if share in (0.0, 1.0):
        return share, *wilson_interval(round(share * questions), questions)
    if math.isinf(half):
        return share, 0.0, 1.0
    scale = half**2 / (share * (1 - share))
    centre = share + scale / 2
    reach = math.sqrt(half**2 + scale**2 / 4)
    return share, (centre - reach) / (1 + scale), (centre + reach) / (1 + scale)


# ---------------------------------------------------------------------------------------------
# of any statistic


def resample(
    parts_MC: np.ndarray, statistic: Statistic, seed: int, resamples: int = RESAMPLES
) -> np.ndarray:
    """Return a bootstrap distribution [resamples, ...] of a statistic of column sums.

    Args:
        parts_MC: contributions of M trajectories to C sums.
        statistic: function of sums [R, C] to values [R, ...].

    Multinomial counts of the rows are drawn instead of rows, which needs less memory.
    """
    rows = len(parts_MC)
    rng = np.random.default_rng(seed)
    even_M = np.full(rows, 1 / rows)
    sizes = np.diff([*range(0, resamples, COUNTS_AT_A_TIME), resamples])
    counts = (rng.multinomial(rows, even_M, size) for size in sizes)
    return np.concatenate([statistic(counts_RM @ parts_MC) for counts_RM in counts])
