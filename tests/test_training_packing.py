"""Packed samples, with and without shared prompts, match separate samples.

Run: python -m pytest tests/test_training_packing.py
"""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from drlib.models.moe import build_policy
from drlib.models.packed import ATTENTION, EXPERTS, Prefix, packed_forward
from drlib.training.optim import Muon, Optimizers, orthogonalise, schedule, split_parameters
from drlib.training.packing import PackedBatch, balance_loss, score
from tests.policy_examples import small


@pytest.fixture(scope="module")
def model():
    return build_policy(small(experts=4), seed=1, init="plain")


def samples(lengths, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 64, (n,), generator=g).tolist() for n in lengths]


def full_mask(batch):
    return torch.ones(len(batch.ids_N), dtype=torch.bool)


def test_pack_spread_and_split():
    batch = PackedBatch.pack([[5, 6, 7], [8], [9, 10]])
    assert batch.ids_N.tolist() == [5, 6, 7, 8, 9, 10]
    assert batch.spread([[1, 2, 3], [4], [5, 6]], torch.long).tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.spread([0.5, 2, -1], torch.float32).tolist() == [0.5, 0.5, 0.5, 2, -1, -1]
    assert [part.tolist() for part in batch.split(batch.ids_N)] == [[5, 6, 7], [8], [9, 10]]
    for wrong in ([], [[1], []]):
        with pytest.raises(ValueError, match="samples must have at least one token"):
            PackedBatch.pack(wrong)
    for values in ([1, 2], [[1, 2], [4], [5, 6]]):
        with pytest.raises((ValueError, RuntimeError)):
            batch.spread(values, torch.long)


def test_shared_prompts_are_packed_once():
    """Samples 1, 2 and 4 share a prompt; sample 3 has another one."""
    whole = [[5, 6, 1], [5, 6, 2, 3], [7, 6, 4], [5, 6, 8]]
    batch = PackedBatch.pack(whole, [2, 2, 2, 2])
    assert batch.ids_N.tolist() == [5, 6, 1, 2, 3, 7, 6, 4, 8]
    assert batch.prefixes == (None, Prefix(0, 2), None, Prefix(0, 2))
    assert batch.lengths == (3, 2, 3, 1) and batch.starts() == [0, 3, 5, 8]
    assert [part.tolist() for part in batch.split(batch.ids_N)] == whole
    assert torch.equal(batch.spread(whole, torch.long), batch.ids_N)
    assert batch.spread([1, 2, 3, 4], torch.long).tolist() == [1, 1, 1, 2, 2, 3, 3, 3, 4]
    assert batch.times().tolist() == [3, 3, 1, 1, 1, 1, 1, 1, 1]


def test_unequal_prompts_are_not_shared():
    for whole, prompts in (
        ([[5, 6, 1], [5, 6, 2]], [0, 0]),  # nothing is a prompt
        ([[5, 6, 1], [5, 6, 2]], [2, 1]),  # another one, though it begins alike
        ([[5, 6], [5, 6]], [2, 2]),  # a sample keeps a token of its own
    ):
        batch = PackedBatch.pack(whole, prompts)
        assert batch.ids_N.tolist() == sum(whole, []) and set(batch.prefixes) == {None}
        assert batch.times().tolist() == [1.0] * len(batch.ids_N)


def make_two_groups():
    """Return (samples, prompt lengths): three with one prompt, two with another, one single."""
    first, second, third = samples([12, 5, 7], seed=3)
    ends = samples([9, 4, 15, 6, 8, 3], seed=4)
    prompts = [first, second, first, first, second, third]
    return [a + b for a, b in zip(prompts, ends)], [len(prompt) for prompt in prompts]


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_shared_prompt_matches_separate_copies(model, temperature):
    """The balance loss counts a shared prompt once per sample."""
    sample_ids, prompts = make_two_groups()
    losses = [[i % 3 > 0 for i in range(len(sample))] for sample in sample_ids]
    for sample_losses, n in zip(losses, prompts):
        sample_losses[:n] = [False] * n
        sample_losses[n] = True  # the first token after a prompt
    found = []
    for batch in (PackedBatch.pack(sample_ids), PackedBatch.pack(sample_ids, prompts)):
        copied = copy.deepcopy(model)
        scored = score(copied, batch, batch.spread(losses, torch.bool), temperature)
        logp_N = torch.zeros(len(batch.ids_N)).index_put((scored.at_M,), scored.logp_M)
        logp = torch.cat([part[n:] for part, n in zip(batch.split(logp_N), prompts)])
        (3.0 * scored.balance - (logp * logp.detach().exp()).sum()).backward()
        gradient = torch.cat([p.grad.flatten() for p in copied.parameters()])
        found.append((len(batch.ids_N), scored.balance.detach(), logp.detach(), gradient))
    (whole, *copies), (once, *shared) = found
    assert whole - once == 2 * 12 + 5
    torch.testing.assert_close(shared, copies, atol=5e-6, rtol=1e-5)
    assert copies[1].count_nonzero() == sum(map(sum, losses)) and copies[2].norm() > 0.5


def test_packed_logprobs_match_single_samples(model):
    """Compare with the attention and experts of transformers, one sample at a time."""
    sample_ids = samples([20, 9, 31, 14, 5, 1])
    batch = PackedBatch.pack(sample_ids)
    with torch.no_grad():
        scored = score(model, batch, full_mask(batch))
        found_N = torch.full((len(batch.ids_N),), torch.nan)
        found_N[scored.at_M] = scored.logp_M
        for found_T, sample in zip(batch.split(found_N), sample_ids):
            logits = model(torch.tensor([sample]), use_cache=False).logits[0, :-1]
            alone = logits.log_softmax(-1).gather(1, torch.tensor(sample[1:])[:, None])[:, 0]
            torch.testing.assert_close(found_T[1:], alone, atol=2e-6, rtol=0)
    assert scored.logp_M.numel() == sum(len(s) - 1 for s in sample_ids)


def test_packed_gradient_is_the_sum_over_samples(model):
    """Compare with the model of transformers and the balance loss by definition."""
    model, sample_ids = copy.deepcopy(model), samples([20, 9, 31, 14])
    batch = PackedBatch.pack(sample_ids)
    scored = score(model, batch, full_mask(batch))
    (scored.balance - scored.logp_M.sum()).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    logits_LNE = [[] for _ in range(model.config.num_hidden_layers)]
    total = 0.0
    for sample in sample_ids:
        ids = torch.tensor([sample])
        out = model(ids, labels=ids, use_cache=False, output_router_logits=True)
        logp = out.logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])
        total = total - logp.sum()
        for kept, logits_NE in zip(logits_LNE, out.router_logits):
            kept.append(logits_NE)
    (total + balance_loss([torch.cat(kept) for kept in logits_LNE], 2)).backward()
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_chunked_logprobs_match_the_full_head(model, temperature):
    batch, found = PackedBatch.pack(samples([20, 9, 31])), []
    for chunked in (False, True):
        copied = copy.deepcopy(model)
        scored = score(copied, batch, full_mask(batch), temperature, chunked)
        scored.logp_M.square().sum().backward()
        found.append((scored.logp_M.detach(), [p.grad for p in copied.parameters()]))
    torch.testing.assert_close(found[0], found[1], atol=2e-4, rtol=1e-4)


def test_forward_pass_restores_the_model(model):
    """The attention and expert implementations are restored even if the pass fails."""
    before = model.config._attn_implementation, model.config._experts_implementation
    with torch.no_grad():
        batch = PackedBatch.pack(samples([4, 7]))
        score(model, batch, full_mask(batch))
        with pytest.raises(IndexError):
            packed_forward(model, torch.tensor([1, 10**6]), [2])
    assert (model.config._attn_implementation, model.config._experts_implementation) == before
    assert ATTENTION not in before and EXPERTS not in before


def test_tokens_without_loss_are_not_scored(model):
    sample_ids = samples([10, 10])
    kept = [[False] * 6 + [True] * 4, [False] * 10]
    batch = PackedBatch.pack(sample_ids)
    scored = score(model, batch, batch.spread(kept, torch.bool))
    assert scored.at_M.tolist() == [6, 7, 8, 9]
    model.zero_grad()
    scored.logp_M.sum().backward()
    first = model.model.embed_tokens.weight.grad.clone()
    batch = PackedBatch.pack([sample_ids[0], samples([10], seed=9)[0]])
    model.zero_grad()
    score(model, batch, batch.spread(kept, torch.bool)).logp_M.sum().backward()
    torch.testing.assert_close(first, model.model.embed_tokens.weight.grad, atol=1e-6, rtol=1e-5)


def test_balance_loss_by_hand():
    even = torch.eye(4) * 1e-3 + torch.roll(torch.eye(4), 1, 1) * 1e-3
    assert balance_loss([even], 2).item() == pytest.approx(1.0, abs=1e-4)
    one = torch.tensor([[30.0, 29.0, 0.0, 0.0]] * 4)
    # experts 0 and 1 get half of the choices each; p_0 + p_1 = 1: 4 * (.5 p0 + .5 p1) = 2
    assert balance_loss([one], 2).item() == pytest.approx(2.0, abs=1e-4)
    assert balance_loss([even, one], 2).item() == pytest.approx(1.5, abs=1e-4)


def test_balance_loss_counts_shared_tokens():
    two = torch.tensor([[30.0, 0.0], [0.0, 30.0]])
    # three tokens to expert 0 and one to expert 1: 2 * (.75 * .75 + .25 * .25)
    found = balance_loss([two], 1, times_N=torch.tensor([3.0, 1.0]))
    assert found.item() == pytest.approx(1.25, abs=1e-4)
    assert balance_loss([two], 1).item() == pytest.approx(1.0, abs=1e-4)


def test_muon_parameters_and_orthogonalisation(model):
    g = torch.Generator().manual_seed(0)
    for shape in ((8, 16), (16, 8), (3, 8, 8)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=g)))
        assert values.min() > 0.3 and values.max() < 1.3
    matrices, rest = split_parameters(model)
    names = {id(p): n for n, p in model.named_parameters()}
    assert not any("gate.weight" in names[id(p)] or "embed" in names[id(p)] for p in matrices)
    assert any("mlp.experts.gate_up_proj" in names[id(p)] for p in matrices)
    assert len(matrices) + len(rest) == len(list(model.parameters()))


def test_restored_optimizers_continue_identically():
    def make_net():
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))

    def train(net, optimizers, steps):
        for s in steps:
            net(torch.full((2, 4), float(s))).pow(2).sum().backward()
            optimizers.step(1.0)

    whole = make_net()
    train(whole, Optimizers.muon_adam(whole, 0.1, 0.1), range(4))
    first = make_net()
    optimizers = Optimizers.muon_adam(first, 0.1, 0.1)
    train(first, optimizers, range(2))
    second = make_net()
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


@pytest.fixture(scope="module")
def dense():
    """Return a random Llama with grouped heads."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
            )
        )
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn(weight.shape) * 0.1)
    return model


def dense_gradients(model, whole, prompts=None, dtype="float32", frugal=False):
    """Return (log-probabilities of all tokens but the first ones, gradients of a weighted sum)."""
    model.zero_grad(set_to_none=True)
    batch = PackedBatch.pack(whole, prompts)
    own = batch.spread([[False] * 4 + [True] * (len(s) - 4) for s in whole], torch.bool)
    scored = score(model, batch, own, 1.0, frugal, dtype)
    weights = torch.linspace(-1, 1, len(scored.logp_M))
    (scored.logp_M * weights).sum().backward()
    return scored.logp_M.detach(), [p.grad.clone() for p in model.parameters()]


def test_dense_model_matches_transformers(dense):
    """Packed samples with a shared prompt match transformers on each sample, with gradients."""
    whole = [[5, 6, 7, 8] + sample for sample in samples([7, 3, 12])]
    logp_M, grads = dense_gradients(dense, whole, [4, 4, 4])
    expected, at = [], 0
    dense.zero_grad(set_to_none=True)
    weights = torch.linspace(-1, 1, len(logp_M))
    for sample in whole:
        ids_1T = torch.tensor([sample])
        logp_TV = dense(ids_1T).logits[0].log_softmax(-1)
        own_T = logp_TV[3:-1].gather(1, ids_1T[0, 4:, None])[:, 0]
        (own_T * weights[at : at + len(own_T)]).sum().backward()
        at += len(own_T)
        expected.append(own_T.detach())
    assert torch.allclose(logp_M, torch.cat(expected), atol=1e-5)
    for got, parameter in zip(grads, dense.parameters()):
        assert torch.allclose(got, parameter.grad, atol=1e-4)


def test_dense_model_in_bfloat16(dense):
    """Under autocast, attention by matrix products gives the gradients of float32, rounded."""
    whole = [[5, 6, 7, 8] + sample for sample in samples([7, 3, 12])]
    exact, grads = dense_gradients(dense, whole, [4, 4, 4])
    for frugal in (False, True):
        rounded, near = dense_gradients(dense, whole, [4, 4, 4], "bfloat16", frugal)
        assert rounded.dtype == torch.float32 and 0 < (rounded - exact).abs().max() < 0.1
        for a, b in zip(grads, near):
            assert b.dtype == torch.float32
            assert torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0) > 0.98
    apart, _ = dense_gradients(dense, whole, None, "bfloat16")
    assert torch.allclose(apart, rounded, atol=0.1), "a shared prompt changes nothing"


def test_dense_model_has_no_balance_loss(dense):
    batch = PackedBatch.pack(samples([5]))
    assert score(dense, batch, full_mask(batch)).balance == 0


def test_supervised_optimizer_without_muon(dense):
    assert [*Optimizers.muon_adam(dense, 0.0, 1e-3).parts] == ["adam"]
    assert [*Optimizers.muon_adam(dense, 0.1, 1e-3).parts] == ["muon", "adam"]
