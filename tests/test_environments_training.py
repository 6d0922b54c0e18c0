"""Environments in the stages: mixture, prompts of demonstrations, RL, evaluation.

Run: python -m pytest tests/test_environments_training.py
"""

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from drlib.chat.template import ChatIds, train_tokenizer
from drlib.config import Config
from drlib.demonstrations.actions import episode_sample
from drlib.environments import load_environment
from drlib.environments.environment import is_test
from drlib.evaluation.evaluate import run_judged
from drlib.rl.curriculum import Curriculum
from drlib.task import Task
from drlib.training import stages
from drlib.training.data import PHRASES, environment_texts, world_texts
from drlib.training.launch import build_stage
from drlib.training.model_demonstrations import demonstrate
from drlib.training.question_scheduler import (
    SKILLS,
    QuestionScheduler,
    question_source,
    source_shares,
)
from drlib.training.sft import length_pools
from drlib.trajectory import Termination
from drlib.worlds import Names, load_world
from tests.rl_examples import a_trajectory

DATABASES = "database:easy+database:medium"


def config(**settings):
    return Config.load("ci", **settings)


@pytest.fixture(scope="module")
def world():
    return load_world("tour")


def scheduler(world, **settings):
    return QuestionScheduler(config(**settings), world, Names.from_world(world))


def test_shares(world):
    settings = dict(rl__curriculum__environments=DATABASES, rl__curriculum__environment_share=0.5)
    shares = source_shares(config(**settings))
    assert sum(shares.values()) == 1
    assert shares["database:easy"] == shares["database:medium"] == 1 / 4
    assert shares["python"] == 1 / 8  # a quarter of the other half
    alone = source_shares(config(**settings | {"rl__curriculum__environment_share": 1.0}))
    assert alone == {"database:easy": 1 / 2, "database:medium": 1 / 2}
    assert not {*source_shares(config())} & {"database:easy"}


@pytest.mark.parametrize("mixture", ["chance", "exact"])
def test_the_mixture_is_drawn_from_the_train_split(world, mixture):
    found = scheduler(
        world,
        rl__curriculum__environments=DATABASES,
        rl__curriculum__environment_share=0.5,
        rl__curriculum__mixture=mixture,
        rl__questions=80,
    )
    curriculum = Curriculum(SKILLS)
    tasks, worlds = found.draw(0, curriculum)
    sources = Counter(question_source(task, worlds) for task in tasks)
    posed = [task for task in tasks if task.environment]
    if mixture == "exact":
        assert sources["database:easy"] == sources["database:medium"] == 20
    assert 25 <= len(posed) <= 55 and not any(is_test(task.question) for task in posed)
    again, _ = found.draw(1, curriculum)
    assert {t.id for t in posed} != {t.id for t in again if t.environment}
    curriculum.update([("database:easy", 1.0)])  # a skill that no list names
    assert curriculum.rates["database:easy"] > 0.3


def test_environments_do_not_change_with_the_world(world):
    with pytest.raises(ValueError, match="world_change.*environments"):
        scheduler(world, rl__curriculum__environments="database", rl__callbacks__world_change=2)


def test_the_tokenizer_reads_their_words():
    texts = environment_texts("database")
    assert any("purchase" in text for text in texts) and environment_texts("") == []


def test_a_demonstration_is_trained_with_its_own_tools(world):
    titles = [*world.entities]
    chat = ChatIds(train_tokenizer(world_texts(world), 2048, names=titles, phrases=PHRASES))
    environment = load_environment("database")
    tools = [tool.schema for tool in environment.tools(environment.tasks(1, 0)[0])]
    messages = [
        {"role": "user", "content": "Please."},
        {"role": "assistant", "content": "<think>x</think><answer>Done.</answer>"},
    ]
    row = {"messages": messages, "tools": tools, "known_before": [{}], "task": "t"}
    listed = "Research.\n<tools>\n{}\n</tools>\nEnd."
    (sample,) = length_pools([row], chat, config(), listed)[0]
    text = chat.tokenizer.decode(list(sample.ids))
    assert tools[0]["name"] in text.replace(" ", "")
    assert episode_sample(messages, chat, listed).ids != sample.ids


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of all stages; only the environment is evaluated."""
    runs = tmp_path_factory.mktemp("runs")
    settings = config(
        rl__start="",
        rl__steps=2,
        rl__questions=4,
        demonstrations__count=20,
        demonstrations__environments="database",
        demonstrations__environment_tasks=10,
        rl__curriculum__environments="database",
        rl__curriculum__environment_share=0.5,
        rl__curriculum__mixture="exact",
        evaluation__world="none",
        evaluation__environments="database",
        evaluation__questions=6,
        pretrain__steps=2,
        sft__steps=2,
        processes=1,
    )
    build_stage("evaluate_rl", settings, runs=runs)
    return settings, runs


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_all_stages_run_on_an_environment(trained):
    settings, runs = trained
    episodes = rows(stages.folder("demonstrations", settings, runs) / "episodes.jsonl")
    posed = [row for row in episodes if "tools" in row]
    assert len(posed) == 10 and all(row["correct"] for row in posed)
    assert {row["kind"] for row in posed} == {"database"}
    metrics = rows(stages.folder("rl", settings, runs) / "metrics.jsonl")
    assert all("accuracy_database" in row for row in metrics)
    outcomes = rows(stages.folder("evaluate_rl", settings, runs) / "outcomes.jsonl")
    assert [row["kind"] for row in outcomes] == ["database"] * 6
    held_out = {task.id for task in load_environment("database").tasks(6, 574959, "test")}
    assert {row["task"] for row in outcomes} == held_out
    assert not held_out & {row["task"] for row in posed}


def test_evaluating_nothing_is_an_error(trained):
    settings, runs = trained
    nothing = settings.derive(evaluation__environments="")
    with pytest.raises(Exception, match="evaluation.world=none"):
        build_stage("evaluate_rl", nothing, runs=runs)


class Unreliable:
    """An agent whose environment fails in the first `faults` runs of the second task."""

    def __init__(self, faults):
        self.faults, self.runs = faults, []

    def run(self, tasks, samples=1, keys=None, **_):
        made = []
        for task in tasks:
            self.runs.append(task.id)
            fails = task.id == "b" and self.runs.count("b") <= self.faults
            for _ in range(samples):
                trajectory = replace(a_trajectory(), task_id=task.id, metadata={})
                if fails:
                    trajectory.termination = Termination.ENV_FAULT
                    trajectory.metadata["fault"] = "the disk is full"
                made.append(trajectory)
        return made


def test_a_fault_in_an_evaluation_is_repeated_and_never_wrong():
    tasks = [Task(name, "?", "1", "search", "") for name in "abc"]
    agent = Unreliable(2)
    found = run_judged(agent, tasks, [0, 1, 2], samples=2)
    assert [t.task_id for t in found] == ["a", "a", "b", "b", "c", "c"]
    assert agent.runs == ["a", "b", "c", "b", "b"]
    assert not any(t.termination is Termination.ENV_FAULT for t in found)
    with pytest.raises(RuntimeError, match="2 of 6.*b: the disk is full"):
        run_judged(Unreliable(3), tasks, [0, 1, 2], samples=2)


def test_a_model_does_not_demonstrate_environments(tmp_path):
    settings = config(
        demonstrations__teacher="model",
        demonstrations__policy="figures/reference/tour/policy_sft",
        demonstrations__environments="database",
    )
    with pytest.raises(ValueError, match="demonstrations.environments.*solver"):
        demonstrate(settings, tmp_path / "runs" / "ci" / "demonstrations-x")


def test_distillation_poses_tasks_of_environments(trained):
    settings, runs = trained
    policy = str(stages.folder("sft", settings, runs) / "policy")
    distilled = settings.derive(
        distill__start=policy, distill__teachers=policy, distill__steps=1, distill__questions=8
    )
    build_stage("distill", distilled, runs=runs)
    (row,) = rows(stages.folder("distill", distilled, runs) / "metrics.jsonl")
    assert "accuracy_database" in row and row["env_faults"] == 0


def test_seeds_of_one_step_differ():
    environment = load_environment("database")
    assert environment.draw(random.Random(1)) == environment.draw(random.Random(1))
    assert environment.draw(random.Random(1)) != environment.draw(random.Random(2))
