"""BrowseConf: confidence by hand, attempts, their prompts, costs and calibration.

Run: python -m pytest tests/test_agents_browseconf.py
"""

import math
import random
import subprocess
import sys

import numpy as np
import pytest

from drlib.agents import BrowseConf, Limits, ReAct, calibrate_threshold
from drlib.agents.browseconf import parse_confidence, rate_answer, select_attempt
from drlib.agents.rollout_state import count_costs
from drlib.chat.tool_calls import render_answer, render_call
from drlib.config import ROOT
from drlib.models.scripted_engine import ScriptedEngine
from drlib.task import Task
from drlib.trajectory import Segment, Termination
from tests.agent_examples import TextEngine, make_trajectory, tour_chat, tour_toolbox

chat = tour_chat
toolbox = tour_toolbox
TASK = Task("t", "What is the currency of Norway?", "Norwegian Krone", "search", "")
WIDE = Limits(calls=6, turn_tokens=100, context_tokens=10**5)
RATES = {"Krona": -0.3, "Krone": -0.1, "Euro": -0.2}  # log-probability of every token


def guesses(answers):
    """Return a policy that answers in order, and the log-probability of its turns."""
    left = iter(answers)

    def rate(turn):
        return next(x for name, x in RATES.items() if name in turn)

    return lambda text: f"<think>Hm.</think>{render_answer(next(left))}", rate


def attempt(chat, toolbox, answers, **options):
    engine = TextEngine(chat, *guesses(answers))
    agent = BrowseConf(engine, toolbox, chat, WIDE, **{"retry": "fresh", **options})
    (done,) = agent.run([TASK])
    return done, engine


def confidence_of(chat, answer):
    """Return the product of the probabilities of the answer's tokens without its tags."""
    return math.exp(RATES[answer] * len(chat.encode(answer)))


def test_confidence_by_hand():
    run = make_trajectory(
        generated=[False, True, True, True, True],
        logprobs=[0, -1.0, -0.5, -0.25, -0.25],
        segments=[Segment.PROMPT, Segment.THINK, Segment.ANSWER, Segment.ANSWER, Segment.TEMPLATE],
        answer="x",
    )
    assert rate_answer(run) == pytest.approx(math.exp(-0.75))
    assert rate_answer(run, "rollout") == pytest.approx(math.exp(-0.5))
    run.answer = None
    assert rate_answer(run) is None


def test_attempts_stop_at_the_threshold(chat, toolbox):
    right = confidence_of(chat, "Krone")
    done, engine = attempt(chat, toolbox, ["Krona", "Krone", "Euro"], threshold=right - 0.01)
    runs = done.metadata["runs"]
    assert done.answer == "Krone" and runs["answers"] == ["Krona", "Krone"]
    assert runs["confidences"] == pytest.approx([confidence_of(chat, "Krona"), right])
    assert len(engine.read) == 2 and engine.read[0] == engine.read[1]


def test_highest_confidence_is_returned_at_the_end_of_the_budget(chat, toolbox):
    done, engine = attempt(chat, toolbox, ["Krona", "Krone", "Euro"], threshold=1, attempts=3)
    assert done.answer == "Krone" and len(engine.read) == 3
    assert done.id == "0-0-0" and done.metadata["question"] == TASK.question
    singles = [
        count_costs(ReAct(TextEngine(chat, *guesses([answer])), toolbox, chat, WIDE).run([TASK])[0])
        for answer in ("Krona", "Krone", "Euro")
    ]
    assert count_costs(done)["sampled"] == sum(cost["sampled"] for cost in singles)
    assert count_costs(done)["contexts"] == 3


def test_one_attempt_is_react(chat, toolbox):
    done, _ = attempt(chat, toolbox, ["Euro"], threshold=1, attempts=1)
    alone = ReAct(TextEngine(chat, *guesses(["Euro"])), toolbox, chat, WIDE).run([TASK])[0]
    assert done.token_ids.tolist() == alone.token_ids.tolist() and done.answer == "Euro"


def test_samples_and_selected_samples(chat, toolbox):
    answers = ["Krona", "Krone", "Euro", "Krone"]
    tasks = [TASK, Task("u", "Who?", "x", "search", "")]
    engine = TextEngine(chat, *guesses(answers))
    agent = BrowseConf(engine, toolbox, chat, WIDE, threshold=0, retry="fresh")
    done = agent.run(tasks, samples=2, seed=5)
    assert [one.answer for one in done] == answers
    assert [one.id for one in done] == ["5-0-0", "5-0-1", "5-1-0", "5-1-1"]
    engine = TextEngine(chat, *guesses(answers))
    agent = BrowseConf(engine, toolbox, chat, WIDE, threshold=0, retry="fresh")
    assert [one.id for one in agent.run(tasks, samples=4, numbers=[3])] == ["0-0-3", "0-1-3"]


def test_prompts_of_further_attempts(chat, toolbox):
    def say(text):
        call = render_call("search", {"query": ["Norway"]})
        return render_answer("Krone") if "tool_response" in text else call

    for retry, words in (("summary", "currency Norwegian Krone"), ("negative", "enough: Krone.")):
        engine = TextEngine(chat, say)
        agent = BrowseConf(engine, toolbox, chat, WIDE, threshold=1, attempts=2, retry=retry)
        (done,) = agent.run([TASK], temperature=0)
        opening = engine.read[2]
        assert words in opening.replace(" .", ".") and "tool_response" not in opening, opening
        assert done.metadata["runs"]["answers"] == ["Krone", "Krone"]


def test_stated_confidence_is_a_turn_of_its_own(toolbox):
    stated = iter(["40", "90 percent"])

    def say(messages):
        text = messages[-1]["content"]
        if "How likely" in text:
            assert "Its answer: Krone" in text
            return render_answer(next(stated))
        return render_answer("Krone")

    engine = ScriptedEngine(say)
    agent = BrowseConf(engine, toolbox, threshold=0.8, retry="fresh", limits=WIDE)
    (done,) = agent.run([TASK])
    assert done.metadata["runs"]["confidences"] == [0.4, 0.9] and len(engine.requests) == 4
    turns = [cost["sampled"] for cost in done.metadata["runs"]["costs"]]
    assert len(turns) == 4 and count_costs(done)["sampled"] == sum(turns)


def test_numbers_out_of_range_are_no_confidence():
    cases = {"85": 0.85, "100": 1.0, "0": 0.0, "it is 12.5%": 0.125, "101": None, "": None}
    for text, value in {**cases, None: None}.items():
        assert parse_confidence(text) == value


def test_faults_and_missing_answers_are_last():
    right, empty, fault = (
        make_trajectory(answer="x"),
        make_trajectory(answer=None, termination=Termination.LENGTH),
        make_trajectory(answer=None, termination=Termination.ENV_FAULT),
    )
    assert select_attempt([fault, empty, right], [None, None, None]) == 2
    assert select_attempt([fault, empty], [None, None]) == 1
    assert select_attempt([right, right, right], [None, 0.0, 0.0]) == 1


def test_threshold_is_the_lowest_that_reaches_the_target():
    rng = random.Random(3)
    scores = [round(rng.random(), 2) for _ in range(200)]
    right = [rng.random() < score for score in scores]
    found = calibrate_threshold([*scores, None], [*right, True], 0.8)

    def accuracy(threshold):
        return np.mean([r for s, r in zip(scores, right) if s >= threshold])

    lower = [s for s in scores if s < found]
    assert accuracy(found) >= 0.8 and all(accuracy(s) < 0.8 for s in lower) and lower
    with pytest.raises(ValueError, match="no threshold with 20 answers above it"):
        calibrate_threshold(scores, right, 1.01)
    with pytest.raises(ValueError, match="with 3 answers"):
        calibrate_threshold([0.5, 0.9], [True, True], 0.5, least=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 1.5}, "threshold=1.5"),
        ({"attempts": 0}, "attempts=0"),
        ({"retry": "again"}, "retry='again' must be one of fresh"),
        ({"confidence": "felt"}, "confidence='felt'"),
    ],
)
def test_wrong_options_are_named(chat, toolbox, options, words):
    with pytest.raises(ValueError, match=words):
        BrowseConf(TextEngine(chat, str), toolbox, chat, **options)


def test_equal_attempts_and_missing_logprobs_are_refused(chat, toolbox):
    with pytest.raises(ValueError, match="retry=summary"):
        BrowseConf(TextEngine(chat, str), toolbox, chat, retry="fresh").run([TASK], temperature=0)
    with pytest.raises(ValueError, match="use confidence=stated"):
        BrowseConf(ScriptedEngine(str), toolbox, confidence="answer")


def test_example_of_the_docs():
    page = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    block = page.partition("# calibrate.py\n")[2].partition("```")[0]
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "0.6\n", done.stderr
