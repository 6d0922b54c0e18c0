"""Stages `sft` and `sft_continued`: cold start by rejection sampling, and its control.

Correct demonstrations are trained with loss on assistant tokens (sft.loss_on), mixed with some
pre-training text so that copying is not forgotten. The text has lists and pages but no tool calls:
the demonstrations are the only source of tool use. sft.filter selects another filter.

Options: demonstrations also as rounds with a managed context (sft.rounds), two stages by length
(sft.short_tokens; both Tongyi DeepResearch), and tool use in rule-based environments
(sft.tool_use_share, sft.tool_use_users; AgentScaler). `sft_continued` continues the cold start with
the compute of RL: it is the control for the gain of RL.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from drlib.chat.prompts import replace_tools
from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import parse
from drlib.config import Config
from drlib.demonstrations.actions import REPLAY, ActionData, Sample, episode_sample
from drlib.demonstrations.agentscaler import (
    Domain,
    find_domains,
    play,
    play_with_user,
    rejection,
    sample_task,
    toy_apis,
)
from drlib.demonstrations.delegation import delegated
from drlib.demonstrations.episodes import insert_reflections, length_stages, managed
from drlib.demonstrations.oracle import Episode
from drlib.demonstrations.skills import SkillData, resumed, rounds
from drlib.task import Task
from drlib.training import stages
from drlib.training.data import read_episodes
from drlib.training.distributed import Ranks
from drlib.training.packing import mix_streams
from drlib.training.policies import begin_stage, finish_stage
from drlib.training.pretrain import train_supervised
from drlib.worlds import Names

WARMUP_STEPS = 10
CONTEXT_SHARE = 0.3  # of the samples, where the policy learns to work in several contexts,
OTHERS_SHARE = 0.15  # and to work with what others found
SHORT_SHARE = 0.6  # of the steps, the first of two length stages
TOOL_TASKS = 40  # of each domain of AgentScaler's,
TOOL_CALLS = 3  # calls of one at most,
TOOL_TOKENS = 400  # and tokens


def shuffled(samples: list[Sample], seed: str) -> Iterator[Sample]:
    """Yield samples without end, every epoch in a new order."""
    if not samples:
        raise ValueError("no sample is left: set sft.filter=none or raise demonstrations.count")
    for epoch in itertools.count():
        order = list(samples)
        random.Random(f"{seed}-{epoch}").shuffle(order)
        yield from order


def sft(config: Config, run_dir: Path, ranks: Ranks | None = None, name: str = "sft") -> dict:
    """Build stage `sft` (or `name`); return the metrics of the last step."""
    start = begin_stage(name, stages.STAGES[name].inputs[0], config, run_dir, ranks)
    folder = stages.require_input(name, "demonstrations", config, run_dir.parents[1])
    episodes = read_episodes(folder, config.sft.filter)
    steps = config.get(stages.STAGES[name].steps)
    draw, held = mixture(name, episodes, start.names, start.chat, config, start.system)
    metrics = train_supervised(
        start.run,
        start.model,
        config,
        draw,
        steps=steps,
        batch_tokens=config.sft.batch_tokens,
        lrs=(config.sft.muon_lr, config.sft.adam_lr),
        warmup=WARMUP_STEPS,
        decay_share=1.0,
    )
    return finish_stage(start, config, metrics | {"pool": held})


def mixture(
    name: str,
    episodes: list[dict],
    names: Names,
    chat: ChatIds,
    config: Config,
    system: str | None = None,
) -> tuple[Callable[[int, int], Iterator[Sample]], int]:
    """Return a function from (step, shard) to endless samples, and the number of pool samples.

    Args:
        system: system message before each question.
    """
    episodes = add_reflections(episodes, config)
    pools = length_pools(episodes, chat, config, system)
    several = config.sft.tool_use_users
    tool_use = tool_use_samples(chat, several) if config.sft.tool_use_share > 0 else []
    data = ActionData(names, chat, config.rollout.search_results)
    skills = SkillData(names, chat, config.rollout.search_results)
    skill = config.questions.skills
    contexts = []
    if skill != "react":
        make = memory_samples if skill == "memory" else delegation_samples
        contexts = make(episodes, chat)
    steps = config.get(stages.STAGES[name].steps)

    def draw(step: int, shard: int) -> Iterator[Sample]:
        key = f"{name}-{config.seed}-{step}-{shard}"
        is_late = step >= SHORT_SHARE * steps
        streams = (
            data.stream(key, REPLAY),
            shuffled(tool_use, key),
            shuffled(contexts, key),
            skills.of_others(key),
            shuffled(pools[is_late], key),
        )
        learned = CONTEXT_SHARE * (skill != "react"), OTHERS_SHARE * (skill == "memory")
        shares = (config.sft.replay_share, config.sft.tool_use_share, *learned)
        return mix_streams(random.Random(f"mix-{key}"), streams, shares)

    return draw, len({id(sample) for pool in pools for sample in pool})


def add_reflections(episodes: list[dict], config: Config) -> list[dict]:
    """Return the demonstrations with imitated reflection in sft.reflection_share of the turns.

    Raises:
        ValueError: a demonstration consists of sampled tokens, not of texts.
    """
    share = config.sft.reflection_share
    if share == 0:
        return episodes
    if any("ids" in episode for episode in episodes):
        raise ValueError(
            "sft.reflection_share changes texts, but demonstrations.teacher=model stores sampled "
            "tokens: set demonstrations.teacher=flawed or solver"
        )
    rng = random.Random(f"reflections-{config.seed}")
    return [
        {**episode, "messages": insert_reflections(episode["messages"], share, rng)}
        for episode in episodes
    ]


def length_pools(
    episodes: list[dict], chat: ChatIds, config: Config, system: str | None = None
) -> list[list[Sample]]:
    """Return the samples of the early and of the late steps; equal without length stages.

    Raises:
        ValueError: one of two stages would be empty.
    """
    react = [_sample(episode, chat, system) for episode in episodes]
    rounds = []
    if config.sft.rounds:
        attempts = map(_attempt, episodes)
        rounds = [episode_sample(one, chat) for each in attempts for one in managed(each)]
    if config.sft.loss_on == "all":
        react, rounds = (
            [replace(sample, loss=(True,) * len(sample)) for sample in some]
            for some in (react, rounds)
        )
    short = config.sft.short_tokens
    if short == 0:
        return [react + rounds] * 2
    longest = max(map(len, react))
    early, late = length_stages(react, rounds, len, short, longest, seed=config.seed)
    if not (early and late):
        raise ValueError(
            f"sft.short_tokens={short} leaves a length stage empty: samples have "
            f"{min(map(len, react))} to {longest} tokens; set a value between"
        )
    return [early, late]


def _sample(episode: dict, chat: ChatIds, system: str | None) -> Sample:
    """Return a demonstration as sampled, or as tokenized messages."""
    if "ids" in episode:
        return Sample(tuple(episode["ids"]), tuple(episode["generated"]))
    if "tools" in episode:  # those of its environment
        system = replace_tools(system, episode["tools"], getattr(chat, "has_native_tools", False))
    return episode_sample(episode["messages"], chat, system)


def memory_samples(episodes: list[dict], chat: ChatIds) -> list[Sample]:
    """Return every demonstration as IterResearch rounds and as ReSum contexts, one per cut."""
    samples = []
    for episode in map(_attempt, episodes):
        calls = sum(message["role"] == "tool" for message in episode.messages)
        cut = [resumed(episode, [at]) for at in range(1, calls + 1)] if episode.answer else []
        some = [*rounds(episode), *(context for contexts in cut for context in contexts)]
        samples += [episode_sample(conversation, chat) for conversation in some]
    return samples


def delegation_samples(episodes: list[dict], chat: ChatIds) -> list[Sample]:
    """Return the contexts of planner and workers of every demonstration that has parts."""
    contexts = [context for row in episodes for context in delegated(_attempt(row))]
    return [episode_sample(context, chat) for context in contexts]


def _attempt(row: dict) -> Episode:
    """Convert a row of the pool to an episode."""
    question, *_, last = row["messages"]
    task = Task(row["task"], question["content"], "", "search", "")
    episode = Episode(task, None, None)
    episode.messages = row["messages"]
    episode.known_before = row["known_before"]
    episode.answer = getattr(parse(last["content"]), "text", None)
    return episode


def tool_use_samples(chat: ChatIds, several: bool = False) -> list[Sample]:
    """Return AgentScaler's rollouts that pass its filters and fit into TOOL_TOKENS.

    Args:
        several: simulate a user of several turns.
    """
    domains = [Domain(apis) for apis in find_domains(toy_apis())]
    tasks = [
        sample_task(domain, seed, TOOL_CALLS) for domain in domains for seed in range(TOOL_TASKS)
    ]
    played = [play_with_user(task, seed=0) if several else play(task) for task in tasks]
    kept = [messages for task, messages in zip(tasks, played) if not rejection(task, messages)]
    samples = [episode_sample(messages, chat) for messages in kept]
    return [sample for sample in samples if len(sample) <= TOOL_TOKENS]
