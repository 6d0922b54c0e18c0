"""Tests of the entity memory: adding, merging, recalling and reading statements."""

import itertools
import subprocess
import sys

import pytest

from drlib.questions.entity_memory import FACT, EntityMemory, Statement
from drlib.trajectory import ToolResult


def make_tool_result(text, ok=True, tool="search"):
    return ToolResult(tool, {}, text, ok, None if ok else "timeout")


def test_add_text_stores_sentences_by_entity():
    memory = EntityMemory(["Guinea", "Papua New Guinea", "Mali"])
    text = "Papua New Guinea is an island state. Guinea borders Mali.\nSomalia does not count."
    assert memory.add_text(text, "page:1", "2020-01-02") == 3
    assert memory.entities == ["Guinea", "Mali", "Papua New Guinea"]
    # the longest name wins: the first sentence says nothing about Guinea
    assert [s.text for s in memory.list_statements("Guinea")] == ["Guinea borders Mali."]
    assert memory.list_statements("Mali") == [
        Statement("Guinea borders Mali.", "2020-01-02", ("page:1",))
    ]
    assert memory.list_statements("Atlantis") == [] and memory.entities == sorted(memory.entities)


def test_equal_statements_are_merged():
    memory = EntityMemory(["Norway"])
    assert memory.add("Norway", "Norway  has a king.", "b", "2021")
    assert not memory.add("Norway", "norway has a King", "a", "2019")
    assert not memory.add("Norway", "Norway has a king.", "c")
    assert memory.add("Norway", "Norway has a queen.", "a")
    (queen, king) = memory.list_statements("Norway")  # an unknown time comes first
    assert (king.time, king.sources) == ("2019", ("a", "b", "c"))
    assert (queen.time, queen.sources) == ("", ("a",))


def test_insertion_order_does_not_matter():
    statements = [
        ("X", "It is old.", "p", "2001"),
        ("X", "it is OLD", "q", ""),
        ("Y", "Y is X.", "p", ""),
        ("X", "Y is X.", "r", "1999"),
    ]
    contents = set()
    for order in itertools.permutations(statements):
        memory = EntityMemory()
        for entity, text, source, time in order:
            memory.add(entity, text, source, time)
        contents.add(tuple((entity, *memory.list_statements(entity)) for entity in memory.entities))
    assert len(contents) == 1


def test_recall_facts_by_relation():
    memory = EntityMemory()
    assert memory.add_fact("Norway", "currency", "Norwegian Krone", "graph")
    for source in ("table:1", "table:2"):
        memory.add_fact("Norway", "language", "Norwegian", source)
        memory.add_fact("Norway", "area", "385207", source)
    assert [value for value, _ in memory.recall("Norway", "language")] == ["Norwegian"]
    assert memory.recall("Norway", "area")[0][1].sources == ("table:1", "table:2")
    assert memory.recall("Norway", "script") == memory.recall("Atlantis", "area") == []
    # the fact is also stored for its value, but is not a fact *of* it
    assert [s.text for s in memory.list_statements("Norwegian Krone")] == [
        FACT.format(relation="currency", entity="Norway", value="Norwegian Krone")
    ]
    assert memory.recall("Norwegian Krone", "currency") == []


def test_values_keep_their_full_stop():
    memory = EntityMemory()
    memory.add_fact("Acme", "name", "Acme Inc.", "g")
    memory.add("Acme", "The name of Acme is Acme Inc", "h")
    assert [value for value, _ in memory.recall("Acme", "name")] == ["Acme Inc."]


def test_facts_take_precedence_over_sentences():
    for order in itertools.permutations(["fact", "the currency of X is euro."]):
        memory = EntityMemory(["X"])
        for entry in order:
            if entry == "fact":
                memory.add_fact("X", "currency", "Euro", "g")
            else:
                memory.add_text(entry, "p")
        assert [value for value, _ in memory.recall("X", "currency")] == ["Euro"]
    memory.add_text("The capital of X is Oslo\nMore", "p")
    assert memory.recall("X", "capital")[0][0] == "Oslo"


def test_failed_tool_results_are_ignored():
    memory = EntityMemory(["Oslo"])
    log = [
        make_tool_result("Oslo is a city."),
        make_tool_result("Oslo could not be reached.", ok=False),
        make_tool_result("Oslo has trams.", tool="visit"),
    ]
    assert memory.add_observations(log, "trajectory-7", "2024-05-01") == 2
    sources_by_text = {
        statement.text: statement.sources for statement in memory.list_statements("Oslo")
    }
    assert sources_by_text == {
        "Oslo is a city.": ("trajectory-7/0-search",),
        "Oslo has trams.": ("trajectory-7/2-visit",),
    }


@pytest.mark.parametrize("entity, text, source", [("", "a", "b"), ("a", "  ", "b"), ("a", "b", "")])
def test_empty_statements_are_rejected(entity, text, source):
    memory = EntityMemory()
    with pytest.raises(ValueError, match="entity, text and source"):
        memory.add(entity, text, source)
    assert memory.entities == []


def test_results_do_not_depend_on_the_hash_seed():
    program = (
        "from drlib.questions.entity_memory import EntityMemory\n"
        "m = EntityMemory({'Ada', 'Bob', 'Ada Bob', 'Cy'})\n"
        "m.add_text('Ada met Bob and Cy. Ada Bob met Cy! Bob left', 'd')\n"
        "print([(e, m.list_statements(e)) for e in m.entities])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1


def test_find_entities_of_a_statement():
    memory = EntityMemory(["Guinea", "Mali"])
    memory.add_text("Guinea borders Mali.", "page:1")
    memory.add_fact("Mali", "capital", "Bamako", "graph")
    (border,) = memory.list_statements("Guinea")
    assert memory.find_entities(border) == ["Guinea", "Mali"]
    assert memory.find_entities(Statement("guinea borders MALI")) == [
        "Guinea",
        "Mali",
    ]  # equal up to case
    assert memory.find_entities(memory.list_statements("Bamako")[0]) == ["Bamako", "Mali"]
    assert memory.find_entities(Statement("Nobody said this.")) == []
