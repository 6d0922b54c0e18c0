"""Demonstrations: an oracle that solves every question through the tools, and a worse teacher.

`Oracle` reads nothing but what the tools return: it is the proof that a question can be solved,
and the clean hand of agentic pre-training. `Demonstrator` is the same hand with a person's faults.
A fixed pool of its attempts, kept where they are right, is the cold start (rejection sampling).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from drlib.format import render_answer, render_call
from drlib.task import Task, is_correct
from drlib.tools import Toolbox
from drlib.trajectory import ToolResult
from drlib.worlds import World

MAX_CALLS = 6
_RESULT = re.compile(r"^\d+\. \[(?P<title>.*?)\]\(.*?\)\n(?P<facts>.*)$", re.MULTILINE)
FIRST = ("Look up the {r}.", "First the {r}.", "I need the {r}.")
NEXT = ("Now the {r}.", "Next the {r}.", "Then the {r}.")
LAST = ("The {r} is {v}.", "I have the {r}: {v}.")
COMPUTE = ("Compute it.", "Run the numbers.", "Use python.")
COMPUTED = ("That is the result.", "The output is the answer.")
AGAIN = ("That failed. Try again.", "An error. Fix it.")


class Episode:
    """One attempt: messages from the question on, tool results beside them, answer or None."""

    def __init__(self, task: Task, toolbox: Toolbox, world: World | None):
        self.task, self._toolbox, self._world = task, toolbox, world
        self.messages = [{"role": "user", "content": task.question}]
        self.tool_results: list[ToolResult] = []
        self.answer: str | None = None

    @property
    def correct(self) -> bool:
        return is_correct(self.answer, self.task)

    def call(self, thought: str, name: str, arguments: dict) -> str:
        """One tool turn; returns the observation's text."""
        result = self._toolbox.call(name, arguments, world=self._world)
        self.tool_results.append(result)
        content = f"<think>{thought}</think>{render_call(name, arguments)}"
        self.messages += [
            {"role": "assistant", "content": content},
            {"role": "tool", "content": result.text},
        ]
        return result.text

    def finish(self, thought: str, answer: str) -> Episode:
        content = f"<think>{thought}</think>{render_answer(answer)}"
        self.messages.append({"role": "assistant", "content": content})
        self.answer = answer
        return self


def read_fact(observation: str, title: str, relation: str) -> str | None:
    """The value of `relation` that a search observation gives for `title`, or None."""
    shown = [
        m["facts"]
        for m in _RESULT.finditer(observation)
        if m["title"].casefold() == title.casefold()
    ]
    facts = [fact for line in shown for fact in line.rstrip(".").split("; ")]
    return next((f[len(relation) + 1 :] for f in facts if f.startswith(f"{relation} ")), None)


@dataclass(frozen=True)
class Faults:
    """How often the demonstrator goes wrong, each per opportunity."""

    guess: float = 0.5  # answers without a tool
    stop_early: float = 0.5  # after a look-up that is not the last
    bad_code: float = 0.5  # the first program: half crash and are mended, half are wrong
    bad_query: float = 0.4  # malformed arguments or an empty query, then the right one
    loop: float = 0.06  # repeats one call to the limit


class Demonstrator:
    """The imperfect teacher; `names` are what it guesses with."""

    def __init__(self, faults: Faults, names: Iterable[str]):
        self.faults, self._names = faults, list(names)

    def play(
        self, task: Task, toolbox: Toolbox, rng: random.Random, world: World | None = None
    ) -> Episode:
        hand, python = Episode(task, toolbox, world), task.kind == "python"
        if _happens(self.faults.guess, rng):
            guess = str(rng.randint(10, 9999)) if python else rng.choice(self._names)
            return hand.finish("I know this.", guess)
        if _happens(self.faults.loop, rng):
            thought = rng.choice(COMPUTE) if python else "Look again."
            arguments = {"code": task.code} if python else {"query": [task.start]}
            for _ in range(MAX_CALLS):
                hand.call(thought, task.kind, arguments)
            return hand
        return (self._compute if python else self._search)(hand, task, rng)

    def _compute(self, hand: Episode, task: Task, rng: random.Random) -> Episode:
        thoughts = COMPUTE
        if _happens(self.faults.bad_code, rng):
            crash = rng.random() < 0.5
            code = _crash(task.code, rng) if crash else _distort(task.code, rng)
            output = hand.call(rng.choice(COMPUTE), "python", {"code": code})
            if not crash:
                return hand.finish(rng.choice(COMPUTED), output)
            thoughts = AGAIN
        output = hand.call(rng.choice(thoughts), "python", {"code": task.code})
        return hand.finish(rng.choice(COMPUTED), output)

    def _search(self, hand: Episode, task: Task, rng: random.Random) -> Episode:
        here = task.start
        for hop, relation in enumerate(task.relations):
            thought = rng.choice(NEXT if hop else FIRST).format(r=relation)
            if _happens(self.faults.bad_query, rng):
                hand.call(thought, "search", rng.choice(({"query": here}, {"query": [""]})))
                thought = rng.choice(AGAIN)
            value = read_fact(hand.call(thought, "search", {"query": [here]}), here, relation)
            if value is None:
                raise LookupError(f"search for {here!r} shows no {relation!r}")
            here = value
            if hop + 1 < task.hops and _happens(self.faults.stop_early, rng):
                break
        return hand.finish(rng.choice(LAST).format(r=relation, v=here), here)


class Oracle(Demonstrator):
    """The teacher without a fault: solves every task by the shortest honest path."""

    def __init__(self):
        super().__init__(Faults(0, 0, 0, 0, 0), ())


def _happens(rate: float, rng: random.Random) -> bool:
    """A draw; at rate 0 none is made, so that the oracle's draws are its wordings alone."""
    return rate > 0 and rng.random() < rate


def _crash(code: str, rng: random.Random) -> str:
    """A program that raises: a bracket short, or a misspelt name."""
    return code[:-1] if rng.random() < 0.5 else code.replace("print", "prin")


def _distort(code: str, rng: random.Random) -> str:
    """A program that runs and computes something else: one digit is changed."""
    spot = rng.choice([i for i, c in enumerate(code) if c.isdigit()])
    digit = rng.choice([d for d in "123456789" if d != code[spot]])
    return code[:spot] + digit + code[spot + 1 :]
