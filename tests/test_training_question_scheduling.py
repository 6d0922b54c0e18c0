"""Curation and stages of a question pool: scripted outcomes and the real loop.

Curation on two processes: tests/test_training_stages.py.

Run: python -m pytest tests/test_training_question_scheduling.py
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from drlib.rl.curriculum import RSTAR2_STAGES, Curriculum
from drlib.training.distributed import Ranks
from drlib.training.question_scheduler import SKILLS, QuestionScheduler
from drlib.training.question_selection import QuestionSelection, scale_stages
from drlib.training.rollouts import sample_rollouts
from drlib.worlds import Names
from tests.loop_examples import cold_start, flat, quick_settings, reload_state, settings
from tests.rl_examples import a_trajectory, changed

start = cold_start

# ---------------------------------------------------------------- scripted outcomes


class ScriptedAgent:
    """Agent whose first `right[id]` rollouts of a group are correct; records its questions."""

    def __init__(self, right: dict[str, int]):
        self.right, self.tried, self.limits, self.names = right, [], None, []

    def under(self, config):
        self.limits = (config.rollout.max_context_tokens, config.rollout.max_calls)
        return self

    def run(self, tasks, *, samples, numbers=None, seed, keys, **_):
        self.tried += [(task.id, self.limits) for task in tasks]
        self.names += [f"{seed}-{key}" for key in keys]
        return [
            changed(
                a_trajectory(
                    answer=task.answer if number < self.right[task.id] else "another",
                    name=f"{seed}-{key}-{number}",
                ),
                task_id=task.id,
                group_id=f"{seed}-{key}",
            )
            for task, key in zip(tasks, keys)
            for number in (range(samples) if numbers is None else numbers)
        ]


def build_selection(start, rights=(), **changes):
    """Return (selection, agent) for 16 questions, eight per step in groups of four.

    Args:
        rights: number of correct rollouts per group, one per question.
    """
    config = settings(
        rl__questions=8,
        rl__group=4,
        rl__curriculum__pool=16,
        rl__curriculum__python_share=1.0,
        **changes,
    )
    questions = QuestionScheduler(config, start.world, Names.from_world(start.world))
    agent = ScriptedAgent(dict(zip(questions.pool, rights)))
    return QuestionSelection(config, questions, Ranks(), agent.under, start.chat), agent


def run_step(selection, agent, step):
    """Return (question ids, start of the step, metrics) of a step without an update."""
    step_start = selection.begin(step)
    tasks, worlds = selection.questions.draw(step, Curriculum(SKILLS))
    agent.under(step_start.config)
    shards = [
        sample_rollouts(agent, tasks, worlds, step_start.config, step, shard) for shard in (0, 1)
    ]
    metrics = selection.end(step, step_start, [t for shard in shards for t in shard])
    return [task.id for task in tasks], step_start, metrics


HALF = [4] * 4 + [0] * 4 + [2] * 8


def test_curation_replaces_settled_questions(start):
    selection, agent = build_selection(start, HALF, rl__curriculum__curation_every=8)
    pool = list(selection.questions.pool)
    tried, rows = [], []
    for step in range(9):
        agent.tried = []
        questions, _, metrics = run_step(selection, agent, step)
        rows.append(metrics)
        if step == 0:
            assert sorted(name for name, _ in agent.tried[:16]) == sorted(pool)
            agent.tried = agent.tried[16:]
            # from now on two more are always solved, one never, and two others sometimes
            agent.right |= {pool[8]: 4, pool[9]: 4, pool[10]: 0, pool[1]: 3, pool[4]: 1}
        if step < 8:
            assert sorted(questions) == sorted(pool[8:])
        tried += [name for name, _ in agent.tried[8:]]
    # after each step the next inactive question is probed, including those that have left
    assert tried == [*pool[:8], pool[8]]
    changes = [(metrics["mastered"], metrics["hopeless"], metrics["entered"]) for metrics in rows]
    assert changes == [(0, 0, 0)] * 7 + [(2, 1, 2), (0, 0, 0)]
    among = sorted([*pool[11:], pool[1], pool[4]])
    assert selection.curation.state["active"] == among == selection.questions.epochs.state["among"]
    assert {*questions} <= {*among}
    assert [metrics["asked_among"] for metrics in rows] == [8] * 8 + [7]
    # group names, which seed the random numbers, are unique
    assert len(agent.names) == 16 + 9 * 8 + 9 == len({*agent.names})
    # 16 questions at the start, one after each step; four rollouts each, of four tokens
    assert [metrics["probe_rollouts"] for metrics in rows] == [68.0] + [4.0] * 8
    assert [metrics["probe_tokens"] for metrics in rows] == [272.0] + [16.0] * 8


def test_unjudged_rollouts_are_no_outcome(start):
    selection, agent = build_selection(start, HALF, rl__curriculum__curation_every=1)
    pool = list(selection.questions.pool)
    step_start = selection.begin(0)
    tasks, worlds = selection.questions.pool_questions(pool[8:10])
    agent.right = dict.fromkeys(pool, 4)
    sampled = sample_rollouts(agent, tasks, worlds, step_start.config, 0)
    unjudged = [replace(t, reward=None) if t.task_id == pool[8] else t for t in sampled]
    agent.right = dict(zip(pool, HALF)) | {pool[0]: 2}
    assert selection.end(0, step_start, unjudged)["mastered"] == 1
    assert pool[8] in selection.curation.state["active"]
    assert pool[9] not in selection.curation.state["active"]


def test_all_settled_questions_give_an_error_with_a_remedy(start):
    selection, _ = build_selection(start, [4] * 8 + [0] * 8, rl__curriculum__curation_every=1)
    with pytest.raises(
        ValueError, match="each of 16 questions is always or never.*raise rl.curriculum.pool"
    ):
        selection.begin(0)


def test_resumed_curation_draws_the_same_questions(start):
    changes = {"rl.curriculum.curation_every": 2, "rl.curriculum.stages": "three", "rl.steps": 8}
    selection, agent = build_selection(start, HALF, **changes)
    pool = list(selection.questions.pool)
    _ = [run_step(selection, agent, step) for step in range(3)]
    agent.right |= {pool[8]: 4, pool[0]: 3, pool[1]: 3}
    resumed, other = build_selection(start, **changes)
    reload_state(selection.questions, resumed.questions)
    reload_state(selection, resumed)
    other.right = dict(agent.right)
    agent.tried = []
    for step in range(3, 8):
        questions, step_start, metrics = run_step(selection, agent, step)
        asked_again, begun_again, row_again = run_step(resumed, other, step)
        assert (asked_again, row_again) == (questions, metrics)
        assert begun_again.config == step_start.config and begun_again.reset == step_start.reset
    assert other.tried == agent.tried and metrics["stage"] == 3


# ---------------------------------------------------------------- stages


def test_stages_scale_the_published_ones():
    paper = settings(rl__steps=510, rollout__max_context_tokens=12_000, rollout__max_calls=15)
    assert tuple(scale_stages(paper)) == RSTAR2_STAGES
    usual = scale_stages(settings(rl__steps=100))
    assert [(s.steps, s.tokens, s.turns) for s in usual] == [
        (59, 298, 4),
        (16, 448, 4),
        (25, 448, 6),
    ]
    for steps in range(3, 60):
        lengths = [
            stage.steps for stage in scale_stages(settings(rl__steps=steps, rollout__max_calls=1))
        ]
        assert sum(lengths) == steps and min(lengths) >= 1


def test_third_stage_drops_solved_questions_and_resets(start):
    selection, agent = build_selection(
        start, [4] * 6 + [3] * 2 + [0] * 8, rl__curriculum__stages="three", rl__steps=6
    )
    pool = list(selection.questions.pool)
    steps = [run_step(selection, agent, step) for step in range(6)]
    assert [metrics["stage"] for _, _, metrics in steps] == [1, 1, 1, 1, 2, 3]
    assert [step_start.reset for _, step_start, _ in steps] == [False] * 5 + [True]
    limits = [
        (b.config.rollout.max_context_tokens, b.config.rollout.max_calls) for _, b, _ in steps
    ]
    assert limits == [(298, 4)] * 4 + [(448, 4), (448, 6)]
    assert {*pool} == {name for questions, _, _ in steps[:2] for name in questions}
    questions, _, metrics = steps[-1]
    assert metrics["asked_among"] == 10 and {*questions} <= {*pool[6:]}
    # all are probed by the latest policy under the limits of the new stage
    assert [metrics["probe_rollouts"] for _, _, metrics in steps] == [0.0] * 5 + [64.0]
    assert sorted(agent.tried[40:56]) == sorted((name, (448, 6)) for name in pool)


def test_third_stage_restarts_curation(start):
    changes = {"rl.curriculum.stages": "three", "rl.steps": 3, "rl.curriculum.curation_every": 50}
    selection, agent = build_selection(start, HALF, **changes)
    pool = list(selection.questions.pool)
    _ = [run_step(selection, agent, step) for step in range(2)]
    assert selection.questions.epochs.state["among"] == sorted(pool[8:])
    agent.right = dict(zip(pool, [2] * 4 + [0] * 4 + [4] * 8))
    questions, _, metrics = run_step(selection, agent, 2)
    assert selection.curation.state["active"] == sorted(pool[:4])
    assert selection.curation.known == {*pool[:8]}
    assert metrics["asked_among"] == 4 and Counter(questions) == dict.fromkeys(pool[:4], 2)
    easy, agent = build_selection(start, [4] * 16, **changes | {"rl.curriculum.curation_every": 0})
    _ = [run_step(easy, agent, step) for step in range(2)]
    with pytest.raises(ValueError, match="rl.curriculum.pool=16.*raise rl.curriculum.pool"):
        easy.begin(2)


def test_first_stage_context_must_fit_a_question_and_a_turn(start):
    selection, _ = build_selection(start, rl__curriculum__stages="three")
    tasks, _ = selection.questions.pool_questions(list(selection.questions.pool))
    needed = 72 + max(len(start.chat.prompt(task.question)) for task in tasks)
    enough = -(-needed * 3 // 2)
    selection, _ = build_selection(
        start, rl__curriculum__stages="three", rollout__max_context_tokens=enough
    )
    assert selection.stages.next_stage.tokens == needed
    remedy = f"{needed} needed: set rollout.max_context_tokens to {enough} "
    with pytest.raises(ValueError, match=remedy):
        build_selection(
            start, rl__curriculum__stages="three", rollout__max_context_tokens=enough - 1
        )
    with pytest.raises(ValueError, match="300 needed: set rollout.max_context_tokens to 450"):
        build_selection(start, rl__curriculum__stages="three", rl__reward__overlong_buffer=300)


# ---------------------------------------------------------------- the loop itself


def test_loop_with_exact_mixture_logs_accuracy_by_source(start, tmp_path):
    switches = {
        "rl.curriculum.mixture": "exact",
        "rl.curriculum.weighting": "none",
        "rl.curriculum.python_share": 0.5,
    }
    step = start.step(quick_settings(**switches), tmp_path / "run")
    updates = 0
    for number in range(2):
        metrics, trajectories = step.step(number)
        updates += metrics["updates"]
        # independent check: the world of a rollout and its accuracy
        worlds = {"python": "python", start.world.version: "real"}
        found = [worlds.get(t.world_version, "fictional") for t in trajectories]
        assert Counter(found) == {"python": 8, "real": 4, "fictional": 4}
        for source in ("python", "real", "fictional"):
            right = [t.reward_parts["correct"] for t, s in zip(trajectories, found) if s == source]
            assert metrics[f"accuracy_{source}"] == pytest.approx(sum(right) / len(right))
    assert updates >= 1 and not torch.equal(flat(step.model), flat(start.policy))


def test_pool_epochs_have_new_rollout_ids(start, tmp_path):
    step = start.step(quick_settings(rl__curriculum__pool=4), tmp_path / "run")
    rows, rollouts = zip(*(step.step(number) for number in range(3)))
    assert [metrics["epoch"] for metrics in rows] == [1, 2, 3]
    assert {frozenset(t.task_id for t in some) for some in rollouts} == {
        frozenset(step.scheduler.pool)
    }
    everything = [t for some in rollouts for t in some]
    assert len({t.id for t in everything}) == len(everything) == 3 * 4 * 4
    assert len({t.group_id for t in everything}) == 12
    assert "probe_rollouts" not in rows[0] and sum(metrics["updates"] for metrics in rows) >= 1


def test_curation_starts_with_sometimes_solved_questions(start, tmp_path):
    config = quick_settings(rl__curriculum__pool=16, rl__curriculum__curation_every=2)
    step = start.step(config, tmp_path / "run")
    rows = []
    for number in range(3):
        metrics, trajectories = step.step(number)
        rows.append(metrics)
        if number == 0:  # no refresh yet
            among = {*step.callbacks.parts["question_selection"].curation.state["active"]}
            assert {t.task_id for t in trajectories} <= among
    rates = step.callbacks.parts["question_selection"].state_dict()["rates"]
    assert {*rates} == {*step.scheduler.pool}
    first = [name for name, rate in rates.items() if 0 < rate < 1]
    assert 2 <= len(first) < 16 and rows[0]["asked_among"] == len(first)
    assert [metrics["probe_rollouts"] for metrics in rows] == [16 * 4 + 4, 4, 4]
    assert all(metrics["probe_tokens"] > 4 for metrics in rows)
    assert all(metrics["rollouts"] == 16 for metrics in rows)  # the others are not trained on
    assert sum(metrics["updates"] for metrics in rows) >= 2


def test_stage_limits_and_reset_in_the_loop(start, tmp_path):
    config = settings(
        rl__questions=4,
        rl__curriculum__pool=8,
        rl__curriculum__stages="three",
        rl__steps=3,
        rl__lr=2e-3,
        rl__loss__kl_coef=0.1,
        rollout__max_context_tokens=165,
    )
    step = start.step(config, tmp_path / "run")
    rows, longest, most_calls = [], [], []
    for number in range(3):
        before = flat(step.model)
        metrics, trajectories = step.step(number)
        rows.append(metrics)
        longest.append(max(len(t) for t in trajectories))
        most_calls.append(max(len(t.tool_results) for t in trajectories))
    assert longest[0] <= 110 < longest[1] <= 165 and 110 < longest[2] <= 165
    assert most_calls[0] <= 4 and most_calls[1] <= 4 and most_calls[2] <= 6
    # the reference is the policy at the start of the last stage; the optimizer has one update
    assert all(metrics["updates"] == 1 for metrics in rows)
    assert torch.equal(flat(step.learner.reference), before)
    assert rows[0]["kl"] < 1e-6 < 1e-5 < rows[1]["kl"] and rows[2]["kl"] < 1e-6
    n_updates = {
        float(of["step"]) for of in step.learner.optimizers.state_dict()["adam"]["state"].values()
    }
    assert n_updates == {1.0}
