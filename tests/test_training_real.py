"""Real models through all TRL stages: three architectures with three chat templates.

Run: python -m pytest tests/test_training_real.py
"""

import json
import shutil

import nbformat
import numpy as np
import pytest
import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from drlib.cli.ask import main as ask
from drlib.config import ROOT, Config
from drlib.files import read_json_lines
from drlib.models.moe import load_policy
from drlib.notebook import execution
from drlib.rewards.functions import REWARDS
from drlib.training import grpo_trl, stages
from drlib.training.learner import FINAL_LR
from drlib.training.model_setup import build_lora_config, find_policy, load_model
from drlib.training.optim import schedule
from drlib.training.planner import measure_rates, read_workload
from drlib.training.question_scheduler import QuestionScheduler
from drlib.training.run_folder import read_manifest, read_metrics
from drlib.trajectory import load_trajectories
from tests.loop_examples import ColdStart, flat, settings
from tests.real_examples import (
    FEW,
    MINIATURE,
    assert_logprobs_of,
    built,
    max_difference,
    miniature_config,
    weights,
)
from tests.template_examples import REAL

TOUR_SFT = "figures/reference/tour/policy_sft"
SEED = 1  # whose first four questions of the tour have groups with different rewards


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return tmp_path_factory.mktemp("real models")


@pytest.fixture(scope="module", params=REAL)
def pipeline(request, workspace):
    """Build all stages for one architecture; return (settings, runs folder)."""
    config = miniature_config(workspace, request.param, **FEW)
    runs = workspace / "runs"
    built("evaluate_rl", config, runs)
    return config, runs


def test_every_stage_writes_its_result(pipeline):
    config, runs = pipeline
    assert find_policy(stages.folder("cpt", config, runs)) == config.model.path, "no step, no copy"
    before = weights(stages.folder("sft", config, runs) / "policy")
    assert max_difference(before, weights(ROOT / config.model.path)) > 0
    rl = stages.folder("rl", config, runs)
    assert max_difference(before, weights(rl / "policy")) > 0
    rows = read_metrics(rl)
    assert [row["step"] for row in rows] == [1, 2]
    assert rows[0]["live_groups"] > 0 and rows[0]["grad_norm"] > 0
    assert not (rl / "trl").exists(), "checkpoints go with the end"
    outcomes = read_json_lines(stages.folder("evaluate_rl", config, runs) / "outcomes.jsonl")
    assert len(outcomes) >= 2 * config.evaluation.questions


def test_transformers_loads_the_trained_model(pipeline):
    """Uses transformers alone, without adapters or drlib."""
    config, runs = pipeline
    folder = stages.folder("rl", config, runs) / "policy"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(config.model.path).chat_template
    assert {*model.state_dict()} == {*load_model(config.model.path, torch.float32).state_dict()}


def test_rollout_logprobs_match_the_cold_start(pipeline):
    """Recorded log-probabilities are those of the cold start including its adapters."""
    config, runs = pipeline
    (record, *_) = load_trajectories(
        stages.folder("rl", config, runs) / "trajectories_0001.parquet"
    )
    assert_logprobs_of(record, find_policy(stages.folder("sft", config, runs)))


def test_trained_model_runs_in_drlib_ask(pipeline, capsys):
    """`drlib ask --folder` answers or prints a one-line error."""
    config, runs = pipeline
    folder = stages.folder("rl", config, runs) / "policy"
    options = ["--folder", str(folder), "--calls", "1", "--turn-tokens", "8"]
    status = ask(["What is the currency of Norway?", *options, "--context-tokens", "3000"])
    assert status in (0, 1) and "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        {
            "trainer.lora_rank": 0,
            "trainer.gradient_checkpointing": True,
            "trainer.report_to": "tensorboard",
            "model.tool_format": "template",
            "sft.short_tokens": 560,
            "sft.rounds": True,
        },
        {
            "pretrain.steps": 2,
            "pretrain.batch_tokens": 4096,
            "rl.agent": "iterresearch",
            "model.dtype": "bfloat16",
        },
    ],
    ids=[
        "all weights, the model's tool format, two lengths",
        "pre-training, several contexts, half precision",
    ],
)
def test_other_settings(workspace, changes):
    config = miniature_config(workspace, "qwen3_moe", **FEW | changes)
    folder = built("rl", config, workspace / "runs")
    assert read_metrics(folder)[0]["grad_norm"] > 0
    dtype = getattr(torch, config.model.dtype)
    if config.pretrain.steps:
        cpt = stages.folder("cpt", config, workspace / "runs")
        start = {n: t.to(dtype) for n, t in weights(workspace / "qwen3_moe").items()}
        assert max_difference(start, weights(cpt / "policy")) > 0
    assert any((folder / "tensorboard").glob("events*")) == (config.trainer.report_to != "none")
    assert {tensor.dtype for tensor in weights(folder / "policy").values()} == {dtype}


def test_adapters_cover_attention_and_experts_only(workspace):
    model = load_model(miniature_config(workspace, "qwen3_moe").model.path, torch.float32)
    assert build_lora_config(model, 0) is None
    trained_folder = get_peft_model(model, build_lora_config(model, 2))
    found = {
        name.split("layers.0.")[1].split(".lora_")[0]
        for name, weight in trained_folder.named_parameters()
        if weight.requires_grad and "layers.0." in name
    }
    attention = {f"self_attn.{kind}_proj" for kind in "qkvo"}
    experts = {"mlp.experts", "mlp.experts.base_layer"}  # two weights: PEFT wraps one in the other
    assert found == attention | experts
    trained = [name for name, weight in trained_folder.named_parameters() if weight.requires_grad]
    assert all(".layers." in name for name in trained)


def test_notebook_trains_on_own_documents(workspace, tmp_path, capsys):
    """Run notebook 00 with papermill as in the README, then `drlib ask` with the trained model.

    The notebook runs the whole pipeline on a folder of pages.
    """
    shutil.copytree(ROOT / "notebooks" / "tern", tmp_path / "my notes")
    config = miniature_config(
        workspace,
        "llama",
        rl__reward__name="exact_match",
        rl__start="",
        world__name=f"folder:{tmp_path / 'my notes'}",
    )
    parameters = {
        "profile": "gpu1",
        "model": config.model.path,
        "world": config.world.name,
        "settings": {name: config.get(name) for name in MINIATURE},
    }
    runs = ROOT / "runs"
    before = {*(runs / "gpu1").glob("*")}
    try:
        execution.run("00", parameters, tmp_path / "copy.ipynb")
        (trained_folder,) = {*(runs / "gpu1").glob("rl-*")} - before
        question = ["Who built the Grey Apology?", "--world", parameters["world"]]
        limits = ["--calls", "1", "--turn-tokens", "8", "--context-tokens", "3000"]
        ask([*question, "--folder", str(trained_folder / "policy"), *limits])
        assert trained_folder == stages.folder("rl", config, runs)
        evaluated = read_manifest(stages.folder("evaluate_rl", config, runs))
        pool = stages.folder("demonstrations", config, runs) / "episodes.jsonl"
        assert any(row["correct"] for row in read_json_lines(pool))
    finally:
        for path in {*(runs / "gpu1").glob("*")} - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert evaluated["metrics"]["questions"] >= 2 * config.evaluation.questions
    copy = nbformat.read(tmp_path / "copy.ipynb", 4)
    assert copy.metadata.papermill.exception is None
    assert "evaluated: rl" in capsys.readouterr().out


@pytest.fixture(scope="module")
def pool(workspace):
    """Build rollouts of the tour's SFT policy as a model that can already answer."""
    config = miniature_config(
        workspace,
        "qwen3",
        model__path=str(ROOT / TOUR_SFT),
        demonstrations__teacher="model",
        demonstrations__rollouts=2,
        demonstrations__count=10,
        rollout__max_turn_tokens=72,
        rollout__max_context_tokens=448,
        rollout__max_calls=6,
        trainer__lora_rank=0,
    )
    return config, built("demonstrations", config, workspace / "runs")


def test_pool_stores_the_sampled_tokens(pool):
    config, folder = pool
    rows = read_json_lines(folder / "episodes.jsonl")
    assert len(rows) >= 2 * 9 and 0.2 < np.mean([row["correct"] for row in rows]) < 1
    assert rows[0]["task"] == rows[1]["task"] and rows[0]["ids"] != rows[1]["ids"]
    model = load_model(config.model.path, torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)
    row = next(row for row in rows if row["correct"])
    text = tokenizer.decode([i for i, own in zip(row["ids"], row["generated"]) if own])
    assert text.endswith("</answer>") and "<tool_response>" not in text
    assert len(row["ids"]) == len(row["generated"]) and model.config.vocab_size > max(row["ids"])


def test_sft_uses_only_correct_episodes(pool, workspace):
    config, folder = pool
    sft = built("sft", config.derive(sft__steps=1, sft__batch_tokens=2048), workspace / "runs")
    right = sum(row["correct"] for row in read_json_lines(folder / "episodes.jsonl"))
    assert read_manifest(sft)["metrics"]["pool"] == right


def test_truncated_pool_is_recreated_identically(pool, workspace, tmp_path):
    """The rest of a truncated pool is recreated identically."""
    config, folder = pool
    for name in ("world", "untrained"):
        source = stages.folder(name, config, workspace / "runs")
        shutil.copytree(source, tmp_path / source.relative_to(workspace / "runs"))
    final = stages.folder("demonstrations", config, tmp_path)
    partial = final.with_name(final.name + ".partial")
    partial.mkdir(parents=True)
    whole = (folder / "episodes.jsonl").read_bytes()
    (partial / "episodes.jsonl").write_bytes(whole[: int(0.9 * len(whole))])
    assert (built("demonstrations", config, tmp_path) / "episodes.jsonl").read_bytes() == whole


def test_pool_without_correct_episodes_is_rejected(workspace):
    config = miniature_config(
        workspace,
        "qwen3",
        demonstrations__teacher="model",
        demonstrations__rollouts=1,
        demonstrations__count=2,
    )
    with pytest.raises(ValueError, match="keeps no demonstration.*demonstrations.teacher=solver"):
        built("sft", config, workspace / "runs")


def tour_config(**changes) -> Config:
    """Return settings of the tour's policy on TRL with the cold start of the local-loop tests."""
    few = {"rl.steps": 1, "rl.questions": 4, "rl.group": 4, "seed": SEED}
    return settings(**{"trainer.backend": "trl", **few, **changes})


@pytest.fixture(scope="module")
def start():
    start = ColdStart()
    yield start
    start.close()


@pytest.fixture(scope="module")
def tour_runs(tmp_path_factory):
    """Return a runs folder with the tour's world, the only input of RL from the cold start."""
    runs = tmp_path_factory.mktemp("tour runs")
    built("world", tour_config(), runs)
    return runs


# Options in one case act on different parts of a step: questions, rollouts, weights, loss.
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "rl.loss.kl_coef": 0.1,
            "rl.loss.aggregate": "sequence",
            "rl.callbacks.drift_factor": 0.5,
            "rl.callbacks.kl_target": 0.01,
        },
        {
            "rl.off_policy.routing_replay": "r2",
            "rl.sampling.oversample": 2,
            "rl.sampling.resample": "sort",
            "rl.curriculum.pool": 8,
            "rl.curriculum.mixture": "exact",
            "rl.curriculum.curation_every": 1,
        },
        {
            "rl.sampling.draws": 2,
            "rl.reward.name": "exact_match",
            "rl.sampling.duplicate": True,
            "rl.filter.drop_equal": True,
        },
        {
            "rl.sampling.adaptive_group": True,
            "rl.filter.repair_groups": True,
            "rl.loss.aggregate": "sequence",
        },
    ],
    ids=[
        "recipe",
        "KL, sequences, drift alarm and KL control",
        "routing replay, oversampling and a curated pool",
        "dynamic sampling and duplicated groups",
        "adaptive and repaired groups",
    ],
)
def test_first_step_matches_the_local_loop(start, tour_runs, tmp_path, changes):
    """Questions, rollouts and the weights after one update are the same."""
    config = tour_config(rl__lr=1e-2, trainer__balance_coef=0.0, **changes)
    folder = built("rl", config, tour_runs)
    (row,) = read_metrics(folder)
    recipe = config.derive(trainer__backend="local", rl__off_policy__routing_replay="none")
    step = start.step(recipe, tmp_path / "local")
    local, _ = step.step(0)
    for name in ("accuracy", "generated", "calls", "live_groups"):
        assert row[name] == pytest.approx(local[name], abs=1e-6), name
    assert row["live_groups"] > 0
    missing = 1 - row["rollouts"] / (config.rl.questions * config.rl.group)
    assert row["filter/out_of_loss"] >= missing, "rows that fill TRL's batch have no loss weight"
    assert read_workload(row) == read_workload(local)  # by which a plan takes its rates
    assert measure_rates([row]).train_tokens_s > 0
    assert row["loss"] == pytest.approx(local["loss"], abs=5e-6)
    assert row["grad_norm"] == pytest.approx(local["grad_norm"], rel=1e-4)
    local_weights = {name: t.detach() for name, t in step.model.state_dict().items()}
    trained, _ = load_policy(folder / "policy")
    before, _ = load_policy(ROOT / TOUR_SFT)
    distances = [(local_weights[n] - t).abs().max().item() for n, t in before.state_dict().items()]
    differences = [(local_weights[n] - t) for n, t in trained.state_dict().items()]
    # Adam's first step is the gradient's sign, which rounding can flip if the gradient is near 0
    share = torch.cat([(o.abs() > 1e-3).float().flatten() for o in differences]).mean().item()
    assert max(distances) > 5e-3 and share < 2e-3


def test_curriculum_stages_change_limits_and_reset_the_optimizer(tour_runs, monkeypatch):
    """As in rStar2-Agent: shorter contexts first, and a new optimizer in the last stage."""
    pool = {"rl.curriculum.pool": 8, "rl.curriculum.stages": "three"}
    config = tour_config(rl__steps=3, rl__questions=2, rollout__max_context_tokens=640, **pool)
    contexts, resets = [], []
    restart, collect = grpo_trl.AgenticGRPOTrainer.restart, grpo_trl.collect_rollouts

    def record_limits(agent, *rest):
        contexts.append(agent.limits.context_tokens)
        return collect(agent, *rest)

    def record_reset(trainer):
        restart(trainer)
        resets.append(len(trainer.optimizer.state))

    monkeypatch.setattr(grpo_trl, "collect_rollouts", record_limits)
    monkeypatch.setattr(grpo_trl.AgenticGRPOTrainer, "restart", record_reset)
    rows = read_metrics(built("rl", config, tour_runs))
    assert [row["stage"] for row in rows] == [1, 2, 3]
    assert contexts == [640 * 8 // 12, 640, 640] and resets == [0]
    assert rows[2]["probe_rollouts"] > 0, "the last stage begins with a probe of all questions"


def test_learning_rate_matches_the_local_loop(tour_runs):
    config = tour_config(rl__steps=4, rl__warmup_steps=2, rl__lr=1e-4, rl__questions=1, rl__group=2)
    rates = [row["learning_rate"] for row in read_metrics(built("rl", config, tour_runs))]
    expected = [1e-4 * schedule(step, 4, 2, 0.5, FINAL_LR) for step in range(4)]
    assert rates == pytest.approx(expected)


def test_step_without_reward_variance_changes_nothing(start, tour_runs, monkeypatch):
    """After a first step with a gradient, the momentum would move the weights."""

    def first_step_only(trajectory, task):
        return float(trajectory.policy_version > 0 or trajectory.id.endswith("-0"))

    monkeypatch.setitem(REWARDS, "first_step_only", first_step_only)
    after = []
    finish = grpo_trl.RolloutFunction.finish_step

    def record_weights(self, update):
        after.append(flat(self.learner.model))
        return finish(self, update)

    monkeypatch.setattr(grpo_trl.RolloutFunction, "finish_step", record_weights)
    config = tour_config(rl__reward__name="first_step_only", rl__steps=2, rl__questions=1)
    rows = read_metrics(built("rl", config, tour_runs))
    assert [row["live_groups"] for row in rows] == [1, 0]
    assert not torch.equal(after[0], flat(start.policy))
    assert torch.equal(after[1], after[0])


def test_second_step_uses_the_updated_curriculum(start, tour_runs, tmp_path, monkeypatch):
    """A step draws its questions and rollouts after the previous update."""
    seen = []
    draw = QuestionScheduler.draw

    def record_state(self, step, curriculum, *again):
        seen.append(curriculum.state_dict())
        return draw(self, step, curriculum, *again)

    monkeypatch.setattr(QuestionScheduler, "draw", record_state)
    config = tour_config(rl__steps=2, rl__lr=1e-2)
    rows = read_metrics(built("rl", config, tour_runs))
    first, second = seen
    step = start.step(config.derive(trainer__backend="local"), tmp_path / "local")
    step.step(0)
    assert second == step.curriculum.state_dict() != first
    assert rows[1]["mismatch/max_logp_gap"] < 1e-4, "the engine has the first step's weights"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rl.minibatches": 2}, "rl.minibatches=2 needs trainer.backend=local"),
        ({"rl.off_policy.staleness": 1}, "rl.off_policy.staleness=1 needs trainer.backend=local"),
        ({"rollout.max_context_tokens": 100_000}, "rollout.max_context_tokens=100000"),
        (
            {"trainer.device_batch": 5},
            "cannot be shared by 1 processes with trainer.device_batch=5",
        ),
        ({"rl.off_policy.routing_replay": "r2", "trainer.backend": "local"}, "exact local engine"),
        ({"rl.off_policy.routing_replay": "r3"}, "routed_experts|routes"),
        ({"trainer.fsdp": True}, "trainer.fsdp=true shards over processes"),
        ({"engine.name": "server"}, "engine.name=server needs engine.url"),
    ],
)
def test_incompatible_settings_give_one_line_errors(tour_runs, changes, words):
    with pytest.raises(ValueError, match=words) as error:
        built("rl", tour_config(**changes), tour_runs)
    assert "\n" not in str(error.value)


class TestInvalidModelFolder:
    def error(self, workspace, tmp_path, folder):
        config = miniature_config(workspace, "qwen3").derive(model__path=str(folder))
        with pytest.raises(ValueError) as error:
            built("untrained", config, tmp_path / "runs")
        return str(error.value)

    def test_missing_folder(self, workspace, tmp_path):
        assert "no tokenizer at" in self.error(workspace, tmp_path, tmp_path / "nothing")

    def test_missing_tokenizer(self, workspace, tmp_path):
        miniature_config(workspace, "qwen3")
        keep = shutil.ignore_patterns("tokenizer*", "chat_template*", "vocab*", "special*")
        shutil.copytree(workspace / "qwen3", tmp_path / "bare", ignore=keep)
        assert "no tokenizer at" in self.error(workspace, tmp_path, tmp_path / "bare")

    def test_missing_chat_template(self, workspace, tmp_path):
        miniature_config(workspace, "qwen3")
        keep = shutil.ignore_patterns("chat_template*")
        shutil.copytree(workspace / "qwen3", tmp_path / "mute", ignore=keep)
        plan = json.loads((tmp_path / "mute" / "tokenizer_config.json").read_text())
        plan.pop("chat_template", None)
        (tmp_path / "mute" / "tokenizer_config.json").write_text(json.dumps(plan))
        assert "no chat template" in self.error(workspace, tmp_path, tmp_path / "mute")

    def test_missing_weights(self, workspace, tmp_path):
        miniature_config(workspace, "qwen3")
        keep = shutil.ignore_patterns("*.safetensors")
        shutil.copytree(workspace / "qwen3", tmp_path / "empty", ignore=keep)
        assert "no causal language model at" in self.error(workspace, tmp_path, tmp_path / "empty")

    def test_changed_weights_give_another_run_folder(self, workspace, tmp_path):
        config = miniature_config(tmp_path, "llama")
        before = stages.folder("sft", config, tmp_path)
        model = load_model(config.model.path, torch.float32)
        model.lm_head.weight.data += 1
        model.save_pretrained(config.model.path)
        assert stages.folder("sft", config, tmp_path) != before
