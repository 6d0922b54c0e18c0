"""An oracle that solves every question through the tools, and an imperfect teacher.

`Oracle` reads only tool results, so it proves that a question can be solved. It is also the
error-free teacher of agentic pre-training. `Demonstrator` makes human errors at given rates; its
correct episodes are the cold start (rejection sampling).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from drlib.chat.tool_calls import render_answer, render_call
from drlib.questions.chains import END, NEXT_PAGE, NO_TREASURE, TREASURE
from drlib.questions.search_plan import find_value, parse_pages, plan_searches
from drlib.task import Task, is_correct
from drlib.trajectory import ToolResult, Trajectory
from drlib.worlds import World

CALLS_OF_A_LOOP = 6
# Thoughts: {r} is a relation, {v} its value.
FIRST = ("Look up the {r}.", "First the {r}.", "I need the {r}.")
NEXT = ("Now the {r}.", "Next the {r}.", "Then the {r}.")
LAST = ("The {r} is {v}.", "I have the {r}: {v}.")
HOLDER = ("What has this {r}?", "Find what has this {r}.")
FOUND = ("It is {v}.", "I have it: {v}.")
COMPUTE = ("Compute it.", "Run the numbers.", "Use python.")
COMPUTED = ("That is the result.", "The output is the answer.")
FOLLOW = "Follow the trail."
ONWARD = "On to the next."
AGAIN = ("That failed. Try again.", "An error. Fix it.")


class ToolCaller(Protocol):
    """Tools of an episode: a `Toolbox`, or simulated results."""

    def call(self, name: str, arguments: dict, *, world: World | None) -> ToolResult:
        """Run a tool and return its result."""


class Episode:
    """A rollout of a teacher: messages from the question on, tool results, and the answer or
    None.

    `known` holds the facts found so far, as a report would list them. `record` is the rollout that
    the episode was converted from, with the sampled ids.
    """

    def __init__(self, task: Task, toolbox: ToolCaller | None, world: World | None):
        self.task = task
        self._toolbox = toolbox
        self._world = world
        self.messages = [{"role": "user", "content": task.question}]
        self.tool_results: list[ToolResult] = []
        self.answer: str | None = None
        self.known: dict[str, str] = {}  # relation -> the value last found
        self.known_before: list[dict[str, str]] = []  # of each turn
        self.record: Trajectory | None = None
        # of the task's environment: its score, and the schemas of its tools
        self.score: float | None = None
        self.tools: list[dict] | None = None

    @property
    def correct(self) -> bool:
        """True if the task's environment gave the full score, or the answer is correct."""
        if self.score is not None:
            return self.score >= 1
        return is_correct(self.answer, self.task)

    def call(self, thought: str, name: str, arguments: dict) -> str:
        """Add one tool turn; return the observation."""
        self.known_before.append({**self.known})
        result = self._toolbox.call(name, arguments, world=self._world)
        self.tool_results.append(result)
        content = f"<think>{thought}</think>{render_call(name, arguments)}"
        self.messages += [
            {"role": "assistant", "content": content},
            {"role": "tool", "content": result.text},
        ]
        return result.text

    def finish(self, thought: str, answer: str) -> Episode:
        """Add the last turn."""
        self.known_before.append({**self.known})
        content = f"<think>{thought}</think>{render_answer(answer)}"
        self.messages.append({"role": "assistant", "content": content})
        self.answer = answer
        return self


@dataclass(frozen=True)
class DemonstratorFaults:
    """Error rates of the teacher, each per opportunity."""

    guess: float = 0.5  # answers without a tool
    stop_early: float = 0.5  # after a look-up that is not the last
    bad_code: float = 0.5  # the first program: half crash and are mended, half are wrong
    bad_query: float = 0.4  # malformed arguments or an empty query, then the right one
    loop: float = 0.06  # repeats one call to the limit


class Demonstrator:
    """Imperfect teacher; it guesses with `names`."""

    def __init__(self, faults: DemonstratorFaults, names: Iterable[str]):
        self.faults = faults
        self._names = list(names)

    def play(
        self, task: Task, toolbox: ToolCaller, rng: random.Random, world: World | None = None
    ) -> Episode:
        """Solve one task and return the episode; LookupError if a search does not show what it
        needs.
        """
        episode = Episode(task, toolbox, world)
        computes = task.kind == "python"
        if _happens(self.faults.guess, rng):
            guess = str(rng.randint(10, 9999)) if computes else rng.choice(self._names)
            return episode.finish("I know this.", guess)
        if _happens(self.faults.loop, rng):
            thought = rng.choice(COMPUTE) if computes else "Look again."
            arguments = {"code": task.code} if computes else {"query": [task.start]}
            for _ in range(CALLS_OF_A_LOOP):
                episode.call(thought, "python" if computes else "search", arguments)
            return episode
        way = {"python": self._compute, "search": self._search, "trail": self._follow}
        return way[task.kind](episode, task, rng)

    def _compute(self, episode: Episode, task: Task, rng: random.Random) -> Episode:
        thoughts = COMPUTE
        if _happens(self.faults.bad_code, rng):
            crash = rng.random() < 0.5
            code = _crash(task.code, rng) if crash else _distort(task.code, rng)
            output = episode.call(rng.choice(COMPUTE), "python", {"code": code})
            if not crash:
                episode.known["output"] = output
                return episode.finish(rng.choice(COMPUTED), output)
            thoughts = AGAIN
        output = episode.call(rng.choice(thoughts), "python", {"code": task.code})
        episode.known["output"] = output
        return episode.finish(rng.choice(COMPUTED), output)

    def _search(self, episode: Episode, task: Task, rng: random.Random) -> Episode:
        found: list[str] = []
        steps = plan_searches(task)
        for number, step in enumerate(steps):
            titles = step.titles(found)
            asked = " and ".join(step.relations)
            wordings = HOLDER if step.is_holder else NEXT if number else FIRST
            thought = rng.choice(wordings).format(r=asked)
            query = step.query(titles)
            if _happens(self.faults.bad_query, rng):
                wrong = rng.choice(({"query": query}, {"query": [""]}))
                episode.call(thought, "search", wrong)
                thought = rng.choice(AGAIN)
            shown = episode.call(thought, "search", {"query": [query]})
            value = step.read(parse_pages(shown), titles)
            if value is None:
                raise LookupError(f"search for {query!r} shows no {asked!r}")
            found.append(value)
            episode.known[asked] = value
            if number + 1 < len(steps) and _happens(self.faults.stop_early, rng):
                break
        wordings = FOUND if step.is_holder else LAST
        return episode.finish(rng.choice(wordings).format(r=asked, v=found[-1]), found[-1])

    def _follow(self, episode: Episode, task: Task, rng: random.Random) -> Episode:
        """Follow a trail page by page; report treasures at once, and the last one at the end."""
        title, thought = task.start, FOLLOW
        episode.known[TREASURE] = NO_TREASURE
        while title != END:
            if _happens(self.faults.bad_query / task.hops, rng):
                episode.call(thought, "search", {"query": [""]})
                thought = rng.choice(AGAIN)
            pages = parse_pages(episode.call(thought, "search", {"query": [title]}))
            title, before = find_value(NEXT_PAGE, title, pages), title
            if title is None:
                raise LookupError(f"search for {before!r} shows no page after it")
            thought = ONWARD
            seen = find_value(TREASURE, before, pages)
            if seen is not None:
                episode.known[TREASURE] = seen
                thought = LAST[0].format(r=TREASURE, v=seen)
            episode.known[NEXT_PAGE] = title
            if _happens(self.faults.stop_early / task.hops, rng):
                break
        found = episode.known[TREASURE]
        found = rng.choice(self._names) if found == NO_TREASURE else found
        return episode.finish(LAST[0].format(r=TREASURE, v=found), found)


class Oracle(Demonstrator):
    """Teacher without faults: solves every task with the fewest calls."""

    def __init__(self):
        super().__init__(DemonstratorFaults(0, 0, 0, 0, 0), ())


def _happens(rate: float, rng: random.Random) -> bool:
    """Return True with probability `rate`; at rate 0 no random number is drawn."""
    return rate > 0 and rng.random() < rate


def _crash(code: str, rng: random.Random) -> str:
    """Return a program that raises: without a bracket, or with a misspelt name."""
    return code[:-1] if rng.random() < 0.5 else code.replace("print", "prin")


def _distort(code: str, rng: random.Random) -> str:
    """Return a program that runs but computes something else: one digit is changed."""
    places = [i for i, character in enumerate(code) if character.isdigit()]
    spot = rng.choice(places)
    digit = rng.choice([d for d in "123456789" if d != code[spot]])
    return code[:spot] + digit + code[spot + 1 :]
