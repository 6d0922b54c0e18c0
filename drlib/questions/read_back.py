"""Parser that proves that a natural-language question means its query and nothing else.

It uses the grammar of `sentences` and the phrases of the world, and follows every possible reading.
A wording is accepted only if all readings give the same query. `word_question` tries the styles in
turn and returns the first text that is proved.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from drlib.questions.joins import normalise_query
from drlib.questions.phrases import Phrasebook, to_plural, to_plural_clause
from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    Var,
    choose_rank_words,
)
from drlib.questions.sentences import (
    CHOSEN,
    FIRST,
    LAST,
    NEXT,
    ORDINALS,
    STYLES,
    Style,
    write_sentences,
)
from drlib.worlds.graph import Graph

BEGINS = 4  # first letters by which titles are indexed


class TitleIndex:
    """Index of the texts of titles by their first letters and lengths; `titles` maps text to
    title.
    """

    def __init__(self, titles: Mapping[str, str]):
        self.titles = titles
        found: dict[str, set[int]] = defaultdict(set)
        for said in titles:
            found[said[:BEGINS] if len(said) >= BEGINS else ""].add(len(said))
        self._lengths = {begins: sorted(some, reverse=True) for begins, some in found.items()}

    def find_at(self, text: str, at: int) -> Iterator[tuple[str, int]]:
        """Yield (title, end) for each title at position `at` that ends at a word boundary,
        longest first.
        """
        lengths = self._lengths.get(text[at : at + BEGINS], ())
        for length in (*lengths, *self._lengths.get("", ())):
            end = at + length
            title = self.titles.get(text[at:end]) if end <= len(text) else None
            if title is not None and not text[end : end + 1].isalnum():
                yield title, end


Reading = tuple[Query, int]  # query and end position
SPAN = re.compile(r"in the (\d+)s|between (-?\d+) and (-?\d+)|(?:in|of) (-?\d+)")


class Form(NamedTuple):
    """A phrase as the texts before and after {x}, and the query it makes from that of {x}."""

    before: str
    after: str
    make: Callable[[Query], Query]


class StepResult(NamedTuple):
    """The query of a step and the noun by which later sentences refer to it."""

    query: Query
    noun: str


class Grammar:
    """The phrase forms of a world, indexed by their first word."""

    def __init__(self, book: Phrasebook):
        self.book = book
        self.verbs: dict[str, list[Form]] = defaultdict(list)
        self.clauses: dict[str, list[Form]] = defaultdict(list)
        self.spans: dict[bool, list[tuple[str, str, str]]] = {True: [], False: []}
        for relation, phrase in book.phrases.items():
            self._add(relation, phrase)
        self.titles = TitleIndex(book.titles)
        self.relations: dict[str, list[str]] = defaultdict(list)
        for relation, phrase in book.phrases.items():
            for noun, name in ((phrase.owned, relation), (phrase.owner, f"{relation} of")):
                for form in (noun, to_plural(noun)) if noun else ():
                    self.relations[form].append(name)
        nouns = {form for noun in book.nouns for form in (noun, to_plural(noun))}
        self.nouns: dict[str, list[str]] = defaultdict(list)  # with a space, longest first
        for noun in sorted(nouns, key=lambda noun: (-len(noun), noun)):
            self.nouns[noun.split(" ", 1)[0]].append(f"{noun} ")
        self.ranks = [
            (f"with the {rank} {phrase.label} among ", relation, bool(most))
            for relation, phrase in book.phrases.items()
            for most, rank in enumerate(choose_rank_words(phrase.label))
        ]

    def _add(self, relation: str, phrase) -> None:
        """Index the forms of one phrase."""
        back = f"{relation} of"
        makers = (
            (phrase.of_thing, phrase.of_things, lambda of: Proj(back, of)),
            (phrase.of_value, phrase.of_values, lambda of: Proj(relation, of)),
            (phrase.same, phrase.sames, lambda of: Proj(back, Proj(relation, of))),
            (phrase.along, phrase.alongs, lambda of: Proj(relation, Proj(back, of))),
        )
        for verb, clause, make in makers:
            said = [(text, self.clauses) for text in {clause, to_plural_clause(clause)}]
            for text, forms in ((verb, self.verbs), *said) if verb else ():
                before, after = text.split("{x}")
                forms[before.split(" ", 1)[0]].append(Form(before, after, make))
        for is_verb, text in ((True, phrase.during), (False, phrase.durings)):
            before, after = text.split("{x}")
            self.spans[is_verb].append((relation, before, after))


def read_question(text: str, grammar: Grammar) -> Query:
    """Return the normalised query that `text` asks.

    Raises:
        ValueError: the text does not follow the grammar or is ambiguous.
    """
    found = {normalise_query(query) for query in _iter_readings(text, grammar)}
    if len(found) != 1:
        ways = f"can be read in {len(found)} ways" if found else "is none of ours"
        raise ValueError(f"the question {text!r} {ways}")
    return found.pop()


@lru_cache(maxsize=8)
def load_grammar(graph: Graph, scheme: str) -> Grammar:
    """Return the cached grammar of a world."""
    return Grammar(Phrasebook(graph, scheme))


def _iter_readings(text: str, grammar: Grammar) -> Iterator[Query]:
    """Yield the queries that `text` can mean."""
    if grammar.book.source:
        text = _strip_source(text, grammar.book.source)
        if not text:
            return
    yield from _read_steps(text, 0, grammar, [])


def _strip_source(text: str, source: str) -> str:
    """Return `text` without the words of `add_source`; empty if they are missing."""
    before, after = f"{source}, ", f", {source[0].lower()}{source[1:]}."
    if text.startswith(before):
        text = text.removeprefix(before)
        return text[:1].upper() + text[1:]
    return text.replace(after, ".", 1) if after in text else ""


def _read_steps(text: str, at: int, grammar: Grammar, found: list[StepResult]) -> Iterator[Query]:
    """Yield the readings of the rest of a question after the steps in `found`."""
    reader = _Reader(text, grammar, found)
    if text.startswith(CHOSEN, at):
        start = at + len(CHOSEN)
        chosen = Var(f"X{1 + len(found)}")
        for noun in reader.list_step_nouns(start):
            for among, end in reader.read_description(start, ("a ", "an ")):
                if text.startswith(". ", end):
                    more = [*found, StepResult(chosen, noun)]
                    for query in _read_steps(text, end + 2, grammar, more):
                        yield Exists(chosen.name, among, query)
    begins = NEXT if found else FIRST
    if text.startswith(begins, at):
        start = at + len(begins)
        for noun in reader.list_step_nouns(start):
            for query, end in [*reader.read_description(start), *reader.read_operand(start)]:
                if text.startswith(". ", end):
                    step = StepResult(query, noun)
                    yield from _read_steps(text, end + 2, grammar, [*found, step])
    is_last = not all(isinstance(step.query, Var) for step in found)
    if not is_last or text.startswith(LAST, at):
        yield from reader.read_final(at + (len(LAST) if is_last else 0))


class _Reader:
    """Reader of one text; each method returns all readings that start at position `at`."""

    def __init__(self, text: str, grammar: Grammar, found: list[StepResult]):
        self.text = text
        self.grammar = grammar
        self.found = found  # results of the previous steps
        self._known: dict[tuple[str, int], list[Reading]] = {}

    def read_final(self, at: int) -> Iterator[Query]:
        """Yield the queries of the last sentence, which is the rest of the text."""
        end = len(self.text)
        begins = self.text[at : at + 1].lower() + self.text[at + 1 :]

        def rest(words: str) -> int | None:
            """Return the position after `words`, or None."""
            return at + len(words) if begins.startswith(words) else None

        for words, ending in (("how many ", " are there?"), ("what is the number of ", "?")):
            start = rest(words)
            for query, stop in self.read_group(start, "") if start is not None else ():
                if self.text[stop:] == ending:
                    yield Count(query)
        for start in filter(None, (rest("what is "), rest("who is "))):
            for query, stop in [*self.read_description(start), *self.read_operand(start)]:
                if self.text[stop:] == "?":
                    yield query
        start = rest("who ")
        for query, last in self.read_conditions(start, True, "") if start is not None else ():
            if last == end - 1 and self.text[last] == "?":
                yield query
        for words, that in (("which ", ""), ("name the ", "that "), ("name the ", "who ")):
            start = rest(words)
            for stop in self._skip_noun(start) if start is not None else ():
                for query, last in self.read_conditions(stop, True, that):
                    if last == end - 1 and self.text[last] in "?.":
                        yield query

    def _skip_noun(self, at: int) -> list[int]:
        """Return the positions after each noun that starts here, including its space."""
        nouns = self.grammar.nouns.get(self._get_word(at), ())
        return [at + len(noun) for noun in nouns if self.text.startswith(noun, at)]

    def _read_relation(self, start: int, end: int) -> list[Reading]:
        """Read "harbour of the boat": a noun that names a relation, from `start` to `end`."""
        relations = self.grammar.relations.get(self.text[start : end - 1], ())
        if not relations or not self.text.startswith("of ", end):
            return []
        things = self.read_operand(end + 3)
        return [(Proj(relation, of), stop) for relation in relations for of, stop in things]

    def list_step_nouns(self, at: int) -> list[str]:
        """List the nouns by which later sentences can refer to the step that starts here."""
        for begins in ("the ", "each ", "a ", "an "):
            if self.text.startswith(begins, at):
                start = at + len(begins)
                nouns = [self.text[start : end - 1] for end in self._skip_noun(start)]
                return [to_plural(noun) for noun in nouns] if begins == "each " else nouns
        return []

    def read_description(self, at: int, articles: Sequence[str] = ("the ",)) -> list[Reading]:
        """Read "the currency used in Denmark" with all its conditions."""
        found = []
        for begins in articles:
            noun = at + len(begins)
            for start in self._skip_noun(noun) if self.text.startswith(begins, at) else ():
                found += self._read_relation(noun, start)
                found += self.read_conditions(start, False, "")
                for that in ("that ", "who "):
                    found += self.read_conditions(start, True, that)
        return found

    def read_conditions(self, at: int, is_verb: bool, that: str) -> list[Reading]:
        """Read one or several conditions and their exceptions."""
        found = []
        waiting: list[tuple[tuple[Query, ...], int]]
        waiting = [((query,), end) for query, end in self._read_condition(at, is_verb, that)]
        while waiting:
            parts, end = waiting.pop()
            whole = And(parts) if len(parts) > 1 else parts[0]
            found.append((whole, end))
            found += self._read_exception(whole, end, is_verb)
            for between in (", and ", " and "):
                if self.text.startswith(between, end):
                    more = self._read_condition(end + len(between), is_verb, that)
                    waiting += [((*parts, query), stop) for query, stop in more]
        return found

    def _read_exception(self, left: Query, at: int, is_verb: bool) -> list[Reading]:
        """Read an exception to the conditions in `left`."""
        found: list[Reading] = []
        name = ", and is not " if is_verb else ", other than "
        if self.text.startswith(name, at):
            start = at + len(name)
            others = [r for r in self._read_references(start, "") if isinstance(r[0], Var)]
            found += [
                (Diff(left, query), end) for query, end in [*others, *self._read_names(start)]
            ]
        some = ", but is not one " if is_verb else ", but not one "
        if self.text.startswith(some, at):
            waiting: list[tuple[tuple[Query, ...], int]]
            waiting = [((q,), end) for q, end in self._read_condition(at + len(some), False, "")]
            while waiting:
                parts, end = waiting.pop()
                found.append((Diff(left, And(parts) if len(parts) > 1 else parts[0]), end))
                if self.text.startswith(" and ", end):
                    more = self._read_condition(end + 5, False, "")
                    waiting += [((*parts, query), stop) for query, stop in more]
        return found

    def _read_condition(self, at: int, is_verb: bool, that: str) -> list[Reading]:
        """Read one condition after the pronoun `that`."""
        if not self.text.startswith(that, at):
            return []
        return self._memoise(f"condition {is_verb}", at + len(that), self._read_any_condition)

    def _read_any_condition(self, at: int, key: str) -> list[Reading]:
        """Read a fact, a range, alternatives or an identity."""
        is_verb = key.endswith("True")
        found = self._read_fact(at, is_verb) + self._read_range(at, is_verb)
        if self.text.startswith("either ", at):
            waiting: list[tuple[tuple[Query, ...], int]]
            waiting = [((q,), end) for q, end in self._read_condition(at + 7, is_verb, "")]
            while waiting:
                parts, end = waiting.pop()
                if len(parts) > 1:
                    found.append((Or(parts), end))
                if self.text.startswith(" or ", end):
                    more = self._read_condition(end + 4, is_verb, "")
                    waiting += [((*parts, query), stop) for query, stop in more]
        being = "is " if is_verb else "being "
        if self.text.startswith(being, at):
            found += self.read_operand(at + len(being))
        return found

    def _read_fact(self, at: int, is_verb: bool) -> list[Reading]:
        """Read a phrase with its operand."""
        forms = self.grammar.verbs if is_verb else self.grammar.clauses
        found = []
        for form in forms.get(self._get_word(at), ()):
            if self.text.startswith(form.before, at):
                for query, end in self.read_operand(at + len(form.before)):
                    if self.text.startswith(form.after, end):
                        found.append((form.make(query), end + len(form.after)))
        return found

    def _read_range(self, at: int, is_verb: bool) -> list[Reading]:
        """Read a number, a range or a decade."""
        found = []
        for relation, before, after in self.grammar.spans[is_verb]:
            if not self.text.startswith(before, at):
                continue
            match = SPAN.match(self.text, at + len(before))
            if match and self.text.startswith(after, match.end()):
                decade, low, high, one = match.groups()
                if decade:
                    low, high = decade, int(decade) + 9
                span = Range(relation, int(low or one), int(high or one))
                found.append((normalise_query(span), match.end() + len(after)))
        return found

    def read_operand(self, at: int) -> list[Reading]:
        """Read a name, names with "or", a step reference, a count or a description."""
        return self._memoise("operand", at, self._read_any_operand)

    def _read_any_operand(self, at: int, _key: str) -> list[Reading]:
        """Read an operand without the cache."""
        found = self._read_names(at) + self._read_references(at, "one of ")
        counted = "the number of "
        if self.text.startswith(counted, at):
            groups = self.read_group(at + len(counted), "")
            found += [(Count(query), end) for query, end in groups]
        for begins in ("the ", "a ", "an ", "each "):
            if self.text.startswith(begins, at):
                for start in self._skip_noun(at + len(begins)):
                    found += self._read_relation(at + len(begins), start)
                    found += self._read_condition(start, False, "")
                    found += self._read_extreme(start)
                    if begins == "each " and self.text.startswith("that is ", start):
                        found += self._read_alternatives(start + len("that is "))
        return found

    def _read_alternatives(self, at: int) -> list[Reading]:
        """Read operands joined by "or"."""
        found: list[Reading] = []
        waiting: list[tuple[tuple[Query, ...], int]]
        waiting = [((query,), end) for query, end in self.read_operand(at)]
        while waiting:
            parts, end = waiting.pop()
            if len(parts) > 1:
                found.append((Or(parts), end))
            if self.text.startswith(" or ", end):
                more = self.read_operand(end + 4)
                waiting += [((*parts, query), stop) for query, stop in more]
        return found

    def _read_extreme(self, at: int) -> list[Reading]:
        """Read "with the earliest year among ..."."""
        found: list[Reading] = []
        for words, relation, most in self.grammar.ranks:
            if self.text.startswith(words, at):
                groups = self.read_group(at + len(words), "the ")
                found += [(Extreme(relation, query, most), end) for query, end in groups]
        return found

    def read_group(self, at: int, article: str) -> list[Reading]:
        """Read a set of things: "(the) currencies used in Denmark" or "those years"."""
        found = self._read_names(at) + self._read_references(at, "")
        if not article:
            found += self._read_references(at, "", drop="the ")
        if self.text.startswith(article, at):
            for start in self._skip_noun(at + len(article)):
                found += self._read_relation(at + len(article), start)
                found += self._read_condition(start, False, "")
        return found

    def _read_names(self, at: int) -> list[Reading]:
        """Read a name, or several with "or"."""
        return self._memoise("names", at, self._read_any_names)

    def _read_any_names(self, at: int, _key: str) -> list[Reading]:
        """Read names without the cache."""
        found: list[Reading] = []
        for title, end in self.grammar.titles.find_at(self.text, at):
            found.append((title, end))
            if self.text.startswith(" or ", end):
                for other, stop in self._read_names(end + 4):
                    others = other.parts if isinstance(other, Or) else (other,)
                    found.append((Or((title, *others)), stop))
        return found

    def _read_references(self, at: int, one_of: str, drop: str = "") -> list[Reading]:
        """Read a step reference: "that year", "one of those years", "the years of the first step".

        `one_of` is empty in a group; `drop` is the article that the reference omits.
        """
        found = []
        for number, (query, noun) in enumerate(self.found):
            step = f"the {noun} of the {ORDINALS[number]} step"
            by_step = (step.removeprefix(drop), f"{one_of}{step}")
            for said in {f"that {noun}", f"{one_of}those {noun}", *by_step}:
                end = at + len(said)
                if self.text.startswith(said, at) and not self.text[end : end + 1].isalnum():
                    found.append((query, end))
        return found

    def _get_word(self, at: int) -> str:
        """Return the word that starts here, including punctuation."""
        end = self.text.find(" ", at)
        return self.text[at:] if end < 0 else self.text[at:end]

    def _memoise(self, rule: str, at: int, read: Callable) -> list[Reading]:
        """Return the cached readings of a rule at a position."""
        key = (rule, at)
        if key not in self._known:
            self._known[key] = read(at, rule)
        return self._known[key]


def word_question(
    query: Query, grammar: Grammar, style: Style, names: Mapping[Query, str] | None = None
) -> str | None:
    """Return `query` in natural language with a proved meaning, or None.

    Args:
        query: the query.
        grammar: grammar of its world.
        style: preferred style; the others follow.
        names: texts for constants or unions of constants. The question with the titles is proved;
            the returned text uses these names.
    """
    wanted = normalise_query(query)
    for tried in (style, *(other for other in STYLES if other != style)):
        text = write_sentences(query, grammar.book, tried)
        if text and _has_one_meaning(text, wanted, grammar):
            return write_sentences(query, grammar.book, tried, names) if names else text
    return None


def _has_one_meaning(text: str, wanted: Query, grammar: Grammar) -> bool:
    """Return True if `text` can only mean `wanted`."""
    try:
        return read_question(text, grammar) == wanted
    except ValueError:  # no reading, or several
        return False
