"""The loop of both supervised stages: packed rows, loss on chosen tokens, Muon and AdamW.

One optimizer step sees `batch_tokens` tokens in SHARDS shards. A shard's samples depend on (seed,
step, shard) alone, and the loss is divided by the number of loss tokens of all shards, so the
number of processes changes nothing but the time.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from drlib.synthesis.actions import Sample
from drlib.training.batches import pack, score, spread
from drlib.training.optim import Optimizers, schedule
from drlib.training.run import SHARDS, Interrupted, Ranks, RunFolder, interruptible

ROW_TOKENS = 160
FILL = 0.93  # of `batch_tokens`: how full first-fit packing gets the rows


@dataclass(frozen=True)
class Recipe:
    """What a supervised stage sets."""

    steps: int
    batch_tokens: int
    muon_lr: float
    adam_lr: float
    warmup_steps: int
    decay_share: float
    balance_coef: float
    checkpoint_every: int


def fill(samples: Iterator[Sample], tokens: int) -> list[Sample]:
    """Samples until about `tokens` tokens are there (never more, at least one)."""
    chosen, total = [], 0
    for sample in samples:
        if chosen and total + len(sample) > tokens:
            break
        chosen.append(sample)
        total += len(sample)
    return chosen


def train_supervised(
    model, recipe: Recipe, draw: Callable[[int, int], Iterator[Sample]], run: RunFolder, pad_id: int
) -> dict:
    """Train in place; `draw(step, shard)` yields that shard's samples for ever.

    Returns the last step's metrics. Raises Interrupted after a clean checkpoint on Ctrl-C.
    """
    ranks, optimizers = run.ranks, Optimizers.muon_adam(model, recipe.muon_lr, recipe.adam_lr)
    done, _ = run.resume(model, optimizers)
    model.train()
    metrics: dict = {}
    per_shard = int(recipe.batch_tokens / SHARDS * FILL)
    with interruptible(ranks) as stop:
        for step in range(done, recipe.steps):
            started = time.perf_counter()
            shards = [fill(draw(step, shard), per_shard) for shard in ranks.shards]
            metrics = _step(model, optimizers, recipe, shards, ranks, pad_id, step)
            metrics |= {"step": step + 1, "seconds": round(time.perf_counter() - started, 4)}
            run.log(metrics)
            last, asked = step + 1 == recipe.steps, stop()
            if asked or (step + 1) % recipe.checkpoint_every == 0 or last:
                run.save_checkpoint(step + 1, model, optimizers)
            if asked and not last:
                raise Interrupted
    return metrics


def _step(model, optimizers, recipe: Recipe, shards, ranks: Ranks, pad_id: int, step: int) -> dict:
    counted = ranks.sum({"n": sum(sum(s.loss[1:]) for shard in shards for s in shard)})["n"]
    sums = {"loss": 0.0, "tokens": 0.0, "balance": 0.0}
    for samples in shards:
        width = max(ROW_TOKENS, max(map(len, samples)))
        rows = pack([s.ids for s in samples], width, pad_id)
        loss_RT = spread(rows, [s.loss for s in samples], torch.bool)
        scored = score(model, rows, loss_RT)
        nll = -scored.logp_M.sum() / counted
        (nll + recipe.balance_coef * scored.balance / SHARDS).backward()
        sums["loss"] += nll.item()
        sums["balance"] += scored.balance.item() / SHARDS
        sums["tokens"] += sum(len(s) for s in samples)
    ranks.sum_gradients(model)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    factor = schedule(step, recipe.steps, recipe.warmup_steps, recipe.decay_share)
    optimizers.step(factor)
    sums = ranks.sum(sums)
    return {
        "loss": sums["loss"], "balance": sums["balance"], "tokens": int(sums["tokens"]),
        "loss_tokens": int(counted), "grad_norm": float(norm), "lr_factor": factor,
    }  # fmt: skip


def shuffled(samples: list[Sample], seed: str) -> Iterator[Sample]:
    """A pool for ever: every epoch in a new order."""
    if not samples:
        raise ValueError("the pool holds no sample: are all demonstrations filtered out?")
    for epoch in itertools.count():
        order = list(samples)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        yield from order
