"""Entity credit of E-GRPO: values by hand, groups, and entities of real chains.

Run: python -m pytest tests/test_rewards_entity_credit.py
"""

from dataclasses import replace

import pytest
import torch

from drlib.config import Config
from drlib.questions.chains import enumerate_chains, make_search_task
from drlib.rewards.entity_credit import named_share
from drlib.rewards.functions import _example as example
from drlib.rewards.functions import check_reward, make_reward
from drlib.task import Task
from drlib.training.rollouts import adjust_rewards, judge_rollout
from drlib.worlds import load_world

# What is the currency of the neighbour of Norway? Norway -> Sweden -> Swedish krona
TASK = Task("t", "?", "Swedish krona", "search", "w", entities=("Sweden", "Swedish krona"))


def rollout(answer, *thoughts, error=""):
    trajectory = example(answer)
    turns = [f"<think>{thought}</think>" for thought in thoughts]
    call = '<tool_call>{"name": "search", "arguments": {"query": ["Sweden"]}}</tool_call>'
    trajectory.messages = [
        {"role": "user", "content": "Sweden?"},
        *({"role": "assistant", "content": turn + call} for turn in turns),
        {"role": "tool", "content": "1. [Sweden](x): Swedish krona"},
        {"role": "assistant", "content": f"<answer>{answer}</answer>"},
    ]
    trajectory.tool_results[0].error = error
    return trajectory


@pytest.mark.parametrize(
    ("thoughts", "share"),
    [
        ([], 0.0),  # questions, calls, tool responses and answers do not count
        (["It is Sweden."], 0.5),
        (["First SWEDEN", "then the Swedish Krona"], 1.0),
        (["The Swedish krona"], 0.5),
        (["Swedens"], 0.0),
    ],
)
def test_share_of_entities_named_in_thoughts(thoughts, share):
    assert named_share(rollout("Swedish krona", *thoughts), TASK.entities) == share


@pytest.mark.parametrize(
    ("rollout_", "expected"),
    [
        (rollout("Swedish krona"), 1.0),
        (rollout("Swedish krona", "Sweden", error="format"), 1.0),
        (rollout("euro", "It is Sweden."), 0.15),
        (rollout("euro", "Sweden", "Swedish krona"), 0.3),
        (rollout("euro"), 0.0),
        (rollout("euro", "Sweden", error="format"), 0.0),
        (rollout(None, "Sweden"), 0.0),
    ],
)
def test_reward_of_a_rollout(rollout_, expected):
    assert make_reward("entity_credit")(rollout_, TASK).value == pytest.approx(expected)


def test_no_entities_no_credit():
    plain = replace(TASK, entities=())
    assert make_reward("entity_credit")(rollout("euro", "Sweden"), plain).value == 0.0


def test_credit_is_relative_to_the_best_of_the_group():
    """gamma is 0, 1/2, 1/2 and unknown; the maximum is that of the right answer, 1/2."""
    config = Config.load("ci", rl__reward__name="entity_credit")
    group = [rollout("euro"), rollout("euro", "Sweden"), rollout("Swedish krona", "Sweden")]
    failed = rollout("euro", "Sweden", "Swedish krona")
    failed.tool_results[0].env_fault = True
    judged = [judge_rollout(t, TASK, make_reward("entity_credit")) for t in [*group, failed]]
    found = adjust_rewards(judged, TASK, config, torch.Generator())
    assert [t.reward for t in found] == [0.0, pytest.approx(0.3), 1.0, None]
    better = judge_rollout(
        rollout("Swedish krona", "Sweden", "Swedish krona"), TASK, make_reward("entity_credit")
    )
    found = adjust_rewards([*judged, better], TASK, config, torch.Generator())
    assert [t.reward for t in found] == [0.0, pytest.approx(0.15), 1.0, None, 1.0]


def test_alpha_below_1():
    with pytest.raises(ValueError, match="alpha"):
        make_reward("entity_credit", alpha=1.0)
    check_reward("entity_credit", alpha=0.5)


def test_entities_of_every_chain_follow_the_facts():
    world = load_world("tour")
    chains = enumerate_chains(world)
    for chain in chains[:: len(chains) // 200]:
        task = make_search_task(chain, world, 0)
        assert len(task.entities) == task.hops and task.entities[-1] == task.answer
        for start, relation, end in zip(
            (task.start, *task.entities), task.relations, task.entities
        ):
            assert world.entities[start].facts[relation] == end
