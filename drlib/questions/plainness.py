"""Plainness: rules for questions that a person would ask.

A verified query can still be unnatural: it depends on an equal year, compares with an unnamed
thing, nests clauses, uses facts that only a database has (phrases.yaml marks them), or needs
several sentences. It can also reveal too much, for example by names that resemble the answer. Such
questions are used only if a world has too few others, those that reveal too much last.
"""

import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from drlib.questions.checks import PLAIN, count_coincidences, have_same_stem
from drlib.questions.phrases import PERSONS, Phrasebook, find_participle
from drlib.questions.queries import (
    And,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    count_clauses,
    evaluate_query,
    find_compared,
    list_constants,
    walk,
)
from drlib.worlds.graph import VALUE, Graph, inverse
from drlib.worlds.territories import STATE_OF, UNINHABITED

MAX_WORDS = 32
MAX_NAMES = 3
MAX_CONDITIONS = 2
MAX_INNER_CLAUSES = 1  # in all conditions together
OF_TWO_SENTENCES = 2  # penalty for each further sentence
REVEALING_PENALTY = 3  # penalty for a question that reveals too much
FEW = 4  # a condition on public facts with fewer results is easy to guess
TELLING = frozenset(["time zone"])  # kinds whose names contain another name: Africa/Cairo
OF_ONE_PLACE = frozenset(
    ["language", "script", "currency"]
)  # often used in one place only: Hebrew, Adlam
# awkward names: "(1994–2002)", "Congo - Brazzaville", "Wallis & Futuna" before "and is one where",
# and names of scripts that only CLDR uses
AWKWARD = re.compile(r"\(\d| - | SAR | & |^(?:Simplified|Traditional) script$")
# "the SQL for everyone course" begins as another sentence
UNQUOTED = re.compile(r"^the [^\"“]+ (?:and|at|for|from|in|of|to|with) [^\"“]+$")
LONG_WORD = re.compile(r"[A-Z]?[^\W\d_A-Z]{3,}|[A-Z]{4,}")  # camel case is split
COMMON = 0.1  # a word in this share of the names distinguishes none
SAID_TWICE = tuple(  # one word, or one comparison
    re.compile(pattern)
    for pattern in (
        r"\b(\w{5,}?)\w* by (?:an?|the) \1",  # "maintained by a maintainer"
        r"\b(\w{5,}) whose \1\b",  # "the release whose release manager is Ada"
        r"\b(\w{5,}) (?:that|who) has been an? \1\b",  # "a customer that has been a customer"
        r"\b(\w{5,}) \w+ of the \w+ \1\b",  # "the office manager of the Porto office"
        r"\b(\w{5,}) \w+ by the same \1\b",  # "a person led by the same person"
        r"^\w+ (\w+)\b.*\bthe same \1 as\b",  # "Which person is led by the same person as Ada?"
        r"\bthe same (\w+) as\b.*\bthe same \1 as\b",  # owned by, and approved by the same person
    )
)
# mixes past and present: "Which experiment was led by Ada and uses the same method"
TWO_TIMES = re.compile(r"^\S+ \S+ (?:was\b.* and uses|uses\b.* and was)\b")
OFFICIAL = "official language"  # common knowledge about a country
ALIKE = 3  # common first letters of a country and its language: Finland, Finnish


def measure_strangeness(query: Query, text: str, book: Phrasebook) -> int:
    """Return a penalty for what keeps a person from asking `query` as `text`; 0 means plain.

    Args:
        query: the query.
        text: its wording.
        book: the phrases of its world.
    """
    if any(isinstance(part, Exists) for part in walk(query)):
        return OF_TWO_SENTENCES  # a choice needs a sentence of its own
    words = text.removeprefix(f"{book.source}, ")
    names, answers = list_constants(query), evaluate_query(query, book.graph)
    parts = [*_iter_conditions(query)]
    faults = (
        len(words.split()) > MAX_WORDS,
        " step" in words,
        len(names) > MAX_NAMES,
        len(parts) > MAX_CONDITIONS,
        bool(UNINHABITED & {*names, *answers}),
        any(AWKWARD.search(name) or UNQUOTED.search(book.name(name)) for name in names),
        _repeats(query, book),
        len({_get_relation(part) for part in parts}) < len(parts),
        any(pattern.search(words) for pattern in SAID_TWICE),
        TWO_TIMES.search(words) is not None,
        any(_is_torn(part, book) for part in walk(query)),
        any(_compares_kinds(part, answers, book) for part in parts),
        any(_compares_methods(part, answers, book) for part in parts),
        any(_compares_with_any(part, book) for part in walk(query)),
        any(_is_one_of_several(part, answers, book) for part in parts),
        any(_is_one_of_any(part, book) for part in walk(query) if part not in parts),
        _is_idle_for_a_reader(parts, names, answers, book),
        count_coincidences(query, lambda part: evaluate_query(part, book.graph)) > 0,
        not all(_is_of_one_kind(part, book) for top in parts for part in [*walk(top)][1:]),
    )
    inner = sum(max(0, count_clauses(part) - 1) for part in parts)
    deep = max(0, inner - MAX_INNER_CLAUSES)
    odd = sum(_is_odd(part, book) for part in walk(query))
    penalty = REVEALING_PENALTY * _reveals_too_much(query, parts, answers, book)
    return OF_TWO_SENTENCES * (words.count(". ") + odd) + deep + sum(faults) + penalty


def select_plain_facts(graph: Graph, book: Phrasebook) -> Graph:
    """Return `graph` with only the facts and titles that people ask about."""
    pages = [node for node in graph.nodes.values() if node.kind != VALUE]
    hidden = UNINHABITED | {node.title for node in pages if node.kind in TELLING}
    facts = [
        (thing, relation, value)
        for thing, relation, value in graph.facts
        if book.phrases[relation].plain != "never" and not hidden & {thing, value}
    ]
    return Graph([node for node in pages if node.title not in hidden], facts)


def _iter_conditions(query: Query) -> Iterator[Query]:
    """Yield the conditions that a sentence joins by "and" or excepts."""
    if isinstance(query, And):
        yield from query.parts
    elif isinstance(query, Diff):
        yield from _iter_conditions(query.left)
        yield from _iter_conditions(query.right)
    else:
        yield query


def _get_relation(query: Query) -> str:
    """Return the relation of a condition without direction, or its class name."""
    is_fact = isinstance(query, Proj | Range | Extreme)
    return query.relation.removesuffix(" of") if is_fact else type(query).__name__


# ---- unnatural questions


def _is_odd(part: Query, book: Phrasebook) -> bool:
    """Return True if no person asks by the relation of `part`."""
    if not isinstance(part, Proj | Range | Extreme):
        return False
    phrase = book.phrases[_get_relation(part)]
    if isinstance(part, Proj) and find_compared(part) is not None:
        return phrase.plain != "always"
    return phrase.plain == "never"


def _is_torn(part: Query, book: Phrasebook) -> bool:
    """Return True if a description splits a phrase: "has the manager of Ada as its lead"."""
    if not isinstance(part, Proj) or not part.relation.endswith(" of"):
        return False
    phrase = book.phrases[_get_relation(part)]
    other = find_compared(part)
    form = phrase.of_thing if other is None else phrase.same
    described = part.of if other is None else other
    return isinstance(described, Proj) and not form.endswith("{x}")


def _compares_kinds(part: Query, answers: frozenset[str], book: Phrasebook) -> bool:
    """Return True if the target is compared with another kind, or a person with a described
    person.
    """
    other = find_compared(part) if isinstance(part, Proj) else None
    if other is None or not book.is_folder:
        return False
    kinds = {book.kind(title) for title in evaluate_query(other, book.graph)}
    return kinds != {book.kind(title) for title in answers} or (
        isinstance(other, Proj) and kinds <= PERSONS
    )


def _compares_methods(part: Query, answers: frozenset[str], book: Phrasebook) -> bool:
    """Return True if two methods share a parameter name, since all of them share "self"."""
    other = find_compared(part) if isinstance(part, Proj) else None
    if other is None or _get_relation(part) != "parameter":
        return False
    compared = (*evaluate_query(other, book.graph), *answers)
    return {book.kind(title) for title in compared} == {"method"}


def _compares_with_any(part: Query, book: Phrasebook) -> bool:
    """Return True if the target is compared with one of several things.

    An example is "the same product as a customer in Porto", which readers misread most often.
    """
    other = find_compared(part) if isinstance(part, Proj) else None
    return isinstance(other, Proj) and len(evaluate_query(other, book.graph)) > 1


def _is_one_of_several(part: Query, answers: frozenset[str], book: Phrasebook) -> bool:
    """Return True if "the same currency" refers to a thing with two of them."""
    if not isinstance(part, Proj) or find_compared(part) is None:
        return False
    relation = _get_relation(part)
    says_the = "the same" in book.phrases[relation].same
    return says_the and any(len(book.graph.values(answer, relation)) > 1 for answer in answers)


def _is_one_of_any(part: Query, book: Phrasebook) -> bool:
    """Return True if a description of one thing is worded as for any number of things."""
    if not isinstance(part, Proj) or len(evaluate_query(part, book.graph)) != 1:
        return False
    says_any = "at least" in book.phrases[_get_relation(part)].of_values
    is_any = says_any and not part.relation.endswith(" of")
    return is_any or _are_mostly_several(part.relation, book)


@lru_cache(maxsize=1 << 10)
def _are_mostly_several(relation: str, book: Phrasebook) -> bool:
    """Return True if most things with a value of `relation` have several."""
    counts = [len(values) for values in book.graph.adjacent.get(relation, {}).values()]
    return 2 * sum(count > 1 for count in counts) > len(counts)


def _repeats(query: Query, book: Phrasebook) -> bool:
    """Return True if a relation follows itself, a rank has no noun, or the text needs "or"."""
    for part in walk(query):
        if isinstance(part, Proj) and isinstance(part.of, Proj):
            is_value = not part.relation.endswith(" of")
            phrase = book.phrases[_get_relation(part)]
            back_again = inverse(part.relation) if is_value and not phrase.along else ""
            if part.of.relation in (part.relation, back_again):
                return True
        if isinstance(part, Or):
            return True
        if isinstance(part, Extreme) and find_participle(part.relation):
            return True
    return False


def _is_of_one_kind(query: Query, book: Phrasebook) -> bool:
    """Return True if all answers of `query` have the same kind."""
    return len({book.kind(title) for title in evaluate_query(query, book.graph)}) < 2


def _is_idle_for_a_reader(
    parts: list[Query], names: list[str], answers: frozenset[str], book: Phrasebook
) -> bool:
    """Return True if one condition leaves only the answer and things that the question names.

    In "the same currency as Sint Maarten" a reader excludes Sint Maarten.
    """
    left = (evaluate_query(part, book.graph) - {*names} for part in parts)
    return len(parts) > 1 and any(some <= answers for some in left)


# ---- revealing questions


def _reveals_too_much(
    query: Query, parts: list[Query], answers: frozenset[str], book: Phrasebook
) -> bool:
    """Return True if a reader without tools can guess the answer or a thing on the path."""
    names = list_constants(query)
    if any(book.kind(name) in TELLING for name in names):
        return True
    if any(_is_alike(name, answer, book) for name in names for answer in answers):
        return True
    if any(_names_what_it_finds(part, book) for part in walk(query) if part not in parts):
        return True
    if any(_names_what_is_shared(part, answers, book) for part in parts):
        return True
    if any(STATE_OF.get(name) in answers for name in names):
        return True
    if not book.source:
        return False
    if any(_is_shared_currency(part) for part in walk(query)):
        return True
    if _names_two_official_languages(parts, answers, book):
        return True
    on_the_way = _find_intermediate(query, book)
    if any(_is_alike(thing, answer, book) for thing in on_the_way for answer in answers):
        return True
    return any(len(evaluate_query(part, book.graph)) < FEW for part in parts)


def _find_intermediate(query: Query, book: Phrasebook) -> frozenset[str]:
    """Return the answers of the descriptions in `query`, such as German if the answer is
    Germany.
    """
    described = (part.of for part in walk(query) if isinstance(part, Proj))
    found = (evaluate_query(of, book.graph) for of in described if isinstance(of, Proj))
    return frozenset().union(*found)


def _names_two_official_languages(
    parts: list[Query], answers: frozenset[str], book: Phrasebook
) -> bool:
    """Return True if two conditions give official languages of the answer, as for Belgium."""
    languages = [book.graph.values(answer, OFFICIAL) for answer in answers]
    official = frozenset().union(*languages)
    operands = [part.of for part in parts if isinstance(part, Proj)]
    found = [{of} if isinstance(of, str) else evaluate_query(of, book.graph) for of in operands]
    return sum(bool(official & things) for things in found) > 1


def _is_shared_currency(part: Query) -> bool:
    """Return True if a former currency of one country is asked by that of another, mostly a
    neighbour.
    """
    if not (isinstance(part, Proj) and isinstance(part.of, Proj)):
        return False
    relations = {part.relation.removesuffix(" of"), part.of.relation}
    return relations == {"currency", "former currency"}


def _names_what_it_finds(part: Query, book: Phrasebook) -> bool:
    """Return True if a description names its result: the official language of Samoa."""
    if not (isinstance(part, Proj) and isinstance(part.of, str)):
        return False
    found = evaluate_query(part, book.graph)
    if any(_is_alike(part.of, title, book) for title in found):
        return True
    if not book.source:
        return False
    if len(found) == 1 and book.kind(part.of) in OF_ONE_PLACE:
        return True
    begins = book.name(part.of).removeprefix("the ")[:ALIKE]
    return any(book.name(title).removeprefix("the ").startswith(begins) for title in found)


def _names_what_is_shared(part: Query, answers: frozenset[str], book: Phrasebook) -> bool:
    """Return True if a compared thing has the shared value in its name, or its state's currency.

    An example is a function waitstatus_to_exitcode with a parameter status.
    """
    other = find_compared(part) if isinstance(part, Proj) else None
    if not isinstance(other, str):
        return False
    relation = _get_relation(part)
    if relation == "currency" and other in STATE_OF:
        return True
    name = _strip_to_letters(book.name(other))
    shared = (book.graph.values(answer, relation) for answer in answers)
    values = frozenset().union(*shared) & book.graph.values(other, relation)
    return any(_strip_to_letters(book.name(value)) in name for value in values)


def _strip_to_letters(name: str) -> str:
    """Return `name` without article, spaces and punctuation, case-folded."""
    return re.sub(r"\W", "", name.removeprefix("the ")).casefold()


def _is_alike(name: str, answer: str, book: Phrasebook) -> bool:
    """Return True if two names share a word stem or a package (ssl.SSLSocket and ssl.SSLError)."""
    pair = [book.name(title) for title in (name, answer)]
    package, other = (one.removeprefix("the ").partition(".") for one in pair)
    if package[1] and package[0] == other[0] and package[0] not in _find_common_words(book):
        return True
    words, others = (_find_long_words(one) - _find_common_words(book) for one in pair)
    return any(have_same_stem(one, two) for one in words for two in others)


def _find_long_words(name: str) -> frozenset[str]:
    """Return the long words of a name, case-folded."""
    return frozenset(word.casefold() for word in LONG_WORD.findall(name.partition(" (")[0]))


@lru_cache(maxsize=8)
def _find_common_words(book: Phrasebook) -> frozenset[str]:
    """Return words that distinguish no name: frequent ones and nouns of kinds."""
    names = [book.name(title) for title, node in book.graph.nodes.items() if node.kind != VALUE]
    counts = Counter(word for name in names for word in _find_long_words(name))
    frequent = {word for word, count in counts.items() if count > COMMON * len(names)}
    packages = Counter(name.removeprefix("the ").partition(".")[0] for name in names)
    frequent |= {name for name, count in packages.items() if count > COMMON * len(names)}
    return frozenset(frequent | {word for noun in book.nouns for word in noun.split()} | PLAIN)
