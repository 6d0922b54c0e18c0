"""DAPO's penalty for length."""

import pytest
import torch

from drlib.rl.rewards import soft_overlong_penalty


def test_soft_overlong_penalty():
    lengths = torch.tensor([0, 80, 85, 100, 101, 500])
    assert soft_overlong_penalty(lengths, 100, 20).tolist() == [0, 0, -0.25, -1, -1, -1]
    for limit, buffer in ((100, 0), (100, 101)):
        with pytest.raises(ValueError, match="need 0 < buffer <= limit"):
            soft_overlong_penalty(lengths, limit, buffer)
    with pytest.raises(ValueError, match="lengths_N must be >= 0"):
        soft_overlong_penalty([-1], 100, 20)
