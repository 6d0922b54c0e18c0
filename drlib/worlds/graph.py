"""The knowledge graph behind a world: typed nodes, relations with several values, and inverses.

A fact is (subject, relation, object). Every relation can be read backwards under the name that
ends in " of": from ("Norway", "currency", "Norwegian Krone") follows ("Norwegian Krone",
"currency of", "Norway"). Pages show both directions under these names, so whatever the graph can
answer can be read. A node is named by its title; a *value* (a year, a code, a number) has no page.

Sets are frozen and lists are sorted: no result depends on the order in which Python hashes.
Left out: qualifiers of a fact (its source and time are in `drlib.synthesis.memory`).
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

VALUE = "value"  # the kind of nodes without a page
NOTHING: frozenset[str] = frozenset()
Fact = tuple[str, str, str]


class Node(NamedTuple):
    """`title` is unique in its world; `aliases` are other names of the same thing."""

    title: str
    kind: str
    aliases: tuple[str, ...] = ()


def inverse(relation: str) -> str:
    """`currency` <-> `currency of`."""
    return relation.removesuffix(" of") if relation.endswith(" of") else f"{relation} of"


class Graph:
    """Nodes by title, facts sorted and without repetition, and both directions of each relation.

    An object that is no node becomes one of kind "value". ValueError: two nodes of one title, a
    relation that ends in " of" (that is its inverse), a subject that is no node.
    """

    def __init__(self, nodes: Iterable[Node], facts: Iterable[Fact]):
        self.nodes: dict[str, Node] = {}
        for node in nodes:
            if node.title in self.nodes:
                raise ValueError(f"two nodes are called {node.title!r}: qualify their titles")
            self.nodes[node.title] = node
        self.facts = tuple(sorted(set(facts)))
        found = defaultdict(lambda: defaultdict(set))
        for subject, relation, value in self.facts:
            if relation.endswith(" of"):
                raise ValueError(f"relation {relation!r}: names that end in ' of' are inverses")
            if subject not in self.nodes:
                raise ValueError(f"fact about {subject!r}, which is no node")
            self.nodes.setdefault(value, Node(value, VALUE))
            found[relation][subject].add(value)
            found[inverse(relation)][value].add(subject)
        self.nodes = dict(sorted(self.nodes.items()))  # not in the order in which they came
        # relation (inverses too) -> title -> the set of its values
        self.adjacent = {
            relation: {title: frozenset(some) for title, some in rows.items()}
            for relation, rows in sorted(found.items())
        }

    def values(self, title: str, relation: str) -> frozenset[str]:
        """The values of `relation` (or an inverse) at `title`; empty where there are none."""
        return self.adjacent.get(relation, {}).get(title, NOTHING)

    @cached_property
    def relations(self) -> dict[str, tuple[str, ...]]:
        """The relations that each node has, inverses included, sorted."""
        found = defaultdict(list)
        for relation, rows in self.adjacent.items():
            for title in rows:
                found[title].append(relation)
        return {title: tuple(sorted(some)) for title, some in sorted(found.items())}

    @cached_property
    def neighbours(self) -> dict[str, frozenset[str]]:
        """The titles that a fact joins with each node, in either direction."""
        found = defaultdict(set)
        for subject, _, value in self.facts:
            found[subject].add(value)
            found[value].add(subject)
        return {title: frozenset(some) for title, some in found.items()}

    @cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The titles of each kind, sorted."""
        found = defaultdict(list)
        for node in self.nodes.values():
            found[node.kind].append(node.title)
        return {kind: tuple(sorted(titles)) for kind, titles in sorted(found.items())}

    def is_value(self, title: str) -> bool:
        """Whether it has no page: a value, or nothing that is known here."""
        return title not in self.nodes or self.nodes[title].kind == VALUE

    @cached_property
    def version(self) -> str:
        """First 12 hex digits of a SHA-256 over nodes and facts: equal data, equal version."""
        rows = [sorted(self.nodes.values()), self.facts]
        return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()[:12]

    def __len__(self) -> int:
        return len(self.nodes)
