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
from functools import partial
from pathlib import Path

from drlib.config import Config
from drlib.synthesis.actions import REPLAY, ActionData, Sample, episode_sample
from drlib.training import stages
from drlib.training.data import begin, finish, read_episodes
from drlib.training.run import Ranks
from drlib.training.supervised import Recipe, shuffled, train_supervised

WARMUP_STEPS = 10


def sft(
    config: Config, run_dir: Path, ranks: Ranks | None = None, *, continued: bool = False
) -> dict:
    """Stage `sft`: cold start from the pre-trained policy; returns the last metrics.

    `continued` is stage `sft_continued`: the control that spends RL's compute on more of the same.
    """
    name, before, steps = "sft", "cpt", config.sft_steps
    if continued:
        name, before, steps = "sft_continued", "sft", config.sft_continued_steps
    run, model, chat, _, names = begin(name, before, config, run_dir, ranks)
    folder = stages.input_folder(name, "demonstrations", config, run_dir.parents[1])
    rows = read_episodes(folder, config.demonstration_filter)
    pool = [episode_sample(row["messages"], chat) for row in rows]
    data = ActionData(names, chat, config.search_results)

    def draw(step: int, shard: int) -> Iterator[Sample]:
        """Pool samples with a share of replay, for ever."""
        key = f"{name}-{config.seed}-{step}-{shard}"
        rng, own = random.Random(f"mix-{key}"), shuffled(pool, key)
        replay = data.stream(key, REPLAY)
        while True:
            yield next(replay) if rng.random() < config.sft_replay_share else next(own)

    recipe = Recipe(
        steps, config.sft_batch_tokens, config.sft_muon_lr, config.sft_adam_lr, WARMUP_STEPS, 1.0,
        config.balance_coef, config.checkpoint_every,
    )  # fmt: skip
    metrics = train_supervised(model, recipe, draw, run, chat.tokenizer.pad_token_id)
    return finish(run, model, chat, metrics, pool=len(pool))


if __name__ == "__main__":
    stages.main({"sft": sft, "sft_continued": partial(sft, continued=True)})
