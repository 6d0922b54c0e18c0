"""The cold start's data: which attempts are trained on, and which of their tokens carry loss.

Run: python -m pytest tests/test_training_sft.py
"""

import pytest

from drlib.config import Config
from drlib.files import read_json_lines
from drlib.training import data, sft, stages
from drlib.training.ranks import Ranks
from drlib.training.run import RunFolder, read_manifest, read_metrics
from tests.loop_examples import build_stages

FILTERS = ("correct", "funnel", "none")
SMALL = {
    "hidden": 32,
    "head_dim": 8,
    "layers": 2,
    "expert_hidden": 16,
    "cpt_steps": 1,
    "sft_steps": 2,
    "sft_replay_share": 0.0,
    "demonstrations": 300,
    "processes": 1,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The stages before the cold start, built in this process."""
    runs = tmp_path_factory.mktemp("runs")
    names = ("world", "untrained", "demonstrations", "cpt")
    build_stages(names, Config.load("ci", **SMALL), runs)
    return runs


def trained(runs, **changes) -> dict:
    """The metrics of a cold start with some settings changed."""
    config = Config.load("ci", **SMALL | changes)
    path = stages.folder("sft", config, runs)
    if not RunFolder.complete(path):
        sft.sft(config, path, Ranks())
    return read_metrics(path)[-1] | read_manifest(path)["metrics"]


def test_the_funnel_takes_less_than_the_correct_attempts_and_says_why(runs):
    config = Config.load("ci", **SMALL)
    pool = stages.folder("demonstrations", config, runs)
    rows = read_json_lines(pool / "episodes.jsonl")
    kept = {name: data.read_episodes(pool, name) for name in ("none", "correct", "funnel")}
    assert kept["none"] == rows
    assert kept["correct"] == [row for row in rows if row["correct"]]
    assert all(row in kept["correct"] for row in kept["funnel"])
    assert 0 < len(kept["funnel"]) < len(kept["correct"]) < len(rows) == 300
    # right without having looked: a guess is not grounded in any tool's answer
    rejected = [row for row in kept["correct"] if row not in kept["funnel"]]
    assert {row["fault"][0] for row in rejected} <= {"grounded", "redundant", "bounds"}
    wrong = [row for row in rows if not row["correct"]]
    assert all(row["fault"] is not None for row in wrong)
    counts = read_manifest(pool)["metrics"]
    assert counts == {
        "episodes": 300,
        "correct": len(kept["correct"]),
        "passed": len(kept["funnel"]),
    }


def test_the_filter_decides_what_is_trained_on(runs):
    sizes = {name: trained(runs, demonstration_filter=name)["pool"] for name in FILTERS}
    config = Config.load("ci", **SMALL)
    pool = stages.folder("demonstrations", config, runs)
    assert sizes == {name: len(data.read_episodes(pool, name)) for name in FILTERS}


def test_loss_on_all_tokens_is_loss_on_those_of_questions_and_tools_too(runs):
    own, everything = (trained(runs, sft_loss_on=which) for which in ("own", "all"))
    assert own["tokens"] == everything["tokens"]  # the same samples in the same order
    assert own["loss_tokens"] < 0.6 * own["tokens"]
    # all but each sample's first, which nothing before it predicts
    assert 0.95 * everything["tokens"] < everything["loss_tokens"] < everything["tokens"]
