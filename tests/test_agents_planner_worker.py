"""Planner and workers: separate contexts and tools, failing workers, limits and faults.

The policy is a function of the text that it reads, so it knows only what its context shows.

Run: python -m pytest tests/test_agents_planner_worker.py
"""

import json

import pytest

from drlib.agents import Limits, PlannerWorker
from drlib.agents.rollout_state import LAST_CALL
from drlib.chat.prompts import FORMAT_HELP, NO_ANSWER, PLAN, research_prompt
from drlib.chat.tool_calls import render_answer, render_call
from drlib.endpoint import ChatEndpoint
from drlib.models.api_engine import ApiEngine
from drlib.sandbox import SandboxResult
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.tools.definitions import DELEGATE
from drlib.training.rollouts import split_contexts
from drlib.trajectory import Termination
from drlib.worlds import load_world
from tests.agent_examples import ScriptedTurns, TextEngine, tour_chat
from tests.scripted_server import Scripted

chat = tour_chat
WIDE = Limits(calls=20, turn_tokens=500, context_tokens=2000)
QUESTION = "What is the currency of the territory of Oslo?"
TASK = Task("asked", QUESTION, "Norwegian Krone", "search", load_world("tour").version)
PARTS = ("What is the territory of Oslo?", "What is the currency of Norway?")
ANSWERS = ("Norway", "Norwegian Krone")
PLANNER_MARK = PLAN.partition("{question}")[2].strip()[:30]


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox(load_world("tour"), results=2) as toolbox:
        yield toolbox


def turn(action):
    return f"<think>t</think>{action}"


def delegate(question):
    return turn(render_call(DELEGATE.name, {"question": question}))


def look(title):
    return turn(render_call("search", {"query": [title]}))


def plan(text, parts=PARTS):
    """Delegate each part once, then give the last answer that was read."""
    read = text.count("<tool_response>")
    if read < len(parts):
        return delegate(parts[read])
    last = text.rpartition("<tool_response>")[2].partition("</tool_response>")[0]
    return turn(render_answer(last))


def work(text):
    """Search the title of the sub-question, then answer it."""
    number = next(i for i, part in enumerate(PARTS) if part in text)
    if "<tool_response>" in text:
        return turn(render_answer(ANSWERS[number]))
    return look(PARTS[number].removesuffix("?").rpartition(" of ")[2])


def both(planner=plan, worker=work):
    return lambda text: planner(text) if PLANNER_MARK in text else worker(text)


def run(engine, toolbox, chat, limits=WIDE, **options):
    system = options.pop("system", None)
    (done,) = PlannerWorker(engine, toolbox, chat, limits, system, **options).run([TASK])
    return done


def texts(done, chat):
    return [chat.tokenizer.decode(part.token_ids) for part in split_contexts(done)]


def test_each_role_reads_only_its_own_context(chat, toolbox):
    done = run(TextEngine(chat, both()), toolbox, chat)
    assert done.answer == "Norwegian Krone" and done.termination is Termination.ANSWERED
    assert done.metadata["roles"] == ["planner", "worker", "worker"]
    planner, *workers = texts(done, chat)
    assert len(workers) == 2
    # the planner reads answers, not pages; a worker reads its part, not the question
    assert QUESTION in planner and "cldr:" not in planner and "territory Norway" not in planner
    for number, (text, part, answer) in enumerate(zip(workers, PARTS, ANSWERS)):
        assert text.count(part) == 1 and "cldr:" in text and QUESTION not in text
        assert PARTS[1 - number] not in text and PLANNER_MARK not in text
        assert f"<tool_response>{answer}</tool_response>" in planner
    tools = [(result.tool, result.ok) for result in done.tool_results]
    assert tools == [("search", True), ("delegate", True)] * 2
    # sampled are the own turns only: the worker's answer is an observation for the planner
    first = split_contexts(done)[0]
    sampled = chat.tokenizer.decode(first.token_ids[first.generated])
    assert "Norwegian Krone" in sampled and "<tool_response>" not in sampled
    assert sampled.count("delegate") == 2 and "Delegate one" not in sampled


def test_recap_shows_the_question_to_the_worker(chat, toolbox):
    done = run(TextEngine(chat, both()), toolbox, chat, recap=True)
    assert all(QUESTION in text for text in texts(done, chat)[1:])


FAILING = {
    "calls": (lambda text: look(f"Oslo {text.count('<tool_response>')}"), {"worker_calls": 2}, {}),
    "loop": (lambda text: look("Oslo"), {}, {"repeats": 2}),
    "format": (lambda text: "no action", {}, {"format_errors": 2}),
    "context": (lambda text: look("Oslo " * 20), {}, {"context_tokens": 300}),
}


@pytest.mark.parametrize("reason", FAILING)
def test_a_failing_worker_returns_a_message(chat, toolbox, reason):
    worker, options, limits = FAILING[reason]
    limits = Limits(**{**vars(WIDE), **limits})
    engine = TextEngine(chat, both(lambda text: plan(text, PARTS[:1]), worker))
    done = run(engine, toolbox, chat, limits, **options)
    assert done.termination is Termination.ANSWERED and done.answer == NO_ANSWER[reason]
    result = done.tool_results[-1]
    assert (result.tool, result.ok, result.error) == ("delegate", False, reason)
    assert done.metadata["roles"] == ["planner", "worker"]
    assert len(split_contexts(done)) == 2
    if reason == "calls":
        assert len(done.tool_results) == 2 + 1


def test_a_cut_turn_ends_the_worker_or_the_planners_rollout(chat, toolbox):
    end = turn(render_answer("end"))
    done = run(ScriptedTurns(chat, [delegate(PARTS[0]), None, end]), toolbox, chat)
    assert done.answer == "end" and done.tool_results[-1].text == NO_ANSWER["length"]
    done = run(ScriptedTurns(chat, [None, end]), toolbox, chat)
    assert done.answer is None and done.termination is Termination.LENGTH


def test_the_calls_of_all_workers_are_limited(chat, toolbox):
    limits = Limits(**{**vars(WIDE), "calls": 3})
    done = run(TextEngine(chat, both()), toolbox, chat, limits)
    # search, delegate, search; then the planner reads the second answer and may still answer
    assert done.termination is Termination.ANSWERED and len(done.tool_results) == 4
    limits = Limits(**{**vars(WIDE), "calls": 2})
    done = run(TextEngine(chat, both()), toolbox, chat, limits)
    assert done.termination is Termination.TURNS and done.answer is None


def test_the_forced_answer_is_the_planners(chat, toolbox):
    """The token limit is reached in a worker's context."""

    def forced(text):
        return turn(render_answer("forced")) if LAST_CALL in text else plan(text)

    limits = Limits(**{**vars(WIDE), "turns": 2, "force_answer": True})
    engine = TextEngine(chat, both(forced))
    done = run(engine, toolbox, chat, limits)
    assert done.answer == "forced" and done.metadata["forced"] == "turns"
    assert PLANNER_MARK in engine.read[-1] and "cldr:" not in engine.read[-1]


def test_a_fault_in_a_worker_ends_the_rollout(chat):
    class Broken:
        def run(self, code):
            return SandboxResult("worker_died", "", "", None, 0.0, "standard")

    def compute(text):
        return turn(render_call("python", {"code": "print(1)"}))

    with Toolbox(load_world("tour"), Broken()) as toolbox:
        done = run(TextEngine(chat, both(worker=compute)), toolbox, chat)
    assert done.termination is Termination.ENV_FAULT and done.answer is None
    assert [result.env_fault for result in done.tool_results] == [True]


WRONG = {
    "another tool": (look("Oslo"), "no tool 'search'; tools: delegate."),
    "no question": (turn(render_call("delegate", {"query": "Oslo"})), "needs question, a string."),
    "empty": (delegate(" "), "question is empty."),
    "no action": ("nothing", "no tool call or answer."),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_of_the_planner_are_observations(chat, toolbox, name):
    said, expected = WRONG[name]

    def planner(text):
        return turn(render_answer("end")) if "<tool_response>" in text else said

    done = run(TextEngine(chat, both(planner)), toolbox, chat)
    assert done.answer == "end" and done.metadata["roles"] == ["planner"]
    (result,) = done.tool_results
    assert not result.ok and expected in result.text


def test_options_are_checked(chat, toolbox):
    with pytest.raises(ValueError, match="worker_calls=0"):
        run(TextEngine(chat, both()), toolbox, chat, worker_calls=0)
    endpoint = ChatEndpoint("http://127.0.0.1:1/v1", "any")
    engine = ApiEngine(endpoint, tools=[DELEGATE.function])
    with pytest.raises(ValueError, match="leave --native-tools out"):
        PlannerWorker(engine, toolbox)


def by_server(worker):
    """Return a server's model: a function of the messages, by role of the system prompt."""

    def say(messages):
        text = "\n".join(message["content"] for message in messages[1:])
        return plan(text) if "delegate" in messages[0]["content"] else worker(text)

    return say


def test_a_server_gets_different_tools_by_role(toolbox):
    limits = Limits(**{**vars(WIDE), "format_help": FORMAT_HELP})
    with Scripted(by_server(work)) as server:
        server.keep = True
        engine = ApiEngine(ChatEndpoint(server.url, server.model))
        done = run(engine, toolbox, None, limits, system=research_prompt(toolbox.schemas))
    assert done.answer == "Norwegian Krone"
    for body in server.bodies:
        system, *rest = body["messages"]
        lines = system["content"].partition("<tools>\n")[2].partition("\n</tools>")[0]
        names = [json.loads(line)["name"] for line in lines.splitlines()]
        is_planner = PLANNER_MARK in rest[0]["content"]
        assert names == (["delegate"] if is_planner else [*toolbox.tools])
        assert is_planner or QUESTION not in json.dumps(rest)


def test_a_server_that_refuses_a_long_worker_ends_the_worker_only(toolbox):
    refused = by_server(lambda text: None if "<tool_response>" in text else work(text))
    with Scripted(refused) as server:
        engine = ApiEngine(ChatEndpoint(server.url, server.model))
        done = run(engine, toolbox, None, system=research_prompt(toolbox.schemas))
    assert done.answer == NO_ANSWER["context"]
