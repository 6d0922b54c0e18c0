"""Estimators of accuracy and the intervals that go with them.

Answers to one question are not independent, so the bootstraps resample questions, never answers;
two systems asked the same questions are compared pair by pair, which is far sharper than two
separate intervals. Everything is exact or seeded: the same data give the same interval, in
whatever order they come.

Left out: tests of hypotheses (an interval says more), corrections for many comparisons.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

__all__ = [
    "bootstrap_difference",
    "bootstrap_mean",
    "pass_at_k",
    "student_interval",
    "wilson_interval",
]

Interval = tuple[float, float, float]  # estimate, low, high


def wilson_interval(correct: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a proportion of n independent answers (1927).

    Honest near 0 and 1, where the usual p +- z sqrt(p(1-p)/n) leaves [0, 1] or has no width.
    Raises ValueError when n < 1 or correct is not in 0..n.
    """
    if n < 1 or not 0 <= correct <= n:
        raise ValueError(f"need n >= 1 and 0 <= correct <= n, got correct={correct}, n={n}")
    share = correct / n
    centre = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low = 0.0 if correct == 0 else max(0.0, (centre - half) / scale)
    high = 1.0 if correct == n else min(1.0, (centre + half) / scale)
    return low, high


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased chance that one of k answers is right, from n answers of which c are right.

    1 - C(n-c, k) / C(n, k) (Codex, arXiv 2107.03374, eq. 1). Raises ValueError unless
    1 <= k <= n and 0 <= c <= n.
    """
    if not 1 <= k <= n or not 0 <= c <= n:
        raise ValueError(f"need 1 <= k <= n and 0 <= c <= n, got n={n}, c={c}, k={k}")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def bootstrap_mean(
    values_by_question: Mapping[str, Sequence[float]],
    seed: int,
    n: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Mean of the questions' means, with the percentile interval of n resamples of the questions.

    Each question weighs the same however many answers it has.

    Args:
        values_by_question: the answers' scores of each question, at least one each.
        seed: of the resampling. n: resamples. confidence: of the interval.

    Raises:
        ValueError: no questions, a question without values, a value not finite, n or confidence
            out of range.
    """
    means_Q = np.array([mean for _, mean in sorted(_question_means(values_by_question).items())])
    return _bootstrap(means_Q, seed, n, confidence)


def bootstrap_difference(
    a_by_question: Mapping[str, Sequence[float]],
    b_by_question: Mapping[str, Sequence[float]],
    seed: int,
    n: int = 2000,
    confidence: float = 0.95,
) -> Interval:
    """Mean of a - b over the questions, with its interval; both resampled together, by question.

    Arguments and errors as `bootstrap_mean`; also ValueError when the questions differ.
    """
    a_means, b_means = _question_means(a_by_question), _question_means(b_by_question)
    if a_means.keys() != b_means.keys():
        odd = sorted(a_means.keys() ^ b_means.keys())[0]
        raise ValueError(f"a paired difference needs the same questions; {odd!r} is in one only")
    gaps_Q = np.array([a_means[question] - b_means[question] for question in sorted(a_means)])
    return _bootstrap(gaps_Q, seed, n, confidence)


def student_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of independent runs (training seeds, say) and Student's t interval.

    For the few values that seeds give; it assumes that they scatter like a normal distribution.
    Raises ValueError with fewer than two values or one not finite.
    """
    runs = np.asarray(values, dtype=float)
    if runs.ndim != 1 or len(runs) < 2 or not np.isfinite(runs).all():
        raise ValueError(f"need at least two finite values, got {list(values)}")
    _check_confidence(confidence)
    half = _student_quantile(confidence, len(runs) - 1) * runs.std(ddof=1) / math.sqrt(len(runs))
    mean = float(runs.mean())
    return mean, mean - half, mean + half


def _question_means(values_by_question: Mapping[str, Sequence[float]]) -> dict[str, float]:
    if not values_by_question:
        raise ValueError("there are no questions to average over")
    means = {}
    for question, values in values_by_question.items():
        scores = np.asarray(values, dtype=float)
        if scores.ndim != 1 or not len(scores) or not np.isfinite(scores).all():
            raise ValueError(f"question {question!r} needs finite scores, got {values!r}")
        means[question] = math.fsum(scores) / len(scores)
    return means


def _bootstrap(means_Q: np.ndarray, seed: int, n: int, confidence: float) -> Interval:
    if n < 1:
        raise ValueError(f"the number of resamples must be at least 1, got {n}")
    _check_confidence(confidence)
    rng, questions = np.random.default_rng(seed), len(means_Q)
    resampled = np.empty(n)
    rows = max(1, 4_000_000 // questions)  # bounds the index matrix to some 32 MB
    for start in range(0, n, rows):
        size = (min(rows, n - start), questions)
        resampled[start : start + rows] = means_Q[rng.integers(questions, size=size)].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return float(means_Q.mean()), float(low), float(high)


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")


def _student_quantile(confidence: float, df: int) -> float:
    """t with P(|T| <= t) = confidence, by bisection."""
    low, high = 0.0, 1.0
    while _student_central(high, df) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_central(middle, df) < confidence else (low, middle)
    return high


def _student_central(t: float, df: int) -> float:
    """P(|T| <= t) for integer degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    if df == 1:
        return 2 * angle / math.pi
    odd = df % 2
    term = total = cosine if odd else 1.0
    for k in range(2 + odd, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
