"""Index time, size on disk and query latency of a store by its number of pages.

A page has 180 words: runs of 12 consecutive words of the pydocs world, so that words have realistic
frequencies and neighbours, and a word of its own. Questions are five words from such runs, tasks
300. `first_ms` is the first query, which opens the index; the medians are over `--queries`
different ones, in CPU time (one thread). Each size runs in its own process.

Run: python -m tests.benchmarks.bench_index [--pages 1000 10000 100000] [--out FILE]
"""

import argparse
import json
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from drlib.worlds import load_world
from drlib.worlds.store import Document, Part, Store

PAGE, RUN, SHARD = 180, 12, 1000  # words of a page and of a run, pages of a source
KINDS = {"question": 5, "task": 300}  # words of a query


def read_words() -> list[str]:
    rows = load_world("pydocs").store.rows("SELECT text FROM pages ORDER BY title")
    return [word for (text,) in rows for word in text.split()]


def draw(words: list[str], n: int, rng: random.Random) -> str:
    """Return `n` words in runs of neighbours."""
    found: list[str] = []
    while len(found) < n:
        start = rng.randrange(len(words) - RUN)
        found += words[start : start + RUN]
    return " ".join(found[:n])


def make_pages(words: list[str], shard: int, seed: int) -> Iterator[Document]:
    rng = random.Random(f"{seed}-{shard}")
    for number in range(shard * SHARD, (shard + 1) * SHARD):
        title = f"{draw(words, 3, rng)} {number}"
        yield Document(title, f"{draw(words, PAGE, rng)} unique{number}")


def measure(pages: int, queries: int, seed: int) -> dict:
    words = read_words()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "index")
        start = time.perf_counter(), time.process_time()
        stamps = {f"{shard:06}": "1" for shard in range(pages // SHARD)}
        Store(path).update(stamps, lambda name: Part(make_pages(words, int(name), seed)))
        row = {"pages": pages, "index_s": time.perf_counter() - start[0]}
        row["index_cpu_s"] = time.process_time() - start[1]
        store = Store(path)
        store.update(stamps, lambda name: Part())
        ((size,),) = store.rows("SELECT SUM(LENGTH(CAST(text AS BLOB))) FROM pages")
        row |= {"text_mb": size / 1e6, "index_mb": path.stat().st_size / 1e6}
        rng = random.Random(f"{seed}-queries")
        start = time.process_time()
        store.search(draw(words, 5, rng), 10)
        row["first_ms"] = 1000 * (time.process_time() - start)
        for kind, length in KINDS.items():
            spent = []
            for _ in range(queries):
                query = draw(words, length, rng)
                start = time.process_time()
                store.search(query, 10)
                spent.append(1000 * (time.process_time() - start))
            row |= {f"{kind}_ms": median(spent), f"{kind}_p95_ms": quantiles(spent, n=20)[18]}
        number = rng.randrange(pages)
        (found,) = store.search(f"unique{number}", 1)
        assert found.endswith(f" {number}")
    row["added_memory_mb"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {key: round(value, 2) for key, value in row.items()}


def find_processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pages", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, help="measure one size in this process")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure(args.one, args.queries, args.seed)))
        return
    command = [sys.executable, "-m", "tests.benchmarks.bench_index", f"--queries={args.queries}"]
    rows = []
    for pages in args.pages:
        one = [*command, f"--seed={args.seed}", f"--one={pages}"]
        done = subprocess.run(one, stdout=subprocess.PIPE, check=True, text=True)
        rows.append(json.loads(done.stdout))
        print(json.dumps(rows[-1]), flush=True)
    sizes = " ".join(map(str, args.pages))
    report = {
        "command": f"python -m tests.benchmarks.bench_index --pages {sizes}",
        "processor": find_processor(),
        "threads": 1,
        "seed": args.seed,
        "queries": args.queries,
        "sizes": rows,
    }
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
