"""Tests of questions about documents: chains, their wording, and the user's words.

Run: python -m pytest tests/test_questions_documents.py
"""

import random
from collections import Counter
from types import SimpleNamespace

import pytest
import yaml

from drlib.cli.questions import main as questions_main
from drlib.questions.chain_wording import load_overrides
from drlib.questions.document_questions import (
    draw_chains,
    draw_statement_questions,
    find_lookup_fault,
)
from drlib.questions.families import draw_block, make_writer
from drlib.questions.queries import (
    Proj,
    evaluate_query,
    from_text,
    list_constants,
    measure_depth,
    walk,
)
from drlib.questions.question_set import (
    DatasetRequest,
    draw_dataset,
    find_quote,
    find_used_facts,
    put_repetition_last,
)
from drlib.questions.read_back import load_grammar
from drlib.questions.statements import load_statements
from drlib.worlds import load_world

PAGES = {
    "people/ada-brant": "---\nrole: director\njoined: 2014\noffice: Aske\n---\n# Ada Brant\n",
    "people/kim-ost": "---\nrole: engineer\njoined: 2018\nreports to: Ada Brant\n---\n# Kim Ost\n",
    "offices/aske": "---\nopened: 2009\noffice manager: Kim Ost\ndesks: 22\n---\n# Aske\n",
    "offices/morrow": "---\nopened: 2011\noffice manager: Ada Brant\ndesks: 8\n---\n# Morrow\n",
    "lamp": "# Faro lamp\n\n| Property | Value |\n|---|---|\n| Weight | 92 g |\n"
    "| Designed by | Ada Brant |\n| Notes | see below |\n",
}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, text in PAGES.items():
        path = folder / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return load_world(f"folder:{folder}")


@pytest.fixture(scope="module")
def writer(world):
    return make_writer(world)


def follow(start, *relations):
    for relation in relations:
        start = Proj(relation, start)
    return start


ADA, KIM, ASKE = "people/ada-brant.md", "people/kim-ost.md", "offices/aske.md"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (follow(KIM, "reports to"), "Who does Kim Ost report to?"),
        (follow(ADA, "reports to of"), "Who reports to Ada Brant?"),
        (follow(ADA, "role"), "What is the role of Ada Brant?"),
        (follow("director", "role of"), 'Who has the role "director"?'),
        (follow(ADA, "joined"), "When did Ada Brant join?"),
        (follow("2018", "joined of"), "Who joined in 2018?"),
        (follow(ASKE, "opened"), "When was the Aske office opened?"),
        (follow(ASKE, "desks"), "How many desks does the Aske office have?"),
        (follow(ASKE, "office manager"), "Who is the office manager of the Aske office?"),
        (follow("lamp.md", "Designed by"), "Who designed the Faro lamp?"),
        (follow("lamp.md", "Weight"), "What is the weight of the Faro lamp?"),
        (
            follow(KIM, "reports to", "office", "opened"),
            "When was the office of the person that Kim Ost reports to opened?",
        ),
        (
            follow("director", "role of", "office manager of", "desks"),
            "How many desks does the office whose office manager is the person whose role is "
            "director have?",
        ),
    ],
    ids=str,
)
def test_wording_of_chains(query, text, world, writer):
    assert len(evaluate_query(query, world.graph)) == 1
    assert writer.write(query) == text


def test_remarks_and_flags_are_no_answers(world):
    block = draw_block("chain", world, 60, 0, 0, 3)
    assert not any("see below" in task.answer for task, _ in block.questions)


def test_chain_questions_are_verified_and_name_things_as_people_do(world):
    block = draw_block("chain", world, 30, 0, 0, 3)
    assert len(block.questions) == 30
    assert block == draw_block("chain", world, 30, 0, 0, 3)
    depths = set()
    for task, wording in block.questions:
        query = from_text(task.query)
        depths.add(measure_depth(query))
        assert wording == "sentences" and evaluate_query(query, world.graph) == {task.target}
        assert ".md" not in task.question + task.answer
        assert task.answer.casefold() not in task.question.casefold()
        for fact in find_used_facts(query, world.graph):
            assert find_quote(fact, world) is not None
    assert depths == {1, 2, 3}
    by_page = {task.page: task.answer for task, _ in block.questions if task.page}
    assert by_page["people/ada-brant.md"] == "Ada Brant"


@pytest.mark.parametrize(
    ("query", "answer", "hops", "fault"),
    [
        (follow(KIM, "reports to"), ADA, 1, ""),
        (follow(KIM, "reports to", "office"), ASKE, 1, "too deep"),
        (follow(KIM, "joined"), ADA, 1, "not unique"),
        (follow(KIM, "reports to", "reports to of"), KIM, 3, "told"),
        (follow(ADA, "office", "office manager"), KIM, 3, "shortcut"),
    ],
    ids=str,
)
def test_faults_of_chains(query, answer, hops, fault, world, writer):
    text = "Who is it that Kim Ost knows?" if fault == "told" else "Who?"
    graph = world.graph
    if fault == "told":
        graph = load_statements(world).graph
        assert find_lookup_fault(answer, query, text, graph, hops) in ("told", "shortcut")
        return
    assert find_lookup_fault(answer, query, text, graph, hops) == fault


def test_draws_end_at_an_answer_and_never_turn_back(world):
    source = SimpleNamespace(graph=world.graph, grammar=load_grammar(world.graph, "folder"))
    draws = draw_chains(source, random.Random(0), 3)
    found = [one for one in (next(draws) for _ in range(400)) if one is not None]
    for answer, query, _ in found:
        names = [answer, *list_constants(query)]
        part = query.of
        while isinstance(part, Proj):
            names += evaluate_query(part, world.graph)
            part = part.of
        assert len(set(names)) == len(names)


def test_a_description_replaces_a_name(tmp_path):
    (tmp_path / "light.md").write_text(
        "# Hallow Light\n\nHallow Light stands on Gull Rock. It was automated in 1984.\n"
    )
    statements = load_statements(load_world(f"folder:{tmp_path}"))
    names = {"light.md": "Hallow Light"}
    draws = draw_statement_questions(statements, names.get, random.Random(0), 2)
    texts = {text: query for _, query, text in (next(draws) for _ in range(60))}
    asked = "In which year was the light that stands on Gull Rock automated?"
    assert measure_depth(texts[asked]) == 2
    assert evaluate_query(texts[asked], statements.graph) == {"1984"}


def test_things_without_a_name_are_no_answers(tmp_path):
    (tmp_path / "light.md").write_text("# Hallow Light\n\nHallow Light stands on Gull Rock.\n")
    statements = load_statements(load_world(f"folder:{tmp_path}"))
    draws = draw_statement_questions(statements, str, random.Random(0), 1)
    assert [next(draws) for _ in range(9)] == [None] * 9  # "light.md" is the address of a page


def test_preview_lists_words_and_samples(tmp_path, capsys, world):
    assert questions_main(["preview", world.name]) == 0
    out = capsys.readouterr().out
    words = yaml.safe_load(out)
    assert words["kinds"]["office"] == "office" and words["relations"]["reports to"] == "reports to"
    assert "# Who does Kim Ost report to? -> Ada Brant" in out


def test_edited_words_are_used(tmp_path):
    (tmp_path / "aske.md").write_text("---\ntype: site\nPlL: Ada Brant\nref: X 7\n---\n# Aske\n")
    name = f"folder:{tmp_path}"
    before = make_writer(load_world(name))
    assert before.write(follow("aske.md", "PlL")) == "What is the PlL of Aske?"
    (tmp_path / "drlib.yaml").write_text(
        "kinds: {site: location}\nrelations: {PlL: plant lead, ref: null}\n"
    )
    world = load_world(name)
    assert "drlib.yaml" not in world.changes.skipped
    after = make_writer(world)
    assert after.write(follow("aske.md", "PlL")) == "Who is the plant lead of the Aske location?"
    assert after.write(follow("aske.md", "ref")) == ""


@pytest.mark.parametrize("text", ["kinds: [a]\n", "nouns: {a: b}\n", "kinds: {a: 1}\n", "a: ]\n"])
def test_wrong_words_name_the_file(tmp_path, text):
    (tmp_path / "a.md").write_text("# A\n")
    (tmp_path / "drlib.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"drlib\.yaml"):
        load_overrides(load_world(f"folder:{tmp_path}"))


def make_world(folder, **pages):
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text)
    return load_world(f"folder:{folder}")


def list_questions(world, hops=3, n=60):
    block = draw_block("chain", world, n, 0, 0, hops)
    return {task.question: task.answer for task, _ in block.questions}


def test_a_fact_with_two_values_is_no_step(tmp_path):
    world = make_world(tmp_path, a="---\nmentor: [Ada Ost, Kim Lo]\ncode: K-1\n---\n# Rena Bell\n")
    assert list_questions(world) == {"What is the code of Rena Bell?": "K-1"}


@pytest.mark.parametrize("value", ["yes", "tbd", "n/a", "see below", "http://a.example/x"])
def test_flags_and_remarks_are_not_asked_for(tmp_path, value):
    world = make_world(tmp_path, a=f"---\nreview: {value}\ncode: K-1\n---\n# Rena Bell\n")
    assert not any("review" in question for question in list_questions(world))


def test_codes_in_the_name_are_told(world):
    query = follow("lamp.md", "Weight")
    graph = world.graph
    assert find_lookup_fault("92 g", query, "What weighs 92-g?", graph, 1) == "told"
    assert find_lookup_fault("92 g", query, "What is its weight?", graph, 1) == ""


def test_several_hops_do_not_begin_with_an_arbitrary_value(tmp_path):
    staff = "---\nkind: person\ndesk: left\nrole: cook\nboss: {}\n---\n# {}\n"
    world = make_world(
        tmp_path, a=staff.format("Kim Ost", "Ada Brant"), b="---\ncode: K-1\n---\n# Kim Ost\n"
    )
    writer = make_writer(world)
    assert writer.write(follow("left", "desk of", "boss", "code")) == ""
    role = writer.write(follow("cook", "role of", "boss", "code"))
    assert role == "What is the code of the boss of the person whose role is cook?"


def test_a_place_does_not_identify_a_person(world, writer):
    assert writer.write(follow(ASKE, "office of")) == ""
    assert writer.write(follow(ASKE, "office of", "role")) == ""


def test_the_way_back_is_no_hop(tmp_path):
    pages = {f"p{n}": f"---\nowner: Ada Ost {n}\nref: R-{n}\n---\n# Lamp {n}\n" for n in range(4)}
    world = make_world(tmp_path, **pages)
    source = SimpleNamespace(graph=world.graph, grammar=load_grammar(world.graph, "folder"))
    draws = draw_chains(source, random.Random(0), 3)
    for one in (next(draws) for _ in range(300)):
        part = one[1] if one is not None else ""
        while isinstance(part, Proj) and isinstance(part.of, Proj):
            assert part.relation.removesuffix(" of") != part.of.relation.removesuffix(" of")
            part = part.of


def test_dates_are_answers_as_people_write_them(tmp_path):
    world = make_world(tmp_path, a="---\nopened: 2019-03-04\n---\n# Aske bridge\n")
    block = draw_block("chain", world, 9, 0, 0, 1)
    (task,) = [task for task, _ in block.questions if task.page]
    assert (task.answer, task.page) == ("4 March 2019", "2019-03-04")
    assert "2019-03-04" in task.aliases


def test_repeated_patterns_and_facts_come_last(world):
    def row(name, relation, *quotes):
        query = f'["proj", "{relation}", "{name}"]'
        evidence = [{"quote": quote, "chunk": "c", "fact": []} for quote in quotes]
        return {"family": "chain", "query": query, "evidence": evidence, "id": name}

    rows = [row(f"w{n}", "weight", f"q{n}") for n in range(4)] + [row("x", "code", "q0")]
    rows += [row("y", "code", "new")]
    order = [one["id"] for one in put_repetition_last(rows, 20)]
    assert order == ["w0", "w1", "y", "w2", "w3", "x"]  # two of a pattern, each quote once


def test_a_data_set_does_not_repeat_one_pattern(tmp_path):
    """Eight lamps with eight properties: 16 questions, two of a pattern (the limit of small n)."""
    names = ("Arco", "Faro", "Lumo", "Nodo", "Sella", "Tarsi", "Volta", "Corvo")
    keys = ("code", "maker", "socket", "shade", "cable", "switch", "finish", "origin")
    pages = {
        name: "---\n"
        + "".join(f"{key}: {key[:2]}{name}\n" for key in keys)
        + f"---\n# {name} lamp\n"
        for name in names
    }
    (tmp_path / "notes").mkdir()
    world = make_world(tmp_path / "notes", **pages)
    request = DatasetRequest(world.name, 16, families=("chain",), test_share=0.0)
    (rows,) = draw_dataset(request, world, tmp_path / "out", str).assembly.rows.values()
    queries = [from_text(row["query"]) for row in rows]
    patterns = Counter(
        tuple(part.relation for part in walk(query) if isinstance(part, Proj)) for query in queries
    )
    assert len(rows) == 16 and max(patterns.values()) <= 2
