"""Quality report of a set of questions, measured by execution.

It covers unique answers and minimal conditions (by two engines), leaks, recall@1 and recall@5 of a
search for the question, depth, variety, duplicates, the split, and contamination by benchmarks.
Only answers are computed independently by the engines; comparisons of names and edges share code.
Near duplicates have a Jaccard index of word 8-grams of 0.7 or more; contamination is a shared
13-gram (8-gram for shorter questions), the thresholds used since GPT-3.
"""

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from drlib.files import read_json_lines, write_atomic
from drlib.questions.checks import count_coincidences, find_faults
from drlib.questions.queries import (
    Proj,
    Query,
    canonicalise,
    evaluate_query,
    from_text,
    list_constants,
    list_subqueries,
    measure_depth,
    to_text,
    walk,
)
from drlib.questions.sql_engine import SqlEngine
from drlib.questions.wording import mentions
from drlib.task import Task, normalise_answer
from drlib.worlds.graph import Graph

# The faults of `checks.find_faults`; "wrong answer": the query has other answers; "told": the text
# of the question contains the answer.
QUESTION_FAULTS = (
    "not unique",
    "not minimal",
    "shortcut",
    "leak",
    "near",
    "coincidence",
    "redundant",
    "shallow",
    "wrong answer",
    "told",
)
NEAR = 0.7  # smallest Jaccard index of near duplicates
LONG_NGRAM = 13  # n-gram size for contamination
SHORT_NGRAM = 8  # the same for shorter questions, and for near duplicates
_WORD = re.compile(r"\w+")


def build_quality_report(
    tasks: Sequence[Task],
    world,
    *,
    against: Sequence[Task] = (),
    benchmarks: Iterable[Path] = (),
    searched: int = 200,
    graph: Graph | None = None,
) -> dict:
    """Return the quality report of `tasks`; rates are in [0, 1].

    Args:
        tasks: questions of `world` with queries.
        world: the world of the questions.
        against: the other side of the split; shared answers and queries are counted.
        benchmarks: local files (JSON, JSON lines, CSV or text) that must not contain a question.
        searched: number of questions used as search texts.
        graph: the facts of the queries; None: those of the world.

    Raises:
        ValueError: there is no task, or a task has no query.
        OSError: a benchmark cannot be read.
    """
    if not tasks or not all(task.query for task in tasks):
        raise ValueError(
            "the report needs questions with queries: make them with "
            "synthesize_questions(world, n, seed)"
        )
    graph = graph or world.graph
    queries = [from_text(task.query) for task in tasks]
    forms = [to_text(canonicalise(query)) for query in queries]
    texts = [task.question for task in tasks]
    by_sets = partial(evaluate_query, graph=graph)
    parts = [part for query in queries for part in walk(query) if not isinstance(part, str)]
    return {
        "world": world.name,
        "version": world.version,
        "questions": len(tasks),
        "by_sets": _measure_faults(tasks, queries, graph, None),
        "by_sql": _measure_faults(tasks, queries, graph, SqlEngine(graph)),
        "depth": _count(measure_depth(query) for query in queries),
        "constants": _count(len(list_constants(query)) for query in queries),
        "coincidences": _compute_share(count_coincidences(query, by_sets) > 0 for query in queries),
        "operators": _count(type(part).__name__ for part in parts),
        "shapes": _measure_spread([json.dumps(get_shape(query)) for query in queries]),
        "answers": _measure_spread([task.answer for task in tasks]),
        "words": round(sum(len(split_words(text)) for text in texts) / len(texts), 1),
        "openings": _measure_spread([" ".join(split_words(text)[:3]) for text in texts]),
        "search_finds": measure_search_rates(tasks[:searched], world),
        "duplicates": {
            "queries": len(forms) - len(set(forms)),
            "texts": len(find_near_duplicates(texts)),
        },
        "split": count_split_overlap(tasks, against) if against else None,
        "contaminated": {str(path): len(find_contaminated(texts, path)) for path in benchmarks},
    }


def is_chain(query: Query) -> bool:
    """Return True if `query` follows relations from a single title."""
    while isinstance(query, Proj):
        query = query.of
    return isinstance(query, str)


def get_shape(query: Query) -> list | str:
    """Return the query without its names: nested class names, parts sorted."""
    if isinstance(query, str):
        return ""
    return [type(query).__name__, *sorted(map(get_shape, list_subqueries(query)), key=json.dumps)]


def measure_search_rates(tasks: Sequence[Task], world) -> dict[str, float]:
    """Return recall@1 and recall@5 of the answer's page in a search for the question."""
    places = []
    for task in tasks:
        titles = [hit.title for hit in world.search(task.question, 5)]
        places.append(titles.index(task.target) + 1 if task.target in titles else math.inf)
    return {f"@{k}": round(sum(place <= k for place in places) / len(tasks), 4) for k in (1, 5)}


def find_near_duplicates(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return pairs (i < j) of near duplicates; short texts must be equal."""
    grams = [_find_ngrams(text, SHORT_NGRAM) or {text.casefold()} for text in texts]
    holders = defaultdict(list)  # n-gram -> the texts before that have it
    shared: Counter[tuple[int, int]] = Counter()
    for i, some in enumerate(grams):
        for gram in some:
            shared.update((other, i) for other in holders[gram])
            holders[gram].append(i)
    return sorted(
        (i, j)
        for (i, j), both in shared.items()
        if both >= NEAR * (len(grams[i]) + len(grams[j]) - both)
    )


def count_split_overlap(tasks: Sequence[Task], against: Sequence[Task]) -> dict[str, int]:
    """Count the answers (by any name), queries and constants of `tasks` that occur in
    `against`; shared constants are allowed.
    """
    taken = {name for task in against for name in _normalise_names(task)}
    shared = {min(_normalise_names(task)) for task in tasks if taken & _normalise_names(task)}
    here, there = ([from_text(task.query) for task in side] for side in (tasks, against))
    return {
        "answers": len(shared),
        "queries": len(_list_forms(here) & _list_forms(there)),
        "constants": len(_list_constants(here) & _list_constants(there)),
    }


def _normalise_names(task: Task) -> set[str]:
    """Return the normalised answer and aliases of a task."""
    return {normalise_answer(name) for name in (task.answer, *task.aliases)}


def _list_forms(queries: Iterable[Query]) -> set[str]:
    """Return the canonical texts of the queries."""
    return {to_text(canonicalise(query)) for query in queries}


def _list_constants(queries: Iterable[Query]) -> set[str]:
    """Return the constants of the queries."""
    return {name for query in queries for name in list_constants(query)}


def find_contaminated(texts: Sequence[str], path: str | Path) -> list[int]:
    """Return the indices of the texts that share an n-gram with the benchmark in `path`."""
    sizes = [_choose_ngram_size(len(split_words(text))) for text in texts]
    known: dict[int, set[str]] = {n: set() for n in sizes}
    for line in _read_texts(Path(path)):
        for n, grams in known.items():
            grams |= _find_ngrams(line, n)
    return [i for i, (text, n) in enumerate(zip(texts, sizes)) if _find_ngrams(text, n) & known[n]]


def _choose_ngram_size(length: int) -> int:
    """Return the n-gram size for a text of `length` words."""
    return LONG_NGRAM if length >= LONG_NGRAM else max(1, min(length, SHORT_NGRAM))


def save_report(report: dict, path: str | Path) -> Path:
    """Write the report as JSON, atomically."""
    return write_atomic(path, json.dumps(report, indent=1, ensure_ascii=False))


def split_words(text: str) -> list[str]:
    """Return the case-folded words of `text`."""
    return _WORD.findall(text.casefold())


def _find_ngrams(text: str, n: int) -> set[str]:
    """Return the word n-grams of `text`."""
    found = split_words(text)
    return {" ".join(found[i : i + n]) for i in range(len(found) - n + 1)}


def _read_texts(path: Path) -> Iterable[str]:
    """Return the texts of a benchmark file: every string of its JSON, else its lines."""
    if path.suffix == ".jsonl":
        return [found for row in read_json_lines(path) for found in _iter_strings(row)]
    text = path.read_text(encoding="utf-8-sig")
    return [*_iter_strings(json.loads(text))] if path.suffix == ".json" else text.splitlines()


def _iter_strings(value) -> Iterable[str]:
    """Yield the strings of a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _iter_strings(inside)


def _measure_faults(
    tasks: Sequence[Task], queries: Sequence[Query], graph: Graph, engine: SqlEngine | None
) -> dict[str, float]:
    """Return the share of tasks with each fault; `engine` None uses set algebra."""
    found: Counter[str] = Counter()
    for query in queries:
        if is_chain(query):  # of one hop or more, so only its answer must be unique
            answers = engine.answers(query) if engine else evaluate_query(query, graph)
            found["not unique"] += len(answers) != 1
        else:
            found.update(find_faults(query, graph, engine))
    for task, query in zip(tasks, queries, strict=True):
        answers = engine.answers(query) if engine else evaluate_query(query, graph)
        found["wrong answer"] += answers != {task.target}
        found["told"] += any(mentions(task.question, name) for name in (task.answer, *task.aliases))
    return {name: round(found[name] / len(tasks), 6) for name in QUESTION_FAULTS}


def _count(values: Iterable) -> dict[str, int]:
    """Count the values."""
    return {str(value): n for value, n in sorted(Counter(values).items())}


def _compute_share(holds: Iterable[bool]) -> float:
    """Return the share of true values."""
    found = [*holds]
    return round(sum(found) / len(found), 4)


def _measure_spread(values: Sequence[str]) -> dict[str, float]:
    """Return the number of distinct values, their entropy in bits and the largest share."""
    counts = sorted(Counter(values).values(), reverse=True)
    shares = [n / len(values) for n in counts]
    return {
        "different": len(counts),
        "bits": round(-sum(p * math.log2(p) for p in shares), 3),
        "largest_share": round(shares[0], 4),
    }
