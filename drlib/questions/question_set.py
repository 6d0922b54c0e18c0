"""Data sets of questions: drawing in resumable blocks, filtering and a split by graph.

Blocks are pure functions of world, family, number and seed, stored as atomic files; the rest is a
pure function of the blocks. Questions are dropped if they repeat a query or nearly a text, occur in
a benchmark, are answered from memory or exceed an answer's quota. The split is made by answers: a
training question must not touch a test answer, name a neighbour of one, or use a fact of a test
question. Each row lists its facts with the page lines that show them.
"""

import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from drlib.files import read_json_lines, write_atomic, write_json_lines
from drlib.questions.chain_wording import load_overrides
from drlib.questions.checks import find_neighbours, measure_effort
from drlib.questions.escalation import Solver, measure_pass_rates
from drlib.questions.families import (
    DOCUMENT_SCHEMES,
    FAMILIES,
    LOOKUPS,
    choose_families,
    draw_block,
)
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
    walk,
)
from drlib.questions.statements import is_statement, load_statements
from drlib.questions.wording import mentions
from drlib.registry import suggest_name
from drlib.task import Task, normalise_answer
from drlib.validation import require
from drlib.worlds.graph import Fact, Graph, inverse
from drlib.worlds.library import next_part, read_facts

CHOICES = 16


@dataclass(frozen=True)
class Dependencies:
    """The parts of the graph that a question depends on.

    Attributes:
        answer: the answer's title.
        names: its aliases.
        named: titles that the question names.
        titles: `named` and the titles on the path to the answer.
        facts: the facts that lead to the answer.
        around: titles joined with the answer by a fact.
    """

    answer: str
    names: tuple[str, ...]
    named: frozenset[str]
    titles: frozenset[str]
    facts: frozenset[tuple[str, str, str]]
    around: frozenset[str]


@dataclass
class GraphSplit:
    """Indices of the questions on each side; `dropped` maps the other indices to reasons."""

    train: list[int]
    test: list[int]
    dropped: dict[int, str] = field(default_factory=dict)


def split_by_graph(rests: Sequence[Dependencies], share: float, seed: int) -> GraphSplit:
    """Split questions so that about `share` of the kept ones are test questions.

    Each step draws `CHOICES` answers and takes the one that costs the fewest training questions
    per test question; on a dense graph random answers would cost most of them. The result is
    deterministic.

    Raises:
        ValueError: `share` is outside [0, 1).
    """
    if not 0 <= share < 1:
        raise ValueError(f"the test share {share} is outside [0, 1): lower it")
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
        for place in mine:  # it may have been dropped from training for an earlier answer
            lost.pop(place, None)
        for reason, places in index.find_conflicts(chosen).items():
            for place in places - test:
                lost.setdefault(place, reason)
    train = [place for place in range(len(rests)) if place not in test and place not in lost]
    return GraphSplit(train, sorted(test), dict(sorted(lost.items())))


class _Index:
    """Index of shared parts; a group is all questions whose answers share a name, keyed by its
    first title.
    """

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
        """Return reason -> questions that cannot be in training if this group is in test."""
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
        """Return the additional training questions lost per question of the group."""
        costs = set().union(*self.find_conflicts(group).values()) - test - lost.keys()
        return len(costs) / len(self.groups[group]), group


def _group_places(sets, size: int, rests: Sequence[Dependencies]) -> dict[str, set[int]]:
    """Return the connected indices as groups keyed by their first answer."""
    parent = list(range(size))

    def root(place: int) -> int:
        """Return the representative of an index."""
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


_SENTENCE = re.compile(r"(?<=\.) (?=Its? )")  # sentence boundary on pages of sentences


class Quote(NamedTuple):
    """A line that shows a fact.

    Attributes:
        quote: the line.
        address: address of its page.
        chunk: title of its page.
    """

    quote: str
    address: str
    chunk: str


def find_used_facts(query: Query, graph: Graph, wanted: Iterable[str] | None = None) -> set[Fact]:
    """Return the facts that make `wanted` (default: all answers) answers of `query`.

    Facts that an exception, a count or an extreme compares are included.

    Raises:
        TypeError: it is no query.
    """
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
            used = find_used_facts(left, graph, found | excepted)
            return used | find_used_facts(right, graph, excepted)
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
    """Return the fact under the relation's own name instead of its inverse."""
    is_inverse = relation.endswith(" of")
    return (value, inverse(relation), start) if is_inverse else (start, relation, value)


def find_quote(fact: Fact, world) -> Quote | None:
    """Return the page line that shows `fact` (on the subject's page first), or None."""
    subject, relation, value = fact
    if is_statement(relation):
        one = load_statements(world).by_fact.get(fact)
        return Quote(one.sentence, world.page(one.page).url, one.page) if one else None
    for title, name, other in ((subject, relation, value), (value, inverse(relation), subject)):
        if world.find(title) != title:
            continue
        for page in _iter_pages(title, world):
            line = _find_line(page.text, name, other)
            if line:
                return Quote(line, page.url, title)
    return None


def _iter_pages(title: str, world) -> Iterator:
    """Yield the page of `title` and its continuation pages."""
    address: str | None = title
    while address:
        page = world.page(address)
        yield page
        address = next_part(page.text)


def _find_line(text: str, relation: str, value: str) -> str:
    """Return the line with `value` under `relation`, else the sentence that names both, else
    an empty string.
    """
    if value in read_facts(text).get(relation, ()):
        start = f"- {relation}: "
        lines = [line for line in text.split("\n") if line.startswith(start)]
        return lines[-1]  # the block of facts is last on a page
    fitting = (
        said for said in _SENTENCE.split(text) if mentions(said, relation) and mentions(said, value)
    )
    return next(fitting, "")


MAX_SHARE = 0.02  # of the questions with one answer
OVER_AVERAGE = 1.5  # questions of one answer per average number, if there are few answers
SAME_PATTERN = 0.06  # share of the questions with one sequence of relations that come first
BLOCK = 100  # largest number of questions per block
SPARE = 1.3  # questions drawn in the first round per requested question
MIN_NEW_SHARE = 0.1  # share of a block; a family with fewer new questions is exhausted
MAX_DRAWN_RATIO = 8  # drawn questions per requested one until drawing stops
SETTINGS = "settings.json"
RATES = "closed_book.jsonl"
NOT_JUDGED, FROM_MEMORY = "not judged closed book", "answered from memory"


@dataclass(frozen=True)
class DatasetRequest:
    """Settings of a data set; equal settings give equal data.

    Attributes:
        n: number of questions on both sides.
        families: keys of `FAMILIES`; empty: those of `choose_families`.
        hops: largest number of hops.
        test_share: share of test questions.
        max_share: largest share of `n` with one answer, at least one question. None: `MAX_SHARE`,
            or more if documents have too few answers for it (`OVER_AVERAGE`).
        structure: also ask about links and sections of folders.
        plain: ask as a person would (`families.draw_block`).
        benchmarks: files that must not contain a question.
        closed_book: name of the model that answers each question `tries` times without tools; what
            it solves once is dropped. Empty: none.

    Raises:
        ValueError: a setting is invalid or a family unknown.
        FileNotFoundError: a benchmark is missing.
    """

    world: str
    n: int
    families: tuple[str, ...] = ()
    seed: int = 0
    hops: int = 3
    test_share: float = 0.2
    max_share: float | None = None
    structure: bool = False
    plain: bool = False
    benchmarks: tuple[str, ...] = ()
    closed_book: str = ""
    tries: int = 4

    def __post_init__(self) -> None:
        require(self.n >= 1, f"a data set has at least 1 question, not {self.n}")
        for name in ("test_share", "max_share"):
            share = getattr(self, name)
            is_valid = share is None or 0 <= share < 1
            require(is_valid, f"{name} must be at least 0 and below 1, not {share}")
        require(
            self.tries >= 1, f"the closed-book model answers at least once, not {self.tries} times"
        )
        if not self.families:
            object.__setattr__(self, "families", choose_families(self.world))
        least = 1 if {*self.families} <= {*LOOKUPS} else 2
        require(self.hops >= least, f"hops must be {least} or more, not {self.hops}")
        for name in self.families:
            require(name in FAMILIES, f"unknown family {name!r}: {suggest_name(name, FAMILIES)}")
        for path in self.benchmarks:
            if not Path(path).is_file():
                raise FileNotFoundError(f"no benchmark file {path}")

    @property
    def block(self) -> int:
        """Return the number of questions per block."""
        return max(1, min(BLOCK, round(SPARE * self.n / len(self.families))))

    def quota(self, answers: int) -> int:
        """Return the largest number of questions with one of `answers` different answers."""
        if self.max_share is not None:
            return max(1, int(self.max_share * self.n))
        is_scaled = self.world.startswith(DOCUMENT_SCHEMES) and answers < self.n
        average = math.ceil(OVER_AVERAGE * self.n / max(1, answers))
        return max(1, int(MAX_SHARE * self.n), average if is_scaled else 1)


class Assembly(NamedTuple):
    """Rows of a data set.

    Attributes:
        rows: split -> rows.
        dropped: (family, reason) -> count.
    """

    rows: dict[str, list[dict]]
    dropped: Counter[tuple[str, str]]

    @property
    def size(self) -> int:
        """Return the number of rows."""
        return sum(map(len, self.rows.values()))


class DatasetResult(NamedTuple):
    """A drawn data set; `notes` maps a family to why it gave fewer questions than requested."""

    assembly: Assembly
    notes: dict[str, str]


def draw_dataset(
    wish: DatasetRequest,
    world,
    folder: Path,
    tell: Callable[[str], object],
    closed_book: Solver | None = None,
) -> DatasetResult:
    """Draw the questions of a request, or as many as `world` has.

    Args:
        wish: the request.
        world: the world to ask about.
        folder: stores blocks and rates, and lets an interrupted run resume.
        tell: receives a progress line after each block and round.
        closed_book: solver of the model that the request names.

    Raises:
        ValueError: the folder belongs to another data set, or only one of the request and the call
            names a closed-book model.
    """
    require(
        bool(wish.closed_book) == (closed_book is not None),
        "the request and the call must both name a closed-book model, or neither",
    )
    _claim_folder(folder, wish, world)

    def rates(rows: Sequence[dict]) -> list[float | None]:
        """Return the closed-book pass rates of rows."""
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
        # more questions may split worse: keep the largest assembly
        asked = rates if wish.closed_book else None
        made = assemble(pieces, wish, find_graph(wish, world), asked)
        assembly = max(made, assembly, key=lambda one: one.size)
        tell(f"{assembly.size} of {wish.n} questions are in the data set")
        live = [family for family in live if _is_productive(pieces[family], number, wish)]
        number += 1
    return DatasetResult(assembly, notes)


def _claim_folder(folder: Path, wish: DatasetRequest, world) -> None:
    """Store the settings in `folder` and delete partial files.

    Raises:
        ValueError: the folder belongs to another data set.
    """
    for path in folder.rglob(".*.partial"):
        if path.is_file():
            path.unlink()
    words = load_overrides(world)._asdict()
    own = (
        asdict(wish)
        | {"world_version": world.version}
        | ({"words": words} if any(words.values()) else {})
    )
    own = json.loads(json.dumps(own))
    path = folder / SETTINGS
    if not path.exists():
        write_atomic(path, json.dumps(own, indent=1, ensure_ascii=False) + "\n")
        return
    held = json.loads(path.read_text(encoding="utf-8"))
    other = [name for name in own if own[name] != held.get(name)]
    if other:
        changes = ", ".join(f"{name} was {held.get(name)!r} and is {own[name]!r}" for name in other)
        raise ValueError(f"{folder} belongs to another data set ({changes}): choose another folder")


def _count_drawn(pieces: dict[str, list[dict]]) -> int:
    """Return the number of drawn rows."""
    return sum(map(len, pieces.values()))


def _is_productive(rows: Sequence[dict], number: int, wish: DatasetRequest) -> bool:
    """Return True if the last block of a family had enough new queries."""
    before = {row["query"] for row in rows if row["block"] < number}
    last = {row["query"] for row in rows if row["block"] == number}
    return len(last - before) >= MIN_NEW_SHARE * wish.block


# ------------------------------------------------------------------------------------- pieces


def _load_or_draw_piece(
    family: str, number: int, wish: DatasetRequest, world, folder: Path
) -> tuple[list[dict], str]:
    """Return the rows of a block and its note; read its file if it exists."""
    path = folder / "pieces" / f"{family}-{number:04}.jsonl"
    if not path.exists():
        block = draw_block(
            family, world, wish.block, wish.seed, number, wish.hops, wish.structure, wish.plain
        )
        graph = find_graph(wish, world)
        rows = [
            _make_row(task, wording, family, number, graph, evidence) | {"evidence": evidence}
            for task, wording in block.questions
            if (evidence := _find_evidence(task, world, graph))
        ]
        unshown = len(block.questions) - len(rows)
        notes = [f"{unshown} questions rest on a fact that no page shows"] if unshown else []
        write_json_lines(path, [{"note": "; ".join([*notes, *filter(None, [block.note])])}, *rows])
    head, *rows = read_json_lines(path)
    return rows, head["note"]


def find_graph(wish: DatasetRequest, world) -> Graph:
    """Return the graph of the questions: with the statements of prose if they are asked about."""
    return load_statements(world).graph if "prose" in wish.families else world.graph


def _find_evidence(task: Task, world, graph: Graph) -> list[dict]:
    """Return each used fact with its quote; empty if a fact has no quote."""
    facts = sorted(find_used_facts(from_text(task.query), graph))
    quotes = [find_quote(fact, world) for fact in facts]
    if None in quotes:
        return []
    return [one._asdict() | {"fact": [*fact]} for fact, one in zip(facts, quotes, strict=True)]


def _make_row(
    task: Task, wording: str, family: str, number: int, graph: Graph, evidence: list[dict]
) -> dict:
    """Return the row of a task."""
    pages: float = len({quote["chunk"] for quote in evidence})
    if family not in LOOKUPS:
        pages = measure_effort(from_text(task.query), graph)
    return {
        "id": task.id,
        "question": task.question,
        "answer": task.answer,
        "page": task.page,
        "aliases": [*task.aliases],
        "query": task.query,
        "difficulty": {
            "look_ups": task.hops,
            "conditions": task.conditions,
            "pages": pages,
        },
        "family": family,
        "wording": wording,
        "answer_type": task.answer_type,
        "world": task.world,
        "block": number,
    }


def row_to_task(row: dict) -> Task:
    """Return the task of a row."""
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
        answer_type=row["answer_type"],
        page=row["page"],
    )
    return replace(task, closed_book=row.get("closed_book"))


# ----------------------------------------------------------------------------------- assembly


def assemble(
    pieces: dict[str, list[dict]],
    wish: DatasetRequest,
    graph: Graph,
    rates: Callable[[Sequence[dict]], list[float | None]] | None = None,
) -> Assembly:
    """Filter and split the rows of all families.

    The families take turns, so that duplicates are dropped from all of them alike.

    Args:
        pieces: family -> rows.
        wish: the request.
        graph: the facts of the world.
        rates: returns the closed-book rate of each row, None if it could not be judged; called
            after duplicates and benchmark questions are dropped.
    """
    turns = zip_longest(*pieces.values())
    rows = [row for row in chain.from_iterable(turns) if row is not None]
    dropped: Counter[tuple[str, str]] = Counter()
    for reason, keep in (
        ("asked before", _drop_duplicates),
        ("in a benchmark", lambda some: _drop_benchmarks(some, wish.benchmarks)),
        (NOT_JUDGED, lambda some: _add_rates(some, rates) if rates else some),
        (FROM_MEMORY, lambda some: [row for row in some if not row.get("closed_book")]),
        ("its answer has its share", lambda some: _apply_quota(some, wish)),
    ):
        kept = keep(rows)
        dropped += _count(rows, reason)
        dropped -= _count(kept, reason)
        rows = kept
    rows = put_repetition_last(rows, wish.n)
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
    """Count the rows by family."""
    return Counter((row["family"], reason) for row in rows)


def _drop_duplicates(rows: list[dict]) -> list[dict]:
    """Keep the first of the rows with the same query or nearly the same text."""
    firsts = list({row["query"]: row for row in reversed(rows)}.values())[::-1]
    doubles: set[int] = set()
    for one, other in find_near_duplicates([row["question"] for row in firsts]):
        if one not in doubles:
            doubles.add(other)
    return [row for place, row in enumerate(firsts) if place not in doubles]


def _drop_benchmarks(rows: list[dict], benchmarks: Sequence[str]) -> list[dict]:
    """Drop the rows that occur in a benchmark."""
    texts = [row["question"] for row in rows]
    known = {place for path in benchmarks for place in find_contaminated(texts, path)}
    return [row for place, row in enumerate(rows) if place not in known]


def _add_rates(rows: Sequence[dict], rates: Callable) -> list[dict]:
    """Return the rows that could be judged, with their rates.

    Raises:
        ValueError: no row could be judged.
    """
    found = [row | {"closed_book": rate} for row, rate in zip(rows, rates(rows), strict=True)]
    kept = [row for row in found if row["closed_book"] is not None]
    require(
        bool(kept) or not rows,
        f"the model answered none of {len(rows)} questions: is its server up, and is that its "
        "name? Run the same command again to resume",
    )
    return kept


def put_repetition_last(rows: list[dict], n: int) -> list[dict]:
    """Return the rows with those that repeat a pattern or a fact of earlier ones at the end.

    A pattern is a sequence of relations. The families that ask about shared facts are not sorted.
    """
    limit = max(2, math.ceil(SAME_PATTERN * n))
    patterns: Counter[tuple[str, ...]] = Counter()
    facts: Counter[tuple[str, ...]] = Counter()
    first, last = [], []
    for row in rows:
        if row["family"] not in LOOKUPS:
            first.append(row)
            continue
        query = from_text(row["query"])
        pattern = tuple(part.relation for part in walk(query) if isinstance(part, Proj))
        used = [(one["quote"], one["chunk"]) for one in row["evidence"]]
        is_repeated = patterns[pattern] >= limit or all(facts[fact] for fact in used)
        (last if is_repeated else first).append(row)
        if not is_repeated:
            patterns[pattern] += 1
            facts.update(used)
    return first + last


def _apply_quota(rows: list[dict], wish: DatasetRequest) -> list[dict]:
    """Drop the rows whose answer has reached its quota."""
    quota = wish.quota(len({normalise_answer(row["answer"]) for row in rows}))
    used: Counter[str] = Counter()
    kept = []
    for row in rows:
        answer = normalise_answer(row["answer"])
        used[answer] += 1
        if used[answer] <= quota:
            kept.append(row)
    return kept


def _find_dependencies(row: dict, graph: Graph) -> Dependencies:
    """Return the dependencies of a row."""
    named = frozenset(list_constants(from_text(row["query"])))
    facts = frozenset(tuple(one["fact"]) for one in row["evidence"])
    ends = {end for subject, _, value in facts for end in (subject, value)}
    target = row["page"] or row["answer"]
    around = find_neighbours(target, graph)
    return Dependencies(target, tuple(row["aliases"]), named, named | ends, facts, around)
