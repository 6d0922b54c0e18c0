"""Dense real models through all stages of the local learner and engine.

Run: python -m pytest tests/test_training_real_local.py
"""

import pytest
import torch
from transformers import AutoTokenizer

from drlib.chat.prompts import BRIEF_PROMPT
from drlib.cli.ask import main as ask
from drlib.config import ROOT
from drlib.evaluation.evaluate import held_out
from drlib.files import read_json_lines
from drlib.training import stages
from drlib.training.data import load_training_world
from drlib.training.grpo import GRPOTrainer
from drlib.training.model_setup import find_policy
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories
from tests.real_examples import assert_logprobs_of, built, max_difference, miniature_config, weights

LOCAL = {
    "trainer.backend": "local",
    "trainer.lora_rank": 0,
    "engine.name": "local",
    "model.tool_format": "brief",
    "rollout.max_context_tokens": 900,
    "sft.muon_lr": 0.0,
    "sft.batch_tokens": 1024,
    "sft.replay_share": 0.0,
    "rl.loss.chunked_logprobs": True,
    "rl.group": 4,
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return tmp_path_factory.mktemp("real models")


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def pipeline(request, workspace):
    """Build all stages for one architecture; return (settings, runs folder)."""
    config = miniature_config(workspace, request.param, **LOCAL)
    runs = workspace / "runs"
    built("evaluate_rl", config, runs)
    return config, runs


def test_every_stage_writes_its_result(pipeline):
    config, runs = pipeline
    assert find_policy(stages.folder("cpt", config, runs)) == config.model.path, "no step, no copy"
    sft = stages.folder("sft", config, runs)
    before = weights(sft / "policy")
    losses = [row["loss"] for row in read_metrics(sft)]
    assert losses[-1] < losses[0]
    rl = stages.folder("rl", config, runs)
    assert max_difference(before, weights(rl / "policy")) > 0
    rows = read_metrics(rl)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["grad_norm"] > 0 for row in rows)
    assert all(row["logp_gap_max"] < 1e-4 for row in rows), "the engine has the new weights"
    outcomes = read_json_lines(stages.folder("evaluate_rl", config, runs) / "outcomes.jsonl")
    assert len(outcomes) >= 2 * config.evaluation.questions


def test_rollouts_begin_with_the_brief_prompt(pipeline):
    """The prompt names the tools only, and recorded log-probabilities are the model's."""
    config, runs = pipeline
    rl = stages.folder("rl", config, runs)
    (record, *_) = load_trajectories(rl / "trajectories_0001.parquet")
    assert record.messages[0] == {"role": "system", "content": BRIEF_PROMPT}
    sft = stages.folder("sft", config, runs)
    tokenizer = AutoTokenizer.from_pretrained(sft / "policy")
    assert BRIEF_PROMPT in tokenizer.decode(record.token_ids.tolist())
    assert_logprobs_of(record, find_policy(sft))


def test_ask_uses_the_prompt_of_the_training(pipeline, tmp_path):
    """A policy with a brief prompt does not get the schemas that it has never seen."""
    config, runs = pipeline
    folder = stages.folder("rl", config, runs) / "policy"
    question = "What is the currency of Norway?"
    limits = ["--calls", "1", "--turn-tokens", "8", "--context-tokens", "900"]
    for where, brief in ((folder, True), (config.model.path, False)):
        saved = tmp_path / f"{brief}.parquet"
        ask([question, "--folder", str(where), "--save", str(saved), *limits])
        if brief or saved.exists():  # a longer prompt than 900 tokens is an error
            (record,) = load_trajectories(saved)
            assert (record.messages[0]["content"] == BRIEF_PROMPT) == brief


def test_first_step_matches_trl(workspace):
    """The local learner and TRL's trainer take the same step on the same rollouts."""
    config = miniature_config(workspace, "llama", **LOCAL)
    config = config.derive(
        rl__start=config.model.path, rl__steps=1, rl__lr=1e-2, rl__group=4, engine__name="hf"
    )
    theirs = config.derive(trainer__backend="trl", rl__loss__chunked_logprobs=False)
    ours, trl = (built("rl", one, workspace / "step") for one in (config, theirs))
    (row,), (other,) = read_metrics(ours), read_metrics(trl)
    assert row["generated"] == other["generated"] and row["reward"] == other["reward"]
    assert row["live_groups"] > 0
    assert row["loss"] == pytest.approx(other["loss"], abs=5e-6)
    assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
    before, after = weights(workspace / "llama"), weights(ours / "policy")
    expected = weights(trl / "policy")
    moved = torch.cat([(after[n] - before[n]).flatten() for n in before])
    target = torch.cat([(expected[n] - before[n]).flatten() for n in before])
    # Adam's first step is the gradient's sign, which rounding can flip if the gradient is near 0
    assert ((moved - target).abs() > 1e-3).float().mean() < 2e-3 and moved.abs().max() > 5e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"engine.name": "hf"},
        {"model.dtype": "bfloat16"},
        {"trainer.backend": "trl", "trainer.pack_tokens": 1024},
    ],
    ids=["transformers", "half precision", "TRL with the local engine"],
)
def test_other_settings(workspace, changes):
    config = miniature_config(workspace, "llama", **LOCAL | changes)
    folder = built("rl", config, workspace / "other")
    assert read_metrics(folder)[0]["grad_norm"] > 0
    dtypes = {tensor.dtype for tensor in weights(folder / "policy").values()}
    assert dtypes == {getattr(torch, config.model.dtype)}


def test_interrupted_stage_resumes_to_the_same_weights(workspace, monkeypatch):
    config = miniature_config(workspace, "llama", **LOCAL)
    config = config.derive(rl__start=config.model.path, seed=7)
    whole = built("rl", config, workspace / "whole")
    built("world", config, workspace / "resumed")
    first = config.derive(rl__steps=2)

    class Killed(Exception):
        pass

    take = GRPOTrainer.step

    def kill_at_second(self, step):
        if step == 1:
            raise Killed
        return take(self, step)

    monkeypatch.setattr(GRPOTrainer, "step", kill_at_second)
    with pytest.raises(Killed):
        built("rl", first, workspace / "resumed")
    monkeypatch.setattr(GRPOTrainer, "step", take)
    resumed = built("rl", first, workspace / "resumed")
    assert max_difference(weights(resumed / "policy"), weights(whole / "policy")) == 0


def test_questions_about_another_world(pipeline):
    """Outcomes are those of a folder that was not trained on; only evaluations depend on it."""
    config, runs = pipeline
    other = config.derive(evaluation__world=f"folder:{ROOT / 'notebooks' / 'tern'}")
    assert stages.folder("rl", other, runs) == stages.folder("rl", config, runs)
    folder = built("evaluate_rl", other, runs)
    world, _ = load_training_world(other, name=other.evaluation.world)
    expected = [task.id for task in held_out(world, other, split=None)]
    assert [row["task"] for row in read_json_lines(folder / "outcomes.jsonl")] == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.path": "", "trainer.lora_rank": 4}, "trainer.lora_rank=4 needs a real model"),
        ({"model.path": "", "model.dtype": "bfloat16"}, "model.dtype=bfloat16 needs a real model"),
    ],
)
def test_settings_that_would_be_ignored_are_rejected(workspace, changes, words):
    config = miniature_config(workspace, "llama", **LOCAL | changes)
    with pytest.raises(ValueError, match=words):
        built("sft", config, workspace / "ignored")


def test_mixed_world(workspace):
    config = miniature_config(
        workspace, "llama", **LOCAL | {"world.name": "cldr+pydocs", "world.pages": 400}
    )
    world, counts = load_training_world(config)
    kinds = {entity.kind for entity in world.entities.values()}
    assert {"territory", "module"} <= kinds and counts["pages"] == len(world) <= 400
    assert world.name == "cldr+pydocs"
