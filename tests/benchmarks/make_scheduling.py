"""Writes figures/reference/scheduling/: admission, routing and partial rollouts, simulated, and the
admission policies in the local engine.

The reference workload has 256 rollouts on four engines, lengths of 0.56 of the maximum on average
and steps of 1 + 0.01 * batch. Its numbers for a budget of 6,000 tokens are in REFERENCE. The
maximum length is not given; with 768 tokens `reserve` takes the time that it took there.

Run, about two minutes of CPU:
    PYTHONPATH=. python tests/benchmarks/make_scheduling.py
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

from drlib.analysis.figure_style import STYLE, png_bytes
from drlib.analysis.scheduling import (
    draw_lengths,
    simulate_admission,
    simulate_partial,
    simulate_routing,
)
from drlib.analysis.scheduling_plots import plot_partial, plot_routing, plot_schedules
from drlib.files import write_atomic
from drlib.models.admission import ADMISSIONS
from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import PolicyShape, build_policy

ROLLOUTS, LIMIT, BUDGETS, SEEDS = 256, 768, (6_000, 10_000, 16_000), range(10)
REFERENCE = {  # budget of 6,000
    "static": {"makespan": 4082, "wasted": 70_088, "overflows": 23},
    "reserve": {"makespan": 4674, "wasted": 0},
    "elastic": {"makespan": 2934, "wasted": 0},
    "prefill": {"affinity": 400_000, "random": 2_173_200},
}
RECOMPUTATION = {"generated again": None, "read at 0.01": 0.01, "read at 0.001": 0.001}
GROUPS = {"uniform": [8] * 25, "skewed": [88, *[8] * 14]}  # 200 rollouts
PROMPT = 1000
# label -> router, and what it hashes
ROUTING = {
    "random": ("random", False),
    "hash of the group": ("hash", True),
    "hash": ("hash", False),
    "sticky": ("sticky", False),
    "cache_aware": ("cache_aware", False),
}
MODES, OVERSAMPLING = ("wait", "drop", "resume"), (1.25, 1.5, 2.0, 4.0)
LIVE = {"prompts": 48, "context": 192, "budgets": (192, 576, 1_152)}


def admission_row(policy: str, budget: int, **options) -> dict:
    """Means over seeds, with the standard deviation of the makespan."""
    found = [
        simulate_admission(draw_lengths(ROLLOUTS, LIMIT, s), policy, budget, LIMIT, **options)
        for s in SEEDS
    ]
    names = ("makespan", "overflows", "evictions", "wasted", "peak", "cache_use", "busy")
    row = {name: float(np.mean([getattr(f, name) for f in found])) for name in names}
    row["makespan_sd"] = float(np.std([f.makespan for f in found], ddof=1))
    row = {name: round(value, 3 if value < 1 else 0) for name, value in row.items()}
    return {"policy": policy, "budget": budget, **options, **row}


def admission_rows() -> list[dict]:
    rows = []
    for policy in ADMISSIONS:
        rows += [admission_row(policy, budget, read_cost=None) for budget in BUDGETS]
        costs = [cost for cost in RECOMPUTATION.values() if cost]
        rows += [admission_row(policy, BUDGETS[0], read_cost=cost) for cost in costs]
        rows.append(admission_row(policy, BUDGETS[0], read_cost=None, turns=4, tool_time=100.0))
    return rows


def live_rows() -> list[dict]:
    """Sample from a random policy under each budget; the samples must not change."""
    torch.manual_seed(0)
    shape = PolicyShape(vocab_size=256, hidden=64, layers=3, heads=4, head_dim=16)
    model = build_policy(shape, seed=1, init="plain").eval()
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, rng.integers(8, 32)).tolist() for _ in range(LIVE["prompts"])]
    params = SamplingParams(max_tokens=LIVE["context"], stop_ids=(1, 2), seed=3)
    options = {"slots": LIVE["prompts"], "max_context": LIVE["context"]}
    base = LocalEngine(model, **options).generate(prompts, params)
    rows = []
    for policy in ADMISSIONS:
        for budget in LIVE["budgets"]:
            engine = LocalEngine(model, kv_budget=budget, admission=policy, **options)
            found = engine.generate(prompts, params)
            names = ("peak", "overflows", "evictions", "wasted")
            counts = {name: int(getattr(engine.admission, name)) for name in names}
            same = [f.token_ids for f in found] == [b.token_ids for b in base]
            rows.append({"policy": policy, "budget": budget, **counts, "same_samples": same})
    tokens = sum(len(completion.token_ids) for completion in base)
    return [{"tokens": tokens, **row} for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("figures/reference/scheduling"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    plt.style.use(STYLE)
    args.out.mkdir(parents=True, exist_ok=True)

    routing = {
        load: {
            label: simulate_routing(sizes, router, by_group=by_group, prompt_tokens=PROMPT)
            for label, (router, by_group) in ROUTING.items()
        }
        for load, sizes in GROUPS.items()
    }
    without_prompt = {
        name: simulate_routing([1] * 200, name).prefill for name in ("random", "hash")
    }
    partial = {
        (mode, factor): simulate_partial(mode, oversample=factor)
        for mode in MODES
        for factor in OVERSAMPLING
    }
    result = {
        "command": "PYTHONPATH=. python tests/benchmarks/make_scheduling.py",
        "settings": {"rollouts": ROLLOUTS, "limit": LIMIT, "seeds": len(SEEDS), "live": LIVE},
        "reference": REFERENCE,
        "admission": admission_rows(),
        "prefill": without_prompt,
        "routing": [
            {"load": load, "router": label, **vars(found)}
            for load, results in routing.items()
            for label, found in results.items()
        ],
        "partial": [
            {
                "mode": mode,
                "oversample": factor,
                "time_per_step": round(float(found.time_S.mean()), 1),
                "bias_first_step": round(float(found.length_S[0] / found.drawn - 1), 3),
                "bias_after_ten": round(float(found.length_S[10:].mean() / found.drawn - 1), 3),
                "age_after_ten": round(float(found.age_S[10:].mean()), 2),
                "discarded": found.discarded,
            }
            for (mode, factor), found in partial.items()
            if mode != "wait" or factor == 2.0
        ],
        "live": live_rows(),
    }
    write_atomic(args.out / "results.json", json.dumps(result, indent=1) + "\n")
    lengths_N = draw_lengths(ROLLOUTS, LIMIT, 0)
    schedules = {name: simulate_admission(lengths_N, name, 6_000, LIMIT) for name in ADMISSIONS}
    figures = {
        "admission": plot_schedules(schedules),
        "routing": plot_routing(routing),
        "partial": plot_partial({mode: partial[mode, 2.0] for mode in MODES}),
    }
    for name, figure in figures.items():
        (args.out / f"{name}.png").write_bytes(png_bytes(figure))


if __name__ == "__main__":
    main()
