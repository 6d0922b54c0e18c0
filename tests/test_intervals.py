"""Intervals over seeds and questions: cases computed by hand, and simulated coverage.

Run: python -m pytest tests/test_intervals.py
"""

import numpy as np
import pytest

from drlib.intervals import (
    difference_interval,
    half_width,
    rate_interval,
    relative_rate_interval,
    share_interval,
    t_quantile,
    wilson_interval,
)


def test_t_quantiles_match_tables():
    table = {
        1: 12.706204736432095,
        2: 4.302652729911275,
        10: 2.228,
        11: 2.201,
        15: 2.131,
        30: 2.042,
        120: 1.980,
    }
    for freedom, value in table.items():
        assert t_quantile(freedom) == pytest.approx(value, abs=0.003)


def test_variance_of_seeds_only_gives_a_t_interval():
    """Three seeds with means 0.2, 0.4 and 0.6, and questions that are all alike."""
    values_SQ = np.repeat([[0.2], [0.4], [0.6]], 50, axis=1)
    # standard deviation of the three: 0.2; t with two degrees of freedom: 4.302652729911275
    assert half_width(values_SQ) == pytest.approx(4.302652729911275 * 0.2 / np.sqrt(3), rel=1e-6)


def test_variance_of_questions_only_gives_a_t_interval():
    """Five questions that every seed answers equally: another seed adds no information."""
    values_SQ = np.tile([0.0, 0.0, 1.0, 1.0, 0.5], (3, 1))
    half = 2.7764451051977987 * np.sqrt(0.25) / np.sqrt(5)  # their variance: (4 x 0.25) / 4
    assert half_width(values_SQ) == pytest.approx(half, rel=1e-6)
    assert half_width(values_SQ[:1]) == pytest.approx(half, rel=1e-6)  # one seed gives the same


def test_both_variance_components_add():
    """Two seeds with means 0.5 and 0.75; two questions with means 0.875 and 0.375."""
    values_SQ = np.array([[1.0, 0.0], [0.75, 0.75]])
    from_seeds = 12.706204736432095 * np.sqrt(0.03125) / np.sqrt(2)  # variance: 2 x 0.125^2
    # the residual is +-0.25 in each of the four cells: a noise variance of 0.25, half of it in
    # a question's mean; that is the whole variance of the questions, 2 x 0.25^2
    assert half_width(values_SQ) == pytest.approx(from_seeds, rel=1e-6)
    harder_SQ = values_SQ - [0.0, 2.0]  # now their means are 2.5 apart
    from_questions = 12.706204736432095 * np.sqrt((2 * 1.25**2 - 0.125) / 2)
    assert half_width(harder_SQ) == pytest.approx(np.hypot(from_seeds, from_questions), rel=1e-6)


def test_share_of_one_seed_has_wilsons_interval():
    scores_SQ = np.array([[1.0] * 3 + [0.0] * 97])
    share, low, high = share_interval(scores_SQ)
    assert share == 0.03
    assert (low, high) == pytest.approx(wilson_interval(3, 100), abs=0.003)


def test_share_interval_stays_within_bounds():
    scores_SQ = np.array([[0.0, 0.1, 0.1], [0.1, 0.0, 0.3]])
    share, low, high = share_interval(scores_SQ)
    assert 0 < low < share < high < 1
    for end in (low, high):
        width_factor = np.sqrt(end * (1 - end) / (share * (1 - share)))
        assert abs(end - share) == pytest.approx(half_width(scores_SQ) * width_factor)


def test_share_of_zero_or_one_uses_wilsons_interval():
    assert share_interval(np.zeros((3, 40))) == (0.0, *wilson_interval(0, 40))  # 40, not 120
    assert share_interval(np.ones((3, 40))) == (1.0, *wilson_interval(40, 40))


def test_one_question_gives_the_full_interval():
    assert share_interval(np.array([[0.25], [0.75]])) == (0.5, 0.0, 1.0)
    assert difference_interval(np.array([[0.25], [0.75]])) == (0.5, -1.0, 1.0)


def test_difference_is_paired_and_has_a_width():
    rng = np.random.default_rng(0)
    hard_SQ = np.tile(rng.random(200), (3, 1))
    better_SQ = hard_SQ + rng.choice([0.0, 0.1], (3, 200))
    mean, low, high = difference_interval(better_SQ - hard_SQ)
    assert 0.03 < low < mean < high < 0.07  # the questions' difficulty, up to 1, cancels
    most = wilson_interval(0, 40)[1]
    assert difference_interval(np.zeros((3, 40))) == (0.0, -most, most)


def test_rate_is_weighted_by_calls():
    failed_SQ, calls_SQ = np.array([[1.0, 0.0, 5.0]]), np.array([[2.0, 8.0, 10.0]])
    rate, low, high = rate_interval(failed_SQ, calls_SQ)
    assert rate == 6 / 20 and 0 < low < rate < high < 1
    # with equal numbers of calls it equals the interval of the shares
    shares_SQ = np.array([[0.1, 0.4, 0.1], [0.2, 0.6, 0.3]])
    equal = rate_interval(10 * shares_SQ, np.full((2, 3), 10.0))
    assert equal == pytest.approx(share_interval(shares_SQ))


def test_relative_rate_is_paired():
    failed_SQ = np.array([[1.0, 4.0, 1.0], [2.0, 6.0, 3.0]])
    calls_SQ = np.full((2, 3), 10.0)
    # half of the rate in every pair: exactly one half, whatever the variation between pairs
    half = relative_rate_interval(failed_SQ, 2 * calls_SQ, failed_SQ, calls_SQ)
    assert half == pytest.approx((0.5, 0.5, 0.5))
    ratio, low, high = relative_rate_interval(failed_SQ[::-1], calls_SQ, failed_SQ, calls_SQ)
    assert (ratio, low * high) == pytest.approx((1.0, 1.0)) and low < 0.95 < 1.05 < high
    none = relative_rate_interval(0 * failed_SQ, calls_SQ, failed_SQ, calls_SQ)
    assert none == pytest.approx((0.0, 0.0, wilson_interval(0, 3)[1] / (17 / 60)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: share_interval(np.zeros((3, 0))), r"shape \(3, 0\)"),
        (lambda: share_interval(np.zeros(3)), r"shape \(3,\)"),
        (lambda: difference_interval(np.array([[np.nan]])), "finite"),
        (lambda: rate_interval(np.zeros((1, 2)), np.zeros((1, 2))), "sum to 0"),
        (
            lambda: relative_rate_interval(*np.ones((2, 1, 2)), np.zeros((1, 2)), np.ones((1, 2))),
            "the second rate is 0",
        ),
    ],
)
def test_invalid_input_is_rejected(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---------------------------------------------------------------------------------------------
# coverage: seeds with different log-odds, questions that differ for all seeds, and noise

DRAWS = 1000
# name: questions, samples of each, mean log-odds, standard deviation of the seeds' log-odds; the
# comments state the resulting shares
CASES = {
    "seeds alike": (400, 8, 1.7, 0.0),  # 75% right
    "seeds 2 points apart": (400, 8, 1.7, 0.15),
    "seeds 4 points apart": (400, 8, 1.7, 0.3),
    "seeds 8 points apart": (400, 8, 1.7, 0.6),
    "asked once, seeds alike": (200, 1, 1.7, 0.0),
    "asked once, seeds 8 points apart": (200, 1, 1.7, 0.6),
    "rarely right, seeds 2 points apart": (400, 1, -4.2, 0.5),  # 4.6% right
}


def chances(rng, seeds, questions, level, apart):
    """Return the probability of a correct answer, [draws, seeds, questions]."""
    seed_D31 = apart * rng.normal(size=(DRAWS, seeds, 1))
    question_D1Q = 1.5 * rng.normal(size=(DRAWS, 1, questions))
    both_D3Q = 0.7 * rng.normal(size=(DRAWS, seeds, questions))
    return 1 / (1 + np.exp(-(level + seed_D31 + question_D1Q + both_D3Q)))


def truth(level, apart):
    """Return the expected share over all possible seeds and questions."""
    log_odds = np.random.default_rng(1).normal(
        level, np.sqrt(apart**2 + 1.5**2 + 0.7**2), 2_000_000
    )
    return (1 / (1 + np.exp(-log_odds))).mean()


@pytest.mark.parametrize("case", CASES)
def test_share_intervals_have_nominal_coverage(case):
    """95% within three points, with three seeds."""
    questions, samples, level, apart = CASES[case]
    rng = np.random.default_rng(0)
    scores = rng.binomial(samples, chances(rng, 3, questions, level, apart)) / samples
    intervals = np.array([share_interval(scores_SQ) for scores_SQ in scores])
    right = truth(level, apart)
    coverage = ((intervals[:, 1] <= right) & (right <= intervals[:, 2])).mean()
    assert 0.92 <= coverage <= 0.98, coverage


@pytest.mark.parametrize("apart", [0.0, 0.3, 0.6])
def test_difference_intervals_have_nominal_coverage(apart):
    """Two stages of three seeds each on the same questions; the seeds of a stage differ."""
    rng = np.random.default_rng(0)
    question_D1Q = 1.5 * rng.normal(size=(DRAWS, 1, 300))
    shares = []
    for level in (0.5, 1.5):
        seed_D31 = apart * rng.normal(size=(DRAWS, 3, 1))
        chance = 1 / (1 + np.exp(-(level + seed_D31 + question_D1Q)))
        shares.append(rng.binomial(8, chance) / 8)
    intervals = np.array([difference_interval(d_SQ) for d_SQ in shares[1] - shares[0]])
    log_odds = np.random.default_rng(1).normal(0, np.sqrt(apart**2 + 1.5**2), 2_000_000)
    gain = (1 / (1 + np.exp(-log_odds - 1.5)) - 1 / (1 + np.exp(-log_odds - 0.5))).mean()
    coverage = ((intervals[:, 1] <= gain) & (gain <= intervals[:, 2])).mean()
    assert 0.92 <= coverage <= 0.98, coverage


def test_bootstrap_of_three_seeds_is_too_narrow():
    """Resampling three seeds misses most of their variance, so the interval uses Student's t."""
    questions, samples, level, apart = CASES["seeds 8 points apart"]
    rng = np.random.default_rng(0)
    scores = rng.binomial(samples, chances(rng, 3, questions, level, apart)) / samples
    right = truth(level, apart)
    covered = []
    for scores_SQ in scores[:200]:
        seed_weights = rng.multinomial(3, [1 / 3] * 3, 400) / 3
        question_weights = rng.multinomial(questions, [1 / questions] * questions, 400) / questions
        means = ((seed_weights @ scores_SQ) * question_weights).sum(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        covered.append(low <= right <= high)
    assert np.mean(covered) < 0.85
