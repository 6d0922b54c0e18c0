"""How the columns and keys of somebody's documents are said: phrases from their names.

A key of front matter or a column of a table is a noun ("team", "office manager"), a participle
("published", "approved by", "added in") or a verb ("requires"), and is said as such: "the team of
Ada", "published in 2019", "approved by Ada", "requiring the cache module". Nouns that many
documents have, such as "manager" or "author", have a verb of their own in phrases.yaml (`common`),
which takes the place of "has .. as manager".

What a page is called comes from its front matter ("type: paper") or from its folder ("people"), and
how its name is said from that: people by their names, works in quotes, all else as "the Bergen
office". Left out: languages other than English, and irregular verbs that `VERBS` does not name.
"""

import posixpath
import re
from collections.abc import Mapping
from datetime import date
from functools import cache, lru_cache

from drlib.worlds.graph import Graph

# verb -> its participles, of keys that are verbs
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
# participle -> what it is in "leads", "leading" and "led", of irregular verbs
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
# Participles of what was done once and is over: "was approved by", not "is approved by".
DONE = frozenset(
    "added approved bought built created founded given introduced invented made opened published "
    "released replaced reported written".split()
)
# Participles of events: once they took place they are over.
OVER = frozenset("carried conducted performed completed".split())
PAST = {"uses": "used", "is": "was", "draws": "drew", "belongs": "belonged"}
# Participles of what goes on: "is held at", not "was held at".
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
TYPES = frozenset(("type", "Type", "kind"))  # relations that say what a page is, and no more


def in_the_past(phrase: str) -> str:
    """ "uses the method" as "used the method"; what has no past in `PAST` stays."""
    first, _, rest = phrase.partition(" ")
    return f"{PAST.get(first, first)} {rest}"


def participle(relation: str) -> str:
    """The participle that a relation's name begins with ("approved by"); "" for other names."""
    words = relation.casefold().removeprefix("first ").removeprefix("last ").split(" ")
    first = words[0].rpartition("-")[2]
    if first in NO_PARTICIPLE:
        return ""
    return first if first in IRREGULAR or re.fullmatch("[a-z]{3,}ed", first) else ""


def active(done: str) -> tuple[str, str, str]:
    """ "raised" -> ("raises", "raising", "raised")."""
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


def forms_by_name(
    relation: str, whens: str, noun: str, several: bool, is_over: bool = False
) -> dict[str, str]:
    """The forms of a relation whose name is a participle or a verb; {} of a noun. `whens`: what its
    values are: "year", "day", or "" for things. `noun`: what a value is called; `several`: whether
    a thing may have more than one; `is_over`: whether things that have it are events of the past.
    """
    word = relation.casefold()
    if word in VERBS:
        return _verb(word, noun, several)
    if word.endswith(" since") and whens:
        return _since(word.removesuffix(" since"), whens)
    done = participle(word)
    if done and word.endswith(" by"):
        return _by(word, done, noun, several, done in DONE or (is_over and done not in LASTING))
    ends = [end for end in (" in", " at", " for", " on", " from", " with") if word.endswith(end)]
    if done and ends:
        return _at(word, ends[0].strip(), noun)
    return _at_a_time(word, whens) if done and whens else {}


def _verb(word: str, noun: str, several: bool) -> dict[str, str]:
    """ "requires"."""
    doing, done = VERBS[word]
    shared = f"{_article(noun)} that is also {done} by {{x}}"
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


def _since(head: str, whens: str) -> dict[str, str]:
    """ "customer since": "has been a customer since 2019"."""
    been = f"{_article(head)} since"
    return {
        "noun": whens,
        "of_thing": f"has been {been} {{x}}",
        "of_things": f"that has been {been} {{x}}",
        "of_value": f"is the {whens} in which {{x}} became {_article(head)}",
        "of_values": f"in which {{x}} became {_article(head)}",
        "same": f"became {_article(head)} in the same {whens} as {{x}}",
        "sames": f"that became {_article(head)} in the same {whens} as {{x}}",
        "during": f"became {_article(head)} {{x}}",
        "durings": f"that became {_article(head)} {{x}}",
        "label": f"{whens} of becoming {_article(head)}",
    }


def _by(word: str, done: str, noun: str, several: bool, is_past: bool) -> dict[str, str]:
    """ "approved by", "read by"."""
    does, doing, did = active(done)
    verb = "was" if is_past else "is"
    who = "who" if noun in PERSONS else "that"
    shared = f"the same {'person' if noun in PERSONS else noun} as {{x}}"
    if several:
        shared = f"{_article(noun)} {who} also {did if is_past else does} {{x}}"
    return {
        "noun": noun,
        "of_thing": f"{verb} {word} {{x}}",
        "of_things": f"{word} {{x}}",
        "of_value": f"{did if is_past else does} {{x}}",
        "of_values": f"{who} {did} {{x}}" if is_past else f"{doing} {{x}}",
        "same": f"{verb} {word} {shared}",
        "sames": f"{word} {shared}",
    }


def _at(word: str, place: str, noun: str) -> dict[str, str]:
    """ "added in", "recorded at", "written for"."""
    said = word.removesuffix(f" {place}")
    be = "is" if said in LASTING else "was"
    where = "where" if place == "at" else f"{place} which"
    return {
        "noun": noun,
        "of_thing": f"{be} {word} {{x}}",
        "of_things": f"{word} {{x}}",
        "of_value": f"is the {noun} {where} {{x}} {be} {said}",
        "of_values": f"{where} {{x}} {be} {said}",
        "same": f"{be} {word} the same {noun} as {{x}}",
        "sames": f"{word} the same {noun} as {{x}}",
    }


def _at_a_time(word: str, whens: str) -> dict[str, str]:
    """ "published", "joined" of years and days."""
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


def when(values: Mapping[str, object]) -> str:
    """ "year" or "day" where all values are such; "" otherwise."""
    if values and all(re.fullmatch(YEAR, value) for value in values):
        return "year"
    if values and all((found := DAY.fullmatch(value)) and found[3] for value in values):
        return "day"
    return ""


def spoken_date(text: str) -> str:
    """ "2019-03-04" as "4 March 2019"; what is no date stays as it is, or ""."""
    found = DAY.fullmatch(text)
    if not found:
        return ""
    try:
        day = date(int(found[1]), int(found[2]), int(found[3] or 1))
    except ValueError:
        return ""
    return f"{day.day} {day:%B %Y}" if found[3] else f"{day:%B %Y}"


def kind_of_page(title: str, graph: Graph) -> str:
    """What a page is: its front matter's `type`, else its folder's name in the singular; else
    "page"."""
    for relation in sorted(TYPES):
        said = graph.values(title, relation)
        if len(said) == 1:
            (value,) = said
            node = graph.nodes[value]
            text = node.aliases[0] if node.aliases else value
            if re.fullmatch("[A-Za-z][A-Za-z -]{1,30}", text):
                return text.casefold()
    folder = posixpath.basename(posixpath.dirname(title)).casefold()
    words = re.sub(r"^\d+[-_. ]+", "", folder).replace("-", " ").replace("_", " ")
    if not re.fullmatch("[a-z][a-z ]{1,30}", words) or words in PLAIN_FOLDERS:
        return "page"
    return _singular(words)


@lru_cache(maxsize=4096)
def _singular(words: str) -> str:
    return english().singular_noun(words) or words


def _article(noun: str) -> str:
    return english().a(noun) if noun else ""


@cache
def english():
    """inflect's engine. At its import every method is compiled once more, to check the types of its
    arguments in each call: two seconds, and five times the work afterwards, of which nothing is
    needed here. So the decorator that does it does nothing meanwhile."""
    import typeguard

    decorator = typeguard.typechecked
    typeguard.typechecked = lambda checked: checked
    try:
        import inflect
    finally:
        typeguard.typechecked = decorator
    return inflect.engine()


def name_of_page(name: str, kind: str) -> str:
    """What is of `kind` by its name: a person, 'the paper "..."', "the Bergen office"."""
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


def short_name(name: str, kind: str) -> str:
    """The name where the kind has just been said: 'whose paper is "..."', "whose office is
    Bergen"."""
    return f'"{name}"' if kind in WORKS else name
