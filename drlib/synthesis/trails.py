"""Questions that are longer than a context: a trail of pages with treasures on the way.

"What is the last treasure on the trail of Aba?" Every page of a trail names the next one, a few of
them a treasure too, and the last page says that there is no next. So a question takes as many
look-ups as the trail has pages, any number, and nobody knows that the treasure seen long ago was
the last one before the end is reached: whoever forgets what it has read cannot answer, and whoever
keeps everything runs out of context. That is what tells agents of different memories apart
(ReSum, arXiv 2509.13313, and IterResearch, 2509.13309). A second trail lies in the same world, so
that a treasure is not the treasure.

All trails are invented; nothing about them can be known. Left out: trails that fork.
"""

import random

from drlib.synthesis.questions import short_digest
from drlib.task import Task
from drlib.worlds import Entity, Names, SmallWorld

WORDINGS = (
    "What is the last treasure on the trail of {start}?",
    "Follow the trail of {start} and find its last treasure.",
)
NEXT_PAGE = "next"
TREASURE = "treasure"
END = "nowhere"  # the next page of the last one
NO_TREASURE = "none yet"
TREASURES = 3  # of a trail, at most
OTHER_PAGES = 6  # of the trail beside it, at most


def trail(seed: int | str, names: Names, pages: int) -> tuple[Task, SmallWorld]:
    """A question of `pages` look-ups and its world; the same seed gives the same.

    A title is one of the real world's words: what a trail tests is memory, not the copying of long
    or unheard-of names. ValueError: a trail has no page, or there are too few words.
    """
    rng = random.Random(f"trail-{seed}")
    others = rng.randint(1, OTHER_PAGES)
    most = len(names.words) - others - 2 * TREASURES
    if not 1 <= pages <= most:
        raise ValueError(f"a trail has 1 to {most} pages in a world of these words, got {pages}")
    words = rng.sample(names.words, pages + others + 2 * TREASURES)
    start, answer, entities = _laid(rng, words[:pages], words[-TREASURES:])
    *_, beside = _laid(rng, words[pages : pages + others], words[-2 * TREASURES : -TREASURES])
    mixed = [*entities, *beside]
    rng.shuffle(mixed)
    world = SmallWorld(mixed, f"trail-{seed}", scheme=names.scheme)
    wording = rng.choice(WORDINGS)
    name = f"trail-{pages}-{short_digest(f'{world.version}|{wording}')}"
    question = wording.format(start=start)
    return Task(name, question, answer, "trail", world.version, pages, start), world


def _laid(
    rng: random.Random, titles: list[str], treasures: list[str]
) -> tuple[str, str, list[Entity]]:
    """(first page, last treasure, the pages) of one trail, some of the treasures on it."""
    n = rng.randint(1, min(len(titles), len(treasures)))
    places = sorted(rng.sample(range(len(titles)), n))
    found = dict(zip(places, treasures))
    entities = []
    for number, (title, after) in enumerate(zip(titles, [*titles[1:], END])):
        facts = {TREASURE: found[number]} if number in found else {}
        entities.append(Entity(title, "page", facts | {NEXT_PAGE: after}))
    return titles[0], found[places[-1]], entities
