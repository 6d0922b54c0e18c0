"""Endless invented worlds with the schema of the real one.

A policy that is pre-trained on them can learn to read, copy and look up, but no fact: no sentence
of theirs is true, and no two worlds agree. Names mix the *words* of the real world at random (so
every name token is practised) with made-up syllable names (so that names need not be known).
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from drlib.worlds.world import World, entities_of, only

SYLLABLES = (
    "ba ka la ma na ra ta va do go lo mo no ro so to ve ne re le se te ki li mi ni ri si ti zu"
    " lu mu ru tu bel dar gan hol kor lin mar nor pel rin sol tan vel zan"
).split()
MAX_WORDS = 4
SYLLABLE_SHARE = 0.2  # of the names, those that are made of syllables
JOINTS = (" ",) * 8 + ("-", " & ")  # between two words: one of these is drawn


@dataclass(frozen=True)
class Names:
    """The words that invented names are made of: real words without their real neighbours."""

    words: tuple[str, ...]
    codes: tuple[str, ...]
    lengths: tuple[int, ...]  # of the real titles, in words: invented titles are as long

    @staticmethod
    def of(world: World) -> Names:
        """Words, codes and title lengths of `world`; its facts are not kept."""
        titles = sorted({t for e in world.entities.values() for t in (e.title, *e.facts.values())})
        codes = tuple([title for title in titles if re.fullmatch(r"[A-Z]{3}", title)])
        split = [re.findall(r"\w+", title) for title in titles if title not in codes]
        words = sorted({word for some in split for word in some} - {"script"})
        return Names(tuple(words), codes, tuple(min(len(some), MAX_WORDS) for some in split))


def invent_name(rng: random.Random, names: Names, taken: set[str]) -> str:
    """A title that is not in `taken` (and is added to it)."""
    while True:
        if rng.random() < SYLLABLE_SHARE:
            syllables = [rng.choice(SYLLABLES) for _ in range(rng.choice((2, 3)))]
            title = "".join(syllables).capitalize()
        else:
            title, *words = [rng.choice(names.words) for _ in range(rng.choice(names.lengths))]
            for word in words:
                title += rng.choice(JOINTS) + word
        if title.casefold() not in taken:
            taken.add(title.casefold())
            return title


def fictional_world(seed: int | str, names: Names, territories: int = 8) -> World:
    """An invented world of about `8 * territories` pages; the same seed gives the same world."""
    rng = random.Random(f"world-{seed}")
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
    entities = entities_of(rows)
    rng.shuffle(entities)
    return World(entities, f"fictional-{seed}")
