"""Selections: facts and names of the small world selected from a large one.

Run: python -m pytest tests/test_worlds_selection.py
"""

import string
from collections import Counter

import pytest

from drlib.questions.chains import SearchQuestions, enumerate_chains
from drlib.worlds import Names, fictional_world, load_world, select
from drlib.worlds.graph import Graph, Node
from drlib.worlds.selection import _short_names
from drlib.worlds.small import Entity, SmallWorld
from tests.folder_examples import island_folder

ALL = dict(pages=1000, pieces=5000)


@pytest.fixture(scope="module")
def islands(tmp_path_factory):
    return load_world(f"folder:{island_folder(tmp_path_factory.mktemp('islands'))}")


@pytest.fixture(scope="module")
def cldr():
    return load_world("cldr")


def test_folder_pages_are_named_by_heading_and_linked_by_name(islands):
    world = select(islands, **ALL).world
    island = world.entities["Isle Abba"]
    assert island.kind == "island"
    # from front matter, from a table row that names the island, from a link in a cell
    assert island.facts == {"capital": "Port Abba", "light": "Abba Light"}
    assert world.entities["Port Abba"].facts == {"island": "Isle Abba", "mayor": "Mayor Abba"}
    assert world.entities["Mayor Abba"].facts == {"pet": "cat Abba", "town": "Port Abba"}
    assert world.entities["Abba Light"].facts == {"height": "10", "island": "Isle Abba"}
    assert world.entities["Abba Light"].kind == "light"
    assert world.follow("Abba Light", ["island", "capital", "mayor"])[-1] == "Mayor Abba"


def test_folder_structure_and_repeated_headings_are_excluded(islands):
    world = select(islands, **ALL).world
    relations = {relation for entity in world.entities.values() for relation in entity.facts}
    assert relations == {"capital", "light", "island", "mayor", "pet", "town", "height"}
    assert "History" not in world.entities


def test_facts_are_single_valued_in_the_large_world(cldr):
    """Forward relations keep their name; inverses are named by the kind of their values."""
    world = select(cldr, **ALL).world
    graph = cldr.graph
    forward = {relation for _, relation, _ in graph.facts}
    for title, entity in world.entities.items():
        for relation, value in entity.facts.items():
            if relation in forward and graph.values(title, relation):
                assert graph.values(title, relation) == {value}
            else:
                backwards = {
                    source
                    for inverse in graph.relations[title]
                    if inverse.endswith(" of")
                    for source in graph.values(title, inverse)
                    if graph.nodes[source].kind == relation
                }
                assert backwards == {value}
            assert value.casefold() not in title.casefold()
    assert world.entities["Norwegian Krone"].facts["code"] == "NOK"
    # three territories: "the territory of Norwegian Krone" has no single answer
    assert len(graph.values("Norwegian Krone", "currency of")) > 1
    assert "territory" not in world.entities["Norwegian Krone"].facts


def test_pages_beyond_the_limits_are_omitted_and_counted(cldr):
    selection = select(cldr, pages=200, pieces=400)
    world = selection.world
    everything = select(cldr, **ALL).world
    assert len(world) <= 200 < selection.candidates
    assert selection.left_out["facts_with_long_names"] > 0
    assert selection.left_out["facts_of_rare_relations"] == 0
    for title, entity in world.entities.items():
        assert entity.facts == everything.entities[title].facts
        for value in entity.facts.values():  # no chain ends at the border of the selection
            assert value in world.entities or value not in everything.entities
    assert {chain.hops for chain in enumerate_chains(world)} == {1, 2, 3}


def test_most_frequent_relations_are_kept(cldr):
    everything, few = (select(cldr, **ALL, relations=most) for most in (None, 8))
    facts = [
        (title, relation, value)
        for title, entity in everything.world.entities.items()
        for relation, value in entity.facts.items()
    ]
    uses = Counter(relation for _, relation, _ in facts)
    leads_on = {r for _, r, value in facts if value in everything.world.entities}
    kept = {relation for _, relation, _ in few.world.graph.facts}
    assert len(kept) == 8 < len(uses)
    # keeps the most frequent relations, and all linking relations except the rarest
    values = [relation for relation, _ in uses.most_common() if relation not in leads_on]
    assert {r for r in kept if r not in leads_on} < set(values[:6])
    assert {"currency", "territory", "script", "time zone"} & leads_on <= kept
    assert everything.left_out["facts_of_rare_relations"] == 0
    assert few.left_out["facts_of_rare_relations"] > 100
    # pages keep facts of these relations only
    norway = {r: v for r, v in everything.world.entities["Norway"].facts.items() if r in kept}
    assert norway.items() <= few.world.entities["Norway"].facts.items()


def test_selection_is_reproducible_with_chains_of_every_length(cldr):
    first = select(cldr, pages=300, pieces=900, seed=5).world
    assert first.version == select(cldr, pages=300, pieces=900, seed=5).world.version
    assert first.version != select(cldr, pages=300, pieces=900, seed=6).world.version
    for split in ("train", "test"):
        source = SearchQuestions(first, split)
        assert all(len(source.answers(hops)) >= 8 for hops in (1, 2, 3))


@pytest.mark.parametrize("head", ["Value", "Page", "Section"])
def test_row_kind_is_never_reserved(tmp_path, head):
    table = [
        f"| {head} | Colour |",
        "|---|---|",
        *(f"| Rank {n} | colour {n} |" for n in range(40)),
    ]
    (tmp_path / "list.md").write_text("# A list\n\n" + "\n".join(table) + "\n")
    graph = load_world(f"folder:{tmp_path}").graph
    rows = [node for node in graph.nodes.values() if node.aliases == ("Rank 7",)]
    assert [node.kind for node in rows] == ["table row"]
    assert not graph.is_value(rows[0].title)


def test_world_without_facts_or_chains_is_refused(tmp_path):
    (tmp_path / "a.md").write_text("# A\n\nText.")
    with pytest.raises(ValueError, match="24 are needed.*front matter"):
        select(load_world(f"folder:{tmp_path}"), **ALL)
    (tmp_path / "b.md").write_text("---\ncolour: red\n---\n# B\n\nText.")
    with pytest.raises(ValueError, match="1 pages with single-valued facts.*1 chains of 1 hops"):
        select(load_world(f"folder:{tmp_path}"), **ALL)


def test_small_world_round_trip(islands, tmp_path):
    world = select(islands, **ALL).world
    world.save(tmp_path / "world.json")
    again = SmallWorld.load(tmp_path / "world.json")
    assert again.version == world.version
    assert (again.name, again.scheme, len(again)) == (world.name, "folder", len(world))
    assert list(again.entities) == list(world.entities)
    assert again.search("Port Abba", 1)[0].url == "folder:Port Abba"


# ------------------------------------------------------------------------- invented worlds


def test_fictional_worlds_share_the_schema_but_no_facts(islands):
    world = select(islands, **ALL).world
    names = Names.from_world(world)
    real = {(e.title, r, v) for e in world.entities.values() for r, v in e.facts.items()}
    kinds = {}
    counted = Counter()
    for seed in range(20):
        invented = fictional_world(seed, names)
        assert invented.version == fictional_world(seed, names).version
        assert invented.scheme == "folder"
        for entity in invented.entities.values():
            counted[entity.kind] += 1
            for relation, value in entity.facts.items():
                assert (entity.title, relation, value) not in real
                target = invented.entities[value].kind if value in invented.entities else ""
                kinds.setdefault((entity.kind, relation), set()).add(target)
        assert {chain.hops for chain in enumerate_chains(invented)} == {1, 2, 3}
    assert kinds["island", "capital"] == {"town"}
    assert kinds["town", "mayor"] == {"person"}
    assert kinds["light", "height"] == {""}
    assert counted["town"] / counted.total() == pytest.approx(0.25, abs=0.05)


def test_fictional_numbers_have_real_forms(islands):
    names = Names.from_world(select(islands, **ALL).world)
    heights = [
        entity.facts["height"]
        for seed in range(10)
        for entity in fictional_world(seed, names).entities.values()
        if "height" in entity.facts
    ]
    assert len(heights) > 50
    assert all(height.isdigit() and len(height) == 2 for height in heights)


def test_fictional_titles_use_real_separators():
    dotted = [
        Entity(f"{package}.{name}", "function", {"raised exception": f"{package}.Error"})
        for package in ("json", "csv", "zlib")
        for name in ("read", "write", "reset")
    ]
    names = Names.from_world(SmallWorld(dotted))
    assert set(names.joints) == {"."}
    titles = [title for seed in range(5) for title in fictional_world(seed, names).entities]
    assert any(title.count(".") == 1 for title in titles)
    assert not any(" " in title for title in titles)


class Dotted:
    """A world whose titles are dotted names of classes in modules."""

    name, scheme = "dotted", "dotted"

    def __init__(self):
        facts = []
        for letter in string.ascii_lowercase:
            start, middle, end = f"p.{letter}.Start", f"p.{letter}.mid{letter}", f"q.end{letter}"
            facts += [(start, "base class", middle), (middle, "base class", end)]
            facts += [(end, "author", f"x.author{letter}")]
        titles = sorted({end for fact in facts for end in (fact[0], fact[2])})
        self.graph = Graph([Node(title, "class") for title in titles], facts)


def test_dotted_names_are_shortened_while_unique():
    world = select(Dotted(), **ALL).world
    # "Start" names 26 classes; "mida" names one
    assert world.entities["a.Start"].facts == {"base class": "mida"}
    assert world.follow("b.Start", ["base class", "base class", "author"])[-1] == "authorb"
    assert all(title.count(".") == title.endswith("Start") for title in world.entities)


def test_title_that_is_a_suffix_of_another_keeps_its_name():
    titles = ["json", "my.json", "a.b", "c.a.b", "Mt. Everest", "3.14", "f.g.h"]
    short = _short_names(titles)
    assert short == {"my.json": "my.json", "a.b": "a.b", "c.a.b": "c.a.b", "f.g.h": "h"}
