"""RL with a planner and its workers: advantages, weights and gradients by role.

Run: python -m pytest tests/test_training_roles.py
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from drlib.agents import Limits, PlannerWorker
from drlib.chat.prompts import DELEGATION_PHRASES, PLAN
from drlib.chat.template import ChatIds, load_tokenizer
from drlib.chat.tool_calls import render_answer, render_call
from drlib.task import Task
from drlib.training import sft
from drlib.training.batch import RolloutBatch, prepare_batch
from drlib.training.data import read_episodes
from drlib.training.distributed import Ranks
from drlib.training.grpo import check_rl_settings
from drlib.training.learner import accumulate_gradients
from drlib.training.policy_age import Clock
from drlib.training.rollouts import split_contexts, split_roles
from drlib.trajectory import Termination, Trajectory
from drlib.worlds import Names, load_world
from tests.agent_examples import TextEngine
from tests.loop_examples import (
    ColdStart,
    build_stages,
    cold_start,
    flat,
    gradient_of,
    rollout_shards,
    settings,
)

start = cold_start
batch = rollout_shards
POLICY = "figures/reference/planner/policy"
ROLES = {"rl.advantage.baseline": "roles"}
SHARED = {"rl.advantage.context_weight": "shared"}


def make_rollout(name, reward, *roles, **changes):
    """Return a rollout of group x with one context per role, each of two prompt and two own
    tokens.
    """
    n = 4 * len(roles)
    generated = np.tile([False, False, True, True], len(roles))
    contexts = np.repeat(np.arange(len(roles)), 4).astype(np.uint16) if len(roles) > 1 else None
    zeros = np.zeros(n, np.float32)
    fields = dict(
        id=f"x-{name}",
        task_id="t",
        group_id="x",
        world_version="",
        policy_version=0,
        token_ids=np.arange(n, dtype=np.int32),
        generated=generated,
        logprobs=zeros,
        entropies=zeros,
        segments=np.zeros(n, np.uint8),
        turns=np.zeros(n, np.uint16),
        versions=np.zeros(n, np.int32),
        routed_experts=None,
        tool_results=[],
        termination=Termination.ANSWERED,
        answer="a",
        reward=reward,
        reward_parts={},
        messages=[],
        metadata={"roles": list(roles)},
        contexts=contexts,
    )
    return Trajectory(**fields | changes)


GROUP = [
    make_rollout("a", 1.0, "planner", "worker", "worker"),
    make_rollout("b", 0.0, "planner", "worker"),
    make_rollout("c", 1.0, "planner"),
]
FAULT = make_rollout("d", None, "planner", "worker", termination=Termination.ENV_FAULT, answer=None)


def samples_of(rollouts, **changes):
    """Return (context, role) -> (advantage, weight) of the prepared batch."""
    prepared = prepare_batch([rollouts], settings(**changes), 0, Ranks(), Clock())
    (part,) = prepared.parts
    values = zip(part.advantages_N.tolist(), part.weights_N.tolist())
    return dict(zip((t.id for t in part.trajectories), values))


def test_all_contexts_share_the_advantage_of_their_rollout():
    found = samples_of(GROUP)
    assert found == {
        "x-a/0": (0.5, 1.0),
        "x-a/1": (0.5, 1.0),
        "x-a/2": (0.5, 1.0),
        "x-b/0": (-1.0, 1.0),
        "x-b/1": (-1.0, 1.0),
        "x-c": (0.5, 1.0),
    }


def test_roles_are_compared_with_the_same_role():
    """Workers are compared with workers of other rollouts; the rollout without any is no sibling.

    The two workers of rollout a count once, so its own reward is not in their baseline.
    """
    found = {name: advantage for name, (advantage, _) in samples_of(GROUP, **ROLES).items()}
    assert found == {"x-a/0": 0.5, "x-b/0": -1, "x-c": 0.5, "x-a/1": 1, "x-a/2": 1, "x-b/1": -1}
    # the sum over (rollout, role) is 0 for each role
    assert found["x-a/1"] + found["x-b/1"] == 0
    alone = samples_of([GROUP[0], GROUP[2]], **ROLES)
    assert alone["x-a/1"][0] == alone["x-a/2"][0] == 0, "no other rollout has a worker"


@pytest.mark.parametrize("changes", [{}, ROLES, {"rl.advantage.baseline": "samples"}])
def test_workers_of_a_rollout_share_its_weight(changes):
    found = samples_of(GROUP, **changes, **SHARED)
    weights = {name: weight for name, (_, weight) in found.items()}
    assert weights == {
        "x-a/0": 1.0,
        "x-a/1": 0.5,
        "x-a/2": 0.5,
        "x-b/0": 1.0,
        "x-b/1": 1.0,
        "x-c": 1.0,
    }


@pytest.mark.parametrize("changes", [{}, ROLES])
def test_a_fault_excludes_planner_and_workers(changes):
    found = samples_of([*GROUP, FAULT], **changes)
    assert found.pop("x-d/0") == found.pop("x-d/1") == (0.0, 0.0)
    assert found == samples_of(GROUP, **changes)


def test_parts_of_roles_are_the_whole_rollout():
    planner, worker = split_roles(GROUP[0])
    assert planner.metadata["role"] == "planner" and worker.metadata["role"] == "worker"
    joined = [*planner.token_ids, *worker.token_ids]
    assert joined == GROUP[0].token_ids.tolist()
    assert [t.id for t in split_contexts(worker)] == ["x-a/1", "x-a/2"]
    plain = make_rollout("p", 1.0, "")
    plain.metadata.pop("roles")
    (same,) = split_roles(plain)
    assert same.token_ids is plain.token_ids and same.metadata["role"] == ""


def test_copied_groups_exclude_the_role_baseline():
    for name in ("rl.sampling.duplicate", "rl.filter.repair_groups"):
        with pytest.raises(ValueError, match="set rl.advantage.baseline=trajectories"):
            check_rl_settings(settings(**ROLES, **{name: True}))


# ---------------------------------------------------------------- gradients


def gradient(model, shares, config):
    model.zero_grad(set_to_none=True)
    row = accumulate_gradients(model, shares, config, Ranks())
    return gradient_of(model), row


def join(parts, roles):
    """Return one rollout with the tokens of several as its contexts."""
    names = ("token_ids", "generated", "logprobs", "entropies", "segments", "turns", "versions")
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.uint16)
    return replace(
        parts[0],
        contexts=numbers,
        metadata=parts[0].metadata | {"roles": list(roles)},
        **columns,
    )


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_more_workers_do_not_weigh_more(start, batch, aggregate):
    """The gradient of a rollout with three equal workers is that of a rollout with one."""
    planner, worker, other = [t for shard in batch for t in shard if t.reward is not None][:3]
    changes = {**SHARED, "rl.loss.aggregate": aggregate, "rl.filter.overlong": "keep"}
    changes |= {"trainer.balance_coef": 0.0}  # its loss is a mean over tokens, without weights

    def trained(workers, **more):
        first = join([planner, *[worker] * workers], ["planner", *["worker"] * workers])
        second = join([other, worker], ["planner", "worker"])
        group = [
            replace(first, id="x-0", group_id="x", reward=1.0),
            replace(second, id="x-1", group_id="x", reward=0.0),
        ]
        config = settings(**changes | more)
        prepared = prepare_batch([group], config, 0, Ranks(), Clock())
        return gradient(start.policy, prepared.parts, config)[0]

    one, three = trained(1), trained(3)
    assert one.norm() > 0 and (one - three).norm() < 1e-4 * one.norm()
    plain = {"rl.advantage.context_weight": "one"}
    assert (trained(1, **plain) - trained(3, **plain)).norm() > 0.05 * one.norm()


def test_each_token_is_trained_once_in_the_context_of_its_role(start):
    """The loss has the own turns of planner and workers, not what they read of each other."""
    parts = ("What is the territory of Oslo?", "What is the currency of Norway?")
    answers = ("Norway", "Norwegian Krone")

    def say(text):
        read = text.count("<tool_response>")
        if "Delegate one" in text and read < 2:
            return "<think>p</think>" + render_call("delegate", {"question": parts[read]})
        if "Delegate one" in text:
            return "<think>p</think>" + render_answer("Norwegian Krone")
        number = int(parts[1] in text)
        title = ("Oslo", "Norway")[number]
        call = render_call("search", {"query": [title]})
        return "<think>w</think>" + (render_answer(answers[number]) if read else call)

    task = Task("t", "What is the currency of the territory of Oslo?", "", "search", "")
    limits = Limits(calls=9, turn_tokens=200, context_tokens=1000)
    agent = PlannerWorker(TextEngine(start.chat, say), start.toolbox, start.chat, limits)
    (done,) = agent.run([task])
    done = replace(done, metadata=done.metadata | {"source": "", "skill": ""}, reward=1.0)
    samples = split_contexts(done)
    own = [start.chat.tokenizer.decode(t.token_ids[t.generated]) for t in samples]
    assert own[0].count("delegate") == 2 and "<think>w" not in own[0]
    assert all("<think>p" not in text for text in own[1:])
    assert all("cldr:" not in text for text in own), "no page is trained"
    assert [text.count("search") for text in own] == [0, 1, 1]
    # rows of the batch: every sampled token once
    weights = torch.ones(3)
    config = settings(rollout__max_context_tokens=1000, trainer__balance_coef=0.0)
    share = RolloutBatch(samples, torch.ones(3), weights)
    together, row = gradient(start.policy, [share], config)
    assert row["tokens"] == done.generated.sum() == sum(t.generated.sum() for t in samples)
    # the gradients of the roles add up to that of the rollout
    total = torch.zeros_like(together)
    for some in ([0], [1, 2]):
        alone, counted = gradient(start.policy, [share.of(some)], config)
        total += alone * counted["tokens"] / row["tokens"]
    assert (together - total).norm() < 1e-4 * together.norm()


# ---------------------------------------------------------------- cold start and a real step


def test_cold_start_has_both_roles(tmp_path):
    few = {"demonstrations.count": 40, "demonstrations.teacher": "solver"}
    few |= {"questions.skills": "delegation"}
    config = settings(**few)
    folders = build_stages(("world", "demonstrations"), config, tmp_path)
    chat = ChatIds(load_tokenizer(folders["world"] / "tokenizer"))
    for phrase in DELEGATION_PHRASES:
        assert len(chat.plain(phrase)) == 1, phrase
    episodes = read_episodes(folders["demonstrations"], "correct")
    contexts = sft.delegation_samples(episodes, chat)
    workers = sum(row["hops"] or 1 for row in episodes)
    assert len(contexts) == len(episodes) + workers
    names = Names.from_world(load_world("tour"))
    shares = {}
    for skills in ("react", "delegation"):
        of_skill = config.derive(**{"questions.skills": skills})
        draw, _ = sft.mixture("sft", episodes, names, chat, of_skill)
        known = {sample.ids for sample in contexts}
        drawn = [sample.ids in known for sample in itertools.islice(draw(0, 0), 400)]
        mark = chat.plain(PLAN.partition("{question}")[2])[0]
        planners = [mark in sample.ids for sample in itertools.islice(draw(0, 0), 400)]
        shares[skills] = np.mean(drawn), np.mean(planners)
    assert shares["react"][1] == 0 and 0.07 < shares["delegation"][1] < 0.2
    assert shares["delegation"][0] > 0.25
    with pytest.raises(ValueError, match="set questions.source=chains"):
        engine = {"questions.source": "engine", "world.name": "folder:notebooks/tern"}
        build_stages(("world",), config.derive(**engine), tmp_path)


def test_planner_and_workers_train(tmp_path):
    """A real step: rollouts with tools, advantages by role, and a weight update."""
    start = ColdStart(rl__start=POLICY)
    config = settings(
        rl__agent="planner",
        rl__lr=1e-3,
        rl__filter__overlong="keep",
        rl__loss__aggregate="sequence",
        rollout__max_calls=12,
        **ROLES,
        **SHARED,
    )
    step = start.step(config, tmp_path / "run")
    before = flat(step.model)
    metrics, trajectories = step.step(1)
    start.close()
    assert metrics["updates"] == 1 and metrics["live_groups"] > 0 and metrics["contexts"] > 1.5
    assert not torch.equal(flat(step.model), before)
    # every token is scored in the context in which it was sampled, also where the planner
    # continues after a worker
    assert metrics["logp_gap"] < 1e-5 and metrics["logp_gap_max"] < 1e-2
    for done in trajectories:
        roles, calls = done.metadata["roles"], [result.tool for result in done.tool_results]
        assert roles[0] == "planner" and {*roles[1:]} <= {"worker"}
        assert len(split_contexts(done)) == len(roles) <= 1 + calls.count("delegate") + 1
    answered = [t for t in trajectories if t.reward_parts["correct"]]
    assert any("delegate" in [r.tool for r in t.tool_results] for t in answered)
