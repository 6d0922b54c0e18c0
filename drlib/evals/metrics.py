"""95% intervals of accuracies and of their differences.

Answers to one question are not independent, so the bootstraps resample questions, never answers;
two systems asked the same questions are compared pair by pair, which is far sharper than two
separate intervals. The same data give the same interval, in whatever order they come.

Left out: tests of hypotheses (an interval says more), corrections for many comparisons, intervals
over training seeds (there are three).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from drlib.checks import require

Interval = tuple[float, float, float]  # estimate, low, high
Scores = Mapping[str, Sequence[float]]  # the answers' scores of each question, at least one each
RESAMPLES = 2000


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
    means_Q = np.array([means[question] for question in sorted(means)])
    picks = np.random.default_rng(seed).integers(len(means_Q), size=(RESAMPLES, len(means_Q)))
    low, high = np.quantile(means_Q[picks].mean(axis=1), [0.025, 0.975])
    return float(means_Q.mean()), float(low), float(high)
