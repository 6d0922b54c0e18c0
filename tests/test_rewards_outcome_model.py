"""Outcome model: training with TRL on pairs, rewards by hand, and the gate around it.

Run: python -m pytest tests/test_rewards_outcome_model.py
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from drlib import register
from drlib.cli.rewards import main
from drlib.config import ROOT
from drlib.models.outcome_scorer import load_outcome_scorer, start_outcome_model
from drlib.rewards.functions import REWARDS, make_reward
from drlib.rewards.functions import _example as example
from drlib.rewards.outcome_model import last_context, replace_answer
from drlib.task import Task
from drlib.training import stages
from drlib.training.reward_model import pair_rollouts
from drlib.trajectory import Segment, save_trajectories
from tests.loop_examples import cold_start, rollout_shards, settings

start = cold_start
batch = rollout_shards
TASK = Task("t", "?", "Oslo", "search", "w")
COMMITTED = "figures/reference/outcome_model"


@pytest.fixture(autouse=True)
def registry():
    before = dict(REWARDS)
    yield
    for name in set(REWARDS) - set(before):
        del REWARDS[name]


def rollout(number, right, token=0, group="g"):
    """Return a judged rollout whose last token reveals whether it is right."""
    trajectory = example("Oslo" if right else "Bergen")
    ids = np.array([11, 12, 13 + number % 5, 20 + token], np.int32)
    return replace(
        trajectory,
        id=f"r{number}",
        group_id=group,
        token_ids=ids,
        reward=float(right),
        reward_parts={"correct": float(right)},
    )


# ---------------------------------------------------------------- training


def test_pairs_are_of_one_question():
    rollouts = [rollout(i, i < 2, group=f"g{i % 2}") for i in range(6)]
    rollouts += [rollout(7, True, group="all right"), replace(rollout(8, True), reward=None)]
    pairs = pair_rollouts(rollouts)
    assert {name: len(some) for name, some in pairs.items()} == {"g0": 2, "g1": 2}
    assert pairs["g0"][0][0] == last_context(rollouts[0])
    assert {tuple(b) for _, b in pairs["g0"]} == {tuple(last_context(rollouts[i])) for i in (2, 4)}
    assert len(pair_rollouts(rollouts, pairs_per_question=1)["g0"]) == 1
    assert pair_rollouts(rollouts) == pairs


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a model trained by the command, and what it printed."""
    folder = tmp_path_factory.mktemp("model")
    rollouts = [rollout(i, i % 2 == 0, token=i % 2, group=f"g{i // 4:02}") for i in range(40)]
    save_trajectories(folder / "rollouts.parquet", rollouts)
    policy = str(stages.start_folder("rl", settings()))
    command = ["train", str(folder / "rollouts.parquet"), "--start", policy]
    assert main([*command, "--out", str(folder / "model"), "--epochs", "8", "--lr", "1e-3"]) == 0
    return folder / "model"


def test_training_ranks_right_rollouts_first(trained):
    scorer = load_outcome_scorer(str(trained))
    right, wrong = (last_context(rollout(3, i == 0, token=i)) for i in (0, 1))
    assert scorer.score(right) > scorer.score(wrong) + 1
    assert scorer.score(right) == scorer.score(right)
    reward = make_reward("outcome_model", path=str(trained))
    found = reward(rollout(3, True), TASK)
    assert found.value == pytest.approx(1 / (1 + math.exp(-scorer.score(right))))
    assert found.parts == {"outcome_model": found.value}


def test_command_reports_too_few_questions(tmp_path, capsys):
    save_trajectories(tmp_path / "r.parquet", [rollout(0, True), rollout(1, True)])
    assert main(["train", str(tmp_path / "r.parquet"), "--start", "x", "--out", "y"]) == 1
    assert "sample more" in capsys.readouterr().err


def test_a_new_head_is_zero_and_a_policy_is_no_outcome_model():
    policy = str(stages.start_folder("rl", settings()))
    model = start_outcome_model(policy)
    assert not model.score.weight.any()
    with pytest.raises(ValueError, match="is a policy, not an outcome model"):
        make_reward("outcome_model", path=policy)
    with pytest.raises(ValueError, match="drlib rewards train"):
        make_reward("outcome_model", path="nowhere")


# ---------------------------------------------------------------- rewards


def answered(*segments):
    trajectory = example("Oslo")
    n = len(segments)
    return replace(
        trajectory,
        token_ids=np.arange(30, 30 + n, dtype=np.int32),
        generated=np.ones(n, bool),
        logprobs=np.zeros(n, np.float32),
        entropies=np.zeros(n, np.float32),
        segments=np.array(segments, np.uint8),
        turns=np.zeros(n, np.uint16),
        versions=np.zeros(n, np.int32),
    )


def test_only_the_last_answer_is_replaced():
    A, T = Segment.ANSWER, Segment.THINK
    assert replace_answer(answered(T, A, A, T), [1, 2, 3]) == [30, 1, 2, 3, 33]
    assert replace_answer(answered(A, T, A), [1]) == [30, 31, 1]
    with pytest.raises(ValueError, match="no answer tokens"):
        replace_answer(answered(T, T), [1])


class Scores:
    """Scorer whose score is the number of tokens 30 and above."""

    folder = stages.start_folder("rl", settings())

    def score(self, ids):
        return float(sum(i < 100 and i >= 30 for i in ids))


def test_reward_of_open_answers_by_hand(monkeypatch):
    monkeypatch.setattr("drlib.rewards.outcome_model.load_scorer", lambda path: Scores())
    A, T = Segment.ANSWER, Segment.THINK
    reward = make_reward("open_answer", path="x", beta=0.5)
    task = replace(TASK, answer="Oslo")
    # S = 4; with the correct answer, whose tokens score 0, S* = 2: R = 1 - exp(-0.5 * 2)
    monkeypatch.setattr("drlib.chat.template.ChatIds.plain", lambda self, text: [200])
    assert reward(answered(T, A, A, T), task).value == pytest.approx(1 - math.exp(-1))
    assert reward(answered(T, A, T), task).value == pytest.approx(1 - math.exp(-0.5))
    monkeypatch.setattr("drlib.chat.template.ChatIds.plain", lambda self, text: [40, 41])
    assert reward(answered(T, A, A, T), task).value == 0.0  # S = S*
    assert reward(answered(T, A, T), task).value == 0.0  # S < S*
    assert reward(answered(T, T), task).value == 0.0  # unreadable
    assert reward(replace(answered(T, A), answer=None), task).value == 0.0
    failed = answered(T, A)
    failed.tool_results[0].env_fault = True
    assert reward(failed, task).value is None
    with pytest.raises(ValueError, match="beta"):
        make_reward("open_answer", path="x", beta=0.0)


def test_no_wrong_answer_outranks_a_right_one_through_the_gate():
    """Property: 500 random hybrids of three dimensions, with any values of the other terms."""
    rng = np.random.default_rng(0)
    for number in range(500):
        values = rng.choice([0.0, 1.0, rng.random()], (2, 3))
        share, weights = rng.choice([0.0, 0.2, 0.999, rng.random()]), rng.random(3) * 9 + 1e-6
        outcomes = []
        for answer, row in zip(("Oslo", "Bergen"), values):
            names = [f"{answer}{i}" for i in range(3)]
            for name, value in zip(names, row):
                register.reward(name, lambda t, task, value=value: value, replace=True)
            hybrid = make_reward("gated", weights=dict(zip(names, weights)), share=share)
            outcomes.append(hybrid(example(answer), TASK).value)
        assert outcomes[0] > outcomes[1], (number, values, share, weights)


def test_committed_model_behind_the_gate_on_sampled_rollouts(batch):
    """The outcome model alone ranks some wrong rollout above a right one, the hybrid none."""
    rollouts = [t for shard in batch for t in shard]
    tasks = {t.id: replace(TASK, answer=t.answer if right(t) else "-") for t in rollouts}
    arguments = {"weights": {"outcome_model": 1, "format": 1, "rubrics": 1}}
    arguments["arguments"] = {"outcome_model": {"path": COMMITTED}}
    alone, hybrid = make_reward("outcome_model", path=COMMITTED), make_reward("gated", **arguments)
    for reward, is_clean in ((alone, False), (hybrid, True)):
        values = {True: [], False: []}
        for t in rollouts:
            values[right(t)].append(reward(t, tasks[t.id]).value)
        assert values[True] and values[False]
        assert (min(values[True]) > max(values[False])) == is_clean
        assert np.mean(values[True]) > np.mean(values[False])


def right(trajectory):
    return bool(trajectory.reward_parts["correct"])


def test_committed_results():
    row = json.loads((ROOT / COMMITTED / "results.json").read_text(encoding="utf-8"))
    assert row["held_out_accuracy"] > 0.7
