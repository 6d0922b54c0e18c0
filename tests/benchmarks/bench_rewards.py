"""Samples per second of the reward service against the same rewards in process, on two cores.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/bench_rewards.py
"""

import json
import subprocess
import sys
import time

from drlib.rewards.functions import _example, make_reward
from drlib.rewards.remote_reward import RewardClient
from drlib.task import Task

SAMPLES, ROUNDS = 2000, 3
REWARDS = {
    "exact_match": {},
    "judged": {"judge": "squad", "graded": True},
}


def main() -> None:
    command = [sys.executable, "-m", "drlib.cli", "rewards", "serve", "--port=0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"
        task = Task("t", "What is the capital of Norway?", "Oslo", "search", "w")
        samples = [(_example(f"Oslo {number}"), task) for number in range(SAMPLES)]
        best: dict[str, float] = {}
        for _ in range(ROUNDS):  # interleaved
            for name, arguments in REWARDS.items():
                own = make_reward(name, **arguments)
                ways = {f"{name} in process": lambda own=own: [own(*one) for one in samples]}
                for threads in (1, 4, 16):
                    client = RewardClient(url, threads=threads)
                    ways[f"{name} over HTTP, {threads} threads"] = (
                        lambda c=client, n=name, a=arguments: c.judge_all(samples, n, a)
                    )
                expected = None
                for label, way in ways.items():
                    started = time.perf_counter()
                    found = way()
                    rate = SAMPLES / (time.perf_counter() - started)
                    best[label] = max(best.get(label, 0.0), rate)
                    expected = expected or found
                    assert found == expected
    finally:
        process.terminate()
        process.wait()
    for label, rate in best.items():
        print(f"{label}: {rate:,.0f} samples/s")


if __name__ == "__main__":
    main()
