"""Lines between policies, reordered units, and plots of merged policies.

Run: python -m pytest tests/test_analysis_merging.py
"""

import matplotlib.pyplot as plt
import pytest
import torch

from drlib.analysis import merging
from drlib.models.moe import build_policy
from tests.loop_examples import flat
from tests.policy_examples import SMALL


@pytest.fixture(scope="module")
def policies():
    return [build_policy(SMALL, seed=seed, init="plain").eval() for seed in (1, 2)]


def test_interpolation_by_hand(policies):
    a, b = policies
    before = flat(a).clone()
    found = flat(merging.interpolate(a, b, 0.25))
    torch.testing.assert_close(found, 0.75 * flat(a) + 0.25 * flat(b))
    torch.testing.assert_close(flat(merging.interpolate(a, b, 2.0)), 2 * flat(b) - flat(a))
    assert torch.equal(flat(a), before)


def test_reordered_units_compute_the_same_function(policies):
    policy = policies[0]
    twin = merging.reorder_units(policy, seed=0)
    ids_BT = torch.randint(0, 64, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(twin(ids_BT).logits, policy(ids_BT).logits)
        middle = merging.interpolate(policy, twin, 0.5)(ids_BT).logits
    assert not torch.equal(flat(twin), flat(policy))
    assert not torch.allclose(middle, policy(ids_BT).logits, atol=1e-4)


def test_barrier_is_measured_from_the_straight_line():
    assert merging.measure_barrier([2.0, 1.0, 0.0]) == 0
    assert merging.measure_barrier([0.0, 1.0, 5.0, 3.0]) == pytest.approx(3.0)
    assert merging.measure_barrier([2.0, 0.0, 0.0]) == 0, "below the line is no barrier"


def test_plots_show_the_given_numbers():
    fig, axes = plt.subplots(1, 2)
    merging.plot_lines(axes[0], {"x": [3.0, 1.0, 2.0]})
    assert axes[0].lines[0].get_ydata().tolist() == [3, 1, 2]
    arms = {"a": [(0.5, 0.4, 0.7), (0.9, 0.8, 0.95)], "b": [(0.1, 0.0, 0.2), (0.2, 0.1, 0.3)]}
    merging.plot_arms(axes[1], arms, "t")
    assert [text.get_text() for text in axes[1].get_yticklabels()] == ["a", "b"]
    assert axes[1].containers[0].lines[0].get_xdata().tolist() == [50, 10]
    ends = axes[1].containers[0].lines[2][0].get_segments()[0][:, 0]
    assert ends.tolist() == pytest.approx([40, 70])
    bars = merging.plot_vectors({"v": torch.tensor([1.0, -2.0])}).axes[0].patches
    assert [bar.get_height() for bar in bars] == [1, -2]
    plt.close("all")
