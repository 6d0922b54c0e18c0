"""Fictional worlds with the schema of a real one, in any number.

A policy pre-trained on them can learn to read, copy and search, but no fact: their sentences are
false and no two worlds agree. Names mix the words of the real world at random, so every name token
is practised, with made-up syllables, so names need not be known.

The schema is counted: kinds, their relations, the share of pages with each, and the form of values.
The tour's fictional worlds are consistent (a currency's territory uses it); those of any other
world draw each fact independently.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from drlib.worlds.small import Entity, SmallWorld, build_entities, unique_key

SYLLABLES = (
    "ba ka la ma na ra ta va do go lo mo no ro so to ve ne re le se te ki li mi ni ri si ti zu"
    " lu mu ru tu bel dar gan hol kor lin mar nor pel rin sol tan vel zan"
).split()
MAX_WORDS = 4
SYLLABLE_SHARE = 0.2  # share of names made of syllables
PAGES = 64  # pages of a fictional world
JOINTS = (" ",) * 8 + ("-", " & ")  # separators between two words, drawn with equal chance
TOUR_KINDS = {"territory", "currency", "language", "script", "city"}


class Relation(NamedTuple):
    """A relation of a kind.

    Args:
        name: as it is shown on pages.
        share: share of the kind's pages that have it.
        targets: kinds of the linked values, as often as counted; "" for a value without a page.
        numbers: values that are numbers or codes; new ones of the same form are drawn.
        texts: number of different text values in a fictional world; 0 if all are different.
    """

    name: str
    share: float
    targets: tuple[str, ...]
    numbers: tuple[str, ...]  # values that are numbers or codes
    texts: int


class Kind(NamedTuple):
    """A kind of page: its name, its share of the pages, its relations."""

    name: str
    share: float
    relations: tuple[Relation, ...]


@dataclass(frozen=True)
class Names:
    """Vocabulary and schema from which fictional worlds are drawn.

    Args:
        words: single words of the real titles.
        codes: three-letter codes among the titles.
        lengths: lengths of the real titles in words.
        joints: separators between two words, one is drawn each time.
        scheme: URL scheme.
        kinds: the schema; () for the tour's.
    """

    words: tuple[str, ...]
    codes: tuple[str, ...]
    lengths: tuple[int, ...]  # lengths of the real titles in words
    joints: tuple[str, ...] = JOINTS
    scheme: str = "cldr"
    kinds: tuple[Kind, ...] = ()  # (): the tour's schema

    @staticmethod
    def from_world(world: SmallWorld) -> Names:
        """Collect words, codes, title lengths and schema of `world`, but no facts."""
        titles = sorted({t for e in world.entities.values() for t in (e.title, *e.facts.values())})
        codes = tuple([title for title in titles if re.fullmatch(r"[A-Z]{3}", title)])
        split = [re.findall(r"\w+", title) for title in titles if title not in codes]
        words = sorted({word for some in split for word in some if not word.isdigit()} - {"script"})
        is_tour = {e.kind for e in world.entities.values()} == TOUR_KINDS
        return Names(
            tuple(words),
            codes,
            tuple(min(len(some), MAX_WORDS) for some in split if some),
            JOINTS if is_tour else _joints(titles),
            world.scheme,
            () if is_tour else _kinds(world),
        )


def _joints(titles: list[str]) -> tuple[str, ...]:
    """Return the separators between words of `titles`, repeated by frequency out of ten."""
    between = Counter(mark for title in titles for mark in re.findall(r"(?<=\w)\W+(?=\w)", title))
    total = max(1, between.total())
    drawn = [mark for mark, n in between.most_common(3) for _ in range(10 * n // total)]
    return tuple(drawn) or (" ",)


def _kinds(world: SmallWorld) -> tuple[Kind, ...]:
    """Count the schema of `world`."""
    members = defaultdict(list)
    for entity in world.entities.values():
        members[entity.kind].append(entity)
    kinds = []
    for kind, some in sorted(members.items()):
        relations = sorted({relation for entity in some for relation in entity.facts})
        kinds.append(
            Kind(
                kind,
                len(some) / len(world),
                tuple(_relation(relation, some, world) for relation in relations),
            )
        )
    return tuple(kinds)


def _relation(name: str, entities: list[Entity], world: SmallWorld) -> Relation:
    values = [entity.facts[name] for entity in entities if name in entity.facts]
    linked = [world.entities[value].kind for value in values if value in world.entities]
    plain = [value for value in values if value not in world.entities]
    numbers = [value for value in plain if re.fullmatch(r"[\d.,-]+|[A-Z]{2,4}", value)]
    texts = [value for value in plain if value not in numbers]
    different = len(set(texts))
    return Relation(
        name,
        len(values) / len(entities),
        tuple(sorted(linked)) + ("",) * len(plain),
        tuple(sorted(set(numbers))),
        0 if different == len(texts) else max(2, different * PAGES // len(world)),
    )


def invent_name(rng: random.Random, names: Names, taken: set[str]) -> str:
    """Draw a title that is not in `taken`, and add it there."""
    while True:
        if rng.random() < SYLLABLE_SHARE:
            syllables = [rng.choice(SYLLABLES) for _ in range(rng.choice((2, 3)))]
            title = "".join(syllables).capitalize()
        else:
            title, *words = [rng.choice(names.words) for _ in range(rng.choice(names.lengths))]
            for word in words:
                title += rng.choice(names.joints) + word
        if title.casefold() not in taken:
            taken.add(title.casefold())
            return title


def fictional_world(seed: int | str, names: Names, territories: int = PAGES // 8) -> SmallWorld:
    """Create a fictional world of about `8 * territories` pages.

    The same seed gives the same world.
    """
    rng = random.Random(f"world-{seed}")
    if names.kinds:
        entities = _schema_entities(rng, names, 8 * territories)
    else:
        entities = _tour_entities(rng, names, territories)
    rng.shuffle(entities)
    return SmallWorld(entities, f"fictional-{seed}", scheme=names.scheme)


def _schema_entities(rng: random.Random, names: Names, pages: int) -> list[Entity]:
    """Draw pages by the schema, each fact independently."""
    taken: set[str] = set()
    members = {}
    for kind in names.kinds:
        some = max(2, round(kind.share * pages))
        members[kind.name] = [invent_name(rng, names, taken) for _ in range(some)]
    rows = []
    for kind in names.kinds:
        facts_of = {title: {} for title in members[kind.name]}
        for relation in kind.relations:
            pool = [invent_name(rng, names, taken) for _ in range(relation.texts)]
            for title, facts in facts_of.items():
                if rng.random() < relation.share:
                    value = _value(rng, relation, members, pool, names, taken)
                    facts[relation.name] = None if value == title else value
        rows += [(title, kind.name, facts, ()) for title, facts in facts_of.items()]
    return build_entities(rows)


def _value(
    rng: random.Random,
    relation: Relation,
    members: dict[str, list[str]],
    pool: list[str],
    names: Names,
    taken: set[str],
) -> str:
    """Draw a value of `relation`: a page of a target kind, a number of a real form, or a name."""
    target = rng.choice(relation.targets)
    if target:
        return rng.choice(members[target])
    if relation.numbers:
        form = rng.choice(relation.numbers)
        return "".join(_similar_character(rng, character) for character in form)
    return rng.choice(pool) if pool else invent_name(rng, names, taken)


def _similar_character(rng: random.Random, character: str) -> str:
    """Replace a digit by a random digit and a capital by a random capital."""
    if character.isdigit():
        return str(rng.randint(0, 9))
    return chr(rng.randint(ord("A"), ord("Z"))) if character.isalpha() else character


def _tour_entities(rng: random.Random, names: Names, territories: int) -> list[Entity]:
    """Draw consistent entities of the tour's kinds."""
    taken: set[str] = set()

    def some(n: int) -> list[str]:
        return [invent_name(rng, names, taken) for _ in range(n)]

    land = some(territories)
    language = some(max(2, territories * 3 // 4))
    tender = some(territories)
    former = some(territories * 2 // 3)
    written = [f"{name} script" for name in some(max(2, territories // 3))]
    codes = rng.sample(names.codes, len(tender) + len(former))
    # language, currency, former currency and script
    speaks = {place: rng.choice(language) for place in land}
    pays = dict(zip(land, tender))
    paid = dict(zip(rng.sample(land, len(former)), former))
    for place in rng.sample(land, territories // 4):  # some share a currency, as in the real world
        pays[place] = rng.choice(tender)
    writes = {name: rng.choice(written) for name in language}
    rows = []
    for place in land:
        facts = {
            "currency": pays[place],
            "former currency": paid.get(place),
            "language": speaks[place],
        }
        rows.append((place, "territory", facts, ()))
    for name, code in zip(tender + former, codes):
        home = unique_key(pays, name) or unique_key(paid, name)
        rows.append((name, "currency", {"code": code, "territory": home}, ()))
    for name in language:
        facts = {"script": writes[name], "territory": unique_key(speaks, name)}
        rows.append((name, "language", facts, ()))
    rows += [(name, "script", {"language": unique_key(writes, name)}, ()) for name in written]
    cities = some(territories)
    rows += [(city, "city", {"territory": rng.choice(land)}, ()) for city in cities]
    return build_entities(rows)
