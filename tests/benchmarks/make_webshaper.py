"""Express WebShaper's released formalisations as queries and count the results.

The file (Alibaba-NLP/WebAgent, WebShaper/data/webshaper.500.jsonl) is not part of this repository;
give its path. Of each row is counted whether `from_triples` reads it, as a tree or with things that
are chosen (`Exists`: cycles, and what hangs on nothing); whether `to_triples` then writes the same
graph, up to the names of variables; and whether `read_loosely` reads it.

Run: PYTHONPATH=. python tests/benchmarks/make_webshaper.py webshaper.500.jsonl
"""

import argparse
import json
import re
from collections import Counter
from pathlib import Path

import networkx as nx

from drlib.config import ROOT
from drlib.files import iter_json_lines, write_atomic
from drlib.questions.joins import UNNAMED
from drlib.questions.queries import Exists, from_text, to_text, walk
from drlib.questions.webshaper import (
    VARIABLE,
    from_triples,
    read_loosely,
    split_rows,
    to_triples,
)
from drlib.worlds.graph import inverse

OUT = ROOT / "figures" / "reference" / "data" / "webshaper.json"
COMMAND = "PYTHONPATH=. python tests/benchmarks/make_webshaper.py webshaper.500.jsonl"


def single(rows) -> list[tuple[str, str, str]]:
    """Rows of several relations as one row each, without repetitions."""
    found = []
    for head, relation, tail in rows:
        relations, ends = relation.split(" & "), re.split(" & (?=V@|C@)", tail)
        pairs = zip(relations, ends) if len(relations) == len(ends) else [(relation, tail)]
        found += [(head, *pair) for pair in pairs]
    return list(dict.fromkeys(found))


def drawn(rows) -> nx.MultiDiGraph:
    """Rows as a graph: variables without names, relations in one direction."""
    graph = nx.MultiDiGraph()
    for head, relation, tail in single(rows):
        if relation.endswith(" of"):
            head, relation, tail = tail, inverse(relation), head
        for end in (head, tail):
            graph.add_node(end, label=VARIABLE if end.startswith(VARIABLE) else end)
        graph.add_edge(head, tail, label=relation)
    return graph


def is_same(rows, written) -> bool:
    """Return True if both graphs are equal up to variable names."""
    by_label = nx.algorithms.isomorphism.categorical_node_match("label", None)
    by_relations = nx.algorithms.isomorphism.categorical_multiedge_match("label", None)
    return nx.is_isomorphic(drawn(rows), drawn(written), by_label, by_relations)


def kind_of(query) -> str:
    """A tree, or what it chooses."""
    chosen = [part for part in walk(query) if isinstance(part, Exists)]
    if any(part.name != UNNAMED for part in chosen):
        return "cyclic"
    return "with a part that hangs on nothing" if chosen else "tree"


def counted(path: Path) -> dict:
    rows = [row["formalization"] for _, row in iter_json_lines(path)]
    strict, kinds, loose, same = 0, Counter(), 0, 0
    unread = Counter()
    for some in rows:
        try:
            loose += bool(read_loosely(some))
            query = from_triples(some)
        except ValueError as fault:
            unread["rows that are no triples" if "no triple" in str(fault) else str(fault)] += 1
            continue
        assert from_text(to_text(query)) == query
        strict += 1
        kinds[kind_of(query)] += 1
        same += is_same(some, to_triples(query))
    return {
        "command": COMMAND,
        "formalisations": len(rows),
        "rows": sum(map(len, rows)),
        "rows_that_are_no_triples": sum(len(split_rows(some)[1]) for some in rows),
        "from_triples": strict,
        "of_these": dict(kinds.most_common()),
        "written_as_the_same_graph": same,
        "not_by_from_triples": dict(unread.most_common()),
        "read_loosely": loose,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="webshaper.500.jsonl")
    found = counted(parser.parse_args().file)
    text = json.dumps(found, indent=1) + "\n"
    print(text, end="")
    write_atomic(OUT, text)


if __name__ == "__main__":
    main()
