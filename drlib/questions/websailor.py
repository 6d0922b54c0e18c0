"""WebSailor (arXiv 2507.02592, section 3.1): fog, questions that say less than they know.

The paper: SailorFog-QA draws subgraphs around rare entities of the web and blurs what a question
says: a date becomes a period ("in the early 2010s"), a name its initials, a number a range ("of
less than 1"). Attempts of a strong model get short new thoughts, and are kept when they are right,
of at most 32k tokens and more than five calls; DUPO fills dead groups of a batch with copies.

Taken from it: rare seeds and the obfuscation. There a model writes the vague words; here an
operator gives a *predicate*, a query that can be executed. A clue is fog only if it *widens*: what
satisfied the fact satisfies the predicate, and so does something else. Another name of the same
thing is no fog: it means no more than the name did, and a search for it finds the page. Nor is a
description whose words a search answers with the thing that they hide (`is_resolved`). The whole
question must still have its one answer, which is checked over the whole corpus with every other
check of `drlib.questions.checks`. New thoughts and bounds are in `drlib.demonstrations.episodes`,
DUPO in `drlib.rl.filtering`. Missing: vague words that nobody could check ("a famous city").
"""

import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, cast

from drlib.questions.checks import find_answer, find_faults
from drlib.questions.queries import (
    Or,
    Proj,
    Query,
    Range,
    canonicalise,
    evaluate_query,
    parse_numbers,
    substitute,
    walk,
)
from drlib.questions.read_back import Grammar, word_question
from drlib.questions.sentences import STYLES
from drlib.questions.wording import add_simple_article, render_question
from drlib.worlds.graph import Graph, inverse

DECADES = range(1000, 2101)  # years that are said as a decade or a part of one
CLUE_DRAWS = 4  # of one operator for one fact, until its predicate widens
OBFUSCATION_DRAWS = 8  # of an obfuscation, until a question is hard to find
RARE_SHARE = 1 / 2  # of the things that can be asked for: those with the fewest neighbours


class Predicate(NamedTuple):
    """`fact` said vaguely: everything that satisfies it satisfies `query`. `said` is the text that
    stands for `query.of`, "" where the query's own wording will do."""

    fact: Proj
    query: Query
    said: str = ""


class FuzzedQuery(NamedTuple):
    """What is left of a question. `names` are the texts for parts of `query` that wordings take
    (`render_question`, `word_question`); `applied` are (operator's name, predicate)."""

    query: Query
    names: dict[Query, str]
    applied: tuple[tuple[str, Predicate], ...]


def period(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A year becomes its decade or the early, mid or late part of it."""
    for year in _parse_number(fact):
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
    for number in _parse_number(fact):
        unit = max(10, 10 ** (len(str(number)) - 1)) if number else 1
        low = number // unit * unit
        if number >= 0:
            return Predicate(fact, Range(inverse(fact.relation), low, low + unit - 1))
    return None


def initials(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A name becomes its initials: whatever of its kind has the same, and stands in this relation
    to something, may be meant. None for names that are no words (`os.path`)."""
    name = cast(str, fact.of)
    node = graph.nodes.get(name)
    short = _take_initials(name)
    if node is None or graph.is_value(name) or not short:
        return None
    same = [
        title
        for title in graph.kinds[node.kind]
        if _take_initials(title) == short and graph.values(title, fact.relation)
    ]
    said = "the initials" if " " in short else "the initial"
    meant = canonicalise(Or(tuple(same))) if len(same) > 1 else fact.of
    return Predicate(
        fact, Proj(fact.relation, meant), f'{add_simple_article(node.kind)} with {said} "{short}"'
    )


def describe(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """A thing becomes one of its facts, which similar things share: they merge into one."""
    name = cast(str, fact.of)
    shared = [
        Proj(inverse(relation), value)
        for relation in graph.relations.get(name, ())
        for value in sorted(graph.values(name, relation))
        if len(graph.values(value, inverse(relation))) > 1
    ]
    return Predicate(fact, Proj(fact.relation, rng.choice(shared))) if shared else None


OBFUSCATIONS: tuple[Callable, ...] = (period, band, initials, describe)


def obfuscate(
    query: Query,
    graph: Graph,
    rng: random.Random,
    operators: Sequence[Callable] = OBFUSCATIONS,
    is_fog: Callable[[Predicate], bool] = lambda predicate: True,
) -> FuzzedQuery | None:
    """`query` with each of its facts made vague once, by a random operator that widens it and under
    which the answer stays the only one and no new fault appears. None: no fact could be made vague.

    is_fog: what else a predicate must be, beside wider than its fact (`widens`).
    """
    answer = find_answer(query, graph)
    known_faults = {*find_faults(query, graph)}
    names: dict[Query, str] = {}
    applied: list[tuple[str, Predicate]] = []
    named_facts = [p for p in walk(query) if isinstance(p, Proj) and isinstance(p.of, str)]
    for fact in named_facts:
        for operator in CLUE_DRAWS * rng.sample(operators, len(operators)):
            vague = operator(fact, graph, rng)
            if vague is None or not widens(vague, graph) or not is_fog(vague):
                continue
            new = substitute(query, fact, vague.query)
            same_answer = answer is not None and find_answer(new, graph) == answer
            if same_answer and {*find_faults(new, graph)} <= known_faults:
                query = new
                applied.append((operator.__name__, vague))
                if vague.said:
                    names[vague.query.of] = vague.said
                break
    return FuzzedQuery(query, names, tuple(applied)) if applied else None


def widens(predicate: Predicate, graph: Graph) -> bool:
    """Whether more things satisfy the predicate than its fact, and all that satisfied the fact."""
    fact, vague = (evaluate_query(q, graph) for q in (predicate.fact, predicate.query))
    return fact < vague


def is_resolved(predicate: Predicate, world) -> bool:
    """Whether a search for a clue's own words shows first the thing whose name it hides."""
    hidden = predicate.fact.of
    described = getattr(predicate.query, "of", None)
    if described is None:  # a number in a range: it has no page
        return False
    words = predicate.said or render_question(described, world.graph)
    return [hit.title for hit in world.search(words, 1)] == [hidden]


def select_rare_seeds(titles: Sequence[str], graph: Graph) -> tuple[str, ...]:
    """The half of `titles` with the fewest neighbours, in their order: seeds of which little is
    told. (The paper takes rare entities of the web by rules over Wikidata.)"""
    neighbours = {title: len(graph.neighbours.get(title, ())) for title in titles}
    most = sorted(neighbours.values())[int(RARE_SHARE * (len(titles) - 1))]
    return tuple(title for title in titles if neighbours[title] <= most)


def draw_hard_question(
    query: Query,
    world,
    grammar: Grammar,
    rng: random.Random,
    k: int = 10,
    resolved: dict[Predicate, bool] | None = None,
) -> tuple[str, FuzzedQuery] | None:
    """(a question in sentences, its `FuzzedQuery`) that obfuscates `query`: no search for a clue finds
    what it hides, and none for the whole question shows the answer's page among the first `k`.
    None: eight draws gave none.

    world: anything with a graph and a search. grammar: that of the whole world. resolved: which
    clues a search resolves, as far as earlier calls for the same world asked; filled here.
    """
    graph = world.graph
    known = {} if resolved is None else resolved

    def is_fog(clue: Predicate) -> bool:
        if clue not in known:
            known[clue] = is_resolved(clue, world)
        return not known[clue]

    answer = find_answer(query, graph)
    for _ in range(OBFUSCATION_DRAWS):
        fuzzed = obfuscate(query, graph, rng, is_fog=is_fog)
        if fuzzed is None:
            continue
        text = word_question(fuzzed.query, grammar, rng.choice(STYLES), fuzzed.names)
        if text and all(hit.title != answer for hit in world.search(text, k)):
            return text, fuzzed
    return None


def _parse_number(fact: Proj) -> list[int]:
    """The number that `fact` compares with, if it does."""
    return parse_numbers((cast(str, fact.of),)) if fact.relation.endswith(" of") else []


def _take_initials(title: str) -> str:
    """Of a name in words; "" for one of a program."""
    if re.search(r"\w[._]\w", title):
        return ""
    return " ".join(f"{word[0]}." for word in re.findall(r"[^\W\d]\w*", title))
