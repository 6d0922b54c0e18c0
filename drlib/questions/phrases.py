"""Phrases: how each relation, kind and name of a world is expressed in English.

A `Phrase` expresses a relation from both ends and for one or several things. The phrases of `cldr`
and `pydocs` are handwritten (phrases.yaml); those of other relations are derived from the name of
a column or key: a noun ("office manager"), a participle ("approved by") or a verb ("requires").
Articles and plurals come from inflect. Only English is supported.
"""

import posixpath
import re
from collections.abc import Mapping
from datetime import date
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from drlib.worlds.graph import VALUE, Graph, Node, inverse
from drlib.worlds.joining import SAME, find_short_names
from drlib.worlds.territories import TAKE_AN_ARTICLE, WITH_ARTICLE

# verb -> present and past participle
VERBS = {
    "calls": ("calling", "called"),
    "cites": ("citing", "cited"),
    "contains": ("containing", "contained"),
    "covers": ("covering", "covered"),
    "describes": ("describing", "described"),
    "extends": ("extending", "extended"),
    "follows": ("following", "followed"),
    "implements": ("implementing", "implemented"),
    "imports": ("importing", "imported"),
    "owns": ("owning", "owned"),
    "raises": ("raising", "raised"),
    "replaces": ("replacing", "replaced"),
    "requires": ("requiring", "required"),
    "supersedes": ("superseding", "superseded"),
    "supplies": ("supplying", "supplied"),
    "supports": ("supporting", "supported"),
    "tests": ("testing", "tested"),
    "uses": ("using", "used"),
}
# irregular participle -> present, gerund, past
IRREGULAR = {
    "led": ("leads", "leading", "led"),
    "run": ("runs", "running", "ran"),
    "written": ("writes", "writing", "wrote"),
    "made": ("makes", "making", "made"),
    "built": ("builds", "building", "built"),
    "held": ("holds", "holding", "held"),
    "given": ("gives", "giving", "gave"),
    "sold": ("sells", "selling", "sold"),
    "taught": ("teaches", "teaching", "taught"),
    "read": ("reads", "reading", "read"),
}
# Participles of completed actions: "was approved by", not "is approved by".
DONE = frozenset(
    "added approved bought built created founded given introduced invented made opened published "
    "released replaced reported written".split()
)
# Participles of past events.
OVER = frozenset("carried conducted performed completed".split())
PAST = {"uses": "used", "is": "was", "draws": "drew", "belongs": "belonged"}
# Participles of lasting states: "is held at", not "was held at".
LASTING = frozenset("based held hosted kept located served stored".split())
NO_PARTICIPLE = ("need", "speed", "seed", "feed", "breed", "red", "bed", "shed", "species")
YEAR = "1[0-9]{3}|20[0-9]{2}"
DAY = re.compile(r"(\d{4})-(\d\d)(?:-(\d\d))?")
PERSONS = frozenset(
    "person author maintainer employee member contributor researcher student teacher colleague "
    "speaker".split()
)
WORKS = frozenset("paper article book essay report guide tutorial talk note recipe letter".split())
OWN_NAMES = frozenset(
    "release product company customer client vendor supplier partner country city town site".split()
)
TRADED = frozenset("project tool library class function".split())
PLAIN_FOLDERS = frozenset("docs doc notes pages content src wiki about misc".split())
TYPES = frozenset(("type", "Type", "kind"))  # relations that only state the kind of a page


@lru_cache(maxsize=1)
def load_words() -> Mapping[str, str]:
    """Return name -> words, separated by spaces, of words.yaml."""
    return yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))


def to_past(phrase: str) -> str:
    """Return "used the method" for "uses the method"; verbs that are not in `PAST` stay."""
    first, _, rest = phrase.partition(" ")
    return f"{PAST.get(first, first)} {rest}"


def find_participle(relation: str) -> str:
    """Return the participle at the start of a relation's name ("approved by"), or an empty
    string.
    """
    words = relation.casefold().removeprefix("first ").removeprefix("last ").split(" ")
    first = words[0].rpartition("-")[2]
    if first in NO_PARTICIPLE:
        return ""
    return first if first in IRREGULAR or re.fullmatch("[a-z]{3,}ed", first) else ""


def to_active(done: str) -> tuple[str, str, str]:
    """Return present, gerund and past of a participle: "raised" -> ("raises", "raising",
    "raised").
    """
    if done in IRREGULAR:
        return IRREGULAR[done]
    stem = done.removesuffix("ed")
    if stem.endswith("i"):
        return f"{stem}es", f"{stem[:-1]}ying", done
    doubled = re.search(r"([bdgmnprt])\1$", stem)
    if doubled:
        return f"{stem[:-1]}s", f"{stem}ing", done
    takes_e = re.search(r"([scgvuz]|at|ir|ar|[bdfgkpt]l|ib)$", stem)
    takes_e = takes_e or re.search("(ss|sh|ch|x)$", stem)
    return f"{stem}{'es' if takes_e else 's'}", f"{stem}ing", done


def derive_forms(
    relation: str, whens: str, noun: str, several: bool, is_over: bool = False
) -> dict[str, str]:
    """Return the phrase forms of a relation named by a participle or a verb; empty for a noun.

    Args:
        relation: name of the relation.
        whens: "year" or "day" if all values are such; empty for things.
        noun: noun for a value.
        several: True if a thing may have several values.
        is_over: True if the things are past events.
    """
    word = relation.casefold()
    if word in VERBS:
        return _make_verb_forms(word, noun, several)
    if word.endswith(" since") and whens:
        return _make_since_forms(word.removesuffix(" since"), whens)
    done = find_participle(word)
    if done and word.endswith(" by"):
        return _make_by_forms(
            word, done, noun, several, done in DONE or (is_over and done not in LASTING)
        )
    ends = [end for end in (" in", " at", " for", " on", " from", " with") if word.endswith(end)]
    if done and ends:
        return _make_place_forms(word, ends[0].strip(), noun)
    return _make_time_forms(word, whens) if done and whens else {}


def _make_verb_forms(word: str, noun: str, several: bool) -> dict[str, str]:
    """Return the forms of a verb: "requires"."""
    doing, done = VERBS[word]
    shared = f"{_add_article(noun)} that is also {done} by {{x}}"
    shared = shared if several else f"the same {noun} as {{x}}"
    return {
        "noun": noun,
        "of_thing": f"{word} {{x}}",
        "of_things": f"{doing} {{x}}",
        "of_value": f"is {done} by {{x}}",
        "of_values": f"{done} by {{x}}",
        "same": f"{word} {shared}",
        "sames": f"{doing} {shared}",
    }


def _make_since_forms(head: str, whens: str) -> dict[str, str]:
    """Return the forms of "customer since": "has been a customer since 2019"."""
    been = f"{_add_article(head)} since"
    return {
        "noun": whens,
        "of_thing": f"has been {been} {{x}}",
        "of_things": f"that has been {been} {{x}}",
        "of_value": f"is the {whens} in which {{x}} became {_add_article(head)}",
        "of_values": f"in which {{x}} became {_add_article(head)}",
        "same": f"became {_add_article(head)} in the same {whens} as {{x}}",
        "sames": f"that became {_add_article(head)} in the same {whens} as {{x}}",
        "during": f"became {_add_article(head)} {{x}}",
        "durings": f"that became {_add_article(head)} {{x}}",
        "label": f"{whens} of becoming {_add_article(head)}",
    }


def _make_by_forms(word: str, done: str, noun: str, several: bool, is_past: bool) -> dict[str, str]:
    """Return the forms of "approved by" or "read by"."""
    does, doing, did = to_active(done)
    verb = "was" if is_past else "is"
    who = "who" if noun in PERSONS else "that"
    shared = f"the same {'person' if noun in PERSONS else noun} as {{x}}"
    if several:
        shared = f"{_add_article(noun)} {who} also {did if is_past else does} {{x}}"
    return {
        "noun": noun,
        "of_thing": f"{verb} {word} {{x}}",
        "of_things": f"{word} {{x}}",
        "of_value": f"{did if is_past else does} {{x}}",
        "of_values": f"{who} {did} {{x}}" if is_past else f"{doing} {{x}}",
        "same": f"{verb} {word} {shared}",
        "sames": f"{word} {shared}",
    }


def _make_place_forms(word: str, place: str, noun: str) -> dict[str, str]:
    """Return the forms of "added in", "recorded at" or "written for"."""
    verb = word.removesuffix(f" {place}")
    be = "is" if verb in LASTING else "was"
    where = "where" if place == "at" else f"{place} which"
    return {
        "noun": noun,
        "of_thing": f"{be} {word} {{x}}",
        "of_things": f"{word} {{x}}",
        "of_value": f"is the {noun} {where} {{x}} {be} {verb}",
        "of_values": f"{where} {{x}} {be} {verb}",
        "same": f"{be} {word} the same {noun} as {{x}}",
        "sames": f"{word} the same {noun} as {{x}}",
    }


def _make_time_forms(word: str, whens: str) -> dict[str, str]:
    """Return the forms of "published" or "joined" with years or days."""
    to = "on" if whens == "day" else "in"
    was, who = ("", "who ") if word == "joined" else ("was ", "")
    return {
        "noun": whens,
        "of_thing": f"{was}{word} {to} {{x}}",
        "of_things": f"{who}{word} {to} {{x}}",
        "of_value": f"is the {whens} {to} which {{x}} {was}{word}",
        "of_values": f"{to} which {{x}} {was}{word}",
        "same": f"{was}{word} {to} the same {whens} as {{x}}",
        "sames": f"{who}{word} {to} the same {whens} as {{x}}",
        "during": f"{was}{word} {{x}}",
        "durings": f"{who}{word} {{x}}",
        "label": f"{word} {whens}",
    }


def classify_dates(values: Mapping[str, object]) -> str:
    """Return "year" or "day" if all values are such, else an empty string."""
    if values and all(re.fullmatch(YEAR, value) for value in values):
        return "year"
    if values and all((found := DAY.fullmatch(value)) and found[3] for value in values):
        return "day"
    return ""


def format_date(text: str) -> str:
    """Return "4 March 2019" for "2019-03-04"; empty if `text` is no date."""
    found = DAY.fullmatch(text)
    if not found:
        return ""
    try:
        day = date(int(found[1]), int(found[2]), int(found[3] or 1))
    except ValueError:
        return ""
    return f"{day.day} {day:%B %Y}" if found[3] else f"{day:%B %Y}"


def classify_page(title: str, graph: Graph) -> str:
    """Return the kind of a page: its `type`, else its folder's name in the singular, else
    "page".
    """
    for relation in sorted(TYPES):
        types = graph.values(title, relation)
        if len(types) == 1:
            (value,) = types
            node = graph.nodes[value]
            text = node.aliases[0] if node.aliases else value
            if re.fullmatch("[A-Za-z][A-Za-z -]{1,30}", text):
                return text.casefold()
    folder = posixpath.basename(posixpath.dirname(title)).casefold()
    words = re.sub(r"^\d+[-_. ]+", "", folder).replace("-", " ").replace("_", " ")
    if not re.fullmatch("[a-z][a-z ]{1,30}", words) or words in PLAIN_FOLDERS:
        return "page"
    return to_singular(words)


def _add_article(noun: str) -> str:
    """Return the noun with its article; empty for an empty noun."""
    return load_inflect().a(noun) if noun else ""


@cache
def load_inflect():
    """Return inflect's engine.

    Importing inflect recompiles every method with runtime type checks, which costs two seconds and
    slows each call five times; the type-checking decorator is disabled during the import.
    """
    import typeguard

    decorator = typeguard.typechecked
    typeguard.typechecked = lambda checked: checked
    try:
        import inflect
    finally:
        typeguard.typechecked = decorator
    return inflect.engine()


def name_page(name: str, kind: str) -> str:
    """Return how a page is named by its kind: a person, 'the paper "..."', "the Bergen office"."""
    if kind in PERSONS or kind in OWN_NAMES:
        return name
    if re.search(r"\d", name) and len(name) < 5:  # E12
        return f"{kind} {name}"
    if kind == "page" or kind in WORKS or len(name.split()) > 3:
        return f'the {kind} "{name}"'
    if kind in TRADED:
        return f"the {kind} {name}"
    words = name.removeprefix("The ").removeprefix("the ")
    if words.casefold().split()[-1:] == kind.split()[-1:]:
        return f"the {words}"
    return f"the {words} {kind}"


def shorten_name(name: str, kind: str) -> str:
    """Return the name for use after its kind: 'whose paper is "..."', "whose office is Bergen"."""
    return f'"{name}"' if kind in WORKS else name


class Phrase(NamedTuple):
    """Forms of a relation; {x} is the other end of the fact.

    Attributes:
        noun: noun for a value.
        of_thing, of_things: predicate of one thing ("uses {x}") and clause of any number of things
            ("whose currency is {x}") that have the value {x}.
        of_value, of_values: the same for values of the thing {x}.
        same, sames: the same for things that share a value with {x}.
        during, durings: the same for things whose number lies in a range ("in the 1990s").
        label: what is ranked ("the earliest year of introduction").
        along, alongs: the same for values of one thing, {x} being another value ("shares a direct
        base
            class with {x}"); empty if two clauses express it.
        owned: noun for a value before "of {x}" ("the official language of Mali"); empty for a
            clause.
        owner: noun for the thing before "of {x}" ("the direct base class of ...").
        bare: True if the forms state the kind of {x}, so that its short name suffices.
        plain: whether a person asks by it: "always", "unshared" (not by a shared value) or "never".
    """

    noun: str
    of_thing: str
    of_things: str
    of_value: str
    of_values: str
    same: str
    sames: str
    during: str
    durings: str
    label: str
    along: str = ""
    alongs: str = ""
    owned: str = ""
    owner: str = ""
    bare: bool = False
    plain: str = "always"


@lru_cache(maxsize=1)
def load_phrases() -> Mapping[str, Mapping[str, Phrase]]:
    """Return world -> relation -> phrase of phrases.yaml."""
    return {
        world: {relation: _make_phrase(relation, **row) for relation, row in relations.items()}
        for world, relations in _load_rows().items()
        if world != "common"
    }


@lru_cache(maxsize=1)
def _load_rows() -> Mapping[str, Mapping[str, Mapping]]:
    """Return the parsed phrases.yaml."""
    return yaml.safe_load(Path(__file__).with_name("phrases.yaml").read_text(encoding="utf-8"))


def _make_phrase(
    relation: str,
    noun: str,
    of_thing: str,
    of_things: str,
    of_value: str,
    of_values: str,
    same: str | list[str],
    label: str = "",
    along: str | list[str] = "",
    owned: str = "",
    owner: str = "",
    bare: bool = False,
    plain: str = "always",
) -> Phrase:
    """Return the phrase of a row of phrases.yaml with its derived forms."""
    one, many = _split_forms(same)
    during = f"has {add_article(relation)} {{x}}"
    durings = f"with {add_article(relation)} {{x}}"
    if of_thing.endswith(" in {x}"):
        during, durings = (text.replace("in {x}", "{x}") for text in (of_thing, of_things))
    label = label or relation
    forms = (noun, of_thing, of_things, of_value, of_values, one, many, during, durings, label)
    return Phrase(*forms, *(_split_forms(along) if along else ("", "")), owned, owner, bare, plain)


def _split_forms(phrase: str | list[str]) -> tuple[str, str]:
    """Return the forms for one thing ("has ...") and for several ("with ...")."""
    if isinstance(phrase, str):
        return f"has {phrase}", f"with {phrase}"
    one, many = phrase
    return one, many


# Source that a question refers to. Without it "raises" is ambiguous: by an own statement or
# through a call.
SOURCES = {
    "cldr": "According to Unicode CLDR",
    "pydocs": "Going by the signatures and raise statements in Python's library",
}
# Text for a name of each kind; {x} is the name.
NAMES = {
    "currency": "the {x}",
    "language": "the {x} language",
    "script": "the {x}",
    "time zone": "the time zone {x}",
    "function": "{x}()",
    "method": "{x}()",
    "module": "the {x} module",
    "page": 'the page "{x}"',
    "section": 'the section "{x}"',
}


class Phrasebook:
    """The phrases of one world, and the words for its kinds and names."""

    def __init__(self, graph: Graph, scheme: str = ""):
        self.graph = graph
        self._scheme = scheme
        self.is_folder = scheme == "folder"
        self.source = SOURCES.get(scheme, "")
        self._written = load_phrases().get(scheme, {})

    @cached_property
    def phrases(self) -> Mapping[str, Phrase]:
        """Return relation (inverses excluded) -> phrase."""
        relations = [name for name in self.graph.adjacent if not name.endswith(" of")]
        return {name: self._written.get(name) or self._derive(name) for name in relations}

    def _derive(self, relation: str) -> Phrase:
        """Return a phrase derived from the relation's name, with the verbs of `common` nouns."""
        word = self._to_word(relation)
        rows = self.graph.adjacent[relation]
        several = max(map(len, rows.values())) > 1
        holders = {self.kind(title) for title in rows}
        are_persons = holders <= PERSONS
        if several:
            word = to_singular(word)
            common = f"{add_article(word)} in common with {{x}}"
            whose, has = (
                f"whose {to_plural(word)} include {{x}}",
                f"has {{x}} as {add_article(word)}",
            )
        else:
            common = f"the same {word} as {{x}}"
            whose = f"whose {word} is {{x}}"
            has = f"has {{x}} as {'their' if are_persons else 'its'} {word}"
        whens = classify_dates(self.graph.adjacent[f"{relation} of"])
        label = f"{word} year" if whens == "year" and "year" not in word else word
        phrase = Phrase(
            word,
            has,
            whose,
            f"is the {word} of {{x}}",
            f"named as {word} of {{x}}",
            f"has {common}",
            f"with {common}",
            f"has {add_article(label)} {{x}}",
            f"with {add_article(label)} {{x}}",
            label,
        )
        kinds = self._kinds(frozenset(self.graph.adjacent[f"{relation} of"]))
        if kinds == [VALUE] and not whens:
            phrase = phrase._replace(of_thing=f"has the {word} {{x}}")
        if kinds == [word] and self.is_folder:  # the name already states its kind
            phrase = phrase._replace(of_thing="has {x}")
        noun = kinds[0] if len(kinds) == 1 and kinds[0] != VALUE else word
        is_over = self._is_over(relation)
        by_name = derive_forms(relation, whens, noun, several, is_over)
        if not by_name:
            phrase = phrase._replace(owned=phrase.noun)
        common_rows = _load_rows()["common"]
        own = common_rows.get(f"{' or '.join(sorted(holders))} {word}")
        own = own or common_rows.get(word, {})
        if own and not (by_name or several or "same" in own):  # "belongs to the same team as"
            is_person = " by {x}" in own["of_thing"]
            shared = f"the same {'person' if is_person else word} as {{x}}"
            same, sames = (own[form].replace("{x}", shared) for form in ("of_thing", "of_things"))
            phrase = phrase._replace(same=same, sames=sames)
        forms: dict[str, Any] = {**by_name, **own}
        phrase = phrase._replace(**forms)
        if not is_over:
            return phrase
        return phrase._replace(of_thing=to_past(phrase.of_thing), same=to_past(phrase.same))

    def _is_over(self, relation: str) -> bool:
        """Return True if all things with `relation` are past events by another of their facts.

        What was carried out was led by a person and no longer is.
        """
        things = set(self.graph.adjacent[relation])
        return any(
            find_participle(other) in OVER and things <= set(rows)
            for other, rows in self.graph.adjacent.items()
            if not other.endswith(" of")
        )

    def _to_word(self, relation: str) -> str:
        """Return a column name as a word: "harbour" for "Harbour", unless another relation has
        that name.
        """
        small = relation[:1].lower() + relation[1:]
        is_name = not relation[1:].islower() or small in self.graph.adjacent
        return relation if is_name else small

    def noun(self, titles: frozenset[str], relation: str = "") -> str:
        """Return a noun for `titles`, the values of `relation` (with or without " of").

        If there are no titles, the noun covers all values of the relation.
        """
        titles = titles or frozenset(self.graph.adjacent.get(inverse(relation), ()))
        kinds = self._kinds(titles)
        if kinds and VALUE not in kinds and len(kinds) <= 2:
            return " or ".join(kinds)
        phrase = self.phrases.get(relation)
        return phrase.noun if phrase else "thing"

    def _kinds(self, titles: frozenset[str]) -> list[str]:
        """Return the sorted kinds of the titles."""
        return sorted({self.kind(title) for title in titles})

    def kind(self, title: str) -> str:
        """Return the kind of `title`; for a folder page, by its front matter or folder."""
        node = self.graph.nodes.get(title)
        if node is None:
            return VALUE
        is_page = self.is_folder and node.kind == "page"
        return classify_page(title, self.graph) if is_page else node.kind

    def name(self, title: str) -> str:
        """Return the name of `title` with the words that state its kind."""
        node = self.graph.nodes.get(title)
        if node is None or node.kind == VALUE:
            is_number = title.lstrip("-").isdigit()
            if self.is_folder and format_date(title):
                return format_date(title)
            return title if is_number else f'"{title.removesuffix(" (parameter)")}"'
        if node.kind == "territory":
            takes_it = title in TAKE_AN_ARTICLE or title.split()[-1] in WITH_ARTICLE
            spelt = title.replace(" & ", " and ")
            return f"the {spelt}" if takes_it else spelt
        if node.kind == "language" and title.endswith(" (language)"):
            title = title.removesuffix(" (language)")
        title = title.removeprefix("builtins.")
        shown = self._shorten_title(title) if title in self.graph.nodes else title
        if self.is_folder and node.kind not in NAMES.keys() - {"page"}:
            return name_page(shown, self.kind(title))
        return NAMES.get(node.kind, "{x}").format(x=shown)

    def display(self, title: str) -> str:
        """Return what a person calls `title`: a heading or first cell, else the title itself."""
        if not self.is_folder or title not in self.graph.nodes:
            return title
        return self._shorten_title(title)

    def _shorten_title(self, title: str) -> str:
        """Return a page's heading or a row's first cell if it is unique, else the title."""
        node = self.graph.nodes[title]
        headings = self.graph.values(title, "heading")
        short = ""
        if len(headings) == 1 and "" not in headings:
            (short,) = headings
            short = self._short_names.get(title, short)
        elif node.aliases and (node.kind == "page" or title.endswith(f": {node.aliases[0]}")):
            short = node.aliases[0]  # a title in the front matter, or a first cell
        return short if self._holders.get(short) == 1 else title

    @cached_property
    def _short_names(self) -> Mapping[str, str]:
        """Return page -> heading without the name of the site."""
        rows = self.graph.adjacent.get("heading", {})
        pages = {title: values for title, values in rows.items() if "#" not in title}
        return find_short_names({title: min(values) for title, values in pages.items()})

    @cached_property
    def _holders(self) -> dict[str, int]:
        """Return name -> number of things with that title, alias or heading.

        A row that is the same thing as another one is not counted.
        """
        found: dict[str, int] = {}
        for node in self.graph.nodes.values():
            if node.kind != VALUE and not self.graph.values(node.title, SAME):
                headings = self.graph.values(node.title, "heading")
                short = self._short_names.get(node.title, node.title)
                page = node.title.partition("#")[0]
                if page != node.title and headings & self.graph.values(page, "heading"):
                    continue  # the section with the page's own heading
                for name in {node.title, short, *node.aliases, *headings}:
                    found[name] = found.get(name, 0) + 1
        return found

    def mention_briefly(self, title: str) -> str:
        """Return `title` after its kind was stated ("whose office is Bergen"); in full if
        ambiguous.
        """
        node = self.graph.nodes.get(title)
        if node is None or not self._has_short_name(node):
            return self.mention(title)
        short = self._omit_kind(title)
        return short if self.titles.get(short) == title else self.mention(title)

    def mention(self, title: str) -> str:
        """Return the unambiguous text for `title` in a sentence."""
        name = self.name(title)
        return name if self.titles.get(name) in (title, None) else f'"{title}"'

    @cached_property
    def titles(self) -> Mapping[str, str]:
        """Return text -> title; of two titles with the same text the second is quoted in full."""
        found: dict[str, str] = {}
        for title in self.graph.nodes:
            name = self.name(title)
            found[f'"{title}"' if name in found else name] = title
        for title, node in self.graph.nodes.items():
            if self._has_short_name(node):
                found.setdefault(self._omit_kind(title), title)
        return found

    def _has_short_name(self, node: Node) -> bool:
        """Return True if the node's name can omit its kind."""
        return node.kind != VALUE and (self.is_folder or node.kind == "language")

    def _omit_kind(self, title: str) -> str:
        """Return a name without the words that state its kind."""
        if self.is_folder:
            return shorten_name(self._shorten_title(title), self.kind(title))
        return title.removesuffix(" (language)")

    @cached_property
    def nouns(self) -> tuple[str, ...]:
        """Return all nouns that a sentence may use, longest first."""
        kinds = sorted({self.kind(title) for title in self.graph.nodes} - {VALUE})
        pairs = [f"{a} or {b}" for a in kinds for b in kinds if a < b]
        values = [phrase.noun for phrase in self.phrases.values()]
        values += [phrase.owned for phrase in self.phrases.values() if phrase.owned]
        values += [phrase.owner for phrase in self.phrases.values() if phrase.owner]
        return tuple(sorted({*kinds, *pairs, *values, "thing"}, key=lambda n: (-len(n), n)))


def choose_pronoun(noun: str) -> str:
    """Return the relative pronoun of `noun`: "who " or "that "."""
    return "who " if noun in PERSONS else "that "


def to_plural_clause(clause: str) -> str:
    """Return a clause in the plural: "that raises {x}" -> "that raise {x}"; "raising" stays."""
    clause = re.sub(r"^that has ", "that have ", clause)
    return re.sub(r"^that (\w+)s ", r"that \1 ", clause)


@lru_cache(maxsize=4096)
def add_article(noun: str) -> str:
    """Return `noun` with "a" or "an"."""
    return load_inflect().a(noun)


@lru_cache(maxsize=4096)
def to_singular(noun: str) -> str:
    """Return the singular; a word that is no plural stays."""
    return load_inflect().singular_noun(noun) or noun


@lru_cache(maxsize=4096)
def to_plural(noun: str) -> str:
    """Return the plural; both nouns of "class or exception"."""
    return " or ".join(load_inflect().plural_noun(word) or word for word in noun.split(" or "))
