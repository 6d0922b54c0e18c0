"""Routing replay on a real tiny Qwen3-MoE: exactness, gradients, checkpointing, load.

Run: python -m pytest tests/test_models_routing_replay.py
"""

import copy
import math

import pytest
import torch
from torch import nn

from drlib.models.moe import PolicyShape, build_policy
from drlib.models.routing_replay import (
    agreement,
    expert_load,
    record_routes,
    replay_routes,
    router_entropy,
)
from drlib.training.packing import PackedBatch, score
from tests.policy_examples import SMALL


def policy(seed=0, shape=SMALL, std=0.05):
    model = build_policy(shape, seed=seed, init="plain").eval()
    set_routers(model, seed, std)
    return model


@torch.no_grad()
def set_routers(model, seed, std=0.05):
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.layers:
        layer.mlp.gate.weight.normal_(0, std, generator=generator)


def make_ids(seed=0, batch=3, tokens=12, vocabulary=64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocabulary, (batch, tokens), generator=generator)


def logits(model, ids):
    return model(input_ids=ids, use_cache=False).logits


def record_one_pass(model, ids):
    with torch.no_grad(), record_routes(model) as recorder:
        logits(model, ids)
    return recorder.passes[0]


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def n_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


# ---------------------------------------------------------------- replay


def test_replaying_own_routes_is_bit_identical():
    model, ids = policy(), make_ids()
    model.config.output_router_logits = True  # the library's own capture hooks stay usable
    native = model(input_ids=ids, use_cache=False)
    native.logits.square().mean().backward()
    expected = gradients(model)
    with replay_routes(model, record_one_pass(model, ids)):
        again = model(input_ids=ids, use_cache=False)
    assert torch.equal(again.logits, native.logits)
    for a, b in zip(again.router_logits, native.router_logits, strict=True):
        assert torch.equal(a, b)
    again.logits.square().mean().backward()
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-9)


def test_replayed_routes_are_used_and_the_router_learns():
    model, ids = policy(), make_ids()
    routes = record_one_pass(model, ids)
    set_routers(model, seed=99)  # the policy has changed
    moved = record_one_pass(model, ids)
    assert (agreement(routes, moved) < 0.6).all()
    with replay_routes(model, routes), record_routes(model) as recorder:
        out = model.model(input_ids=ids, use_cache=False, output_router_logits=True)
    assert torch.equal(recorder.passes[0], routes)
    out.last_hidden_state.square().mean().backward()
    for layer in model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 0


def test_gates_are_renormalised_over_recorded_experts():
    model, ids = policy(), make_ids(batch=1, tokens=2)
    experts = torch.tensor([[[3, 0], [-1, -1]], [[7, 1], [5, 6]]])
    seen, router = [], model.model.layers[0].mlp.gate
    with replay_routes(model, experts):
        handle = router.register_forward_hook(lambda m, a, out: seen.append(out))
        logits(model, ids)
        handle.remove()
    logits_NE, scores_NK, chosen_NK = seen[0]
    p = [math.exp(x) for x in logits_NE[0].tolist()]
    assert chosen_NK[0].tolist() == [3, 0]
    want = [p[3] / (p[3] + p[0]), p[0] / (p[3] + p[0])]
    torch.testing.assert_close(scores_NK[0], torch.tensor(want))
    best = logits_NE[1].topk(2).indices  # no record: the token's own choice
    assert torch.equal(chosen_NK[1], best)


def test_r3_halves_the_gap_to_a_bf16_engine():
    shape = PolicyShape(
        vocab_size=128,
        hidden=64,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=16,
        experts=16,
        experts_per_token=2,
        expert_hidden=64,
    )
    for seed in range(2):
        trainer, ids = policy(seed, shape), make_ids(seed, 8, 48, 128)
        engine = copy.deepcopy(trainer).to(torch.bfloat16)

        def logp(model, ids=ids):
            logp_BTV = logits(model, ids[:, :-1]).float().log_softmax(-1)
            return logp_BTV.gather(2, ids[:, 1:, None])

        with torch.no_grad():
            with record_routes(engine) as recorder:
                behaviour = logp(engine)
            with record_routes(trainer) as native:
                before = (logp(trainer) - behaviour).abs()
            with replay_routes(trainer, recorder.passes):
                after = (logp(trainer) - behaviour).abs()
        assert (agreement(recorder.passes[0], native.passes[0]) < 1).any()
        assert after.max() <= before.max() / 2
        assert after.mean() < before.mean()


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_replays_each_pass(reentrant):
    model = policy().train()
    batches = [make_ids(1), make_ids(2)]
    routes = [record_one_pass(model, ids) for ids in batches]
    set_routers(model, seed=99)

    def losses():  # both passes precede the first backward
        return [logits(model, ids).square().mean() for ids in batches]

    with replay_routes(model, routes):
        sum(losses()).backward()
    expected = gradients(model)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()  # or a reentrant checkpoint has nothing to differentiate
    with replay_routes(model, routes), record_routes(model) as recorder:
        first, second = losses()
        second.backward()
        first.backward()
    assert len(recorder.passes) == 2  # recomputation is not a new pass
    found = gradients(model)
    assert found.keys() == expected.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-8, msg=name)


def test_backward_outside_the_context_is_rejected():
    model, ids = policy().train(), make_ids()
    routes = record_one_pass(model, ids)
    model.gradient_checkpointing_enable()
    with pytest.raises(RuntimeError, match="2 checkpointed layers were not recomputed"):
        with replay_routes(model, routes):
            logits(model, ids)
    loss = logits(model, ids).mean()
    with pytest.raises(RuntimeError, match="no forward pass here had"):
        with replay_routes(model, []):
            loss.backward()
    with record_routes(model) as recorder:
        loss = logits(model, ids).mean()
    loss.backward()  # a record does not need its context
    assert torch.equal(recorder.passes[0], routes)
    with torch.no_grad(), replay_routes(model, routes):  # nothing to recompute: fine
        logits(model, ids)


def test_packed_samples_replay_their_routes():
    model = policy()
    samples = [make_ids(n, 1, n)[0].tolist() for n in (20, 9, 31, 5)]
    with torch.no_grad(), record_routes(model) as recorder:
        for sample in samples:
            logits(model, torch.tensor([sample]))
    batch = PackedBatch.pack(samples)
    routes = torch.cat(recorder.passes, dim=1)
    routes[:, :3] = -1  # no record
    set_routers(model, seed=99)
    with torch.no_grad(), replay_routes(model, routes), record_routes(model) as replayed:
        score(model, batch, torch.ones(len(batch.ids_N), dtype=torch.bool))  # as in training
    (seen,) = replayed.passes
    assert torch.equal(seen[:, 3:].int(), routes[:, 3:].int())
    assert (agreement(routes, seen) == 1).all() and (seen[:, :3] >= 0).all()


def test_cached_generation_replays_in_one_pass():
    model, prompt = policy(), make_ids(batch=2, tokens=5)
    with record_routes(model) as recorder:
        ids = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=4,
            min_new_tokens=4,
            do_sample=False,
            pad_token_id=0,
        )
    assert [r.shape[1] for r in recorder.passes] == [10, 2, 2, 2]
    steps = [r.unflatten(1, (2, -1)) for r in recorder.passes]  # [L, B, T, k]
    joined = torch.cat(steps, dim=2)
    assert joined.shape == (2, 2, 8, 2)  # the ninth token was sampled, never fed
    routes = nn.functional.pad(joined, (0, 0, 0, 1), value=-1).flatten(1, 2)
    assert (agreement(routes, record_one_pass(model, ids)) == 1).all()
    with torch.no_grad(), replay_routes(model, routes):
        torch.testing.assert_close(logits(model, ids).argmax(-1)[:, 4:8], ids[:, 5:])


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda e: e[:1], r"got torch.int16 \[1, 36, 2\], need integers \[2, 36, 2\]"),
        (lambda e: e[:, :-1], r"\[2, 35, 2\], need integers \[2, 36, 2\]"),
        (lambda e: e[..., :1], r"\[2, 36, 1\], need integers \[2, 36, 2\]"),
        (lambda e: e[0], r"\[36, 2\], need integers \[2, 36, 2\]"),
        (lambda e: e.float(), r"torch.float32 \[2, 36, 2\], need integers"),
        (lambda e: torch.where(e == e.max(), 8, e), "pass 1, layer [01]: .* distinct and below 8"),
        (lambda e: e * 0, "pass 1, layer 0: a token's experts must be distinct"),
        (lambda e: torch.where(e == e.max(), -1, e), "or all -1 .no record"),
    ],
)
def test_invalid_routes_are_rejected_and_hooks_removed(change, message):
    model, ids = policy(), make_ids()
    routes = record_one_pass(model, ids)
    before, native = n_hooks(model), logits(model, ids)
    with pytest.raises(ValueError, match=message):
        with replay_routes(model, change(routes)):
            logits(model, ids)
    assert n_hooks(model) == before
    assert torch.equal(logits(model, ids), native)


def test_number_of_passes_must_match():
    model, ids = policy(), make_ids()
    routes = record_one_pass(model, ids)
    with torch.no_grad():
        with pytest.raises(RuntimeError, match="pass 2 has no routes, 1 were given"):
            with replay_routes(model, routes), record_routes(model) as recorder:
                logits(model, ids)
                logits(model, ids)
        assert len(recorder.passes) == 1  # the rejected pass is not recorded
        with pytest.raises(RuntimeError, match="2 routes for 1 forward passes"):
            with replay_routes(model, [routes, routes]):
                logits(model, ids)
    assert n_hooks(model) == 0


def test_models_without_experts_are_rejected():
    with pytest.raises(ValueError, match="Linear has no experts"):
        with record_routes(nn.Linear(2, 2)):
            pass


def test_failed_pass_is_not_recorded():
    model, ids = policy(), make_ids()
    broken = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        with record_routes(model) as recorder:
            logits(model, ids)
    broken.remove()
    assert recorder.passes == [] and n_hooks(model) == 0


# ---------------------------------------------------------------- statistics


def test_load_and_agreement_by_hand():
    routes = torch.tensor([[[0, 1], [1, 0], [2, 1], [-1, -1]]])
    load = expert_load(routes, 4)
    torch.testing.assert_close(load, torch.tensor([[2, 3, 1, 0]]) / 6)
    real_N = torch.tensor([True, True, False, True])
    without = routes.masked_fill(~real_N[:, None], -1)  # as described in the module's docstring
    assert expert_load(without, 4).tolist() == [[0.5, 0.5, 0.0, 0.0]]
    other = torch.tensor([[[1, 0], [1, 3], [2, 1], [0, 1]]])
    assert agreement(routes, other).item() == pytest.approx(2 / 3)  # sets, and known in both
    assert agreement(without, other).item() == 0.5
    with pytest.raises(ValueError, match="name expert 2 of 2"):
        expert_load(routes, 2)
    with pytest.raises(ValueError, match="records of shapes"):
        agreement(routes, torch.zeros(1, 3, 1, dtype=torch.long))


def test_router_entropy_of_uniform_and_sharp_routers():
    def entropy(model):
        with torch.no_grad():
            out = model(input_ids=make_ids(), use_cache=False, output_router_logits=True)
        return router_entropy(out.router_logits)

    assert (entropy(policy(std=3.0)) < 1.5).all()
    torch.testing.assert_close(entropy(policy(std=0.0)), torch.full((2,), math.log(8)))
    by_hand = router_entropy([torch.tensor([[0.0, math.log(3)], [0.0, 0.0]])])
    want = (math.log(4) - 0.75 * math.log(3) + math.log(2)) / 2
    assert by_hand.tolist() == [pytest.approx(want)]
