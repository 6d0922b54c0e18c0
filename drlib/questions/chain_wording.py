"""Wording of chains: one question sentence for a path of facts, from the names of its relations.

The name of a column or key is a noun ("office manager"), a participle ("designed by", "opened"), a
verb ("reports to"), a plural with numbers ("desks") or a time ("since"). Each has its own question:
"Who is the office manager of ...", "Who designed ...", "When was ... opened", "Who does ... report
to", "How many desks does ... have". A name of another form gives no question.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import yaml

from drlib.questions.phrases import (
    IRREGULAR,
    LASTING,
    NO_PARTICIPLE,
    PERSONS,
    VERBS,
    WORKS,
    Phrasebook,
    find_participle,
    format_date,
    load_words,
    name_page,
    to_active,
    to_singular,
)
from drlib.questions.queries import Proj, Query, evaluate_query
from drlib.questions.statements import (
    BASES,
    PERSON_VERBS,
    PRESENT,
    Statements,
    Subject,
    find_base,
    is_person_name,
    is_proper,
    is_thing_name,
    strip_third_person,
)
from drlib.worlds.folder import WORDS_FILE
from drlib.worlds.graph import VALUE
from drlib.worlds.triples import RESERVED_RELATIONS

COUNT = re.compile(r"\d[\d,]*")
NUMERIC = re.compile(r"[£$€]?\s?-?\d[\d,.]*(?:\s?%)?")
DATE_LIKE = re.compile(
    r"(?:\d{1,2}(?:st|nd|rd|th)? )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.? "
    r"(?:\d{1,2}, )?\d{4}|\d{4}(?:-\d\d){0,2}|(?:early|mid|late|spring|summer|autumn|winter)[ -]"
    r"(?:of )?\d{4}|Q[1-4] \d{4}"
)
PREPOSITIONS = "to after at on with for in from by under into over about".split()
VERB_PHRASE = re.compile(rf"([a-z]{{2,}}s) ({'|'.join(PREPOSITIONS)})")
# verbs that stand alone as the name of a column
SINGLE_VERBS = frozenset(
    [*VERBS, "ends", "starts", "begins", "opens", "closes", "expires", "leads"]
)
PEOPLE = frozenset(load_words()["agents"].split())
OF_PERSONS = frozenset(
    "profession|occupation|role|position|job|job title|main job|manager|supervisor|boss|"
    "reports to|hired|joined|birthday|date of birth|pronouns".split("|")
)
OF_DOCUMENTS = frozenset("owner author updated reviewed version status".split())
OF_PRODUCTS = frozenset(
    "sku|item number|article number|part number|model number|list price".split("|")
)
PLACES = frozenset("location place base office site town city country address based works".split())
NO_NOUNS = frozenset(
    "sleeps works days feels looks smells tastes sounds red green blue black white yellow brown "
    "grey gray own".split()
)
TIME_KINDS = ("week", "day", "month", "year", "date", "time", "hour", "step", "session")
LASTING_BY = frozenset(  # "owned by" is still so; "designed by" is over
    "owned managed headed run led governed maintained supervised covered read taught".split()
)
INTRANSITIVE = frozenset(
    "graduated moved retired arrived returned emigrated resigned lived worked studied died".split()
)
NOT_OF_MONEY = re.compile(r" in (?:days|hours|minutes|weeks|months|years|%|kg|g|mm|cm|m)$")
OWN_EVENTS = ("joined", "died", "retired", "started", "ended", "arrived", "left")  # no passive
MEMBERS = ("member", "employee", "participant", "attendee", "player", "resident", "student")
ACRONYMS = ("sku", "id", "url", "isbn", "ean", "mpn", "vat", "cpu", "ram", "rpm", "pin", "iban")
IN_PLACES = ("town", "city", "country", "region", "county", "village")
GROUPS = ("team", "department", "group", "unit", "division")
WHERE = ("in", "at", "on")
TOO_VAGUE = frozenset(
    "time lecture value property field size type kind number status state level".split()
)
ADVERB = re.compile(r"\w+ly\b|\b(?:to|not|how|what|when|where|who|why|which|if|is|are|can|has)\b")
UNIT_IN_NAME = re.compile(r" ?[(\[]([^()\[\]]{1,30})[)\]]$")
UNITS = {
    **{code: code.upper() for code in ("eur", "usd", "gbp", "chf", "kw", "mb", "gb")},
    **{unit: unit for unit in ("kg", "g", "mm", "cm", "km", "m", "ml", "l", "€", "$", "£", "%")},
    **{"h": "hours", "hrs": "hours", "min": "minutes", "mins": "minutes", "s": "seconds"},
    **{word: word for word in ("hours", "minutes", "days", "weeks", "months", "years", "euros")},
    **{"hz": "Hz", "khz": "kHz", "db": "dB", "ms": "ms", "bar": "bar"},
    **{"w": "watts", "v": "volts", "crowns": "crowns", "°c": "°C"},
}
ADJECTIVE = re.compile(r"(?:able|ible|safe|free|ready|proof|friendly)$")
SKIPPED_KINDS = ("topic", "question", "step", "task", "order code", "version", "problem")
MAX_START_WORDS = 4
IDENTIFYING = PEOPLE | {
    *("role", "position", "title", "job", "code", "number", "sku", "id", "capital", "symbol"),
    *("year", "lead", "abbreviation"),
}
VAGUE_KINDS = frozenset(
    "no number code sku id ref place figure feature detail scenario benefit cost item entry "
    "option".split()
)
MAX_NOUN_NAME = 4  # words of a name that ends with its kind
NO_KIND = ("page", "section", "entity", "thing", VALUE, "table row", "")


def is_address(name: str) -> bool:
    """Return True if a name is the address of a chunk, which no person would use."""
    return (
        re.search(r"\.(?:mdx?|rst|html?|txt|pdf|csv|xlsx|jsonl?|docx)(?:#|:| \(\d+\)|$)", name)
        is not None
    )


class Relation(NamedTuple):
    """The form in which questions express a relation.

    Attributes:
        form: "noun", "plural", "by", "place", "time", "past", "verb", or empty if it is not asked.
        words: the name of the relation in lower case, acronyms kept.
        verb: participle or verb, for the forms that have one.
        preposition: the preposition after it, or an empty string.
        is_time: True if the values are dates or years.
    """

    form: str
    words: str
    verb: str = ""
    preposition: str = ""
    is_time: bool = False


class Overrides(NamedTuple):
    """A user's words, from the file `WORDS_FILE` of a folder; None leaves a name out.

    Attributes:
        kinds: kind -> noun.
        relations: column or key -> words.
    """

    kinds: Mapping[str, str | None] = {}
    relations: Mapping[str, str | None] = {}


def load_overrides(world) -> Overrides:
    """Return the words that the user of a folder has edited; empty for other worlds.

    Raises:
        ValueError: the file is no YAML mapping of names to words, or has another key.
    """
    scheme, _, rest = world.name.partition(":")
    path = Path(rest).expanduser() / WORDS_FILE
    if scheme != "folder" or not path.is_file():
        return Overrides()
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no YAML ({error}): correct it or remove it") from error
    is_known = isinstance(found, dict) and {*found} <= {*Overrides._fields}
    tables = [*found.values()] if is_known else [None]
    for table in tables:
        rows = table.items() if isinstance(table, dict) else [(None, None)]
        if not all(isinstance(k, str) and isinstance(v, str | None) for k, v in rows):
            raise ValueError(
                f"{path} must map names to words under {' and '.join(Overrides._fields)}: see "
                f"`drlib questions preview {world.name}`"
            )
    return Overrides(**found)


class ChainWriter:
    """Writer of questions about chains.

    Args:
        book: nouns and names of the world.
        statements: what the pages state, for kinds, articles and common words; None: unknown.
        overrides: the user's words.
    """

    def __init__(
        self,
        book: Phrasebook,
        statements: Statements | None = None,
        overrides: Overrides = Overrides(),  # noqa: B008 - immutable
    ):
        self.book = book
        self.graph = book.graph
        self._subjects: Mapping[str, Subject] = statements.subjects if statements else {}
        self._words = statements.words if statements else frozenset()
        self._find_article = statements.find_article if statements else lambda name: ""
        self._overrides = overrides

    def write(self, query: Proj) -> str:
        """Return the question for a chain, or an empty string if a relation has no phrase."""
        if not self._is_natural(query):
            return ""
        relation = self.relations.get(query.relation.removesuffix(" of"))
        operand = self.describe(query.of)
        if relation is None or not relation.form or not operand:
            return ""
        (answer,) = evaluate_query(query, self.graph)
        if query.relation.endswith(" of"):
            return self._ask_thing(relation, operand, answer, query)
        if NOT_OF_MONEY.search(relation.words) and re.match(r"[£$€]", answer):
            return ""  # a cell in the wrong column
        text = self._ask_value(relation, operand, answer, query)
        page = self._find_scope(query.of)
        if not page or not text:
            return text
        if self.graph.nodes[str(query.of)].kind == "page":  # the page is no thing
            is_noun = relation.form == "noun"
            return f'According to the page "{page}", what is the {relation.words}?' * is_noun
        return f'According to the page "{page}", {text[0].lower()}{text[1:]}'

    def _is_natural(self, query: Proj) -> bool:
        """Return True if people would describe things as this chain does.

        Several hops must not begin with an arbitrary value ("the saw whose blade is ..."), and
        rows of topics, questions and steps are no things.
        """
        first: Query = query
        while isinstance(first, Proj) and isinstance(first.of, Proj):
            first = first.of
        assert isinstance(first, Proj)
        start = str(first.of)
        if self.graph.nodes[start].kind in SKIPPED_KINDS:
            return False
        (answer,) = evaluate_query(query, self.graph)
        if self.graph.nodes[answer].kind in SKIPPED_KINDS:
            return False
        if first is query or not self.is_plain(start):
            return True
        relation = self.relations.get(first.relation.removesuffix(" of"))
        if relation is None or "," in start or len(start.split()) > MAX_START_WORDS:
            return False
        words = {*relation.words.casefold().split()}
        return relation.form in ("time", "by", "place", "verb", "past") or bool(words & IDENTIFYING)

    def describe(self, query: Query) -> str:
        """Return a noun phrase for a title or a description, or an empty string."""
        if isinstance(query, str):
            return self.name(query)
        relation = self.relations.get(query.relation.removesuffix(" of"))
        operand = self.describe(query.of)
        if relation is None or not relation.form or not operand:
            return ""
        (found,) = evaluate_query(query, self.graph)
        noun = self.kind(found)
        if query.relation.endswith(" of"):
            return self._describe_thing(relation, operand, found)
        if relation.form == "noun":
            return f"the {relation.words} of {operand}"
        if relation.form == "by":
            if not noun and not self.is_person(found):
                return ""
            who = "person who" if self.is_person(found) else f"{noun} that"
            return f"the {who} {self._by(relation)} {operand}"
        if relation.form == "place" and relation.preposition in WHERE:
            be = self._be(relation)
            where = "where" if relation.preposition == "at" else f"{relation.preposition} which"
            return f"the {noun or 'place'} {where} {operand} {be} {relation.verb}"
        if relation.form in ("verb", "past"):
            noun = "person" if self.is_person(found) else noun
            return noun and f"the {noun} that {operand} {relation.words}"
        return ""

    # ------------------------------------------------------------------------------- questions

    def _ask_value(self, relation: Relation, operand: str, answer: str, query: Proj) -> str:
        """Return the question for the value of a relation."""
        is_name = answer[:1].isupper() and not re.search(r"[\d,]", answer)
        is_person = self.is_person(answer) or (
            relation.words.split()[-1] in PEOPLE and self.is_plain(answer) and is_name
        )
        who = "Who" if is_person else "What"
        if relation.words == "due":
            return f"When is {operand} due?"
        if relation.form == "noun":
            if relation.is_time and relation.words in ("start", "end"):
                return f"When does {operand} {relation.words}?"
            if relation.words == "year" and self._is_work(query.of):
                return f"In which year was {operand} published?"
            return f"{who} is the {relation.words} of {operand}?"
        if relation.form == "plural":
            if COUNT.fullmatch(answer):
                do = "do" if self.is_plural(query.of) else "does"
                return f"How many {relation.words} {do} {operand} have?"
            return f"What are the {relation.words} of {operand}?"
        if relation.form == "by":
            kind = self.kind(answer)
            if self.is_plain(answer) and answer[:1].islower():
                return f"How {self._be(relation)} {operand} {relation.verb}?"
            asked = "Who" if is_person else f"Which {kind}" if kind else "Who"
            return f"{asked} {self._by(relation)} {operand}?"
        if relation.form == "place":
            be = self._be(relation)
            if self.is_plural(query.of):
                be = {"is": "are", "was": "were"}[be]
            if relation.preposition in WHERE and not relation.is_time:
                return f"Where {be} {operand} {relation.verb}?"
            if relation.is_time:
                return f"When {be} {operand} {relation.verb}?"
            return ""  # "To what was the bag rated?"
        if relation.form == "time":
            return self._ask_when(relation, operand, query)
        if relation.form == "past":
            do, base = find_base(relation.verb)
            return f"{'Whom' if is_person else 'What'} {do} {operand} {base}?"
        if relation.form == "verb":
            base = strip_third_person(relation.verb)
            if relation.is_time:
                return f"When does {operand} {base}?"
            if relation.preposition in WHERE and relation.verb in ("works", "lives", "sits"):
                return f"Where does {operand} {base}?"
            after = f" {relation.preposition}" if relation.preposition else ""
            return f"{who} does {operand} {base}{after}?"
        return ""

    def _find_scope(self, query: Query) -> str:
        """Return the name of a page that is no thing: "How to open an account"; else ""."""
        if not isinstance(query, str) or self.is_plain(query):
            return ""
        node = self.graph.nodes[query]
        name = self.book.display(query)
        is_named = is_thing_name(name) and is_proper(name)
        if node.kind in ("page", "entity"):
            return "" if is_named or self.kind(query) or node.kind == "entity" else name
        if self.is_person(query):
            return ""
        is_code = re.search(r"[^\W\d_]", name) and re.search(r"\d", name)
        is_specific = is_code or (is_proper(name) and " " in name)
        if len(self._tables.get(node.kind, ())) < 2 and is_specific:
            return ""
        table = min(self.graph.values(query, "table"), default="")
        page = self.book.display(table.partition("#")[0]) if table else ""
        return "" if is_address(page) else page

    def _is_work(self, query: Query) -> bool:
        """Return True if `query` is a book, a paper or the like."""
        (found,) = evaluate_query(query, self.graph)
        return self.kind(found) in WORKS

    def _ask_when(self, relation: Relation, operand: str, query: Proj) -> str:
        """Return "When was ... opened?" or "Since when ...?"."""
        if relation.words == "since":
            return ""  # since when what is the case is not known
        if relation.verb in OWN_EVENTS:
            _, base = find_base(relation.verb)
            return f"When did {operand} {base}?"
        return f"When {'were' if self.is_plural(query.of) else 'was'} {operand} {relation.verb}?"

    def _ask_thing(self, relation: Relation, operand: str, answer: str, query: Proj) -> str:
        """Return the question for the thing that has a value."""
        if self.is_person(answer) and self._is_shared(relation):
            return ""  # the documents may not name all persons of a place or a team
        kind = self.kind(answer)
        is_bare = isinstance(query.of, str) and NUMERIC.fullmatch(query.of) is not None
        is_nameless = not kind and relation.form == "noun" and not self.is_person(answer)
        if (
            is_nameless
            or kind in TIME_KINDS
            or self.is_plural(answer)
            or (is_bare and relation.form == "noun")
        ):
            return ""  # "Which pedals has", "Which bell has the price 37"
        subject = "Who" if self.is_person(answer) else f"Which {kind}" if kind else "What"
        is_listed = isinstance(query.of, str) and self.is_plain(query.of) and "," in query.of
        if is_listed and relation.form == "verb":
            return ""  # 'goes with "Marten 2, Marten 4"'
        clause = self._predicate(relation, operand, query, self.is_person(answer))
        page = self._find_scope(answer)
        if page and subject != "Who":
            subject = f'According to the page "{page}", {subject[0].lower()}{subject[1:]}'
        return f"{subject} {clause}?" if clause else ""

    def _describe_thing(self, relation: Relation, operand: str, found: str) -> str:
        """Return "the office with 22 desks" or "the person who reports to Ada Brant"."""
        kind = "person" if self.is_person(found) else self.kind(found)
        if kind == "person" and (self._is_shared(relation) or relation.is_time):
            return ""  # several persons may be hired in a year
        if not kind or kind in TIME_KINDS or self.is_plural(found):
            return ""
        if relation.words == "year" and kind in WORKS:
            return f"the {kind} published in {operand}"
        as_clause = (*GROUPS, *IN_PLACES, "start", "end", "due")
        if relation.form == "noun" and relation.words not in as_clause:
            return f"the {kind} whose {relation.words} is {operand}"
        clause = self._predicate(relation, operand, None, kind == "person")
        return f"the {kind} {'who' if kind == 'person' else 'that'} {clause}" if clause else ""

    def _is_shared(self, relation: Relation) -> bool:
        """Return True if several persons usually have the same value: a place or a team."""
        words = {*relation.words.casefold().split()}
        return relation.verb in LASTING or bool(words & {*PLACES, *GROUPS, "works", "lives"})

    def _predicate(
        self, relation: Relation, operand: str, query: Proj | None, is_person: bool
    ) -> str:
        """Return what is stated about a thing with a value: "has the budget 120,000 crowns"."""
        if relation.words == "due":
            return f"is due {'' if operand[:1].islower() else 'on '}{operand}"
        if relation.form == "noun":
            if relation.words in IN_PLACES and not is_person:
                return f"is in {operand}"
            if relation.is_time and relation.words in ("start", "end"):
                to = "in" if re.fullmatch(r"\d{4}|[A-Z][a-z]+ \d{4}", operand) else "on"
                return f"{relation.words}s {to} {operand}"
            is_value = query is not None and isinstance(query.of, str) and self.is_plain(query.of)
            if relation.words in GROUPS:
                return f"{'is in' if is_person else 'belongs to'} {operand}"
            if is_value:
                shown = f'"{operand}"' if operand[:1].islower() else operand
                return f"has the {relation.words} {shown}"
            return f"has {operand} as {'their' if is_person else 'its'} {relation.words}"
        if relation.form == "plural":
            if COUNT.fullmatch(operand):
                noun = to_singular(relation.words) if operand == "1" else relation.words
                return f"has {operand} {noun}"
            is_thing = query is None or not (isinstance(query.of, str) and self.is_plain(query.of))
            singular = to_singular(relation.words)
            is_thing = is_thing and (singular in PEOPLE or singular in MEMBERS)
            return f"has {operand} among its {relation.words}" if is_thing else ""
        if relation.form == "by":
            return f"{self._be(relation)} {relation.words} {operand}"
        if relation.form == "place":
            return f"{self._be(relation)} {relation.words} {operand}"
        if relation.form == "time":
            to = "in" if re.fullmatch(r"\d{4}|[A-Z][a-z]+ \d{4}", operand) else "on"
            if relation.words == "since":
                return ""
            if relation.verb in OWN_EVENTS:
                return f"{relation.verb} {to} {operand}"
            return f"was {relation.verb} {to} {operand}"
        if relation.form == "past":
            return f"{relation.words} {operand}"
        if relation.form == "verb":
            to = ""
            if relation.is_time:
                to = "in " if re.fullmatch(r"\d{4}|[A-Z][a-z]+ \d{4}", operand) else "on "
            return f"{relation.words} {to}{operand}"
        return ""

    def _by(self, relation: Relation) -> str:
        """Return the active verb of "designed by" or "owned by"."""
        does, _, did = to_active(relation.verb)
        return does if relation.verb in LASTING_BY else did

    def _be(self, relation: Relation) -> str:
        """Return "was" for completed actions, else "is"."""
        if relation.form == "by":
            return "is" if relation.verb in LASTING_BY else "was"
        return "is" if relation.verb in LASTING or relation.verb == "made" else "was"

    # --------------------------------------------------------------------------------- relations

    @cached_property
    def relations(self) -> Mapping[str, Relation]:
        """Relation (inverses excluded) -> how it is expressed."""
        names = [name for name in self.graph.adjacent if not name.endswith(" of")]
        return {name: self._classify(name) for name in names if name not in RESERVED_RELATIONS}

    def _classify(self, name: str) -> Relation:
        """Return how the relation of this name is expressed."""
        written = self._overrides.relations.get(name, name)
        if written is None:
            return Relation("", name)
        bracket = UNIT_IN_NAME.search(written)
        if bracket and bracket[1].casefold() not in UNITS:
            written = written[: bracket.start()]
        words = " ".join(
            word.upper()
            if word.casefold() in ACRONYMS
            else word
            if not word[1:].islower() or re.search(r"\d", word)
            else word[:1].lower() + word[1:]
            for word in UNIT_IN_NAME.sub(r" \1", written.replace("_", " ")).split()
        )
        words = re.sub(r",? in (?=\S+$)", " ", words)
        words = re.sub(r"(?<= )(?:no|nr)\.?$", "number", words)
        head, _, unit = words.rpartition(" ")
        if head and unit.casefold() in UNITS and re.search(r"[(\[,_]| in ", written):
            words = f"{head.rstrip(',').removesuffix(' in')} in {UNITS[unit.casefold()]}"
            return Relation("noun", words)
        values = [*self.graph.adjacent.get(f"{name} of", ())]
        is_time = bool(values) and all(DATE_LIKE.fullmatch(value) for value in values)
        parts = words.split()
        is_counter = words in ("weight", "order", "position") and all(map(str.isdigit, values))
        if is_counter or (parts and parts[0] in PREPOSITIONS):
            return Relation("", words)
        if not parts or len(parts) > 4 or not re.fullmatch(r"[\w’' ]+", words):
            return Relation("", words)
        done, last = find_participle(words), parts[-1]
        if words == "since":
            return Relation("time", words, "", "", True)
        if done and len(parts) == 1:
            if done in NO_PARTICIPLE:
                return Relation("noun", words)
            if not is_time and not self._is_read(name):
                return Relation("", words)
            return Relation("time" if is_time else "past", words, done, "", is_time)
        if done and len(parts) == 2 and last == "by":
            return Relation("by", words, done, "by", is_time)
        if done in INTRANSITIVE and not is_time and last in PREPOSITIONS:
            return Relation("", words)  # "was graduated from"
        if done and len(parts) == 2 and last in PREPOSITIONS:
            return Relation("place", words, done, last, is_time)
        verb = VERB_PHRASE.fullmatch(words)
        is_verb = parts[0].endswith("s") and strip_third_person(parts[0]) in PRESENT
        if not verb and len(parts) > 1 and is_verb:
            return Relation("", words)  # "disappears beyond"
        if verb and not is_time:
            return Relation("verb", words, verb[1], verb[2])
        if words in BASES and not is_time and self._is_read(name):
            return Relation("past", words, words)
        if words in SINGLE_VERBS:
            return Relation("verb", words, words, "", is_time)
        are_years = is_time and all(re.fullmatch(r"\d{4}", value) for value in values)
        bad = (
            (are_years and not {*parts} & {"year", "date", "start", "end", "since"})
            or ADVERB.search(words)
            or (len(parts) > 1 and find_participle(last) != "")  # "fee charged"
            or last in ("used", *SINGLE_VERBS)
            or ADJECTIVE.search(words)
            or last in (*PREPOSITIONS, "since", "of", "the", "and")
        )
        first = parts[0]
        if (
            bad
            or words in TOO_VAGUE
            or first in NO_NOUNS
            or first in IRREGULAR
            or (done and len(parts) > 1)
        ):
            return Relation("", words)
        singular = to_singular(last)
        if (
            singular != last
            and not last.endswith(("ss", "us", "is"))
            and last not in ("series", "species")
        ):
            return Relation("plural", words, "", "", is_time)
        return Relation("noun", words, "", "", is_time)

    def _is_read(self, relation: str) -> bool:
        """Return True if a model has read the facts of `relation`, so that "designed" is a verb
        and not the heading of a column.
        """
        things = self.graph.adjacent[relation]
        return any(self.graph.nodes[title].kind == "entity" for title in things)

    # ------------------------------------------------------------------------------------- names

    def name(self, title: str) -> str:
        """Return how a question names a title."""
        if self.is_plain(title):
            is_long = "," in title or len(title.split()) > 4
            return format_date(title) or (f'"{title}"' if is_long else title)
        if not self.book.is_folder:
            return self.book.mention(title)
        if is_address(self.book.display(title)):
            return ""
        shown = self.book.display(title)
        bare = shown.removeprefix("The ").removeprefix("the ")
        kind = self.kind(title)
        if self.is_person(title):
            return shown
        if kind and kind.casefold() in [to_singular(word) for word in shown.casefold().split()]:
            return f"the {bare}"
        if kind in TIME_KINDS:
            return f"{kind} {shown}" if shown.isdigit() else shown
        if not kind or self.book.kind(title) in NO_KIND:
            if self.graph.nodes[title].kind == "entity":
                article = "the " if shown[0].islower() else self._find_article(shown)
                return f"{article}{shown}"
            return f'"{shown}"' if len(shown.split()) > 3 else f"{self._find_article(shown)}{shown}"
        return name_page(shown, kind)

    def is_plain(self, title: str) -> bool:
        """Return True if a title is a value without a page."""
        return self.graph.is_value(title)

    def is_person(self, title: str) -> bool:
        """Return True if a title names a person."""
        if self.is_plain(title):
            return False
        kind = self.book.kind(title)
        kind = self._overrides.kinds.get(kind) or kind
        if {*self.graph.relations.get(title, ())} & OF_DOCUMENTS:
            return False
        name = self.book.display(title)
        if kind in PERSONS and (" " not in name or is_person_name(name)):
            return True
        if title in self._persons:
            return True
        if title in self._places or kind not in (*NO_KIND, *PEOPLE, *VAGUE_KINDS):
            return False
        if self.graph.nodes[title].kind == "entity" and self._is_named(title):
            return False  # no evidence in `_persons`
        subject = self._subjects.get(title)
        return subject is not None and subject.is_person and subject.pronoun in ("He", "She")

    def is_plural(self, query: Query) -> bool:
        """Return True if a title's name is probably a plural; False for a description."""
        last = self.book.display(query).split()[-1] if isinstance(query, str) else ""
        return last[-1:] == "s" and last.islower() and to_singular(last) != last

    @cached_property
    def _tables(self) -> Mapping[str, frozenset[str]]:
        """Kind of a table's rows -> the pages with such tables."""
        found: dict[str, set[str]] = {}
        for title, tables in self.graph.adjacent.get("table", {}).items():
            pages = {table.partition("#")[0] for table in tables}
            found.setdefault(self.graph.nodes[title].kind, set()).update(pages)
        return {kind: frozenset(pages) for kind, pages in found.items()}

    @cached_property
    def _persons(self) -> frozenset[str]:
        """Titles with a fact that only persons have, or that are an owner, a manager or the like
        and have the name of a person.
        """
        found: set[str] = set()
        for relation, rows in self.graph.adjacent.items():
            words = relation.casefold().replace("_", " ").removesuffix(" of")
            if relation.endswith(" of"):
                is_agent = words.split()[-1:] and words.split()[-1] in PEOPLE
                is_agent = is_agent or words == "reports to" or words.endswith(" by")
                found |= {title for title in rows if is_agent and self._is_named(title)}
            elif words in OF_PERSONS or (
                words.split()[0] in PERSON_VERBS and not words.endswith(" by")
            ):
                single = {title for title in rows if " " not in self.book.display(title)}
                found |= single | {title for title in rows if self._is_named(title)}
        return frozenset(found)

    def _is_named(self, title: str) -> bool:
        """Return True if a title has the form of a person's name."""
        name = self.book.display(title)
        return is_person_name(name) and name.split()[0].casefold() not in self._words

    @cached_property
    def _places(self) -> frozenset[str]:
        """Titles that are the place of something."""
        return frozenset(
            title
            for relation, rows in self.graph.adjacent.items()
            if relation.endswith(" of") and {*relation.casefold().split()} & PLACES
            for title in rows
        )

    def kind(self, title: str) -> str:
        """Return the noun for a title, or an empty string."""
        if self.is_plain(title):
            return ""
        kind = self.book.kind(title)
        if kind in self._overrides.kinds:
            return self._overrides.kinds[kind] or ""
        is_vague = find_participle(kind) or " and " in kind or {*kind.split()} & VAGUE_KINDS
        if kind in PERSONS and not self.is_person(title):
            return ""  # the list of staff in a folder of persons
        if kind not in NO_KIND and not is_vague:
            return kind if re.fullmatch(r"[A-Za-z][\w’' -]{1,30}", kind) else ""
        subject = self._subjects.get(title)
        if subject is not None and subject.kind:
            return subject.kind
        name = self.book.display(title)
        last = name.split()[-1]
        is_noun = re.fullmatch(r"[a-z]{3,}", last) and is_thing_name(name)
        is_noun = is_noun and len(name.split()) <= MAX_NOUN_NAME
        if is_noun:
            return to_singular(last)
        relations = self.graph.relations.get(title, ())
        return "product" if any(name.casefold() in OF_PRODUCTS for name in relations) else ""
