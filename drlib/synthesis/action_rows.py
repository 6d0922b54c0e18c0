"""AgentFounder's rows as a part of the line's own pre-training, made on invented worlds.

`fas` is first-order action synthesis (plans and refined answers that a memory of the world does not
contradict), `has` higher-order (finished trajectories, widened by actions that nobody tried). The
rows themselves are made in `drlib.synthesis.families.agentfounder`; here they become an endless
stream, so that the settings `cpt_fas_share` and `cpt_has_share` can mix them into `cpt`.

Left out: attempts whose programs fail (nothing is executed here, so nothing can crash), and rows
of more than `MAX_TOKENS`.
"""

import random
from collections.abc import Iterator
from typing import Literal

from drlib.chat import ChatIds
from drlib.synthesis.actions import InventedTools, Sample
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
from drlib.synthesis.oracle import Demonstrator, DemonstratorFaults
from drlib.synthesis.questions import SearchQuestions
from drlib.worlds import Names, SmallWorld, fictional_world

Kind = Literal["fas", "has"]
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


class ActionRows:
    """Endless rows with names of the words of `names`; a search shows `results` hits."""

    def __init__(self, names: Names, chat: ChatIds, results: int):
        self.names = names
        self.chat = chat
        self.results = results

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
        memory = memory_of(world)
        teacher = _teacher(world)
        source = SearchQuestions(world, None, MAX_HOPS)
        for _ in range(QUESTIONS):
            task = source.draw(rng.randint(1, MAX_HOPS), rng)
            yield from plans(task, memory, teacher, PLANS, rng)
            yield reasoning(task, memory, teacher, rng)

    def _higher_order(self, world: SmallWorld, rng: random.Random) -> Iterator[CptRow]:
        """A flawed hand's attempts, widened."""
        hand = Demonstrator(HAND, sorted(world.entities))
        teacher = _teacher(world)
        source = SearchQuestions(world, None, MAX_HOPS)
        for number in range(QUESTIONS):
            task = source.draw(rng.randint(1, MAX_HOPS), rng)
            episode = hand.play(task, InventedTools(task, world, self.results, rng), rng)
            if episode.tool_results:
                name = f"{world.name}/{number}"
                said = episode.messages
                yield higher_order(said, episode.correct, name, teacher, ALTERNATIVES, rng)


def _teacher(world: SmallWorld) -> Teacher:
    relations = {relation for entity in world.entities.values() for relation in entity.facts}
    return Teacher(sorted(world.entities), relations)
