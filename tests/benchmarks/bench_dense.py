"""A real model on CPU cores: the local engine and learner against transformers, TRL and vLLM.

**Sampling.** Groups of rollouts of three turns, with a tool response after the first two. Every
turn has exactly `--turn` tokens. The local engine keeps the cache between turns and reads a shared
prompt once; transformers' `generate` and vLLM (prefix caching) get the same conversations.

**Learning.** The rollouts of a step, in which a third of the tokens are sampled: forward and
backward pass in bfloat16 (autocast). drlib packs samples, stores a shared prompt once and scores
sampled tokens only. TRL pads a group to a rectangle and scores every token of the completion, with
its own `_get_per_token_logps_and_entropies`.

Contenders are interleaved. A ratio is the median over rounds of wall-clock times, with the least
and the most; the table also has CPU time.

Run: OMP_NUM_THREADS=2 PYTHONPATH=. python tests/benchmarks/bench_dense.py [--out FILE]
     ... .venv-vllm/bin/python tests/benchmarks/bench_dense.py --engines local vllm
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from drlib.config import find_model
from drlib.files import write_atomic
from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.transformers_engine import TransformersEngine
from drlib.training.packing import PackedBatch, score

PROMPT, RESPONSE, TURNS = 45, 60, 3  # tokens of a prompt and a tool response; turns


def prompts(args) -> list[list[int]]:
    """Return the prompts of all rollouts; those of a group are equal."""
    rng = np.random.default_rng(0)
    some = [rng.integers(1000, 40000, PROMPT).tolist() for _ in range(args.questions)]
    return [prompt for prompt in some for _ in range(args.group)]


def converse(engine, args, seed: int) -> int:
    """Run all conversations; return the number of sampled tokens."""
    turns: dict[int, int] = {}
    rng = np.random.default_rng(seed)
    response = rng.integers(1000, 40000, RESPONSE).tolist()
    sampled = 0

    def respond(i: int, completion):
        nonlocal sampled
        sampled += len(completion.token_ids)
        turns[i] = turns.get(i, 0) + 1
        return response if turns[i] < TURNS else None

    engine.converse(prompts(args), SamplingParams(max_tokens=args.turn, seed=seed), respond)
    return sampled


def build_engines(args, model) -> dict[str, Callable[[int], int]]:
    """Return engine name -> function (seed) that runs the conversations."""
    rows = args.questions * args.group
    context = PROMPT + TURNS * args.turn + (TURNS - 1) * RESPONSE + 1
    half = torch.bfloat16
    engines = {}
    if "local" in args.engines:
        engines["local"] = LocalEngine(model, slots=rows, max_context=context, dtype=half)
    if "transformers" in args.engines:
        rounded = AutoModelForCausalLM.from_pretrained(find_model("smol"), dtype=half)
        engines["transformers"] = TransformersEngine(rounded, batch=rows, max_context=context)
    if "vllm" in args.engines:
        from drlib.models.vllm_engine import VllmEngine

        engines["vllm"] = VllmEngine(
            model, max_context=context, max_num_seqs=rows, dtype="bfloat16", max_gap=1.0
        )
    return {
        name: lambda seed, e=engine: converse(e, args, seed) for name, engine in engines.items()
    }


class Rollouts:
    """Rollouts of a step as token ids, with the sampled third marked."""

    def __init__(self, args):
        rng = np.random.default_rng(1)
        self.samples, self.sampled = [], []
        for prompt in prompts(args):
            own = rng.integers(1000, 40000, TURNS * args.turn + (TURNS - 1) * RESPONSE).tolist()
            turn = [True] * args.turn + [False] * RESPONSE
            self.samples.append(prompt + own)
            self.sampled.append([False] * PROMPT + (turn * TURNS)[: len(own)])
        self.size = args.group


def learn_packed(model, rollouts: Rollouts) -> None:
    """Accumulate the gradient of the sampled tokens' log-probability with drlib."""
    for first in range(0, len(rollouts.samples), 2 * rollouts.size):
        part = slice(first, first + 2 * rollouts.size)
        samples = rollouts.samples[part]
        batch = PackedBatch.pack(samples, [PROMPT] * len(samples))
        mask_N = batch.spread(rollouts.sampled[part], torch.bool)
        (-score(model, batch, mask_N, 1.0, True, "bfloat16").logp_M.sum()).backward()


def build_padded(model, tokenizer, folder: str, args) -> Callable[[Rollouts], None]:
    """Return the same computation with TRL's scoring of padded completions."""
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        train_dataset=Dataset.from_dict({"prompt": ["x"] * args.group}),
        args=GRPOConfig(
            folder,
            use_cpu=True,
            bf16=True,
            gradient_checkpointing=False,
            report_to=[],
            per_device_train_batch_size=args.group,
            num_generations=args.group,
        ),
    )

    def learn(rollouts: Rollouts) -> None:
        for first in range(0, len(rollouts.samples), rollouts.size):
            ids_BT = torch.tensor(rollouts.samples[first : first + rollouts.size])
            sampled_BT = torch.tensor(rollouts.sampled[first : first + rollouts.size])
            keep = ids_BT.shape[1] - PROMPT
            with trainer.compute_loss_context_manager():
                logp_BC, *_ = trainer._get_per_token_logps_and_entropies(
                    model, ids_BT, torch.ones_like(ids_BT), keep
                )
                loss = -(logp_BC * sampled_BT[:, PROMPT:]).sum()
            trainer.accelerator.backward(loss)

    return learn


def measure(run: Callable[[], object]) -> dict[str, float]:
    """Return wall-clock and CPU seconds of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def summarise(rounds: list[dict[str, dict[str, float]]], ours: str, tokens: int) -> dict:
    """Return tokens per second of each contender and the speed-up of ours."""
    table = {}
    for name in rounds[0]:
        ratios = [each[name]["wall"] / each[ours]["wall"] for each in rounds]
        table[name] = {
            "tokens_per_s": tokens / statistics.median(each[name]["wall"] for each in rounds),
            "tokens_per_cpu_s": tokens / statistics.median(each[name]["cpu"] for each in rounds),
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
        }
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--questions", type=int, default=8)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--turn", type=int, default=30, help="sampled tokens per turn")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--engines", nargs="*", default=["local", "transformers"])
    parser.add_argument("--no-learning", action="store_true")
    parser.add_argument("--out", type=Path, help="add the tables to this JSON file")
    args = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2"}
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_NO_USAGE_STATS": "1"}
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(find_model("smol"), dtype=torch.float32).eval()
    tables = {}

    def interleave(name: str, running: dict[str, Callable], ours: str, tokens: int) -> None:
        rounds = [
            {who: measure(partial(run, seed)) for who, run in running.items()}
            for seed in range(args.repeats + 1)
        ][1:]  # the first round warms up
        tables[name] = summarise(rounds, ours, tokens)
        for who, row in tables[name].items():
            low, high = row["ratio_range"]
            print(
                f"{name:9} {who:13} {row['tokens_per_s']:6.0f} tokens/s, "
                f"{row['tokens_per_cpu_s']:6.0f} per CPU second, {ours} is "
                f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}] times as fast",
                flush=True,
            )

    if args.engines:
        sampled = args.questions * args.group * TURNS * args.turn
        interleave("sampling", build_engines(args, model), args.engines[0], sampled)
    if not args.no_learning:
        rollouts = Rollouts(args)
        model.train()
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = AutoTokenizer.from_pretrained(find_model("smol"))
            padded = build_padded(model, tokenizer, folder, args)
            running = {
                "drlib": lambda seed: learn_packed(model, rollouts),
                "TRL": lambda seed: padded(rollouts),
            }
            interleave("learning", running, "drlib", sum(map(len, rollouts.samples)))
    if args.out:
        kept = json.loads(args.out.read_text()) if args.out.exists() else {}
        settings = {k: v for k, v in vars(args).items() if k != "out"} | {"threads": threads}
        key = "+".join(args.engines)
        kept[key] = {"settings": settings, "cpu": cpu_name(), **tables}
        write_atomic(args.out, json.dumps(kept, indent=1) + "\n")


def cpu_name() -> str:
    """Return the flags of the processor that decide the speed of bfloat16."""
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n")[0].split()
    return " ".join(flag for flag in ("amx_bf16", "avx512_bf16", "avx512f") if flag in flags)


if __name__ == "__main__":
    main()
