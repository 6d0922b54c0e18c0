"""Agentic pre-training text: copying, reading, and the first part of acting, all invented.

Four kinds of document, drawn endlessly from fictional worlds (so no fact can be learned):

    copy      a list of names and the same list again
    read      pages, then statements that they support
    search    the log of a hand that looks things up (one or two look-ups)
    python    the log of a hand that computes

A log begins with a question in chat form or with a bare goal, and *never* contains an answer or a
chain of three look-ups: answering is what the cold start teaches, and the third look-up is left
to reinforcement learning. What cannot be predicted (pages, tool responses, goals, first lists) is
context and carries no loss: at this size, learning to predict noise costs the learning of copying.
Source, cut down: action synthesis of AgentFounder (Tongyi DeepResearch's report, agentic CPT).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

from drlib.chat import ChatIds
from drlib.synthesis.oracle import Oracle
from drlib.synthesis.questions import SearchQuestions, python_task
from drlib.task import Task
from drlib.trajectory import ToolResult
from drlib.worlds import Names, World, fictional_world
from drlib.worlds.fictional import invent_name
from drlib.worlds.world import snippet

SHARES = {"copy": 0.15, "read": 0.20, "search": 0.50, "python": 0.15}
REPLAY = {kind: SHARES[kind] for kind in ("copy", "read")}  # of later stages: nothing of acting
QUESTION_SHARE = 0.6  # of the logs; the others begin with a goal
DOCUMENTS_PER_WORLD = 16
CPT_MAX_HOPS = 2


@dataclass(frozen=True)
class Sample:
    """Token ids and which of them carry loss (both of one length)."""

    ids: tuple[int, ...]
    loss: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.ids)


Pieces = list[tuple[list[int], bool]]


def join(pieces: Pieces) -> Sample:
    ids = [i for part, _ in pieces for i in part]
    return Sample(tuple(ids), tuple([flag for part, flag in pieces for _ in part]))


def turns(messages: list[dict], chat: ChatIds) -> Pieces:
    """The ids that a rollout would have seen of these turns; loss on what the assistant wrote."""
    return [
        (chat.encode(m["content"]) + [chat.end_id], True)
        if m["role"] == "assistant"
        else (chat.tool_turn(m["content"]), False)
        for m in messages
    ]


def episode_sample(messages: list[dict], chat: ChatIds) -> Sample:
    """A whole conversation, from its question on."""
    return join([(chat.prompt(messages[0]["content"]), False), *turns(messages[1:], chat)])


class ActionData:
    """Endless documents with names of the words of `names`; a search shows `results` hits."""

    def __init__(self, names: Names, chat: ChatIds, results: int = 2):
        self.names, self.chat, self.results = names, chat, results

    def stream(self, seed: int | str, shares: dict[str, float] = SHARES) -> Iterator[Sample]:
        """The same for the same seed; `shares`: kind of document -> its weight in the mixture."""
        rng = random.Random(f"cpt-{seed}")
        while True:
            world = fictional_world(rng.getrandbits(60), self.names)
            questions = SearchQuestions(world, None, CPT_MAX_HOPS)
            for _ in range(DOCUMENTS_PER_WORLD):
                kind = rng.choices(list(shares), list(shares.values()))[0]
                if kind == "copy":
                    yield self._copy(rng)
                elif kind == "read":
                    yield self._read(world, rng)
                elif kind == "search":
                    task = questions.draw(1 if rng.random() < 0.35 else 2, rng)
                    goal = "; ".join([task.start, *task.relations]) + "."
                    yield self._log(task, goal, world, rng)
                else:
                    task = python_task(rng)
                    yield self._log(task, task.question, world, rng)

    def _copy(self, rng: random.Random) -> Sample:
        taken: set[str] = set()
        text = (
            "; ".join(
                rng.choice(self.names.codes)
                if rng.random() < 0.1
                else invent_name(rng, self.names, taken)
                for _ in range(rng.randint(3, 12))
            )
            + "."
        )
        again = self.chat.encode(text) + [self.chat.end_id]
        return join([(self.chat.encode(f"{text}\n"), False), (again, True)])

    def _read(self, world: World, rng: random.Random) -> Sample:
        shown = rng.sample(sorted(world.entities), rng.randint(2, 4))
        facts = [(t, r, v) for t in shown for r, v in world.entities[t].facts.items()]
        pieces = [(self.chat.encode("".join(f"{_page(world, t)}\n" for t in shown)), False)]
        for title, relation, value in rng.sample(facts, min(len(facts), rng.randint(2, 4))):
            # the value carries the loss: which fact comes next is noise
            pieces.append((self.chat.encode(f"The {relation} of {title}: "), False))
            pieces.append((self.chat.encode(f"{value}.\n"), True))
        return join(pieces)

    def _log(self, task: Task, goal: str, world: World, rng: random.Random) -> Sample:
        """The oracle's way to an answer, the answer left out; what tools show is made up."""
        opening = self.chat.prompt(task.question)
        if rng.random() >= QUESTION_SHARE:
            opening = self.chat.encode(f"Goal: {goal}\n") + self.chat.assistant_start

        def call(name: str, arguments: dict, *, world: None) -> ToolResult:
            shown = task.answer if name == "python" else search(arguments["query"][0])
            return ToolResult(name, arguments, shown, True, None)

        def search(title: str) -> str:  # as for an exact title: the page, then distractors
            others = [t for t in rng.sample(sorted(world.entities), self.results) if t != title]
            shown = [title, *others][: self.results]
            return "\n".join(f"{i}. {_page(world, t)}" for i, t in enumerate(shown, 1))

        *log, last = Oracle().play(task, SimpleNamespace(call=call), rng).messages[1:]
        thought = last["content"].partition("<answer>")[0]
        return join([(opening, False), *turns(log, self.chat), (self.chat.encode(thought), True)])


def _page(world: World, title: str) -> str:
    return f"[{title}](cldr:{title})\n{snippet(world.entities[title])}"
