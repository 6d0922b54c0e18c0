"""Tests of the memory of a world: named facts and sentences of linked pages.

Run: python -m pytest tests/test_questions_world_memory.py
"""

from types import SimpleNamespace

import pytest

from drlib.questions.entity_memory import FACT, build_world_memory
from drlib.worlds import load_world

PAGES = {
    "ferries/ottermaid.md": """---
captain: Silvan Pookley
launched: 1871
---
# Ottermaid

The Ottermaid is the one ferry that [Silvan Pookley](../people/silvan.md) loves. It is narrow.

Its hull was painted in Cold Ankle by somebody who had never seen the sea.

| Deck | Seats |
|---|---|
| Upper Deck | 40 |

- Ottermaid in a list of links
""",
    "people/silvan.md": """---
instrument: tin whistle
---
# Silvan Pookley

Silvan Pookley has never been ashore for more than a night.
""",
    "towns/cold-ankle.md": "# Cold Ankle\n\nCold Ankle has one street and no ferry at all.\n",
    "harbours/cold-ankle.md": "---\ndepth: 4\n---\n# Cold Ankle\n\nIt is deep.\n",
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    root = tmp_path_factory.mktemp("notes")
    for name, text in PAGES.items():
        path = root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return load_world(f"folder:{root}")


def test_facts_and_sentences_are_stored_by_entity(notes):
    memory = build_world_memory(notes)
    statements = {one.text: one for one in memory.list_statements("Ottermaid")}
    captain = FACT.format(relation="captain", entity="Ottermaid", value="Silvan Pookley")
    loves = "The Ottermaid is the one ferry that Silvan Pookley loves."
    assert {captain, loves} <= {*statements}
    assert statements[loves].sources == ("folder:ferries/ottermaid.md",)
    assert memory.find_entities(statements[loves]) == ["Ottermaid", "Silvan Pookley"]
    assert memory.recall("Silvan Pookley", "instrument")[0][0] == "tin whistle"
    assert memory.recall("Upper Deck", "Seats")[0][0] == "40"


def test_ambiguous_names_and_markup_are_excluded(notes):
    memory = build_world_memory(notes)
    texts = {one.text for entity in memory.entities for one in memory.list_statements(entity)}
    assert not any(text.startswith(("It ", "Its ", "-", "|")) for text in texts)
    assert not any(" link " in text or "heading of" in text for text in texts)
    # Cold Ankle is both a town and a harbour, so neither has statements
    assert not any("ankle" in entity.casefold() for entity in memory.entities)


def test_memory_of_a_small_world():
    tour = load_world("tour")
    memory = build_world_memory(tour)
    assert memory.recall("Norway", "currency")[0][0] == "Norwegian Krone"
    assert memory.list_statements("Norway")[0].sources


def test_world_without_facts_is_rejected():
    world = SimpleNamespace(name="texts", graph=None)
    with pytest.raises(ValueError, match="texts has no facts, so no things to keep a memory of"):
        build_world_memory(world)
