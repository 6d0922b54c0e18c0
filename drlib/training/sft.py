"""Stages `sft` and `sft_continued`: the cold start by rejection sampling, and its control.

The pool's correct attempts (Tongyi DeepResearch filters the same way before RL; the setting
`demonstration_filter` has the whole funnel, and no filter) are trained with loss on the assistant's
tokens only (`sft_loss_on` has all tokens), mixed with some pre-training text so that copying is not
forgotten: lists and pages, no logs of tool use, of which the pool is to be the only source (clean
logs for ever would be the endless good demonstrations that this stage does not have).
`sft_continued` goes on from the cold start with the same data and rates for as many steps as
reinforcement learning has compute: the honest question is what RL adds over *that*.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from drlib.config import Config
from drlib.synthesis.actions import REPLAY, ActionData, Sample, episode_sample
from drlib.training import stages
from drlib.training.data import read_episodes
from drlib.training.policies import begin, finish
from drlib.training.pretrain import train_supervised
from drlib.training.ranks import Ranks

WARMUP_STEPS = 10


def shuffled(samples: list[Sample], seed: str) -> Iterator[Sample]:
    """A pool for ever: every epoch in a new order."""
    if not samples:
        raise ValueError("the pool holds no sample: are all demonstrations filtered out?")
    for epoch in itertools.count():
        order = list(samples)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        yield from order


def sft(config: Config, run_dir: Path, ranks: Ranks | None = None, name: str = "sft") -> dict:
    """Stage `sft` (or `name`); returns the last metrics."""
    run, model, chat, _, names = begin(name, stages.STAGES[name].inputs[0], config, run_dir, ranks)
    folder = stages.input_folder(name, "demonstrations", config, run_dir.parents[1])
    episodes = read_episodes(folder, config.demonstration_filter)
    pool = [episode_sample(episode["messages"], chat) for episode in episodes]
    if config.sft_loss_on == "all":
        pool = [replace(sample, loss=(True,) * len(sample)) for sample in pool]
    data = ActionData(names, chat, config.search_results)

    def draw(step: int, shard: int) -> Iterator[Sample]:
        """Pool samples with a share of replay, for ever."""
        key = f"{name}-{config.seed}-{step}-{shard}"
        rng, own = random.Random(f"mix-{key}"), shuffled(pool, key)
        replay = data.stream(key, REPLAY)
        while True:
            yield next(replay) if rng.random() < config.sft_replay_share else next(own)

    metrics = train_supervised(
        run,
        model,
        config,
        draw,
        chat.tokenizer.pad_token_id,
        steps=getattr(config, stages.STAGES[name].steps),
        batch_tokens=config.sft_batch_tokens,
        lrs=(config.sft_muon_lr, config.sft_adam_lr),
        warmup=WARMUP_STEPS,
        decay_share=1.0,
    )
    return finish(run, model, chat, metrics | {"pool": len(pool)})
