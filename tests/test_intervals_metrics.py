"""Wilson's interval and the bootstrap against their definitions, and simulated coverage.

Run: python -m pytest tests/test_intervals_metrics.py
"""

import numpy as np
import pytest

from drlib.intervals import resample, wilson_interval


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


def test_wilson_has_nominal_coverage():
    rng = np.random.default_rng(0)
    p = 0.08
    n = 40
    ends = np.array([wilson_interval(c, n) for c in range(n + 1)])[rng.binomial(n, p, 4000)]
    coverage = np.mean((ends[:, 0] <= p) & (p <= ends[:, 1]))
    assert 0.92 < coverage < 0.99


def test_invalid_input_is_rejected():
    with pytest.raises(ValueError, match="n=0"):
        wilson_interval(0, 0)
    with pytest.raises(ValueError, match="correct=5"):
        wilson_interval(5, 4)


def test_resampled_sums_have_the_mean_and_spread_of_rows():
    rows_MC = np.random.default_rng(2).random((50, 2))
    sums_RC = resample(rows_MC, lambda sums: sums, 0, 4000)
    assert sums_RC.shape == (4000, 2)
    spread_C = rows_MC.std(axis=0) * np.sqrt(50)
    assert np.abs(sums_RC.mean(axis=0) - rows_MC.sum(axis=0)).max() < 4 * spread_C.max() / 60
    assert sums_RC.std(axis=0) == pytest.approx(spread_C, rel=0.05)
    correlation = np.corrcoef(sums_RC.T)[0, 1]  # rows are drawn as a whole
    assert correlation == pytest.approx(np.corrcoef(rows_MC.T)[0, 1], abs=0.06)
