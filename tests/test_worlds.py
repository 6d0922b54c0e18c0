"""Worlds: facts, stable versions, search, and index updates.

Run: python -m pytest tests/test_worlds.py
"""

import sqlite3
from pathlib import Path

import pytest

from drlib.config import Config, split_worlds
from drlib.worlds import Entity, Names, SmallWorld, fictional_world, load_world, merge_worlds


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


def test_facts_match_cldr(cldr):
    assert cldr.follow("Oslo", ["territory"]) == ["Norway"]
    assert cldr.follow("Oslo", ["territory", "currency", "code"])[-1] == "NOK"
    assert cldr.follow("Germany", ["former currency", "code"]) == ["German Mark", "DEM"]
    assert cldr.follow("Thailand", ["language", "script"]) == ["Thai", "Thai script"]
    assert cldr.follow("Norway", ["territory"]) is None


def test_inverse_relations_are_inverse(cldr):
    """`territory` of a currency or language exists only if it can be inverted."""
    for entity in cldr.entities.values():
        home = entity.facts.get("territory")
        if entity.kind in ("currency", "language"):
            back = cldr.entities[home].facts.values() if home else [entity.title]
            assert entity.title in back


def test_page_text_and_links(cldr):
    page = cldr.page("cldr:norway")
    assert "Its currency is [Norwegian Krone](cldr:Norwegian Krone)." in page.text
    assert "1905" in page.text
    for title in page.links:
        assert cldr.page(f"cldr:{title}").title == title
    with pytest.raises(KeyError, match="Atlantis"):
        cldr.page("Atlantis")


def test_title_is_first_hit_of_its_own_search(cldr):
    for title in cldr.entities:
        assert cldr.search(title, 2)[0].title == title


def test_search_finds_pages_by_their_words(cldr):
    assert cldr.search("currency of Norway", 1)[0].title == "Norway"
    assert cldr.search("Krone Norwegian", 1)[0].title == "Norwegian Krone"
    assert cldr.search("?!", 2) == []
    assert cldr.search('" OR 1=1 NEAR(', 2) == []
    with pytest.raises(ValueError, match="k >= 1"):
        cldr.search("Norway", 0)


def test_version_depends_on_data_only():
    a = SmallWorld([Entity("A", "city", {"territory": "B"}), Entity("B", "territory")])
    b = SmallWorld([Entity("B", "territory"), Entity("A", "city", {"territory": "B"})])
    c = SmallWorld([Entity("A", "city", {"territory": "C"}), Entity("B", "territory")])
    assert a.version == b.version != c.version
    with pytest.raises(ValueError, match="two entities"):
        SmallWorld([Entity("A", "city"), Entity("A", "script")])


def test_fictional_worlds_are_reproducible_and_different(cldr):
    names = Names.from_world(cldr)
    one, same, other = (fictional_world(s, names) for s in (1, 1, 2))
    assert one.version == same.version != other.version
    relations = {r for e in cldr.entities.values() for r in e.facts}
    assert {r for e in one.entities.values() for r in e.facts} <= relations
    facts = {(t, r, v) for t, e in cldr.entities.items() for r, v in e.facts.items()}
    for seed in range(50):
        world = fictional_world(seed, names)
        fictional_facts = {(t, r, v) for t, e in world.entities.items() for r, v in e.facts.items()}
        assert not fictional_facts & facts


def test_index_on_disk_is_reused_and_updated(tmp_path):
    entities = [Entity("Gabon", "territory", {"language": "French"})]
    path = tmp_path / "a folder" / "index.sqlite"
    assert SmallWorld(entities, index_path=path).search("language French", 1)[0].title == "Gabon"
    modified_ns = path.stat().st_mtime_ns
    assert SmallWorld(entities, index_path=path).search("French", 1)
    assert path.stat().st_mtime_ns == modified_ns
    more = SmallWorld(
        [*entities, Entity("Chad", "territory", {"language": "Arabic"})], index_path=path
    )
    assert more.search("language Arabic", 1)[0].title == "Chad"
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM pages").fetchone() == (2,)


def test_graph_and_links_match_the_entities(cldr):
    facts = {(t, r, v) for t, e in cldr.entities.items() for r, v in e.facts.items()}
    assert set(cldr.graph.facts) == facts and cldr.graph is cldr.graph
    assert cldr.graph.nodes["Oslo"].kind == "city" and cldr.graph.is_value("NOK")
    assert cldr.graph.values("Norway", "territory of") == {"Oslo"}
    assert cldr.links("cldr:Norway") == cldr.page("Norway").links
    with pytest.raises(KeyError, match="Atlantis"):
        cldr.links("Atlantis")


def test_tour_version_is_unchanged(cldr):
    assert (cldr.name, cldr.version, len(cldr)) == ("cldr", "a424e5609701", 771)


def test_merged_worlds_keep_links_and_separate_equal_titles():
    first = SmallWorld([Entity("Norway", "territory", {"capital": "Oslo"})], "one")
    second = SmallWorld(
        [
            Entity("Oslo", "novel", {"author": "Ada", "place": "norway"}),
            Entity("Ada", "person", {"novel": "Oslo"}),
        ],
        "two",
    )
    world = merge_worlds([first, second])
    assert world.name == "one+two" and len(world) == 3
    assert world.follow("Norway", ["capital"]) == ["Oslo"] and "Oslo" not in world.entities
    assert world.follow("Ada", ["novel", "author"]) == ["Oslo (two)", "Ada"]
    assert world.entities["Oslo (two)"].facts["place"] == "norway (two)"
    assert merge_worlds([first]) is first


def test_names_of_mixtures():
    assert split_worlds("cldr+pydocs+folder:my c++ notes") == [
        "cldr",
        "pydocs",
        "folder:my c++ notes",
    ]
    assert split_worlds("folder:a+b") == ["folder:a+b"]
    assert split_worlds("folder:a+tour") == ["folder:a", "tour"]
    config = Config.load("ci", world__name="cldr+folder:notes")
    assert config.world_name == f"cldr+folder:{Path.cwd() / 'notes'}"


def test_unknown_world_or_engine_lists_the_known_ones():
    for name in ("wikipedia", "cldr:x", "folder:", "zim", "hub"):
        with pytest.raises(
            ValueError, match="cldr, folder:PATH, hub:NAME, live:URL, pydocs, tour, wiki, zim"
        ):
            load_world(name)
    with pytest.raises(ValueError, match="bm25s"):
        load_world("tour", engine="bm25s")
    with pytest.raises(ValueError, match="fts5 or bm25s"):
        load_world("cldr", engine="lucene")
