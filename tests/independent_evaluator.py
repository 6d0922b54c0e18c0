"""Questions judged from raw facts, by code that shares nothing with the question engine.

The engine writes a query, evaluates it on its own tables, measures nearness on its own tables and
says that the answer is the one member. Here the query is its JSON text and the world a list of
(subject, relation, object); both are read from scratch, with other data structures: a relation is a
set of pairs, an operator is arithmetic of sets, a distance is a breadth-first search of our own.
Nothing of `drlib` is imported, so that no fault of the library can hide in it.

The format of a query is that of `drlib.questions.queries.to_text`. A
fact joins its subject and its object, whatever it says and whatever these are: a year that two
currencies share is one fact away from both, so they are two facts apart. `passed_by` gives the
things that a path may end at and not lead through, for a second measure.

Left out: names that give each other away, redundant conditions (the library's second engine, SQL,
counts these), and the wording of a question.
"""

import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable
from typing import NamedTuple

Fact = tuple[str, str, str]
LONGEST_NUMBER = 18  # digits that a whole number may have


class Judgement(NamedTuple):
    """`members` of the query; `told`: what the question names; `facts_away`: from each of them to
    the answer (None: no path), the nearest first."""

    members: frozenset[str]
    told: tuple[str, ...]
    facts_away: tuple[int | None, ...]

    @property
    def nearest(self) -> int | None:
        return self.facts_away[0] if self.facts_away else None


class RawFacts:
    """The triples of a world as pairs by relation, and who is named with whom."""

    def __init__(self, triples: Iterable[Fact]):
        self.pairs: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self.beside: dict[str, set[str]] = defaultdict(set)
        self.subjects = set()
        for subject, relation, thing in triples:
            self.pairs[relation].add((subject, thing))
            self.beside[subject].add(thing)
            self.beside[thing].add(subject)
            self.subjects.add(subject)
        self._rows: dict[str, dict[str, set[str]]] = {}

    def rows(self, relation: str) -> dict[str, set[str]]:
        """Return the other ends of `relation`; a final " of" inverts it."""
        if relation not in self._rows:
            table = defaultdict(set)
            turned = relation.endswith(" of")
            for subject, thing in self.pairs.get(relation[:-3] if turned else relation, ()):
                start, end = (thing, subject) if turned else (subject, thing)
                table[start].add(end)
            self._rows[relation] = dict(table)
        return self._rows[relation]

    def members(self, text: str) -> frozenset[str]:
        """The answers of the query with this JSON. ValueError: an operator that is not known."""
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
            relation, of, most = fields
            group = self._members(of)
            ranked = [(n if most else -n, thing) for thing, n in self._numbers(relation)]
            inside = [pair for pair in ranked if pair[1] in group]
            return {thing for n, thing in inside if n == max(inside)[0]}
        raise ValueError(f"unknown operator {name!r}: this evaluator reads seven and names")

    def _numbers(self, relation: str) -> list[tuple[str, int]]:
        """(what has it, the number) of each whole number."""
        found = []
        for thing, values in self.rows(relation).items():
            for value in values:
                digits = value[1:] if value[:1] == "-" else value
                if digits.isascii() and digits.isdigit() and len(digits) <= LONGEST_NUMBER:
                    found.append((thing, int(value)))
        return found

    def facts_away(self, start: str, passed_by: Collection[str] = ()) -> dict[str, int]:
        """Return the number of facts between `start` and everything reachable without passing
        through `passed_by`.
        """
        found, waiting = {start: 0}, deque((start,))
        while waiting:
            here = waiting.popleft()
            if here in passed_by and here != start:
                continue
            for beside in self.beside.get(here, ()):
                if beside not in found:
                    found[beside] = found[here] + 1
                    waiting.append(beside)
        return found

    def judge(self, text: str, answer: str, passed_by: Collection[str] = ()) -> Judgement:
        """Return the result of this JSON query, and the distance of its names from `answer`."""
        told = tuple(told_by(json.loads(text)))
        away = self.facts_away(answer, passed_by)
        order = sorted((away.get(name) for name in told), key=lambda n: (n is None, n))
        return Judgement(self.members(text), told, tuple(order))


def told_by(query) -> list[str]:
    """Return the names in a question, and the number of a range that contains only one."""
    if isinstance(query, str):
        return [query]
    name, *fields = query
    if name == "range":
        relation, low, high = fields
        return [str(low)] if low == high else []
    inner = fields[1:2] if name in ("proj", "extreme") else fields
    return [told for part in inner for told in told_by(part)]


def look_ups(query) -> int:
    """Return the maximal number of consecutive hops."""
    if isinstance(query, str):
        return 0
    name, *fields = query
    inner = fields[1:2] if name in ("proj", "extreme") else () if name == "range" else fields
    return (name in ("proj", "range")) + max(map(look_ups, inner), default=0)
