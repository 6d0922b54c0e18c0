"""Tests of phrases derived from keys, columns and page names."""

import pytest
import typeguard

from drlib.questions.joins import normalise_query
from drlib.questions.phrases import (
    Phrasebook,
    classify_page,
    derive_forms,
    format_date,
    load_inflect,
    name_page,
    to_active,
)
from drlib.questions.plainness import measure_strangeness
from drlib.questions.queries import And, Or, Proj, from_text
from drlib.questions.question_engine import synthesize_questions
from drlib.questions.read_back import load_grammar, read_question
from drlib.questions.sentences import STYLES, write_sentences
from drlib.worlds import load_world
from tests.folder_makers import MAKERS, written


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return load_world(f"folder:{written(MAKERS['handbook'](1), tmp_path_factory.mktemp('book'))}")


@pytest.mark.parametrize(
    "relation, whens, several, form, said",
    [
        ("requires", "", True, "of_things", "requiring {x}"),
        ("requires", "", True, "same", "requires a module that is also required by {x}"),
        ("raised by", "", True, "same", "is raised by a module that also raises {x}"),
        ("raised by", "", False, "of_value", "raises {x}"),
        ("Approved by", "", False, "of_thing", "was approved by {x}"),
        ("approved by", "", False, "of_values", "that approved {x}"),
        ("added in", "", False, "of_values", "in which {x} was added"),
        ("held at", "", False, "of_thing", "is held at {x}"),
        ("published", "year", False, "during", "was published {x}"),
        ("published", "day", False, "of_thing", "was published on {x}"),
        ("joined", "year", False, "of_things", "who joined in {x}"),
        ("customer since", "year", False, "of_thing", "has been a customer since {x}"),
    ],
)
def test_derive_forms_of_verbs_and_participles(relation, whens, several, form, said):
    assert derive_forms(relation, whens, "module", several)[form] == said


@pytest.mark.parametrize("relation", ["team", "speed", "office manager", "red", "author"])
def test_nouns_have_no_derived_forms(relation):
    assert derive_forms(relation, "", "thing", False) == {}


def test_to_active():
    assert to_active("documented") == ("documents", "documenting", "documented")
    assert to_active("curated")[0] == "curates" and to_active("tagged")[:2] == ("tags", "tagging")
    assert to_active("carried")[:2] == ("carries", "carrying") and to_active("led")[0] == "leads"


def test_name_page_by_kind():
    assert name_page("Ada Lund", "person") == "Ada Lund"
    assert name_page("Slow tides", "paper") == 'the paper "Slow tides"'
    assert name_page("Bergen", "office") == "the Bergen office"
    assert name_page("Platform team", "team") == "the Platform team"
    assert name_page("E12", "experiment") == "experiment E12"


def test_format_date():
    assert format_date("2019-03-04") == "4 March 2019" and format_date("2019-03") == "March 2019"
    assert format_date("2019-13-04") == format_date("1.2") == ""


def test_classify_page_by_content_or_folder(world):
    pages = [node.title for node in world.graph.nodes.values() if node.kind == "page"]
    kinds = {title.partition("/")[0]: classify_page(title, world.graph) for title in pages}
    assert kinds["people"] == "person" and kinds["policies"] == "policy"
    assert kinds["index.md"] == "page"


def test_unquoted_links_and_capitalised_columns_link_pages(world):
    graph = world.graph
    people = [title for title in graph.nodes if title.startswith("people/")]
    assert people and all(
        next(iter(graph.values(one, "manager"))).startswith("people/") for one in people
    )
    approved = graph.adjacent["approved by"]
    assert {title.partition("/")[0].partition(":")[0] for title in approved} == {
        "policies",
        "vendors.md",
    }
    assert "Approved by" not in graph.adjacent


def test_plain_questions_are_parsed_back(world):
    tasks = synthesize_questions(world, 8, 2, plain=True)
    grammar = load_grammar(world.graph, world.scheme)
    for task in tasks:
        query = from_text(task.query)
        assert measure_strangeness(query, task.question, grammar.book) == 0
        for style in STYLES:
            assert read_question(
                write_sentences(query, grammar.book, style), grammar
            ) == normalise_query(query)


def test_measure_strangeness(world):
    book = Phrasebook(world.graph, world.scheme)
    one, two = sorted(title for title in world.graph.nodes if title.startswith("teams/"))[:2]
    members = Proj("team of", one)
    assert measure_strangeness(Proj("manager", members), "Who?", book) == 0
    assert (
        measure_strangeness(And((members, Or((members, Proj("team of", two))))), "Who?", book) >= 1
    )
    alone = measure_strangeness(members, "", book)
    assert measure_strangeness(members, "Find it. Finally, who?", book) == 2 + alone


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    folder = written(MAKERS["research notes"](1), tmp_path_factory.mktemp("notes"))
    return Phrasebook(load_world(f"folder:{folder}").graph, "folder").phrases


def test_past_relations_use_past_tense(notes, world):
    assert notes["led by"].of_thing == "was led by {x}"
    assert notes["carried out at"].of_values == "where {x} was carried out"
    phrases = Phrasebook(world.graph, world.scheme).phrases
    assert phrases["Organised by"].of_thing == "is organised by {x}"


def test_shared_values_are_phrased_with_verbs(notes, world):
    assert notes["journal"].same == "appeared in the same journal as {x}"
    assert notes["curator"].same == "is curated by the same person as {x}"
    assert notes["institute"].of_thing == "works at {x}"  # for people; other entities use "has .."
    assert notes["municipality"].same == "is in the same municipality as {x}"
    phrases = Phrasebook(world.graph, world.scheme).phrases
    assert phrases["role"].same == "has the same role as {x}"
    assert phrases["role"].of_thing == "has the role {x}"
    assert phrases["Product"].of_value == "is bought by {x}" and not phrases["Product"].owned


def test_inflect_loads_without_type_checks():
    """Loading skips inflect's type checks (two seconds); other packages keep theirs."""
    assert (
        load_inflect().a("hour") == "an hour"
        and load_inflect().plural_noun("currency") == "currencies"
    )
    assert load_inflect().plural_noun("") == ""  # a type check would reject it

    @typeguard.typechecked
    def double(number: int) -> int:
        return 2 * number

    with pytest.raises(typeguard.TypeCheckError):
        double("two")
