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

Sources: the FAS and HAS action synthesis of AgentFounder (Tongyi DeepResearch, report section on
agentic CPT), cut down to what a policy of a million weights can use.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from drlib.chat import ChatIds, render_call
from drlib.synthesis.oracle import COMPUTE, COMPUTED, FIRST, LAST, NEXT
from drlib.synthesis.questions import SearchQuestions, Task, python_task
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
    loss = [flag for part, flag in pieces for _ in part]
    return Sample(tuple(ids), tuple(loss))


def episode_sample(messages: list[dict], chat: ChatIds) -> Sample:
    """Chat messages as the ids a rollout would have seen; loss on what the assistant wrote."""
    pieces: Pieces = [(chat.prompt(messages[0]["content"]), False)]
    for message in messages[1:]:
        own, text = message["role"] == "assistant", message["content"]
        pieces.append((chat.encode(text) + [chat.end_id] if own else chat.tool_turn(text), own))
    return join(pieces)


class ActionData:
    """The endless stream of pre-training documents, with names made of the words of `names`; a
    search shows `results` hits, as in the policy's toolbox."""

    def __init__(self, names: Names, chat: ChatIds, results: int = 2):
        self.names, self.chat, self.results = names, chat, results
        self._text = chat.encode
        self._world: tuple[World, SearchQuestions] | None = None

    def stream(self, seed: int | str, shares: dict[str, float] = SHARES) -> Iterator[Sample]:
        """Documents for ever, the same for the same seed; a fresh world every few documents.
        `shares`: kind of document -> its weight in the mixture."""
        rng = random.Random(f"cpt-{seed}")
        while True:
            world = fictional_world(rng.getrandbits(60), self.names)
            self._world = world, SearchQuestions(world, None, CPT_MAX_HOPS)
            for _ in range(DOCUMENTS_PER_WORLD):
                kind = rng.choices(list(shares), list(shares.values()))[0]
                yield getattr(self, f"_{kind}")(rng)

    def _copy(self, rng: random.Random) -> Sample:
        taken: set[str] = set()
        text = "; ".join(
            rng.choice(self.names.codes) if rng.random() < 0.1
            else invent_name(rng, self.names, taken) for _ in range(rng.randint(3, 12))
        ) + "."  # fmt: skip
        again = self._text(text) + [self.chat.end_id]
        return join([(self._text(f"{text}\n"), False), (again, True)])

    def _read(self, rng: random.Random) -> Sample:
        world, _ = self._world
        shown = rng.sample(sorted(world.graph), rng.randint(2, 4))
        lines = [f"[{t}](cldr:{t})\n{snippet(world.graph[t])}\n" for t in shown]
        facts = [(t, r, v) for t in shown for r, v in world.graph[t].facts.items()]
        pieces = [(self._text("".join(lines)), False)]
        for title, relation, value in rng.sample(facts, min(len(facts), rng.randint(2, 4))):
            # the value carries the loss: which fact comes next is noise
            pieces.append((self._text(f"The {relation} of {title}: "), False))
            pieces.append((self._text(f"{value}.\n"), True))
        return join(pieces)

    def _opening(self, question: str, goal: str, rng: random.Random) -> Pieces:
        if rng.random() < QUESTION_SHARE:
            return [(self.chat.prompt(question), False)]
        return [(self._text(f"Goal: {goal}\n") + self.chat.assistant_start, False)]

    def _turn(self, thought: str, name: str, arguments: dict, observation: str) -> Pieces:
        act = self._text(f"<think>{thought}</think>{render_call(name, arguments)}")
        return [(act + [self.chat.end_id], True), (self.chat.tool_turn(observation), False)]

    def _closing(self, thought: str) -> Pieces:
        return [(self._text(f"<think>{thought}</think>"), True)]

    def _search(self, rng: random.Random) -> Sample:
        world, questions = self._world
        task = questions.draw(1 if rng.random() < 0.35 else 2, rng)
        goal = "; ".join([task.start, *task.relations]) + "."
        pieces, here = self._opening(task.question, goal, rng), task.start
        for hop, relation in enumerate(task.relations):
            thought = rng.choice(NEXT if hop else FIRST).format(r=relation)
            observation = self.observation(world, here, rng)
            pieces += self._turn(thought, "search", {"query": [here]}, observation)
            here = world.graph[here].facts[relation]
        return join(pieces + self._closing(rng.choice(LAST).format(r=relation, v=here)))

    def observation(self, world: World, title: str, rng: random.Random) -> str:
        """What `search` would show for an exact title: the page, then distractors."""
        others = [t for t in rng.sample(sorted(world.graph), self.results) if t != title]
        shown = [title, *others][: self.results]
        lines = (f"[{t}](cldr:{t})\n{snippet(world.graph[t])}" for t in shown)
        return "\n".join(f"{i}. {line}" for i, line in enumerate(lines, 1))

    def _python(self, rng: random.Random) -> Sample:
        task: Task = python_task(rng)
        pieces = self._opening(task.question, task.question, rng)
        pieces += self._turn(rng.choice(COMPUTE), "python", {"code": task.code}, task.answer)
        return join(pieces + self._closing(rng.choice(COMPUTED)))
