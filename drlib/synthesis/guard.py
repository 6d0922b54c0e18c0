"""Whether a free paraphrase still asks its question, judged without a model.

A language model that says a question better may change it: name a step that is to be found, widen a
decade, add a "not", turn "or" into "and", drop "earliest". Back translation by a model
(`drlib.synthesis.rewriting`) sees that only as well as the reader reads. Here a text that the
grammar of our own sentences reads is judged exactly (`drlib.synthesis.read_back`). Of any other
text, what carries the meaning is compared with the query, kind by kind: names, numbers with their
"at least" and "between", exceptions, alternatives, superlatives with their direction, what is asked
for (a thing or a number), and each relation by its words (guard_words.yaml).

So a text must say all that the query says, and nothing of these kinds besides. It is a guard and
no reader: it refuses good texts with unusual words rather than let pass what it cannot see.

Left out: which condition belongs to which noun ("X's borders with Y" for "Y's with X") beyond the
direction of imports and subclasses: words in other places are the same words. Back translation is
there for these. Languages other than English.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import yaml

from drlib.synthesis.joins import in_one_form
from drlib.synthesis.queries import (
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    constants,
    walk,
)
from drlib.synthesis.read_back import grammar_of, read_question
from drlib.synthesis.wording import flaw, says
from drlib.worlds.graph import Graph, inverse

LONGEST_NAME = 8  # words of a name that is looked for in a text
SHORTEST_NAME = 3  # letters; shorter aliases are codes, and read as words
# Numbers with what is said of them, as (pattern, bounds); {n} is a number. The first that fits.
_N = r"(-?\d+(?:\.\d+)?)\s*(?:%|percent|per cent)?"
BOUNDS = (
    (rf"\b(?:between|from) {_N} (?:and|to|until|till|through) {_N}", (">=", "<=")),
    (rf"\b{_N} ?(?:–|-|to) ?{_N}", (">=", "<=")),
    (rf"\b(?:at least|(?:no|not) (?:less|fewer|earlier|lower) than|a minimum of) {_N}", (">=",)),
    (
        rf"(?:at most|(?:no|not) (?:more|later|higher|greater) than|a maximum of|up to) {_N}",
        ("<=",),
    ),
    (rf"\b(?:more than|over|above|after|later than|greater than|exceeding) {_N}", (">",)),
    (rf"\b(?:less than|fewer than|under|below|before|earlier than|prior to) {_N}", ("<",)),
    (rf"\b(?:since|as of) {_N}", (">=",)),
    (rf"\b{_N} (?:of the people )?(?:or|and) (?:more|later|over|above|after|greater)", (">=",)),
    (rf"\b{_N} (?:or|and) (?:less|fewer|earlier|under|below|before)", ("<=",)),
    (rf"\b{_N} (?:at least|at a minimum|minimum|upwards?)", (">=",)),
    (rf"\b{_N} (?:at most|at the most|maximum)", ("<=",)),
    (rf"(?<![\w.]){_N}", ("=",)),
)
UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
UNITS = [*UNITS.split(), *"fifteen sixteen seventeen eighteen nineteen".split()]
TENS = dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 99, 10)))
NEGATIONS = (
    r"\bneither\b.*?\bnor\b|\bwith the exception of\b|\bbut no\b|\bother than\b|\bapart from\b|"
    r"\b(?:but|and|yet|though) (?:is |are |does |do )?not\b|\bleav(?:e|es|ing) (?:out|aside)\b|"
    r"n['’]t\b|\bcannot\b|\bno\b|\bnone\b|\bnever\b|\bnor\b|\bwithout\b|\bexcept(?:ing|ed)?\b|"
    r"\bexclu\w+|\bunless\b|\brather than\b|\black(?:s|ing)?\b|\bminus\b|\bnon-?\w+|\bbarring\b|"
    r"\bnot\b|\bun(?:official|like|related)\w*|\bdiffer\w*|\banother \w+(?: \w+)? than\b|"
    r"\bfail\w*|\bset aside\b|\bsave for\b|\bignor\w+|\bomit\w*|\bremov\w+|\boutside\b|\binstead\b"
)
LEAST = (
    r"\bearliest\b|\bfirst\b|\boldest\b|\bsmallest\b|\bfewest\b|\bleast\b|\blowest\b|\bshortest\b|"
    r"\bsoonest\b|\bbefore (?:all|any)(?: of)? (?:the )?others?\b|\bminim\w+"
)
MOST = (
    r"\blatest\b|\blast\b|\bnewest\b|\bmost\b|\blargest\b|\bbiggest\b|\bgreatest\b|\bhighest\b|"
    r"\blongest\b|\byoungest\b|\bmaxim\w+|\bafter (?:all|any)(?: of)? (?:the )?others?\b"
)
COMPARED = (
    r"\b(?:before|after|earlier|later|sooner|newer|older|larger|smaller|more|fewer|less|prior|"
    r"follow\w* year|preced\w+)\b"
)
NO_SUPERLATIVES = (  # words of superlatives, negations and comparisons that say none
    r"\bmost likely\b|\b(?:of )?the (?:first|last) (?:step|one|two)\b|"
    r"\b(?:first|last) (?:week)?day\b|"
    r"\bfirst(?:,| of all| find| take| look| identify| determine)|\bat last\b|\blast(?:ly|,)|"
    r"\bat least (?:one|partly|partially|in part|a|some)\b|"
    r"\b(?:before|after) (?:that|this|which)\b|\bwhat'?s more\b|\bfurthermore\b|"
    r"\bnot only\b|\bno longer\b|\bone or more\b|"
    r"\bmore (?:precisely|exactly)\b|\bnamed? after\b"
)
LED_BY = re.compile(  # words before a name
    r"\b(?:by|import of|imports?|importing|raises?|module|class|function|method|exception|extends|"
    r"with|as|but) ([a-z_]{3,})\b(?! (?:name|module|class|of\b))"
)
COUNTED = (
    r"\bhow many\b|\bcount\b|\b(?:what|give|tell|state|say|the) [\w' ]*?number of\b|\bhow numerous"
)


class Guard:
    """Judges texts about one world; `scheme` is the world's, for its phrases and words."""

    def __init__(self, graph: Graph, scheme: str = ""):
        self.graph = graph
        self.grammar = grammar_of(graph, scheme)
        self._words = _written_words().get(scheme, {})
        self._names = _names_of(graph)

    def refusal(self, text: str, question: str, query: Query, hidden: Iterable[str] = ()) -> str:
        """Why `text` is no other wording of `question`, which asks `query`; "" where it is one.

        hidden: names that must not be told (`drlib.synthesis.rewriting.hidden_names`).
        """
        without_source = question.removeprefix(f"{self.grammar.book.source}, ")
        plain, asked = in_digits(text), in_digits(without_source)
        wrong = flaw(plain, asked, (), [*hidden])
        if wrong:
            return wrong
        try:
            same = read_question(text, self.grammar) == in_one_form(query)
        except ValueError:  # the words of somebody else
            return self._first_difference(plain, asked, query)
        return "" if same else "it asks something else"

    def _first_difference(self, text: str, question: str, query: Query) -> str:
        forms = {name: self._forms(name) for name in dict.fromkeys(constants(query))}
        for name, said in forms.items():
            if not any(_said(text, form) for form in said):
                return f"it loses {name!r}"
        masked, asked = _masked(text, forms), _masked(question, forms)
        names = _names_in(masked, self._names) | self._plain_names(masked)
        for name in sorted(names - _names_in(asked, self._names) - self._plain_names(asked)):
            return f"it names {name!r}"
        numbers, masked = _bounds(masked)
        wanted, asked = _bounds(asked)
        if numbers != wanted:
            return f"its numbers are bounded otherwise: {_told(numbers ^ wanted)}"
        text = re.sub(NO_SUPERLATIVES, " ", masked)
        return (
            _exceptions(text, query)
            or _alternatives(text, asked, query, list(forms))
            or _superlatives(text, query)
            or _asked_for(text, query)
            or _shares(text, query)
            or self._relations(masked, asked, query)
        )

    def _plain_names(self, text: str) -> set[str]:
        """Titles without a capital or a mark ("queue") where a name must stand, and what stands
        in quotation marks."""
        found = {match[1] for match in LED_BY.finditer(text)} - _OPENERS
        quoted = set(re.findall(r'["“]([^"“”]+)["”]', text))
        return quoted | {name for name in found if not self.graph.is_value(name)}

    def _forms(self, title: str) -> list[str]:
        """How a text may write a name: by its title, or as our sentences do."""
        said = self.grammar.book.name(title).removeprefix("the ")
        forms = {title, said, said.strip('"'), re.sub(r" (?:\(.*\)|script)$", "", title)}
        for kind in ("page", "section"):
            forms.add(said.removeprefix(f"{kind} ").strip('"'))
        return sorted((form for form in forms if form), key=lambda form: (-len(form), form))

    def _relations(self, text: str, asked: str, query: Query) -> str:
        """What is wrong with the relations that a masked text says."""
        used = {
            part.relation.removesuffix(" of")
            for part in walk(query)
            if isinstance(part, Proj | Range | Extreme)
        }
        for relation in sorted(used):
            words = self._words.get(relation, {})
            said = words.get("said") or _stems(relation)
            if not any(_starts(word, text) for word in said):
                return f"it does not say {relation!r}"
        for relation in self.grammar.book.phrases:
            words = self._words.get(relation, {})
            marks = words.get("marks") or ([] if words else [re.escape(relation.lower()) + r"\b"])
            if relation in used or used & {*words.get("or", ())}:
                continue
            if any(_starts(mark, text) and not _starts(mark, asked) for mark in marks):
                return f"it says {relation!r}"
        for relation in sorted(used):
            most = sum(
                isinstance(part, Proj | Range | Extreme)
                and part.relation.removesuffix(" of") == relation
                for part in walk(query)
            )
            if _times(self._words.get(relation, {}).get("counted", ()), text) > most:
                return f"it says {relation!r} too often"
        return next(filter(None, (self._turned(name, text, query) for name in sorted(used))), "")

    def _turned(self, relation: str, text: str, query: Query) -> str:
        """Whether a relation between things of one kind is said the other way round: as often as
        the query has each direction, at most."""
        words = self._words.get(relation, {})
        shared = _times(words.get("shared", ()), text)  # says one of each direction
        for way, name in (("forward", relation), ("backward", f"{relation} of")):
            said = shared + _times(words.get(way, ()), text)
            asked = [
                part for part in walk(query) if isinstance(part, Proj) and part.relation == name
            ]
            if said > len(asked):
                return f"it turns {relation!r} round"
        return ""


@lru_cache(maxsize=1)
def _written_words() -> Mapping[str, Mapping[str, Mapping[str, list[str]]]]:
    path = Path(__file__).with_name("guard_words.yaml")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=8)
def _names_of(graph: Graph) -> frozenset[str]:
    """Titles and aliases that a text can hold as names only: a capital, a mark or a digit in them.
    ("this" and "code" are modules, and words.)"""
    found = {name for node in graph.nodes.values() for name in (node.title, *node.aliases)}
    return frozenset(
        name for name in found if len(name) >= SHORTEST_NAME and re.search(r"[A-Z]|\w[._/]\w", name)
    )


def in_digits(text: str) -> str:
    """`text` with number words before "percent" and spans of years as "between .. and ..": the
    forms in which numbers are compared."""
    words = "|".join([*UNITS, *TENS])
    text = re.sub(
        rf"\b({words})(?:[- ]({'|'.join(UNITS[1:10])}))?(?= ?(?:%|percent|per cent))",
        lambda m: str(_value(m[1]) + (_value(m[2]) if m[2] else 0)),
        text,
        flags=re.IGNORECASE,
    )
    parts = {"early": (0, 3), "mid": (4, 6), "late": (7, 9), "": (0, 9)}

    def years(found: re.Match) -> str:
        low, high = parts[(found[1] or "").lower()]
        decade = int(found[2])
        return f"between {decade + low} and {decade + high}"

    span = r"(?:\b(?:in|during|from|within) )?\bthe (?:(early|mid|late)[- ])?(\d{3}0)['’]?s\b"
    return re.sub(span, years, text)


def _value(word: str) -> int:
    word = word.lower()
    return TENS[word] if word in TENS else UNITS.index(word)


def _said(text: str, name: str) -> bool:
    """Whether a name is in a text, its plural ("Euros") too."""
    return says(text, name) or says(text, f"{name}s") or says(text, f"{name}es")


def _masked(text: str, forms: Mapping[str, list[str]]) -> str:
    """`text` with a mark for each constant, numbered by its place in `forms`."""
    marks = []
    for number, (name, said) in enumerate(forms.items()):
        # a number keeps its digits: it is compared with what is said of it
        marks += [(form, f" ~{chr(65 + number)} ") for form in said if not name.isdigit()]
    for form, mark in sorted(marks, key=lambda pair: -len(pair[0])):
        text = re.sub(
            rf"(?<![\w.]){re.escape(form)}(?:e?s)?(?![\w])(?!\.\w)", mark, text, flags=re.I
        )
    return " ".join(text.split())


def _names_in(text: str, names: frozenset[str]) -> set[str]:
    """The world's names that stand in `text`, as they are written there."""
    words = [re.sub(r"['’]s$", "", word.strip(',;:?!"“”()')).rstrip(".") for word in text.split()]
    found = set()
    for start in range(len(words)):
        for end in range(start + 1, min(len(words), start + LONGEST_NAME) + 1):
            name = " ".join(words[start:end])
            starts_sentence = start == 0 or text.split()[start - 1][-1] in ".?!:"
            if name in names and not (
                starts_sentence and end == start + 1 and name.istitle() and name.lower() in _OPENERS
            ):
                found.add(name)
    return found


_OPENERS = frozenset(
    "name find take which what count where some there then give tell this code types".split()
)


def _bounds(text: str) -> tuple[set[tuple[str, str]], str]:
    """(each number with how it bounds, `text` without them)."""
    found = set()
    for pattern, bounds in BOUNDS:
        for match in re.finditer(pattern, text, re.IGNORECASE):
            found |= set(zip(bounds, match.groups()))
        text = re.sub(pattern, " # ", text, flags=re.IGNORECASE)
    return found, " ".join(text.lower().split())


def _told(bounds: set[tuple[str, str]]) -> str:
    return ", ".join(f"{sign} {number}" for sign, number in sorted(bounds))


def _exceptions(text: str, query: Query) -> str:
    """Whether as many things are excepted as the query excepts."""
    wanted = sum(isinstance(part, Diff) for part in walk(query))
    said = len(re.findall(NEGATIONS, text))
    if said == wanted:
        return ""
    return "it loses an exception" if said < wanted else "it excepts or denies something"


def _alternatives(text: str, asked: str, query: Query, names: list[str]) -> str:
    """Whether "or" stands where the query has alternatives, and nowhere else."""
    unions = [part for part in walk(query) if isinstance(part, Or)]
    wanted = sum(len(part.parts) - 1 for part in unions)
    text = re.sub(r"\bone or more\b|\bwhether or not\b", " ", text)
    said = len(re.findall(r"\bor\b", text))
    if said < wanted:
        return "it loses an alternative"
    nouns = len(re.findall(r"\bor\b", asked))  # "the class or exception" is one noun
    if said > max(wanted, nouns) or (not unions and re.search(r"\beither\b", text)):
        return "it adds an alternative"
    for union in unions:
        first = [constants(part)[0] for part in union.parts if constants(part)]
        marks = [f"~{chr(97 + names.index(name))}" for name in first]
        for one in marks:
            for other in marks:
                if re.search(rf"\bboth\b[^~]*{one}[^~]*\band\b[^~]*{other}\b", text):
                    return "it turns alternatives into conditions"
    return ""


def _superlatives(text: str, query: Query) -> str:
    """Whether the superlatives are those of the query, with their direction."""
    extremes = [part for part in walk(query) if isinstance(part, Extreme)]
    for pattern, most in ((LEAST, False), (MOST, True)):
        wanted = sum(part.most == most for part in extremes)
        said = len(re.findall(pattern, text))
        if said < wanted:
            return "it loses a superlative"
        if said > wanted:
            return "it adds a superlative or turns one round"
    rest = re.sub(f"{LEAST}|{MOST}", " ", text)
    found = re.search(COMPARED, rest)
    return f"it compares: {found[0]!r}" if found else ""


def _shares(text: str, query: Query) -> str:
    """Whether no more things are shared than in the query."""
    shared = sum(
        isinstance(part, Proj)
        and isinstance(part.of, Proj)
        and part.relation == inverse(part.of.relation)
        for part in walk(query)
    )
    said = len(re.findall(r"\bshar(?:e|es|ing)\b|\bin common\b", text))
    return "" if said <= shared else "it shares something"


def _asked_for(text: str, query: Query) -> str:
    """Whether a number is asked for where the query counts, and a thing where it does not."""
    counts = bool(
        re.search(COUNTED, re.sub(r"number of (?:decimal|parameter|argument)s?", "", text))
    )
    if isinstance(query, Count):
        return "" if counts else "it does not ask how many"
    return "it asks how many" if counts and not _has(query, Count) else ""


def _has(query: Query, kind: type) -> bool:
    return any(isinstance(part, kind) for part in walk(query))


def _stems(relation: str) -> list[str]:
    """The beginnings of the words of a relation's name."""
    words = [
        word for word in re.findall(r"\w+", relation.lower()) if word not in ("of", "in", "the")
    ]
    return [re.escape(word[: max(4, len(word) - 3)]) for word in words]


def _times(words: Iterable[str], text: str) -> int:
    return sum(len(re.findall(word, text)) for word in words)


def _starts(word: str, text: str) -> bool:
    """Whether a word of `text` begins so."""
    return re.search(rf"(?<!\w){word}", text) is not None
