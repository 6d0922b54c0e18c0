"""Figures of expert balance, and biases on a router that does not change.

Run: python -m pytest tests/test_analysis_balance_plots.py
"""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from drlib.analysis import balance_plots

PROBS = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.3, 0.1], [0.45, 0.2, 0.35]])


def test_three_tokens_by_hand():
    """Loads 3 0 0, then 2 0 1, then 1 1 1: the excess of the fullest is 2, 1, 0."""
    uneven, bias_E = balance_plots.simulate_biases(PROBS.log(), 1, 0.07, 3)
    assert uneven == pytest.approx([2, 1, 0, 0])
    torch.testing.assert_close(bias_E, torch.tensor([-0.14, 0.14, 0.07]))


def test_a_bias_moves_by_at_most_one_rate_per_update():
    logits_NE = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)) + torch.arange(4.0)
    uneven, bias_E = balance_plots.simulate_biases(logits_NE, 2, 0.01, 5)
    assert len(uneven) == 6 and bias_E.abs().max() <= 0.05 + 1e-6
    assert balance_plots.simulate_biases(logits_NE, 2, 0.0, 3)[0] == 4 * uneven[:1]


def test_figures_show_the_numbers():
    fig, (left, middle, right) = plt.subplots(1, 3)
    balance_plots.plot_convergence(left, {"slow": [2, 1], "fast": [2, 0]})
    assert [list(line.get_ydata()) for line in left.get_lines()] == [[2, 1], [2, 0]]
    load_SLE = np.array([[[0.2, 0.8], [0.6, 0.4]]])
    balance_plots.plot_load(middle, {"nothing": load_SLE})
    np.testing.assert_allclose(middle.get_lines()[0].get_ydata(), [70, 30])
    balance_plots.plot_loss_against_balance(right, {"nothing": ([1, 2], [0.3, 0.4])})
    assert right.get_lines()[0].get_label() == "nothing"
    np.testing.assert_allclose(right.get_lines()[0].get_xydata(), [[1, 0.3], [2, 0.4]])
    plt.close(fig)
