"""Tests of data sets: draws, evidence, split and dropped questions, each checked independently.

Run: python -m pytest tests/test_questions_question_set.py
"""

import json
from collections import Counter
from dataclasses import replace

import pytest

from drlib.questions import families, question_set
from drlib.questions.checks import find_faults, find_neighbours
from drlib.questions.families import (
    FAMILIES,
    LOOKUPS,
    ON_REQUEST,
    choose_families,
    draw_block,
)
from drlib.questions.plainness import measure_strangeness
from drlib.questions.queries import And, Diff, Proj, evaluate_query, from_text, list_constants
from drlib.questions.question_engine import synthesize_questions
from drlib.questions.question_set import (
    DatasetRequest,
    Dependencies,
    assemble,
    draw_dataset,
    find_quote,
    find_used_facts,
    split_by_graph,
)
from drlib.questions.read_back import load_grammar, read_question
from drlib.questions.wording import mentions
from drlib.worlds import load_world
from drlib.worlds.graph import Graph, Node
from tests.folder_examples import guild_folder
from tests.shared_worlds import shared_world

RECIPES = tuple(family for family in FAMILIES if family not in (*LOOKUPS, *ON_REQUEST))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return load_world(f"folder:{guild_folder(tmp_path_factory.mktemp('guilds') / 'notes')}")


@pytest.fixture(scope="module")
def dataset_request():
    return DatasetRequest("folder:notes", 80, families=RECIPES, seed=3, max_share=0.05)


@pytest.fixture(scope="module")
def cldr():
    return shared_world("cldr")


# -------------------------------------------------------------------------------------- draws


@pytest.mark.parametrize("family", RECIPES)
def test_family_questions_have_one_answer(family, world):
    block = draw_block(family, world, 8, 5, 2, 3)
    assert len(block.questions) == 8 and block.note == ""
    assert block == draw_block(family, world, 8, 5, 2, 3)  # independent of earlier draws
    assert block.questions != draw_block(family, world, 8, 5, 3, 3).questions
    for task, wording in block.questions:
        query = from_text(task.query)
        assert evaluate_query(query, world.graph) == {task.target}
        assert (
            task.answer
            == task.target.rpartition("/")[2].removesuffix(".md").replace("-", " ").title()
        )
        assert find_faults(query, world.graph) == []
        assert not any(mentions(task.question, name) for name in (task.answer, *task.aliases))
        if wording == "sentences":
            read = read_question(task.question, load_grammar(world.graph, world.scheme))
            assert evaluate_query(read, world.graph) == {task.target}


def test_default_families_depend_on_the_world():
    assert choose_families("folder:notes") == ("chain", "prose", "engine")
    assert DatasetRequest("cldr", 5).families == choose_families("cldr") == RECIPES


def test_coincidences_are_rare_in_a_family(cldr):
    block = draw_block("webshaper", cldr, 40, 0, 0, 3)
    by_number = [t for t, _ in block.questions if uses_coincidence(from_text(t.query), cldr.graph)]
    assert len(block.questions) == 40 and len(by_number) <= 2


def uses_coincidence(query, graph):
    """Return True if two things share a year."""
    if isinstance(query, str):
        return False
    if isinstance(query, Proj) and not isinstance(query.of, str):
        found = evaluate_query(query.of, graph)
        if any(title.lstrip("-").isdigit() for title in found):
            return True
    inside = getattr(query, "parts", None) or [
        getattr(query, name) for name in ("of", "left", "right") if hasattr(query, name)
    ]
    return any(uses_coincidence(part, graph) for part in inside)


def test_plain_questions_have_no_strangeness(world, cldr, monkeypatch):
    book = load_grammar(world.graph, world.scheme).book
    monkeypatch.setattr(families, "PLAIN_MISSES", 400)

    def strange(plain: bool) -> list[bool]:
        block = draw_block("webshaper", world, 6, 5, 0, 3, plain=plain)
        rows = [(from_text(task.query), task.question) for task, _ in block.questions]
        return [measure_strangeness(query, text, book) > 0 for query, text in rows]

    assert strange(plain=True) == [False] * 6
    assert any(strange(plain=False))
    vague = draw_block("websailor", cldr, 1, 5, 0, 2, plain=True)  # unions of initials
    assert vague.questions == [] and "not plain" in vague.note


def test_unknown_family_error_suggests_the_nearest(world):
    with pytest.raises(ValueError, match=r"'webshapper': did you mean 'webshaper'\?"):
        draw_block("webshapper", world, 1, 0, 0, 3)


def test_world_without_shared_facts_gives_a_note(tmp_path):
    (tmp_path / "one.md").write_text("# One\n\nAlone.\n")
    for family in FAMILIES:
        block = draw_block(family, load_world(f"folder:{tmp_path}"), 4, 0, 0, 3)
        assert block.questions == [] and block.note


# ----------------------------------------------------------------------------------- evidence

FACTS = [
    ("Ann", "guild", "Bakers"),
    ("Bob", "guild", "Bakers"),
    ("Ann", "home", "Alba"),
    ("Cid", "home", "Alba"),
    ("Bob", "home", "Brin"),
    ("Dan", "guild", "Bakers"),
]
BAKERS, OF_ALBA = Proj("guild of", "Bakers"), Proj("home of", "Alba")


def make_graph(facts):
    return Graph(
        [Node(end, "thing") for end in sorted({e for s, _, v in facts for e in (s, v)})], facts
    )


@pytest.mark.parametrize(
    ("query", "used"),
    [
        (And((BAKERS, OF_ALBA)), {FACTS[0], FACTS[2]}),
        (Diff(OF_ALBA, BAKERS), {FACTS[3], FACTS[2], FACTS[0]}),  # the excluded fact is used too
        (Proj("home", And((BAKERS, Proj("home of", "Brin")))), {FACTS[4], FACTS[1]}),
    ],
    ids=["and", "diff", "chain"],
)
def test_find_used_facts(query, used):
    graph = make_graph(FACTS)
    assert find_used_facts(query, graph) == used


def test_evidence_alone_answers_the_question(cldr):
    """The evidence suffices among 4,572 facts, and a page shows each fact."""
    for task in synthesize_questions(cldr, 60, "evidence", hops={2: 1, 3: 1}):
        query = from_text(task.query)
        used = find_used_facts(query, cldr.graph)
        assert used <= set(cldr.graph.facts)
        assert evaluate_query(query, Graph([*cldr.graph.nodes.values()], used)) == {task.answer}
        for fact in used:
            assert_is_shown(find_quote(fact, cldr), fact, cldr)


def assert_is_shown(shown, fact, world):
    subject, relation, value = fact
    assert shown.quote in world.page(shown.address).text
    other = value if shown.chunk == subject else subject
    assert shown.chunk in (subject, value) and other in shown.quote
    assert relation in shown.quote


def test_find_quote_returns_a_sentence():
    tour = load_world("tour")
    fact = ("Wake Island", "territory", "U.S. Outlying Islands")
    shown = find_quote(fact, tour)
    assert shown.quote == "Its territory is [U.S. Outlying Islands](cldr:U.S. Outlying Islands)."
    assert_is_shown(shown, fact, tour)
    assert find_quote(("Wake Island", "territory", "Norway"), tour) is None


# -------------------------------------------------------------------------------------- split


def make_dependencies(answer, *named, facts=(), names=(), around=()):
    titles = frozenset({*named, *(end for s, _, v in facts for end in (s, v))})
    return Dependencies(
        answer, names, frozenset(named), titles, frozenset(facts), frozenset(around)
    )


WAY = ("Oslo", "in", "Norway")
DEPENDENCIES = [
    make_dependencies("Norway", "Krone", facts=[WAY], around=["Krone", "Oslo"]),
    make_dependencies("Sweden", "Norway"),  # names the answer
    make_dependencies("Denmark", "Krone"),  # names a neighbour of the answer
    make_dependencies("Oslo", "Ski"),  # its answer is a neighbour
    make_dependencies(
        "Peru", "Sol", facts=[WAY]
    ),  # uses the same fact, so its path includes the answer
    make_dependencies("norway", "Sol", facts=[("Sol", "of", "Mars")]),  # the same answer up to case
    make_dependencies("Norge", "Sol", names=("Norway",)),  # an alias of the answer
    make_dependencies(
        "Venus", "Moon", facts=[("Sol", "of", "Mars")]
    ),  # uses a fact of a test question
    *(make_dependencies(f"Far {n}", f"There {n}") for n in range(60)),
]
LOST = {
    1: "has a test answer on its way",
    2: "names a neighbour of a test answer",
    3: "names a neighbour of a test answer",
    4: "has a test answer on its way",
    7: "rests on a fact of a test question",
}


def test_split_removes_training_leaks(monkeypatch):
    monkeypatch.setattr(
        question_set, "CHOICES", 1
    )  # otherwise this expensive answer is never chosen
    lost = {}
    for seed in range(60):
        split = split_by_graph(DEPENDENCIES, 0.3, seed)
        assert sorted([*split.train, *split.test, *split.dropped]) == list(range(len(DEPENDENCIES)))
        if {0, 5, 6} & {*split.test}:
            assert {0, 5, 6} <= {*split.test} and not LOST.keys() & {*split.train}
            if not LOST.keys() & {*split.test}:
                assert split.dropped == LOST
                lost |= split.dropped
        kept = len(split.train) + len(split.test)
        assert 0.3 * kept <= len(split.test) <= 0.3 * kept + 3
        assert split == split_by_graph(DEPENDENCIES, 0.3, seed)
    assert lost == LOST


def test_split_chooses_the_cheapest_answer():
    for seed in range(10):
        assert split_by_graph(DEPENDENCIES, 0.3, seed).dropped == {}


def test_zero_test_share_gives_training_only():
    split = split_by_graph([make_dependencies("A", "B"), make_dependencies("B", "A")], 0, 0)
    assert (split.train, split.test, split.dropped) == ([0, 1], [], {})
    with pytest.raises(ValueError, match="test share"):
        split_by_graph([], 1, 0)


def test_kind_edges_do_not_make_neighbours():
    kinds = [(town, relation, "town") for town in ("Oslo", "Rome") for relation in ("kind", "type")]
    graph = make_graph([*kinds, ("Oslo", "in", "Norway")])
    assert find_neighbours("town", graph) == frozenset()
    assert find_neighbours("Oslo", graph) == {"Norway"}
    assert find_neighbours("Norway", graph) == {"Oslo"}


# ----------------------------------------------------------------------------------- assembly


@pytest.fixture(scope="module")
def dataset(world, dataset_request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawn")
    said = []
    return draw_dataset(dataset_request, world, folder, said.append), folder, said


def list_rows(dataset):
    return [row for some in dataset[0].assembly.rows.values() for row in some]


def test_rows_match_the_graph_and_pages(dataset, world, dataset_request):
    rows = list_rows(dataset)
    assert len(rows) == dataset_request.n and len({row["id"] for row in rows}) == dataset_request.n
    assert {row["family"] for row in rows} == {*RECIPES}
    for row in rows:
        query = from_text(row["query"])
        assert evaluate_query(query, world.graph) == {row["page"]}
        assert row["evidence"]
        for shown in row["evidence"]:
            assert shown["quote"] in world.page(shown["address"]).text
            assert tuple(shown["fact"]) in set(world.graph.facts)


def test_test_answers_and_neighbours_are_absent_from_training(dataset, world):
    """Checked on the list of facts instead of the graph's index."""
    train, test = dataset[0].assembly.rows["train"], dataset[0].assembly.rows["test"]
    assert len(test) == 16 and len(train) == 64
    seen = set()
    passed = set()
    used = set()
    for row in train:
        seen |= {row["page"], *list_constants(from_text(row["query"]))}
        facts = {tuple(shown["fact"]) for shown in row["evidence"]}
        passed |= {end for s, _, v in facts for end in (s, v)}
        used |= facts
    for row in test:
        answer = row["page"]
        beside = {answer}
        for subject, relation, value in world.graph.facts:
            if answer in (subject, value) and relation != "kind":
                beside |= {subject, value}
        assert not beside & seen
        assert answer not in passed
        assert not used & {tuple(shown["fact"]) for shown in row["evidence"]}


def test_answer_quota_covers_all_families(dataset, dataset_request):
    counts = Counter(row["answer"] for row in list_rows(dataset))
    assert dataset_request.quota(len(counts)) == 4 and max(counts.values()) <= 4
    assert dataset[0].assembly.dropped.total() > 0


def test_default_quota_grows_if_documents_have_few_answers():
    request = DatasetRequest("folder:notes", 200)
    assert request.quota(500) == 4 and request.quota(20) == 15  # 1.5 times 200 / 20
    assert DatasetRequest("folder:notes", 200, max_share=0.0).quota(20) == 1
    assert DatasetRequest("cldr", 200).quota(20) == 4


def load_pieces(dataset):
    """Return the rows of the block files by family."""
    found = {family: [] for family in RECIPES}
    for path in sorted((dataset[1] / "pieces").glob("*.jsonl")):
        head, *rows = map(json.loads, path.read_text().splitlines())
        assert [*head] == ["note"]
        found[path.stem.rpartition("-")[0]] += rows
    return found


def test_benchmark_questions_are_excluded(dataset, world, dataset_request, tmp_path):
    pieces = load_pieces(dataset)
    planted = [row["question"] for row in list_rows(dataset)[:3]]
    path = tmp_path / "bench.jsonl"
    path.write_text("".join(json.dumps({"q": f"Please: {text}"}) + "\n" for text in planted))
    clean = assemble(pieces, replace(dataset_request, benchmarks=(str(path),)), world.graph)
    texts = {row["question"] for some in clean.rows.values() for row in some}
    assert not texts & {*planted}
    reasons = Counter(reason for _, reason in clean.dropped.elements())
    assert reasons["in a benchmark"] >= 3
    assert "in a benchmark" not in {reason for _, reason in dataset[0].assembly.dropped}


def test_questions_are_kept_or_counted_as_dropped(dataset, world, dataset_request):
    pieces = load_pieces(dataset)
    assembly = assemble(pieces, dataset_request, world.graph)
    for family, rows in pieces.items():
        kept = sum(row["family"] == family for some in assembly.rows.values() for row in some)
        lost = sum(count for (name, _), count in assembly.dropped.items() if name == family)
        assert kept + lost == len(rows)


def test_duplicates_are_dropped_across_families(dataset, world, dataset_request):
    pieces = load_pieces(dataset)
    first = pieces["engine"][0]  # the first question
    same_query = first | {"family": "webdancer", "id": "other", "question": "Who?"}
    same_words = first | {"family": "websailor", "query": '"x"', "id": "another"}
    pieces["webdancer"] = [same_query]
    pieces["websailor"] = [same_words]
    assembly = assemble(pieces, dataset_request, world.graph)
    ids = {row["id"] for some in assembly.rows.values() for row in some}
    assert not ids & {"other", "another"}
    assert assembly.dropped["webdancer", "asked before"] == 1
    assert assembly.dropped["websailor", "asked before"] == 1


def test_folder_of_another_data_set_is_rejected(dataset, world, dataset_request):
    with pytest.raises(ValueError, match=r"another data set \(n was 80 and is 81\)"):
        draw_dataset(replace(dataset_request, n=81), world, dataset[1], print)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"n": 0}, "at least 1 question"),
        ({"hops": 1}, "hops must be 2"),
        ({"hops": 0, "families": ("chain",)}, "hops must be 1"),
        ({"test_share": 1.0}, "test_share must be"),
        ({"max_share": -0.1}, "max_share must be"),
        ({"tries": 0}, "answers at least once"),
        ({"families": ("engin",)}, "did you mean 'engine'"),
    ],
    ids=str,
)
def test_invalid_requests_are_rejected(wrong, said):
    with pytest.raises(ValueError, match=said):
        DatasetRequest(**{"world": "cldr", "n": 5} | wrong)
    with pytest.raises(FileNotFoundError, match="absent.json"):
        DatasetRequest("cldr", 5, benchmarks=("absent.json",))


def test_closed_book_name_and_solver_must_match(world, dataset_request, tmp_path):
    for asked, attempt in (("a model", None), ("", lambda tasks, n: [])):
        with pytest.raises(ValueError, match="or neither"):
            draw_dataset(
                replace(dataset_request, closed_book=asked), world, tmp_path, print, attempt
            )
    assert not [*tmp_path.iterdir()]


def test_questions_solved_closed_book_are_excluded(dataset, world, dataset_request):
    """The quota counts kept questions only."""
    pieces = load_pieces(dataset)
    ids = sorted({row["id"] for some in pieces.values() for row in some})
    rates = {one: (0.25, 0.0, None)[place % 3] for place, one in enumerate(ids)}
    measured_queries = []

    def measure(rows):
        measured_queries.extend(row["query"] for row in rows)
        return [rates[row["id"]] for row in rows]

    assembly = assemble(pieces, dataset_request, world.graph, measure)
    kept = [row for some in assembly.rows.values() for row in some]
    assert kept and {rates[row["id"]] for row in kept} == {0.0}
    assert len({*measured_queries}) == len(measured_queries), "duplicates are not measured"
    lost = Counter(reason for _, reason in assembly.dropped.elements())
    first = {row["query"]: row["id"] for some in pieces.values() for row in some}
    assert lost["answered from memory"] > 0 and lost["not judged closed book"] > 0
    of = Counter(rates[one] for one in {*first.values()})
    assert lost["answered from memory"] <= of[0.25]
    with pytest.raises(ValueError, match="answered none of"):
        assemble(pieces, dataset_request, world.graph, lambda rows: [None] * len(rows))
