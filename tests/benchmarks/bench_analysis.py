"""Time and memory of a whole report: statistics, intervals, words and figures, entropies given.

Each size runs in a process of its own: made as a stream, read as a stream, analysed with the
defaults (2,000 resamples, 500 turned windows). Peak memory is that of the analysing process, with
Python, torch and matplotlib in it.

Run: PYTHONPATH=. python tests/benchmarks/bench_analysis.py [--tokens 1000000 10000000]
"""

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from tests.analysis_examples import rollout

TOKENIZER = "figures/reference/tour/policy_rl"
TURN, TURNS = 500, 8


def trajectories(tokens: int):
    """Return trajectories of 4,000 sampled tokens in 8 turns; half of the responses failed."""
    rng = np.random.default_rng(0)
    for i in range(tokens // (TURN * TURNS)):
        statuses = rng.choice(["ok", "error"], TURNS - 1)
        right = float(rng.random() < 0.5)
        entropies = rng.exponential(0.3, (TURNS, TURN)).tolist()
        made = rollout(f"t{i}", entropies, statuses, reward=right)
        made.token_ids[:] = rng.integers(300, 2000, size=len(made))
        yield made


def write(path, tokens):
    from drlib.trajectory import save_trajectories

    save_trajectories(path, trajectories(tokens))


def analyse(path, tokens, queue):
    from drlib.analysis.report import write_report

    wall = time.perf_counter()
    cpu = time.process_time()
    write_report(path.with_suffix(".html"), [path], TOKENIZER, viewed=0)
    queue.put(
        {
            "tokens": tokens,
            "wall_s": round(time.perf_counter() - wall, 1),
            "cpu_s": round(time.process_time() - cpu, 1),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        }
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=[10**6, 10**7])
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    args = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    rows = []
    for tokens in args.tokens:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "t.parquet"
            queue = spawn.Queue()
            for target, more in ((write, ()), (analyse, (queue,))):
                process = spawn.Process(target=target, args=(path, tokens, *more))
                process.start()
                process.join()
                if process.exitcode:
                    raise SystemExit(f"{target.__name__} of {tokens} tokens failed")
            rows.append(queue.get())
            print(rows[-1], flush=True)
    if args.out:
        args.out.write_text(json.dumps({"rows": rows}, indent=0) + "\n")


if __name__ == "__main__":
    main()
