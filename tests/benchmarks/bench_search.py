"""Search: how many queries a second, how long the slowest take, and what is found; a script.

For each world, one thread and `--queries` different queries (seeded): half are titles of pages,
half are `WORDS` consecutive words of a page's text, as somebody asks who remembers a sentence. The
world is loaded, from no index, before the clock starts, but has not searched: `first` is the first
pass over all queries, `again` the second. CPU seconds are of this thread; wall times depend on what
else the machine does (`loop_s`: CPU time of a fixed loop, before and after).

What is found is compared with `exact`, a BM25 over every page that has any of the words, which
SQLite makes one page after the other: `overlap_top5` is the share of its five best that the search
shows too, and `digest` names all that was found, for comparing two versions of the search.

Run: python -m tests.benchmarks.bench_search [--worlds cldr pydocs] [--queries 2000] [--k 10]
"""

import argparse
import hashlib
import json
import random
import resource
import time
from statistics import mean, quantiles

from drlib.worlds import load_world
from drlib.worlds.library import Library
from drlib.worlds.reading import clean
from drlib.worlds.terms import search_terms
from tests.benchmarks.bench_questions import fixed_loop

WORDS = (3, 8)  # of a phrase, at least and at most
TOP = 5


def queries_of(world: Library, n: int, seed: str) -> list[tuple[str, str, str]]:
    """(kind, query, title of the page that it is from), in a random order."""
    rng = random.Random(seed)
    titles = [title for (title,) in world.store.rows("SELECT title FROM documents ORDER BY 1")]
    found = [("title", title, title) for title in rng.choices(titles, k=n // 2)]
    while len(found) < n:
        title = rng.choice(titles)
        words = world.page(title).text.split()
        length = min(rng.randint(*WORDS), len(words))
        start = rng.randint(0, len(words) - length)
        found.append(("phrase", " ".join(words[start : start + length]), title))
    rng.shuffle(found)
    return found


def timed(world: Library, queries: list[tuple[str, str, str]], k: int) -> tuple[dict, list]:
    """(figures of one pass over the queries, the titles that each found)."""
    found, spent = [], {"wall": [], "cpu": []}
    for _, query, _ in queries:
        wall, cpu = time.perf_counter(), time.thread_time()
        hits = world.search(query, k)
        spent["cpu"].append(1000 * (time.thread_time() - cpu))
        spent["wall"].append(1000 * (time.perf_counter() - wall))
        found.append([hit.title for hit in hits])
    row = {}
    for clock, ms in spent.items():
        cuts = quantiles(ms, n=100)
        waits = {"p50_ms": cuts[49], "p90_ms": cuts[89], "p99_ms": cuts[98], "max_ms": max(ms)}
        row[clock] = {"a_second": round(1000 / mean(ms))}
        row[clock] |= {name: round(wait, 2) for name, wait in waits.items()}
    return row, found


def exact(world: Library, query: str) -> list[str]:
    """The best pages of the BM25 over all pages that have any word of the query."""
    terms = list(dict.fromkeys(search_terms(clean(query))))[:64]
    if not terms:
        return []
    match = " OR ".join(f'"{term}"' for term in terms)
    sql = "SELECT title FROM pages WHERE pages MATCH ? ORDER BY bm25(pages, 4.0, 1.0, 1.0), title"
    return [title for (title,) in world.store.rows(f"{sql} LIMIT {TOP}", match)]


def quality(world: Library, queries: list, found: list[list[str]]) -> dict:
    """Shares of the queries whose page was found, and how much of the exact ranking."""
    row = {}
    for kind, deep in (("title", 1), ("phrase", 1), ("phrase", TOP)):
        some = [(t, shown) for (of, _, t), shown in zip(queries, found) if of == kind]
        share = mean(title in shown[:deep] for title, shown in some)
        row[f"{kind}_{'first' if deep == 1 else f'top{deep}'}"] = round(share, 4)
    overlaps = []
    for (_, query, _), shown in zip(queries, found):
        best = exact(world, query)
        if best:
            overlaps.append(len(set(best) & set(shown)) / len(best))
    digest = hashlib.sha256(json.dumps(found).encode()).hexdigest()[:12]
    return row | {f"overlap_top{TOP}": round(mean(overlaps), 4), "digest": digest}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=["cldr", "pydocs"])
    parser.add_argument("--queries", type=int, default=2000)
    parser.add_argument("--k", type=int, default=10, help="pages a query")
    parser.add_argument("--engine", default="fts5")
    parser.add_argument("--seed", default="search-0")
    args = parser.parse_args()
    rows = []
    for name in args.worlds:
        world = load_world(name, engine=args.engine)
        queries = queries_of(world, args.queries, args.seed)
        row = {"world": name, "version": world.version, "pages": len(world)}
        row |= {"engine": args.engine, "queries": len(queries), "k": args.k}
        loop_before = fixed_loop()
        row["first"], found = timed(world, queries, args.k)
        row["again"], again = timed(world, queries, args.k)
        assert again == found
        row |= {"loop_s": [loop_before, fixed_loop()]} | quality(world, queries, found)
        row["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        rows.append(row)
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
