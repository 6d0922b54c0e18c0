"""A data set of questions about a world: drawn piece by piece, then put together.

Blocks of questions are drawn in rounds, one of each family. A block is a pure function of world,
family, number and seed, and is kept as a *piece*, a file that is there whole or not at all. All
else (doubles, benchmarks, the quota, the split) is a pure function of the pieces. So the same wish
gives the same questions, however often the work was interrupted on the way.

A question is dropped that says the same as one before it (its query, or 8-grams of words with a
Jaccard index of 0.7), that shares an n-gram with a benchmark (`drlib.questions.quality`), that a
model answers from memory, where one is asked, whose answer has its share of the questions already,
over all families, or that would show training what the test asks for
(`drlib.questions.question_set`).

Left out: a model's judgement of questions, and pass rates with tools
(`drlib.questions.escalation`), which need an agent and are another program's work.

A split of questions on their graph: what leads to a test answer is not seen in training.

Questions that differ in their answers can still teach each other's: a training question that goes
over the page of a test answer, or rests on the very fact that a test question asks to find. So a
test set is made of *answers*: they are drawn one after the other until their questions are the
wanted share of what is left. A training question is dropped that has an answer of the same name,
names a test answer or has it on its way, names or asks for anything that a fact joins to a test
answer, or rests on a fact on which a test question rests.

On a dense graph that costs most of the training questions if the test answers lie anywhere. So each
step draws `CHOICES` answers and takes the one that costs the fewest for each of its questions: the
test set stays a random sample with a leaning towards neighbours of what is in it already.

Left out: what a page shows beside the fact that is used. A hub's page that a training question
needs may list a test answer among hundreds of others.

The facts by which a question is answered, each with the line of the page that shows it.

`find_used_facts` is to facts what `drlib.demonstrations.funnel.required` is to titles: evaluation from the
answers backwards, so that of a hub's hundred facts only those count that lead to the answer. What
an exception, a count or an extreme compares is used too: without it the answer is not known.

Left out: which of several pages a solver would read. A fact is shown on the page of its subject
(short lists, its own relation's name), and on the page of its value where the subject has none.
"""

import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from drlib.files import read_json_lines, write_atomic, write_json_lines
from drlib.questions.checks import find_neighbours, measure_effort
from drlib.questions.escalation import Solver, measure_pass_rates
from drlib.questions.families import FAMILIES, draw_block
from drlib.questions.quality import find_contaminated, find_near_duplicates
from drlib.questions.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    bind,
    evaluate_query,
    from_text,
    list_constants,
    parse_numbers,
)
from drlib.questions.wording import mentions
from drlib.registry import suggest_name
from drlib.task import Task, normalise_answer
from drlib.validation import require
from drlib.worlds.graph import Fact, Graph, inverse
from drlib.worlds.library import next_part, read_facts

CHOICES = 16


@dataclass(frozen=True)
class Dependencies:
    """What a question rests on: its answer and the other names of that, the titles that it names,
    those and the ones that it has on its way, the facts by which it is answered, and the titles
    `around` its answer, which a fact joins to it."""

    answer: str
    names: tuple[str, ...]
    named: frozenset[str]
    titles: frozenset[str]
    facts: frozenset[tuple[str, str, str]]
    around: frozenset[str]


@dataclass
class GraphSplit:
    """Places of the questions on each side; `dropped`: place of each other one -> why it went."""

    train: list[int]
    test: list[int]
    dropped: dict[int, str] = field(default_factory=dict)


def split_by_graph(rests: Sequence[Dependencies], share: float, seed: int) -> GraphSplit:
    """Questions by what they rest on, split so that about `share` of what is kept is `test`.

    The same questions in the same order give the same split. ValueError: share is not in 0..1 (1
    excluded).
    """
    if not 0 <= share < 1:
        raise ValueError(f"the test share must be at least 0 and below 1, not {share}")
    index = _Index(rests)
    rng = random.Random(f"split-{seed}")
    left = sorted(index.groups)
    test: set[int] = set()
    lost: dict[int, str] = {}
    while left and len(test) < share * (len(rests) - len(lost)):
        some = rng.sample(left, min(CHOICES, len(left)))
        chosen = min(some, key=lambda group: index.compute_price(group, test, lost))
        left.remove(chosen)
        mine = index.groups[chosen]
        test |= mine
        for place in mine:  # one that an earlier answer had cost training is a test question now
            lost.pop(place, None)
        for reason, places in index.find_conflicts(chosen).items():
            for place in places - test:
                lost.setdefault(place, reason)
    train = [place for place in range(len(rests)) if place not in test and place not in lost]
    return GraphSplit(train, sorted(test), dict(sorted(lost.items())))


class _Index:
    """Which questions share what. A *group* is all questions whose answers have a name in common,
    known by the title that sorts first."""

    def __init__(self, rests: Sequence[Dependencies]):
        self._rests = rests
        by_name = defaultdict(set)
        self._by_title = defaultdict(set)
        self._by_name = defaultdict(set)
        self._by_fact = defaultdict(set)
        for place, one in enumerate(rests):
            for name in {normalise_answer(name) for name in (one.answer, *one.names)}:
                by_name[name].add(place)
            for title in one.titles:
                self._by_title[title].add(place)
            for title in (one.answer, *one.named):
                self._by_name[title].add(place)
            for fact in one.facts:
                self._by_fact[fact].add(place)
        self.groups = _group_places(by_name.values(), len(rests), rests)
        self._cache: dict[str, dict[str, set[int]]] = {}

    def find_conflicts(self, group: str) -> dict[str, set[int]]:
        """Why a question cannot be in training when this group is in test -> which."""
        if group not in self._cache:
            mine = self.groups[group]
            answers = {self._rests[place].answer for place in mine}
            facts = set().union(*(self._rests[place].facts for place in mine))
            around = set().union(*(self._rests[place].around for place in mine))
            passing = set().union(*(self._by_title[title] for title in answers)) - mine
            near = set().union(*(self._by_name[title] for title in around)) - mine
            shared = set().union(*(self._by_fact[fact] for fact in facts)) - mine
            self._cache[group] = {
                "has a test answer on its way": passing,
                "names a neighbour of a test answer": near - passing,
                "rests on a fact of a test question": shared - near - passing,
            }
        return self._cache[group]

    def compute_price(self, group: str, test: set[int], lost: dict[int, str]) -> tuple[float, str]:
        """Training questions that it would cost more, for each question that it gives."""
        costs = set().union(*self.find_conflicts(group).values()) - test - lost.keys()
        return len(costs) / len(self.groups[group]), group


def _group_places(sets, size: int, rests: Sequence[Dependencies]) -> dict[str, set[int]]:
    """Places that are in a set together, directly or by others, as groups by the first answer."""
    parent = list(range(size))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for some in sets:
        first, *others = some
        for other in others:
            parent[root(other)] = root(first)
    found = defaultdict(set)
    for place in range(size):
        found[root(place)].add(place)
    return {min(rests[place].answer for place in places): places for places in found.values()}


_SENTENCE = re.compile(r"(?<=\.) (?=Its? )")  # where one begins on a page of sentences


class Quote(NamedTuple):
    """`find_quote` stands in the page that the world serves at `address`; `chunk` is its title."""

    quote: str
    address: str
    chunk: str


def find_used_facts(query: Query, graph: Graph, wanted: Iterable[str] | None = None) -> set[Fact]:
    """The facts by which `wanted` (by default all answers) are found to be answers of `query`.
    TypeError: it is no query."""
    found = evaluate_query(query, graph)
    if wanted is not None:
        found &= frozenset(wanted)
    match query:
        case str():
            return set()
        case Proj(relation, of):
            of_these = evaluate_query(of, graph)
            steps = [
                (start, value)
                for start in of_these
                for value in graph.values(start, relation) & found
            ]
            used = {_orient_fact(start, relation, value) for start, value in steps}
            return used | find_used_facts(of, graph, {start for start, _ in steps})
        case And(parts) | Or(parts):
            return set().union(*(find_used_facts(part, graph, found) for part in parts))
        case Diff(left, right):
            excepted = evaluate_query(left, graph) & evaluate_query(right, graph)
            return find_used_facts(left, graph, found | excepted) | find_used_facts(
                right, graph, excepted
            )
        case Range(relation, low, high):
            rows = ((title, value) for title in found for value in graph.values(title, relation))
            return {
                _orient_fact(title, relation, value)
                for title, value in rows
                if any(low <= n <= high for n in parse_numbers((value,)))
            }
        case Extreme(relation, of, _):
            compared = {
                _orient_fact(title, relation, value)
                for title in evaluate_query(of, graph)
                for value in graph.values(title, relation)
                if parse_numbers((value,))
            }
            return compared | find_used_facts(of, graph)
        case Count(of):
            return find_used_facts(of, graph)
        case Exists(name, among, of):
            chosen = [(title, bind(of, name, title)) for title in evaluate_query(among, graph)]
            used = [
                find_used_facts(way, graph, found) | find_used_facts(among, graph, {title})
                for title, way in chosen
                if found & evaluate_query(way, graph)
            ]
            return set().union(*used)
        case Anything():
            return set()
    raise TypeError(f"not a query: {query!r}")


def _orient_fact(start: str, relation: str, value: str) -> Fact:
    """The fact as the graph keeps it, under the relation's own name and not its inverse's."""
    is_inverse = relation.endswith(" of")
    return (value, inverse(relation), start) if is_inverse else (start, relation, value)


def find_quote(fact: Fact, world) -> Quote | None:
    """The line of a page of `world` that shows `fact`; None: no page shows it."""
    subject, relation, value = fact
    for title, name, other in ((subject, relation, value), (value, inverse(relation), subject)):
        if world.find(title) != title:
            continue
        for page in _iter_pages(title, world):
            line = _find_line(page.text, name, other)
            if line:
                return Quote(line, page.url, title)
    return None


def _iter_pages(title: str, world) -> Iterator:
    """The page of `title`, and those on which its facts go on."""
    address: str | None = title
    while address:
        page = world.page(address)
        yield page
        address = next_part(page.text)


def _find_line(text: str, relation: str, value: str) -> str:
    """The line of facts in `text` that has `value` under `relation`, or, on pages of sentences, the
    sentence that names both; "" for none."""
    if value in read_facts(text).get(relation, ()):
        start = f"- {relation}: "
        lines = [line for line in text.split("\n") if line.startswith(start)]
        return lines[-1]  # the block of facts stands last on a page
    fitting = (
        said for said in _SENTENCE.split(text) if mentions(said, relation) and mentions(said, value)
    )
    return next(fitting, "")


BLOCK = 100  # questions of a block, at most
SPARE = 1.3  # what is drawn for each question that is wanted, in the first round
MIN_NEW_SHARE = 0.1  # of a block: a family that gives less has no more to give
MAX_DRAWN_RATIO = 8  # questions that are drawn for each wanted one, until the wish is given up
SETTINGS = "settings.json"
RATES = "closed_book.jsonl"
NOT_JUDGED, FROM_MEMORY = "not judged closed book", "answered from memory"


@dataclass(frozen=True)
class DatasetRequest:
    """What is wanted; the same wish gives the same data set.

    n: questions of both sides together. hops: look-ups that follow each other, at most. test_share:
    of the questions. max_share: of `n`, those that may have the same answer (one always may).
    structure: about a folder's links and sections too. plain: such as a person would ask
    (`drlib.questions.families.draw_block`). benchmarks: files of which no question may be in the data
    set. closed_book: the name of the model that is asked each question `tries` times without a
    tool; what it answers once is left out. "" asks none.
    ValueError: a setting is impossible, or a family not known; OSError: a benchmark is missing.
    """

    world: str
    n: int
    families: tuple[str, ...] = tuple(FAMILIES)
    seed: int = 0
    hops: int = 3
    test_share: float = 0.2
    max_share: float = 0.02
    structure: bool = False
    plain: bool = False
    benchmarks: tuple[str, ...] = ()
    closed_book: str = ""
    tries: int = 4

    def __post_init__(self) -> None:
        require(self.n >= 1, f"a data set has at least 1 question, not {self.n}")
        require(self.hops >= 2, f"questions have at least 2 look-ups, not {self.hops}")
        for name in ("test_share", "max_share"):
            share = getattr(self, name)
            require(0 <= share < 1, f"{name} must be at least 0 and below 1, not {share}")
        require(self.tries >= 1, f"a model is asked at least once, not {self.tries} times")
        require(bool(self.families), f"name a family. Known: {', '.join(FAMILIES)}")
        for name in self.families:
            require(name in FAMILIES, f"unknown family {name!r}: {suggest_name(name, FAMILIES)}")
        for path in self.benchmarks:
            if not Path(path).is_file():
                raise FileNotFoundError(f"no benchmark file {path}")

    @property
    def block(self) -> int:
        """Questions of each block."""
        return max(1, min(BLOCK, round(SPARE * self.n / len(self.families))))

    @property
    def quota(self) -> int:
        """Questions that may have the same answer."""
        return max(1, int(self.max_share * self.n))


class Assembly(NamedTuple):
    """`rows`: split -> its questions. `dropped`: (family, reason) -> how many."""

    rows: dict[str, list[dict]]
    dropped: Counter[tuple[str, str]]

    @property
    def size(self) -> int:
        return sum(map(len, self.rows.values()))


class DatasetResult(NamedTuple):
    """`notes`: family -> why it gave fewer than it was asked for."""

    assembly: Assembly
    notes: dict[str, str]


def draw_dataset(
    wish: DatasetRequest,
    world,
    folder: Path,
    tell: Callable[[str], object],
    closed_book: Solver | None = None,
) -> DatasetResult:
    """The questions of `wish`, or as many as `world` gives. `folder`: where the pieces and rates
    are kept, and where a run that was interrupted goes on; `tell` is given a line after each round.
    `closed_book`: asks the model that the wish names.
    ValueError: the folder holds another data set, or the wish names a model and nobody asks it."""
    require(
        bool(wish.closed_book) == (closed_book is not None),
        "a model is asked where the wish names one, and only there: give both or none",
    )
    _claim_folder(folder, wish, world)

    def rates(rows: Sequence[dict]) -> list[float | None]:
        tasks = [row_to_task(row) for row in rows]
        return measure_pass_rates(tasks, closed_book, wish.tries, folder / RATES)

    pieces: dict[str, list[dict]] = {family: [] for family in wish.families}
    notes: dict[str, str] = {}
    live = [*wish.families]
    assembly = Assembly({}, Counter())
    number = 0
    while live and assembly.size < wish.n and _count_drawn(pieces) < MAX_DRAWN_RATIO * wish.n:
        for family in live:
            rows, note = _load_or_draw_piece(family, number, wish, world, folder)
            pieces[family] += rows
            if note:
                notes[family] = note
            tell(f"block {number} of {family}: {len(rows)} questions")
        # more questions may split worse: what is best is kept
        asked = rates if wish.closed_book else None
        made = assemble(pieces, wish, world.graph, asked)
        assembly = max(made, assembly, key=lambda one: one.size)
        tell(f"{assembly.size} of {wish.n} questions are in the data set")
        live = [family for family in live if _is_productive(pieces[family], number, wish)]
        number += 1
    return DatasetResult(assembly, notes)


def _claim_folder(folder: Path, wish: DatasetRequest, world) -> None:
    """Say in `folder` whose pieces it holds; what a killed run was writing is cleared away."""
    for path in folder.rglob(".*.partial"):
        if path.is_file():
            path.unlink()
    own = json.loads(json.dumps(asdict(wish) | {"world_version": world.version}))
    path = folder / SETTINGS
    if not path.exists():
        write_atomic(path, json.dumps(own, indent=1, ensure_ascii=False) + "\n")
        return
    held = json.loads(path.read_text(encoding="utf-8"))
    other = [name for name in own if own[name] != held.get(name)]
    if other:
        changes = ", ".join(f"{name} was {held.get(name)!r} and is {own[name]!r}" for name in other)
        raise ValueError(f"{folder} holds another data set ({changes}): name another folder")


def _count_drawn(pieces: dict[str, list[dict]]) -> int:
    return sum(map(len, pieces.values()))


def _is_productive(rows: Sequence[dict], number: int, wish: DatasetRequest) -> bool:
    """Whether the family's block of that number had anything new to speak of."""
    before = {row["query"] for row in rows if row["block"] < number}
    last = {row["query"] for row in rows if row["block"] == number}
    return len(last - before) >= MIN_NEW_SHARE * wish.block


# ------------------------------------------------------------------------------------- pieces


def _load_or_draw_piece(
    family: str, number: int, wish: DatasetRequest, world, folder: Path
) -> tuple[list[dict], str]:
    """The rows of a block, and why it is not full; read where its file is there."""
    path = folder / "pieces" / f"{family}-{number:04}.jsonl"
    if not path.exists():
        block = draw_block(
            family, world, wish.block, wish.seed, number, wish.hops, wish.structure, wish.plain
        )
        rows = [
            _make_row(task, wording, family, number, world) | {"evidence": evidence}
            for task, wording in block.questions
            if (evidence := _find_evidence(task, world))
        ]
        unshown = len(block.questions) - len(rows)
        notes = [f"{unshown} questions rest on a fact that no page shows"] if unshown else []
        write_json_lines(path, [{"note": "; ".join([*notes, *filter(None, [block.note])])}, *rows])
    head, *rows = read_json_lines(path)
    return rows, head["note"]


def _find_evidence(task: Task, world) -> list[dict]:
    """Each fact by which the question is answered, with its quote; none where one has no quote."""
    facts = sorted(find_used_facts(from_text(task.query), world.graph))
    quotes = [find_quote(fact, world) for fact in facts]
    if None in quotes:
        return []
    return [one._asdict() | {"fact": [*fact]} for fact, one in zip(facts, quotes, strict=True)]


def _make_row(task: Task, wording: str, family: str, number: int, world) -> dict:
    return {
        "id": task.id,
        "question": task.question,
        "answer": task.answer,
        "aliases": [*task.aliases],
        "query": task.query,
        "difficulty": {
            "look_ups": task.hops,
            "conditions": task.conditions,
            "pages": measure_effort(from_text(task.query), world.graph),
        },
        "family": family,
        "wording": wording,
        "world": task.world,
        "block": number,
    }


def row_to_task(row: dict) -> Task:
    """The question of a row as the other rooms take it."""
    difficulty = row["difficulty"]
    task = Task(
        row["id"],
        row["question"],
        row["answer"],
        "search",
        row["world"],
        difficulty["look_ups"],
        aliases=tuple(row["aliases"]),
        query=row["query"],
        conditions=difficulty["conditions"],
    )
    return replace(task, closed_book=row.get("closed_book"))


# ----------------------------------------------------------------------------------- assembly


def assemble(
    pieces: dict[str, list[dict]],
    wish: DatasetRequest,
    graph: Graph,
    rates: Callable[[Sequence[dict]], list[float | None]] | None = None,
) -> Assembly:
    """The data set that the rows of the families give. The families take turns, so that what is
    dropped for a question before it is dropped from all of them alike. `rates`: how often a model
    answers each of some rows from memory, None where nobody can say; it is asked about what is no
    double and in no benchmark."""
    turns = zip_longest(*pieces.values())
    rows = [row for row in chain.from_iterable(turns) if row is not None]
    dropped: Counter[tuple[str, str]] = Counter()
    for reason, keep in (
        ("asked before", _drop_duplicates),
        ("in a benchmark", lambda some: _drop_benchmarks(some, wish.benchmarks)),
        (NOT_JUDGED, lambda some: _add_rates(some, rates) if rates else some),
        (FROM_MEMORY, lambda some: [row for row in some if not row.get("closed_book")]),
        ("its answer has its share", lambda some: _apply_quota(some, wish.quota)),
    ):
        kept = keep(rows)
        dropped += _count(rows, reason)
        dropped -= _count(kept, reason)
        rows = kept
    split = split_by_graph(
        [_find_dependencies(row, graph) for row in rows], wish.test_share, wish.seed
    )
    for place, reason in split.dropped.items():
        dropped[rows[place]["family"], reason] += 1
    test = [rows[place] for place in split.test][: round(wish.test_share * wish.n)]
    train = [rows[place] for place in split.train][: wish.n - len(test)]
    kept_ids = {row["id"] for row in (*train, *test)}
    spare = [rows[place] for place in (*split.train, *split.test)]
    dropped += _count([row for row in spare if row["id"] not in kept_ids], "more than wanted")
    sides = {"train": train, "test": test}
    return Assembly(
        {
            side: [{k: v for k, v in row.items() if k != "block"} | {"split": side} for row in some]
            for side, some in sides.items()
            if some
        },
        dropped,
    )


def _count(rows: Sequence[dict], reason: str) -> Counter[tuple[str, str]]:
    return Counter((row["family"], reason) for row in rows)


def _drop_duplicates(rows: list[dict]) -> list[dict]:
    """The first of those that have the same query or nearly the same text."""
    firsts = list({row["query"]: row for row in reversed(rows)}.values())[::-1]
    doubles: set[int] = set()
    for one, other in find_near_duplicates([row["question"] for row in firsts]):
        if one not in doubles:
            doubles.add(other)
    return [row for place, row in enumerate(firsts) if place not in doubles]


def _drop_benchmarks(rows: list[dict], benchmarks: Sequence[str]) -> list[dict]:
    texts = [row["question"] for row in rows]
    known = {place for path in benchmarks for place in find_contaminated(texts, path)}
    return [row for place, row in enumerate(rows) if place not in known]


def _add_rates(rows: Sequence[dict], rates: Callable) -> list[dict]:
    """Those whose rate is known, with it. ValueError: none is, so nothing is known of the model."""
    found = [row | {"closed_book": rate} for row, rate in zip(rows, rates(rows), strict=True)]
    kept = [row for row in found if row["closed_book"] is not None]
    require(
        bool(kept) or not rows,
        f"the model answered none of {len(rows)} questions: is its server up, and is that its "
        "name? The same command goes on",
    )
    return kept


def _apply_quota(rows: list[dict], quota: int) -> list[dict]:
    used: Counter[str] = Counter()
    kept = []
    for row in rows:
        answer = normalise_answer(row["answer"])
        used[answer] += 1
        if used[answer] <= quota:
            kept.append(row)
    return kept


def _find_dependencies(row: dict, graph: Graph) -> Dependencies:
    named = frozenset(list_constants(from_text(row["query"])))
    facts = frozenset(tuple(one["fact"]) for one in row["evidence"])
    ends = {end for subject, _, value in facts for end in (subject, value)}
    around = find_neighbours(row["answer"], graph)
    return Dependencies(row["answer"], tuple(row["aliases"]), named, named | ends, facts, around)
