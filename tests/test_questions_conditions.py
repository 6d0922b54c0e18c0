"""Tests of questions with several conditions, checked fact by fact without the engine.

Run: python -m pytest tests/test_questions_conditions.py
"""

import itertools
import random
import re

import pytest

from drlib.chat.template import ChatIds, train_tokenizer
from drlib.config import Config
from drlib.demonstrations.actions import ActionData
from drlib.demonstrations.oracle import Oracle
from drlib.questions.chains import SearchQuestions
from drlib.questions.question_engine import CONDITIONS, ConditionQuestions
from drlib.questions.search_plan import plan_searches
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import data
from drlib.worlds import Names, fictional_world, load_world


@pytest.fixture(scope="module")
def world():
    return data.load_training_world(Config.load("ci", world__name="folder:notebooks/tern"))[0]


@pytest.fixture(scope="module")
def questions_by_split(world):
    return {split: ConditionQuestions(world, split) for split in ("train", "test")}


def find_last_hop_facts(task, world):
    """Return the facts of the last hop, relation -> value, by following the pages."""
    *each, last = plan_searches(task)
    assert last.is_holder
    found = []
    for step in each:
        if step.is_holder:
            facts = dict(zip(step.relations, step.titles(found)))
            (title,) = find_holders(facts, world)
            found.append(title)
        else:
            found.append(world.entities[step.titles(found)[0]].facts[step.relations[0]])
    return dict(zip(last.relations, last.titles(found)))


def find_holders(facts, world):
    return [
        title
        for title, entity in world.entities.items()
        if all(entity.facts.get(relation) == value for relation, value in facts.items())
    ]


def assert_needs_every_condition(task, world):
    facts = find_last_hop_facts(task, world)
    assert find_holders(facts, world) == [task.answer]
    for left_out in facts:
        fewer = {relation: value for relation, value in facts.items() if relation != left_out}
        assert len(find_holders(fewer, world)) > 1, f"{task.question} needs no {left_out}"


def test_every_condition_is_needed(world, questions_by_split):
    for split, skill in itertools.product(questions_by_split, CONDITIONS):
        tasks = questions_by_split[split].all(skill)
        assert len(tasks) >= 40
        for task in tasks:
            assert_needs_every_condition(task, world)
            assert task.skill == skill == f"c{task.conditions}"
            assert task.category == f"{task.conditions} conditions"
            assert not re.search(rf"\b{re.escape(task.answer)}\b", task.question)


def test_fictional_worlds_have_condition_questions(world):
    names = Names.from_world(world)
    for seed in range(10):
        invented = fictional_world(seed, names)
        tasks = ConditionQuestions(invented, None, drawn=16, seed=seed).all()
        assert len(tasks) >= 4
        for task in tasks:
            assert_needs_every_condition(task, invented)


def test_oracle_search_counts(world, questions_by_split):
    with Sandbox() as sandbox, Toolbox(world, sandbox, results=2) as toolbox:
        for skill, calls in (("c2", 3), ("c3", 4)):
            for task in questions_by_split["test"].all(skill):
                episode = Oracle().play(task, toolbox, random.Random(0))
                assert episode.correct and len(episode.tool_results) == calls


def test_answers_of_train_and_test_are_disjoint(world, questions_by_split):
    answers = {
        split: {task.answer for task in questions.all()}
        | {a for hops in (1, 2, 3) for a in SearchQuestions(world, split).answers(hops)}
        for split, questions in questions_by_split.items()
    }
    assert len(answers["train"]) > 50 and len(answers["test"]) > 20
    assert not answers["train"] & answers["test"]


def test_draws_are_reproducible_with_balanced_answers(world, questions_by_split):
    repeated = ConditionQuestions(world, "train")
    assert [task.id for task in repeated.all()] == [
        task.id for task in questions_by_split["train"].all()
    ]
    rng = random.Random(0)
    drawn = [questions_by_split["train"].draw("c3", rng).answer for _ in range(400)]
    shares = {answer: drawn.count(answer) / 400 for answer in drawn}
    assert len(shares) >= 15 and max(shares.values()) < 0.15


def test_wordings_have_the_same_queries():
    tour = load_world("tour")
    for split in ("train", "test"):
        brackets = ConditionQuestions(tour, split).all()
        sentences = ConditionQuestions(tour, split, wording="sentences").all()
        pairs = list(zip(sentences, brackets, strict=True))
        assert all((a.id, a.query, a.answer) == (b.id, b.query, b.answer) for a, b in pairs)
        assert all("(" not in a.question and "(" in b.question for a, b in pairs)
    sentences, brackets = (
        " ".join(data.engine_texts(tour, how)) for how in ("sentences", "brackets")
    )
    assert "According to Unicode CLDR, " in sentences and "According to" not in brackets


def test_pretraining_shows_two_fact_searches_without_answers(world):
    titles = sorted({t for e in world.entities.values() for t in (e.title, *e.facts.values())})
    texts = data.world_texts(world) + data.engine_texts(world)
    chat = ChatIds(train_tokenizer(texts, 1400, names=titles, phrases=data.PHRASES))
    names = Names.from_world(world)

    def queries(conditions):
        documents = ActionData(names, chat, 2, conditions).stream(0)
        texts = [chat.tokenizer.decode(next(documents).ids) for _ in range(250)]
        assert not any("<answer>" in text for text in texts)
        return [query for text in texts for query in re.findall(r'"query": \["(.*?)"\]', text)]

    assert not any(";" in query for query in queries(None))
    separators = [query.count(";") for query in queries("brackets") if ";" in query]
    assert len(separators) > 20 and set(separators) == {1}
