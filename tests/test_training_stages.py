"""Stages with real processes: killing, resuming, several processes and partial folders.

Several processes are forked from one that has imported torch (`tests/stage_processes.py`), and the
single process that they are compared with is this one. The test of interruption starts the command
with torchrun.

Run: python -m pytest tests/test_training_stages.py
"""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from drlib.config import Config
from drlib.evaluation.evaluate import held_out, read_outcomes
from drlib.files import WriteError, write_atomic
from drlib.training import build, grpo, stages
from drlib.training.distributed import Ranks
from drlib.training.run_folder import RunFolder, RunFolderError, read_metrics
from drlib.trajectory import load_trajectories
from drlib.worlds import load_world
from tests import loop_examples
from tests.loop_examples import CALLED_BACK, REPLAYED, quick_settings, timeless_rows
from tests.stage_processes import build_stage, start_ranks
from tests.waiting import HANG_S

SMALL = {
    "model.hidden": 32,
    "model.layers": 2,
    "model.heads": 4,
    "model.head_dim": 8,
    "model.expert_hidden": 16,
    "model.experts": 4,
    "pretrain.steps": 6,
    "pretrain.batch_tokens": 1024,
    "sft.steps": 4,
    "sft.batch_tokens": 1024,
    "rollout.max_turn_tokens": 24,
    "rollout.max_calls": 2,
    "demonstrations.count": 60,
    "trainer.checkpoint_every": 2,
    "processes": 1,
}


def config(**changes) -> Config:
    return Config.load("ci", **{**SMALL, **changes})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Build the stages up to SFT in this process."""
    runs = tmp_path_factory.mktemp("a folder with runs")
    names = ("world", "untrained", "demonstrations", "cpt", "sft")
    loop_examples.build_stages(names, config(), runs)
    return runs


def torchrun(name, settings, runs, processes):
    """Return the command that builds the stage in real processes."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    start += ["--local-addr=127.0.0.1", f"--nproc-per-node={processes}", "-m", build.MODULE]
    return [*start, *stages.arguments(name, settings, runs)]


def weights(folder):
    from drlib.models.moe import load_policy

    model, _ = load_policy(folder / "policy")
    return model.state_dict()


def link_inputs(runs, target, settings, *names):
    for name in names:
        path = stages.folder(name, settings, target)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(stages.folder(name, settings, runs))


def wait_for_step(path, step, seconds=300):
    deadline = time.time() + seconds
    while time.time() < deadline:
        if path.exists() and len(path.read_text().splitlines()) >= step:
            return
        time.sleep(0.05)
    raise AssertionError(f"{path} never reached step {step}")


def kill_after_step(number, name, settings, runs, outputs):
    """Start a process for each output and send SIGKILL to all when a step is logged."""
    final = stages.folder(name, settings, runs)
    partial = final.with_name(final.name + ".partial")
    children = start_ranks(name, settings, runs, outputs)
    wait_for_step(partial / "metrics.jsonl", number)
    for child in children:
        os.killpg(child.pid, signal.SIGKILL)
    for child in children:
        child.join()
    assert not final.exists() and (partial / "checkpoint.pt").exists()


# options of which one rank alone sees a part
EVERY_RANK = {
    "rl.advantage.estimator": "batch_normalized",
    "rl.minibatches": 2,
    "rl.loss.correction": "truncate",
    "trainer.router_bias_rate": 0.01,
}
CURATED = {
    "rl.curriculum.pool": 8,
    "rl.curriculum.curation_every": 1,
    "rl.curriculum.stages": "three",
    "rl.curriculum.mixture": "exact",
    "rl.lr": 3e-4,
}
# case -> (stage, settings, step after which two processes are killed)
TWO_PROCESSES = {
    "cpt": ("cpt", config(pretrain__steps=7), 3),
    "every callback": ("rl", quick_settings(rl__steps=5, **EVERY_RANK, **CALLED_BACK), 3),
    "curation and replay": ("rl", quick_settings(**REPLAYED, **CURATED), None),
}


@pytest.mark.parametrize("case", TWO_PROCESSES)
def test_two_processes_are_bit_identical_to_one(runs, tmp_path, case):
    """If they are killed, it is after a step without a checkpoint, and two others resume."""
    name, settings, kill_at = TWO_PROCESSES[case]
    for target in (tmp_path / "one", tmp_path / "two"):
        link_inputs(runs, target, settings, "world", *(["untrained"] if name == "cpt" else []))
    one = build.build(name, settings, tmp_path / "one", Ranks())
    if kill_at:
        outputs = [tmp_path / "first", tmp_path / "second"]
        kill_after_step(kill_at, name, settings, tmp_path / "two", outputs)
    result = build_stage(name, settings, tmp_path / "two", 2)
    assert result.returncode == 0, result.stderr[-2000:]
    two = stages.folder(name, settings, tmp_path / "two")
    rows = timeless_rows(one)
    assert timeless_rows(two) == rows
    assert [row["step"] for row in rows] == list(range(1, len(rows) + 1))
    assert sum(row["grad_norm"] > 0 for row in rows) >= 2
    expected = weights(one)
    for key, value in weights(two).items():
        assert torch.equal(value, expected[key]), key
    if case == "every callback":
        assert sum(row["drift_alarms"] for row in rows) >= 1
    if case == "curation and replay":
        assert rows[0]["probe_rollouts"] == 8 * 4 + 4
        assert sum(row["replayed"] for row in rows) > 0


FOUR_PROCESSES = {
    "cpt": config(pretrain__steps=3),
    "rl": quick_settings(
        rl__steps=2,
        rl__questions=6,
        rl__lr=2e-4,
        rl__curriculum__pool=8,
        rl__curriculum__curation_every=1,
    ),
}


@pytest.mark.parametrize("name", FOUR_PROCESSES)
def test_four_processes_match_one(runs, tmp_path, name):
    """Samples, rollouts and probed questions are the same, but summation order differs.

    Rounding eventually changes a sampled token, so runs diverge later. The balance loss is off
    because it is not linear in its batch (difference 5e-3 with it).
    """
    settings = FOUR_PROCESSES[name].derive(trainer__balance_coef=0.0)
    for target in (tmp_path / "one", tmp_path / "four"):
        link_inputs(runs, target, settings, "world", *(["untrained"] if name == "cpt" else []))
    build.build(name, settings, tmp_path / "one", Ranks())
    result = build_stage(name, settings, tmp_path / "four", 4)
    assert result.returncode == 0, result.stderr[-2000:]
    folders = [stages.folder(name, settings, tmp_path / target) for target in ("one", "four")]
    one, four = (read_metrics(folder) for folder in folders)
    for counted in {"tokens", "rollouts", "probe_rollouts"} & one[0].keys():
        assert [row[counted] for row in one] == [row[counted] for row in four]
    assert any(row["grad_norm"] > 0 for row in one)
    for a, b in zip(one, four, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4, abs=1e-6)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-2)
    expected = weights(folders[0])
    others = weights(folders[1])
    difference = max(
        float((value.float() - others[key].float()).abs().max()) for key, value in expected.items()
    )
    assert difference < 5e-4
    print(f"{name}: weights are {difference:.1e} apart")


def test_three_processes_are_rejected(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ValueError, match="3 processes cannot share 2 shards evenly: set processes"):
        Ranks()


def test_interrupted_stage_leaves_a_checkpoint_and_resumes(runs, tmp_path):
    settings = config(pretrain__steps=400)
    link_inputs(runs, tmp_path, settings, "world", "untrained")
    final = stages.folder("cpt", settings, tmp_path)
    partial = final.with_name(final.name + ".partial")
    child = subprocess.Popen(
        torchrun("cpt", settings, tmp_path, 2),
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for_step(partial / "metrics.jsonl", 2)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait(timeout=HANG_S) != 0
    left = subprocess.run(["pgrep", "-g", str(child.pid)], capture_output=True, text=True)
    assert left.stdout == ""
    state = torch.load(partial / "checkpoint.pt", weights_only=True)
    assert not final.exists() and state["step"] >= 2
    small = {**state, "step": 399}  # pretend that one step is left
    torch.save(small, partial / "checkpoint.pt")
    assert build.build("cpt", settings, tmp_path, Ranks()) == final
    assert RunFolder.is_complete(final)


def test_full_disk_is_reported_and_leaves_no_partial_file(runs, tmp_path):
    settings = config(pretrain__steps=2)
    link_inputs(runs, tmp_path, settings, "world", "untrained")
    result = build_stage("cpt", settings, tmp_path, room=50_000)
    assert result.returncode != 0
    assert "checkpoint.pt" in result.stderr and "disk" in result.stderr
    partial = stages.folder("cpt", settings, tmp_path)
    partial = partial.with_name(partial.name + ".partial")
    assert not [p for p in partial.iterdir() if "checkpoint" in p.name]


def test_partial_folder_is_not_complete(runs, tmp_path):
    settings = config()
    link_inputs(runs, tmp_path, settings, "world")
    half = stages.folder("cpt", settings, tmp_path)
    half.mkdir()
    (half / "manifest.json").write_text('{"settings": ')
    assert not RunFolder.is_complete(half)
    assert stages.missing_stages("cpt", settings, tmp_path) == ["untrained", "cpt"]
    with pytest.raises(RunFolderError, match="'untrained'"):
        stages.require_input("cpt", "untrained", settings, tmp_path)


def test_truncated_checkpoint_error_has_a_remedy(runs, tmp_path, monkeypatch):
    settings = config(pretrain__steps=5)
    link_inputs(runs, tmp_path, settings, "world", "untrained")
    final = stages.folder("cpt", settings, tmp_path)
    partial = RunFolder(final, stages.stage_settings("cpt", settings)).path
    (partial / "checkpoint.pt").write_bytes(b"PK\x03\x04 half a file")
    monkeypatch.setattr(sys, "argv", [build.MODULE, *stages.arguments("cpt", settings, tmp_path)])
    with pytest.raises(SystemExit, match="^error: .*checkpoint.pt cannot be read.*delete it"):
        build.main()


def test_stage_folder_depends_on_settings(tmp_path):
    a, b = config(), config(rl__steps=9)
    assert stages.folder("sft", a, tmp_path) == stages.folder("sft", b, tmp_path)
    assert stages.folder("rl", a, tmp_path) != stages.folder("rl", b, tmp_path)
    assert stages.folder("rl", a, tmp_path) != stages.folder("rl_random_reward", a, tmp_path)
    assert stages.folder("cpt", a, tmp_path) != stages.folder("cpt", config(seed=1), tmp_path)
    with pytest.raises(ValueError, match="unknown stage 'midtraining'.*Known: "):
        stages.folder("midtraining", a, tmp_path)


def test_random_reward_stage(runs):
    settings = quick_settings(rl__steps=1)
    folder = stages.folder("rl_random_reward", settings, runs)
    random = stages.stage_config("rl_random_reward", settings)
    metrics = grpo.grpo(random, folder, Ranks())
    assert metrics["rollouts"] == 4 * 4 and metrics["live_groups"] > 0.5
    assert metrics["logp_gap"] < 1e-5


EVALUATED = {"evaluation.questions": 3, "evaluation.samples": 2}


def test_evaluation_order_is_independent_of_processes(runs, tmp_path):
    settings = config(**EVALUATED)
    names = ("world", "untrained", "demonstrations", "cpt", "sft")
    link_inputs(runs, tmp_path, settings, *names)
    result = build_stage("evaluate_sft", settings, tmp_path, 2)
    assert result.returncode == 0, result.stderr[-2000:]
    two = stages.folder("evaluate_sft", settings, tmp_path)
    for folder in (build.build("evaluate_sft", settings, runs, Ranks()), two):
        task_ids = [o.task for o in read_outcomes(folder)]
        assert task_ids == [t.id for t in held_out(load_world("tour"), settings)]
        rows = json.loads((folder / "rows.json").read_text())
        assert sum(r["n"] for r in rows if r["decoding"] == "sample") == 2 * 6


@pytest.mark.parametrize("agent", ["react", "heavy:n=2,merge=vote,researcher=react"])
def test_evaluation_runs_the_chosen_agent_and_counts_its_tokens(runs, agent):
    settings = config(**EVALUATED, evaluation__agent=agent)
    folder = build.build("evaluate_sft", settings, runs, Ranks())
    outcomes = read_outcomes(folder)
    shown = load_trajectories(folder / "greedy.parquet")
    for outcome, trajectory in zip(outcomes, shown, strict=True):
        parts = trajectory.metadata.get("runs", {}).get("costs")
        assert bool(parts) == (agent != "react")
        assert parts is None or len(parts) == 2
        written = sum(part["sampled"] for part in parts) if parts else None
        assert outcome.greedy_tokens == (written or trajectory.generated.sum()) > 0
        assert outcome.tokens > outcome.greedy_tokens / 2  # two samples


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text("old")

    def fail_to_write(partial):
        partial.write_text("new")
        raise OSError("No space left on device")

    with pytest.raises(WriteError, match="manifest.json.*disk full"):
        write_atomic(path, fail_to_write)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
