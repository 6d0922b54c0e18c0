"""Samples of skills beyond ReAct: reports, summaries, merged reports.

A policy with a limited context must write down what matters. Each of four skills is made from an
episode of a teacher whose findings are known at every turn (`Episode.known`):

    rounds    IterResearch: question, report, last action and observation -> the next of each
    resumed   ReSum: a context that ends in a summary, and one that starts with it
    merged    Heavy: the reports and answers of several researchers -> one answer
    gathered  s3: results -> the relevant ones, and the next search

A report lists the facts found, one per relation, so it does not grow with the rounds. Sources:
Tongyi DeepResearch (arXiv 2510.24701, section 1 on context management), ReSum (2509.13313), s3
(2505.14146).

Not implemented: reports in full sentences; summaries of more than the facts.
"""

import random
from collections.abc import Iterator, Mapping, Sequence

from drlib.chat.prompts import GATHER, RESUME, SUMMARISE, merge_prompt
from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import render_answer
from drlib.demonstrations.actions import InventedTools, Sample, episode_sample
from drlib.demonstrations.episodes import managed
from drlib.demonstrations.oracle import Demonstrator, DemonstratorFaults, Episode, Oracle
from drlib.questions.chains import SearchQuestions, make_python_task, make_trail
from drlib.questions.search_plan import parse_pages
from drlib.task import Task
from drlib.worlds import Names, SmallWorld, fictional_world
from drlib.worlds.fictional import invent_name

NOTHING = "nothing yet."
WEIGHED = "The reports support {answer}."
SKILLS = {"react": 0.2, "rounds": 0.4, "resumed": 0.25, "merged": 0.12, "gathered": 0.2}
GATHERED_SHARE = 0.6  # of the draws about the work of others; the rest are merged reports
QUESTIONS = 8  # of an invented world
MAX_HOPS = 2  # of a chain: the third look-up is left to reinforcement learning
TRAIL_SHARE = 0.6  # of the questions
TRAIL_PAGES = 12  # of a trail, at most; most are shorter, and
LONG_SHARE = 0.1  # are longer: so that a context of a thousand tokens has been seen
LONG_PAGES = 24
PYTHON_SHARE = 0.1
MAX_TOKENS = 1000  # of a sample
KEPT_RESULTS = 3  # results that s3's searcher may mark in a turn
RESEARCHERS = 16  # whose reports are merged, at most
# Researchers whose reports are to be weighed: what goes wrong with them shows in what they report.
FLAWED = DemonstratorFaults(guess=0.2, stop_early=0.3, bad_code=0.3, bad_query=0.2, loop=0.05)


def report_text(known: Mapping[str, str]) -> str:
    """Write known facts as a report or a summary: `territory Norway; currency Krone.`"""
    return "; ".join(f"{what} {value}" for what, value in known.items()) + "." if known else NOTHING


def rounds(episode: Episode) -> list[list[dict]]:
    """Return the conversation of each round of IterResearch; none without an answer."""
    if episode.answer is None:
        return []
    return managed(episode, [report_text(known) for known in episode.known_before])


def resumed(episode: Episode, cuts: Sequence[int]) -> list[list[dict]]:
    """Return the `len(cuts) + 1` contexts of ReSum: `cuts[0]` turns and a summary, then the turns
    up to `cuts[1]` after it, and so on.
    """
    question, *said = episode.messages
    contexts, opening, begun = [], question["content"], 0
    for cut in (*cuts, None):
        turns = said[2 * begun : None if cut is None else 2 * cut]
        context = [{"role": "user", "content": opening}, *turns]
        if cut is not None:
            summary = report_text(episode.known_before[cut])
            context += [
                {"role": "user", "content": SUMMARISE},
                {"role": "assistant", "content": f"<summary>{summary}</summary>"},
            ]
            opening = RESUME.format(question=question["content"], summary=summary)
            begun = cut
        contexts.append(context)
    return contexts


def merged(runs: Sequence[Episode]) -> list[dict]:
    """Return the merger's conversation: the reports on one question, and its answer."""
    task = runs[0].task
    reports = [(report_text(run.known_before[-1]), run.answer) for run in runs]
    said = f"<think>{WEIGHED.format(answer=task.answer)}</think>{render_answer(task.answer)}"
    return [
        {"role": "user", "content": merge_prompt(task.question, reports)},
        {"role": "assistant", "content": said},
    ]


def gathered(task: Task, tools: InventedTools) -> list[dict]:
    """Return the searcher's conversation on a chain: it marks the chain's pages and asks for the
    first one not yet seen.
    """
    wanted = [task.start, *(tools.world.follow(task.start, task.relations) or ())[:-1]]
    shown = tools.call("search", {"query": [task.question]}, world=None).text
    told = GATHER.format(question=task.question, information=shown, keep=KEPT_RESULTS)
    messages = [{"role": "user", "content": told}]
    while True:
        titles = [*parse_pages(shown)]
        marks = [n for n, title in enumerate(titles, 1) if title in wanted[:1]]
        wanted = [title for title in wanted if not (marks and title == wanted[0])]
        more = f"<query>{wanted[0]}</query>" if wanted else "<search_complete>"
        said = f"<important_info>{marks}</important_info>{more}"
        messages.append({"role": "assistant", "content": said})
        if not wanted:
            return messages
        shown = tools.call("search", {"query": [wanted[0]]}, world=None).text
        messages.append({"role": "tool", "content": shown})


class SkillData:
    """Infinite stream of skill samples in invented worlds, with names made from `names`."""

    def __init__(self, names: Names, chat: ChatIds, results: int):
        self.names = names
        self.chat = chat
        self.results = results

    def stream(self, seed: int | str) -> Iterator[Sample]:
        """Yield samples of all skills, without answers, for pre-training."""
        rng = random.Random(f"skills-{seed}")
        for task, world in self._questions(rng):
            skill = rng.choices(list(SKILLS), list(SKILLS.values()))[0]
            for conversation in self._conversations(skill, task, world, rng):
                yield from self._sample(_without_answer(conversation))

    def of_others(self, seed: int | str) -> Iterator[Sample]:
        """Yield samples of skills that no demonstration shows, merged reports and gathered pages,
        written by a teacher that has the answer.
        """
        rng = random.Random(f"others-{seed}")
        for task, world in self._questions(rng):
            skill = "gathered" if rng.random() < GATHERED_SHARE else "merged"
            for conversation in self._conversations(skill, task, world, rng):
                yield from self._sample(conversation)

    def _conversations(
        self, skill: str, task: Task, world: SmallWorld, rng: random.Random
    ) -> list[list[dict]]:
        """Return the conversations of one skill for one question, if the skill applies."""
        tools = InventedTools(task, world, self.results, rng)
        if skill == "gathered":
            return [gathered(task, tools)] if task.relations else []
        if skill == "merged":
            hand = Demonstrator(FLAWED, sorted(world.entities))
            runs = [hand.play(task, tools, rng) for _ in range(rng.randint(1, RESEARCHERS))]
            runs = [_misread(run, self.names, rng) for run in runs]
            return [merged(runs)] if any(run.correct for run in runs) else []
        return conversations(Oracle().play(task, tools, rng), skill, rng)

    def _sample(self, conversation: list[dict]) -> Iterator[Sample]:
        sample = episode_sample(conversation, self.chat)
        if len(sample) <= MAX_TOKENS:
            yield sample

    def _questions(self, rng: random.Random) -> Iterator[tuple[Task, SmallWorld]]:
        while True:
            world = fictional_world(rng.getrandbits(60), self.names)
            source = SearchQuestions(world, None, MAX_HOPS)
            for _ in range(QUESTIONS):
                drawn = rng.random()
                if drawn < TRAIL_SHARE:
                    yield make_trail(rng.getrandbits(60), self.names, _pages(rng))
                elif drawn < TRAIL_SHARE + PYTHON_SHARE:
                    yield make_python_task(rng), world
                else:
                    yield source.draw(rng.randint(1, MAX_HOPS), rng), world


def _pages(rng: random.Random) -> int:
    """Sample the number of pages of a trail: mostly few."""
    if rng.random() < LONG_SHARE:
        return rng.randint(TRAIL_PAGES, LONG_PAGES)
    return min(rng.randint(1, TRAIL_PAGES), rng.randint(1, TRAIL_PAGES))


def conversations(episode: Episode, skill: str, rng: random.Random) -> list[list[dict]]:
    """Return one or two conversations of an episode under a skill, as adjacent ones are similar."""
    if skill == "rounds":
        all_of_them = rounds(episode)
        return rng.sample(all_of_them, min(2, len(all_of_them)))
    if skill == "resumed" and episode.tool_results:
        calls = len(episode.tool_results)
        return resumed(episode, [rng.randint(1, calls)])
    return [episode.messages]


def _without_answer(conversation: list[dict]) -> list[dict]:
    """Return the conversation before its answer."""
    last = conversation[-1]
    opened, answers, _ = last["content"].partition("<answer>")
    return [*conversation[:-1], last | {"content": opened}] if answers else conversation


def _misread(run: Episode, names: Names, rng: random.Random) -> Episode:
    """Return the run, or with probability 1/2 one with a copying error in its last value, answer or
    both.
    """
    if rng.random() < 0.5:
        return run
    wrong = invent_name(rng, names, set())
    mistake = rng.choice(("report", "answer", "both"))
    if run.known and mistake != "answer":
        *_, last = run.known
        run.known_before[-1] = run.known_before[-1] | {last: wrong}
    if mistake != "report":
        run.answer = wrong
    return run
