"""Knowledge graph of a world: typed nodes, multi-valued relations and their inverses.

A fact is (subject, relation, object). Each relation has an inverse whose name ends in " of":
("Norway", "currency", "Norwegian Krone") implies ("Norwegian Krone", "currency of", "Norway").
Pages show both directions under these names, so every answer of the graph can be read on a page. A
node is named by its title; a *value* (a year, a code, a number) has no page.

Sets are frozen and lists are sorted, so no result depends on hash order. Source and time of a fact
are in `drlib.questions.entity_memory`.
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
    """A node with a unique title; `aliases` are other names of the same thing."""

    title: str
    kind: str
    aliases: tuple[str, ...] = ()


def inverse(relation: str) -> str:
    """Return the inverse relation: `currency` <-> `currency of`."""
    return relation.removesuffix(" of") if relation.endswith(" of") else f"{relation} of"


class Graph:
    """Nodes by title, sorted facts, and both directions of each relation.

    An object that is no node becomes a node of kind "value".

    Raises:
        ValueError: two nodes with one title, a relation that ends in " of" (reserved for inverses),
            or a subject that is no node.
    """

    def __init__(self, nodes: Iterable[Node], facts: Iterable[Fact]):
        self.nodes: dict[str, Node] = {}
        for node in nodes:
            if node.title in self.nodes:
                raise ValueError(f"two nodes have the title {node.title!r}: qualify their titles")
            self.nodes[node.title] = node
        self.facts = tuple(sorted(set(facts)))
        found = defaultdict(lambda: defaultdict(set))
        for subject, relation, value in self.facts:
            if relation.endswith(" of"):
                raise ValueError(
                    f"relation {relation!r}: the ending ' of' is reserved for inverses, rename it"
                )
            if subject not in self.nodes:
                raise ValueError(f"fact about {subject!r}, which is not a node: add a node")
            self.nodes.setdefault(value, Node(value, VALUE))
            found[relation][subject].add(value)
            found[inverse(relation)][value].add(subject)
        self.nodes = dict(sorted(self.nodes.items()))  # independent of the input order
        # relation (inverses too) -> title -> the set of its values
        self.adjacent = {
            relation: {title: frozenset(some) for title, some in rows.items()}
            for relation, rows in sorted(found.items())
        }

    def values(self, title: str, relation: str) -> frozenset[str]:
        """Return the values of `relation` (or an inverse) at `title`; may be empty."""
        return self.adjacent.get(relation, {}).get(title, NOTHING)

    @cached_property
    def relations(self) -> dict[str, tuple[str, ...]]:
        """Relations of each node, inverses included, sorted."""
        found = defaultdict(list)
        for relation, rows in self.adjacent.items():
            for title in rows:
                found[title].append(relation)
        return {title: tuple(sorted(some)) for title, some in sorted(found.items())}

    @cached_property
    def neighbours(self) -> dict[str, frozenset[str]]:
        """Titles connected to each node by a fact in either direction."""
        found = defaultdict(set)
        for subject, _, value in self.facts:
            found[subject].add(value)
            found[value].add(subject)
        return {title: frozenset(some) for title, some in found.items()}

    @cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Sorted titles of each kind."""
        found = defaultdict(list)
        for node in self.nodes.values():
            found[node.kind].append(node.title)
        return {kind: tuple(sorted(titles)) for kind, titles in sorted(found.items())}

    def is_value(self, title: str) -> bool:
        """Return True if `title` has no page: a value, or an unknown title."""
        return title not in self.nodes or self.nodes[title].kind == VALUE

    @cached_property
    def version(self) -> str:
        """First 12 hex digits of a SHA-256 over nodes and facts."""
        rows = [sorted(self.nodes.values()), self.facts]
        return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()[:12]

    def __len__(self) -> int:
        return len(self.nodes)
