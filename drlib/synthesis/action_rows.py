"""AgentFounder's rows as a part of the line's own pre-training, made on invented worlds.

`fas` is first-order action synthesis (plans and refined answers that a memory of the world does not
contradict), `has` higher-order (finished trajectories, widened by actions that nobody tried). The
rows themselves are made in `drlib.synthesis.families.agentfounder`; here they become an endless
stream, so that the settings `cpt_fas_share` and `cpt_has_share` can mix them into `cpt`.

First-order rows need questions and a memory that judges. Both come from all facts of an invented
world or, with `cpt_fas_questions=memory`, from what a few attempts have seen there, wrong ones too:
the memory is told the pages that the searches found, and the questions are of what it recalls.
Higher-order rows need steps beside the real one: of names from anywhere, which a glance at what was
mentioned tells apart, or with `cpt_has_alternatives=read` of what has been read.

Left out: attempts whose programs fail (nothing is executed here, so nothing can crash), rows of
more than `MAX_TOKENS`, and of the memory's styles of question all but the fact and the chain.
"""

import random
import re
from collections.abc import Iterable, Iterator
from typing import Literal

from drlib.chat.template import ChatIds
from drlib.synthesis.actions import InventedTools, Sample
from drlib.synthesis.alternatives import CloseTeacher
from drlib.synthesis.families.agentfounder import (
    KEPT,
    CptRow,
    Teacher,
    higher_order,
    plans,
    reasoning,
    sample_of,
)
from drlib.synthesis.memory import EntityMemory
from drlib.synthesis.oracle import Demonstrator, DemonstratorFaults, Episode
from drlib.synthesis.questions import SearchQuestions
from drlib.worlds import Entity, Names, SmallWorld, fictional_world

Kind = Literal["fas", "has"]
HIT = re.compile(r"^\d+\. \[(.+?)\]\(", re.MULTILINE)  # a page among the results of a search
QUESTIONS = 8  # of an invented world
MAX_HOPS = 2
MAX_TOKENS = 320  # of a row
PLANS = 2  # of a question
ALTERNATIVES = 2  # of a step
# The hand whose trajectories are widened: a wrong one teaches its decision alone.
HAND = DemonstratorFaults(guess=0.1, stop_early=0.15, bad_code=0, bad_query=0.2, loop=0)


def memory_of(world: SmallWorld) -> EntityMemory:
    """Its facts, and what its pages say about each entity."""
    memory = EntityMemory(world.entities)
    for entity in world.entities.values():
        for relation, value in entity.facts.items():
            memory.fact(entity.title, relation, value, f"{world.name}/{entity.title}")
        memory.read(f"{entity.title} is a {entity.kind}.", f"{world.name}/{entity.title}")
    return memory


def memory_of_attempts(world: SmallWorld, attempts: Iterable[Episode]) -> EntityMemory:
    """The facts of the pages that attempts at questions of `world` have found, the wrong ones too;
    a fact's source is the attempt's number."""
    memory = EntityMemory()
    for number, episode in enumerate(attempts):
        source = f"{world.name}/attempt-{number}"
        for result in episode.tool_results:
            for title in HIT.findall(result.text):
                for relation, value in world.entities[title].facts.items():
                    memory.fact(title, relation, value, source)
    return memory


def recalled(memory: EntityMemory, world: SmallWorld) -> SmallWorld:
    """The part of `world` that the memory can recall, so that questions can be asked of it: every
    (entity, relation) of which it knows just one value."""
    known = []
    for entity in world.entities.values():
        values = {
            relation: [value for value, _ in memory.recall(entity.title, relation)]
            for relation in entity.facts
        }
        facts = {relation: found[0] for relation, found in values.items() if len(found) == 1}
        if facts:
            known.append(Entity(entity.title, entity.kind, facts))
    return SmallWorld(known, f"the memory of {world.name}", scheme=world.scheme)


class ActionRows:
    """Endless rows with names of the words of `names`; a search shows `results` hits.

    from_memory: whether first-order rows are made from a memory of attempts, not of all facts.
    close: whether alternatives are of what has been read (`CloseTeacher`).
    """

    def __init__(
        self,
        names: Names,
        chat: ChatIds,
        results: int,
        from_memory: bool = False,
        close: bool = False,
    ):
        self.names = names
        self.close = close
        self.chat = chat
        self.results = results
        self.from_memory = from_memory

    def stream(self, seed: int | str, kind: Kind) -> Iterator[Sample]:
        """The same for the same seed."""
        rng = random.Random(f"{kind}-{seed}")
        while True:
            world = fictional_world(rng.getrandbits(60), self.names)
            make = self._first_order if kind == "fas" else self._higher_order
            for row in make(world, rng):
                sample = sample_of(row, self.chat)
                if row.judge == KEPT and len(sample) <= MAX_TOKENS:
                    yield sample

    def _first_order(self, world: SmallWorld, rng: random.Random) -> Iterator[CptRow]:
        """Plans and a refined answer for each question, judged."""
        memory, known = memory_of(world), world
        if self.from_memory:
            memory = memory_of_attempts(world, self._attempts(world, rng))
            known = recalled(memory, world)
        teacher = _teacher(world)
        source = SearchQuestions(known, None, MAX_HOPS)
        depths = [hops for hops in range(1, MAX_HOPS + 1) if source.answers(hops)]
        for _ in range(QUESTIONS if depths else 0):
            task = source.draw(rng.choice(depths), rng)
            yield from plans(task, memory, teacher, PLANS, rng)
            yield reasoning(task, memory, teacher, rng)

    def _higher_order(self, world: SmallWorld, rng: random.Random) -> Iterator[CptRow]:
        """A flawed hand's attempts, widened."""
        teacher = _teacher(world, CloseTeacher if self.close else Teacher)
        for number, episode in enumerate(self._attempts(world, rng)):
            if episode.tool_results:
                name = f"{world.name}/{number}"
                said = episode.messages
                yield higher_order(said, episode.correct, name, teacher, ALTERNATIVES, rng)

    def _attempts(self, world: SmallWorld, rng: random.Random) -> Iterator[Episode]:
        """A flawed hand's attempts at a few questions."""
        hand = Demonstrator(HAND, sorted(world.entities))
        source = SearchQuestions(world, None, MAX_HOPS)
        for _ in range(QUESTIONS):
            task = source.draw(rng.randint(1, MAX_HOPS), rng)
            yield hand.play(task, InventedTools(task, world, self.results, rng), rng)


def _teacher(world: SmallWorld, kind: type[Teacher] = Teacher) -> Teacher:
    relations = {relation for entity in world.entities.values() for relation in entity.facts}
    return kind(sorted(world.entities), relations)
