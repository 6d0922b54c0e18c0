"""A split of questions on their graph: what leads to a test answer is not seen in training.

Questions that differ in their answers can still teach each other's: a training question that goes
over the page of a test answer, or rests on the very fact that a test question asks to find. So a
test set is made of *answers*: they are drawn one after the other until their questions are the
wanted share of what is left. A training question is dropped that has an answer of the same name,
names a test answer or has it on its way, names or asks for anything that a fact joins to a test
answer, or rests on a fact on which a test question rests.

On a dense graph that costs most of the training questions if the test answers lie anywhere. So each
step draws `CHOICES` answers and takes the one that costs the fewest for each of its questions: the
test set stays a random sample with a leaning towards neighbours of what is in it already.

Left out: what a page shows beside the fact that is used. A hub's page that a training question
needs may list a test answer among hundreds of others.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from drlib.synthesis.checks import TYPE_RELATIONS
from drlib.task import normalise_answer
from drlib.worlds.graph import Graph, inverse

CHOICES = 16


@dataclass(frozen=True)
class Rests:
    """What a question rests on: its answer and the other names of that, the titles that it names,
    those and the ones that it has on its way, the facts by which it is answered, and the titles
    `around` its answer, which a fact joins to it."""

    answer: str
    names: tuple[str, ...]
    named: frozenset[str]
    titles: frozenset[str]
    facts: frozenset[tuple[str, str, str]]
    around: frozenset[str]


@dataclass
class GraphSplit:
    """Places of the questions on each side; `dropped`: place of each other one -> why it went."""

    train: list[int]
    test: list[int]
    dropped: dict[int, str] = field(default_factory=dict)


def neighbourhood(title: str, graph: Graph) -> frozenset[str]:
    """What a fact joins to `title`, other than one that says a kind, which joins half a world."""
    return frozenset(
        value
        for relation in graph.relations.get(title, ())
        if not TYPE_RELATIONS & {relation, inverse(relation)}
        for value in graph.values(title, relation)
    )


def graph_split(rests: Sequence[Rests], share: float, seed: int) -> GraphSplit:
    """Questions by what they rest on, split so that about `share` of what is kept is `test`.

    The same questions in the same order give the same split. ValueError: share is not in 0..1 (1
    excluded).
    """
    if not 0 <= share < 1:
        raise ValueError(f"the test share must be at least 0 and below 1, not {share}")
    index = _Index(rests)
    rng = random.Random(f"split-{seed}")
    left = sorted(index.groups)
    test: set[int] = set()
    lost: dict[int, str] = {}
    while left and len(test) < share * (len(rests) - len(lost)):
        some = rng.sample(left, min(CHOICES, len(left)))
        chosen = min(some, key=lambda group: index.price(group, test, lost))
        left.remove(chosen)
        mine = index.groups[chosen]
        test |= mine
        for place in mine:  # one that an earlier answer had cost training is a test question now
            lost.pop(place, None)
        for reason, places in index.touched(chosen).items():
            for place in places - test:
                lost.setdefault(place, reason)
    train = [place for place in range(len(rests)) if place not in test and place not in lost]
    return GraphSplit(train, sorted(test), dict(sorted(lost.items())))


class _Index:
    """Which questions share what. A *group* is all questions whose answers have a name in common,
    known by the title that sorts first."""

    def __init__(self, rests: Sequence[Rests]):
        self._rests = rests
        by_name = defaultdict(set)
        self._by_title = defaultdict(set)
        self._by_name = defaultdict(set)
        self._by_fact = defaultdict(set)
        for place, one in enumerate(rests):
            for name in {normalise_answer(name) for name in (one.answer, *one.names)}:
                by_name[name].add(place)
            for title in one.titles:
                self._by_title[title].add(place)
            for title in (one.answer, *one.named):
                self._by_name[title].add(place)
            for fact in one.facts:
                self._by_fact[fact].add(place)
        self.groups = _joined(by_name.values(), len(rests), rests)
        self._cache: dict[str, dict[str, set[int]]] = {}

    def touched(self, group: str) -> dict[str, set[int]]:
        """Why a question cannot be in training when this group is in test -> which."""
        if group not in self._cache:
            mine = self.groups[group]
            answers = {self._rests[place].answer for place in mine}
            facts = set().union(*(self._rests[place].facts for place in mine))
            around = set().union(*(self._rests[place].around for place in mine))
            passing = set().union(*(self._by_title[title] for title in answers)) - mine
            near = set().union(*(self._by_name[title] for title in around)) - mine
            shared = set().union(*(self._by_fact[fact] for fact in facts)) - mine
            self._cache[group] = {
                "has a test answer on its way": passing,
                "names a neighbour of a test answer": near - passing,
                "rests on a fact of a test question": shared - near - passing,
            }
        return self._cache[group]

    def price(self, group: str, test: set[int], lost: dict[int, str]) -> tuple[float, str]:
        """Training questions that it would cost more, for each question that it gives."""
        costs = set().union(*self.touched(group).values()) - test - lost.keys()
        return len(costs) / len(self.groups[group]), group


def _joined(sets, size: int, rests: Sequence[Rests]) -> dict[str, set[int]]:
    """Places that are in a set together, directly or by others, as groups by the first answer."""
    parent = list(range(size))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for some in sets:
        first, *others = some
        for other in others:
            parent[root(other)] = root(first)
    found = defaultdict(set)
    for place in range(size):
        found[root(place)].add(place)
    return {min(rests[place].answer for place in places): places for places in found.values()}
