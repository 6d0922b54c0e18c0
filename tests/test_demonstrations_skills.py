"""Skill samples for agents with limited context, compared with the real prompts of those agents.

Run: python -m pytest tests/test_demonstrations_skills.py
"""

import random
from types import SimpleNamespace

import pytest

from drlib.agents import S3, IterResearch, Limits, ReSum
from drlib.agents.heavy import synthesis_prompt
from drlib.agents.s3 import answer_from_facts
from drlib.demonstrations.actions import episode_sample
from drlib.demonstrations.oracle import Oracle
from drlib.demonstrations.skills import (
    MAX_TOKENS,
    NOTHING,
    SkillData,
    gathered,
    merged,
    report_text,
    resumed,
    rounds,
)
from drlib.questions.chains import chain_questions, make_trail
from drlib.questions.search_plan import answer_chain, split_facts
from drlib.task import is_correct
from drlib.tools import Toolbox
from drlib.training.rollouts import split_contexts
from drlib.worlds import Names
from drlib.worlds.small import snippet
from tests.agent_examples import ScriptedTurns, tour_chat, tour_toolbox, tour_world

WIDE = Limits(calls=20, turn_tokens=500, context_tokens=5000)

tour = tour_world
chat = tour_chat
toolbox = tour_toolbox


@pytest.fixture(scope="module")
def episode_and_world(tour, toolbox):
    """Return the oracle's episode on a trail of five pages with real tools, and its world."""
    task, world = make_trail(3, Names.from_world(tour), 5)
    return Oracle().play(task, toolbox, random.Random(1), world), world


def context_ids_of_run(agent, task, worlds):
    """Return the ids of each context of the agent's run."""
    (done,) = agent.run([task], worlds=worlds)
    assert is_correct(done.answer, task)
    return [context.token_ids.tolist() for context in split_contexts(done)]


def assistant(conversations):
    return [
        m["content"]
        for conversation in conversations
        for m in conversation
        if m["role"] == "assistant"
    ]


def with_end_token(ids, chat):
    """Return ids with the end token, which a rollout leaves to the environment."""
    return ids if ids[-1] == chat.end_id else [*ids, chat.end_id]


def test_round_samples_match_iterresearch_contexts(episode_and_world, chat, toolbox):
    episode, world = episode_and_world
    taught = rounds(episode)
    agent = IterResearch(ScriptedTurns(chat, assistant(taught)), toolbox, chat, WIDE)
    seen = context_ids_of_run(agent, episode.task, {world.version: world})
    samples = [episode_sample(conversation, chat) for conversation in taught]
    assert len(samples) == 6
    assert [[*sample.ids] for sample in samples] == [with_end_token(ids, chat) for ids in seen]
    for sample, conversation in zip(samples, taught):
        loss_ids = [token for token, counts in zip(sample.ids, sample.loss) if counts]
        assert loss_ids == [*chat.encode(conversation[-1]["content"]), chat.end_id]


@pytest.mark.parametrize(("every", "cuts"), [(2, [2, 4]), (5, [5]), (9, [])])
def test_summary_samples_match_resum_contexts(episode_and_world, chat, toolbox, every, cuts):
    episode, world = episode_and_world
    taught = resumed(episode, cuts)
    assert len(taught) == len(cuts) + 1
    scripted = ScriptedTurns(chat, assistant(taught))
    agent = ReSum(scripted, toolbox, chat, WIDE, summarise=None, every=every)
    seen = context_ids_of_run(agent, episode.task, {world.version: world})
    samples = [episode_sample(conversation, chat) for conversation in taught]
    assert [[*sample.ids] for sample in samples] == [with_end_token(ids, chat) for ids in seen]


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_summary_contains_the_last_observation(episode_and_world, cut):
    episode, _ = episode_and_world
    first, second = resumed(episode, [cut])
    queries = [result.arguments["query"][0] for result in episode.tool_results]
    after = [*queries, "nowhere"][cut]
    assert f"next {after}.</summary>" in first[-1]["content"]
    assert second[0]["content"].endswith(f"next {after}.") and len(second) == 2 * (5 - cut) + 2


def test_report_size_stays_constant(tour):
    task, world = make_trail(0, Names.from_world(tour), 60)
    with Toolbox(world, results=2) as tools:
        episode = Oracle().play(task, tools, random.Random(0), world)
    reports = [report_text(known) for known in episode.known_before]
    assert reports[0] == "treasure none yet." and report_text({}) == NOTHING
    assert max(map(len, reports)) < 80
    assert all(text.startswith("treasure ") and "; next " in text for text in reports[1:])


def test_merge_samples_match_the_heavy_prompt(tour, toolbox):
    (task,) = chain_questions(tour, 1, 3, "train")
    runs = [Oracle().play(task, toolbox, random.Random(i)) for i in range(3)]
    runs[1].known_before[-1], runs[1].answer = {}, None
    shown, said = merged(runs)
    reports = [report_text(run.known_before[-1]) for run in runs]
    as_heavy = [
        SimpleNamespace(metadata={"report": report}, answer=run.answer)
        for report, run in zip(reports, runs)
    ]
    assert shown["content"] == synthesis_prompt(task.question, as_heavy)
    assert reports[1] == NOTHING and "Its answer: none" in shown["content"]
    assert said["content"].endswith(f"<answer>{task.answer}</answer>")


class RealTools:
    """The real tools with the interface of simulated ones."""

    def __init__(self, world, toolbox):
        self.world, self._toolbox = world, toolbox

    def call(self, name, arguments, *, world):
        return self._toolbox.call(name, arguments, world=world)


def test_search_samples_match_s3_contexts(tour, toolbox, chat):
    beyond = 0
    for task in chain_questions(tour, 30, 11, "train"):
        taught = gathered(task, RealTools(tour, toolbox))
        scripted = ScriptedTurns(chat, assistant([taught]))
        agent = S3(scripted, toolbox, chat, WIDE, generate=answer_from_facts, rounds=4)
        (done,) = agent.run([task])
        assert is_correct(done.answer, task)
        beyond += not is_correct(done.metadata["rag_answer"], task)
        assert len(done.metadata["documents"]) == task.hops
        assert [*episode_sample(taught, chat).ids] == with_end_token(done.token_ids.tolist(), chat)
    assert beyond > 10, "for many of them the question's own results do not suffice"


def test_reader_follows_facts_without_guessing(tour):
    pages = {title: split_facts(snippet(entity)) for title, entity in tour.entities.items()}
    for task in chain_questions(tour, 60, 5, "train"):
        assert answer_chain(task.question, pages) == task.answer
        without = {title: facts for title, facts in pages.items() if title != task.start}
        assert answer_chain(task.question, without) is None
    assert answer_chain("What is 2 times 3?", pages) is None
    assert answer_chain("Who is king?", pages) is None


def test_pretraining_has_all_skills_and_no_answer(tour, chat):
    data = SkillData(Names.from_world(tour), chat, 2)
    stream = data.stream("a")
    samples = [next(stream) for _ in range(400)]
    texts = [chat.tokenizer.decode(sample.ids) for sample in samples]
    assert not any("<answer>" in text for text in texts)
    assert max(map(len, samples)) <= MAX_TOKENS and max(map(len, samples)) > 500
    for mark in ("<report>", "<summary>", "Summary of the work", "Its answer:", "<query>"):
        assert sum(mark in text for text in texts) > 4, mark
    again = data.stream("a")
    assert [next(again) for _ in range(20)] == samples[:20]
    assert next(data.stream("b")) != samples[0]


def test_merged_and_gathered_samples_are_correct(tour, chat):
    stream = SkillData(Names.from_world(tour), chat, 2).of_others("a")
    texts = [chat.tokenizer.decode(next(stream).ids) for _ in range(80)]
    merges = [text for text in texts if "Its answer:" in text]
    searches = [text for text in texts if "<search_complete><|im_end|>" in text]
    assert len(merges) + len(searches) == 80 and min(len(merges), len(searches)) > 15
    wrong = 0
    for text in merges:
        said = text.rpartition("<answer>")[2].partition("</answer>")[0]
        given = [line[12:] for line in text.splitlines() if line.startswith("Its answer: ")]
        assert said in given
        wrong += any(answer != said for answer in given)
    assert wrong > len(merges) / 2
