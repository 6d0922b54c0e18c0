"""reasoning-gym as environments; skipped without the extra `gym` (run `make test-gym`).

Run: python -m pytest tests/test_environments_gym.py
"""

import json

import pytest

from drlib.config import Config
from drlib.environments import load_environment, load_environments
from drlib.environments.environment import demonstrate
from drlib.tools import Toolbox

gym = pytest.importorskip("reasoning_gym", reason="run `make test-gym`: it installs reasoning-gym")
SUM = "gym:chain_sum:min_terms=2,max_terms=2,max_digits=2"


def test_scores_are_those_of_the_data_set():
    environment = load_environment(SUM)
    for task in environment.tasks(30, 0):
        seed = json.loads(task.environment)["seed"]
        data = gym.create_dataset(
            "chain_sum", size=1, seed=seed, min_terms=2, max_terms=2, max_digits=2
        )
        assert task.question == data[0]["question"] and task.answer == data[0]["answer"]
        said = [task.answer, f"{task.answer}.0", "no number", "", f"It is {task.answer}.", None]
        for answer in said:
            score = environment.reset(task).verify(answer)
            assert score == data.score_answer(answer=answer, entry=data[0]), answer


def test_equal_answers_in_other_spellings_and_partial_credit():
    environment = load_environment("gym:decimal_arithmetic")
    (task,) = environment.tasks(1, 0)
    assert environment.reset(task).verify(f"{task.answer}000") == 1.0  # no string equality
    puzzle = load_environment("gym:number_sorting")
    (task,) = puzzle.tasks(1, 0)
    numbers = json.loads(task.answer.replace("'", '"'))
    scores = {puzzle.reset(task).verify(str(order)) for order in (numbers, numbers[::-1], [])}
    assert max(scores) == 1.0 and min(scores) < 1.0


def test_every_answer_of_many_data_sets_scores_one():
    names = "chain_sum letter_counting gcd lcm family_relationships word_sorting spell_backward "
    names += "count_bits products prime_factorization leg_counting simple_equations syllogism"
    environments = load_environments("+".join(f"gym:{name}" for name in names.split()))
    assert len(environments) == 13
    with Toolbox(None, environments=environments) as toolbox:
        for name, environment in environments.items():
            for task in environment.tasks(8, 1):
                assert demonstrate(environment, task, toolbox).score == 1.0, name


def test_settings_are_checked():
    assert len({t.question for t in load_environment(SUM).tasks(50, 0)}) == 50
    with pytest.raises(ValueError, match="chain_sums.*chain_sum"):
        load_environment("gym:chain_sums")
    with pytest.raises(ValueError, match="max_term"):
        load_environment("gym:chain_sum:max_term=2")
    with pytest.raises(ValueError, match="min_terms"):
        load_environment("gym:chain_sum:min_terms=0")
    with pytest.raises(ValueError, match="KEY=VALUE"):
        load_environment("gym:chain_sum:terms")


def test_the_profile_has_enough_held_out_tasks():
    config = Config.load("smol-environments")
    names = config.rl.curriculum.environments
    assert names == config.demonstrations.environments == config.evaluation.environments
    n, seed = config.evaluation.questions, config.evaluation.seed
    held_out = [len(e.tasks(n, seed, "test")) for e in load_environments(names).values()]
    assert held_out == [n] * 4
