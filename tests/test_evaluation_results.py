"""Evaluation results: rows, tables by hand, files that round-trip, and paired differences.

Run: python -m pytest tests/test_evaluation_results.py
"""

import json
import subprocess
from dataclasses import replace

import numpy as np
import pytest

from drlib.config import Config
from drlib.evaluation.evaluate import Outcome, rows_of
from drlib.evaluation.results import Results, origin
from drlib.intervals import difference_interval, share_interval
from drlib.training import run_folder, stages
from drlib.training.distributed import Ranks


def outcome(task, kind, hops, greedy, samples, calls=4, errors=1):
    return Outcome(task, kind, hops, greedy, samples, calls, errors, 2, 0, 0)


SFT = [
    outcome("a", "python", 0, True, [True, False]),
    outcome("b", "search", 1, False, [False] * 2),
    outcome("c", "search", 3, False, [False, True]),
]
RL = [
    outcome("a", "python", 0, True, [True, True], 4, 0),
    outcome("b", "search", 1, True, [True] * 2),
    outcome("c", "search", 3, True, [False, True]),
]


@pytest.fixture
def results():
    outcomes = {("sft", 0): SFT, ("rl", 0): RL, ("rl", 1): SFT}
    rows = [r for (stage, seed), o in outcomes.items() for r in rows_of(o, stage, seed)]
    return Results("make reference", "laptop", rows, outcomes)


def test_rows_count_answers_and_questions():
    rows = {
        (r["kind"], r["hops"], r["decoding"]): (r["correct"], r["n"])
        for r in rows_of(SFT, "sft", 0)
    }
    assert rows["python", 0, "sample"] == (1, 2) and rows["python", 0, "pass@2"] == (1, 1)
    assert rows["search", 3, "greedy"] == (0, 1) and rows["search", 3, "sample"] == (1, 2)


def test_counts_and_means_by_hand(results):
    assert results.count("rl", "search", "greedy") == (2, 4)
    assert results.count("rl", "search", "greedy", hops=3) == (1, 2)
    assert results.accuracy("rl", "search", "sample")[0] == pytest.approx((2 + 0 + 1 + 1) / 8)


def test_accuracy_interval_covers_seeds_and_questions(results):
    """Greedy search answers of two seeds: (right, right) and (wrong, wrong)."""
    assert results.scores("rl", "search", "greedy") == {
        0: {"b": 1.0, "c": 1.0},
        1: {"b": 0.0, "c": 0.0},
    }
    mean, low, high = results.accuracy("rl", "search", "greedy")
    assert (mean, low, high) == share_interval(np.array([[1.0, 1.0], [0.0, 0.0]]))
    assert high - low > 0.9  # two seeds that differ this much give a very wide interval


def test_questions_have_equal_weight():
    one = [
        outcome("a", "search", 1, True, [True] * 6),
        outcome("b", "search", 1, False, [False]),
        outcome("c", "search", 1, False, [False, True]),
    ]
    found = Results("x", "ci", [], {("rl", 0): one}).accuracy("rl", "search", "sample")
    assert found[0] == pytest.approx(0.5)
    copies = [outcome(o.task, o.kind, o.hops, o.greedy, o.samples * 50) for o in one[::-1]]
    again = Results("x", "ci", [], {("rl", 0): copies}).accuracy("rl", "search", "sample")
    assert again == found, "copies of an answer are no news"


def test_gain_is_paired_by_seed_and_question(results):
    """Only seed 0 has both stages: b gains one, c none."""
    mean, low, high = results.gain("rl", "sft", "search", "sample")
    assert mean == pytest.approx((1.0 - 0.0 + 0.5 - 0.5) / 2)
    assert (mean, low, high) == difference_interval(np.array([[1.0, 0.0]]))
    results.outcomes["sft", 1] = SFT  # now seed 1 has both, and gains nothing
    assert results.gain("rl", "sft", "search", "sample")[0] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("stage", "kind", "decoding", "message"),
    [
        ("rl", "maths", "greedy", "'rl' was not asked maths questions"),
        ("rl", "search", "pass@9", "unknown decoding 'pass@9'.* pass@2"),
        ("cpt", "search", "sample", "'cpt' was not asked search questions"),
    ],
)
def test_missing_stages_and_kinds_raise(results, stage, kind, decoding, message):
    with pytest.raises(ValueError, match=message):
        results.accuracy(stage, kind, decoding)


def test_gain_requires_a_common_seed(results):
    del results.outcomes["rl", 0]
    with pytest.raises(ValueError, match="no seed has both 'rl' and 'sft'"):
        results.gain("rl", "sft", "search", "sample")
    with pytest.raises(ValueError, match="'cpt' was not evaluated: there are"):
        results.gain("rl", "cpt", "search", "sample")


def test_gain_between_runs_is_paired(results):
    """Sampled search answers of seed 0: 3 of 4 are correct here, 1 of 4 in the other run."""
    other = Results("y", "laptop", [], {("rl", 0): SFT})
    assert results.gain("rl", "rl", "search", "sample", of=other)[0] == pytest.approx(0.5)
    assert other.gain("rl", "rl", "search", "sample", of=results)[0] == pytest.approx(-0.5)
    renamed = [replace(o, task=o.task + "'") for o in SFT]
    with pytest.raises(ValueError, match="'rl' and 'rl' were asked other questions"):
        results.gain("rl", "rl", "search", "sample", of=Results("", "", [], {("rl", 0): renamed}))


def test_files_round_trip(results, tmp_path):
    results.save(tmp_path / "new folder")
    again = Results.load(tmp_path / "new folder")
    assert again.rows == results.rows and again.outcomes == results.outcomes
    assert json.loads((tmp_path / "new folder" / "results.json").read_text())["command"]


def test_unreadable_results_name_the_folder(tmp_path):
    with pytest.raises(ValueError, match="no readable results"):
        Results.load(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match="no readable results"):
        Results.load(tmp_path)


def test_stages_must_have_the_same_questions(tmp_path):
    broken = Results("x", "ci", [], {("sft", 0): SFT, ("rl", 0): RL[::-1]})
    with pytest.raises(ValueError, match="other questions"):
        broken.save(tmp_path)


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Create a checkout and return `commit(text)`, which changes config.py."""
    checkout = tmp_path / "checkout"
    (checkout / "drlib").mkdir(parents=True)

    def git(*arguments):
        author = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        command = ["git", "-C", str(checkout), *author, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(text):
        (checkout / "drlib" / "config.py").write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", "another recipe or seed")
        return git("rev-parse", "HEAD")

    git("init", "-q")
    monkeypatch.setattr(run_folder, "ROOT", checkout)
    return commit


def finish(names, config, runs, **metrics):
    for name in names:
        run_folder.RunFolder(
            stages.folder(name, config, runs), stages.stage_settings(name, config), Ranks()
        ).finish(metrics)


def test_results_record_the_commits_of_their_stages(history, tmp_path):
    seed = Config().evaluation.seed
    configs = [Config(seed=0), Config(seed=1)]
    history("evaluation.seed = 5")
    registered = history(f"evaluation.seed = {seed}")
    recipe = history(f"evaluation.seed = {seed}; rl.lr = 2")
    finish(["world"], configs[0], tmp_path, pages=7)
    for config in configs:
        finish(["rl"], config, tmp_path)
    evaluation = history(f"evaluation.seed = {seed}; rl.lr = 2; asked in batches")
    for config in configs:
        finish(["evaluate_rl"], config, tmp_path)
    history("evaluation.seed = 6")
    assert origin(configs, tmp_path, ["rl"]) == {
        "world": {"name": "tour", "pages": 7},
        "recipe": [recipe],
        "evaluation": [evaluation],
        "evaluation_seed": seed,
        "seed_written_down": registered,
    }


def test_uncommitted_changes_are_recorded_as_dirty(history, tmp_path):
    commit = history("evaluation.seed = 5")
    config = Config.load(evaluation__seed=7)
    (run_folder.ROOT / "drlib" / "config.py").write_text("not committed")
    finish(["world", "rl", "evaluate_rl"], config, tmp_path)
    provenance = origin([config], tmp_path, ["rl"])
    assert provenance["recipe"] == [f"{commit}-dirty"] == provenance["evaluation"]
    assert provenance["evaluation_seed"] == 7 and provenance["seed_written_down"] == ""


def test_results_can_be_restricted_to_seeds(results):
    """The sums are restricted too; a mean over other seeds would describe another policy."""
    first = results.only([0])
    assert first.seeds == [0] and results.seeds == [0, 1]
    assert first.accuracy("rl", "search", "greedy")[0] == 1.0
    assert results.accuracy("rl", "search", "greedy")[0] == 0.5
    assert first.count("rl", "search", "greedy") == (2, 2)
    assert first.command == results.command
