"""Writes figures/reference/balance/results.json: how evenly experts are used, and what it costs.

The laptop profile's initial policy is pre-trained for STEPS steps with nothing that balances its
experts, with the auxiliary loss (Switch Transformers; the weight that the profile has), and with
biases at three rates (arXiv 2408.15664 has 0.001). Then it reads documents that nothing was trained
on. Written down, for each seed: its loss on them, in nats a token that carries loss; the share of
their tokens' choices that each expert got; MaxVio, how far the fullest expert of a layer is above
the mean, over all of the text and within a batch, mean over the layers; and `balance`, the
auxiliary loss's own measure (1 is even).

The evaluation's documents and the seeds were fixed before the first run.

Run, about 25 minutes of CPU:
    PYTHONPATH=. python tests/benchmarks/make_balance.py
"""

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import torch

from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.files import write_atomic
from drlib.models.moe import load_policy
from drlib.models.router_bias import get_router_biases, max_violation
from drlib.models.routing_replay import expert_load, record_routes
from drlib.training.launch import build_stage
from drlib.training.packing import PackedBatch, score, split_by_size
from drlib.training.pretrain import documents
from drlib.worlds import Names, load_world

STEPS = 150
HELD_OUT = 240  # documents
BATCH = 1904  # tokens, those of a shard in training
ARMS = {
    "nothing": {"balance_coef": 0.0},
    "loss": {"balance_coef": 0.01},
    "bias 0.0001": {"trainer.balance_coef": 0.0, "trainer.router_bias_rate": 1e-4},
    "bias 0.001": {"trainer.balance_coef": 0.0, "trainer.router_bias_rate": 1e-3},
    "bias 0.01": {"trainer.balance_coef": 0.0, "trainer.router_bias_rate": 1e-2},
}


@torch.no_grad()
def measured(model, samples) -> dict:
    """Measure this policy on held-out documents."""
    nats, tokens, balance, uneven, passes = 0.0, 0, [], [], []
    experts = model.config.num_experts
    for some in split_by_size(samples, len, BATCH):
        batch = PackedBatch.pack([s.ids for s in some])
        with record_routes(model) as recorder:
            scored = score(model, batch, batch.spread([s.loss for s in some], torch.bool))
        nats, tokens = nats - scored.logp_M.sum().item(), tokens + scored.logp_M.numel()
        balance.append(scored.balance.item())
        passes += recorder.passes
        uneven.append(max_violation(expert_load(recorder.passes[0], experts)))
    load_LE = expert_load(torch.cat(passes, dim=1), experts)
    return {
        "loss": nats / tokens,
        "balance": sum(balance) / len(balance),
        "max_violation": max_violation(load_LE),
        "max_violation_of_a_batch": sum(uneven) / len(uneven),
        "load": [[round(share, 4) for share in row] for row in load_LE.tolist()],
    }


def one_run(arm: str, seed: int, runs: Path) -> dict:
    """One policy, pre-trained in its stage, and measured."""
    started = time.process_time()
    config = Config.load("laptop", processes=1, seed=seed, pretrain__steps=STEPS, **ARMS[arm])
    model, tokenizer = load_policy(build_stage("cpt", config, runs=runs) / "policy")
    draw = documents(config, Names.from_world(load_world(config.world.name)), ChatIds(tokenizer))
    samples = [*itertools.islice(draw("held-out-balance"), HELD_OUT)]
    biases_LE = get_router_biases(model)
    largest = 0.0 if biases_LE is None else float(biases_LE.abs().max())
    row = {"arm": arm, "seed": seed, **measured(model.eval(), samples), "largest_bias": largest}
    print(arm, seed, {k: v for k, v in row.items() if k != "load"}, flush=True)
    return row | {"seconds": round(time.process_time() - started, 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("figures/reference/balance"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    result = {
        "command": "PYTHONPATH=. python tests/benchmarks/make_balance.py",
        "settings": {"steps": STEPS, "held_out": HELD_OUT, "batch": BATCH, "arms": ARMS},
        "rows": [],
    }
    with tempfile.TemporaryDirectory() as runs:
        for seed, arm in itertools.product(args.seeds, ARMS):
            result["rows"].append(one_run(arm, seed, Path(runs)))
            write_atomic(args.out / "results.json", json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
