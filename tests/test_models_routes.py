"""Expert routes from the engine to the trainer: engines, agents and the RL stage with R3.

Run: python -m pytest tests/test_models_routes.py
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from drlib.agents import Agent, create_agent
from drlib.agents.rollout_state import _routes as routes_of_contexts
from drlib.config import ROOT
from drlib.evaluation.evaluate import held_out
from drlib.models.engine import Completion, SamplingParams
from drlib.models.moe import load_policy
from drlib.models.routing_replay import record_routes
from drlib.models.transformers_engine import TransformersEngine
from drlib.models.vllm_engine import _sparse_layers
from drlib.training import grpo_trl, model_setup
from drlib.training.rollouts import rollout_limits, split_contexts
from drlib.training.run_folder import read_metrics
from drlib.training.trl import Routing
from drlib.trajectory import NO_RECORD, load_trajectories
from tests.engine_examples import small_model
from tests.loop_examples import ColdStart, settings
from tests.real_examples import built
from tests.rl_examples import a_trajectory, changed
from tests.template_examples import foreign_model
from tests.test_models_local_engine import Recorder, make_prompts
from tests.test_models_local_engine_contexts import ROUNDS, ContextRecorder

model = small_model
MEMORY_POLICY = "figures/reference/agents/policy"  # trained on reports and summaries


class RouteRecorder(Recorder):
    """Record the routes of each request's turns."""

    def __call__(self, i, completion):
        self.__dict__.setdefault("routes", {}).setdefault(i, []).append(completion.routed_experts)
        return super().__call__(i, completion)


class RouteAndContextRecorder(ContextRecorder, RouteRecorder):
    """Variant of `RouteRecorder` with new contexts."""


def model_routes(model, ids):
    """Return the experts [T, L, k] of one forward pass over `ids` alone."""
    with torch.no_grad(), record_routes(model) as recorder:
        model(input_ids=torch.tensor([list(map(int, ids))]))
    return recorder.passes[0].transpose(0, 1).numpy()


def assert_model_routes(model, ids, routes_TLK):
    """Check that routes equal the model's own, best expert first; the last token has no route."""
    assert routes_TLK.dtype == np.uint16
    assert np.array_equal(routes_TLK, model_routes(model, ids)[: len(ids) - 1])


# ---------------------------------------------------------------- engines


@pytest.mark.parametrize("batch", [1, 5])
def test_engine_routes_match_one_forward_pass(model, batch):
    """Conversations of different lengths in a batch, with turns that end at different positions."""
    prompts = make_prompts(8)
    params = SamplingParams(max_tokens=15, stop_ids=(1, 2, 3), stop_sequences=((9,),), seed=5)
    engine = TransformersEngine(model, batch=batch, max_context=200, routes=True)
    with ThreadPoolExecutor(3) as pool:
        recorder = RouteRecorder(prompts, pool=pool)
        engine.converse(prompts, params, recorder)
    assert {"stop", "length"} <= set(sum(recorder.reasons, []))
    for i, ids in enumerate(recorder.ids):
        assert [len(part) > 0 for part in recorder.routes[i]] == [True] * 3
        assert len(recorder.routes[i][0]) < len(recorder.ids[i])
        assert_model_routes(model, ids, np.concatenate(recorder.routes[i]))


def test_routes_restart_with_a_new_context(model):
    prompts = make_prompts(3)
    recorder = RouteAndContextRecorder(prompts)
    engine = TransformersEngine(model, max_context=200, routes=True)
    engine.converse(prompts, SamplingParams(max_tokens=12, seed=4), recorder)
    assert len(recorder.routes) == 3 * ROUNDS
    for i, ids in enumerate(recorder.ids):
        assert_model_routes(model, ids, np.concatenate(recorder.routes[i]))


def test_reporting_routes_has_no_side_effects(model):
    prompts, params = make_prompts(4), SamplingParams(max_tokens=10, seed=2)
    silent = TransformersEngine(model).generate(prompts, params)
    routed = TransformersEngine(model, routes=True).generate(prompts, params)
    assert silent == routed and {done.routed_experts is None for done in silent} == {True}
    assert all(len(done.routed_experts) == len(p) + 9 for p, done in zip(prompts, routed))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_dense_model_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="LlamaForCausalLM has no softmax.*leave routes") as error:
        TransformersEngine(foreign_model(tmp_path), routes=True)
    assert "\n" not in str(error.value)


def test_sparse_layers_of_vllm_are_selected(tmp_path):
    """vLLM reports every layer, dense ones as zeros; the trainer's routers are the sparse ones."""
    sizes = dict(hidden_size=16, num_hidden_layers=6, num_attention_heads=2, vocab_size=32)
    experts = dict(num_experts=4, moe_intermediate_size=8, decoder_sparse_step=2)
    config = Qwen3MoeConfig(**sizes, **experts, intermediate_size=8, mlp_only_layers=[3])
    config.save_pretrained(tmp_path / "sparse")
    with record_routes(Qwen3MoeForCausalLM(config)) as recorder:
        assert recorder.n_layers == len(_sparse_layers(tmp_path / "sparse"))
    assert _sparse_layers(tmp_path / "sparse") == [1, 5]
    with pytest.raises(ValueError, match="a llama has no experts.*leave routes=True out"):
        _sparse_layers(foreign_model(tmp_path / "dense"))


# ---------------------------------------------------------------- agents


@pytest.fixture(scope="module")
def cold_start():
    cold_start = ColdStart(rl__start=MEMORY_POLICY)
    yield cold_start
    cold_start.close()


class ContextSwitchingAgent(Agent):
    """Sample in one context, then in a second one, then in the first one again."""

    def run_task(self, at):
        first = at.begin()
        yield first
        yield at.begin("What is the currency of Norway?")
        first.observe("Nothing was found.")
        yield first


def run_agent(cold_start, kind, engine=None):
    config = settings(rollout__max_calls=4)
    engine = engine or TransformersEngine(
        cold_start.policy, max_context=config.rollout.max_context_tokens, routes=True
    )
    how = engine, cold_start.toolbox, cold_start.chat, rollout_limits(config)
    agent = kind(*how) if isinstance(kind, type) else create_agent(kind, *how)
    return agent.run(held_out(cold_start.world, config)[:3], temperature=1.0, seed=3)


@pytest.mark.parametrize("kind", ["react", "iterresearch", ContextSwitchingAgent])
def test_trajectory_has_routes_of_every_context(cold_start, kind):
    found = run_agent(cold_start, kind)
    contexts = [part for record in found for part in split_contexts(record)]
    assert len(contexts) == len(found) if kind == "react" else len(contexts) > len(found)
    shape = model_routes(cold_start.policy, [1, 2]).shape[1:]
    for part in contexts:
        assert part.routed_experts.shape == (len(part), *shape)
        assert (part.routed_experts[-1] == NO_RECORD).all() and part.generated[-1]
        assert_model_routes(cold_start.policy, part.token_ids, part.routed_experts[:-1])


def test_engine_without_routes_records_none(cold_start):
    config = settings()
    silent = TransformersEngine(cold_start.policy, max_context=config.rollout.max_context_tokens)
    assert {record.routed_experts is None for record in run_agent(cold_start, "react", silent)} == {
        True
    }


def test_routes_of_the_sampling_pass_are_kept():
    def sampled(ids, routes):
        array = np.array(routes, np.uint16)[:, None, None]
        return ids, Completion(ids, routed_experts=array)

    parts = [([1, 2], None), sampled([3, 4], [0, 0, 0]), ([5], None), sampled([6], [7, 7, 7, 7, 7])]
    routes_TLK = routes_of_contexts([parts, [([1], None), sampled([2], [3])]])
    assert routes_TLK.ravel().tolist() == [0, 0, 0, 7, 7, NO_RECORD, 3, NO_RECORD]


# ---------------------------------------------------------------- the stage


class Shifted(TransformersEngine):
    """Engine that reports each token's experts one token late."""

    def _step(self):
        for one, done in super()._step():
            done.routed_experts = np.roll(done.routed_experts, 1, axis=0)
            yield one, done


def r3_settings(**changes):
    """Return R3 settings with random rewards, so that every gradient is non-zero."""
    how = {
        "trainer.backend": "trl",
        "engine.name": "hf",
        "rl.off_policy.routing_replay": "r3",
    }
    small = {"rl.steps": 1, "rl.questions": 1, "rl.group": 3, "rl.lr": 1e-2}
    lives = {"rl.reward.name": "random", "rl.filter.overlong": "keep"}
    return settings(**{**how, **small, **lives, **changes})


def step_with(config, folder):
    (row,) = read_metrics(built("rl", config, folder))
    return row


def test_stage_replays_engine_routes(tmp_path, monkeypatch):
    row = step_with(r3_settings(), tmp_path / "right")
    assert row["live_groups"] > 0 and row["grad_norm"] > 0
    assert row["mismatch/max_logp_gap"] < 1e-4 and abs(row["mismatch/kl"]) < 1e-6
    assert row["moe/rerouted"] < 0.002
    monkeypatch.setattr(model_setup, "TransformersEngine", Shifted)
    wrong = step_with(r3_settings(), tmp_path / "wrong")
    assert wrong["mismatch/max_logp_gap"] > 0.1 and wrong["moe/rerouted"] > 0.1
    assert abs(wrong["grad_norm"] - row["grad_norm"]) > 1e-2 * row["grad_norm"]


def test_replay_with_adapters_and_several_contexts(tmp_path):
    """The engine's weights include the adapters; one context of a rollout is drawn."""
    config = r3_settings(
        rl__start=MEMORY_POLICY,
        rl__agent="iterresearch",
        rollout__max_calls=3,
        trainer__lora_rank=4,
        rl__steps=2,
    )
    folder = built("rl", config, tmp_path)
    first, second = read_metrics(folder)
    assert first["grad_norm"] > 0 and max(first["contexts"], second["contexts"]) > 1
    for row in (first, second):
        assert row["mismatch/max_logp_gap"] < 1e-4 and row["moe/rerouted"] < 0.002
    model, _ = load_policy(ROOT / MEMORY_POLICY)
    (record, *_) = load_trajectories(folder / "trajectories_0001.parquet")
    for part in split_contexts(record):
        assert_model_routes(model, part.token_ids, part.routed_experts[:-1])


def test_trl_rows_have_the_routes_of_their_tokens(model):
    """A context may end with a tool response without a following turn, which the row drops."""
    replayed = Routing(model, "r3")
    routes_TLK = np.arange(6 * 3 * 2, dtype=np.uint16).reshape(6, 3, 2)
    generated = np.array([0, 1, 1, 0, 1, 0], bool)
    sample = changed(a_trajectory(tokens=5), generated=generated, routed_experts=routes_TLK)
    row = grpo_trl.Row(sample, 1.0, 1.0)
    cell = grpo_trl._split_sample(row, 0)
    assert len(cell["prompt_ids"]) + len(cell["completion_ids"]) == 5
    assert (grpo_trl._routes(row, cell, replayed) == routes_TLK[:5]).all()


def test_missing_routes_are_allowed_only_without_tokens(model):
    replayed = Routing(model, "r3")
    sample = a_trajectory(tokens=2)
    row = grpo_trl.Row(sample, 1.0, 1.0)
    with pytest.raises(ValueError, match="reported no routes"):
        grpo_trl._routes(row, grpo_trl._split_sample(row, 0), replayed)
    silent = grpo_trl.Row(changed(sample, generated=np.zeros(3, bool)), 1.0, 1.0)
    routes_TLK = grpo_trl._routes(silent, grpo_trl._split_sample(silent, 0), replayed)
    assert routes_TLK.shape == (3, 3, replayed.sizes.chosen) and (routes_TLK == NO_RECORD).all()


@pytest.mark.parametrize("engine", ["local", "server"])
def test_engines_without_routes_are_rejected_before_training(tmp_path, engine):
    config = r3_settings(engine__name=engine, engine__url="http://x/v1")
    words = f"engine.name={engine} reports none: use engine.name=hf, or engine.name=vllm on a GPU"
    with pytest.raises(ValueError, match=words) as error:
        built("rl", config, tmp_path)
    assert "\n" not in str(error.value)
