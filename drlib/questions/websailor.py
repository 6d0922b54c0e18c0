"""WebSailor (arXiv 2507.02592, section 3.1): obfuscated questions about rare entities.

SailorFog-QA blurs dates, names and numbers. In the paper a model writes the vague words; here an
operator returns an executable predicate, which must *widen* the fact: everything that satisfied the
fact satisfies it, and something else too. A clue whose words find the hidden thing by search is
rejected (`is_resolved`), and the whole question must keep its one answer. Vague words with a stated
meaning are in `drlib.questions.vague_words`. Not reproduced: words that cannot be checked ("a
famous city").
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

DECADES = range(1000, 2101)  # years worded as a decade or a part of one
CLUE_DRAWS = 4  # draws of one operator per fact
OBFUSCATION_DRAWS = 8  # obfuscations tried per question
RARE_SHARE = 1 / 2  # share of the titles with the fewest neighbours


class Predicate(NamedTuple):
    """A vague form of `fact`.

    Attributes:
        fact: the original condition.
        query: a query that everything with the fact satisfies.
        said: text for `query.of`, or for the numbers of a range; empty if the query's own wording
            suffices.
    """

    fact: Proj
    query: Query
    said: str = ""


class FuzzedQuery(NamedTuple):
    """An obfuscated query.

    Attributes:
        names: texts for parts of `query` (for `render_question` and `word_question`).
        applied: (operator name, predicate) pairs.
    """

    query: Query
    names: dict[Query, str]
    applied: tuple[tuple[str, Predicate], ...]


def period(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """Replace a year by its decade or by the early, middle or late part of it."""
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
    """Replace a number by the range with its first digit; below 10, by "less than 10"."""
    for number in _parse_number(fact):
        unit = max(10, 10 ** (len(str(number)) - 1)) if number else 1
        low = number // unit * unit
        if number >= 0:
            return Predicate(fact, Range(inverse(fact.relation), low, low + unit - 1))
    return None


def initials(fact: Proj, graph: Graph, rng: random.Random) -> Predicate | None:
    """Replace a name by its initials, meaning all things of its kind with them; None for
    identifiers.
    """
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
    """Replace a thing by one of its facts that other things share."""
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
    """Obfuscate each fact of `query` once, if the answer stays unique and no new fault appears.

    Args:
        query: the query.
        graph: the facts.
        rng: source of randomness.
        operators: obfuscation operators.
        is_fog: further requirement on a predicate, besides `widens`.

    Returns:
        The obfuscated query, or None if no fact could be obfuscated.
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
                    is_range = isinstance(vague.query, Range)
                    names[vague.query if is_range else vague.query.of] = vague.said
                break
    return FuzzedQuery(query, names, tuple(applied)) if applied else None


def widens(predicate: Predicate, graph: Graph) -> bool:
    """Return True if the predicate holds for all things with the fact and for others."""
    fact, vague = (evaluate_query(q, graph) for q in (predicate.fact, predicate.query))
    return fact < vague


def is_resolved(predicate: Predicate, world) -> bool:
    """Return True if the first hit of a search for the clue is the thing that it hides."""
    hidden = predicate.fact.of
    described = getattr(predicate.query, "of", None)
    if described is None:  # a number in a range: it has no page
        return False
    words = predicate.said or render_question(described, world.graph)
    return [hit.title for hit in world.search(words, 1)] == [hidden]


def select_rare_seeds(titles: Sequence[str], graph: Graph) -> tuple[str, ...]:
    """Return the half of `titles` with the fewest neighbours (the paper uses rules over
    Wikidata).
    """
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
    operators: Sequence[Callable] = OBFUSCATIONS,
) -> tuple[str, FuzzedQuery] | None:
    """Return (question, obfuscated query) that no single search solves.

    No search for a clue finds what it hides, and a search for the question does not show the
    answer's page among the first `k` results.

    Args:
        query: the query to obfuscate.
        world: object with a graph and a search.
        grammar: grammar of the whole world.
        rng: source of randomness.
        k: number of results.
        resolved: cache of `is_resolved` for this world, filled here.
        operators: obfuscation operators.

    Returns:
        The question, or None after `OBFUSCATION_DRAWS` draws.
    """
    graph = world.graph
    known = {} if resolved is None else resolved

    def is_fog(clue: Predicate) -> bool:
        """Return True if a search does not resolve the clue."""
        if clue not in known:
            known[clue] = is_resolved(clue, world)
        return not known[clue]

    answer = find_answer(query, graph)
    for _ in range(OBFUSCATION_DRAWS):
        fuzzed = obfuscate(query, graph, rng, operators, is_fog)
        if fuzzed is None:
            continue
        text = word_question(fuzzed.query, grammar, rng.choice(STYLES), fuzzed.names)
        if text and all(hit.title != answer for hit in world.search(text, k)):
            return text, fuzzed
    return None


def _parse_number(fact: Proj) -> list[int]:
    """Return the number that `fact` compares with, if any."""
    return parse_numbers((cast(str, fact.of),)) if fact.relation.endswith(" of") else []


def _take_initials(title: str) -> str:
    """Return the initials of a name; empty for an identifier."""
    if re.search(r"\w[._]\w", title):
        return ""
    return " ".join(f"{word[0]}." for word in re.findall(r"[^\W\d]\w*", title))
