"""Recall of the documents that a task requires, for each search engine of a folder world.

The query is the text of the task. Units are files: of several pages of a file, the best one counts.
`REFERENCE` is bm25s over complete files with its own tokenizer and English stop words, the set-up
that most retrieval papers compare with.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drlib.evaluation.benchmarks import BenchmarkItem
from drlib.intervals import Interval, resample
from drlib.validation import require
from drlib.worlds import ENGINES, Library
from drlib.worlds.folder import load

REFERENCE = "bm25s-files"
RETRIEVERS = (*ENGINES, REFERENCE)
KS = (10, 50)  # files that are looked at
REQUIRED = ("required_documents", "evidence_docs")  # fields of `BenchmarkItem.meta`
SEED = 0  # of the bootstrap
Ranker = Callable[[str, int], list[str]]  # (query, n) -> names of the n best files


@dataclass(frozen=True)
class EngineRecall:
    """Recall of one engine.

    Attributes:
        recalls_TK: share of the required documents among the first k files, per task and k of `KS`.
        first_s: seconds of the first query, in which the engine may load or embed all pages.
        query_s: median seconds of the others.
    """

    engine: str
    recalls_TK: np.ndarray
    first_s: float
    query_s: float


def measure_recall(
    items: Sequence[BenchmarkItem],
    folder: str | Path,
    engines: Sequence[str],
    progress: Callable[[], Any] = lambda: None,
) -> list[EngineRecall]:
    """Measure the recall of the required documents.

    Args:
        items: tasks; `meta` names the required documents, which are NAME.md in `folder`.
        folder: files of the documents (`write_corpus`).
        engines: names in `RETRIEVERS`.
        progress: called after each query.

    Raises:
        ValueError: an unknown engine, a task without required documents, or one that is no file.
    """
    required = [{f"{name}.md" for name in _find_required(item)} for item in items]
    for item, names in zip(items, required):
        missing = sorted(name for name in names if not (Path(folder) / name).is_file())
        require(not missing, f"task {item.id}: {', '.join(missing[:3])} is not in {folder}")
    found = []
    for engine in engines:
        rank, seconds, recalls = _make_ranker(engine, folder), [], []
        for item, names in zip(items, required):
            start = time.perf_counter()
            files = rank(item.question, max(KS))
            seconds.append(time.perf_counter() - start)
            recalls.append([len(names.intersection(files[:k])) / len(names) for k in KS])
            progress()
        query_s = statistics.median(seconds[1:] or seconds)
        found.append(EngineRecall(engine, np.array(recalls), seconds[0], query_s))
    return found


def _find_required(item: BenchmarkItem) -> list[str]:
    """Return the names of the documents that a task requires."""
    found = next((item.meta[name] for name in REQUIRED if item.meta.get(name)), None)
    if not found:
        raise ValueError(f"task {item.id} names no required documents: recall is undefined")
    return list(found)


def _make_ranker(engine: str, folder: str | Path) -> Ranker:
    if engine == REFERENCE:
        return _rank_with_bm25s(Path(folder))
    require(engine in ENGINES, f"unknown engine {engine!r}: use {', '.join(RETRIEVERS)}")
    world = load(str(folder))
    world.engine = engine
    files = dict(world.store.rows("SELECT title, source FROM documents"))
    return lambda query, n: rank_files(world, files, query, n)


def rank_files(world: Library, files: dict[str, str], query: str, n: int) -> list[str]:
    """Return the `n` best files of a world, or all with a hit.

    Args:
        files: title of a page -> its file.
    """
    depth = 4 * n
    while True:
        hits = world.search(query, depth)
        found = list(dict.fromkeys(files[hit.title] for hit in hits))
        if len(found) >= n or len(hits) < depth:
            return found[:n]
        depth *= 2


def _rank_with_bm25s(folder: Path) -> Ranker:
    try:
        import bm25s
    except ImportError as error:
        raise ImportError('bm25s is missing: pip install "drlib[search]"') from error
    names = sorted(path.name for path in folder.iterdir())
    index = bm25s.BM25()
    texts = [(folder / name).read_text(encoding="utf-8") for name in names]
    options = {"stopwords": "en", "show_progress": False}
    index.index(bm25s.tokenize(texts, **options), show_progress=False)

    def rank(query: str, n: int) -> list[str]:
        tokens = bm25s.tokenize([query], **options)
        found, scores = index.retrieve(tokens, k=min(n, len(names)), show_progress=False)
        return [names[i] for i, score in zip(found[0], scores[0]) if score > 0]

    return rank


def bootstrap_mean(values_T: np.ndarray) -> Interval:
    """Return the mean over tasks with its 95% percentile bootstrap interval."""
    means = resample(values_T[:, None], lambda sums: sums[:, 0] / len(values_T), SEED)
    low, high = np.quantile(means, (0.025, 0.975))
    return float(values_T.mean()), float(low), float(high)


def to_rows(found: Sequence[EngineRecall]) -> list[dict[str, Any]]:
    """Return one record per engine: recall and paired difference to the first engine, [3] each."""
    rows = []
    for one in found:
        row: dict[str, Any] = {"engine": one.engine}
        for number, k in enumerate(KS):
            row[f"recall@{k}"] = bootstrap_mean(one.recalls_TK[:, number])
            difference_T = one.recalls_TK[:, number] - found[0].recalls_TK[:, number]
            row[f"difference@{k}"] = bootstrap_mean(difference_T)
        rows.append(row | {"first_s": round(one.first_s, 3), "query_s": round(one.query_s, 5)})
    return rows


def render_recall(rows: Sequence[dict[str, Any]]) -> str:
    """Return the records of `to_rows` as a Markdown table."""
    first = rows[0]["engine"]
    columns = [f"recall@{k}" for k in KS] + [f"@{k} less {first}'s" for k in KS]
    lines = [
        f"| engine | {' | '.join(columns)} | ms per query |",
        "|---" * (2 + len(columns)) + "|",
    ]
    for row in rows:
        cells = ["{:.3f} [{:.3f}, {:.3f}]".format(*row[f"recall@{k}"]) for k in KS]
        differences = ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*row[f"difference@{k}"]) for k in KS]
        cells += ["" if row is rows[0] else one for one in differences]
        lines.append(f"| {row['engine']} | {' | '.join(cells)} | {1000 * row['query_s']:.1f} |")
    return "\n".join(lines)
