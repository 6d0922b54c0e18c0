"""Loss changes of token classes against matched partners.

Run: python -m pytest tests/test_analysis_token_classes.py
"""

from dataclasses import replace

import numpy as np
import pytest
from rl_examples import a_trajectory

from drlib.analysis.pseudo_gradient import (
    RESPONSE,
    LossCurve,
    token_class_deltas,
)


def a_curve(n=30, starts=(0, 12), losses=None):
    """Return a curve with a point after each token; by default the delta of token t is t."""
    losses = np.cumsum(np.arange(n)) if losses is None else losses
    ends = np.arange(1, n + 1)
    return LossCurve(ends, np.asarray(losses, float), np.isin(ends - 1, starts), n, 1)


def test_partners_are_distinct_tokens_of_the_same_third():
    curve = a_curve()
    t = a_trajectory(tokens=29)
    mask = np.isin(np.arange(30), [2, 5, 12, 13, 25, 26])  # 12 was not sampled
    for seed in range(20):
        found = token_class_deltas(curve, t, {"wait": mask}, seed)
        deltas, matched = found["wait"]
        assert deltas.tolist() == [2, 5, 13, 25, 26]
        assert (matched // 10).tolist() == [0, 0, 1, 2, 2]
        assert len({*matched}) == 5 and not {*matched} & {2, 5, 13, 25, 26, 0, 12}
        assert found[RESPONSE][0].tolist() == [12] and 10 <= found[RESPONSE][1] < 20
    drawn = {tuple(token_class_deltas(curve, t, {"wait": mask}, s)["wait"][1]) for s in range(20)}
    assert len(drawn) > 15
    again = token_class_deltas(curve, t, {"wait": mask}, 19)["wait"][1]
    assert again.tolist() == matched.tolist()


def test_planted_effects_differ_from_their_partners():
    rng = np.random.default_rng(0)
    mask = np.isin(np.arange(300), range(7, 300, 20))
    deltas = rng.normal(0, 0.1, 300) - 2.0 * mask
    curve = a_curve(300, losses=np.cumsum(deltas))
    found, matched = token_class_deltas(curve, a_trajectory(tokens=299), {"wait": mask}, 0)["wait"]
    assert abs(found.mean() + 2) < 0.1 and abs(matched.mean()) < 0.1


def test_missing_partner_is_nan():
    mask = np.arange(30) < 8  # of the first third, two are left and one is a start
    curve = a_curve(starts=(8,))
    found, matched = token_class_deltas(curve, a_trajectory(tokens=29), {"x": mask}, 0)["x"]
    assert len(found) == len(matched) == 8
    assert np.isnan(matched).sum() == 7 and np.nansum(matched) == 9


def test_mismatched_curves_and_masks_are_rejected():
    curve = a_curve()
    t = a_trajectory(tokens=29)
    for wrong in (replace(curve, stride=2), a_curve(31)):
        with pytest.raises(ValueError, match="need the curve of trajectory r-0 with stride=1"):
            token_class_deltas(wrong, t, {}, 0)
    for name, size in (("x", 29), (RESPONSE, 30)):
        with pytest.raises(ValueError, match=f"class '{name}' needs"):
            token_class_deltas(curve, t, {name: np.zeros(size, bool)}, 0)
