"""Expert load, specialisation, router entropy and agreement: by hand, by brute force and planted.

Run: python -m pytest tests/test_analysis_routing.py
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from rl_examples import a_trajectory
from transformers import LlamaConfig, LlamaForCausalLM

from drlib.analysis.rescoring import rescore
from drlib.analysis.routing import (
    compute_agreement,
    compute_load,
    compute_router_entropies,
    compute_specialisation,
)
from drlib.models.moe import build_policy
from drlib.models.routing_replay import expert_load
from drlib.trajectory import NO_RECORD, Segment
from tests.policy_examples import small

EXPERTS = 8
SHAPE = small(layers=3)


def routed(segments, routes, name="r-0"):
    """Return a trajectory with these segments [T] and experts [T, L, k]."""
    segments, routes = np.asarray(segments, np.uint8), np.asarray(routes, np.uint16)
    base = a_trajectory(tokens=len(segments) - 1, name=name)
    return replace(base, segments=segments, routed_experts=routes)


def trajectory_without_routes(seed=0, tokens=40):
    rng = np.random.default_rng(seed)
    t = a_trajectory(tokens=tokens - 1, name=f"r-{seed}")
    ids = rng.integers(0, 64, tokens).astype(np.int32)
    return replace(t, token_ids=ids, segments=rng.choice([0, 1, 3, 6], tokens).astype(np.uint8))


def policy(seed=0):
    model = build_policy(SHAPE, seed=seed, init="plain").eval()
    for layer in model.model.layers:  # the initial router is nearly uniform
        layer.mlp.gate.weight.data.normal_(generator=torch.Generator().manual_seed(seed))
    return model


# ---------------------------------------------------------------- load


def test_load_by_hand():
    one = routed([0, 0, 1], [[[0, 1], [2, 3]], [[0, 2], [2, 3]], [[3, 1], [0, 1]]])
    other = routed([1], [[[3, 2], [0, 1]]])
    load = compute_load(iter([one, other]), 4)
    assert load.shape == (len(Segment), 2, 4)
    np.testing.assert_allclose(load[0], [[0.5, 0.25, 0.25, 0], [0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(load[1], [[0, 0.25, 0.25, 0.5], [0.5, 0.5, 0, 0]])
    assert np.isnan(load[2:]).all()


def test_load_of_a_real_model_matches_its_routes():
    found = list(
        rescore(
            policy(), [trajectory_without_routes(0), trajectory_without_routes(1, 25)], experts=True
        )
    )
    load = compute_load(found, EXPERTS)
    for segment in (0, 1, 3, 6):
        parts = [t.routed_experts[t.segments == segment] for t in found]
        routes_LNK = torch.from_numpy(np.concatenate(parts).astype(np.int64)).transpose(0, 1)
        np.testing.assert_allclose(load[segment], expert_load(routes_LNK, EXPERTS), atol=1e-6)


# ---------------------------------------------------------------- specialisation


def test_mutual_information_by_hand():
    # segments 0 0 1 1; layer 0: experts 0 0 0 1; layer 1: the segment; layer 2: constant
    t = routed([0, 0, 1, 1], [[[0], [0], [5]], [[0], [0], [5]], [[0], [1], [5]], [[1], [1], [5]]])
    found = compute_specialisation([t], EXPERTS, draws=5)
    h = lambda *p: -sum(x * math.log(x) for x in p)  # noqa: E731 - a formula by name
    by_hand = math.log(2) + h(0.75, 0.25) - h(0.5, 0.25, 0.25)
    np.testing.assert_allclose(found["nats"], [by_hand, math.log(2), 0], atol=1e-12)
    np.testing.assert_allclose(found["share"], [by_hand / math.log(2), 1, 0], atol=1e-12)


def planted(rng, tokens=600, layers=4):
    """Layer 0 gives each segment two experts of its own; the others are random."""
    segments = rng.choice([0, 1, 2, 3], tokens)
    routes = rng.permuted(np.tile(np.arange(EXPERTS), (tokens, layers, 1)), axis=-1)[..., :2]
    routes[:, 0] = segments[:, None] * 2 + rng.permuted(np.tile([0, 1], (tokens, 1)), axis=1)
    return routed(segments, routes)


def test_only_planted_specialisation_is_found():
    rng = np.random.default_rng(0)
    found = compute_specialisation([planted(rng), planted(rng)], EXPERTS)
    np.testing.assert_allclose(found["share"][0], 1.0, atol=1e-12)
    assert found["share"][0] > 50 * found["null_high"][0]
    assert (found["share"][1:] < 0.02).all() and (found["null_mean"] < found["null_high"]).all()


def test_null_quantile_is_exceeded_in_five_percent():
    rng = np.random.default_rng(1)
    routes = rng.integers(0, EXPERTS, (80, 300, 1))  # 300 layers without specialisation
    found = compute_specialisation([routed(rng.choice([0, 1, 2], 80), routes)], EXPERTS)
    beyond = (found["share"] > found["null_high"]).mean()
    assert 0.015 < beyond < 0.1
    assert abs(found["share"].mean() - found["null_mean"].mean()) < 0.005


def test_null_preserves_differences_between_trajectories():
    """Each trajectory has its own expert and mostly one segment, which is not specialisation."""
    rng = np.random.default_rng(2)
    trajectories = [
        routed(rng.choice([0, 1], 200, p=p), np.full((200, 1, 1), i))
        for i, p in enumerate(([0.9, 0.1], [0.1, 0.9]))
    ]
    found = compute_specialisation(trajectories, EXPERTS)
    assert found["share"][0] > 0.3
    np.testing.assert_allclose(found["null_mean"], found["share"], atol=1e-12)


def test_null_depends_only_on_the_seed():
    t = planted(np.random.default_rng(0), 60)
    a, b, c = [
        compute_specialisation([t], EXPERTS, draws=20, seed=s)["null_mean"] for s in (0, 0, 1)
    ]
    assert a.tolist() == b.tolist() != c.tolist()


# ---------------------------------------------------------------- router entropy


def test_router_entropy_is_the_mean_per_segment():
    model = policy()
    trajectories = [trajectory_without_routes(0), trajectory_without_routes(1, 25)]
    logits = [[] for _ in model.model.layers]
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda m, a, out, i=i: logits[i].append(out[0]))
        for i, layer in enumerate(model.model.layers)
    ]
    found = compute_router_entropies(model, iter(trajectories))
    for hook in hooks:
        hook.remove()
    segments = np.concatenate([t.segments for t in trajectories])
    for layer, parts in enumerate(logits):
        p_NE = torch.cat(parts).double().softmax(-1).numpy()
        entropy_N = -(p_NE * np.log(p_NE)).sum(-1)
        for segment in (0, 1, 3, 6):
            expected = entropy_N[segments == segment].mean()
            np.testing.assert_allclose(found[segment, layer], expected, atol=1e-5)
    assert found.shape == (len(Segment), 3) and np.isnan(found[[2, 4, 5]]).all()


def test_uniform_router_has_maximal_entropy():
    model = policy()
    for layer in model.model.layers:
        layer.mlp.gate.weight.data.zero_()
    found = compute_router_entropies(model, [trajectory_without_routes()])
    np.testing.assert_allclose(found[[0, 1, 3, 6]], math.log(EXPERTS), atol=1e-6)


# ---------------------------------------------------------------- two checkpoints


def test_agreement_by_hand():
    a = routed([0, 0], [[[0, 1], [2, 3]], [[0, 1], [2, 3]]]), routed([0], [[[0, 1], [2, 3]]], "r-1")
    b = routed([0, 0], [[[1, 0], [2, 3]], [[0, 2], [3, 2]]]), routed([0], [[[0, 1], [1, 0]]], "r-1")
    np.testing.assert_allclose(compute_agreement(iter(a), iter(b)), [2 / 3, 2 / 3], atol=1e-6)


def test_tokens_without_a_record_are_not_counted():
    unread, read = [[NO_RECORD] * 2] * 2, [[0, 1], [2, 3]]
    a = [routed([0, 4, 4], [read, read, unread]), routed([0], [unread], "r-1")]
    b = [routed([0, 4, 4], [read, [[0, 1], [2, 1]], read]), routed([0], [read], "r-1")]
    np.testing.assert_allclose(compute_agreement(a, b), [1.0, 0.5])
    counted = compute_load(a, EXPERTS)
    np.testing.assert_allclose(counted, compute_load([routed([0, 4], [read, read])], EXPERTS))


def test_agreement_is_one_for_the_same_model():
    trajectories = [trajectory_without_routes(0), trajectory_without_routes(1, 25)]
    one, again, other = (list(rescore(policy(s), trajectories, experts=True)) for s in (0, 0, 1))
    assert compute_agreement(one, again).tolist() == [1, 1, 1]
    assert (compute_agreement(one, other) < 0.5).all()


# ---------------------------------------------------------------- bad input


def test_invalid_input_is_rejected():
    t = planted(np.random.default_rng(0), 20)
    bare = replace(t, routed_experts=None)
    for call in (
        lambda: compute_load([t, bare], 8),
        lambda: compute_specialisation([bare], 8),
        lambda: compute_agreement([t], [bare]),
    ):
        with pytest.raises(ValueError, match=r"no record of its experts.*rescore.*experts=True"):
            call()
    dense = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=1,
            num_attention_heads=4,
        )
    )
    for call, message in (
        (lambda: compute_load([], 8), "no trajectories to analyse"),
        (lambda: compute_specialisation([], 8), "no trajectories to analyse"),
        (lambda: compute_router_entropies(policy(), []), "no trajectories to analyse"),
        (lambda: compute_agreement([], []), "no trajectories to compare"),
        (lambda: compute_load([t], 7), "trajectory r-0 has expert 7 of 7"),
        (lambda: compute_specialisation([routed([1, 1], [[[0]], [[1]]])], 8), "are in one segment"),
        (
            lambda: compute_router_entropies(dense, [trajectory_without_routes()]),
            "LlamaForCausalLM has no routers",
        ),
        (lambda: compute_agreement([t], [replace(t, id="x")]), "r-0 and x have different tokens"),
        (lambda: compute_agreement([t], [replace(t, token_ids=t.token_ids + 1)]), "have different"),
        (lambda: compute_agreement([t], []), "shorter"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
