"""IterResearch, Heavy, ReSum, AgentFold and managed contexts: prompts and records.

The policy is a function of the text that it reads, so its only memory is its context.


Run: python -m pytest tests/test_agents_family.py
"""

import random
import re
from contextlib import nullcontext
from dataclasses import replace
from math import comb

import numpy as np
import pytest

from drlib.agents import Agent, AgentFold, Heavy, IterResearch, Limits, ManagedReAct, ReAct, ReSum
from drlib.agents.heavy import vote
from drlib.agents.managed_react import OMITTED
from drlib.agents.resum import GO_ON, drop_superseded, extract_facts, find_facts
from drlib.chat.prompts import SUMMARISE
from drlib.chat.tool_calls import render_answer, render_call
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Termination, load_trajectories, save_trajectories
from drlib.worlds import Entity, SmallWorld
from tests.agent_examples import TextEngine, tour_chat

LONG = 40  # hops of the long task
CHAIN = SmallWorld(
    [
        Entity(f"Town {n}", "town", {"next": f"Town {n + 1}", "tax": str(100 + n)})
        for n in range(LONG)
    ],
    "chain",
)
TASK = Task("long", "What do the towns after Town 0 pay in all?", "0", "search", CHAIN.version)
TOTAL = str(sum(range(100, 100 + LONG)))
WIDE = Limits(calls=300, turn_tokens=200, context_tokens=10**6)


chat = tour_chat


@pytest.fixture(scope="module")
def toolbox():
    with Toolbox(CHAIN, results=1) as toolbox:
        yield toolbox


def walker(text, report=False):
    """Visit one town after the other and add their taxes, as far as the context shows them.

    The running total is in its thought (`Town 3 100`: the sum before Town 3 is 100).
    """
    progress = re.findall(r"Town (\d+) pays after (\d+)\.", text.replace(" .", "."))
    town, total = max(((int(t), int(s)) for t, s in progress), default=(0, 0))
    seen = re.findall(rf"next Town {town + 1}\D+tax (\d+)", text)
    if seen:
        town, total = town + 1, total + int(seen[-1])
    thought = f"Town {town} pays after {total}."
    note = f"<report>{thought}</report>" if report else ""
    if town == LONG:
        return f"<think>{thought}</think>{note}{render_answer(str(total))}"
    call = render_call("search", {"query": [f"Town {town}"]})
    return f"<think>{thought}</think>{note}{call}"


def reporter(text):
    return walker(text, report=True)


def run(agent):
    (done,) = agent.run([TASK])
    return done


def test_custom_agent_is_one_generator(chat, toolbox):
    class Twice(Agent):
        """Answers, and reviews its answer in a second context."""

        def run_task(self, at):
            first = yield at.begin()
            context = at.begin(f"{at.task.question} You said: {first.action.text}")
            second = yield context
            return second.action.text

    engine = TextEngine(chat, lambda text: render_answer("yes" if "You said: no" in text else "no"))
    done = run(Twice(engine, toolbox, chat, WIDE))
    assert done.answer == "yes" and len(engine.read) == 2
    assert done.contexts.max() == 1 and done.turns.tolist() == sorted(done.turns.tolist())


def test_agent_without_a_turn_has_a_record(chat, toolbox):
    class Silent(Agent):
        def run_task(self, at):
            found = yield at.submit(lambda: "by heart")
            return found

    engine = TextEngine(chat, lambda text: "")
    done = run(Silent(engine, toolbox, chat, WIDE))
    assert (done.answer, len(done), engine.read) == ("by heart", 0, [])


def test_iter_research_reads_only_its_report(chat, toolbox, tmp_path):
    engine = TextEngine(chat, reporter)
    done = run(IterResearch(engine, toolbox, chat, WIDE))
    assert (done.answer, done.termination) == (TOTAL, Termination.ANSWERED)
    assert len(engine.read) == LONG + 1
    for number, text in enumerate(engine.read[2:], 2):
        assert f"Town {number - 1} pays after" in text, "the report"
        assert f"Town {number - 2} pays after" not in text, "an earlier thought"
        assert f"next Town {number - 1}\n" not in text, "an earlier observation"
        assert text.count("tax") == 1 and "<think>" not in text
    sizes = [len(chat.encode(text)) for text in engine.read]
    assert max(sizes[2:]) - min(sizes[2:]) < 12, "as long after forty rounds as after two"
    # the record: one context per round with its prompt, every sampled token once
    assert done.contexts.max() == LONG and done.metadata["report"].startswith(f"Town {LONG}")
    for number in (0, 7, LONG):
        ids = done.token_ids[done.contexts == number]
        assert chat.tokenizer.decode(ids, skip_special_tokens=False).startswith(engine.read[number])
    assert (np.diff(done.contexts.astype(int)) >= 0).all()
    save_trajectories(tmp_path / "t.parquet", [done])
    assert load_trajectories(tmp_path / "t.parquet") == [done]


def test_facts_missing_in_the_report_are_lost(chat, toolbox):
    def forgetful(text):
        return re.sub("<report>.*</report>", "<report>I work.</report>", reporter(text))

    few = Limits(calls=60, turn_tokens=200, context_tokens=10**6)
    done = run(IterResearch(TextEngine(chat, forgetful), toolbox, chat, few))
    assert done.termination is Termination.TURNS and done.answer is None


def test_iter_research_fits_where_react_overflows(chat, toolbox):
    def endless(text):
        n = len(re.findall("Town", text))
        call = render_call("search", {"query": [f"Town {n % LONG}"]})
        return f"<think>On.</think><report>Nothing yet.</report>{call}"

    limits = Limits(calls=199, turn_tokens=200, context_tokens=400)
    rounds = run(IterResearch(TextEngine(chat, endless), toolbox, chat, limits))
    assert rounds.termination is Termination.TURNS and len(rounds.tool_results) == 199
    sizes = np.bincount(rounds.contexts)
    assert len(sizes) == 200 and sizes.max() < 400
    whole = run(ReAct(TextEngine(chat, endless), toolbox, chat, limits))
    assert whole.termination is Termination.LENGTH and len(whole.tool_results) < 30


@pytest.mark.parametrize("window", [700, 1000])
def test_resum_finishes_where_react_overflows(chat, toolbox, window):
    limits = Limits(calls=60, turn_tokens=120, context_tokens=window)
    whole = run(ReAct(TextEngine(chat, walker), toolbox, chat, limits))
    assert whole.termination is Termination.LENGTH and whole.answer is None

    def last_thought(question, messages, before):
        said = [m["content"] for m in messages if m["role"] == "assistant"]
        read = [m["content"] for m in messages if m["role"] == "tool"]
        return said[-1].partition("</think>")[0].removeprefix("<think>") + " " + read[-1]

    engine = TextEngine(chat, walker)
    done = run(ReSum(engine, toolbox, chat, limits, summarise=last_thought))
    assert (done.answer, done.termination) == (TOTAL, Termination.ANSWERED)
    assert all(len(chat.encode(text)) <= window for text in engine.read)
    summaries = sum(m["content"].count("Summary of the work so far") for m in done.messages)
    assert summaries >= 2 and done.contexts.max() == summaries, "K summaries, K + 1 segments"
    said = chat.tokenizer.decode(done.token_ids[done.generated], skip_special_tokens=False)
    towns = [int(n) for n in re.findall(r"Town (\d+) pays after", said)]
    assert towns == list(range(LONG + 1)), "the segments' turns are the whole trajectory's"


def test_resum_policy_writes_its_own_summaries(chat, toolbox):
    """The summary is the last turn of the old context, after the observation that filled it."""
    limits = Limits(calls=60, turn_tokens=120, context_tokens=1500)

    def say(text):
        said = walker(text)
        thought = said.partition("</think>")[0].removeprefix("<think>")
        return f"<summary>{thought}</summary>" if text.count(SUMMARISE) else said

    engine = TextEngine(chat, say)
    done = run(ReSum(engine, toolbox, chat, limits, summarise=None))
    assert (done.answer, done.termination) == (TOTAL, Termination.ANSWERED)
    assert all(len(chat.encode(text)) <= 1500 for text in engine.read)
    written = [m["content"] for m in done.messages if "<summary>" in m["content"]]
    written = [text for text in written if text.startswith("<summary>")]
    assert done.contexts.max() == len(written) >= 2, "each begins another context"
    # the summaries are sampled turns, to be trained like the others
    said = chat.tokenizer.decode(done.token_ids[done.generated], skip_special_tokens=False)
    assert said.count("<summary>") == len(written)
    assert done.metadata["summary"] == written[-1].removeprefix("<summary>")[: -len("</summary>")]


def test_missing_summary_keeps_the_history(chat, toolbox):
    def say(text):
        last = text[text.rfind("user") :]
        return "Why?" if SUMMARISE in last else walker(text)

    engine = TextEngine(chat, say)
    done = run(ReSum(engine, toolbox, chat, WIDE, summarise=None, every=30))
    assert done.answer == TOTAL and done.contexts is None
    assert engine.read[-1].count(GO_ON) == LONG - 29


@pytest.mark.parametrize("broken", ["raises", "is empty"])
def test_failing_summariser_falls_back_to_react(chat, toolbox, broken):
    def failing_summariser(question, messages, before):
        if broken == "raises":
            raise ConnectionError("gone")
        return ""

    plain = run(ReAct(TextEngine(chat, walker), toolbox, chat, WIDE))
    expected = pytest.warns(UserWarning, match="gone") if broken == "raises" else nullcontext()
    with expected:
        done = run(
            ReSum(
                TextEngine(chat, walker), toolbox, chat, WIDE, summarise=failing_summariser, every=5
            )
        )
    assert done.token_ids.tolist() == plain.token_ids.tolist() and done.answer == TOTAL
    assert done.contexts is None


def test_old_observations_are_folded_and_turns_kept(chat, toolbox):
    engine = TextEngine(chat, walker)
    done = run(ManagedReAct(engine, toolbox, chat, WIDE, keep_recent=3))
    assert done.answer == TOTAL
    for number, text in enumerate(engine.read):
        assert text.count("tax") == min(number, 3)
        assert text.count(OMITTED) == max(number - 3, 0)
        assert text.count("pays after") == number
    plain = TextEngine(chat, walker)
    run(ReAct(plain, toolbox, chat, WIDE))
    assert len(engine.read[-1]) < len(plain.read[-1])
    # every turn is sampled, and so trained, once
    said = chat.tokenizer.decode(done.token_ids[done.generated], skip_special_tokens=False)
    assert said.count("pays after") == LONG + 1


def test_long_history_is_discarded(chat, toolbox):
    few = Limits(calls=20, turn_tokens=200, context_tokens=10**6)
    engine = TextEngine(chat, walker)
    agent = ManagedReAct(engine, toolbox, chat, few, keep_recent=None, discard_above=300)
    done = run(agent)
    assert done.termination is Termination.TURNS and done.contexts.max() >= 2
    sizes = [len(chat.encode(text)) for text in engine.read]
    assert max(sizes) <= 300 and sizes.count(sizes[0]) == done.contexts.max() + 1


@pytest.mark.parametrize("span", [2, 4])
def test_agentfold_reads_the_last_step_and_a_summary(chat, toolbox, span):
    engine = TextEngine(chat, walker)
    done = run(AgentFold(engine, toolbox, chat, WIDE, span=span))
    assert (done.answer, done.termination) == (TOTAL, Termination.ANSWERED)
    for number, text in enumerate(engine.read[2:], 2):
        assert text.count("tool_response>") == 2, "one observation in full"
        assert text.count("pays after") == 1, "one turn"
        assert f"next Town {number}\n" not in text.partition("<tool_call>")[0]
        assert text.count("next Town") <= span + 1, "a block each, and the last observation"
    sizes = [len(chat.encode(text)) for text in engine.read]
    assert max(sizes[span + 2 :]) - min(sizes[span + 2 :]) <= 12 * span, "bounded by the span"
    # forty steps, of which the last is not folded
    folds = done.metadata["folds"]
    assert [fold[0] for fold in folds[1:]] == [fold[1] + 1 for fold in folds[:-1]]
    assert folds[0][0] == 1 and folds[-1][1] == LONG - 1 and len(folds) <= span + 1
    assert done.metadata["consolidations"] >= (LONG - span) // span - 1
    # what a consolidated span says of the towns is the last of them
    first, last, text = folds[0]
    assert text == f"next Town {last}." and first < last, "no turn names the tax"
    # every turn is sampled, and so trained, once, in a context of its own
    said = chat.tokenizer.decode(done.token_ids[done.generated], skip_special_tokens=False)
    assert said.count("pays after") == LONG + 1 and done.contexts.max() == LONG - 1


def test_agentfold_policy_consolidates_in_a_turn(chat, toolbox):
    def say(text):
        thought = walker(text).partition("</think>")[0].removeprefix("<think>")
        return f"<summary>{thought}</summary>" if SUMMARISE in text else walker(text)

    engine = TextEngine(chat, say)
    done = run(AgentFold(engine, toolbox, chat, WIDE, span=3, summarise=None))
    assert done.answer == TOTAL
    asked = sum(SUMMARISE in text for text in engine.read)
    assert asked == done.metadata["consolidations"] >= 8
    after = [b for a, b in zip(engine.read, engine.read[1:]) if SUMMARISE in a]
    assert all("tool_response" not in text and "pays after" in text for text in after)


def test_agentfold_without_a_policy_summary_keeps_the_blocks(chat, toolbox):
    def say(text):
        return "Why?" if SUMMARISE in text else walker(text)

    few = Limits(calls=6, turn_tokens=200, context_tokens=10**6)
    engine = TextEngine(chat, say)
    done = run(AgentFold(engine, toolbox, chat, few, span=3, summarise=None))
    folds = done.metadata["folds"]
    assert [fold[:2] for fold in folds[:3]] == [[1, 1], [2, 2], [3, 3]]
    assert folds[2][2] == "next Town 3."
    with pytest.raises(ValueError, match="span=1"):
        AgentFold(engine, toolbox, chat, span=1)


def test_facts_are_relevant_clauses_without_superseded_ones():
    turn = {"role": "assistant", "content": "<think>Next the currency.</think>"}
    page = "1. [Oslo](x:Oslo)\ncountry Norway; area 480 km. The currency is Krone.\nIt rains."
    shown = {"role": "tool", "content": page}
    assert find_facts("In which country is Oslo?", [shown]) == ["country Norway"]
    found = find_facts("In which country is Oslo?", [turn, shown])
    assert found == ["country Norway", "The currency is Krone"], "the turn asks for it"
    assert find_facts("In which country is Oslo?", [turn, shown], found) == []
    before = "country Sweden; mayor Anna."
    text = extract_facts("In which country is Oslo?", [shown], before)
    assert text == "mayor Anna; country Norway." and extract_facts("Oslo?", [], "") == ""
    assert drop_superseded(["A is x", "B is y", "A is x"]) == ["A is x", "B is y"]


def test_heavy_merges_reports_and_answers_alone(chat, toolbox):
    def say(text):
        if "researchers have worked" in text:
            assert "tool_response" not in text and text.count("Its answer:") == 3
            return render_answer(re.findall(r"Its answer: (\d+)", text)[-1])
        return reporter(text)

    engine = TextEngine(chat, say)
    done = run(Heavy(engine, toolbox, chat, WIDE, n=3))
    assert done.answer == TOTAL and done.metadata["runs"]["answers"] == [TOTAL] * 3
    costs = done.metadata["runs"]["costs"]
    assert [cost["calls"] for cost in costs] == [LONG] * 3 and done.contexts is None
    assert engine.read[-1].count(f"Town {LONG} pays after") == 3
    assert sum("researchers have worked" in text for text in engine.read) == 1


def test_vote_takes_the_most_frequent_answer():
    assert vote(["a", "b", "B ", None]) == "b" and vote([None, None]) is None
    assert vote(["x", "y"]) == "x"


@pytest.mark.parametrize(("n", "right"), [(1, 0.6), (3, 0.6), (5, 0.6), (5, 0.3)])
def test_vote_accuracy_follows_the_binomial(chat, toolbox, n, right):
    rng = random.Random(n)

    def guess(text):
        return render_answer("0") if rng.random() < right else render_answer("no")

    tasks = [Task(f"t{i}", "How much?", "0", "search", "chain") for i in range(400)]
    agent = Heavy(TextEngine(chat, guess), toolbox, chat, WIDE, n=n, merge="vote")
    share = np.mean([done.answer == "0" for done in agent.run(tasks)])
    exact = sum(comb(n, k) * right**k * (1 - right) ** (n - k) for k in range(n // 2 + 1, n + 1))
    assert share == pytest.approx(exact, abs=3 * (exact * (1 - exact) / 400) ** 0.5)


def test_heavy_vote_over_one_run_equals_that_run(chat, toolbox):
    alone = run(IterResearch(TextEngine(chat, reporter), toolbox, chat, WIDE))
    voted = run(Heavy(TextEngine(chat, reporter), toolbox, chat, WIDE, n=1, merge="vote"))
    assert voted.token_ids.tolist() == alone.token_ids.tolist() and voted.answer == alone.answer
    with pytest.raises(ValueError, match="n=0"):
        Heavy(TextEngine(chat, reporter), toolbox, chat, n=0)


def test_shared_runs_are_sampled_once_per_question(chat, toolbox):
    asked = []

    def say(text):
        asked.append("researchers have worked" in text)
        return render_answer("yes")

    tasks = [replace(TASK, id=str(i)) for i in range(2)]
    engine = TextEngine(chat, say)
    done = Heavy(engine, toolbox, chat, WIDE, n=3, shared=True).run(tasks, samples=4)
    assert asked == [False] * 6 + [True] * 8
    assert len(done) == 8 and len({one.id for one in done}) == 8
    assert all(one.metadata["runs"]["answers"] == ["yes"] * 3 for one in done)
    asked.clear()
    Heavy(engine, toolbox, chat, WIDE, n=3).run(tasks, samples=4)
    assert asked == [False] * 24 + [True] * 8
