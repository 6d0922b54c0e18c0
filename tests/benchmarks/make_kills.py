"""Kill parts of asynchronous training at random times; not a test.

Ten kills by SIGKILL of each part: actors, the learner with its actors, a host of the Ray cluster,
and the process with gateway, engine and learner. After each the training goes on to its end, and
what it trained is compared with its questions. The tests do the same with fewer kills.

Run: PYTHONPATH=.:tests python tests/benchmarks/make_kills.py [--out FILE] [--only PART ...]
"""

import argparse
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import numpy as np

from drlib.config import ROOT
from drlib.files import write_atomic
from drlib.training import stages
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories
from tests.loop_examples import build_world
from tests.ray_cluster import two_nodes
from tests.test_training_asynchronous import (
    actor_processes,
    assert_each_question_is_trained_once,
    finish,
    partial,
    rows,
    settings,
    start,
    steps_done,
)
from tests.test_training_gateway import check_killed_gateway

KILLS, STEPS = 10, 30
OUT = ROOT / "figures/reference/asynchronous/kills.json"


def kill_actors(runs: Path, rng: random.Random) -> dict:
    """Kill a random actor, each time 0.5 to 4 s after one has started."""
    config = settings(**{"seed": 11, "rl.steps": STEPS})
    process, times = start(runs, config), []
    begin = time.monotonic()
    while len(times) < KILLS and process.poll() is None:
        time.sleep(rng.uniform(0.5, 4))
        if alive := actor_processes(process.pid):
            rng.choice(alive).kill()
            times.append(time.monotonic() - begin)
    finish(process)
    return seconds(times) | check(stages.folder("rl", config, runs))


def kill_learner(runs: Path, rng: random.Random) -> dict:
    """Kill the learner and its actors up to 2 s after a step, and start it again."""
    config = settings(**{"seed": 12, "rl.steps": STEPS})
    log, times, steps = partial(runs, config) / "metrics.jsonl", [], []
    for _ in range(KILLS):
        process, begin, before = start(runs, config), time.monotonic(), steps_done(log)
        while steps_done(log) == before:
            assert process.poll() is None, "it ended before it was killed: raise STEPS"
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 2))
        times.append(time.monotonic() - begin)
        for child in actor_processes(process.pid):
            child.kill()
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps.append(steps_done(log))
    finish(start(runs, config))
    return seconds(times) | {"steps_done": steps} | check(stages.folder("rl", config, runs))


def kill_hosts(runs: Path, rng: random.Random) -> dict:
    """Remove the second of two hosts up to 4 s after an actor's first job there; add another."""
    steps = 6 * STEPS
    changes = {"rl.lr": 1e-6, "rollout.tool_latency_ms": 100.0}  # no collapse, which would end it
    config = settings(**{"seed": 13, "rl.steps": steps}, **changes)
    times, folder = [], partial(runs, config)

    def actors() -> int:
        return len({job["process"] for job in rows(folder)}) if folder.exists() else 0

    with two_nodes() as cluster:
        process = start(runs, config, RAY_ADDRESS=cluster.address)
        begin = time.monotonic()
        while not (folder / "jobs.jsonl").exists():
            assert process.poll() is None and time.monotonic() - begin < 300
            time.sleep(0.2)
        while len(times) < KILLS and process.poll() is None:
            if actors() < len(times) + 2:
                time.sleep(0.2)
                continue
            time.sleep(rng.uniform(0, 4))
            cluster.remove_node([*cluster.worker_nodes][-1], allow_graceful=False)
            times.append(time.monotonic() - begin)
            cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
        finish(process)
    processes = len({job["process"] for job in rows(stages.folder("rl", config, runs))})
    found = seconds(times) | {"processes": processes}
    return found | check(stages.folder("rl", config, runs), steps)


def kill_gateway(runs: Path, rng: random.Random) -> dict:
    """Kill gateway, engine and learner after some requests; compare with an undisturbed run."""
    steps, log = KILLS, runs.parent / "requests"
    os.environ["EXTERNAL_LOG"] = str(log)
    check_killed_gateway(runs.parent, log, KILLS, steps)
    return {"kills": KILLS, "steps": steps, "requests": len(log.read_text().splitlines())}


def check(folder: Path, steps: int = STEPS) -> dict:
    """Check what was trained; return counts."""
    assert_each_question_is_trained_once(folder, steps)
    metrics = read_metrics(folder)
    assert [row["step"] for row in metrics] == [*range(1, steps + 1)]
    assert max(row["lag_max"] for row in metrics) <= 1
    rollouts = [t for file in folder.glob("trajectories_*") for t in load_trajectories(file)]
    assert all((np.diff(t.versions[t.generated]) >= 0).all() for t in rollouts)
    jobs = [(job["draw"], q) for job in rows(folder) for q in job["questions"]]
    return {
        "steps": steps,
        "questions": len({t.group_id for t in rollouts}),
        "rollouts": len(rollouts),
        "restarts_of_the_last_run": metrics[-1]["restarts"],
        "groups_sampled": len(jobs),
    }


def seconds(times: list[float]) -> dict:
    return {"kills": len(times), "times_s": [round(at, 1) for at in times]}


PARTS = {
    "actor": kill_actors,
    "learner": kill_learner,
    "host": kill_hosts,
    "gateway": kill_gateway,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for part in options.only:
        with tempfile.TemporaryDirectory() as folder:
            build_world(Path(folder, "runs"))
            found[part] = PARTS[part](Path(folder, "runs"), random.Random(part))
        print(part, json.dumps(found[part]), flush=True)
        write_atomic(options.out, json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
