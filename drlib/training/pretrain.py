"""Stages `untrained` and `cpt`: initial policy, agentic continual pre-training and its loop.

The policy starts from a structured initialisation with induction heads (`drlib.models.moe`),
because no weights can be downloaded. `model.init=plain` uses the ordinary initialisation, which
does not learn copying in laptop time. Pre-training uses fictional worlds only
(`drlib.demonstrations.actions`): copying, reading and the format of tool calls, but no facts and no
chain of three hops.

SFT uses `train_supervised` too: packed samples, Muon and AdamW. A step has `batch_tokens` tokens in
SHARDS shards. A shard depends on (seed, step, shard) only, and the loss is divided by the loss
tokens of all shards, so results do not depend on the number of processes.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.demonstrations.actions import ActionData, Sample
from drlib.demonstrations.agentfounder import ActionRows
from drlib.demonstrations.skills import SkillData
from drlib.models.moe import PolicyShape, build_policy, save_policy
from drlib.training import stages
from drlib.training.balance import balance_experts
from drlib.training.distributed import SHARDS, Ranks
from drlib.training.model_setup import (
    build_chat,
    finish_unchanged,
    load_model,
    load_model_tokenizer,
)
from drlib.training.optim import SKIPPED, GradientWatch, Optimizers, schedule
from drlib.training.packing import PackedBatch, mix_streams, score, split_by_size
from drlib.training.policies import begin_stage, finish_stage, load_stage_tools
from drlib.training.run_folder import RunFolder
from drlib.worlds import Names

SMALL_VOCABULARY = 8192  # above it, log-probabilities are computed in chunks
SKILL_SHARE = 0.35  # of the samples, where the policy learns to keep reports and summaries


def train_supervised(
    run: RunFolder,
    model,
    config: Config,
    draw: Callable[[int, int], Iterator[Sample]],
    *,
    steps: int,
    batch_tokens: int,
    lrs: tuple[float, float],
    warmup: int,
    decay_share: float,
) -> dict:
    """Train in place; `draw(step, shard)` yields that shard's samples for ever. batch_tokens: a
    step's, in SHARDS shards; the loss is divided by the loss tokens of all, so the number of
    processes changes nothing but the time. lrs: of Muon and of AdamW. warmup (steps),
    decay_share: see `schedule`. Returns the last step's metrics; raises as `RunFolder.loop`."""
    ranks, optimizers = run.ranks, Optimizers.muon_adam(model, *lrs)
    extra = run.resume(model, optimizers)
    model.train()
    watch = GradientWatch()
    watch.skipped = extra.get("skipped", 0)
    parts = SHARDS * ranks.parts

    def take(step: int) -> dict:
        started = time.perf_counter()
        limit = batch_tokens / SHARDS
        drawn = [next(split_by_size(draw(step, shard), len, limit)) for shard in ranks.shards]
        shards = [samples[ranks.part :: ranks.parts] for samples in drawn]
        counted = ranks.sum({"n": sum(sum(s.loss[1:]) for shard in shards for s in shard)})["n"]
        sums = _accumulate(model, shards, counted, parts, config)
        norm = ranks.sum_gradients(model)
        factor = schedule(step, steps, warmup, decay_share)
        if watch.usable(math.isfinite(norm)):
            optimizers.step(factor)
            extra = balance_experts(model, config.trainer.router_bias_rate)
        else:
            model.zero_grad(set_to_none=True)
            extra = {"skipped": SKIPPED}
        sums = ranks.sum(sums)
        return (
            sums
            | extra
            | {
                "tokens": int(sums["tokens"]),
                "loss_tokens": int(counted),
                "grad_norm": norm,
                "lr_factor": factor,
                "step": step + 1,
                "seconds": round(time.perf_counter() - started, 4),
            }
        )

    every = config.trainer.checkpoint_every
    return run.loop(take, steps, every, lambda: {"skipped": watch.skipped})


def _accumulate(
    model, shards: list[list[Sample]], counted: float, parts: int, config: Config
) -> dict[str, float]:
    """Add the gradient of this process's samples to the model's; return sums for the metrics.

    Args:
        counted: loss tokens of all processes.
        parts: number of micro-batches of the whole step.
    """
    sums = {"loss": 0.0, "balance": 0.0, "tokens": 0.0}
    for samples in filter(None, shards):
        batch = PackedBatch.pack([s.ids for s in samples])
        scored = score(
            model,
            batch,
            batch.spread([s.loss for s in samples], torch.bool),
            frugal=len(model.lm_head.weight) > SMALL_VOCABULARY,
            dtype=config.model.dtype,
        )
        nll = -scored.logp_M.sum() / counted
        (nll + config.trainer.balance_coef * scored.balance / parts).backward()
        sums["loss"] += nll.item()
        sums["balance"] += scored.balance.item() / parts
        sums["tokens"] += sum(map(len, samples))
    return sums


def policy_shape(config: Config) -> PolicyShape:
    """Return the sizes of the small policy."""
    model = config.model
    return PolicyShape(
        config.world.vocabulary,
        hidden=model.hidden,
        layers=model.layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        expert_hidden=model.expert_hidden,
    )


def build_untrained(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Build stage `untrained`: check model.path, or write the tiny policy's initial weights.

    A missing model, tokenizer or chat template is thus reported before anything is spent.
    """
    if config.model.path:
        run = RunFolder(run_dir, stages.stage_settings("untrained", config), ranks)
        build_chat(load_model_tokenizer(config.model_path), config.model.tool_format)
        model = load_model(config.model_path, getattr(torch, config.model.dtype))
        return finish_unchanged(run, config.model_path, {"parameters": model.num_parameters()})
    ranks = ranks or Ranks(config.trainer.backend)
    run = RunFolder(run_dir, stages.stage_settings("untrained", config), ranks)
    tokenizer, chat, *_ = load_stage_tools(config, run_dir.parents[1])
    model = build_policy(
        policy_shape(config),
        config.seed,
        config.model.init,
        eos_id=tokenizer.eos_token_id,
        pad_id=tokenizer.pad_token_id,
    )
    save_policy(model, tokenizer, run.path / "policy")
    return run.finish({"parameters": sum(p.numel() for p in model.parameters())})


def pretrain(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Build stage `cpt`; return the metrics of the last step.

    A real model is kept as it is if pretrain.steps is 0.
    """
    start = begin_stage("cpt", "untrained", config, run_dir, ranks)
    if config.model.path and config.pretrain.steps == 0:
        return finish_unchanged(start.run, start.where, {})
    draw = documents(config, start.names, start.chat)
    metrics = train_supervised(
        start.run,
        start.model,
        config,
        lambda step, shard: draw(f"{config.seed}-{step}-{shard}"),
        steps=config.pretrain.steps,
        batch_tokens=config.pretrain.batch_tokens,
        lrs=(config.pretrain.muon_lr, config.pretrain.adam_lr),
        warmup=config.pretrain.warmup_steps,
        decay_share=config.pretrain.decay_share,
    )
    return finish_stage(start, config, metrics)


def documents(config: Config, names: Names, chat: ChatIds) -> Callable[[str], Iterator[Sample]]:
    """Return a function from a key to endless documents.

    They are documents of the tour's kind, with a share of context-management skills if
    questions.skills="memory" and a share of AgentFounder rows if set.

    Raises:
        ValueError: the shares exceed 1.
    """
    shares = config.pretrain.first_order_share, config.pretrain.higher_order_share
    if sum(shares) > 1:
        raise ValueError(
            "pretrain.first_order_share and pretrain.higher_order_share sum to "
            f"{sum(shares)}: lower "
            "them to at most 1"
        )
    conditions = None if config.questions.source == "chains" else config.questions.wording
    actions = ActionData(names, chat, config.rollout.search_results, conditions)
    skills = SkillData(names, chat, config.rollout.search_results)

    def with_skills(key: str) -> Iterator[Sample]:
        streams = skills.stream(key), actions.stream(key)
        return mix_streams(random.Random(f"skills-{key}"), streams, (SKILL_SHARE,))

    of_tour = with_skills if config.questions.skills == "memory" else actions.stream
    if sum(shares) == 0:
        return of_tour
    from_memory = config.pretrain.first_order_questions == "memory"
    close = config.pretrain.higher_order_alternatives == "read"
    rows = ActionRows(names, chat, config.rollout.search_results, from_memory, close)

    def with_rows(key: str) -> Iterator[Sample]:
        streams = rows.stream(key, "fas"), rows.stream(key, "has"), of_tour(key)
        return mix_streams(random.Random(f"documents-{key}"), streams, shares)

    return with_rows
