"""Loss landscapes restore bit-identical weights; support sets keep exactly m rollouts.

Run: python -m pytest tests/test_analysis_landscape.py
"""

import numpy as np
import pytest
import torch

from drlib.analysis.pseudo_gradient import landscape, support_set
from tests.policy_examples import real_model


def random_ids(n, seed=0):
    return np.random.default_rng(seed).integers(0, 64, n).tolist()


# ---------------------------------------------------------------- around the weights


def bits(model):
    return [p.detach().clone().view(torch.int32) for p in model.parameters()]


def next_token_loss(model):
    ids = torch.tensor([random_ids(24)])
    return model(input_ids=ids, labels=ids).loss


@pytest.mark.parametrize("name", ["moe", "llama"])
def test_landscape_restores_bit_identical_weights(name):
    model = real_model(name)
    before = bits(model)
    plain = next_token_loss(model).item()
    grid = np.linspace(-1, 1, 5)
    found = landscape(model, next_token_loss, grid, seed=0)
    assert all(map(torch.equal, before, bits(model)))
    assert found.shape == (5, 5) and found[2, 2] == plain and np.ptp(found) > 0.1
    np.testing.assert_array_equal(found, landscape(model, next_token_loss, grid, seed=0))
    assert (found != landscape(model, next_token_loss, grid, seed=1)).sum() == 24

    for error in (RuntimeError, KeyboardInterrupt):
        calls = []

        def broken(model, calls=calls, error=error):
            calls.append(1)
            if len(calls) == 4:
                assert not all(map(torch.equal, before, bits(model)))
                raise error
            return 0.0

        with pytest.raises(error):
            landscape(model, broken, grid, seed=0)
        assert all(map(torch.equal, before, bits(model)))
    with pytest.raises(ValueError, match="the loss is NaN at -1.0, -0.5; narrow the grid"):
        landscape(model, lambda m, c=[0, 1.0]: float("nan") if c.pop() == 0 else 1.0, grid, seed=0)
    assert all(map(torch.equal, before, bits(model)))
    with pytest.raises(ValueError, match="the grid is empty"):
        landscape(model, next_token_loss, [], seed=0)


def test_directions_have_the_parameter_norm_and_skip_embeddings():
    model = real_model("llama")
    moves = []
    before = {name: p.detach().clone() for name, p in model.named_parameters()}

    def record_move(model):
        moves.append({n: p.detach() - before[n] for n, p in model.named_parameters()})
        return 0.0

    landscape(model, record_move, [0, 2], seed=0)  # 0,0 0,2 2,0 2,2
    for name, weight in before.items():
        is_embedding = name in ("model.embed_tokens.weight", "lm_head.weight")
        for move in moves[1:3]:
            length = move[name].norm().item()
            np.testing.assert_allclose(
                length, 0 if is_embedding else 2 * weight.norm().item(), rtol=1e-3
            )
        both = moves[1][name] + moves[2][name]
        torch.testing.assert_close(both, moves[3][name], atol=1e-4, rtol=0)


# ---------------------------------------------------------------- support sets


def test_support_set_keeps_m_random_rollouts_per_question():
    groups = [f"q{i % 5}" for i in range(40)]
    drawn = torch.stack([support_set(groups, 3, seed) for seed in range(400)])
    for question in range(5):
        assert (drawn[:, question::5].sum(1) == 3).all()
    assert drawn.dtype == torch.bool
    assert ((drawn.float().mean(0) - 3 / 8).abs() < 0.12).all()  # five standard errors
    assert support_set(groups, 8, 0).all()
    assert torch.equal(support_set(groups, 3, 7), drawn[7])


def test_impossible_support_sets_are_rejected():
    for groups, m, message in (
        (["a", "a", "b"], 2, "2 of the 1 rollouts of question b"),
        ([0, 0], 0, "0 of the 2 rollouts of question 0"),
    ):
        with pytest.raises(ValueError, match=f"cannot keep {message}"):
            support_set(groups, m, 0)
