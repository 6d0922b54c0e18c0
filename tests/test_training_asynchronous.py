"""Asynchronous GRPO: `RolloutPool` with real actors on a local Ray cluster.

Ages, killed actors and learners, weights in flight, and what is trained: every question once.

Run: python -m pytest tests/test_training_asynchronous.py
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import psutil
import pytest
from waiting import until

from drlib.config import ROOT, Config
from drlib.rl.curriculum import Curriculum
from drlib.training import stages
from drlib.training.grpo import check_rl_settings
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.rollout_actor import ActorSetup
from drlib.training.rollout_pool import RolloutPool, check_asynchronous
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories
from drlib.worlds import Names
from tests.loop_examples import build_world, cold_start  # noqa: F401 - a fixture
from tests.ray_cluster import two_nodes
from tests.waiting import HANG_S

if os.environ.get("RAY_ADDRESS"):
    pytest.skip("a cluster of the user's is configured", allow_module_level=True)
pytest.importorskip("ray", reason="the cluster extra is not installed")

STEPS, QUESTIONS, GROUP = 4, 6, 4
SETTINGS = {
    "processes": 1,
    "rl.steps": STEPS,
    "rl.questions": QUESTIONS,
    "rl.group": GROUP,
    "rl.warmup_steps": 0,
    "rl.lr": 1e-3,
    "rl.save_rollouts": True,
    "rl.loss.clip": "double_sided",
    "rl.asynchronous.actors": 2,
    "rl.asynchronous.groups": 2,
    "trainer.checkpoint_every": 1,
}


def settings(**changes) -> Config:
    return Config.load("ci", **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asynchronous") / "runs"
    build_world(folder)
    return folder


def start(runs, config: Config, **environment) -> subprocess.Popen:
    """Start the stage `rl` in a process of its own."""
    command = [sys.executable, "-m", "drlib.training.build"]
    command += stages.arguments("rl", config, runs)
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | environment,
    )


def finish(process: subprocess.Popen) -> None:
    """Wait for a training process; fail if it fails, or if it waits for groups that never come."""
    try:
        output, _ = process.communicate(timeout=HANG_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, output[-3000:]


def train(runs, config: Config):
    """Train and return the folder of the stage."""
    finish(start(runs, config))
    return stages.folder("rl", config, runs)


def partial(runs, config: Config):
    """Return the folder of the stage during training."""
    folder = stages.folder("rl", config, runs)
    return folder.with_name(folder.name + ".partial")


def trained_groups(folder) -> list[list[str]]:
    """Return the names of the groups of each step, sorted."""
    files = sorted(folder.glob("trajectories_*.parquet"))
    return [sorted({t.group_id for t in load_trajectories(file)}) for file in files]


def rows(folder, name="jobs") -> list[dict]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def assert_each_question_is_trained_once(folder, steps=STEPS):
    # a resumed learner writes the batch of an update again: the last row counts
    batches = {row["version"]: row["questions"] for row in rows(folder, "updates")}
    taken = sorted((*ticket,) for step in range(steps) for ticket in batches[step + 1])
    assert taken == [(draw, index) for draw in range(steps) for index in range(QUESTIONS)]
    # rollouts of a group: all of them, each once
    for file in folder.glob("trajectories_*.parquet"):
        ids = Counter(t.id for t in load_trajectories(file))
        assert len(ids) == QUESTIONS * GROUP and {*ids.values()} == {1}


@pytest.fixture(scope="module")
def finished(runs):
    """A finished run with at most one update of lag."""
    return train(runs, settings())


def test_every_question_is_trained_once_within_the_lag(finished):
    assert_each_question_is_trained_once(finished)
    metrics = read_metrics(finished)
    assert sum(row["updates"] for row in metrics) >= STEPS - 1  # a step may have no live group
    assert max(row["lag_max"] for row in metrics) == 1  # it samples during updates
    assert metrics[0]["lag_max"] == 0


def test_jobs_record_where_and_with_which_weights_they_ran(finished):
    jobs = rows(finished)
    assert sorted((job["draw"], q) for job in jobs for q in job["questions"]) == [
        (draw, q) for draw in range(STEPS) for q in range(QUESTIONS)
    ]
    assert len({job["process"] for job in jobs}) == 2
    for job in jobs:
        assert job["started"] < job["ended"]
        # trained by update `draw` at the earliest: at most one behind it
        assert job["draw"] - 1 <= job["oldest"] <= job["newest"] <= job["draw"] + 1
        assert sum(job["lengths"]) * GROUP == pytest.approx(job["tokens"], abs=0.1)
    hops = [hops for job in jobs for hops in job["hops"]]
    trained = [t for file in finished.glob("trajectories_*") for t in load_trajectories(file)]
    python = {t.group_id for t in trained if t.task_id.startswith("python")}
    assert hops.count(0) == len(python) > 0 and max(hops) > 0


def test_without_lag_it_equals_the_synchronous_run(runs):
    """The same questions, rollouts and metrics as the trainer that samples itself."""
    same = {"rl.steps": 2, "rl.loss.clip": "ppo"}
    apart = train(runs, settings(**same, **{"rl.asynchronous.max_lag": 0}))
    together = train(runs, settings(**same, **{"rl.asynchronous.actors": 0}))
    assert trained_groups(apart) == trained_groups(together)
    for one, other in zip(read_metrics(apart), read_metrics(together), strict=True):
        assert one["lag_max"] == 0
        for name in ("accuracy", "generated", "calls", "live_groups"):
            assert one[name] == pytest.approx(other[name])
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)


def test_running_rollouts_continue_with_new_weights(runs):
    config = settings(
        **{"rl.asynchronous.in_flight": True, "rollout.tool_latency_ms": 100.0, "rl.steps": 5}
    )
    folder = train(runs, config)
    assert_each_question_is_trained_once(folder, steps=5)
    mixed = 0
    for file in folder.glob("trajectories_*.parquet"):
        for t in load_trajectories(file):
            versions = t.versions[t.generated]
            assert (np.diff(versions) >= 0).all()
            mixed += len({*versions.tolist()}) > 1
    assert mixed > 0


@pytest.mark.parametrize("stale", ["drop", "requeue"])
def test_old_groups_are_dropped_or_asked_again(runs, stale):
    config = settings(
        **{"rl.asynchronous.stale": stale, "rl.asynchronous.max_lag": 0, "rl.loss.clip": "ppo"}
    )
    folder = train(runs, config)
    metrics = read_metrics(folder)
    assert max(row["lag_max"] for row in metrics) == 0
    assert metrics[-1]["stale_dropped"] > 0
    names = [name for step in trained_groups(folder) for name in step]
    assert len(names) == len({*names}) == STEPS * QUESTIONS
    sampled = Counter((job["draw"], q) for job in rows(folder) for q in job["questions"])
    assert (max(sampled.values()) > 1) == (stale == "requeue")
    dropped = rows(folder, "dropped")
    assert len(dropped) == metrics[-1]["stale_dropped"] and min(row["age"] for row in dropped) > 0
    lengths = {
        ((job["draw"], q), length): hops
        for job in rows(folder)
        for q, length, hops in zip(job["questions"], job["lengths"], job["hops"], strict=True)
    }
    for row in dropped:
        assert lengths[(row["draw"], row["question"]), row["length"]] == row["hops"]


def actor_processes(parent: int) -> list[psutil.Process]:
    """Return the running actors below a process."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        try:
            if "RolloutActor" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_actors(runs, config: Config, times: list[float]) -> dict:
    """Kill a random actor after each of the waits; return the last row of metrics."""
    process = start(runs, config)
    rng = random.Random(7)
    folder = stages.folder("rl", config, runs)
    killed = 0
    for wait in times:
        until(lambda: process.poll() is not None or actor_processes(process.pid))
        time.sleep(wait)
        alive = [] if process.poll() is not None else actor_processes(process.pid)
        if alive:
            rng.choice(alive).kill()
            killed += 1
    finish(process)
    assert killed > 0
    return read_metrics(folder)[-1] | {"killed": killed}


def test_killed_actors_lose_and_repeat_nothing(runs, finished):
    config = settings(**{"seed": 1, "rl.steps": 6})
    last = kill_actors(runs, config, [1.0, 0.5, 2.0])
    folder = stages.folder("rl", config, runs)
    assert_each_question_is_trained_once(folder, steps=6)
    assert last["restarts"] <= last["killed"]
    assert max(row["lag_max"] for row in read_metrics(folder)) <= 1


def steps_done(log) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def test_a_killed_learner_resumes_without_losing_a_question(runs):
    config = settings(**{"seed": 2, "rl.steps": 5})
    for steps in (1, 3):  # killed after so many
        process = start(runs, config)
        log = partial(runs, config) / "metrics.jsonl"
        until(lambda log=log, steps=steps: steps_done(log) >= steps)
        for child in actor_processes(process.pid):
            child.kill()
        process.send_signal(signal.SIGKILL)
        process.wait()
    folder = train(runs, config)
    assert_each_question_is_trained_once(folder, steps=5)
    assert [row["step"] for row in read_metrics(folder)] == [1, 2, 3, 4, 5]


def suspend_an_actor(parent: int, least: int) -> psutil.Process:
    """Suspend an actor below a process, once `least` of them run; return it."""
    until(lambda: len(actor_processes(parent)) >= least)
    actor = actor_processes(parent)[0]
    actor.suspend()
    return actor


def test_the_learner_waits_for_a_slow_actor(runs):
    """Groups of an actor that stands still for a while are trained in time, not late."""
    config = settings(**{"seed": 5, "rl.steps": 8})
    process = start(runs, config)
    log = partial(runs, config) / "metrics.jsonl"
    until(lambda: steps_done(log) >= 1)
    actor, seen = suspend_an_actor(process.pid, 2), -1
    while seen != (seen := steps_done(log)):  # until the learner waits
        time.sleep(15)
    actor.resume()
    finish(process)
    folder = stages.folder("rl", config, runs)
    assert seen < 8
    assert_each_question_is_trained_once(folder, steps=8)
    assert max(row["lag_max"] for row in read_metrics(folder)) == 1


def test_a_hanging_actor_is_replaced(cold_start, tmp_path):
    config = settings(**{"rl.steps": 1, "seed": 6})
    world, policy = cold_start.world, cold_start.policy
    scheduler = QuestionScheduler(config, world, Names.from_world(world))
    setup = ActorSetup(config, policy, "", cold_start.chat, None, world)
    pool = RolloutPool(setup, scheduler, tmp_path, job_timeout_s=30)
    until(lambda: len(pool._idle) == 2)  # both have started
    try:
        suspend_an_actor(os.getpid(), 2)
        rollouts = pool.collect(Curriculum(SKILLS))
        assert len({t.group_id for t in rollouts.everything}) == QUESTIONS
        assert len({t.id for t in rollouts.everything}) == QUESTIONS * GROUP
        assert pool.metrics()["restarts"] >= 1
    finally:
        pool.close()


def test_a_dead_host_loses_and_repeats_nothing(runs):
    """An actor on each of two nodes; one node is removed during training."""
    config = settings(**{"seed": 4, "rl.steps": 6, "rollout.tool_latency_ms": 100.0})
    jobs = partial(runs, config) / "jobs.jsonl"

    def hosts_at_work() -> int:
        return len({job["process"] for job in rows(jobs.parent)}) if jobs.exists() else 0

    with two_nodes() as cluster:
        process = start(runs, config, RAY_ADDRESS=cluster.address)
        until(lambda: process.poll() is not None or hosts_at_work() == 2)
        second = next(node for node in cluster.worker_nodes)
        cluster.remove_node(second, allow_graceful=False)
        finish(process)
    folder = stages.folder("rl", config, runs)
    assert_each_question_is_trained_once(folder, steps=6)
    assert read_metrics(folder)[-1]["restarts"] <= 1


def test_a_fault_in_an_actor_is_raised_by_the_learner(runs):
    config = settings(**{"seed": 3, "rl.reward.arguments": '{"unknown": 1}'})
    process = start(runs, config)
    output, _ = process.communicate(timeout=HANG_S)
    assert process.returncode == 1
    assert "unknown" in output.strip().splitlines()[-1]


@pytest.mark.parametrize(
    "changes",
    [
        {"processes": 2},
        {"rl.sampling.draws": 2},
        {"rl.off_policy.staleness": 1},
        {"rl.asynchronous.groups": 0},
    ],
)
def test_settings_without_meaning_are_refused(changes):
    config = settings(**changes)
    check_rl_settings(settings())
    check_asynchronous(settings())
    name = next(iter(changes))
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        check_asynchronous(config)
