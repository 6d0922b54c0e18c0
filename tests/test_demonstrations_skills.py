"""Skill samples for agents with limited context, compared with those agents' real prompts.

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
def played(tour, toolbox):
    """A trail of five pages as the oracle walks it with the real tools, and its world."""
    task, world = make_trail(3, Names.from_world(tour), 5)
    return Oracle().play(task, toolbox, random.Random(1), world), world


def contexts_of_run(agent, task, worlds):
    """The ids of each context that an agent's policy spoke in."""
    (done,) = agent.run([task], worlds=worlds)
    assert is_correct(done.answer, task)
    return [context.token_ids.tolist() for context in split_contexts(done)]


def assistant(conversations):
    return [m["content"] for some in conversations for m in some if m["role"] == "assistant"]


def ended(ids, chat):
    """With the end of the turn, which a rollout leaves to the environment."""
    return ids if ids[-1] == chat.end_id else [*ids, chat.end_id]


def test_a_taught_round_has_the_ids_that_iterresearch_shows(played, chat, toolbox):
    episode, world = played
    taught = rounds(episode)
    agent = IterResearch(ScriptedTurns(chat, assistant(taught)), toolbox, chat, WIDE)
    seen = contexts_of_run(agent, episode.task, {world.version: world})
    samples = [episode_sample(conversation, chat) for conversation in taught]
    assert len(samples) == 6
    assert [[*sample.ids] for sample in samples] == [ended(ids, chat) for ids in seen]
    for sample, conversation in zip(samples, taught):
        lost = [token for token, counts in zip(sample.ids, sample.loss) if counts]
        assert lost == [*chat.encode(conversation[-1]["content"]), chat.end_id]


@pytest.mark.parametrize(("every", "cuts"), [(2, [2, 4]), (5, [5]), (9, [])])
def test_a_taught_summary_has_the_ids_that_resum_shows(played, chat, toolbox, every, cuts):
    episode, world = played
    taught = resumed(episode, cuts)
    assert len(taught) == len(cuts) + 1
    lines = ScriptedTurns(chat, assistant(taught))
    agent = ReSum(lines, toolbox, chat, WIDE, summarise=None, every=every)
    seen = contexts_of_run(agent, episode.task, {world.version: world})
    samples = [episode_sample(conversation, chat) for conversation in taught]
    assert [[*sample.ids] for sample in samples] == [ended(ids, chat) for ids in seen]


@pytest.mark.parametrize("cut", [1, 2, 3, 4, 5])
def test_a_summary_holds_what_was_read_last(played, cut):
    episode, _ = played
    first, second = resumed(episode, [cut])
    asked = [result.arguments["query"][0] for result in episode.tool_results]
    after = [*asked, "nowhere"][cut]
    assert f"next {after}.</summary>" in first[-1]["content"]
    assert second[0]["content"].endswith(f"next {after}.") and len(second) == 2 * (5 - cut) + 2


def test_a_report_keeps_one_value_of_a_relation_and_does_not_grow(tour):
    task, world = make_trail(0, Names.from_world(tour), 60)
    with Toolbox(world, results=2) as tools:
        episode = Oracle().play(task, tools, random.Random(0), world)
    reports = [report_text(known) for known in episode.known_before]
    assert reports[0] == "treasure none yet." and report_text({}) == NOTHING
    assert max(map(len, reports)) < 80
    assert all(text.startswith("treasure ") and "; next " in text for text in reports[1:])


def test_the_merger_is_taught_what_heavy_shows_it(tour, toolbox):
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


class Real:
    """The real tools in the place of invented ones."""

    def __init__(self, world, toolbox):
        self.world, self._toolbox = world, toolbox

    def call(self, name, arguments, *, world):
        return self._toolbox.call(name, arguments, world=world)


def test_a_searcher_is_taught_what_s3_shows_and_gathers_what_its_generator_needs(
    tour, toolbox, chat
):
    beyond = 0
    for task in chain_questions(tour, 30, 11, "train"):
        taught = gathered(task, Real(tour, toolbox))
        lines = ScriptedTurns(chat, assistant([taught]))
        agent = S3(lines, toolbox, chat, WIDE, generate=answer_from_facts, rounds=4)
        (done,) = agent.run([task])
        assert is_correct(done.answer, task)
        beyond += not is_correct(done.metadata["rag_answer"], task)
        assert len(done.metadata["documents"]) == task.hops
        assert [*episode_sample(taught, chat).ids] == ended(done.token_ids.tolist(), chat)
    assert beyond > 10, "for many of them the question's own results do not suffice"


def test_the_reader_follows_facts_and_never_guesses(tour):
    pages = {title: split_facts(snippet(entity)) for title, entity in tour.entities.items()}
    for task in chain_questions(tour, 60, 5, "train"):
        assert answer_chain(task.question, pages) == task.answer
        without = {title: facts for title, facts in pages.items() if title != task.start}
        assert answer_chain(task.question, without) is None
    assert answer_chain("What is 2 times 3?", pages) is None
    assert answer_chain("Who is king?", pages) is None


def test_pre_training_has_all_skills_and_no_answer(tour, chat):
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


def test_the_work_of_others_is_merged_and_gathered_with_right_answers_only(tour, chat):
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
