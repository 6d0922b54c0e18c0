"""Long queries: the first 64 terms, as before, against content words with their counts.

`halves`: the documents are the first halves of the descriptions of the installed packages, and a
query is a run of words from a second half; its document is the first half of the same description.
This data was not used to choose the rule. `tau2`: recall of `drlib evaluate retrieval` with the
rule before. `questions`: share of first hits that the rule changes, and how often the page with
the first fact of a question is the first hit or among five, on the folders of tests/first_hour.

Run: python -m tests.benchmarks.bench_long_queries [--out FILE]
"""

import argparse
import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from drlib.demonstrations.document_teacher import draw_document_questions
from drlib.evaluation.benchmark_wheels import find_source
from drlib.evaluation.benchmarks import load_benchmark, write_corpus
from drlib.evaluation.retrieval import bootstrap_mean, measure_recall, rank_files, to_rows
from drlib.questions import synthesize_questions
from drlib.questions.chains import chain_questions
from drlib.worlds import Library, load_world, terms

SIZES = (16, 32, 64, 128, 256, 512)  # words of a query
LENGTHS = (3_000, 40_000)  # characters of a description
FOLDERS = Path(__file__).parents[1] / "first_hour" / "folders"


@contextmanager
def rule_before() -> Iterator[None]:
    """Every query is a question of at most 64 terms."""
    now = terms.LONG_QUERY, terms.MAX_TERMS
    terms.LONG_QUERY, terms.MAX_TERMS = 10**9, 64
    try:
        yield
    finally:
        terms.LONG_QUERY, terms.MAX_TERMS = now


def read_descriptions() -> dict[str, str]:
    found = {}
    for package in metadata.distributions():
        text = package.metadata.get_payload() or package.metadata.get("Description") or ""
        if isinstance(text, str) and LENGTHS[0] < len(text) < LENGTHS[1]:
            found[package.name.lower()] = text
    return dict(sorted(found.items()))


def find_places(world: Library, files: dict[str, str], queries: list) -> list[int]:
    """Return the position of the right file among the first five, else 5."""
    places = []
    for query, name in queries:
        best = rank_files(world, files, query, 5)
        places.append(best.index(f"{name}.md") if f"{name}.md" in best else 5)
    return places


def count_hits(label: str, places: list[int]) -> dict[str, float]:
    shares = {1: places.count(0) / len(places), 5: sum(place < 5 for place in places) / len(places)}
    return {f"{label} hit@{k}": round(share, 3) for k, share in shares.items()}


def measure_halves(folder: Path) -> list[dict]:
    second = {}
    for name, text in read_descriptions().items():
        cut = text.find("\n", len(text) // 2)
        (folder / f"{name}.md").write_text(text[:cut], encoding="utf-8")
        second[name] = text[cut:].split()
    world = load_world(f"folder:{folder}")
    files = dict(world.store.rows("SELECT title, source FROM documents"))
    rows = []
    for size in SIZES:
        rng = random.Random(size)
        queries = [
            (" ".join(words[(start := rng.randint(0, len(words) - size)) : start + size]), name)
            for name, words in second.items()
            for _ in range(2)
            if len(words) >= size
        ]
        row = {"words": size, "queries": len(queries), "documents": len(second)}
        with rule_before():
            row |= count_hits("before", find_places(world, files, queries))
        for engine in ("fts5", "hybrid"):
            world.engine = engine
            row |= count_hits(engine, find_places(world, files, queries))
        world.engine = "fts5"
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def measure_tau2(folder: Path) -> dict:
    items = load_benchmark("tau2_banking", find_source("tau2_banking"))
    write_corpus("tau2_banking", [find_source("tau2_banking", 1)], folder / "pages")
    (now,) = measure_recall(items, folder / "pages", ["fts5"])
    with rule_before():
        (then,) = measure_recall(items, folder / "pages", ["fts5"])
    (row,) = to_rows([then])
    gain = now.recalls_TK - then.recalls_TK
    return {
        "before recall@10": row["recall@10"],
        "before recall@50": row["recall@50"],
        "gain@10": bootstrap_mean(gain[:, 0]),
        "gain@50": bootstrap_mean(gain[:, 1]),
    }


def measure_questions() -> list[dict]:
    worlds = {name: load_world(name) for name in ("tour", "cldr", "pydocs")}
    asked = {"tour": [task.question for task in chain_questions(worlds["tour"], 500, 0)]}
    for name in ("cldr", "pydocs"):
        asked[name] = [task.question for task in synthesize_questions(worlds[name], 500, 0)]
    rows = []
    for name, questions in asked.items():
        rows.append({"world": name, **compare_rules(worlds[name], questions)})
    for folder in sorted(FOLDERS.iterdir()):
        world, drawn = draw_document_questions(f"folder:{folder}", 200, 0)
        row = {"world": folder.name, **compare_rules(world, [d.task.question for d in drawn])}
        for engine in ("fts5", "hybrid"):
            world.engine = engine
            places = []
            for one in drawn:
                address = one.quotes[0][1].split("?")[0]
                urls = [hit.url for hit in world.search(one.task.question, 5)]
                places.append(urls.index(address) if address in urls else 5)
            row |= count_hits(engine, places)
        rows.append(row)
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def compare_rules(world, questions: list[str]) -> dict:
    def first_hits() -> list[list[str]]:
        return [[hit.title for hit in world.search(question, 10)] for question in questions]

    with rule_before():
        before = first_hits()
    changed = sum(a != b for a, b in zip(before, first_hits()))
    longest = max(len(set(terms.search_terms(question))) for question in questions)
    return {"questions": len(questions), "most_terms": longest, "changed_first_ten": changed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    report: dict = {"command": "python -m tests.benchmarks.bench_long_queries"}
    with tempfile.TemporaryDirectory() as folder:
        report["halves"] = measure_halves(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        report["tau2"] = measure_tau2(Path(folder))
    report["questions"] = measure_questions()
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
