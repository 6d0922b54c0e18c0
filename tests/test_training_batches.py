"""Packing is exact: a packed sample scores as it does alone, and the known leaks are known.

Run: python -m pytest tests/test_training_batches.py
"""

import pytest
import torch

from drlib.policy.moe import build_policy
from drlib.training.batches import balance_loss, pack, score, spread
from drlib.training.optim import Muon, Optimizers, orthogonalise, schedule, split_parameters
from tests.policy_examples import small


@pytest.fixture(scope="module")
def model():
    return build_policy(small(experts=4), seed=1, init="plain")


def samples(lengths, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 64, (n,), generator=g).tolist() for n in lengths]


def test_every_token_lands_once_in_a_row_of_its_own_positions():
    some = samples([7, 30, 12, 25, 3, 30, 1])
    rows = pack(some, 32, pad_id=0)
    assert rows.real_RT.sum() == sum(map(len, some))
    for (r, at, n), sample in zip(rows.where, some):
        assert rows.ids_RT[r, at : at + n].tolist() == sample
        assert rows.positions_RT[r, at : at + n].tolist() == list(range(n))
    with pytest.raises(ValueError, match="33 tokens"):
        pack(samples([33]), 32, 0)
    with pytest.raises(ValueError, match="nothing"):
        pack([], 32, 0)


def test_packed_log_probabilities_equal_those_of_each_sample_alone(model):
    some = samples([20, 9, 31, 14, 5])
    rows = pack(some, 40, 0)
    everything = spread(rows, [[True] * len(s) for s in some], torch.bool)
    with torch.no_grad():
        packed = score(model, rows, everything)
        table = torch.zeros(rows.ids_RT.shape)
        table[packed.at] = packed.logp_M
        for (r, at, n), sample in zip(rows.where, some):
            logits = model(torch.tensor([sample]), use_cache=False).logits[0, :-1]
            alone = logits.log_softmax(-1).gather(1, torch.tensor(sample[1:])[:, None])[:, 0]
            torch.testing.assert_close(table[r, at + 1 : at + n], alone, atol=2e-6, rtol=0)
    assert packed.logp_M.numel() == sum(len(s) - 1 for s in some)


def test_an_attention_mask_of_ones_would_leak_between_samples(model):
    """Why `score` passes none: remembered here, so that nobody adds one."""
    rows = pack(samples([12, 12]), 24, 0)
    (_, at, n) = rows.where[1]
    common = {"input_ids": rows.ids_RT, "position_ids": rows.positions_RT, "use_cache": False}
    with torch.no_grad():
        right = model(**common).logits
        wrong = model(**common, attention_mask=torch.ones_like(rows.ids_RT)).logits
    assert (right - wrong)[0, at : at + n].abs().max() > 1e-3


def test_what_carries_no_loss_is_not_scored_and_gets_no_gradient(model):
    some = samples([10, 10])
    rows = pack(some, 20, 0)
    loss = spread(rows, [[False] * 6 + [True] * 4, [False] * 10], torch.bool)
    scored = score(model, rows, loss)
    assert scored.logp_M.numel() == 4
    model.zero_grad()
    scored.logp_M.sum().backward()
    first = model.model.embed_tokens.weight.grad.clone()
    changed = [some[0], samples([10], seed=9)[0]]
    rows = pack(changed, 20, 0)
    model.zero_grad()
    score(
        model, rows, spread(rows, [[False] * 6 + [True] * 4, [False] * 10], torch.bool)
    ).logp_M.sum().backward()
    torch.testing.assert_close(first, model.model.embed_tokens.weight.grad, atol=1e-6, rtol=1e-5)


def test_balance_loss_by_hand():
    even = torch.zeros(1, 4, 4)
    even[0] = torch.eye(4) * 1e-3 + torch.roll(torch.eye(4), 1, 1) * 1e-3
    real = torch.ones(1, 4, dtype=torch.bool)
    assert balance_loss([even], real, 2).item() == pytest.approx(1.0, abs=1e-4)
    one = torch.tensor([[[30.0, 29.0, 0.0, 0.0]] * 4])
    # experts 0 and 1 get half of the choices each; p_0 + p_1 = 1: 4 * (.5 p0 + .5 p1) = 2
    assert balance_loss([one], real, 2).item() == pytest.approx(2.0, abs=1e-4)


def test_muon_orthogonalises_stacks_and_leaves_the_router_to_adam(model):
    g = torch.Generator().manual_seed(0)
    for shape in ((8, 16), (16, 8), (3, 8, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=g)))
        assert values.min() > 0.3 and values.max() < 1.3
    matrices, rest = split_parameters(model)
    names = {id(p): n for n, p in model.named_parameters()}
    assert not any("gate.weight" in names[id(p)] or "embed" in names[id(p)] for p in matrices)
    assert any("mlp.experts.gate_up_proj" in names[id(p)] for p in matrices)
    assert len(matrices) + len(rest) == len(list(model.parameters()))


def test_optimizers_restore_to_the_same_step():
    def fresh():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))

    def train(net, optimizers, steps):
        for s in steps:
            net(torch.full((2, 4), float(s))).pow(2).sum().backward()
            optimizers.step(1.0)

    whole = fresh()
    train(whole, Optimizers.muon_adam(whole, 0.1, 0.1), range(4))
    first = fresh()
    optimizers = Optimizers.muon_adam(first, 0.1, 0.1)
    train(first, optimizers, range(2))
    second = fresh()
    second.load_state_dict(first.state_dict())
    restored = Optimizers.muon_adam(second, 0.1, 0.1)
    restored.load_state_dict(optimizers.state_dict())
    train(second, restored, range(2, 4))
    for a, b in zip(whole.parameters(), second.parameters()):
        assert torch.equal(a, b)
    assert isinstance(restored.parts["muon"], Muon)


def test_schedule_by_hand():
    assert [schedule(s, 10, 1, 0.5) for s in (0, 1, 5, 6, 9)] == [0.5, 1, 1, 0.8, 0.2]
    assert schedule(9, 10, 0, 0.5, 0.1) == pytest.approx(0.1 + 0.9 * 0.2)
