"""WebSailor (arXiv 2507.02592, section 3.1): obfuscation, questions that say less than they know.

The paper: SailorFog-QA draws subgraphs around rare entities of the web and blurs what a question
says: a date becomes a period ("in the early 2010s"), a name its initials, a number a range ("of
less than 1"). Attempts of a strong model get short new thoughts, and are kept when they are right,
of at most 32k tokens and more than five calls; DUPO fills dead groups of a batch with copies.

Taken from it: the obfuscation. There a model writes the vague words; here an operator gives a
*predicate*, a query that can be executed. Whatever satisfied the fact satisfies the predicate, and
the whole question must still have its one answer, which is checked over the whole corpus with every
other check of `drlib.synthesis.checks`. New thoughts and bounds are in
`drlib.synthesis.demonstrations`, DUPO in `drlib.rl.filtering`. Missing: the choice of rare seeds,
and vague words that nobody could check ("a famous city").
"""

import random
import re
from collections.abc import Callable
from typing import NamedTuple

from drlib.synthesis.checks import answer_of, faults
from drlib.synthesis.queries import Or, Proj, Query, Range, numbers, substitute, walk
from drlib.synthesis.wording import TEMPLATES, render_question
from drlib.worlds.graph import Graph, inverse

DECADES = range(1000, 2101)  # years that are said as a decade or a part of one
OBFUSCATION_DRAWS = 8  # of an obfuscation, until a question is hard to find


class Predicate(NamedTuple):
    """`fact` said vaguely: everything that satisfies it satisfies `query`. `said` is the text that
    stands for `query.of`, "" where the query's own wording will do."""

    fact: Proj
    query: Query
    said: str = ""


class Fuzzed(NamedTuple):
    """What is left of a question: `render_question(query, graph, template, names)` words it.
    `applied` are (operator's name, predicate)."""

    query: Query
    names: dict[Query, str]
    applied: tuple[tuple[str, Predicate], ...]


def period(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A year becomes its decade or the early, mid or late part of it."""
    for year in _numbers(fact):
        decade, digit = year // 10 * 10, year % 10
        if digit <= 3:
            part = (0, 3)
        elif digit <= 6:
            part = (4, 6)
        else:
            part = (7, 9)
        first, last = rng.choice(((0, 9), part))
        if year in DECADES:
            return Predicate(fact, Range(inverse(fact.relation), decade + first, decade + last))
    return None


def band(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A number becomes the range of those with its first digit; one below 10 "less than 10"."""
    for number in _numbers(fact):
        unit = max(10, 10 ** (len(str(number)) - 1)) if number else 1
        low = number // unit * unit
        if number >= 0:
            return Predicate(fact, Range(inverse(fact.relation), low, low + unit - 1))
    return None


def initials(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A name becomes its initials: whatever of its kind has the same may be meant."""
    node = graph.nodes.get(fact.of)
    short = _initials(fact.of)
    if node is None or graph.is_value(fact.of) or not short:
        return None
    same = [title for title in graph.kinds[node.kind] if _initials(title) == short]
    meant = Or(tuple(same)) if len(same) > 1 else fact.of
    return Predicate(fact, Proj(fact.relation, meant), f'"{short}" (initials)')


def alias(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A name becomes another name of the same thing, which no other node has."""
    if fact.of not in graph.nodes:
        return None
    named = [name for node in graph.nodes.values() for name in {node.title, *node.aliases}]
    free = [name for name in graph.nodes[fact.of].aliases if named.count(name) == 1]
    return Predicate(fact, fact, rng.choice(free)) if free else None


def describe(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A thing becomes one of its facts, which similar things share: they merge into one."""
    shared = [
        Proj(inverse(relation), value)
        for relation in graph.relations.get(fact.of, ())
        for value in sorted(graph.values(fact.of, relation))
        if len(graph.values(value, inverse(relation))) > 1
    ]
    return Predicate(fact, Proj(fact.relation, rng.choice(shared))) if shared else None


OBFUSCATIONS: tuple[Callable, ...] = (period, band, initials, alias, describe)


def obfuscate(
    query: Query,
    graph: Graph,
    rng: random.Random,
    operators: tuple[Callable, ...] = OBFUSCATIONS,
) -> Fuzzed | None:
    """`query` with each of its facts made vague once, by a random operator under which the answer
    stays the only one and no new fault appears. None: no fact could be made vague."""
    answer = answer_of(query, graph)
    known_faults = {*faults(query, graph)}
    names: dict[Query, str] = {}
    applied: list[tuple[str, Predicate]] = []
    named_facts = [p for p in walk(query) if isinstance(p, Proj) and isinstance(p.of, str)]
    for fact in named_facts:
        for operator in rng.sample(operators, len(operators)):
            vague = operator(fact, graph, rng)
            if vague is None:
                continue
            new = substitute(query, fact, vague.query)
            same_answer = answer is not None and answer_of(new, graph) == answer
            if same_answer and {*faults(new, graph)} <= known_faults:
                query = new
                applied.append((operator.__name__, vague))
                if vague.said:
                    names[vague.query.of] = vague.said
                break
    return Fuzzed(query, names, tuple(applied)) if applied else None


def hard_question(
    query: Query, world, rng: random.Random, k: int = 10
) -> tuple[str, Fuzzed] | None:
    """(a question, its `Fuzzed`) that obfuscates `query` so that the question as a search does not
    show the answer's page among the first `k`. None: eight draws gave none. Function only: no run
    uses it yet."""
    answer = answer_of(query, world.graph)
    for _ in range(OBFUSCATION_DRAWS):
        fuzzed = obfuscate(query, world.graph, rng)
        if fuzzed is None:
            continue
        template = rng.randrange(TEMPLATES)
        text = render_question(fuzzed.query, world.graph, template, fuzzed.names)
        if all(hit.title != answer for hit in world.search(text, k)):
            return text, fuzzed
    return None


def _numbers(fact: Proj) -> list[int]:
    """The number that `fact` compares with, if it does."""
    return numbers((fact.of,)) if fact.relation.endswith(" of") else []


def _initials(title: str) -> str:
    return " ".join(f"{word[0]}." for word in re.findall(r"[^\W\d]\w*", title))
