"""The tour's policy behind every engine: does it say the same, answer as well, and how fast?

    PYTHONPATH=. .venv-vllm/bin/python tests/benchmarks/bench_engines.py --rounds 3

Needs real vLLM (`make test-vllm` sets its environment up). Each engine samples one turn behind each
of 100 random prompts, greedily, which are compared with the local engine's token by token and with
the trainer's log-probabilities; then ReAct asks held-out questions over it, sampled, the same ones
for all, in turns, so that a busy machine slows all of them. Seconds are of that alone, wall and
CPU; a vLLM server's own CPU time is not in them.
"""

import argparse
import json
import os
import resource
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch

from drlib.agents import ReAct
from drlib.app.research import TOUR_POLICY
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.endpoint import ChatEndpoint
from drlib.evaluation.evaluate import held_out
from drlib.files import write_atomic
from drlib.intervals import wilson_interval
from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy
from drlib.models.transformers_engine import TransformersEngine
from drlib.models.vllm_engine import VllmEngine
from drlib.models.vllm_server import VllmServer
from drlib.sandbox import Sandbox
from drlib.task import is_correct
from drlib.tools import Toolbox
from drlib.training.rollouts import rollout_limits
from drlib.worlds import load_world
from tests.vllm_examples import TEACHABLE, serving

GREEDY = SamplingParams(temperature=0, max_tokens=40)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def largest_gap(model, prompts, completions) -> float:
    """Nats between an engine's log-probabilities and the trainer's."""
    gaps = []
    for prompt, done in zip(prompts, completions):
        with torch.no_grad():
            logits_TV = model(torch.tensor([[*prompt, *done.token_ids]])).logits[0, :-1]
        logp_TV = logits_TV.log_softmax(-1)[len(prompt) - 1 :]
        expected = logp_TV.gather(1, torch.tensor(done.token_ids)[:, None])[:, 0]
        gaps.append((torch.tensor(done.logprobs) - expected).abs().max().item())
    return max(gaps)


def compare(engines: dict, model, prompts: list[list[int]]) -> dict[str, dict]:
    """The greedy turns of each engine beside the local one's and the trainer's."""
    greedy = {name: engine.generate(prompts, GREEDY) for name, engine in engines.items()}
    rows = {}
    for name, done in greedy.items():
        same = sum(a.token_ids == b.token_ids for a, b in zip(done, greedy["local"]))
        gap = largest_gap(model, prompts, done)
        rows[name] = {"greedy_as_local": same, "largest_gap": gap}
        rows[name] |= {"right": [], "wall_s": [], "cpu_s": []}
    return rows


def take_turn(row: dict, agent: ReAct, tasks: list, seed: int) -> None:
    """One round of an engine: how many answers are right, and what they took."""
    began, cpu = time.perf_counter(), cpu_seconds()
    found = agent.run(tasks, temperature=1.0, seed=seed)
    row["wall_s"].append(time.perf_counter() - began)
    row["cpu_s"].append(cpu_seconds() - cpu)
    row["right"].append(sum(is_correct(t.answer, q) for q, t in zip(tasks, found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100, help="of each kind")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # its CPU time is then this process's
    os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
    torch.set_num_threads(1)
    config = Config.load("laptop", evaluation__questions=args.questions)
    model, tokenizer = load_policy(TOUR_POLICY)
    model.eval()
    world = load_world(config.world.name)
    tasks = held_out(world, config)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(20, 2000, rng.integers(4, 60)).tolist() for _ in range(100)]
    with ExitStack() as opened:
        url = opened.enter_context(serving(*TEACHABLE, VLLM_SERVER_DEV_MODE="1"))
        context = config.rollout.max_context_tokens
        engines = {
            "local": LocalEngine(model, max_context=context),
            "hf": TransformersEngine(model, batch=64, max_context=context),
            "vllm": VllmEngine(model, max_context=context),
            "vllm_server": VllmServer(ChatEndpoint(url, "tour"), TOUR_POLICY, max_context=context),
        }
        sandbox = opened.enter_context(Sandbox())
        toolbox = opened.enter_context(
            Toolbox(world, sandbox, results=config.rollout.search_results)
        )
        rows = compare(engines, model, prompts)
        for number in range(args.rounds):
            for name, engine in engines.items():
                agent = ReAct(engine, toolbox, ChatIds(tokenizer), rollout_limits(config))
                take_turn(rows[name], agent, tasks, number)
    asked = args.rounds * len(tasks)
    for row in rows.values():
        right = sum(row["right"])
        row["accuracy"] = [right / asked, *wilson_interval(right, asked)]
    for name, row in rows.items():
        seconds = {key: round(statistics.median(row[key]), 2) for key in ("wall_s", "cpu_s")}
        accuracy = [round(share, 3) for share in row["accuracy"]]
        print(name, row["greedy_as_local"], f"{row['largest_gap']:.1e}", accuracy, seconds)
    if args.out:
        found = {"questions": len(tasks), "rounds": args.rounds, "engines": rows}
        write_atomic(args.out, json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
