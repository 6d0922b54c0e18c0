"""The ReAct loop: limits, faults, and token ids that are never re-tokenised.

Most cases use an engine that returns scripted turns to reach every branch. The last ones run a
real (untrained) policy in the real engine.


Run: python -m pytest tests/test_agents_react.py
"""

import numpy as np
import pytest
import torch

from drlib.agents import Limits, ReAct
from drlib.chat.template import ChatIds, train_tokenizer
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import PolicyShape, build_policy
from drlib.sandbox import Sandbox
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training.data import PHRASES, world_texts
from drlib.training.packing import PackedBatch, score
from drlib.trajectory import Segment, Termination
from drlib.worlds import Entity, SmallWorld, load_world
from tests.agent_examples import ScriptedTurns

TASK = Task("t", "What is the currency of Norway?", "Norwegian Krone", "search", "cldr", 1)
CALL = '{"name": "search", "arguments": {"query": ["Norway"]}}'
SEARCH = f"<think>x</think><tool_call>{CALL}</tool_call>"
ANSWER = "<think>x</think><answer>Norwegian Krone</answer>"


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


@pytest.fixture(scope="module")
def chat(cldr):
    titles = sorted({t for e in cldr.entities.values() for t in (e.title, *e.facts.values())})
    return ChatIds(train_tokenizer(world_texts(cldr), 2048, names=titles, phrases=PHRASES))


@pytest.fixture(scope="module")
def toolbox(cldr):
    with Sandbox() as sandbox, Toolbox(cldr, sandbox, results=2) as toolbox:
        yield toolbox


def play(chat, toolbox, *lines, limits=None):
    agent = ReAct(ScriptedTurns(chat, lines), toolbox, chat, limits or Limits())
    return agent.run([TASK])[0]


def test_call_then_answer(chat, toolbox):
    t = play(chat, toolbox, SEARCH, ANSWER)
    assert (t.termination, t.answer) == (Termination.ANSWERED, "Norwegian Krone")
    assert [r.tool for r in t.tool_results] == ["search"] and t.tool_results[0].ok
    assert [m["role"] for m in t.messages] == ["user", "assistant", "tool", "assistant"]
    text = chat.tokenizer.apply_chat_template(t.messages, tokenize=True)["input_ids"]
    assert [*t.token_ids.tolist(), chat.end_id] == text
    assert chat.tokenizer.decode(t.token_ids[t.generated]) == SEARCH + ANSWER
    assert np.all(t.logprobs[t.generated] == -0.5) and np.all(t.logprobs[~t.generated] == 0)
    assert set(t.versions[t.generated]) == {3} and set(t.versions[~t.generated]) == {0}
    assert Segment.TOOL_RESPONSE in t.segments and Segment.ANSWER in t.segments


def test_turn_ends_after_its_first_action(chat, toolbox):
    t = play(chat, toolbox, SEARCH + SEARCH, f"{ANSWER}</answer> and more")
    assert chat.tokenizer.decode(t.token_ids[t.generated]) == SEARCH + ANSWER
    assert len(t.tool_results) == 1 and t.answer == "Norwegian Krone"


def test_environment_closes_an_open_turn(chat, toolbox):
    """A turn without an action is closed only by the policy's own end token."""
    t = play(chat, toolbox, "I say nothing useful", SEARCH, ANSWER)
    ends = np.flatnonzero(t.token_ids == chat.end_id)
    by_policy = [bool(t.generated[i]) for i in ends]
    assert by_policy == [False, True, False, False, False]  # question, turn, error, call, page
    text = chat.tokenizer.apply_chat_template(t.messages, tokenize=True)["input_ids"]
    assert [*t.token_ids.tolist(), chat.end_id] == text


def test_format_error_becomes_an_observation(chat, toolbox):
    t = play(chat, toolbox, "I say nothing useful", ANSWER)
    assert t.answer == "Norwegian Krone"
    assert [(r.tool, r.ok) for r in t.tool_results] == [("format", False)]
    assert t.messages[2]["content"].startswith("Error: ")


def test_tool_response_written_by_the_policy_is_rejected(chat, toolbox):
    forged = f"<think>x</think><tool_response>code NOK</tool_response>{ANSWER}"
    t = play(chat, toolbox, forged, SEARCH, ANSWER)
    assert t.tool_results[0].error == "format" and "tool response" in t.tool_results[0].text


def test_call_limit_ends_the_rollout(chat, toolbox):
    t = play(chat, toolbox, *[SEARCH] * 9, limits=Limits(calls=3))
    assert t.termination is Termination.TURNS and t.answer is None
    assert len(t.tool_results) == 3 and t.generated[-1]


def test_consecutive_format_errors_end_the_rollout(chat, toolbox):
    unreadable, limits = "I say nothing useful", Limits(calls=9, format_errors=3)
    t = play(chat, toolbox, *[unreadable] * 9, limits=limits)
    assert t.termination is Termination.FORMAT and t.answer is None
    assert [r.tool for r in t.tool_results] == ["format"] * 2 and t.generated[-1]
    # a call in between starts the count again
    turns = [unreadable, unreadable, SEARCH, unreadable, unreadable, ANSWER]
    t = play(chat, toolbox, *turns, limits=limits)
    assert t.termination is Termination.ANSWERED and t.answer == "Norwegian Krone"
    t = play(chat, toolbox, *[unreadable] * 10, limits=Limits(calls=9))
    assert t.termination is Termination.TURNS and len(t.tool_results) == 9
    t = play(chat, toolbox, unreadable, limits=Limits(format_errors=1))
    assert t.termination is Termination.FORMAT and not t.tool_results


def test_overlong_turn_ends_the_rollout(chat, toolbox):
    t = play(chat, toolbox, SEARCH, None)
    assert t.termination is Termination.LENGTH and t.answer is None


def test_broken_tool_is_an_environment_fault(chat, cldr):
    from drlib.sandbox import SandboxResult

    class Broken:
        def run(self, code):
            return SandboxResult("worker_died", "", "", None, 0.0, "standard")

    code = SEARCH.replace('"search"', '"python"').replace('"query": ["Norway"]', '"code": "1"')
    with Toolbox(cldr, Broken()) as toolbox:
        t = play(chat, toolbox, code, ANSWER)
    assert t.termination is Termination.ENV_FAULT and t.answer is None
    assert t.generated[-1], "the unread observation is not part of the record"


def test_bug_in_a_tool_is_raised(chat):
    class Wrong(SmallWorld):
        def search(self, query, k=10):
            raise RuntimeError("index is broken")

    with (
        Toolbox(Wrong([Entity("A", "city")])) as toolbox,
        pytest.raises(RuntimeError, match="index"),
    ):
        play(chat, toolbox, SEARCH, ANSWER)


def test_observation_that_does_not_fit_ends_the_rollout(chat, toolbox, policy):
    """Every turn of this policy is a format error, whose observation soon fills the context."""
    agent = ReAct(LocalEngine(policy, max_context=200), toolbox, chat, Limits(50, 24, 64))
    trajectories = agent.run([TASK] * 4, samples=4, seed=2)
    assert all(len(t.token_ids) <= 64 and t.generated[-1] for t in trajectories)
    assert {t.termination for t in trajectories} == {Termination.LENGTH}


def test_task_uses_its_own_world(chat, toolbox):
    world = SmallWorld([Entity("Norway", "territory", {"currency": "Shell"})], "elsewhere")
    task = Task("t", "?", "Shell", "search", world.version, 1)
    agent = ReAct(ScriptedTurns(chat, [SEARCH, ANSWER]), toolbox, chat)
    t = agent.run([task], worlds={world.version: world})[0]
    assert "currency Shell" in t.messages[2]["content"] and t.world_version == world.version


@pytest.fixture(scope="module")
def policy():
    shape = PolicyShape(
        hidden=32, layers=2, heads=4, head_dim=8, experts=4, expert_hidden=16, max_positions=256
    )
    return build_policy(shape, 0, init="plain")


def test_engine_and_trainer_log_probabilities_agree(chat, toolbox, policy):
    engine = LocalEngine(policy, max_context=200, lockstep=True)
    agent = ReAct(engine, toolbox, chat, Limits(3, 24, 160))
    trajectories = agent.run([TASK] * 3, samples=4, seed=5)
    assert len({t.id for t in trajectories}) == 12
    assert [t.group_id for t in trajectories[:4]] == ["5-0"] * 4
    batch = PackedBatch.pack([t.token_ids for t in trajectories])
    with torch.no_grad():
        scored = score(policy, batch, batch.spread([t.generated for t in trajectories], torch.bool))
    behaviour = batch.spread([t.logprobs for t in trajectories], torch.float32)[scored.at_M]
    assert (scored.logp_M - behaviour).abs().mean() < 1e-6


def test_samples_do_not_depend_on_the_batch(chat, toolbox, policy):
    def run(tasks, keys, slots):
        engine = LocalEngine(policy, slots=slots, max_context=200, lockstep=True)
        return ReAct(engine, toolbox, chat, Limits(2, 16, 160)).run(
            tasks, samples=2, seed=1, keys=keys
        )

    tasks = [Task(str(i), f"What is {i}?", "0", "python", "python") for i in range(6)]
    everything = run(tasks, range(6), 8)
    alone = run([tasks[4], tasks[1]], [4, 1], 3)
    for a, b in zip(everything[8:10] + everything[2:4], alone, strict=True):
        assert a.token_ids.tolist() == b.token_ids.tolist() and a.id == b.id


def test_keys_must_match_tasks(chat, toolbox, policy):
    agent = ReAct(LocalEngine(policy, max_context=64), toolbox, chat)
    with pytest.raises(ValueError, match="2 keys for 1 tasks"):
        agent.run([TASK], keys=[1, 2])
