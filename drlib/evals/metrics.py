"""95% intervals of accuracies, of their differences and of ratios, over seeds and questions.

Two things were drawn at random before an accuracy was measured: the training (its seed) and the
questions. Both would come out otherwise next time, so an interval must hold both. Values lie in a
matrix [S seeds, Q questions], one value for each pair; all seeds answer the same questions, and two
systems are compared pair by pair, which is far sharper than two separate intervals.

With three seeds a bootstrap that resamples seeds and questions is much too narrow: in simulations
with 400 questions of eight samples its 95% intervals held the truth in 97, 92, 85 and 77% of all
runs, for a standard deviation between seeds of 0, 2, 4 and 8 points. `half_width` takes Student's t
over the seeds instead, and there the intervals of shares hold it in 98, 97, 96 and 96% (with 200
questions answered once: 97, 97, 97 and 95%; shares of 2 and 4%: 96 to 98%). How that is simulated
stands in `tests/test_evals_intervals.py`. The price is width: with two degrees of freedom t is 4.3,
so three seeds that differ say little, and the interval says so.

With one seed an interval is over questions alone, and whoever prints it has to say that.
Left out: tests of hypotheses (an interval says more), corrections for many comparisons.
"""

import math
from collections.abc import Callable

import numpy as np

from drlib.validation import require

Interval = tuple[float, float, float]  # estimate, low, high
Statistic = Callable[[np.ndarray], np.ndarray]  # sums [R, C] to values [R, ...]
RESAMPLES = 2000
COUNTS_AT_A_TIME = 100  # draws of counts at a time: they and what comes of them are held in memory


def wilson_interval(correct: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a proportion of n independent answers (1927): honest
    near 0 and 1, where the usual p +- z sqrt(p(1-p)/n) leaves [0, 1] or has no width."""
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

# 97.5% points of Student's t for 1 to 10 degrees of freedom; above, an expansion is as exact
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def student(freedom: int) -> float:
    """The 97.5% point of Student's t with `freedom` degrees of freedom, to within 0.003."""
    if freedom <= len(STUDENT):
        return STUDENT[freedom - 1]
    z = 1.959964
    first = (z**3 + z) / (4 * freedom)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return z + first + second


def half_width(values_SQ: np.ndarray) -> float:
    """Half the width of the 95% interval of a mean over S seeds and Q questions.

    Two parts, added as squares. Seeds: Student's t interval of the S seeds' means. Questions: what
    their difficulty, the same for every seed, adds because other ones might have been asked; it is
    the variance of the questions' means beyond what the answers' own noise explains. Infinite for
    one question, which says nothing about others. With one seed there is no first part, and the
    noise cannot be told from the difficulty: the second part holds both.
    """
    seeds, questions = values_SQ.shape
    if questions == 1:
        return math.inf
    question_means_Q = values_SQ.mean(axis=0)
    from_seeds = noise = 0.0
    if seeds > 1:
        seed_means_S = values_SQ.mean(axis=1)
        from_seeds = student(seeds - 1) * seed_means_S.std(ddof=1) / math.sqrt(seeds)
        rest_SQ = values_SQ - seed_means_S[:, None] - question_means_Q + values_SQ.mean()
        noise = (rest_SQ**2).sum() / ((seeds - 1) * (questions - 1))
    difficulty = max(0.0, question_means_Q.var(ddof=1) - noise / seeds)
    from_questions = student(questions - 1) * math.sqrt(difficulty / questions)
    return math.hypot(from_seeds, from_questions)


def share_interval(scores_SQ: np.ndarray) -> Interval:
    """The mean of scores in 0..1, such as shares of right answers, with an interval inside 0..1.

    ValueError: not a matrix, an empty one, or values that are not finite.
    """
    scores_SQ = _checked(scores_SQ)
    return _inside_0_and_1(float(scores_SQ.mean()), half_width(scores_SQ), scores_SQ.shape[1])


def difference_interval(differences_SQ: np.ndarray) -> Interval:
    """The mean of differences in -1..1 (two systems at the same seed and question).

    Where all differences are equal, the interval allows for as many other questions as Wilson's
    does that none of Q was seen to be. ValueError: not a matrix, an empty one, or values that are
    not finite.
    """
    differences_SQ = _checked(differences_SQ)
    mean = float(differences_SQ.mean())
    half = half_width(differences_SQ)
    if np.ptp(differences_SQ) == 0:
        _, half = wilson_interval(0, differences_SQ.shape[1])
    return mean, max(-1.0, mean - half), min(1.0, mean + half)


def rate_interval(parts_SQ: np.ndarray, wholes_SQ: np.ndarray) -> Interval:
    """The sum of parts over the sum of wholes, such as failed calls of all calls, inside 0..1.

    Questions with more calls weigh more. ValueError: not a matrix, an empty one, values that are
    not finite, or wholes that sum to 0.
    """
    rate, influence_SQ = _rate(_checked(parts_SQ), _checked(wholes_SQ))
    return _inside_0_and_1(rate, half_width(influence_SQ), influence_SQ.shape[1])


def relative_rate_interval(
    parts_SQ: np.ndarray,
    wholes_SQ: np.ndarray,
    over_parts_SQ: np.ndarray,
    over_wholes_SQ: np.ndarray,
) -> Interval:
    """One rate divided by another's, pair by pair; the interval is even on a logarithmic scale.

    Where the first rate is 0 the interval ends where its own does, over the second rate.
    ValueError: not matrices, empty ones, values that are not finite, wholes that sum to 0, or a
    second rate of 0.
    """
    rate, influence_SQ = _rate(_checked(parts_SQ), _checked(wholes_SQ))
    over, over_influence_SQ = _rate(_checked(over_parts_SQ), _checked(over_wholes_SQ))
    require(over > 0, "nothing can be compared with a rate of 0")
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
    """A rate, and how far each pair pulls it away: values whose mean has the rate's spread."""
    require(wholes_SQ.sum() > 0, "the wholes sum to 0: there is nothing to take a rate of")
    rate = float(parts_SQ.sum() / wholes_SQ.sum())
    return rate, (parts_SQ - rate * wholes_SQ) / wholes_SQ.mean()


def _inside_0_and_1(share: float, half: float, questions: int) -> Interval:
    """Wilson's interval for a share whose plain interval would be share +- half.

    Both ends solve |end - share| = half sqrt(end (1 - end) / (share (1 - share))). At 0 and 1,
    where nothing was seen to vary, it is that of so many questions.
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
    """The bootstrap: a statistic of the sums of M rows drawn with replacement, `resamples` times.

    parts_MC: the rows, what each trajectory adds to C sums. statistic: sums [R, C] to values
    [R, ...]; what comes back is all of them, [resamples, ...]. What is drawn is how often each row
    counts, which needs less memory than the rows.
    """
    rows = len(parts_MC)
    rng = np.random.default_rng(seed)
    even_M = np.full(rows, 1 / rows)
    sizes = np.diff([*range(0, resamples, COUNTS_AT_A_TIME), resamples])
    counts = (rng.multinomial(rows, even_M, size) for size in sizes)
    return np.concatenate([statistic(counts_RM @ parts_MC) for counts_RM in counts])
