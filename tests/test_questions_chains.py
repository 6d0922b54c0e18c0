"""Tests of chain and Python questions: verified answers, disjoint splits, solvable with tools.

Run: python -m pytest tests/test_questions_chains.py
"""

import random
import re
import subprocess
import sys

import pytest

from drlib.questions.chains import (
    PYTHON_KINDS,
    Chain,
    SearchQuestions,
    chain_questions,
    enumerate_chains,
    has_shortcut,
    make_python_task,
    make_search_task,
    split_answers,
)
from drlib.sandbox import Sandbox
from drlib.task import is_correct
from drlib.tools import Toolbox
from drlib.worlds import Names, fictional_world, load_world
from drlib.worlds.small import Entity, SmallWorld


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


def test_chains_follow_the_graph_without_cycles(cldr):
    chains = enumerate_chains(cldr)
    assert {c.hops for c in chains} == {1, 2, 3}
    for chain in chains:
        path = cldr.follow(chain.start, chain.relations)
        assert path[-1] == chain.answer
        assert len({chain.start, *path}) == chain.hops + 1


def test_two_hop_chains_match_brute_force(cldr):
    names = Names.from_world(cldr)
    world = fictional_world(5, names)
    relations = sorted({r for e in world.entities.values() for r in e.facts})
    brute = set()
    for start in world.entities:
        for a in relations:
            for b in relations:
                path = world.follow(start, (a, b))
                if (
                    path
                    and len({start, *path}) == 3
                    and all(p.casefold() not in start.casefold() for p in path)
                ):
                    brute.add((start, (a, b), path[-1]))
    assert brute == {
        (c.start, c.relations, c.answer) for c in enumerate_chains(world, 2) if c.hops == 2
    }


def test_train_and_test_answers_are_disjoint(cldr):
    side = split_answers(cldr)
    train, test = (SearchQuestions(cldr, s) for s in ("train", "test"))
    seen = {
        s: {a for h in (1, 2, 3) for a in q.answers(h)}
        for s, q in (("train", train), ("test", test))
    }
    assert not seen["train"] & seen["test"]
    assert all(side[a] == s for s in seen for a in seen[s])
    assert len(test.answers(3)) >= 40, "three hops need enough different test answers"


def test_chain_questions_are_reproducible_and_unique(cldr):
    a, b = (chain_questions(cldr, 60, 7) for _ in range(2))
    assert a == b != chain_questions(cldr, 60, 8)
    assert len({t.id for t in a}) == 60
    assert all(t.question.endswith((f"{t.start}?", f"{t.start}.")) for t in a)
    with pytest.raises(ValueError, match=r"only \d+ different search questions, not n=100000"):
        chain_questions(cldr, 100_000, 0)


def test_exhausted_hop_counts_are_replaced_by_others(cldr):
    world = fictional_world(3, Names.from_world(cldr), territories=2)
    side = split_answers(world)
    tasks = [
        make_search_task(chain, world, wording)
        for chain in enumerate_chains(world)
        if side[chain.answer] == "test"
        for wording in range(3)
    ]
    brute = {task.id for task in tasks if not has_shortcut(task, world, 2)}
    assert len(brute) > 5 and len({task.hops for task in tasks}) == 3
    all_tasks = chain_questions(world, 500, 0, at_least=1)
    assert {task.id for task in all_tasks} == brute
    with pytest.raises(ValueError, match=f"only {len(brute)} different"):
        chain_questions(world, 500, 0, at_least=len(brute) + 1)


def test_strict_questions_have_no_shortcut(cldr):
    def shown_early(task, results, tools):
        """Return True if the tool texts show the answer before the last correct hop."""
        path = [task.start, *cldr.follow(task.start, task.relations)]
        texts = [tools.call("search", {"query": [title]}).text for title in path[: task.hops - 1]]
        words, answer = (
            re.findall(r"\w+|[^\w\s]", text.casefold()) for text in (" ".join(texts), task.answer)
        )
        return any(words[i : i + len(answer)] == answer for i in range(len(words)))

    rng, source = random.Random(0), SearchQuestions(cldr, "test")
    unfiltered = [source.draw(hops, rng) for hops in (2, 3) for _ in range(60)]
    strict = chain_questions(cldr, 120, 11, hops={2: 0.5, 3: 0.5}, results=3)
    with Sandbox() as sandbox, Toolbox(cldr, sandbox, results=3) as tools:
        early = [shown_early(task, 3, tools) for task in unfiltered]
        assert early == [has_shortcut(task, cldr, 3) for task in unfiltered]
        assert 20 < sum(early) < 100, "without filtering, many questions have a shortcut"
        assert not any(shown_early(task, 3, tools) for task in strict)
    hops = [task.hops for task in strict]
    assert 40 < hops.count(3) < 80, "rejection keeps the shares"


def test_partial_word_match_is_not_a_shortcut(cldr):
    world = SmallWorld(
        [
            Entity("Alpha", "t", {"land": "Somalia"}),
            Entity("Somalia", "t", {"land": "Mali"}),
            Entity("Alpha of Mali", "t", {"land": "Chad"}),
        ]
    )
    task = make_search_task(Chain("Alpha", ("land", "land"), "Mali"), world, 0)
    assert not has_shortcut(task, world, 1), "Somalia is shown, Mali is not"
    assert has_shortcut(task, world, 2), "the second page that a search for Alpha shows names it"


def test_two_hop_question_text(cldr):
    chain = next(c for c in enumerate_chains(cldr) if c.start == "Oslo" and c.hops == 2)
    task = make_search_task(chain, cldr, 0)
    assert task.question == f"What is the {chain.relations[1]} of the territory of Oslo?"


def test_python_task_programs_print_the_answers():
    rng = random.Random(0)
    tasks = [make_python_task(rng, kind) for kind in PYTHON_KINDS for _ in range(3)]
    program = "\n".join(t.code for t in tasks)
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.stdout.split() == [t.answer for t in tasks], run.stderr
    with pytest.raises(ValueError, match="unknown Python question"):
        make_python_task(rng, "cosine")


@pytest.mark.parametrize(
    ("given", "right", "same"),
    [
        ("12", "12.0", True),
        (" oslo. ", "Oslo", True),
        ("Oslo", "Osl", False),
        ("", "12", False),
        ("Norwegian  Krone", "norwegian krone", True),
        ("1e2", "100", True),
        ("12", "13", False),
    ],
)
def test_is_correct_normalises_answers(given, right, same):
    task = make_python_task(random.Random(0))
    assert is_correct(given, type(task)(**{**vars(task), "answer": right})) is same
