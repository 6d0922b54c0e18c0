"""Questions judged from raw facts, by code that shares nothing with the question engine.

The engine writes a query, evaluates it on its own tables and claims a single answer. Here the
query is JSON text and the world a list of (subject, relation, object), both read from scratch with
other data structures: a relation is a set of pairs, an operator is set arithmetic, and a distance
is a breadth-first search. Nothing of `drlib` is imported, so that its faults cannot carry over.

The query format is that of `drlib.questions.queries.to_text`. A fact connects its subject and
its object, whatever they are: a year shared by two currencies is one fact from both, so they are
two facts apart. `barriers` are nodes that a path may end at but not cross, for a second measure.

Not covered: names that reveal each other, redundant conditions (counted by the library's SQL
engine), and the wording of a question.
"""

import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

Fact = tuple[str, str, str]
LONGEST_NUMBER = 18  # digits that a whole number may have


class Judgement(NamedTuple):
    """Result of a query: members, names in the question, and distances to the answer.

    `facts_away` is the sorted number of facts from each name to the answer (None: no path).
    """

    members: frozenset[str]
    names: tuple[str, ...]
    facts_away: tuple[int | None, ...]

    @property
    def nearest(self) -> int | None:
        return self.facts_away[0] if self.facts_away else None


class RawFacts:
    """The triples of a world as pairs by relation, and the neighbours of every node."""

    def __init__(self, triples: Iterable[Fact]):
        self.pairs: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.neighbours: dict[str, set[str]] = defaultdict(set)
        self.subjects = set()
        for subject, relation, thing in triples:
            self.pairs[relation].add((subject, thing))
            self.neighbours[subject].add(thing)
            self.neighbours[thing].add(subject)
            self.subjects.add(subject)
        self._rows: dict[str, dict[str, set[str]]] = {}

    def rows(self, relation: str) -> dict[str, set[str]]:
        """Return the other ends of `relation`; a final " of" inverts it."""
        if relation not in self._rows:
            table = defaultdict(set)
            inverted = relation.endswith(" of")
            for subject, thing in self.pairs.get(relation[:-3] if inverted else relation, ()):
                start, end = (thing, subject) if inverted else (subject, thing)
                table[start].add(end)
            self._rows[relation] = dict(table)
        return self._rows[relation]

    def members(self, text: str) -> frozenset[str]:
        """Return the answers of this JSON query; raise ValueError for an unknown operator."""
        return frozenset(self._members(json.loads(text)))

    def _members(self, query) -> set[str]:
        if isinstance(query, str):
            return {query}
        name, *fields = query
        if name == "proj":
            starts, rows = self._members(fields[1]), self.rows(fields[0])
            return {end for start in starts for end in rows.get(start, ())}
        if name == "and":
            return set.intersection(*map(self._members, fields))
        if name == "or":
            return set.union(*map(self._members, fields))
        if name == "diff":
            return self._members(fields[0]).difference(self._members(fields[1]))
        if name == "count":
            return {str(len(self._members(fields[0])))}
        if name == "range":
            relation, low, high = fields
            return {thing for thing, n in self._numbers(relation) if low <= n <= high}
        if name == "extreme":
            relation, group_query, most = fields
            group = self._members(group_query)
            ranked = [(n if most else -n, thing) for thing, n in self._numbers(relation)]
            inside = [pair for pair in ranked if pair[1] in group]
            return {thing for n, thing in inside if n == max(inside)[0]}
        raise ValueError(f"unknown operator {name!r}: this evaluator reads seven and names")

    def _numbers(self, relation: str) -> list[tuple[str, int]]:
        """Return (subject, value) of each whole number."""
        found = []
        for thing, values in self.rows(relation).items():
            for value in values:
                digits = value[1:] if value[:1] == "-" else value
                if digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_NUMBER:
                    found.append((thing, int(value)))
        return found

    def facts_away(self, start: str, barriers: Collection[str] = ()) -> dict[str, int]:
        """Return the distance in facts from `start` to everything reachable without crossing
        `barriers`.
        """
        found, waiting = {start: 0}, deque((start,))
        while waiting:
            node = waiting.popleft()
            if node in barriers and node != start:
                continue
            for neighbour in self.neighbours.get(node, ()):
                if neighbour not in found:
                    found[neighbour] = found[node] + 1
                    waiting.append(neighbour)
        return found

    def judge(self, text: str, answer: str, barriers: Collection[str] = ()) -> Judgement:
        """Return the result of this JSON query, and the distances of its names from `answer`."""
        names = tuple(names_in_query(json.loads(text)))
        distances = self.facts_away(answer, barriers)
        order = sorted((distances.get(name) for name in names), key=lambda n: (n is None, n))
        return Judgement(self.members(text), names, tuple(order))


def names_in_query(query) -> list[str]:
    """Return the names in a question, and the number of a range that contains only one."""
    if isinstance(query, str):
        return [query]
    name, *fields = query
    if name == "range":
        relation, low, high = fields
        return [str(low)] if low == high else []
    inner = fields[1:2] if name in ("proj", "extreme") else fields
    return [name for part in inner for name in names_in_query(part)]


def count_hops(query) -> int:
    """Return the maximal number of consecutive hops."""
    if isinstance(query, str):
        return 0
    name, *fields = query
    inner = fields[1:2] if name in ("proj", "extreme") else () if name == "range" else fields
    return (name in ("proj", "range")) + max(map(count_hops, inner), default=0)
