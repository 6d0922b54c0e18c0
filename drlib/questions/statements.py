"""Statements of prose: facts that a sentence states about a thing or a page, found without a model.

Only sentences with a simple form are used. A *description* states something about a named thing
("Hallow Light was built in 1787 by Ada Brant"): a page's subject, a linked page or a name at the
start of the sentence. A *value* is a year, a date, a number, an amount or a name that a sentence
gives; a *definition* explains a term. Each is a fact whose relation is the sentence with a gap.
Questions about it are therefore queries that are executed like all others, and the evidence is the
sentence itself.

Sentences that need their context are left out: with a pronoun for anything but the subject, with
"this", "there" or "the following", or without a name or number that makes them specific. Only
English is supported.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from drlib.questions.phrases import (
    PERSONS,
    classify_page,
    load_words,
    to_active,
    to_singular,
)
from drlib.worlds.graph import VALUE, Fact, Graph, Node

GAP = "___"
DESCRIBED = "is described by"  # relation of a description; its value is a predicate
DEFINED = "is defined as"
MIN_WORDS, MAX_WORDS = 4, 26  # of a predicate
MIN_DEFINITION = 5  # words
MAX_NAME = 60  # characters of a subject or a value

LINK = re.compile(r"\[([^\[\]\n]+)\]\(folder:((?:[^()\s]|\([^()\s]*\))+(?: [^()]*?)?)\)")
WEB_LINK = re.compile(r"!?\[([^\[\]\n]*)\]\((?:[^()\s]|\([^()\s]*\))*\)")
EMPHASIS = re.compile(r"(\*\*|__|\*|(?<!\w)_(?=\w)|(?<=\w)_(?!\w)|`)")
NOT_PROSE = re.compile(r"\s*(?:#|\||>|```|\d+[.)]\s|Facts about |Continues at |\$\$)")
BULLET = re.compile(r"\A\s{0,6}[-*+] +")
ABBREVIATIONS = r"(?:\b(?:Mr|Mrs|Ms|Dr|St|No|vs|cf|approx|Prof|Sr|Jr|ca|e\.g|i\.e|[A-Z])\.)"
SENTENCE_END = re.compile(r"(?<=[.!?])[\"”’)]?\s+(?=[A-Z\"“\[(])")

NO_KINDS = frozenset(load_words()["no_kinds"].split())
VAGUE_KINDS = ("page", "place", "thing", "article", "post", "entry", "document", "text", "item")
# words that refer to something outside of the sentence
POINTING = re.compile(
    r"\b(?:it|they|them|their|this|these|those|there|here|then|such|former|latter|"
    r"following|same|other|another|others|however|therefore|also|too|I|we|us|our|you|your|my|"
    r"me|both|neither|ones?|so|today|now|recently|currently|next|previous|last|ago|yet)\b"
)
PRONOUNS = ("He", "She", "It")
CUT = re.compile(
    r"(?:;|:| [–—-] |, (?:an?|under|to whom|of whom|by whom|and|but|which|who|where|when|while|"
    r"although|though|so|because|with)\b|"
    r" (?:but|because|although|while|whereas|when|if|so that)\b"
    r"| and (?=[A-Z][\w’'-]+(?: [A-Z][\w’'-]+)* (?:the|an?|in|on|at|by) )"  # "and Kim the north"
    r"| (?:until|after|before|since) (?!\d)).*$"
)
GAPPING = re.compile(  # "..., and Kim the north"; ", Ulysses Park draws"
    r"(?:,| and) [A-Z][\w’'-]+(?: [A-Z][\w’'-]+)* (?:the|an?|in|on|at|by|with|[a-z]+(?:s|ed)) "
)
UNFINISHED = frozenset(
    "except and or but of the a an to in on at by for with not is are was does can".split()
)
BE = r"(?:was|were|is|are|has been|have been|had been)"
# a verb in the third person or the past; nouns in the plural are excluded by what follows
VERB = re.compile(
    r"(?:(?:first|later|originally|once|still|never|only|soon|eventually|finally) )?"
    r"(?:was|were|is|are|has|have|had|lies|stands|runs|rises|flows|meets|holds|gives|takes|makes|"
    r"can|must|may|will|wrote|became|began|built|bought|brought|came|drew|fell|found|fought|gave|"
    r"grew|held|kept|laid|led|left|lost|made|met|moved|paid|ran|rose|sold|set|spent|stood|sank|"
    r"spoke|taught|took|went|won|cut|put|(?P<regular>[a-z]{3,}(?:ed|s))) "
)
NO_VERB = frozenset(
    "as its his hers means refers always perhaps thus plus across besides towards afterwards "
    "whereas unless less needed".split()
)
NUMBER = r"(?:[£$€]\s?)?\d{1,3}(?:,\d{3})+(?:\.\d+)?|(?:[£$€]\s?)?\d+(?:\.\d+)?"
YEAR = r"(?:1[0-9]{3}|20[0-9]{2})"
MONTHS = (
    "January February March April May June July August September October November December".split()
)
TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
ONES = "two|three|four|five|six|seven|eight|nine"
TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
SMALL = rf"(?:{TENS})-(?:one|{ONES})|{TEENS}|{TENS}|{ONES}"
DATE = rf"(?:\d{{1,2}} (?:{'|'.join(MONTHS)}) {YEAR}|(?:{'|'.join(MONTHS)}) \d{{1,2}}, {YEAR})"
OF_THINGS = re.compile(  # predicates of things, not of persons
    rf"{BE} (?:first )?(?:launched|built|opened|sold|released|published|made|installed|constructed|"
    r"completed|written|renamed|demolished|closed|designed|produced|introduced)\b|"
    r"(?:replaces?|contains?|covers|costs?|consists|opened|runs|lies|stands|flows) "
)
UNCLEAR = re.compile(r"\bthe (?:idea|matter|plan|subject|question|proposal|result|act|work)\b")
YEAR_OR_DATE = re.compile(rf"\b{YEAR}\b")
BASES = {  # auxiliary and base form of irregular verbs
    "has": ("does", "have"),
    "had": ("did", "have"),
    "have": ("do", "have"),
    **{
        past: ("did", base)
        for past, base in (row.split(":") for row in load_words()["irregular_past"].split())
    },
}
HONORIFIC = r"(?:Mr|Mrs|Ms|Miss|Dr|Captain|Professor|Father|Sister|Sir|Lady|Lord|Queen|King)\b"
NAME = (  # one to four capitalised words
    r"(?:(?:Mr|Mrs|Ms|Dr)\.? )?[A-ZÀ-ÖØ-Þ][\w’'-]+(?: (?:of|van|de|von|der|and the|[A-ZÀ-ÖØ-Þ]\.))?"
    r"(?: [A-ZÀ-ÖØ-Þ][\w’'-]+| \d+(?= [a-z])){0,3}"
)
NAMED_KINDS = frozenset(load_words()["named_kinds"].split())
PERSON_VERBS = frozenset(load_words()["person_verbs"].split()) - {"was"}
PRESENT = frozenset(load_words()["present_verbs"].split())
SMALL_WORDS = frozenset("of the and on in at upon de la le van von der a for to".split())
NO_NAMES = frozenset(load_words()["no_names"].split())
PRONOUN = re.compile(r"\b(?:he|she|his|her|him|who|which|that)\b", re.IGNORECASE)
PHRASE = re.compile(  # a subject before "was", perhaps with a relative clause
    r"(?P<np>(?:The |An? )?[A-Za-z][^,.;:()]{3,60}?)(?:, (?:which|who) [^,]{3,80},)? "
    r"(?=(?:was|were|is|are|has|had|have) )"
)
PERSON_NAME = (
    r"(?:[A-ZÀ-ÖØ-Þ][\w’'-]+(?: (?:van|de|von|der|of|[A-ZÀ-ÖØ-Þ]\.?))?"
    r"(?: [A-ZÀ-ÖØ-Þ][\w’'-]+){1,2})"
)
NOUN_END = re.compile(
    r"(?:,| (?:of|in|on|at|that|which|who|whose|where|for|from|with|and|or|near|by|to|between|"
    r"above|below|used|born|built|made|founded|known|called|named|based|located|about|as|along|over|"
    r"under|when|\w+ing|\w+ed)\b|[.;:(]|$)"
)
AGENTS = frozenset(load_words()["agents"].split())
MADE_BY = re.compile(
    r"(?P<np>The [^,.;:()]{3,50}), (?P<verb>[a-z]+(?:ed|en|t|n|ld)(?: [^,.;]{1,30})?) by "
    rf"(?:the (?:[a-z]+ )?)?(?P<value>{PERSON_NAME}),"
)
ROLE = re.compile(
    rf"(?:Its|His|Her) (?:first |last )?(?P<role>[a-z]+(?: [a-z]+){{0,2}}) (?P<be>is|was) "
    rf"(?:the [a-z]+ )?(?P<value>{PERSON_NAME})(?=[.,;]|$)"
)
DEFINITION = re.compile(
    r"(?:(An?|The) )?(?P<term>[A-Za-z][\w’' -]{2,50}?) (?:is|are|means|refers to) "
    r"(?P<text>(?:an?|the|any) .+)"
)
MARKED = re.compile(r"\*\*(?P<term>[^*:]{3,50}?):?\*\*(?::|\s*[–—-]|\s+is|\s+are)\s+(?P<text>.+)")


class Statement(NamedTuple):
    """A fact that a sentence states.

    Attributes:
        subject: title of the page or name of the term that the fact is about.
        relation: the sentence with a gap, `DESCRIBED` or `DEFINED`.
        value: what fills the gap: a predicate, a definition, or a value.
        question: text of the question.
        page: title of the page with the sentence.
        sentence: the sentence as on the page, without markup.
        mentions: (text, title) of linked things in the value, for further hops.
        scope: title of the page that the question must name, if the subject is not specific.
    """

    subject: str
    relation: str
    value: str
    question: str
    page: str
    sentence: str
    mentions: tuple[tuple[str, str], ...] = ()
    scope: str = ""

    @property
    def fact(self) -> Fact:
        """Return the statement as a fact of a graph."""
        return self.subject, self.relation, self.value

    def list_facts(self) -> list[Fact]:
        """Return the statement's fact and those with a gap for each thing that it mentions."""
        gaps = [(self.subject, self.value.replace(words, GAP), to) for words, to in self.mentions]
        return [self.fact, *gaps]


class Subject(NamedTuple):
    """A thing that sentences are about.

    Attributes:
        title: title of its page, or its name if it has none.
        name: name in a sentence.
        kind: noun such as "lighthouse", or an empty string.
        pronoun: "He", "She", "It", or an empty string.
        article: "the " if the name takes it.
    """

    title: str
    name: str
    kind: str = ""
    pronoun: str = ""
    article: str = ""

    @property
    def is_person(self) -> bool:
        """Return True if the subject is probably a person."""
        if self.pronoun:
            return self.pronoun != "It"
        return self.kind in PERSONS or (not self.kind and is_person_name(self.name))


class Statements:
    """All statements of a world, and the graph that contains them.

    Attributes:
        statements: in the order of the pages.
        graph: facts of the world and of the statements.
        subjects: title -> subject, for pages that are named after a thing.
        all_subjects: title or name -> subject, for all subjects of descriptions.
        names: title or name -> name in the text.
        by_fact: fact -> statement.
        words: words of the pages in lower case.
        find_article: function from a name to "the " or an empty string.
    """

    def __init__(self, world):
        pages = _read_pages(world)
        self.subjects = _find_subjects(pages, world.graph)
        reader = _Reader(pages, self.subjects)
        found = [one for title, text in pages.items() for one in reader.read(title, text)]
        self.statements = _drop_ambiguous(found, pages)
        self.all_subjects = {**reader.named, **self.subjects}
        self.words = reader.words
        self.find_article = reader.find_article
        self.names = {title: one.name for title, one in self.all_subjects.items()}
        self.by_fact = {fact: one for one in self.statements for fact in one.list_facts()}
        base = world.graph
        nodes = [node for node in base.nodes.values() if node.kind != VALUE] if base else []
        known = {node.title for node in nodes}
        terms = {fact[0] for fact in self.by_fact} - known
        nodes += [Node(title, VALUE) for title in sorted(terms)]
        facts = [*(base.facts if base else ()), *self.by_fact]
        self.graph = Graph(nodes, facts)


@lru_cache(maxsize=4)
def load_statements(world) -> Statements:
    """Return the statements of `world`; cached per world object."""
    return Statements(world)


def is_statement(relation: str) -> bool:
    """Return True for the relation of a statement."""
    return GAP in relation or relation in (DESCRIBED, DEFINED)


# ----------------------------------------------------------------------------------------- pages


def _read_pages(world) -> dict[str, str]:
    """Return title -> text of the pages and sections, continuations and table rows excluded."""
    store = getattr(world, "store", None)
    if store is None or world.graph is None:
        return {}
    sql = "SELECT d.title, text FROM documents d JOIN pages p ON p.rowid = d.rowid ORDER BY d.title"
    rows = store.rows(sql)
    kinds = {title: node.kind for title, node in world.graph.nodes.items()}
    return {title: text for title, text in rows if kinds.get(title) in ("page", "section")}


def _find_subjects(pages: dict[str, str], graph: Graph | None) -> dict[str, Subject]:
    """Return the subject of each page that is named after a thing."""
    found: dict[str, Subject] = {}
    if graph is None:
        return found
    common = _list_common_words(pages)
    for title, text in pages.items():
        if "#" in title:
            continue
        (name, *more) = [*graph.values(title, "heading"), ""]
        if more[1:] or not name:
            name = next(iter(graph.nodes[title].aliases), "")
        name = name.strip()
        if not is_thing_name(name) or not is_proper(name):
            continue
        prose = " ".join(sentence for sentence, _, _ in _sentences(_body(text)))
        kind = _find_kind(name, prose)
        counts = Counter(word.capitalize() for word in re.findall(r"(?i)\b(?:he|she)\b", prose))
        pronoun = max(counts, key=lambda one: counts[one]) if counts else ""
        is_worded = any(word.casefold() in common for word in name.split())
        is_worded = is_worded and (name.split()[0].casefold() in common or sum(counts.values()) < 2)
        verbs = {*re.findall(rf"{re.escape(name.split()[-1])} (?:was )?([a-z]+)", prose)}
        if not is_person_name(name) or is_worded:
            pronoun = "It"
        elif not pronoun:
            pronoun = "He" if verbs & PERSON_VERBS else "It"
        stated = classify_page(title, graph)
        kind = kind or find_named_kind(name)
        if stated in VAGUE_KINDS[1:]:
            pronoun = "It"
        if stated in PERSONS or not kind:
            kind = "" if stated in VAGUE_KINDS or stated.endswith("ing") else stated
        pronoun = "" if kind in PERSONS and pronoun == "It" else pronoun
        found[title] = Subject(title, name, kind, pronoun)
    return found


def is_thing_name(name: str) -> bool:
    """Return True for a name of a thing: short, capitalised, no question or section."""
    if not 2 < len(name) <= MAX_NAME or re.search(r"[?!:/|]| - ", name) or not name[0].isupper():
        return False
    first = name.split()[0].casefold()
    if first in ("how", "what", "why", "when", "where", "who", "your", "our", "my", "getting"):
        return False
    return not re.fullmatch(
        r"(?i)(?:overview|introduction|readme|index|home|notes?|contents|welcome|about|faq|"
        r"glossary|summary|appendix|reading list|changelog|contact|history)",
        name,
    )


def _list_common_words(pages: dict[str, str]) -> frozenset[str]:
    """Return the words that the pages write in lower case."""
    found: set[str] = set()
    for text in pages.values():
        found.update(re.findall(r"(?<![\w/#.-])[a-z]{3,}(?![\w/.-]*\))", text))
    return frozenset(found)


def is_proper(name: str) -> bool:
    """Return True if all words but the small ones are capitalised."""
    words = [word for word in name.split() if word not in SMALL_WORDS]
    return all(word[0].isupper() or word[0].isdigit() for word in words)


def is_person_name(name: str) -> bool:
    """Return True for two or three capitalised words without a noun of places or groups."""
    if re.match(HONORIFIC, name):
        return True
    return re.fullmatch(PERSON_NAME, name) is not None and not find_named_kind(name)


def find_named_kind(name: str) -> str:
    """Return the noun that ends a name ("Fenwater Rowing Club": "club"), or an empty string."""
    words = name.casefold().split()
    if words[0] in ("river", "lake", "mount", "cape", "isle"):
        return {"mount": "mountain", "isle": "island"}.get(words[0], words[0])
    return words[-1] if words[-1] in NAMED_KINDS else ""


def _body(text: str) -> str:
    """Return the text of a page without its heading."""
    head, _, rest = text.partition("\n")
    return rest if rest.strip() else head


def _find_kind(name: str, prose: str) -> str:
    """Return the noun that "NAME is a ..." gives, such as "lighthouse", or an empty string."""
    bare = re.escape(name.removeprefix("The "))
    match = re.search(
        rf"\b{bare}(?:, [^,.]{{3,60}},)? (?:was|is|are|were) (?:an?|the|one of the) ([^.;]+)", prose
    ) or re.search(rf"\b{bare}, (?:an?|the) ([^.;]+)", prose)
    if not match:
        return ""
    phrase = match[1][: NOUN_END.search(match[1]).start()].split()  # type: ignore[union-attr]
    if not phrase or len(phrase) > 5 or not re.fullmatch(r"[a-z][a-z-]{2,}", phrase[-1]):
        return ""
    noun = to_singular(phrase[-1])
    return "" if noun in NO_KINDS else noun


class _Sentence(NamedTuple):
    """A sentence without markup; `links` are (text, title) of its links."""

    text: str
    links: tuple[tuple[str, str], ...]
    is_first: bool  # of its paragraph


def _sentences(body: str) -> Iterator[_Sentence]:
    """Yield the sentences of the prose and of the list items of a page."""
    for paragraph in re.split(r"\n\s*\n", body):
        lines: list[str] = []
        blocks: list[str] = []
        for line in paragraph.split("\n"):
            if NOT_PROSE.match(line):
                continue
            if BULLET.match(line):
                blocks.append(" ".join(lines))
                lines = [BULLET.sub("", line)]
            else:
                lines.append(line.strip())
        for block in (*blocks, " ".join(lines)):
            yield from _split_block(block.strip())


def _split_block(block: str) -> Iterator[_Sentence]:
    """Yield the sentences of a paragraph or a list item."""
    if not block:
        return
    parts: list[str] = []
    for piece in SENTENCE_END.split(block):
        if parts and re.search(rf"{ABBREVIATIONS}$", parts[-1]):
            parts[-1] += f" {piece}"
        else:
            parts.append(piece)
    for number, part in enumerate(parts):
        links = tuple((EMPHASIS.sub("", words), to) for words, to in LINK.findall(part))
        text = WEB_LINK.sub(r"\1", LINK.sub(r"\1", part))
        text = " ".join(EMPHASIS.sub("", text).split())
        if text:
            yield _Sentence(text, links, number == 0)


# -------------------------------------------------------------------------------------- statements


class _Reader:
    """Reader of the statements of pages."""

    def __init__(self, pages: dict[str, str], subjects: dict[str, Subject]):
        self._subjects = subjects
        self._by_name: dict[str, Subject] = {}
        names = Counter(subject.name for subject in subjects.values())
        for subject in subjects.values():
            if names[subject.name] == 1:
                for name in {subject.name, subject.name.removeprefix("The ")}:
                    self._by_name[name] = subject
        self._names = sorted(self._by_name, key=len, reverse=True)
        self._text = "\n".join(LINK.sub(r"\1", text) for text in pages.values())
        self._articles: dict[str, str] = {}
        self.named: dict[str, Subject] = {}  # subjects without a page
        self.words = _list_common_words(pages)
        self._full_names: dict[str, set[str]] = defaultdict(set)  # surname -> full names
        for full, last in re.findall(r"(?=\b([A-Z][\w’'-]+ ([A-Z][\w’'-]+))\b)", self._text):
            self._full_names[last].add(full)
        self._pronouns: dict[str, str] = {}  # of names of persons, where known

    def _find_pronoun(self, name: str, rest: str) -> str:
        """Return "He" or "She" for a name that the pages use for a person, else an empty string.

        The evidence is a pronoun in the same or the next sentence, "NAME, who", or a verb.
        """
        if not is_person_name(name) or self.is_worded(name):
            return ""
        if re.match(HONORIFIC, name):
            return "She" if re.match(r"(?:Mrs|Ms|Miss|Sister|Lady|Queen)\b", name) else "He"
        found_before = self._pronouns.get(name)
        if found_before is not None:
            return found_before or self._guess_pronoun(name, rest)
        last = re.escape(name.split()[-1])
        near = re.findall(rf"\b{last}\b(?![’']s)[^.]{{0,200}}\.?[^.]{{0,60}}", self._text)
        found = Counter(
            {"he": "He", "his": "He", "him": "He"}.get(word, "She")
            for text in near
            for word in re.findall(r"\b(?:he|his|him|she|her|hers)\b", text.casefold())
        )
        self._pronouns[name] = found.most_common(1)[0][0] if found else ""
        return self._pronouns[name] or self._guess_pronoun(name, rest)

    def _guess_pronoun(self, name: str, rest: str) -> str:
        """Return "He" for a name with "who" or with a verb of persons, else an empty string."""
        verbs = {*re.findall(r"[a-z]+", rest)[:4]}
        is_who = re.search(rf"\b{re.escape(name)},? who\b", self._text)
        return "He" if is_who or verbs & PERSON_VERBS else ""

    def is_worded(self, name: str) -> bool:
        """Return True if a name has a common word, as few names of persons do."""
        return any(word.casefold() in self.words for word in name.split())

    def find_article(self, name: str) -> str:
        """Return "the " if the pages write the name with it, else an empty string."""
        if name not in self._articles:
            with_the = len(re.findall(rf"\b[Tt]he {re.escape(name)}\b", self._text))
            times = len(re.findall(rf"\b{re.escape(name)}\b", self._text))
            self._articles[name] = "the " if 2 * with_the > times else ""
        return self._articles[name]

    def read(self, title: str, text: str) -> Iterator[Statement]:
        """Yield the statements of one page or section."""
        page = title.partition("#")[0]
        own = self._subjects.get(page)
        body = _body(text)
        names = _count_names(body)
        hero = own if own is not None and own.pronoun in ("He", "She") else None
        about: Subject | None = None  # what a pronoun at the start of the next sentence refers to
        for sentence in _sentences(body):
            if sentence.is_first:
                about = hero
            subject, rest = self._find_subject(sentence, own, about)
            about = self._follow(subject, rest, sentence.text, about, hero)
            for one, said in _split_clauses(sentence.text, subject, rest):
                one = one._replace(article=self.find_article(one.name))
                self.named.setdefault(one.title, one)
                yield from self._describe(title, sentence, one, said)
                yield from _find_values(title, sentence.text, one, said)
            if own is not None:
                yield from _find_roles(title, sentence.text, own)
            yield from _find_made_by(title, sentence.text)
            if subject is None:
                yield from _find_phrase_values(title, sentence.text, names)
        yield from _find_definitions(title, body, self._by_name)
        yield from _find_entries(title, body)

    def _follow(
        self,
        subject: Subject | None,
        rest: str,
        text: str,
        about: Subject | None,
        hero: Subject | None,
    ) -> Subject | None:
        """Return what a pronoun after the sentence `text` refers to, or None if it is unclear.

        "It" may refer to something that the sentence introduces, "she" to another person.
        """
        if subject is not None and not subject.is_person:
            return None if re.search(r" an? ", rest) else subject
        kept = subject or about
        if kept is None or hero is None:
            return subject
        own = {*kept.name.split()}
        others = [name for name in re.findall(PERSON_NAME, text) if not own & {*name.split()}]
        is_other = any(is_person_name(name) and not self.is_worded(name) for name in others)
        return None if is_other else kept

    def _find_subject(
        self,
        sentence: _Sentence,
        own: Subject | None,
        about: Subject | None,
    ) -> tuple[Subject | None, str]:
        """Return the subject of a sentence and the text after it."""
        text, when = _move_time(sentence.text)
        found, rest = self._match_subject(text, sentence.links, own, about)
        return (found, f"{rest.rstrip('.!')}{when}.") if found is not None else (None, "")

    def _match_subject(
        self,
        text: str,
        links: tuple[tuple[str, str], ...],
        own: Subject | None,
        about: Subject | None,
    ) -> tuple[Subject | None, str]:
        """Return the subject at the start of `text` and the text after it."""
        for words, to in links[:1]:  # a linked page at the start
            linked = self._subjects.get(to.partition("#")[0])
            start = re.match(rf"(?:[Tt]he )?{re.escape(words)}(?=[ ,])", text)
            if linked is not None and start and words in (linked.name, linked.name.split()[-1]):
                return linked, text[start.end() :]
        plain = text.removeprefix("The ").removeprefix("the ")
        for name in self._names:
            if plain.startswith((f"{name} ", f"{name}, ")):
                return self._by_name[name], plain[len(name) :]
        if own is not None:
            starts = [f"The {own.kind}", f"the {own.kind}"] if own.kind else []
            if own.is_person:
                starts.append(own.name.split()[-1])
            for start_of in starts:
                if text.startswith(f"{start_of} "):
                    return own, text[len(start_of) :]
        first, _, rest = text.partition(" ")
        if first.capitalize() in PRONOUNS:
            fits = about is not None and about.pronoun in ("", first.capitalize())
            return (about, f" {rest}") if fits else (None, "")
        return self._match_name(text)

    def _match_name(self, text: str) -> tuple[Subject | None, str]:
        """Return the name at the start of a sentence as a subject."""
        match = re.match(rf"(?:The|Its|His|Her|Their|Our) [a-z][^,]{{2,40}}, ({NAME})(?=,)", text)
        match = match or re.match(rf"[Tt]he [a-z]{{4,}}(?: [a-z]{{3,}})? ({NAME})(?= [a-z]+)", text)
        match = match or re.match(rf"((?:The )?{NAME})(?= [a-z]|, )", text)
        if not match:
            return None, ""
        name = match[1].removeprefix("The ")
        words = name.split()
        is_other = words[0] in NO_NAMES or re.search(r"[’']s$", name)
        if is_other or not is_thing_name(name):
            return None, ""
        rest = text[match.end() :]
        kind = find_named_kind(name)
        if len(words) == 1 and not kind:  # a surname whose full name is known, or nothing
            full = self._full_names.get(name, set())
            full = {one for one in full if one.split()[0] not in NO_NAMES and is_person_name(one)}
            if len(full) != 1:
                return None, ""
            whole = full.pop()
            pronoun = self._find_pronoun(whole, rest)
            return (Subject(whole, whole, "", pronoun), rest) if pronoun else (None, "")
        if match[1].startswith("The ") or kind:
            return Subject(name, name, kind, "It"), rest
        pronoun = self._find_pronoun(name, rest)
        return (Subject(name, name, "", pronoun), rest) if pronoun else (None, "")

    def _describe(
        self, title: str, sentence: _Sentence, subject: Subject, rest: str
    ) -> Iterator[Statement]:
        """Yield the description that the rest of a sentence gives."""
        predicate = _trim(rest)
        if not _is_predicate(predicate, subject):
            return
        asked = _ask_for(subject, predicate)
        mentions = tuple(
            (words, to.partition("#")[0])
            for words, to in sentence.links
            if words in predicate and to.partition("#")[0] in self._subjects
        )
        yield Statement(subject.title, DESCRIBED, predicate, asked, title, sentence.text, mentions)


def _ask_for(subject: Subject, predicate: str) -> str:
    """Return the question for the subject of a predicate."""
    is_a = re.match(r"(?:is|was|are|were) (?:an?|the) (.+)", predicate)
    if is_a and re.search(r"\band (?:an?|is|was|has|had|are|were)\b", is_a[1]):
        is_a = None
    if is_a and not is_a[1].startswith(("first to", "last to")):
        return f"Name the {is_a[1]}."
    if predicate.startswith(("are ", "were ", "have ")):
        return f"What {predicate}?"
    is_sure = subject.kind in PERSONS or subject.pronoun in ("He", "She")
    if subject.is_person and (is_sure or not OF_THINGS.match(predicate)):
        return f"Who {predicate}?"
    return f"Which {subject.kind} {predicate}?" if subject.kind else f"What {predicate}?"


def _count_names(text: str) -> Counter[str]:
    """Count the capitalised words inside of sentences, which are parts of names."""
    return Counter(re.findall(r"(?<=[a-z,] )[A-Z][\w’'-]+", text))


def _move_time(text: str) -> tuple[str, str]:
    """Return a sentence without a time at its start, and the time for its end."""
    start = r",? (?=[A-Z]|the |a |an |he |she |it )"
    match = re.match(rf"((?:In|On|By|Since) (?:{YEAR}|{DATE})|At [\d,.]+ \w+){start}", text)
    if not match:
        return text, ""
    return text[match.end() :], f" {match[1][0].lower()}{match[1][1:]}"


def _split_clauses(text: str, subject: Subject | None, rest: str) -> Iterator[tuple[Subject, str]]:
    """Yield the subjects of a sentence with what it states about them.

    These are its subject, without an apposition or a relative clause after it, and a person or
    thing with a relative clause: "Mr Abiola, who has been president since 2015, ...".
    """
    if subject is not None:
        between = re.match(r", (?:an?|the|who|which|then|now|formerly) [^,]{3,80}, ", rest)
        if between:
            yield subject, rest[between.end() :]
        elif rest.startswith(" "):
            yield subject, rest[1:]
    for match in re.finditer(rf"(?<![\w’'] )({NAME}),? (who|which) ([^,.;]+)", text):
        name = match[1]
        is_who = match[2] == "who"
        is_name = name.split()[0] not in NO_NAMES
        if len(name.split()) > 1 and is_name and is_thing_name(name):
            kind = "" if is_who else find_named_kind(name)
            if is_who or kind:
                yield Subject(name, name, kind, "" if is_who else "It"), match[3]


def _trim(rest: str) -> str:
    """Return a predicate without its final stop and without trailing clauses, if it is then
    specific enough.
    """
    text = rest.strip().rstrip(".!")
    short = CUT.sub("", text)
    if short != text and len(short.split()) >= MIN_WORDS and _is_specific(short):
        return re.sub(r"(?:,| and| or| but)+$", "", short.rstrip(", "))
    return text


def _is_specific(predicate: str) -> bool:
    """Return True if a predicate names something: a proper name, a year or a large number."""
    return re.search(r"(?<!^)\b[A-Z][a-z]{2,}|\b\d{3,}\b", predicate) is not None


def _is_predicate(predicate: str, subject: Subject) -> bool:
    """Return True if a predicate can be asked for by itself."""
    words = predicate.split()
    verb = VERB.match(predicate)
    if not MIN_WORDS <= len(words) <= MAX_WORDS or verb is None:
        return False
    regular = verb["regular"] or ""
    if regular.endswith("s") and strip_third_person(regular) not in PRESENT:
        return False  # probably a noun in the plural
    if GAPPING.search(predicate) or words[-1] in UNFINISHED:
        return False
    if words[0] in NO_VERB or predicate.startswith(("is what", "was what")):
        return False
    if POINTING.search(predicate) or re.search(r"[()\[\]“”\"|;:$]", predicate):
        return False
    if not _is_specific(predicate) and len(words) < 2 * MIN_WORDS:
        return False
    if re.search(r",? and (?:he|she|it)\b", predicate):  # a second sentence
        return False
    if re.search(r"\b(?:of|in|on|at|by|for|from|to|with|because of) that\b", predicate):
        return False  # "in the course of that argument"
    if re.search(r"\bhim\b", predicate) or re.match(r"\w+ her\b", predicate):
        return False  # somebody else
    own = {word.casefold() for word in re.findall(r"\w{4,}", subject.name)} - {subject.kind}
    return not own & {word.casefold() for word in re.findall(r"\w{4,}", predicate)}


END = r"(?=[.,;]|$| and )"
TAIL = r"(?P<tail> (?:in|by|at|for|from|near|to|under|with|over|between) [^,;.]+?)?"
PARTICIPLE = r"[\w-]+(?:ed|t|n|ld|de|wn|ne)"
PLACE = r"(?:the )?[A-ZÀ-ÖØ-Þ][\w’'-]+(?: (?:of|on|upon|le|the))?(?: [A-ZÀ-ÖØ-Þ][\w’'-]+){0,2}"
PERIODS = r"seconds?|minutes?|hours?|days?|weeks?|months?|years?|points?|dollars|euros|pounds"
MEASURES = r"feet|foot|metres|meters|m|km|miles|kilometres|acres|hectares|cm|mm|inches|tonnes|tons"
# what is asked for after the subject: a pattern, and the question in which {x} is the subject
_VALUE_FORMS = (
    (
        rf"(?P<be>was|were) (?P<verb>{PARTICIPLE}(?: [^,]*?)?) in (?P<value>{YEAR}){TAIL}{END}",
        "In which year {be} {{x}} {verb}{tail}?",
    ),
    (
        rf"(?P<be>was|were) (?P<verb>{PARTICIPLE}(?: [^,]*?)?) on (?P<value>{DATE}){TAIL}{END}",
        "On which date {be} {{x}} {verb}{tail}?",
    ),
    (
        rf"(?P<be>was|were|is|are) (?P<verb>{PARTICIPLE}(?: [^,]*?)?) by "
        rf"(?:the (?:[a-z]+ )?)?(?P<value>{PERSON_NAME})(?P<tail>)(?=[.,;]|$| in {YEAR}| and )",
        "By whom {be} {{x}} {verb}?",
    ),
    (
        rf"(?P<be>was) (?P<verb>born) (?:in|at|on) (?P<value>{PLACE})(?P<tail>)"
        rf"(?=[.,;]|$| in {YEAR}| and | on )",
        "Where {be} {{x}} born?",
    ),
    (
        rf"(?P<past>[a-z]+(?:ed|e|t|n|k|w|d|g|m))(?P<verb>(?: (?!in {YEAR})[^,;]*?)?) in "
        rf"(?P<value>{YEAR}){TAIL}{END}",
        "In which year did {{x}} {base}{verb}{tail}?",
    ),
    (
        rf"(?P<past>[a-z]+(?:ed|e|t|n|k|w|d|g|m))(?P<verb>(?: [^,;]*?)?) on "
        rf"(?P<value>{DATE}){TAIL}{END}",
        "On which date did {{x}} {base}{verb}{tail}?",
    ),
    (
        rf"(?P<be>is|are|was|were) (?P<value>(?:{NUMBER})"
        rf"(?:%| percent|(?: business)? (?:{PERIODS}))?"
        r"(?: per [a-z]+)?)(?P<verb>)(?P<tail>)(?=[.,;](?!\d)|$| and )",
        "What {be} {{x}}?",
    ),
    (
        rf"(?P<be>is|was|are|were) (?:about |around |some |nearly )?(?P<value>(?:{NUMBER}) "
        rf"(?:{MEASURES})) (?P<verb>high|long|wide|deep|tall)(?P<tail>)(?=[.,;]|$| and | at )",
        "How {verb} {be} {{x}}?",
    ),
    (
        r"(?P<past>has|had|have|employs|employed|serves|covers|covered|contains|contained|holds|"
        r"held|seats|carries|carried|includes|included|offers|offered) (?:about |around |some |"
        rf"roughly |only |up to |nearly )?(?P<value>{NUMBER}|(?:{SMALL})(?: hundred| thousand)?) "
        r"(?P<what>(?!hundred|thousand)[a-z]+(?: [a-z]+(?<!ed))?)"
        r"(?P<verb>)(?P<tail>)(?=[.,;]|$| and | in | on | at | for | that | with | to | of )",
        "How many {what} {do} {{x}} {base}?",
    ),
)
_VALUE_PATTERNS = tuple((re.compile(pattern), form) for pattern, form in _VALUE_FORMS)


def find_base(past: str) -> tuple[str, str]:
    """Return the auxiliary and the base form of a verb; empty if it is not known.

    Example:
        >>> find_base("closed"), find_base("covers"), find_base("wooded")[0]
        (('did', 'close'), ('does', 'cover'), 'did')
    """
    if past in BASES:
        return BASES[past]
    if past.endswith("ed"):
        third = to_active(past)[0]
        return "did", strip_third_person(third)
    return ("does", strip_third_person(past)) if past.endswith("s") else ("", "")


def strip_third_person(third: str) -> str:
    """Return the base form of a verb in the third person singular."""
    if third.endswith("ies"):
        return f"{third[:-3]}y" if len(third) > 4 else third[:-1]
    is_long = re.search(r"(?:ss|sh|ch|x|o)es$", third)
    return third[:-2] if is_long else third[:-1]


def _find_values(title: str, text: str, subject: Subject, rest: str) -> Iterator[Statement]:
    """Yield the values that a sentence about `subject` gives."""
    for pattern, form in _VALUE_PATTERNS:
        match = pattern.match(rest)
        if not match:
            continue
        parts = {name: value or "" for name, value in match.groupdict().items()}
        do, base = find_base(parts["past"]) if "past" in parts else ("", "")
        if parts.get("past") in ("had", "has", "have") and "How many" not in form:
            continue  # "had been built in 1890"
        said = f"{parts['verb']}{parts['tail']}"
        if "past" in parts and not base or re.search(r"[()\[\]{}]| and |,", said):
            continue
        if re.match(r" (?:her|him)\b", parts["verb"]) or UNCLEAR.search(said):
            continue
        if POINTING.search(said) or len(said.split()) > MAX_WORDS or YEAR_OR_DATE.search(said):
            continue
        if re.search(r" (?:until|when|while|who|which|that|before|after|because|if) ", f" {said} "):
            continue
        question = form.format(**parts, do=do, base=base)
        question = question.format(x=f"{subject.article}{subject.name}")
        relation = f"{rest[: match.start('value')]}{GAP}{rest[match.end('value') : match.end()]}"
        yield Statement(subject.title, relation, parts["value"], question, title, text)


def _find_roles(title: str, sentence: str, own: Subject) -> Iterator[Statement]:
    """Yield who has a role for the subject of the page: "Its director is Ada Brant"."""
    match = ROLE.match(sentence)
    if match and match["role"].split()[-1] in AGENTS:
        relation = f"{match['role']} is {GAP}"
        question = f"Who {match['be']} the {match['role']} of {own.article}{own.name}?"
        yield Statement(own.title, relation, match["value"], question, title, sentence)


def _find_made_by(title: str, sentence: str) -> Iterator[Statement]:
    """Yield who made a thing: "The case, carved in walnut by Ada Brant, shows ..."."""
    match = MADE_BY.match(sentence)
    if match and not POINTING.search(f"{match['np']} {match['verb']}"):
        phrase = match["np"][0].lower() + match["np"][1:]
        relation = f"{match['verb']} by {GAP}"
        asked = f"By whom was {phrase} {match['verb']}?"
        scope = "" if re.search(r"\b[A-Z]", phrase) else title
        yield Statement(phrase, relation, match["value"], asked, title, sentence, (), scope)


def _find_phrase_values(title: str, sentence: str, names: Counter[str]) -> Iterator[Statement]:
    """Yield the values of a sentence whose subject is a phrase: "The boathouse was built"."""
    text, when = _move_time(sentence)
    match = PHRASE.match(text)
    if (
        not match
        or match["np"].split()[0] in NO_NAMES - {"The", "A", "An"}
        or re.search(r" - | (?:is|was|are|were|has|had) | used$", match["np"])
        or POINTING.search(match["np"])
        or PRONOUN.search(match["np"])
    ):
        return
    phrase = match["np"]
    if phrase.split()[0] in ("The", "A", "An"):
        phrase = phrase[0].lower() + phrase[1:]
    elif not names[phrase.split()[0]] and not re.search(r"[’']s$", phrase.split()[0]):
        is_one = text[match.end() :].lstrip().startswith(("is ", "was ", "has "))
        phrase = f"{'the ' if is_one else ''}{phrase[0].lower()}{phrase[1:]}"
    subject = Subject(phrase, phrase)
    rest = f"{text[match.end() :].rstrip('.!')}{when}."
    scope = "" if re.search(r"\b[A-Z]", phrase) else title
    for one in _find_values(title, sentence, subject, rest):
        is_vague = len(phrase.split()) < 2 or phrase.split()[-1] in NO_KINDS
        if not (is_vague and one.question.startswith("What ")):
            yield one._replace(scope=scope)


def _find_entries(title: str, body: str) -> Iterator[Statement]:
    """Yield the options and settings of a manual: a line with the name, then its description."""
    name = noun = ""
    rows = re.sub(r"(?m)^\|+(-[^|\n]+)\|+([^|\n]+)\|?$", r"\n\1\n\n\2\n", body)
    for block in re.split(r"\n\s*\n", rows):
        text = " ".join(EMPHASIS.sub("", WEB_LINK.sub(r"\1", LINK.sub(r"\1", block))).split())
        entry = OPTION.fullmatch(text) or SETTING.fullmatch(text)
        if entry:
            name, noun = entry["name"], "option" if text.startswith("-") else "setting"
            is_next = True
            continue
        if not name:
            continue
        default = DEFAULT.search(text)
        if text.startswith("Continues at "):
            continue
        if default and not re.search(r"=|^(?:None|none|the|to)$", default["value"]):
            value = default["value"].strip("'\"‘’“”")
            relation = f"the default of a {noun} is {GAP}"
            asked = f"What is the default of the {noun} {name}?"
            yield Statement(name, relation, value, asked, title, text, (), title)
        rest = DEFAULT.sub("", text).strip()
        said = SENTENCE_END.split(rest)[0].rstrip(". ")
        is_short = MIN_ENTRY <= len(said.split()) <= MAX_WORDS
        is_sentence = rest[:1].islower() or rest.endswith((".", ")"))
        if (
            is_next
            and is_short
            and is_sentence
            and not POINTING.search(said)
            and not re.search(r'["“”|]', said)
        ):
            asked = f'Which {noun} is described as "{said}"?'
            yield Statement(name, DEFINED, said, asked, title, said, (), title)
        is_next = False


def _find_definitions(title: str, body: str, names: dict[str, Subject]) -> Iterator[Statement]:
    """Yield the terms that a page defines: "**Term**: text" and "A term is a ..."."""
    for line in re.split(r"\n\s*\n|\n(?=\s{0,6}[-*+] )", body):
        marked = MARKED.match(BULLET.sub("", line.strip()))
        if marked:
            yield from _define(title, line, marked["term"], " ".join(marked["text"].split()), names)
    for sentence in _sentences(body):
        match = DEFINITION.match(sentence.text)
        if (
            match
            and match[1] != "The"
            and not sentence.text.startswith(("There", "This", "That", "It "))
        ):
            yield from _define(title, sentence.text, match["term"], match["text"], names)


def _define(
    title: str, sentence: str, term: str, text: str, names: dict[str, Subject]
) -> Iterator[Statement]:
    """Yield the definition of a term if it can be asked for by itself."""
    text = WEB_LINK.sub(r"\1", LINK.sub(r"\1", EMPHASIS.sub("", text)))
    parts = [part for part in SENTENCE_END.split(text) if part]
    text = CUT.sub("", parts[0]).rstrip(".;:, ") if parts else ""
    text = re.sub(r",? and (?:[a-z]+s|might|may|can|will|should) .*", "", text)
    words = [word.casefold() for word in re.findall(r"\w{3,}", term)]
    term = term.strip().removeprefix("The ").removeprefix("the ")
    if PRONOUN.search(term) or re.search(r"self|[’']s\b", term) or term.split()[0] in NO_NAMES:
        return
    is_short = (
        len(term.split()) <= 4
        and " of " not in term
        and not POINTING.search(term)
        and not GENERIC.search(term)
    )
    told = any(word.rstrip("s")[:6] in text.casefold() for word in words)
    if not is_short or told or not words or term in names or not term.strip():
        return
    verb = re.search(r"\b(?:is|are|was|were|has|have|hasn.t|will|must)\b", text)
    if verb and not re.search(r"\b(?:that|which|who|where|when)\b", text[: verb.start()]):
        return  # a sentence, not a definition
    first = text.split()[0]
    if first.endswith("s") and not re.match(r"\w+ (?:of|that|which|in|on) ", text):
        return  # "sounds a horn": a verb
    is_lower = text[:1].islower() or text.split()[0] in ("A", "An", "The")
    if len(text.split()) < MIN_DEFINITION or len(text.split()) > MAX_WORDS or not is_lower:
        return
    if POINTING.search(text) or NO_DEFINITION.search(text) or text.split()[-1] in UNFINISHED:
        return
    text = text[0].lower() + text[1:]
    question = f'Which term is defined as "{text}"?'
    plain = " ".join(EMPHASIS.sub("", WEB_LINK.sub(r"\1", LINK.sub(r"\1", sentence))).split())
    yield Statement(term, DEFINED, text, question, title, BULLET.sub("", plain))


NO_DEFINITION = re.compile(
    r"\b(?:many|various|several|some|large|powerful|useful|popular|common|good|new|only|sense)\b|"
    r"[()\[\]“”\"|=]|opposite|^(?:the|an?) (?:work|home|result|site|place|name|reason|way|one)\b"
)
# names of options and settings that stand alone on a line, and the default in their description
OPTION = re.compile(
    r"(?:-\w(?: [A-Z]+)?, )*(?P<name>--[a-z][\w-]+)(?:[ =][A-Z<\[][\w<>=\[\],.-]*)?"
    r"(?:, -{1,2}[\w-]+(?:[ =][A-Z]+)?)*"
)
SETTING = re.compile(r"(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|[A-Z]\w+(?:::[\w-]+)+)")
DEFAULT = re.compile(r"\(?\b[Dd]efault(?:s to| is|:) (?P<value>[^\s()]+?)\)?(?=[.,;]? |[.,;]?$|\))")
MIN_ENTRY = 3  # words of a description
GENERIC = re.compile(
    r"(?i)\b(?:question|default|header|value|option|purpose|goal|aim|idea|point|problem|reason|result|example|rule|way|thing|case|"
    r"first|second|third|best|most|all|each|every|some|many|no|that|what|which|if|when|in|on|for)\b"
)


# ------------------------------------------------------------------------------------ ambiguity


def _drop_ambiguous(found: Sequence[Statement], pages: dict[str, str]) -> list[Statement]:
    """Return the statements that no other page seems to make about another thing.

    A description is ambiguous if a paragraph of a page that does not mention its subject contains
    all its significant words. Of equal facts the first is kept.
    """
    holders: dict[str, set[int]] = defaultdict(set)
    paragraphs: list[str] = []
    for text in pages.values():
        for paragraph in re.split(r"\n\s*\n", _body(text)):
            for word in set(re.findall(r"\w{4,}|\d+", paragraph.casefold())):
                holders[word].add(len(paragraphs))
            paragraphs.append(paragraph.casefold())
    kept: dict[Fact, Statement] = {}
    values: dict[tuple[str, str], set[str]] = defaultdict(set)
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    for one in found:
        values[one.subject, one.relation].add(one.value)
        owners[one.relation, one.value].add(one.subject)
    for one in found:
        if one.relation in (DESCRIBED, DEFINED):
            words = sorted(
                set(re.findall(r"\w{4,}|\d+", one.value.casefold())),
                key=lambda word: len(holders[word]),
            )
            if not words or len(owners[one.relation, one.value]) > 1:
                continue
            places = set(holders[words[0]]).intersection(*(holders[word] for word in words[1:]))
            sentence = one.sentence.casefold()[:60]
            is_elsewhere = any(
                one.sentence.casefold() not in _plain(paragraphs[place])
                and sentence not in _plain(paragraphs[place])
                for place in places
            )
            if is_elsewhere:
                continue
        elif len(values[one.subject, one.relation]) > 1:
            continue
        kept.setdefault(one.fact, one)
    return list(kept.values())


def _plain(paragraph: str) -> str:
    """Return a paragraph without markup."""
    return " ".join(EMPHASIS.sub("", WEB_LINK.sub(r"\1", LINK.sub(r"\1", paragraph))).split())
