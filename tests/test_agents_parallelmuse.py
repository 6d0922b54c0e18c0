"""ParallelMuse: ranking of steps by hand, prefixes of branches, and saved tokens.

Run: python -m pytest tests/test_agents_parallelmuse.py
"""

import numpy as np
import pytest

from drlib.agents import Limits, ParallelMuse, ReAct
from drlib.agents.parallelmuse import PartialRollouts, rank_steps
from drlib.agents.rollout_state import count_costs
from drlib.chat.tool_calls import render_answer, render_call
from drlib.config import ROOT
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy
from drlib.models.scripted_engine import ScriptedEngine
from drlib.questions.chains import chain_questions
from drlib.task import Task
from drlib.trajectory import Segment
from tests.agent_examples import TextEngine, make_trajectory, tour_chat, tour_toolbox

chat = tour_chat
toolbox = tour_toolbox
TASK = Task("t", "What is the currency of Norway?", "Norwegian Krone", "search", "")
WIDE = Limits(calls=9, turn_tokens=100, context_tokens=10**5)
PLACES = ("Norway", "Sweden", "Finland")


def say(text):
    """Search for three places, then answer; the merger takes the first answer."""
    if "researchers have worked" in text:
        return render_answer("merged")
    done = text.count("</tool_response>")
    if done == len(PLACES):
        return f"<think>There.</think>{render_answer('Krone')}"
    return f"<think>Look.</think>{render_call('search', {'query': [PLACES[done]]})}"


def rate(turn):
    """Be unsure of the second call."""
    return -2.0 if "Sweden" in turn else -0.1


def test_steps_are_ranked_by_the_perplexity_of_their_region():
    think, call, answer = Segment.THINK, Segment.TOOL_CALL, Segment.ANSWER
    run = make_trajectory(
        generated=[False, True, True, True, True, True, True],
        turns=[0, 0, 0, 1, 1, 1, 2],
        segments=[Segment.PROMPT, think, call, think, call, call, answer],
        logprobs=[0, -2.0, -0.1, -0.5, -0.2, -0.6, -3.0],
    )
    # calls: 0.1 and the mean of 0.2 and 0.6; the answer has none
    assert rank_steps(run, "call") == [1, 0] and rank_steps(run, "thought") == [0, 1]
    assert sorted(rank_steps(run, "random")) == [0, 1, 2]
    assert rank_steps(run, "random") == rank_steps(run, "random")
    empty = make_trajectory(generated=[False], turns=[0], segments=[0], logprobs=[0])
    assert rank_steps(empty, "call") == []


def test_branches_reuse_the_prefix(chat, toolbox):
    engine = TextEngine(chat, say, rate)
    runs = PartialRollouts(engine, toolbox, chat, WIDE, n=3).run([TASK], samples=3)
    first, uncertain, second = runs
    assert [run.id for run in runs] == ["0-0-0", "0-0-1", "0-0-2"]
    assert "prefix" not in first.metadata and uncertain.metadata["prefix"]["step"] == 1
    start = uncertain.metadata["prefix"]["read"]
    assert engine.read[4] == engine.read[1], "the branch reads what the first had read"
    assert uncertain.token_ids[:start].tolist() == first.token_ids[:start].tolist()
    assert not uncertain.generated[:start].any()
    # the policy decides as before, so the records are equal but for who sampled the prefix
    assert uncertain.token_ids.tolist() == first.token_ids.tolist()
    prefix = uncertain.metadata["prefix"]
    assert prefix["sampled"] == first.generated.sum() - uncertain.generated.sum() > 0
    assert prefix["calls"] == 1 and len(uncertain.tool_results) == 3
    assert [m["content"] for m in uncertain.messages] == [m["content"] for m in first.messages]
    assert count_costs(uncertain)["calls"] == 2
    # the other calls are equally certain: the first of them, which has nothing before it
    assert "prefix" not in second.metadata and second.generated.sum() == first.generated.sum()


def test_limits_count_the_calls_of_the_prefix(chat, toolbox):
    limits = Limits(calls=2, turn_tokens=100, context_tokens=10**5)
    engine = TextEngine(chat, say, rate)
    runs = PartialRollouts(engine, toolbox, chat, limits, n=2).run([TASK], samples=2)
    assert [len(run.tool_results) for run in runs] == [2, 2]


def test_reports_are_merged_and_savings_counted(chat, toolbox):
    engine = TextEngine(chat, say, rate)
    (done,) = ParallelMuse(engine, toolbox, chat, WIDE, n=2).run([TASK])
    assert done.answer == "merged" and done.metadata["runs"]["answers"] == ["Krone"] * 2
    prompt = engine.read[-1]
    assert prompt.count("Report ") == prompt.count("currency Euro;") == 2, "the last fact of each"
    assert "tool_response" not in prompt
    engine = TextEngine(chat, say, rate)
    (whole,) = ParallelMuse(engine, toolbox, chat, WIDE, n=2, by="full").run([TASK])
    saved = done.metadata["runs"]["saved"]
    costs, others = count_costs(done), count_costs(whole)
    assert saved == {name: others[name] - costs[name] for name in ("sampled", "calls")}
    assert saved["sampled"] > 0 and saved["calls"] == 1 and "saved" not in whole.metadata["runs"]


def test_full_rollouts_are_those_of_react(chat, toolbox):
    policy, _ = load_policy(ROOT / "figures/reference/tour/policy_sft")
    engine = LocalEngine(policy.eval(), max_context=448, lockstep=True)
    tasks = chain_questions(toolbox.world, 3, 5, "test", "search", results=2, at_least=1)
    alone = ReAct(engine, toolbox, chat).run(tasks, samples=2, seed=3)
    agent = PartialRollouts(engine, toolbox, chat, n=2, by="full")
    whole = agent.run(tasks, samples=2, seed=3)
    assert [r.token_ids.tolist() for r in whole] == [r.token_ids.tolist() for r in alone]
    for by in ("call", "thought", "random"):
        agent = PartialRollouts(engine, toolbox, chat, n=2, by=by)
        for _ in range(2):  # what an earlier run has branched at does not matter
            runs = agent.run(tasks, samples=2, seed=3)
            for first, branch, same in zip(runs[::2], runs[1::2], alone[::2]):
                assert first.token_ids.tolist() == same.token_ids.tolist()
                end = branch.metadata.get("prefix", {}).get("read", 0)
                assert branch.token_ids[:end].tolist() == first.token_ids[:end].tolist()
                assert np.isfinite(branch.logprobs).all() and branch.generated[end:].any()


def test_engines_and_tasks_without_branches_are_refused(chat, toolbox):
    with pytest.raises(ValueError, match="log-probabilities"):
        ParallelMuse(ScriptedEngine(str), toolbox)
    engine = TextEngine(chat, say)
    with pytest.raises(ValueError, match="greedy branches"):
        ParallelMuse(engine, toolbox, chat).run([TASK], temperature=0)
    with pytest.raises(ValueError, match="with an environment"):
        ParallelMuse(engine, toolbox, chat).run([Task("e", "?", "", "swe", "", environment="{}")])
    with pytest.raises(ValueError, match="by='luck'"):
        ParallelMuse(engine, toolbox, chat, by="luck")
