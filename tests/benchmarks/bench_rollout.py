"""Tokens a second of the local engine, of `transformers.generate` and of vLLM; a script, no test.

The same model (plain weights, the tour's shape), ragged prompts of `--prompt-min` to
`--prompt-max` tokens, stop tokens that come about every forty, temperature 1, `--batch`
conversations at once, one thread. A sampled token counts up to and including the stop token;
transformers goes on padding finished rows until the last one stops, which is part of what is
compared. The engines draw different samples, whose lengths agree in distribution. Each reports the
log-probabilities of its samples but transformers, and the local engine their entropies, too.

`--vllm` compares with vLLM besides, eager or with its graphs (torch.compile: a C++ compiler, and a
folder without a space in its name). It runs in this process, so that its CPU time is counted, and
knows no head of fewer than 32 coordinates: then all run a model with heads of 32.

Runs are interleaved, so that a busy machine slows all alike; a ratio is the median of the rounds',
with the least and the most, of tokens a CPU second.

Run: OMP_NUM_THREADS=1 PYTHONPATH=. python tests/benchmarks/bench_rollout.py [--out FILE]
     ... .venv-vllm/bin/python tests/benchmarks/bench_rollout.py --vllm "vLLM graphs" (or eager)
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import GenerationConfig

from drlib.files import write_atomic
from drlib.models.engine import Engine, SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import PolicyShape, build_policy

PAD, STOP_ODDS = 0, 1 / 40
OURS = "LocalEngine"
Contender = Callable[[int], int]  # of a seed: the tokens that were sampled


def workload(args, head_dim: int):
    """(model, prompts, stop ids): each token is a stop with odds of about one in forty."""
    shape = PolicyShape(head_dim=head_dim)
    model = build_policy(shape, seed=0, init="plain", pad_id=PAD).eval()
    rng = np.random.default_rng(0)
    lengths = rng.integers(args.prompt_min, args.prompt_max + 1, args.requests)
    prompts = [rng.integers(100, shape.vocab_size, n).tolist() for n in lengths]
    # A plain model is nearly uniform over the vocabulary, so a share of ids gives the odds.
    stop_ids = list(range(1, 1 + round(shape.vocab_size * STOP_ODDS)))
    return model, prompts, stop_ids


def by_engine(engine: Engine, prompts, stop_ids, max_tokens: int) -> Contender:
    def run(seed: int) -> int:
        params = SamplingParams(max_tokens=max_tokens, stop_ids=tuple(stop_ids), seed=seed)
        return sum(len(c.token_ids) for c in engine.generate(prompts, params))

    return run


def by_transformers(model, prompts, stop_ids, max_tokens: int, batch: int) -> Contender:
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max_tokens,
        eos_token_id=stop_ids,
        pad_token_id=PAD,
        bos_token_id=None,
    )

    def run(seed: int) -> int:
        torch.manual_seed(seed)
        total = 0
        for first in range(0, len(prompts), batch):
            part = prompts[first : first + batch]
            width = max(map(len, part))
            ids = torch.tensor([[PAD] * (width - len(p)) + p for p in part])
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
            with torch.inference_mode():
                out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
            # After its stop token a row holds padding only, and PAD itself is never sampled long.
            stopped = torch.isin(out[:, width:], torch.tensor(stop_ids))
            length = torch.where(stopped.any(1), stopped.int().argmax(1) + 1, out.shape[1] - width)
            total += int(length.sum())
        return total

    return run


def by_vllm(model, prompts, stop_ids, max_tokens: int, batch: int, eager: bool) -> Contender:
    from vllm import SamplingParams as VllmParams

    from drlib.models.vllm_engine import VllmEngine

    context = max(map(len, prompts)) + max_tokens
    engine = VllmEngine(model, max_context=context, max_num_seqs=batch, enforce_eager=eager)

    def run(seed: int) -> int:
        torch.manual_seed(seed)  # of the process, which is cheaper than one of each request
        params = VllmParams(
            max_tokens=max_tokens,
            temperature=1.0,
            stop_token_ids=stop_ids,
            ignore_eos=True,
            logprobs=0,
            detokenize=False,
        )
        served = engine._engine  # its own requests: ours would seed each and look at each token
        assert served.reset_prefix_cache()  # the same prompts come every round
        for i, prompt in enumerate(prompts):
            served.add_request(f"{seed}-{i}", {"prompt_token_ids": prompt}, params)
        total = 0
        while served.has_unfinished_requests():
            for output in served.step():
                total += len(output.outputs[0].token_ids) if output.finished else 0
        return total

    return run


def contenders(args) -> dict[str, Contender]:
    model, prompts, stop_ids = workload(args, head_dim=32 if args.vllm else 16)
    work = prompts, stop_ids, args.max_tokens
    engine = LocalEngine(model, slots=args.batch, max_context=args.prompt_max + args.max_tokens)
    other = (
        by_vllm(model, *work, args.batch, eager=args.vllm == "vLLM eager")
        if args.vllm
        else by_transformers(model, *work, args.batch)
    )
    return {OURS: by_engine(engine, *work), args.vllm or "transformers": other}


def speed(run: Contender, seed: int) -> dict[str, float]:
    """Tokens a second of one call, by the clock and by CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = run(seed)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"wall": tokens / wall, "cpu": tokens / cpu}


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict:
    """Return tokens per second of each contender and the speed-up of our engine."""
    found = {}
    for name in rounds[0]:
        ratios = [each[OURS]["cpu"] / each[name]["cpu"] for each in rounds]
        found[name] = {
            "tokens_per_wall_s": statistics.median(each[name]["wall"] for each in rounds),
            "tokens_per_cpu_s": statistics.median(each[name]["cpu"] for each in rounds),
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128, help="conversations at once")
    parser.add_argument("--max-tokens", type=int, default=72)
    parser.add_argument("--prompt-min", type=int, default=16)
    parser.add_argument("--prompt-max", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vllm", choices=("vLLM eager", "vLLM graphs"))
    parser.add_argument("--out", type=Path, help="the JSON file that these numbers are added to")
    args = parser.parse_args()
    # Read by vLLM: in this process, on the threads that torch has, little memory, no reports.
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    running = contenders(args)
    torch.set_num_threads(args.threads)
    rounds = []
    for seed in range(args.repeats + 1):
        found = {name: speed(run, seed) for name, run in running.items()}
        if seed:  # the first round warms up
            rounds.append(found)
    print(f"{args.requests} requests, {args.batch} at once, {args.threads} thread(s)")
    table = summary(rounds)
    for name, row in table.items():
        low, high = row["ratio_range"]
        print(
            f"{name:22} {row['tokens_per_wall_s']:8.0f} tokens a second, "
            f"{row['tokens_per_cpu_s']:8.0f} a CPU second, "
            f"ours {row['ratio']:.2f} [{low:.2f}, {high:.2f}] times"
        )
    if args.out:
        kept = json.loads(args.out.read_text()) if args.out.exists() else {}
        settings = {k: v for k, v in vars(args).items() if k not in ("out", "vllm")}
        kept[args.vllm or "transformers"] = {
            "settings": settings,
            "engines": table,
        }
        write_atomic(args.out, json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
