"""Intervals against their definitions and simulated coverage."""

import numpy as np
import pytest

from drlib.evals.metrics import (
    bootstrap_difference,
    bootstrap_mean,
    percentile_interval,
    resample,
    wilson_interval,
)


def test_wilson_solves_its_defining_equation():
    # both ends solve |p - share| = z sqrt(p (1 - p) / n)
    for correct, n in [(1, 4), (37, 50), (499, 500)]:
        for end in wilson_interval(correct, n):
            gap = abs(end - correct / n)
            assert gap == pytest.approx(1.96 * np.sqrt(end * (1 - end) / n), rel=1e-9)


def test_wilson_at_the_edges():
    low, high = wilson_interval(0, 10)
    assert low == 0 and high == pytest.approx(1.96**2 / (10 + 1.96**2))
    assert wilson_interval(10, 10) == (pytest.approx(1 - high), 1.0)
    narrow, wide = wilson_interval(500, 1000), wilson_interval(5, 10)
    assert wide[0] < narrow[0] < 0.5 < narrow[1] < wide[1]


def test_wilson_covers_what_it_promises():
    rng, p, n = np.random.default_rng(0), 0.08, 40
    ends = np.array([wilson_interval(c, n) for c in range(n + 1)])[rng.binomial(n, p, 4000)]
    coverage = np.mean((ends[:, 0] <= p) & (p <= ends[:, 1]))
    assert 0.92 < coverage < 0.99


def test_bootstrap_mean_weighs_questions_equally_and_ignores_order():
    values = {"a": [1, 1, 1, 1, 1, 1], "b": [0], "c": [0, 1]}
    mean, low, high = bootstrap_mean(values, seed=3)
    assert mean == pytest.approx(0.5) and low <= mean <= high
    reordered = dict(reversed(values.items()))
    assert bootstrap_mean(reordered, seed=3) == (mean, low, high)
    assert bootstrap_mean({"a": [0.25], "b": [0.25]}, seed=0) == (0.25, 0.25, 0.25)


def test_bootstrap_resamples_questions_not_answers():
    rng = np.random.default_rng(0)
    answers = {f"q{i}": [float(rng.random() < 0.5)] * 50 for i in range(40)}  # copies: no news
    single = {question: values[:1] for question, values in answers.items()}
    assert bootstrap_mean(answers, seed=1) == bootstrap_mean(single, seed=1)
    mean, low, high = bootstrap_mean(answers, seed=1)
    standard_error = np.sqrt(mean * (1 - mean) / 40)
    assert high - low == pytest.approx(2 * 1.96 * standard_error, rel=0.15)


def test_a_paired_difference_is_sharper_than_two_intervals():
    rng = np.random.default_rng(1)
    hard = rng.random(100)
    a = {f"q{i}": [h + 0.05] for i, h in enumerate(hard)}
    b = {f"q{i}": [h] for i, h in enumerate(hard)}
    assert bootstrap_difference(a, b, seed=0) == pytest.approx((0.05, 0.05, 0.05))
    mean, low, high = bootstrap_difference(b, a, seed=0)
    assert mean == pytest.approx(-0.05)
    assert bootstrap_mean(a, seed=0)[1] < bootstrap_mean(b, seed=0)[2]  # unpaired, they overlap


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: wilson_interval(0, 0), "n=0"),
        (lambda: wilson_interval(5, 4), "correct=5"),
        (lambda: bootstrap_mean({}, seed=0), "no questions"),
        (lambda: bootstrap_mean({"q": []}, seed=0), "'q'"),
        (lambda: bootstrap_mean({"q": [float("nan")]}, seed=0), "'q'"),
        (lambda: bootstrap_difference({"q": [1]}, {"r": [1]}, seed=0), "'q' is in one only"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("draw", ["rows", "counts"])
def test_resampled_sums_have_the_mean_and_the_spread_of_the_rows(draw):
    rows_MC = np.random.default_rng(2).random((50, 2))
    sums_RC = resample(rows_MC, lambda sums: sums, 0, 4000, draw=draw)
    assert sums_RC.shape == (4000, 2)
    spread_C = rows_MC.std(axis=0) * np.sqrt(50)
    assert np.abs(sums_RC.mean(axis=0) - rows_MC.sum(axis=0)).max() < 4 * spread_C.max() / 60
    assert sums_RC.std(axis=0) == pytest.approx(spread_C, rel=0.05)
    correlation = np.corrcoef(sums_RC.T)[0, 1]  # rows are drawn as a whole
    assert correlation == pytest.approx(np.corrcoef(rows_MC.T)[0, 1], abs=0.06)


def test_a_draw_without_a_value_does_not_count():
    errors_and_calls = np.array([[0.0, 0.0], [1.0, 2.0]])  # some draws hold no call at all

    def rate(sums_RC):
        with np.errstate(invalid="ignore"):
            return sums_RC[:, 0] / sums_RC[:, 1]

    assert percentile_interval(errors_and_calls, rate, seed=0) == (0.5, 0.5, 0.5)
