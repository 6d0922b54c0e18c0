"""Chain questions, Python questions and trail questions, whose answers are known by construction.

A chain question ("What is the script of the language of Norway?") follows functional relations, so
it has one answer. A Python question is arithmetic that is too long to guess. A trail question
needs as many hops as its trail has pages and tests an agent's memory (ReSum, arXiv 2509.13313;
IterResearch, arXiv 2509.13309). Training and test questions share no answer entity.
"""

import hashlib
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Literal, NamedTuple

from drlib.task import Task
from drlib.worlds import Entity, Names, SmallWorld

MAX_HOPS = 3
MAX_MISSES = 2000  # failed draws in a row until the world is regarded as exhausted
HELD_OUT_HOPS = {1: 0.35, 2: 0.35, 3: 0.30}
SEARCH_WORDINGS = (
    "What is the {relations} of {start}?",
    "Find the {relations} of {start}.",
    "Tell me the {relations} of {start}.",
)
Split = Literal["train", "test"]


class Chain(NamedTuple):
    """A path of relations from a start title to an answer."""

    start: str
    relations: tuple[str, ...]
    answer: str

    @property
    def hops(self) -> int:
        """Return the number of relations."""
        return len(self.relations)


def enumerate_chains(world: SmallWorld, max_hops: int = MAX_HOPS) -> list[Chain]:
    """List every chain of 1 to `max_hops` relations that visits no entity twice.

    A chain is skipped if its answer occurs in the name of its start.
    """
    found = []
    frontier = [((), (title,)) for title in world.entities]  # relations, and the titles they meet
    for _ in range(max_hops):
        longer = []
        for relations, path in frontier:
            start, end = path[0], path[-1]
            facts = world.entities[end].facts if end in world.entities else {}
            for relation, value in facts.items():
                # the start's name must not give the answer away
                if value not in path and value.casefold() not in start.casefold():
                    longer.append(((*relations, relation), (*path, value)))
        frontier = longer
        found += [Chain(path[0], relations, path[-1]) for relations, path in frontier]
    return found


def split_answers(world: SmallWorld, test_share: float = 0.25, seed: int = 0) -> dict[str, Split]:
    """Assign each possible answer to a split, separately for each relation.

    Args:
        world: the world whose facts give the answers.
        test_share: share of the answers of a relation, in [0, 1], that go to "test" (at least 4,
            at most half).
        seed: seed of the shuffle.

    Returns:
        A dictionary from answer to "train" or "test".
    """
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
    """Return the task that asks for `chain`; `wording` indexes `SEARCH_WORDINGS`."""
    phrase = " of the ".join(reversed(chain.relations))
    path = [chain.start]
    for relation in chain.relations:
        path.append(world.entities[path[-1]].facts[relation])
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
        answer_type=world.answer_types[chain.relations[-1]],
        entities=tuple(path[1:]),
    )


def digest_text(text: str) -> str:
    """Return the first ten hexadecimal digits of the SHA-256 of `text`, used in task ids."""
    return hashlib.sha256(text.encode()).hexdigest()[:10]


class SearchQuestions:
    """Sampler of chain questions from one split of a world.

    It draws an answer first and then a chain to it, so that all answers are equally likely.

    Args:
        world: the world to ask about.
        split: "train" or "test" (see `split_answers`); None: no split.
        max_hops: largest number of hops.
    """

    def __init__(self, world: SmallWorld, split: Split | None, max_hops: int = MAX_HOPS):
        self.world = world
        side = split_answers(world) if split else {}
        self._chains: dict[int, dict[str, list[Chain]]] = defaultdict(dict)  # by hops and answer
        for chain in sorted(enumerate_chains(world, max_hops), key=lambda chain: chain.answer):
            if side.get(chain.answer) == split:
                self._chains[chain.hops].setdefault(chain.answer, []).append(chain)

    def answers(self, hops: int) -> list[str]:
        """Return the sorted answers of the questions with `hops` hops."""
        return list(self._chains[hops])

    def draw(self, hops: int, rng: random.Random) -> Task:
        """Draw one question with `hops` hops.

        Raises:
            ValueError: this split of the world has no such question.
        """
        answers = self.answers(hops)
        if not answers:
            raise ValueError(f"{self.world.name} has no question with {hops} hops in this split")
        answer = rng.choice(answers)
        chain = rng.choice(self._chains[hops][answer])
        return make_search_task(chain, self.world, rng.randrange(len(SEARCH_WORDINGS)))


def _find_prime(n: int) -> int:
    """Return prime number `n`, counted from 1."""
    import sympy  # takes longer to import than the rest of drlib.questions

    return int(sympy.prime(n))


def _largest_factor(n: int) -> int:
    """Return the largest prime factor of `n`."""
    import sympy

    return int(max(sympy.primefactors(n)))


# kind -> (ranges of its numbers, function of numbers to (question, program, answer))
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
            _find_prime(n),
        ),
    ),
    "factor": (
        [(200, 9999)],
        lambda n: (
            f"What is the largest prime factor of {n}?",
            f"import sympy; print(max(sympy.primefactors({n})))",
            _largest_factor(n),
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
    """Return an arithmetic task with numbers drawn from `rng`.

    Args:
        rng: source of randomness.
        kind: a key of `PYTHON_KINDS`; None: drawn uniformly.

    Raises:
        ValueError: `kind` is unknown.
    """
    kind = kind or rng.choice(sorted(PYTHON_KINDS))
    if kind not in PYTHON_KINDS:
        raise ValueError(
            f"unknown Python question kind {kind!r}: choose one of {sorted(PYTHON_KINDS)}"
        )
    ranges, make = PYTHON_KINDS[kind]
    drawn = [rng.randint(*bounds) for bounds in ranges]
    question, code, answer = make(*drawn)
    name = f"python-{kind}-{digest_text(question)}"
    return Task(name, question, str(answer), "python", "python", code=code, answer_type="number")


def has_shortcut(task: Task, world: SmallWorld, results: int) -> bool:
    """Return True if a search before the last hop already shows the answer.

    Args:
        task: the question; a Python question has no hops and no shortcut.
        world: the world that is searched.
        results: number of pages shown per search.
    """
    path = [
        task.start,
        *(world.follow(task.start, task.relations) or ()),
    ]  # empty for a Python question
    before_the_last = path[: task.hops - 1]
    hits = [hit for title in before_the_last for hit in world.search(title, results)]
    answer = re.compile(rf"(?<!\w){re.escape(task.answer)}(?!\w)", re.I)  # Mali is not in Somalia
    return any(answer.search(f"{hit.title}\n{hit.snippet}") for hit in hits)


def chain_questions(
    world: SmallWorld,
    n: int,
    seed: int | str,
    split: Split | None = "test",
    kind: str = "search",
    hops: dict[int, float] | None = None,
    results: int = 2,
    at_least: int | None = None,
) -> list[Task]:
    """Return `n` different questions of one kind; the same seed gives the same list.

    Args:
        world: the world to ask about.
        n: number of questions.
        seed: seed of all draws.
        split: the split whose answers are used; None: all answers.
        kind: "search" or "python".
        hops: share of each number of hops; when one is exhausted, the others replace it.
        results: number of pages shown per search; questions with a shortcut are drawn again.
        at_least: smallest acceptable number of questions; None: `n`.

    Raises:
        ValueError: the world has fewer than `at_least` questions.
    """
    rng = random.Random(f"questions-{split}-{kind}-{seed}")
    source = SearchQuestions(world, split) if kind == "search" else None
    shares = dict(hops or HELD_OUT_HOPS) if source else {0: 1.0}
    tasks: dict[str, Task] = {}
    while len(tasks) < n and shares:
        wanted = rng.choices(list(shares), list(shares.values()))[0] if source else 0
        for _ in range(MAX_MISSES):  # a rejected question is replaced by one with as many hops
            drawn = source.draw(wanted, rng) if source else make_python_task(rng)
            if drawn.id not in tasks and not has_shortcut(drawn, world, results):
                tasks[drawn.id] = drawn
                break
        else:
            del shares[wanted]
    if len(tasks) < (n if at_least is None else at_least):
        raise ValueError(
            f"{world.name} has only {len(tasks)} different {kind} questions, not n={n}: lower n"
        )
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
OTHER_PAGES = 6  # of the distractor trail, at most


def make_trail(seed: int | str, names: Names, pages: int) -> tuple[Task, SmallWorld]:
    """Return a question about a trail of `pages` pages and the world that contains it.

    A second trail with other treasures is added as a distractor. Titles are words of `names`, so
    that the question tests memory and not the copying of rare names.

    Args:
        seed: seed of all draws.
        names: source of the words and of the URL scheme.
        pages: length of the trail, equal to the number of hops.

    Raises:
        ValueError: `pages` is below 1 or `names` has too few words.
    """
    rng = random.Random(f"trail-{seed}")
    others = rng.randint(1, OTHER_PAGES)
    most = len(names.words) - others - 2 * TREASURES
    if not 1 <= pages <= most:
        raise ValueError(f"pages={pages} is outside 1..{most}, the range for this many words")
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
    task = Task(name, question, answer, "trail", world.version, pages, start, answer_type="text")
    return task, world


def _make_trail_pages(
    rng: random.Random, titles: list[str], treasures: list[str]
) -> tuple[str, str, list[Entity]]:
    """Return (first title, last treasure, pages) of one trail."""
    n = rng.randint(1, min(len(titles), len(treasures)))
    places = sorted(rng.sample(range(len(titles)), n))
    found = dict(zip(places, treasures))
    entities = []
    for number, (title, after) in enumerate(zip(titles, [*titles[1:], END])):
        facts = {TREASURE: found[number]} if number in found else {}
        entities.append(Entity(title, "page", facts | {NEXT_PAGE: after}))
    return titles[0], found[places[-1]], entities
