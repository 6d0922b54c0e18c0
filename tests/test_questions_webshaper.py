"""Tests of WebShaper's triples: lossless conversion and the paper's claims."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from query_examples import any_query, small_graph

from drlib.config import ROOT
from drlib.questions.checks import count_constant_edges, find_faults
from drlib.questions.expansion import expand
from drlib.questions.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Or,
    Proj,
    Range,
    Var,
    evaluate_query,
    from_text,
    measure_depth,
    substitute,
    walk,
)
from drlib.questions.question_engine import synthesize_questions
from drlib.questions.webshaper import (
    from_triples,
    read_loosely,
    split_rows,
    to_triples,
)
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world

SMALL = small_graph()
X = Var("X")
RELATIONS = ("river", "river of", "is&was", "C@")
NAMES = st.text("ab &@VC?", min_size=1, max_size=8).filter(
    lambda name: " & C@" not in f"{name} & " and " & V@" not in name
)
UNIONS = st.lists(NAMES, min_size=2, max_size=3).map(lambda names: Or(tuple(names)))


def projections(inside):
    return st.builds(Proj, st.sampled_from(RELATIONS), inside)


def intersections(inside):
    return st.lists(projections(inside), min_size=2, max_size=3).map(lambda p: And(tuple(p)))


QUERIES = st.recursive(
    projections(NAMES | UNIONS),
    lambda inside: projections(inside) | intersections(inside),
    max_leaves=12,
)


def test_triples_match_the_released_format():
    query = And(
        (
            Proj("currency of", "Euro"),
            Proj("language of", And((Proj("language", "Austria"), Proj("script of", "Latin")))),
            Proj("year of", Or(("2004", "2005"))),
        )
    )
    rows = [
        ["?", "currency", "C@Euro"],
        ["?", "language", "V@X1"],
        ["V@X1", "language of", "C@Austria"],
        ["V@X1", "script", "C@Latin"],
        ["?", "year", "C@2004 & C@2005"],
    ]
    assert to_triples(query) == rows
    assert from_triples(json.loads(json.dumps(rows))) == query


@given(QUERIES)
def test_triples_round_trip(query):
    rows = to_triples(query)
    assert split_rows(rows) == (rows, [])
    assert from_triples(rows) == query
    assert to_triples(from_triples(rows)) == rows


def test_rows_may_be_written_in_either_direction_and_any_order():
    query = Proj("river of", Proj("region", "Borg"))
    assert to_triples(query) == [["?", "river", "V@X1"], ["V@X1", "region of", "C@Borg"]]
    other = [["C@Borg", "region", "V@Where"], ["V@Where", "river of", "?"]]
    assert from_triples(other) == query


def test_row_with_paired_relations_is_several_triples():
    rows = [
        ["?", "river & region & seen & said", "C@Rin & V@R & C@Tom & Ann & C@me"],
        ["V@R", "part", "C@East & West"],
    ]
    assert from_triples(rows) == And(
        (
            Proj("river of", "Rin"),
            Proj("region of", Proj("part of", "East & West")),
            Proj("seen of", "Tom & Ann"),
            Proj("said of", "me"),
        )
    )
    one = [["?", "was & is", "C@Rin"]]  # one end: then it is a relation's name
    assert from_triples(one) == Proj("was & is of", "Rin")


def test_nested_intersections_are_flat_and_unions_of_projections_merge():
    a, b, c = (Proj("river of", name) for name in ("Rin", "Sava", "Po"))
    assert from_triples(to_triples(And((And((a, b)), c)))) == And((a, b, c))
    assert from_triples(to_triples(Or((a, b)))) == Proj("river of", Or(("Rin", "Sava")))


@pytest.mark.parametrize(
    "query, name",
    [
        (Diff(Proj("river of", "Rin"), Proj("region of", "Nord")), "Diff"),
        (Range("length", 0, 9), "Range"),
        (Count(Proj("river of", "Rin")), "Count"),
        ("Rin", "Rin"),
        (Proj("a & b", "Rin"), "Proj"),
        (Proj("a", "b & C@c"), "b & C@c"),
        (Or((Proj("river of", "Rin"), Proj("region of", "Nord"))), "Or"),
        (Proj("river of", Or(("Rin", Proj("river", "Alba")))), "Or"),
    ],
)
def test_unsupported_queries_are_rejected(query, name):
    with pytest.raises(ValueError, match=f"cannot express .*{name}"):
        to_triples(query)


@pytest.mark.parametrize(
    "rows, message",
    [
        ([["?", "river", "C@Rin"], ["V@X", "region"]], r"row 1 is no triple: \['V@X', 'region'\]"),
        ([["?", "river", "C@Rin", "1999"]], "row 0 is no triple"),
        ([["?", "river", "Rin"]], "row 0 is no triple"),
        ([["?", 3, "C@Rin"]], "row 0 is no triple"),
        ([["?", "river", "V@X and V@Y"]], "row 0 is no triple"),
        ([], r"no condition names \?"),
        ([["V@X", "river", "C@Rin"]], r"no condition names \?"),
    ],
)
def test_malformed_rows_are_reported(rows, message):
    with pytest.raises(ValueError, match=message):
        from_triples(rows)


@pytest.mark.parametrize(
    "rows, query",
    [
        ([["?", "river", "V@X"]], Proj("river of", Anything())),
        (
            [["?", "river", "C@Rin"], ["C@Rin", "length", "C@57"]],
            Proj("river of", And(("Rin", Proj("length of", "57")))),
        ),
        (
            [["?", "river", "C@Rin"], ["V@X", "region", "C@Nord"]],
            Exists("", Proj("region of", "Nord"), Proj("river of", "Rin")),
        ),
        (
            [["?", "a", "V@X"], ["V@X", "b", "C@B"], ["?", "c", "V@Y"], ["V@X", "d", "V@Y"]],
            Exists(
                "X",
                Proj("b of", "B"),
                And((Proj("a of", Var("X")), Proj("c of", Proj("d", Var("X"))))),
            ),
        ),
        (
            [["?", "a", "?"], ["?", "b", "C@B"]],
            Exists(
                "?",
                Proj("b of", "B"),
                Exists("", And((Var("?"), Proj("a of", Var("?")))), Var("?")),
            ),
        ),
    ],
)
def test_non_tree_rows_round_trip(rows, query):
    """Open variables, described constants, loose parts and cycles."""
    assert from_triples(rows) == query
    written = to_triples(query)
    assert from_triples(written) == query
    relations = [sorted(row[1].removesuffix(" of") for row in some) for some in (written, rows)]
    assert relations[0] == relations[1]


@pytest.mark.parametrize(
    "row, query",
    [
        (["?", "is a town"], Proj("_ is a town of", Anything())),
        (["?", "is a town", ""], Proj("_ is a town of", Anything())),
        (["?", "colour", "deep red"], Proj("colour of", "deep red")),
        (["?", "was near", "the house of V@X"], Proj("_ was near the house of _ of", X)),
        (["C@Rin", "had", "a mouth at ?"], Proj("_ had a mouth at _", "Rin")),
    ],
)
def test_non_triple_rows_become_predicates(row, query):
    rows = [row, ["V@X", "region", "C@Nord"]] if "V@X" in str(row) else [row]
    expected = substitute(query, X, Proj("region of", "Nord"))
    assert read_loosely(rows) == expected
    with pytest.raises(ValueError, match="row 0 is no triple"):
        from_triples(rows)


def test_three_argument_row_becomes_an_entity():
    """["?", "sold", "V@X", "to", "C@Rin"] becomes a sale with three arguments."""
    query = read_loosely([["?", "sold", "V@X", "to", "C@Rin"], ["V@X", "kind", "C@boat"]])
    roles = [f"_ sold _ to _: {at}" for at in (1, 2, 3)]
    sale = And((Proj(f"{roles[1]} of", Proj("kind of", "boat")), Proj(f"{roles[2]} of", "Rin")))
    assert query == Proj(roles[0], sale)


def test_read_loosely_agrees_with_from_triples():
    rows = [["?", "river & region", "C@Rin & V@R"], ["V@R", "part", "C@A & C@B"]]
    assert read_loosely(rows) == from_triples(rows)
    for nothing in ([], [["V@X", "river", "C@Rin"]]):
        with pytest.raises(ValueError, match=r"no condition names \?"):
            read_loosely(nothing)
    with pytest.raises(ValueError, match="has no argument"):
        read_loosely([["?", "river", "C@Rin"], ["the", "weather", "was fine"]])
    with pytest.raises(ValueError, match="has no argument"):
        read_loosely([["?", "river", "C@Rin"], 7])


def test_split_rows_separates_non_triples():
    good = [["?", "river", "C@Rin"], ["V@X", "a & b", "C@c & d"]]
    bad = [
        ["V@X", "r"],
        ["V@X", "r", "C@a", "C@b"],
        ["x"] * 13,
        ["V@X", "r", "plain"],
        [1, 2, 3],
        ["?", "r", "?x"],
        "V@X",
        7,
    ]
    assert split_rows([bad[0], good[0], *bad[1:], good[1]]) == (good, bad)


def test_counts_of_the_released_file_are_consistent():
    counted = json.loads((ROOT / "figures/reference/data/webshaper.json").read_text())
    strict = counted["from_triples"]
    assert counted["written_as_the_same_graph"] == strict == sum(counted["of_these"].values())


RELATION = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)))
SETS = st.lists(st.sampled_from("012345"), min_size=1, max_size=4).map(tuple)


@given(RELATION, st.lists(SETS, min_size=2, max_size=3))
def test_proposition_1_projection_of_a_union(pairs, sets):
    graph = Graph([Node(str(i), "n") for i in range(6)], [(str(a), "r", str(b)) for a, b in pairs])
    apart = Or(tuple(Proj("r", Or(some)) for some in sets))
    merged = Proj("r", Or(tuple(name for some in sets for name in some)))
    assert evaluate_query(apart, graph) == evaluate_query(merged, graph)
    assert evaluate_query(merged, graph) == {str(b) for a, b in pairs if str(a) in merged.of.parts}


def test_conversion_keeps_the_answers():
    rng, written = random.Random("merge"), 0
    for _ in range(6000):
        query = any_query(SMALL, rng)
        try:
            rows = to_triples(query)
        except ValueError:
            continue
        written += 1
        assert evaluate_query(from_triples(rows), SMALL) == evaluate_query(query, SMALL)
    assert written > 100


# ---------------------------------------------------- layer-wise expansion against its baselines


@pytest.fixture(scope="module")
def graph():
    return shared_world("cldr").graph


@pytest.fixture(scope="module")
def seeds(graph):
    tasks = synthesize_questions(shared_world("cldr"), 120, 5, depth=2)
    queries = [from_text(task.query) for task in tasks]
    plain = Proj | And | str
    return [q for q in queries if all(isinstance(part, plain) for part in walk(q))][:60]


def weak_rows(rows):
    """Return the numbers of (redundant, shortcut) rows."""
    named = [[end.startswith("C@") for end in row[::2]] for row in rows]
    return (
        [row for row, ends in zip(rows, named) if all(ends)],
        [row for row, ends in zip(rows, named) if any(ends) and "?" in row],
    )


def list_expansions(query, graph, order, seed, n=3):
    """Return up to `n` successive expansions; stop after 60 failed draws."""
    rng, versions = random.Random(f"{order}-{seed}"), [query]
    for _ in range(n):
        draws = (expand(versions[-1], graph, rng, order, 1) for _ in range(60))
        keep = (
            q for q in draws if q is not None and (order != "layer" or not find_faults(q, graph))
        )
        if (new := next(keep, None)) is None:
            break
        versions.append(new)
    return versions


def test_layer_wise_expansion_deepens_and_keeps_the_answer(graph, seeds):
    lengths = []
    for i, seed in enumerate(seeds * 3):  # three layers more are rare: one in a hundred
        versions = list_expansions(seed, graph, "layer", i)
        lengths.append(len(versions))
        (answer,) = evaluate_query(seed, graph)
        for before, after in zip(versions, versions[1:]):
            assert evaluate_query(after, graph) == {answer}
            assert measure_depth(after) > measure_depth(before)
            redundant, shortcuts = weak_rows(to_triples(after))
            assert redundant == [] and shortcuts == [] and count_constant_edges(after, graph) == 0
    assert max(lengths) == 4 and sum(n > 1 for n in lengths) > len(lengths) / 4


@pytest.mark.parametrize("order", ["random", "sequential"])
def test_baselines_leave_redundancy_and_shortcuts(graph, order):
    """Figure 4 of the paper: constants adjacent to the target or to each other."""
    weak = 0
    for i, town in enumerate(("Norway", "Switzerland", "Kenya", "Peru", "Japan", "Chad")):
        some = sorted(graph.values(town, "currency")) + sorted(graph.values(town, "time zone"))
        query = And(
            tuple(
                Proj("currency of" if j == 0 else "time zone of", value)
                for j, value in enumerate(some[:2])
            )
        )
        for versions in list_expansions(query, graph, order, i)[1:]:
            flat = [[h, r, t] for h, r, t in iter_rows(versions)]
            redundant, shortcuts = weak_rows(flat)
            weak += len(redundant) + len(shortcuts)
    assert weak > 0


def iter_rows(query, head="?"):
    """Return the rows of a query in which a constant may have conditions."""
    for part in query.parts if isinstance(query, And) else (query,):
        if isinstance(part, str):
            continue
        inside = part.of.parts if isinstance(part.of, And) else (part.of,)
        named = [p for p in inside if isinstance(p, str)]
        tail = f"C@{named[0]}" if named else f"V@{id(part)}"
        yield head, part.relation, tail
        yield from iter_rows(part.of, tail) if not isinstance(part.of, str) else ()
