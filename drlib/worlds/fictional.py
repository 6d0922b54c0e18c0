"""Endless invented worlds with the schema of the real one.

A policy that is pre-trained on them can learn to read, copy and look up, but no fact: no sentence
of theirs is true, and no two worlds agree. Names mix the *words* of the real world at random (so
every name token is practised) with made-up syllable names (so that names need not be known).

The schema is counted: kinds, their relations, how many pages have each, and what the values are.
The tour's own invented worlds are told by hand, so that they agree with themselves (a currency's
territory pays with it); those of any other world draw each fact alone.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from drlib.worlds.small import Entity, SmallWorld, entities_of, only

SYLLABLES = (
    "ba ka la ma na ra ta va do go lo mo no ro so to ve ne re le se te ki li mi ni ri si ti zu"
    " lu mu ru tu bel dar gan hol kor lin mar nor pel rin sol tan vel zan"
).split()
MAX_WORDS = 4
SYLLABLE_SHARE = 0.2  # of the names, those that are made of syllables
PAGES = 64  # of an invented world
JOINTS = (" ",) * 8 + ("-", " & ")  # between two words: one of these is drawn
TOUR_KINDS = {"territory", "currency", "language", "script", "city"}


class Relation(NamedTuple):
    """One relation of a kind. share: of the kind's pages, those that have it. targets: the kinds
    of the pages that its values are, each as often as counted. texts: of values without a page, how
    many different ones an invented world has; 0 where they are all different."""

    name: str
    share: float
    targets: tuple[str, ...]
    numbers: tuple[str, ...]  # values that are numbers or codes: others of their form are drawn
    texts: int


class Kind(NamedTuple):
    """A kind of page: its name, its share of the pages, its relations."""

    name: str
    share: float
    relations: tuple[Relation, ...]


@dataclass(frozen=True)
class Names:
    """The words that invented names are made of (real words without their real neighbours), and
    the schema in which invented worlds are told."""

    words: tuple[str, ...]
    codes: tuple[str, ...]
    lengths: tuple[int, ...]  # of the real titles, in words: invented titles are as long
    joints: tuple[str, ...] = JOINTS
    scheme: str = "cldr"
    kinds: tuple[Kind, ...] = ()  # (): the tour's, told by hand

    @staticmethod
    def of(world: SmallWorld) -> Names:
        """Words, codes, title lengths and schema of `world`; its facts are not kept."""
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
    """What stands between the words of `titles`, as often of ten times as there; " " if nothing."""
    between = Counter(mark for title in titles for mark in re.findall(r"(?<=\w)\W+(?=\w)", title))
    total = max(1, between.total())
    drawn = [mark for mark, n in between.most_common(3) for _ in range(10 * n // total)]
    return tuple(drawn) or (" ",)


def _kinds(world: SmallWorld) -> tuple[Kind, ...]:
    """The schema of `world`, counted."""
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
    """A title that is not in `taken` (and is added to it)."""
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
    """An invented world of about `8 * territories` pages; the same seed gives the same world."""
    rng = random.Random(f"world-{seed}")
    if names.kinds:
        entities = _drawn(rng, names, 8 * territories)
    else:
        entities = _told(rng, names, territories)
    rng.shuffle(entities)
    return SmallWorld(entities, f"fictional-{seed}", scheme=names.scheme)


def _drawn(rng: random.Random, names: Names, pages: int) -> list[Entity]:
    """Pages with the kinds, relations and values that the schema says, each fact by itself."""
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
    return entities_of(rows)


def _value(
    rng: random.Random,
    relation: Relation,
    members: dict[str, list[str]],
    pool: list[str],
    names: Names,
    taken: set[str],
) -> str:
    """A value of `relation`: a page of a kind that it leads to, a number of the form of a real one,
    or a name."""
    target = rng.choice(relation.targets)
    if target:
        return rng.choice(members[target])
    if relation.numbers:
        form = rng.choice(relation.numbers)
        return "".join(_like(rng, character) for character in form)
    return rng.choice(pool) if pool else invent_name(rng, names, taken)


def _like(rng: random.Random, character: str) -> str:
    """Another digit for a digit, another capital for a capital."""
    if character.isdigit():
        return str(rng.randint(0, 9))
    return chr(rng.randint(ord("A"), ord("Z"))) if character.isalpha() else character


def _told(rng: random.Random, names: Names, territories: int) -> list[Entity]:
    """The tour's kinds: who speaks, pays, paid and writes what, told so that it agrees."""
    taken: set[str] = set()

    def some(n: int) -> list[str]:
        return [invent_name(rng, names, taken) for _ in range(n)]

    land = some(territories)
    language = some(max(2, territories * 3 // 4))
    tender = some(territories)
    former = some(territories * 2 // 3)
    written = [f"{name} script" for name in some(max(2, territories // 3))]
    codes = rng.sample(names.codes, len(tender) + len(former))
    # who speaks, pays, paid and writes what
    speaks = {place: rng.choice(language) for place in land}
    pays = dict(zip(land, tender))
    paid = dict(zip(rng.sample(land, len(former)), former))
    for place in rng.sample(land, territories // 4):  # some share theirs, as in the real world
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
        home = only(pays, name) or only(paid, name)
        rows.append((name, "currency", {"code": code, "territory": home}, ()))
    for name in language:
        facts = {"script": writes[name], "territory": only(speaks, name)}
        rows.append((name, "language", facts, ()))
    rows += [(name, "script", {"language": only(writes, name)}, ()) for name in written]
    cities = some(territories)
    rows += [(city, "city", {"territory": rng.choice(land)}, ()) for city in cities]
    return entities_of(rows)
