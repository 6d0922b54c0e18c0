"""A thousand tasks through a server that fails: what arrives, and at what pace; and a folder of
notes whose facts a model is asked for.

    PYTHONPATH=. python tests/benchmarks/bench_endpoint.py --tasks 1000 --concurrency 64 --rounds 3

The server is on loopback, answers after `--delay` seconds, and refuses, cuts, garbles or delays a
share of its replies. In turns, so that a busy machine slows both: the same number of requests sent
by as many threads through the client alone, and the agent with its tool calls. The pace is requests
a second; the ratio of both is what the agent costs. The notes are asked about one after the other
and, as the library does it, before their turn, in turns as well.
"""

import argparse
import json
import random
import statistics
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from drlib.agents import Limits, ReAct
from drlib.chat.tool_calls import render_answer, render_call
from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.files import write_atomic
from drlib.models.api_engine import ApiEngine
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.worlds import Entity, SmallWorld, load_world, triples
from tests.scripted_server import Scripted

LOOK = "<think>Look.</think>" + render_call("search", {"query": ["Norway"]})
FAULTS = [None] * 30 + ["429", "500", "cut", "junk"]
WORLD = SmallWorld([Entity("Norway", "territory", {"currency": "Krone"})], "atlas")


def model(messages):
    """Looks once, then answers."""
    return render_answer("Krone") if "<tool_response>" in messages[-1]["content"] else LOOK


def client_alone(url: str, requests: int, threads: int) -> float:
    """Requests a second of the client, without an agent."""
    endpoint = ChatEndpoint(url, "scripted", timeout_s=30)
    todo = iter(range(requests))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                if next(todo, None) is None:
                    return
            try:
                endpoint.complete([{"role": "user", "content": "?"}], temperature=0)
            except EndpointError:
                continue  # refused or cut, as the agent's are; it has been asked

    started = time.perf_counter()
    running = [threading.Thread(target=work) for _ in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()
    return requests / (time.perf_counter() - started)


def agents(server, tasks: int, concurrency: int) -> dict:
    """Return the tasks' outcomes, and requests per second."""
    endpoint = ChatEndpoint(server.url, "scripted", timeout_s=30)
    engine = ApiEngine(endpoint, concurrency=concurrency, attempts=6, pause_s=0.02)
    asked = [Task(f"t{n}", f"Currency? ({n})", "Krone", "search", "a") for n in range(tasks)]
    before = server.asked
    with Toolbox(WORLD) as toolbox:
        started = time.perf_counter()
        found = ReAct(engine, toolbox, limits=Limits(calls=3, turns=4)).run(asked)
        seconds = time.perf_counter() - started
    return {
        "ended": len({one.task_id for one in found}),
        "reasons": dict(Counter(str(one.termination) for one in found)),
        "right": sum(one.answer == "Krone" for one in found),
        "most_turns": max(one.metadata["usage"]["turns"] for one in found),
        "requests": server.asked - before,
        "a_second": (server.asked - before) / seconds,
    }


def notes_by_model(notes: int, delay_s: float, ahead: int) -> float:
    """Seconds until a folder of small notes is a world, a reply for each; `ahead`: files that are
    asked about before their turn."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for number in range(notes):
            Path(folder, f"{number}.txt").write_text(f"Ada Lovelace wrote program {number}.")
        patch.setattr(triples, "AHEAD", ahead)
        with Scripted(lambda messages: "[]", delay_s=delay_s) as server:
            started = time.perf_counter()
            load_world(f"folder:{folder}", endpoint=server.url, model="scripted")
            seconds = time.perf_counter() - started
            assert server.asked == notes
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.2, help="seconds of each reply")
    parser.add_argument("--notes", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows = []
    for number in range(args.rounds):
        rng = random.Random(number)
        script = [rng.choice(FAULTS) for _ in range(20 * args.tasks)]
        with Scripted(model, script.__getitem__, delay_s=args.delay) as server:
            row = agents(server, args.tasks, args.concurrency)
        with Scripted(model, script.__getitem__, delay_s=args.delay) as server:
            row["client_a_second"] = client_alone(server.url, row["requests"], args.concurrency)
        row["ratio"] = row["a_second"] / row["client_a_second"]
        row["notes_in_turn_s"] = notes_by_model(args.notes, args.delay, 0)
        row["notes_s"] = notes_by_model(args.notes, args.delay, triples.AHEAD)
        print({name: round(v, 3) if isinstance(v, float) else v for name, v in row.items()})
        rows.append(row)
    ratio = statistics.median(row["ratio"] for row in rows)
    print(f"the agent's pace is {ratio:.2f} of the client's (median of {args.rounds} rounds)")
    in_turn, together = (
        statistics.median(row[name] for row in rows) for name in ("notes_in_turn_s", "notes_s")
    )
    print(f"{args.notes} notes: {together:.1f} s, one after the other {in_turn:.1f} s (medians)")
    if args.out:
        write_atomic(
            args.out, json.dumps({"settings": vars(args), "rows": rows}, indent=1, default=str)
        )


if __name__ == "__main__":
    main()
