"""A short run of the profile `smol`: SFT, RL and `drlib ask` with a real language model.

Skipped unless `make smol` has converted the model. Run: make test-smol
"""

import pytest

from drlib.cli.ask import main as ask
from drlib.config import ROOT, Config, models_folder
from drlib.files import read_json_lines
from drlib.models.smol_reader import install_reader
from drlib.training import stages
from drlib.training.diagnosis import ROUNDED_GAP
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories
from tests.real_examples import built, max_difference, weights

if not (models_folder() / "smol").is_dir():
    pytest.skip("the model smol is not converted: run `make smol`", allow_module_level=True)

SHORT = {
    "world.name": "cldr",
    "world.pages": 300,
    "demonstrations.count": 32,
    "sft.steps": 10,
    "sft.batch_tokens": 1700,
    "sft.adam_lr": 6e-4,
    "rl.steps": 2,
    "rl.questions": 2,
    "rl.group": 4,
    "rl.warmup_steps": 0,
    "rl.reward.name": "random",  # a gradient in every step
    "rl.filter.overlong": "keep",
}


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    config = Config.load("smol", **SHORT)
    runs = tmp_path_factory.mktemp("smol")
    built("rl", config, runs)
    return config, runs


def test_ten_sft_steps_teach_the_format(short_run):
    config, runs = short_run
    losses = [row["loss"] for row in read_metrics(stages.folder("sft", config, runs))]
    assert losses[0] > 1.5 and losses[-1] < 0.7
    demonstrations = stages.folder("demonstrations", config, runs) / "episodes.jsonl"
    assert any(row["correct"] for row in read_json_lines(demonstrations))


def test_rollouts_call_tools(short_run):
    config, runs = short_run
    rollouts = load_trajectories(stages.folder("rl", config, runs) / "trajectories_0001.parquet")
    assert any(rollout.tool_results for rollout in rollouts)


def test_two_rl_steps_move_the_weights(short_run):
    config, runs = short_run
    rows = read_metrics(stages.folder("rl", config, runs))
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["grad_norm"] > 0 and row["updates"] == 1 for row in rows)
    assert all(row["logp_gap"] < ROUNDED_GAP for row in rows), "bfloat16 explains the difference"
    before, after = (
        weights(stages.folder(name, config, runs) / "policy") for name in ("sft", "rl")
    )
    assert max_difference(before, after) > 0


def test_ask_answers_or_names_the_cause(short_run, capsys):
    config, runs = short_run
    policy = stages.folder("rl", config, runs) / "policy"
    limits = ["--calls", "1", "--turn-tokens", "24", "--context-tokens", "2000"]
    status = ask(["What is the currency of Norway?", "--folder", str(policy), *limits])
    printed = capsys.readouterr()
    assert status in (0, 1) and "Traceback" not in printed.err and printed.out + printed.err


def test_reader_answers_from_documents_with_its_sources(capsys):
    install_reader()
    world = f"folder:{ROOT / 'tests' / 'first_hour' / 'folders' / 'product_sheets'}"
    assert ask(["What is the fabric of Marten 4?", "--world", world, "--model", "smol"]) == 0
    printed = capsys.readouterr().out
    assert "Answer  Silvane 40" in printed and "*  marten_4_tent.md" in printed
