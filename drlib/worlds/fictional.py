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
        codes = tuple([t for t in titles if re.fullmatch(r"[A-Z]{3}", t)])
        split = [re.findall(r"\w+", t) for t in titles if t not in codes]
        words = sorted({w for ws in split for w in ws} - {"script"})
        return Names(tuple(words), codes, tuple(min(len(ws), MAX_WORDS) for ws in split))


def invent_name(rng: random.Random, names: Names, taken: set[str]) -> str:
    """A title that is not in `taken` (and is added to it)."""
    while True:
        if rng.random() < 0.2:
            title = "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((2, 3)))).capitalize()
        else:
            words = [rng.choice(names.words) for _ in range(rng.choice(names.lengths))]
            title = words[0]
            for word in words[1:]:
                title += rng.choice((" ",) * 8 + ("-", " & ")) + word
        if title.casefold() not in taken:
            taken.add(title.casefold())
            return title


def fictional_world(seed: int | str, names: Names, territories: int = 8) -> World:
    """An invented world of about `8 * territories` pages; the same seed gives the same world."""
    rng = random.Random(f"world-{seed}")
    taken: set[str] = set()

    def some(n: int) -> list[str]:
        return [invent_name(rng, names, taken) for _ in range(n)]

    land, language = some(territories), some(max(2, territories * 3 // 4))
    tender, former = some(territories), some(territories * 2 // 3)
    written = [f"{name} script" for name in some(max(2, territories // 3))]
    codes = rng.sample(names.codes, len(tender) + len(former))
    speaks = {t: rng.choice(language) for t in land}
    pays, paid = dict(zip(land, tender)), dict(zip(rng.sample(land, len(former)), former))
    for t in rng.sample(land, territories // 4):  # some currencies are shared, as in the real world
        pays[t] = rng.choice(tender)
    writes = {name: rng.choice(written) for name in language}
    entities = entities_of(
        (title, kind, facts, ())
        for title, kind, facts in (
            *(
                (
                    t,
                    "territory",
                    {"currency": pays[t], "former currency": paid.get(t), "language": speaks[t]},
                )
                for t in land
            ),
            *(
                (
                    name,
                    "currency",
                    {"code": code, "territory": only(pays, name) or only(paid, name)},
                )
                for name, code in zip(tender + former, codes)
            ),
            *(
                (name, "language", {"script": writes[name], "territory": only(speaks, name)})
                for name in language
            ),
            *((name, "script", {"language": only(writes, name)}) for name in written),
            *((city, "city", {"territory": rng.choice(land)}) for city in some(territories)),
        )
    )
    rng.shuffle(entities)
    return World(entities, f"fictional-{seed}")
