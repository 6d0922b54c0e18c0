"""Agentic pre-training text from invented worlds: copying, reading, and tool calls.

Four kinds of document in an infinite stream. The worlds are fictional, so no fact can be learned:

    copy      a list of names, repeated
    read      pages, then statements that the pages support
    search    the log of an agent that searches (one or two hops)
    python    the log of an agent that computes

A log starts with a question in chat form or with a goal. It *never* contains an answer or a chain
of three hops: the cold start teaches answers, reinforcement learning the third hop. Unpredictable
text (pages, tool responses, goals, first lists) is context without loss, because a small model that
learns to predict noise learns to copy more slowly.

The tour's stage `cpt` trains on this text. It reduces AgentFounder's action synthesis to what a
laptop can train; the published recipe is in `drlib.demonstrations.agentfounder`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from drlib.chat.template import ChatIds
from drlib.demonstrations.oracle import Oracle
from drlib.questions.chains import SearchQuestions, make_python_task
from drlib.questions.question_engine import SMALL_POOL_SIZE, ConditionQuestions, Wording
from drlib.questions.search_plan import split_facts
from drlib.task import Task
from drlib.trajectory import ToolResult
from drlib.worlds import Names, SmallWorld, World, fictional_world
from drlib.worlds.fictional import invent_name
from drlib.worlds.small import snippet

SHARES = {"copy": 0.15, "read": 0.20, "search": 0.50, "python": 0.15}
REPLAY = {kind: SHARES[kind] for kind in ("copy", "read")}  # of later stages: nothing of acting
QUESTION_SHARE = 0.6  # of the logs; the others begin with a goal
DOCUMENTS_PER_WORLD = 16
CPT_MAX_HOPS = 2
CONDITIONS_SHARE = 0.5  # of the search logs, where there are questions of two conditions
ONE_HOP_SHARE = 0.35  # of the search logs; the others have two look-ups
NAMES_COPIED = (3, 12)  # of a copy document, least and most
CODE_SHARE = 0.1  # of these names
PAGES_READ = (2, 4)  # of a read document
STATEMENTS = (2, 4)  # about them


@dataclass(frozen=True)
class Sample:
    """Token ids and a loss mask of the same length."""

    ids: tuple[int, ...]
    loss: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.ids)


Pieces = list[tuple[list[int], bool]]


def join_pieces(pieces: Pieces) -> Sample:
    """Concatenate pieces of (token ids, with loss)."""
    ids = [i for part, _ in pieces for i in part]
    loss = [flag for part, flag in pieces for _ in part]
    return Sample(tuple(ids), tuple(loss))


def turns(messages: list[dict], chat: ChatIds) -> Pieces:
    """Return the token ids of turns as in a rollout, with loss on the assistant's text."""
    pieces = []
    for message in messages:
        if message["role"] == "assistant":
            pieces.append((chat.encode(message["content"]) + [chat.end_id], True))
        elif message["role"] == "tool":
            pieces.append((chat.tool_turn(message["content"]), False))
        elif pieces and pieces[-1][1]:  # behind what the assistant has said to it
            pieces.append((chat.user_turn(message["content"]), False))
        else:
            # behind an observation that is not answered to: no turn opens in between
            shown, _ = pieces.pop()
            opened = len(shown) - len(chat.assistant_start)
            pieces.append((shown[:opened] + chat.user_turn(message["content"]), False))
    return pieces


def episode_sample(messages: list[dict], chat: ChatIds, system: str | None = None) -> Sample:
    """Return a whole conversation from its question on, with an optional system prompt."""
    question, *rest = messages
    prompt = chat.prompt(question["content"], system=system)
    return join_pieces([(prompt, False), *turns(rest, chat)])


class InventedTools:
    """Simulated tool results of an invented world; nothing is executed.

    A correct program prints the answer of `task`; a search shows `results` pages.
    """

    def __init__(self, task: Task, world: SmallWorld, results: int, rng: random.Random):
        self.task = task
        self.world = world
        self.results = results
        self.rng = rng

    def call(self, name: str, arguments: dict, *, world: World | None) -> ToolResult:
        """Return the result of one call in the form of `Toolbox.call`; `world` is ignored."""
        if name == "python":
            return ToolResult(name, arguments, self.task.answer, True, None)
        query = arguments["query"]
        if not isinstance(query, list):
            refused = "Error: query must be a list of strings."
            return ToolResult(name, arguments, refused, False, "bad_arguments")
        if not query[0]:
            return ToolResult(name, arguments, "No results.", False, "empty")
        return ToolResult(name, arguments, self._search(query[0]), True, None)

    def _search(self, query: str) -> str:
        """Return the titles that a search shows.

        For an exact title: its page, then distractors. For facts: the pages with the most of them.
        """
        others = self.rng.sample(sorted(self.world.entities), min(self.results, len(self.world)))
        if query == self.task.question:  # a search for the question itself finds its start, or not
            shown = [self.task.start, *(t for t in others if t != self.task.start)]
            shown = shown[: self.results] if self.rng.random() < 0.5 else others
            self.rng.shuffle(shown)
        elif query in self.world.entities:
            shown = [query, *(title for title in others if title != query)][: self.results]
        else:
            shown = _most_of(query.split("; "), self.world, others)[: self.results]
            self.rng.shuffle(shown)
        return "\n".join(f"{i}. {_page(self.world, t)}" for i, t in enumerate(shown, 1))


class ActionData:
    """Infinite stream of documents; a search shows `results` pages.

    Args:
        names: words for the names of the invented worlds.
        conditions: wording of questions with two conditions, which some logs answer; None: no such
            questions.
    """

    def __init__(
        self, names: Names, chat: ChatIds, results: int = 2, conditions: Wording | None = None
    ):
        self.names = names
        self.chat = chat
        self.results = results
        self.conditions = conditions

    def stream(self, seed: int | str, shares: dict[str, float] = SHARES) -> Iterator[Sample]:
        """Yield samples; the same seed gives the same stream.

        Args:
            shares: kind of document -> weight in the mixture.
        """
        rng = random.Random(f"cpt-{seed}")
        while True:
            world = fictional_world(rng.getrandbits(60), self.names)
            questions = SearchQuestions(world, None, CPT_MAX_HOPS)
            several = []
            if self.conditions is not None:
                asked = ConditionQuestions(
                    world, None, self.results, drawn=SMALL_POOL_SIZE, wording=self.conditions
                )
                several = asked.all("c2")
            for _ in range(DOCUMENTS_PER_WORLD):
                kind = rng.choices(list(shares), list(shares.values()))[0]
                if kind == "copy":
                    yield self._copy(rng)
                elif kind == "read":
                    yield self._read(world, rng)
                elif kind == "search" and several and rng.random() < CONDITIONS_SHARE:
                    task = rng.choice(several)
                    yield self._log(task, task.question, world, rng)
                elif kind == "search":
                    task = questions.draw(1 if rng.random() < ONE_HOP_SHARE else 2, rng)
                    goal = "; ".join([task.start, *task.relations]) + "."
                    yield self._log(task, goal, world, rng)
                else:
                    task = make_python_task(rng)
                    yield self._log(task, task.question, world, rng)

    def _copy(self, rng: random.Random) -> Sample:
        """Return a list of names, repeated."""
        taken: set[str] = set()

        def name() -> str:
            if self.names.codes and rng.random() < CODE_SHARE:
                return rng.choice(self.names.codes)
            return invent_name(rng, self.names, taken)

        text = "; ".join([name() for _ in range(rng.randint(*NAMES_COPIED))]) + "."
        again = self.chat.encode(text) + [self.chat.end_id]
        return join_pieces([(self.chat.encode(f"{text}\n"), False), (again, True)])

    def _read(self, world: SmallWorld, rng: random.Random) -> Sample:
        """Return pages, then statements that they support."""
        shown = rng.sample(sorted(world.entities), rng.randint(*PAGES_READ))
        pages = "".join(f"{_page(world, title)}\n" for title in shown)
        facts = [
            (title, relation, value)
            for title in shown
            for relation, value in world.entities[title].facts.items()
        ]
        pieces = [(self.chat.encode(pages), False)]
        stated = rng.sample(facts, min(len(facts), rng.randint(*STATEMENTS)))
        for title, relation, value in stated:
            # the value carries the loss: which fact comes next is noise
            pieces.append((self.chat.encode(f"The {relation} of {title}: "), False))
            pieces.append((self.chat.encode(f"{value}.\n"), True))
        return join_pieces(pieces)

    def _log(self, task: Task, goal: str, world: SmallWorld, rng: random.Random) -> Sample:
        """Return the oracle's log without the answer; tool results are simulated."""
        opening = self.chat.prompt(task.question)
        if rng.random() >= QUESTION_SHARE:
            opening = self.chat.encode(f"Goal: {goal}\n") + self.chat.assistant_start

        tools = InventedTools(task, world, self.results, rng)
        episode = Oracle().play(task, tools, rng)
        *log, last = episode.messages[1:]
        thought = self.chat.encode(last["content"].partition("<answer>")[0])
        return join_pieces([(opening, False), *turns(log, self.chat), (thought, True)])


def _most_of(facts: list[str], world: SmallWorld, others: list[str]) -> list[str]:
    """Return the pages sorted by the number of `facts` on them, then `others`."""
    found = {}
    for title, entity in world.entities.items():
        found[title] = len({*facts} & {*split_facts(snippet(entity))})
    some = [title for title in sorted(found, key=found.get, reverse=True) if found[title]]
    return [*some, *(title for title in others if title not in some)]


def _page(world: SmallWorld, title: str) -> str:
    return f"[{title}]({world.url(title)})\n{snippet(world.entities[title])}"
