"""Tokens per second of the local engine against `transformers.generate`; a script, not a test.

Same model (grouped_mm experts), same ragged prompts (left-padded for transformers), same stop
token, same sampling at temperature 1, one thread. Runs are interleaved, so that a busy machine
slows both alike; the figure is the median of the pairs' ratios. A sampled token counts up to and
including the stop token; transformers goes on padding finished rows until the last one stops,
which is part of what is compared. The two draw different samples; lengths agree in distribution.

Run: OMP_NUM_THREADS=1 python tests/benchmarks/bench_rollout.py [--requests 256] [--repeats 5]
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import torch
from transformers import GenerationConfig

from drlib.policy.engine import LocalEngine, SamplingParams
from drlib.policy.moe import PolicyShape, build_policy

PAD, STOP_ODDS = 0, 1 / 40


def make_workload(args):
    """(model, prompts, stop ids): each token is a stop with odds of about one in forty."""
    shape = PolicyShape()
    model = build_policy(shape, seed=0, init="plain", pad_id=PAD).eval()
    rng = np.random.default_rng(0)
    lengths = rng.integers(args.prompt_min, args.prompt_max + 1, args.requests)
    prompts = [rng.integers(100, shape.vocab_size, n).tolist() for n in lengths]
    # A plain model is nearly uniform over the vocabulary, so a share of ids gives the odds.
    stop_ids = list(range(1, 1 + round(shape.vocab_size * STOP_ODDS)))
    return model, prompts, stop_ids


def run_engine(engine, prompts, stop_ids, max_tokens, seed):
    params = SamplingParams(max_tokens=max_tokens, stop_ids=tuple(stop_ids), seed=seed)
    completions = engine.generate(prompts, params)
    return sum(len(completion.token_ids) for completion in completions)


def run_transformers(model, prompts, stop_ids, max_tokens, seed, batch):
    torch.manual_seed(seed)
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
    total = 0
    for first in range(0, len(prompts), batch):
        part = prompts[first : first + batch]
        width = max(map(len, part))
        ids = torch.tensor([[PAD] * (width - len(p)) + p for p in part])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in part])
        with torch.inference_mode():
            out = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        # After its stop token a row holds padding only, and PAD itself is never sampled for long.
        stopped = torch.isin(out[:, width:], torch.tensor(stop_ids))
        length = torch.where(stopped.any(1), stopped.int().argmax(1) + 1, out.shape[1] - width)
        total += int(length.sum())
    return total


def timed(function, *args):
    """(tokens per wall second, tokens per CPU second) of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = function(*args)
    return tokens / (time.perf_counter() - wall), tokens / (time.process_time() - cpu)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--batch", type=int, default=128, help="slots, and rows of generate")
    parser.add_argument("--max-tokens", type=int, default=72)
    parser.add_argument("--prompt-min", type=int, default=16)
    parser.add_argument("--prompt-max", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, prompts, stop_ids = make_workload(args)
    engine = LocalEngine(model, slots=args.batch, max_context=args.prompt_max + args.max_tokens)
    rows = []
    for repeat in range(args.repeats + 1):
        ours = timed(run_engine, engine, prompts, stop_ids, args.max_tokens, repeat)
        theirs = timed(
            run_transformers, model, prompts, stop_ids, args.max_tokens, repeat, args.batch
        )
        if repeat:  # the first pair warms up
            rows.append((*ours, *theirs))
    print(f"{args.requests} requests, batch {args.batch}, {args.threads} thread(s)")
    print(f"{'':28}{'tok/s wall':>12}{'tok/s CPU':>12}")
    for name, column in (("LocalEngine", 0), ("transformers.generate", 2)):
        wall, cpu = (statistics.median(r[column + i] for r in rows) for i in (0, 1))
        print(f"{name:28}{wall:12.0f}{cpu:12.0f}")
    ratios = [statistics.median(r[i] / r[i + 2] for r in rows) for i in (0, 1)]
    print(f"{'median ratio':28}{ratios[0]:12.2f}{ratios[1]:12.2f}")


if __name__ == "__main__":
    main()
