"""A small random model and an engine for tests."""

import pytest
import torch

from drlib.models.local_engine import LocalEngine
from drlib.models.moe import PolicyShape, build_policy

V = 256
SHAPE = PolicyShape(vocab_size=V, hidden=64, layers=3, heads=4, head_dim=16, max_positions=256)


@pytest.fixture(scope="module")
def small_model():
    torch.set_num_threads(1)
    policy = build_policy(SHAPE, seed=1, init="plain").eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():  # larger weights than at initialisation, for non-uniform distributions
        for name, weight in policy.named_parameters():
            scale = 0.3 if "norm" in name else 0.05
            weight.add_(torch.randn(weight.shape, generator=generator) * scale)
    return policy


@pytest.fixture(scope="module")
def small_engine(model):
    return LocalEngine(model, slots=8, max_context=200)
