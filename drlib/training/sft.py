"""Stages `sft` and `sft_continued`: the cold start by rejection sampling, and its control.

The pool's correct attempts (Tongyi DeepResearch filters the same way before RL) are trained with
loss on the assistant's tokens only, mixed with some pre-training text so that copying is not
forgotten: lists and pages, no logs of tool use, of which the pool is to be the only source (clean
logs for ever would be the endless good demonstrations that this stage does not have).
`sft_continued` goes on from the cold start with the same data and rates for as many
steps as reinforcement learning has compute: the honest question is what RL adds over *that*.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from drlib.config import Config
from drlib.policy.moe import load_policy, save_policy
from drlib.synthesis.actions import REPLAY, ActionData, Sample, episode_sample
from drlib.training import stages
from drlib.training.data import policy_tools, read_episodes
from drlib.training.run import Ranks, RunFolder
from drlib.training.supervised import Recipe, shuffled, train_supervised

WARMUP_STEPS = 10


def mixed(
    pool: list[Sample], replay: Iterator[Sample], share: float, seed: str
) -> Iterator[Sample]:
    """Pool samples with `share` of replay, for ever."""
    rng, own = random.Random(f"mix-{seed}"), shuffled(pool, seed)
    while True:
        yield next(replay) if rng.random() < share else next(own)


def sft(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `sft`: cold start from the pre-trained policy; returns the last metrics."""
    return _train("sft", "cpt", config.sft_steps, config, run_dir, ranks or Ranks())


def sft_continued(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `sft_continued`: the control that spends RL's compute on more of the same."""
    steps = config.sft_continued_steps
    return _train("sft_continued", "sft", steps, config, run_dir, ranks or Ranks())


def _train(
    name: str, before: str, steps: int, config: Config, run_dir: Path, ranks: Ranks
) -> dict:
    run = RunFolder(run_dir, stages.settings_of(name, config), ranks)
    runs = run_dir.parents[1]
    tokenizer, chat, _, names = policy_tools(config, runs)
    model, _ = load_policy(stages.input_folder(name, before, config, runs) / "policy")
    folder = stages.input_folder(name, "demonstrations", config, runs)
    rows = read_episodes(folder, config.demonstration_filter)
    pool = [episode_sample(row["messages"], chat) for row in rows]
    data = ActionData(names, chat, config.search_results)

    def draw(step: int, shard: int) -> Iterator[Sample]:
        key = f"{name}-{config.seed}-{step}-{shard}"
        return mixed(pool, data.stream(key, REPLAY), config.sft_replay_share, key)

    recipe = Recipe(
        steps, config.sft_batch_tokens, config.sft_muon_lr, config.sft_adam_lr, WARMUP_STEPS, 1.0,
        config.balance_coef, config.checkpoint_every,
    )  # fmt: skip
    metrics = train_supervised(model, recipe, draw, run, ranks, tokenizer.pad_token_id)
    if ranks.first:
        save_policy(model, tokenizer, run.path / "policy")
    ranks.barrier()
    run.finish(metrics | {"pool": len(pool)})
    return metrics


if __name__ == "__main__":
    stages.main({"sft": sft, "sft_continued": sft_continued})
