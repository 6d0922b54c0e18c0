"""Comparing agents on the same questions: ledgers, votes, costs and claims.

Run: python -m pytest tests/test_experiments_agents.py
"""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from drlib.agents import Limits, create_agent
from drlib.agents.rollout_state import count_costs
from drlib.chat.tool_calls import render_answer
from drlib.experiments.agent_comparison import (
    AgentRecords,
    Ledger,
    Trial,
    at_equal_tokens,
    questions_of,
    run_trial,
)
from drlib.experiments.agent_plan import agent_findings, agent_table, measure, run_agents
from drlib.experiments.plan import load_plan
from drlib.experiments.records import EXPERIMENTS
from drlib.experiments.strategy_figures import majority_right
from drlib.intervals import difference_interval
from drlib.task import Task
from tests.agent_examples import TextEngine, tour_chat, tour_toolbox, tour_world
from tests.loop_examples import build_stages

tour = tour_world
chat = tour_chat
toolbox = tour_toolbox


def make_ledger(answers, rights, name="one", seed=0, sampled=10):
    """Return a hand-made ledger: answers as letters, and the correct letter of each question."""
    trial = Trial(name, "react", samples=len(answers[0]))
    rows = [[None if a == "-" else a for a in row] for row in answers]
    right = [[a == wanted for a in row] for row, wanted in zip(answers, rights)]
    tasks = [f"t{i}" for i in range(len(answers))]
    counts = {
        name: [[sampled] * len(row) for row in answers]
        for name in ("sampled", "processed", "longest", "contexts", "calls")
    }
    return Ledger(trial, seed, tasks, rows, right, [["answered"] * len(answers[0])] * 2, counts)


def test_votes_and_passes_by_hand():
    one = make_ledger(["abba", "-c-c"], "bc")
    assert one.accuracy_Q().tolist() == [0.5, 0.5]
    assert [one.voted_Q(n).tolist() for n in (1, 2, 3, 4)] == [[0, 0], [0, 1], [1, 1], [0, 1]]
    assert [one.passed_Q(n).tolist() for n in (1, 2)] == [[0, 0], [1, 1]]
    with pytest.raises(ValueError, match="5 of 4 samples"):
        one.voted_Q(5)


def test_sample_count_at_equal_tokens():
    cheap, expensive = (
        make_ledger(["abab", "abab"], "aa"),
        make_ledger(["a", "a"], "aa", sampled=32),
    )
    assert at_equal_tokens(cheap, expensive) == 3
    assert at_equal_tokens(expensive, cheap) == 1
    assert at_equal_tokens(cheap, make_ledger(["a", "a"], "aa", sampled=500)) == 4
    assert measure(cheap, "vote:equal", expensive).tolist() == cheap.voted_Q(3).tolist()
    assert measure(cheap, "pass:2", expensive).tolist() == [1, 1]
    for what in ("voting", "vote", "mean:3"):
        with pytest.raises(ValueError, match="no measure"):
            measure(cheap, what, expensive)


def test_questions_are_shared_and_held_out(tour):
    one, other = Trial("a", "react", n=30), Trial("b", "heavy:n=2", n=30, temperature=0.0)
    questions, worlds = questions_of(one, tour, 7)
    assert questions == questions_of(other, tour, 7)[0] and worlds == {}
    assert questions != questions_of(one, tour, 8)[0]
    trails, worlds = questions_of(Trial("c", "react", "trail:9", n=5), tour, 7)
    assert [task.hops for task in trails] == [9] * 5 and {*worlds} == {t.world for t in trails}
    with pytest.raises(ValueError, match="trial d: no questions 'riddle'"):
        questions_of(Trial("d", "react", "riddle"), tour, 7)


@pytest.mark.parametrize("line", ["heavy:n=3", "heavy:n=3,merge=vote"])
def test_heavy_costs_include_researchers_and_merger(tour, toolbox, chat, line):
    task = Task("t", "Who?", "yes", "search", tour.version)

    def say(text):
        return (
            render_answer("yes")
            if "researchers" in text
            else f"<think>Hm.</think>{render_answer('yes')}"
        )

    def run(line):
        agent = create_agent(
            line, TextEngine(chat, say), toolbox, chat, Limits(context_tokens=2000)
        )
        return agent.run([task])[0]

    (single, merged) = (count_costs(run(line)) for line in ("iterresearch", line))
    own = len(chat.encode(render_answer("yes"))) if "vote" not in line else 0
    assert merged["sampled"] == 3 * single["sampled"] + own
    assert merged["contexts"] == 3 + (own > 0)
    assert merged["longest"] >= single["longest"]


def test_trial_records_answers_and_costs(tour, toolbox, chat, tmp_path):
    trial = Trial("x", "react", n=3, samples=2)
    questions, _ = questions_of(trial, tour, 7)
    engine = TextEngine(chat, lambda text: render_answer(questions[0].answer))
    found = run_trial(trial, engine, toolbox, chat, tour, 7, seed=4)
    assert found.seed == 4 and found.tasks == [task.id for task in questions]
    assert found.right[0] == [True, True] and found.ended == [["answered"] * 2] * 3
    answer_tokens = len(chat.encode(render_answer(questions[0].answer)))
    assert found.mean("sampled") == answer_tokens and found.mean("processed") > answer_tokens
    head = {"command": "make it", "trials": {"x": asdict(trial)}}
    records = AgentRecords(head, {("x", 4): found}, {("p", 4): [{"step": 1, "loss": 0.5}]})
    path = records.save(tmp_path / "some.parquet")
    assert AgentRecords.load(path) == records
    path.write_text("{")
    with pytest.raises(ValueError, match="no readable results in .*some.parquet"):
        AgentRecords.load(path)


def test_claim_effect_is_the_paired_difference(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(
        "name: toy\nabout: toy\npolicies: {p: {}}\nquestion_seed: 5\n"
        "trials:\n"
        "- {name: new, policy: p, agent: react}\n"
        "- {name: old, policy: p, agent: react, samples: 4}\n"
        "claims:\n"
        "- {name: x, claim: c, source: s, expected: higher, setting: new, control: old,\n"
        "   measure: [sample, 'vote:3']}\n"
    )
    plan = load_plan(path)
    ons = [make_ledger(["b", "a"], "bc", "new", s) for s in (0, 1)]
    offs = [
        make_ledger(["abba", "-c-c"], "bc", "old", 0),
        make_ledger(["aaab", "cccc"], "bc", "old", 1),
    ]
    head = {"command": "go", "trials": dict.fromkeys(("new", "old")), "seeds": [0, 1]}
    head |= {"commit": [], "registered": ""}
    found = agent_findings(
        plan, AgentRecords(head, {(one.trial.name, one.seed): one for one in (*ons, *offs)})
    )["x"]
    differences_SQ = np.array([[1.0 - 1.0, 0.0 - 1.0], [1.0 - 0.0, 0.0 - 1.0]])
    effect, low, high = difference_interval(differences_SQ)
    assert found["effect"] == effect == -0.25
    assert found["interval"] == [round(low, 5), round(high, 5)]
    assert found["accuracy"] == [0.5, 0.75] and found["command"] == "go"
    assert found["setting"] == {"trial": "new", "agent": "react", "measure": "sample"}
    assert found["outcome"] == "open" and found["n"] == 2 and found["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("policy: p", "policy: q"), "trial new: no policy 'q'"),
        (("control: old", "control: ol"), "claim x: no trial 'ol'"),
        (("samples: 4", "questions: 'trail:3'"), "claim x: its trials ask different questions"),
    ],
)
def test_plans_with_unknown_names_are_rejected(tmp_path, change, reason):
    text = (
        "name: toy\nabout: toy\npolicies: {p: {}}\nquestion_seed: 5\ntrials:\n"
        "- {name: new, policy: p, agent: react}\n"
        "- {name: old, policy: p, agent: react, samples: 4}\nclaims:\n"
        "- {name: x, claim: c, source: s, expected: higher, setting: new, control: old}\n"
    )
    path = tmp_path / "plan.yaml"
    path.write_text(text.replace(*change, 1))
    with pytest.raises(ValueError, match=reason):
        load_plan(path)
    path.write_text(text)
    load_plan(path)


def test_majority_of_independent_runs_is_binomial():
    assert majority_right(0.7, 1) == pytest.approx(0.7)
    assert majority_right(0.7, 2) == pytest.approx(0.7)
    assert majority_right(0.7, 3) == pytest.approx(0.7**3 + 3 * 0.7**2 * 0.3)
    brute = sum(
        math.prod(0.6 if bit else 0.4 for bit in bits) * (sum(bits) > 2)
        for bits in np.ndindex(2, 2, 2, 2, 2)
    )
    assert majority_right(0.6, 5) == pytest.approx(brute)


def test_agent_plan_is_run_recorded_and_judged(tmp_path):
    small = "{model.layers: 2, processes: 1, model.hidden: 32, world.name: tour}"
    path = tmp_path / "toy.yaml"
    path.write_text(
        "name: toy\nabout: toy\nprofile: ci\nseeds: [3]\n"
        f"policies: {{small: {small}}}\nquestion_seed: 5\ntrials:\n"
        "- &one {name: one, policy: small, agent: react, stage: untrained, n: 3, samples: 2}\n"
        "- {<<: *one, name: two, agent: 'heavy:n=2'}\nclaims:\n"
        "- {name: x, claim: c, source: s, expected: higher, setting: two, control: one}\n"
    )
    plan = load_plan(path)
    out, runs = tmp_path / "out", tmp_path / "runs"
    build_stages(("world", "untrained"), plan.config("small", 3), runs)
    path_of_records = run_agents(plan, runs, out, "again")
    assert path_of_records == out / "toy.parquet"
    records = AgentRecords.load(path_of_records)
    by_trial = records.by_trial()
    assert records.head["command"] == "again" and records.head["registered"] == ""
    assert [trial_ledgers[0].seed for trial_ledgers in by_trial.values()] == [3, 3]
    assert [len(row) for row in by_trial["two"][0].right] == [2, 2, 2]
    found = json.loads((out / "findings" / "x.json").read_text())
    assert found["accuracy"] == [0, 0] and found["outcome"] == "open"
    assert "| two | `heavy:n=2` | search | 0.0 [" in agent_table(plan, records)

    # a new trial keeps the existing ledgers; a new question seed starts again
    by_trial["one"][0].answers[0][0] = "kept"
    records.save(path_of_records)
    path.write_text(path.read_text().replace("claims:", "- {<<: *one, name: three}\nclaims:"))
    run_agents(load_plan(path), runs, out, "again")
    by_trial = AgentRecords.load(path_of_records).by_trial()
    assert [*by_trial] == ["one", "two", "three"]
    assert by_trial["one"][0].answers[0][0] == "kept"
    path.write_text(path.read_text().replace("question_seed: 5", "question_seed: 6"))
    run_agents(load_plan(path), runs, out, "again")
    assert AgentRecords.load(path_of_records).by_trial()["one"][0].answers[0][0] != "kept"


def test_committed_records_match_the_committed_plan():
    plan = load_plan("strategies")
    records = AgentRecords.load(EXPERIMENTS / "strategies.parquet")
    assert {*records.by_trial()} == {*plan.trials}
    for (name, _), ledger in records.ledgers.items():
        assert ledger.trial == plan.trials[name][1]
    assert records.head["policies"] == json.loads(json.dumps(dict(plan.policies)))
