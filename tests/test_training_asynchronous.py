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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import psutil
import pytest

from drlib.config import ROOT, Config
from drlib.rl.curriculum import Curriculum
from drlib.training import build, stages
from drlib.training.grpo import check_rl_settings
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.ray_training import connect_to_ray
from drlib.training.rollout_actor import ActorSetup
from drlib.training.rollout_pool import RolloutPool, check_asynchronous
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories
from drlib.worlds import Names
from tests.loop_examples import build_world, cold_start  # noqa: F401 - a fixture
from tests.ray_cluster import two_nodes
from tests.stage_processes import start_stage
from tests.waiting import until

if os.environ.get("RAY_ADDRESS"):
    pytest.skip("a cluster of the user's is configured", allow_module_level=True)
pytest.importorskip("ray", reason="the cluster extra is not installed")

STEPS, QUESTIONS, GROUP = 4, 6, 4
PATIENCE_S = 300
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
def cluster():
    """Yield a cluster of two nodes with one actor each; this process is its driver."""
    with two_nodes() as ray_cluster, connect_to_ray(ray_cluster.address):
        yield ray_cluster


@pytest.fixture(scope="module")
def runs(tmp_path_factory, cluster):
    folder = tmp_path_factory.mktemp("asynchronous") / "runs"
    build_world(folder)
    return folder


@contextmanager
def time_limit():
    """Fail if the block waits for groups that never come."""

    def expire(*_):
        raise TimeoutError(f"it did not end in {PATIENCE_S} s")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def train(runs, config: Config, meanwhile=None):
    """Train in this process and return the folder of the stage.

    Args:
        meanwhile: called in a thread of its own during training.
    """
    with ThreadPoolExecutor(1) as other, time_limit():
        done = other.submit(meanwhile) if meanwhile else None
        folder = build.build("rl", config, runs)
        if done:
            done.result()
    until(lambda: not actor_processes())
    return folder


def partial(runs, config: Config):
    """Return the folder of the stage during training."""
    folder = stages.folder("rl", config, runs)
    return folder.with_name(folder.name + ".partial")


def actor_processes() -> list[psutil.Process]:
    """Return the running actors below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "RolloutActor" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def steps_done(log) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


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


def kill_an_actor() -> bool:
    """Kill one of the actors at random; return False if there is none."""
    alive = actor_processes()
    if alive:
        random.Random(7).choice(alive).kill()
    return bool(alive)


def test_killed_actors_lose_and_repeat_nothing(runs, finished):
    """One is killed as it starts, and two while they sample."""
    config = settings(**{"seed": 1, "rl.steps": 6})
    jobs = partial(runs, config) / "jobs.jsonl"

    def kill() -> int:
        killed = 0
        for done in (0, 2, 8):
            until(lambda n=done: steps_done(jobs) >= n and actor_processes(), PATIENCE_S)
            killed += kill_an_actor()
        return killed

    folder, killed = train(runs, config, kill)
    assert_each_question_is_trained_once(folder, steps=6)
    assert 1 <= read_metrics(folder)[-1]["restarts"] <= killed
    assert max(row["lag_max"] for row in read_metrics(folder)) <= 1


def test_a_killed_learner_resumes_without_losing_a_question(runs, cluster, tmp_path):
    config = settings(**{"seed": 2, "rl.steps": 5})
    log = partial(runs, config) / "metrics.jsonl"
    for steps in (1, 3):  # killed after so many
        place = {"RAY_ADDRESS": cluster.address}
        process = start_stage("rl", config, runs, tmp_path / "output", place)
        until(lambda steps=steps: steps_done(log) >= steps, PATIENCE_S)
        process.kill()
        process.join()
        for actor in actor_processes():
            actor.kill()
    folder = train(runs, config)
    assert_each_question_is_trained_once(folder, steps=5)
    assert [row["step"] for row in read_metrics(folder)] == [1, 2, 3, 4, 5]


def suspend_an_actor(least: int) -> psutil.Process:
    """Suspend an actor once `least` of them run; return it."""
    until(lambda: len(actor_processes()) >= least, PATIENCE_S)
    actor = actor_processes()[0]
    actor.suspend()
    return actor


def test_the_learner_waits_for_a_slow_actor(runs, monkeypatch):
    """Groups of an actor that stands still for a while are trained in time, not late."""
    config = settings(**{"seed": 5, "rl.steps": 6})
    log = partial(runs, config) / "metrics.jsonl"
    pools, seen = [], []

    def keep(self, *arguments):
        pools.append(self)
        create(self, *arguments)

    create = RolloutPool.__init__
    monkeypatch.setattr(RolloutPool, "__init__", keep)

    def progress() -> tuple[int, int]:
        return steps_done(log), len(pools[0]._finished)

    def delay():
        until(lambda: steps_done(log) >= 1, PATIENCE_S)
        actor, before, since = suspend_an_actor(2), (), time.monotonic()
        while time.monotonic() - since < (3 if pools[0]._is_any_due() else 15):
            if before != (before := progress()):
                since = time.monotonic()
            time.sleep(0.1)
        seen.append(steps_done(log))
        actor.resume()

    folder = train(runs, config, delay)
    assert seen[0] < 6
    assert_each_question_is_trained_once(folder, steps=6)
    assert max(row["lag_max"] for row in read_metrics(folder)) == 1


def test_a_hanging_actor_is_replaced(cluster, cold_start, tmp_path):
    config = settings(**{"rl.steps": 1, "seed": 6})
    world, policy = cold_start.world, cold_start.policy
    scheduler = QuestionScheduler(config, world, Names.from_world(world))
    setup = ActorSetup(config, policy, "", cold_start.chat, None, world)
    pool = RolloutPool(setup, scheduler, tmp_path, job_timeout_s=10)
    until(lambda: len(pool._idle) == 2, PATIENCE_S)  # both have started
    try:
        suspend_an_actor(2)
        with time_limit():
            rollouts = pool.collect(Curriculum(SKILLS))
        assert len({t.group_id for t in rollouts.everything}) == QUESTIONS
        assert len({t.id for t in rollouts.everything}) == QUESTIONS * GROUP
        assert pool.metrics()["restarts"] >= 1
    finally:
        pool.close()
        until(lambda: not actor_processes())


def test_a_fault_in_an_actor_is_raised_by_the_learner(runs):
    """The learner is a process of its own; without an address it starts Ray on this host."""
    changes = {"rl.asynchronous.actors": 1, "rl.reward.arguments": '{"unknown": 1}'}
    config = settings(seed=3, **changes)
    command = [sys.executable, "-m", build.MODULE, *stages.arguments("rl", config, runs)]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1
    assert "unknown" in done.stderr.strip().splitlines()[-1]


def test_a_dead_host_loses_and_repeats_nothing(runs, cluster):
    """One of the two nodes is removed during training, so this test is the last on the cluster."""
    config = settings(**{"seed": 4, "rl.steps": 6, "rollout.tool_latency_ms": 100.0})
    jobs = partial(runs, config) / "jobs.jsonl"

    def hosts_at_work() -> int:
        return len({job["process"] for job in rows(jobs.parent)}) if jobs.exists() else 0

    def remove_a_node():
        until(lambda: hosts_at_work() == 2, PATIENCE_S)
        (second,) = cluster.worker_nodes
        cluster.remove_node(second, allow_graceful=False)

    folder = train(runs, config, remove_a_node)
    assert_each_question_is_trained_once(folder, steps=6)
    assert read_metrics(folder)[-1]["restarts"] <= 1


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
