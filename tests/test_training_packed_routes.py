"""Expert routes in the local loop: reported by its engine and replayed in packed rows.

Run: python -m pytest tests/test_training_packed_routes.py
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.training.batch import RolloutBatch, compute_advantages
from drlib.training.distributed import Ranks
from drlib.training.grpo import grpo
from drlib.training.learner import accumulate_gradients, record, record_trainer_routes
from drlib.training.packed_routes import PackedReplay, engine_routes
from drlib.trajectory import NO_RECORD
from tests.engine_examples import small_model
from tests.loop_examples import cold_start, flat, learned, rollout_shards, settings
from tests.test_models_local_engine import make_prompts
from tests.test_models_routes import ROUNDS, RouteAndContextRecorder, RouteRecorder, model_routes

model = small_model
start = cold_start
batch = rollout_shards


def assert_known_routes(model, ids, routes_TLK):
    """Check that routes match one pass over the ids; records may be missing in the last layer."""
    expected = model_routes(model, ids)[: len(ids) - 1]
    known = routes_TLK != NO_RECORD
    assert routes_TLK.dtype == np.uint16 and routes_TLK.shape == expected.shape
    assert known[:, :-1].all() and known[:, -1].any()
    assert np.array_equal(np.where(known, routes_TLK, 0), np.where(known, expected, 0))


@pytest.mark.parametrize("slots", [2, 8])
@pytest.mark.parametrize("lockstep", [True, False])
def test_engine_routes_match_one_forward_pass(model, slots, lockstep):
    """Covers turns of several lengths, delayed tools, equal prompts and moved rows."""
    prompts = make_prompts(6)
    prompts += [prompts[0]] * 2
    params = SamplingParams(max_tokens=15, stop_ids=(1, 2, 3), seed=5)
    engine = LocalEngine(model, slots=slots, max_context=200, lockstep=lockstep, routes=True)
    with ThreadPoolExecutor(3) as pool:
        recorder = RouteRecorder(prompts, pool=pool)
        engine.converse(prompts, params, recorder)
    for i, ids in enumerate(recorder.ids):
        assert len(recorder.routes[i]) == 3
        routes_TLK = np.concatenate(recorder.routes[i])
        assert_known_routes(model, ids, routes_TLK)


def test_routes_restart_with_a_new_context(model):
    prompts = make_prompts(3)
    recorder = RouteAndContextRecorder(prompts)
    engine = LocalEngine(model, slots=2, max_context=200, routes=True)
    engine.converse(prompts, SamplingParams(max_tokens=12, seed=4), recorder)
    assert len(recorder.routes) == 3 * ROUNDS
    for i, ids in enumerate(recorder.ids):
        assert_known_routes(model, ids, np.concatenate(recorder.routes[i]))


def test_reporting_routes_has_no_side_effects(model):
    prompts, params = make_prompts(4), SamplingParams(max_tokens=10, seed=2)
    silent, routed = (
        LocalEngine(model, slots=4, max_context=200, routes=routes).generate(prompts, params)
        for routes in (False, True)
    )
    assert silent == routed and {done.routed_experts is None for done in silent} == {True}


# ---------------------------------------------------------------- the update


@pytest.fixture(scope="module")
def routes(start, batch):
    return record_trainer_routes(start.policy, batch[0], settings())


def test_replaying_own_routes_changes_nothing(start, batch, routes):
    config = settings(
        rl__off_policy__routing_replay="r2", rl__minibatches=2, rl__filter__overlong="keep"
    )
    advantages, weights, _ = compute_advantages(batch[0], config)
    found = {}
    for name, of in {"none": None, "own": routes}.items():
        policy = copy.deepcopy(start.policy)
        share = RolloutBatch(batch[0], advantages, weights, routes=of)
        row = accumulate_gradients(policy, [share], config, Ranks())
        found[name] = torch.cat([p.grad.flatten() for p in policy.parameters()])
        assert row["rerouted"] == 0.0
    assert torch.equal(found["none"], found["own"]) and found["own"].norm() > 0


def test_replayed_routes_are_followed_per_token(start, batch, routes):
    """Send each token to other experts; log-probabilities and the rerouted share change."""
    others = [((one.astype(int) + 2) % 8).astype(np.uint16) for one in routes]
    unknown = [np.full_like(one, NO_RECORD) for one in routes]
    own, moved, free = (
        record(start.policy, batch[0], settings(), of) for of in (None, others, unknown)
    )
    apart = max(np.abs(a - b).max() for a, b in zip(own, moved))
    assert apart > 0.1 and all(np.array_equal(a, b) for a, b in zip(own, free))
    config = settings(
        rl__off_policy__routing_replay="r3",
        rl__off_policy__engine_dtype="bfloat16",
        rl__filter__overlong="keep",
    )
    advantages, weights, _ = compute_advantages(batch[0], config)
    share = RolloutBatch(batch[0], advantages, weights, routes=others)
    row = accumulate_gradients(copy.deepcopy(start.policy), [share], config, Ranks())
    assert row["rerouted"] > 0.9


def test_prompt_with_two_routes_is_replayed_both_ways(start, batch, routes):
    """Two rollouts share a prompt, but the second has other routes for it."""
    first, second = [i for i, t in enumerate(batch[0]) if t.group_id == batch[0][0].group_id][:2]
    pair, other = [batch[0][first], batch[0][second]], routes[second].copy()
    prompt = int(pair[1].generated.argmax())
    other[:prompt] = (other[:prompt].astype(int) + 2) % 8
    config = settings()
    together = record(start.policy, pair, config, [routes[first], other])
    for t, of, found in zip(pair, (routes[first], other), together):
        (alone,) = record(start.policy, [t], config, [of])
        np.testing.assert_allclose(found, alone, atol=1e-4)
    own = record(start.policy, pair, config)
    assert np.abs(together[1] - own[1]).max() > 0.01
    np.testing.assert_allclose(together[0], own[0], atol=1e-4)


def test_batch_selection_keeps_routes(batch, routes):
    share = RolloutBatch(batch[0], torch.zeros(len(routes)), torch.ones(len(routes)), routes=routes)
    some = share.of([5, 2])
    assert some.routes[0] is routes[5] and some.routes[1] is routes[2]
    assert len(some.routes[0]) == len(some.trajectories[0])


def test_r3_reduces_the_bf16_engine_mismatch(start, tmp_path):
    """With an engine in bfloat16, replaying its routes reduces the log-probability gap."""
    gaps = {}
    for routing in ("none", "r3"):
        config = settings(
            rl__off_policy__routing_replay=routing,
            rl__off_policy__engine_dtype="bfloat16",
            rl__filter__overlong="keep",
        )
        step = start.step(config, tmp_path / routing)
        row, trajectories = step.step(1)
        gaps[routing] = row["logp_gap_max"]
        assert row["updates"] == 1 and not torch.equal(flat(step.model), flat(start.policy))
    assert 0 < row["rerouted"] < 0.05
    assert gaps["r3"] < gaps["none"]
    assert len(engine_routes(trajectories)) == len(trajectories)


def test_r2_replays_routes_in_later_updates(start, batch, tmp_path):
    """R2 records routes before the first update and replays them in the later ones."""
    switches = {"rl.minibatches": 4, "rl.lr": 5e-3, "rl.filter.overlong": "keep"}
    free, _ = learned(start, batch, tmp_path / "free", **switches)
    held, row = learned(
        start, batch, tmp_path / "held", **switches, rl__off_policy__routing_replay="r2"
    )
    assert row["rerouted"] > 0 and not torch.equal(free, held)


def test_missing_routes_are_rejected(batch, tmp_path):
    with pytest.raises(ValueError, match="no routes of .*: make it with routes=True"):
        engine_routes([replace(batch[0][0], routed_experts=None)])
    with pytest.raises(ValueError, match="exact local engine: set rl.minibatches"):
        grpo(settings(rl__off_policy__routing_replay="r3"), tmp_path / "runs" / "ci" / "rl")


def test_replay_without_routes_adds_no_hooks(start):
    def hooks() -> int:
        return sum(len(module._forward_hooks) for module in start.policy.modules())

    before = hooks()
    with PackedReplay(start.policy, None, None) as replay:
        assert hooks() == before
    assert replay.rerouted == 0.0
