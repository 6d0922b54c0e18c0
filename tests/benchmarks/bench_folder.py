"""Benchmark: seconds to turn a folder of 2,000 real documents into a world.

The documents are package documentation as it lies on a machine: the long descriptions of the
installed packages and all .md, .rst, .txt and .html files of --roots (site-packages first), the
first 2,000 by a hash of their path, between 300 bytes and 1 MB, copied to a temporary folder.

Then, with the index on disk: the first load, a second one (must read nothing), one after a change
of one file (must read that file), 200 searches, and what the graph is like. CPU seconds are of this
process and its children; wall seconds depend on what else the machine does.

Run: python -m tests.benchmarks.bench_folder [--documents 2000] [--roots DIR ...]
"""

import argparse
import hashlib
import json
import random
import resource
import shutil
import site
import tempfile
import time
from collections import Counter
from pathlib import Path

from drlib.questions import synthesize_questions
from drlib.questions.checks import find_faults
from drlib.questions.queries import from_text
from drlib.questions.sql_engine import SqlEngine
from drlib.worlds import load_world

KINDS = (".md", ".rst", ".txt", ".html")
ROOTS = ("/usr/share/doc", "/usr/share/cmake*/Help", "/usr/lib/node_modules", "/usr/share/perl")


def collect(folder, roots, n):
    """Copy `n` documents into `folder`; how many of each type there are."""
    found = []
    for root in roots:
        for path in Path(root).rglob("*"):
            if path.suffix in KINDS and path.is_file() and not path.is_symlink():
                found.append((path, path.relative_to(root).as_posix()))
            elif path.name == "METADATA":
                name = path.parent.name.split("-")[0]
                found.append((path, f"packages/{name}.md"))
    found = [(path, name) for path, name in found if 300 <= path.stat().st_size <= 1_000_000]
    chosen = {}
    for path, name in sorted(found, key=lambda row: hashlib.sha256(row[1].encode()).digest()):
        chosen.setdefault(name.replace("/.", "/dot-"), path)
    for name in list(chosen)[:n]:
        goal = Path(folder, name)
        goal.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(chosen[name], goal)
    return Counter(Path(name).suffix for name in list(chosen)[:n])


def cpu():
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def timed(what, *arguments, **options):
    """(value, {"cpu_s", "wall_s"})."""
    start, used = time.perf_counter(), cpu()
    value = what(*arguments, **options)
    spent = {"cpu_s": cpu() - used, "wall_s": time.perf_counter() - start}
    return value, {key: round(seconds, 3) for key, seconds in spent.items()}


def main():
    options = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    options.add_argument("--documents", type=int, default=2_000)
    options.add_argument("--roots", nargs="*", default=None)
    asked = options.parse_args()
    common = (str(path) for pattern in ROOTS for path in Path("/").glob(pattern[1:]))
    roots = asked.roots or [*site.getsitepackages(), *common]
    with tempfile.TemporaryDirectory() as scratch:
        folder, index = Path(scratch, "documents"), Path(scratch, "index.sqlite")
        folder.mkdir()
        kinds = collect(folder, roots, asked.documents)
        report = {
            "documents": dict(kinds),
            "total": sum(kinds.values()),
            "megabytes": round(
                sum(p.stat().st_size for p in folder.rglob("*.*") if p.is_file()) / 1e6, 1
            ),
        }
        world, report["first_load"] = timed(load_world, f"folder:{folder}", index)
        report["skipped"] = world.changes.skipped
        report["chunks"] = len(world)
        world, report["second_load"] = timed(load_world, f"folder:{folder}", index)
        report["second_load"]["read"] = len(world.changes.added) + len(world.changes.updated)
        changed = min(path for path in folder.rglob("*.md"))
        changed.write_text(changed.read_text() + "\n\nOne more line: zyzzyva.\n")
        world, report["one_changed"] = timed(load_world, f"folder:{folder}", index)
        report["one_changed"]["read"] = world.changes.added + world.changes.updated
        assert "zyzzyva" in world.page(world.search("zyzzyva", 1)[0].title).text
        graph, report["graph_load"] = timed(lambda: world.graph)
        report["facts"] = dict(Counter(fact[1] for fact in graph.facts).most_common(12))
        links = [fact[2] for fact in graph.facts if fact[1] == "link"]
        report["links_to_no_page"] = sum(map(graph.is_value, links))
        rng, titles = random.Random("queries-0"), sorted(graph.nodes)
        words = [" ".join(graph.values(title, "heading") or {title}) for title in titles]
        queries = rng.sample(words, min(200, len(words)))
        hits, report["200_searches"] = timed(lambda: [world.search(query, 5) for query in queries])
        report["200_searches"]["with_hits"] = sum(map(bool, hits))
        tasks, report["500_questions"] = timed(
            synthesize_questions, world, 500, 0, at_least=500, structure=True
        )
        engines = {"sets": None, "sql": SqlEngine(graph)}
        report["500_questions"]["faulty"] = {
            name: sum(bool(find_faults(from_text(task.query), graph, engine)) for task in tasks)
            for name, engine in engines.items()
        }
        report["index_megabytes"] = round(index.stat().st_size / 1e6, 1)
    report["peak_rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
