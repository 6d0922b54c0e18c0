"""Questions whose answers are verified by the graph, and sums whose answers are computed.

A search question is a chain of functional relations read backwards: "What is the script of the
language of Norway?" needs two look-ups, and has one answer because relations are functional. Train
and test share no answer entity. A python question is a sum too long to guess; its answer is
computed here, exactly, without the tool. Left out: query algebra, obfuscation, upgrades.

Questions that are longer than a context: a trail of pages with treasures on the way.

"What is the last treasure on the trail of Aba?" Every page of a trail names the next one, a few of
them a treasure too, and the last page says that there is no next. So a question takes as many
look-ups as the trail has pages, any number, and nobody knows that the treasure seen long ago was
the last one before the end is reached: whoever forgets what it has read cannot answer, and whoever
keeps everything runs out of context. That is what tells agents of different memories apart
(ReSum, arXiv 2509.13313, and IterResearch, 2509.13309). A second trail lies in the same world, so
that a treasure is not the treasure.

All trails are invented; nothing about them can be known. Left out: trails that fork.
"""

import hashlib
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Literal, NamedTuple

import sympy

from drlib.task import Task
from drlib.worlds import Entity, Names, SmallWorld

MAX_HOPS = 3
MAX_MISSES = 2000  # draws in a row that gave nothing new: the world is exhausted
HELD_OUT_HOPS = {1: 0.35, 2: 0.35, 3: 0.30}
SEARCH_WORDINGS = (
    "What is the {relations} of {start}?",
    "Find the {relations} of {start}.",
    "Tell me the {relations} of {start}.",
)
Split = Literal["train", "test"]


class Chain(NamedTuple):
    start: str
    relations: tuple[str, ...]
    answer: str

    @property
    def hops(self) -> int:
        return len(self.relations)


def enumerate_chains(world: SmallWorld, max_hops: int = MAX_HOPS) -> list[Chain]:
    """Every chain of 1..max_hops relations that never meets an entity twice."""
    found = []
    frontier = [((), (title,)) for title in world.entities]  # relations, and the titles they meet
    for _ in range(max_hops):
        longer = []
        for relations, path in frontier:
            start, end = path[0], path[-1]
            facts = world.entities[end].facts if end in world.entities else {}
            for relation, value in facts.items():
                # an answer that stands in the start's name would be given away
                if value not in path and value.casefold() not in start.casefold():
                    longer.append(((*relations, relation), (*path, value)))
        frontier = longer
        found += [Chain(path[0], relations, path[-1]) for relations, path in frontier]
    return found


def split_answers(world: SmallWorld, test_share: float = 0.25, seed: int = 0) -> dict[str, Split]:
    """Each possible answer's side, drawn per kind of relation so that both sides have all kinds."""
    by_relation = defaultdict(set)
    for entity in world.entities.values():
        for relation, value in entity.facts.items():
            by_relation[relation].add(value)
    side: dict[str, Split] = {}
    for relation, found in sorted(by_relation.items()):
        values = sorted(found - side.keys())
        random.Random(f"split-{seed}-{relation}").shuffle(values)
        cut = min(len(values) // 2, max(4, round(test_share * len(values))))
        side |= {value: "test" if i < cut else "train" for i, value in enumerate(values)}
    return side


def make_search_task(chain: Chain, world: SmallWorld, wording: int) -> Task:
    """The question of `chain`, in one of three wordings."""
    phrase = " of the ".join(reversed(chain.relations))
    text = SEARCH_WORDINGS[wording].format(relations=phrase, start=chain.start)
    key = f"{world.version}|{chain.start}|{'/'.join(chain.relations)}|{wording}"
    return Task(
        f"search-h{chain.hops}-{digest_text(key)}",
        text,
        chain.answer,
        "search",
        world.version,
        chain.hops,
        chain.start,
        chain.relations,
    )


def digest_text(text: str) -> str:
    """Ten hex digits that stand for `text` in the id of a task."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class SearchQuestions:
    """Draws search questions from one side of a world's split: an answer, then a chain to it, so
    that a frequent answer ("Latin script") is no better a guess than a rare one."""

    def __init__(self, world: SmallWorld, split: Split | None, max_hops: int = MAX_HOPS):
        self.world = world
        side = split_answers(world) if split else {}
        self._chains: dict[int, dict[str, list[Chain]]] = defaultdict(dict)  # by hops and answer
        for chain in sorted(enumerate_chains(world, max_hops), key=lambda chain: chain.answer):
            if side.get(chain.answer) == split:
                self._chains[chain.hops].setdefault(chain.answer, []).append(chain)

    def answers(self, hops: int) -> list[str]:
        """The answers that questions of `hops` look-ups have, sorted."""
        return list(self._chains[hops])

    def draw(self, hops: int, rng: random.Random) -> Task:
        """One question of `hops` look-ups; ValueError when the world has none."""
        answers = self.answers(hops)
        if not answers:
            raise ValueError(f"{self.world.name} has no question of {hops} look-ups on this side")
        answer = rng.choice(answers)
        chain = rng.choice(self._chains[hops][answer])
        return make_search_task(chain, self.world, rng.randrange(len(SEARCH_WORDINGS)))


# kind of sum -> (ranges its numbers are drawn from, numbers -> (question, program, answer))
PYTHON_KINDS: dict[str, tuple[list[tuple[int, int]], Callable]] = {
    "product": (
        [(12, 99), (12, 99)],
        lambda a, b: (f"What is {a} times {b}?", f"print({a}*{b})", a * b),
    ),
    "expression": (
        [(12, 99), (12, 99), (100, 999)],
        lambda a, b, c: (f"What is {a} times {b} plus {c}?", f"print({a}*{b}+{c})", a * b + c),
    ),
    "remainder": (
        [(1000, 9999), (11, 97)],
        lambda a, b: (f"What is the remainder of {a} divided by {b}?", f"print({a}%{b})", a % b),
    ),
    "power": (
        [(3, 12), (3, 5)],
        lambda a, b: (f"What is {a} to the power {b}?", f"print({a}**{b})", a**b),
    ),
    "gcd": (
        [(2, 30), (2, 30), (2, 30)],
        lambda g, a, b: (
            f"What is the greatest common divisor of {g * a} and {g * b}?",
            f"import math; print(math.gcd({g * a},{g * b}))",
            math.gcd(g * a, g * b),
        ),
    ),
    "prime": (
        [(10, 300)],
        lambda n: (
            f"What is prime number {n}?",
            f"import sympy; print(sympy.prime({n}))",
            sympy.prime(n),
        ),
    ),
    "factor": (
        [(200, 9999)],
        lambda n: (
            f"What is the largest prime factor of {n}?",
            f"import sympy; print(max(sympy.primefactors({n})))",
            max(sympy.primefactors(n)),
        ),
    ),
    "equation": (
        [(2, 9), (11, 99), (10, 99)],
        lambda a, x, b: (
            f"Solve {a}x plus {b} equals {a * x + b}.",
            f"import sympy; x=sympy.Symbol('x'); print(sympy.solve({a}*x+{b}-{a * x + b})[0])",
            x,
        ),
    ),
}


def make_python_task(rng: random.Random, kind: str | None = None) -> Task:
    """A sum of `kind` (drawn uniformly when None), with numbers from `rng`."""
    kind = kind or rng.choice(sorted(PYTHON_KINDS))
    if kind not in PYTHON_KINDS:
        raise ValueError(f"unknown python question {kind!r}: known are {sorted(PYTHON_KINDS)}")
    ranges, make = PYTHON_KINDS[kind]
    drawn = [rng.randint(*bounds) for bounds in ranges]
    question, code, answer = make(*drawn)
    name = f"python-{kind}-{digest_text(question)}"
    return Task(name, question, str(answer), "python", "python", code=code)


def has_shortcut(task: Task, world: SmallWorld, results: int) -> bool:
    """Whether a look-up before the last already shows the answer, `results` pages a search: one for
    Falkland Islands may show the page of their currency too."""
    path = [task.start, *(world.follow(task.start, task.relations) or ())]  # a sum has no look-up
    before_the_last = path[: task.hops - 1]
    hits = [hit for title in before_the_last for hit in world.search(title, results)]
    answer = re.compile(rf"(?<!\w){re.escape(task.answer)}(?!\w)", re.I)  # Mali is not in Somalia
    return any(answer.search(f"{hit.title}\n{hit.snippet}") for hit in hits)


def chain_questions(
    world: SmallWorld,
    n: int,
    seed: int | str,
    split: Split = "test",
    kind: str = "search",
    hops: dict[int, float] | None = None,
    results: int = 2,
    at_least: int | None = None,
) -> list[Task]:
    """`n` different questions of `kind`; the same seed gives the same list.

    hops: the share of each number of look-ups; when one has run out, the others take its place.
    results: pages that a search shows; a question with a shortcut (`has_shortcut`) is drawn again.
    at_least: how many will do where the world cannot give `n`. ValueError: it gives fewer.
    """
    rng = random.Random(f"questions-{split}-{kind}-{seed}")
    source = SearchQuestions(world, split) if kind == "search" else None
    shares = dict(hops or HELD_OUT_HOPS) if source else {0: 1.0}
    tasks: dict[str, Task] = {}
    while len(tasks) < n and shares:
        wanted = rng.choices(list(shares), list(shares.values()))[0] if source else 0
        for _ in range(MAX_MISSES):  # a rejected question is replaced by one of as many look-ups
            drawn = source.draw(wanted, rng) if source else make_python_task(rng)
            if drawn.id not in tasks and not has_shortcut(drawn, world, results):
                tasks[drawn.id] = drawn
                break
        else:
            del shares[wanted]
    if len(tasks) < (n if at_least is None else at_least):
        raise ValueError(f"{world.name} has only {len(tasks)} different {kind} questions of {n}")
    return list(tasks.values())


TRAIL_WORDINGS = (
    "What is the last treasure on the trail of {start}?",
    "Follow the trail of {start} and find its last treasure.",
)
NEXT_PAGE = "next"
TREASURE = "treasure"
END = "nowhere"  # the next page of the last one
NO_TREASURE = "none yet"
TREASURES = 3  # of a trail, at most
OTHER_PAGES = 6  # of the trail beside it, at most


def make_trail(seed: int | str, names: Names, pages: int) -> tuple[Task, SmallWorld]:
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
    start, answer, entities = _make_trail_pages(rng, words[:pages], words[-TREASURES:])
    *_, beside = _make_trail_pages(
        rng, words[pages : pages + others], words[-2 * TREASURES : -TREASURES]
    )
    mixed = [*entities, *beside]
    rng.shuffle(mixed)
    world = SmallWorld(mixed, f"trail-{seed}", scheme=names.scheme)
    wording = rng.choice(TRAIL_WORDINGS)
    name = f"trail-{pages}-{digest_text(f'{world.version}|{wording}')}"
    question = wording.format(start=start)
    return Task(name, question, answer, "trail", world.version, pages, start), world


def _make_trail_pages(
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
