"""Tests of statements of prose: what a sentence states, about whom, and what is left out.

Run: python -m pytest tests/test_questions_statements.py
"""

import pytest

from drlib.questions.queries import Proj, evaluate_query
from drlib.questions.statements import (
    DEFINED,
    DESCRIBED,
    GAP,
    find_base,
    is_statement,
    load_statements,
)
from drlib.worlds import load_world

ADA = """# Ada Brant

Ada Brant was born in Morrow in 1841. She built the Hallow Light for the Harbour Board. In 1869 she
opened a school in Aske. Her sister lived in Morrow.
"""
LIGHT = """# Hallow Light

Hallow Light was designed by [Ada Brant](ada.md) in 1871. It has 118 steps and stands on Gull Rock.
"""


def read(tmp_path, **pages):
    for name, text in pages.items():
        (tmp_path / f"{name}.md").write_text(text)
    return load_statements(load_world(f"folder:{tmp_path}"))


def questions(statements):
    return {
        one.question: one.value if GAP in one.relation else one.subject
        for one in statements.statements
    }


def test_dates_places_names_and_numbers_of_a_sentence_are_asked_for(tmp_path):
    found = questions(read(tmp_path, ada=ADA, light=LIGHT))
    assert found["Where was Ada Brant born?"] == "Morrow"
    assert found["In which year was Ada Brant born in Morrow?"] == "1841"
    assert found["In which year did Ada Brant open a school in Aske?"] == "1869"
    assert found["By whom was Hallow Light designed?"] == "Ada Brant"
    assert found["How many steps does Hallow Light have?"] == "118"


def test_a_description_asks_for_its_subject(tmp_path):
    found = questions(read(tmp_path, ada=ADA, light=LIGHT))
    assert found["Who built the Hallow Light for the Harbour Board?"] == "ada.md"
    assert found["Who opened a school in Aske in 1869?"] == "ada.md"


def test_every_statement_is_a_fact_with_its_sentence(tmp_path):
    statements = read(tmp_path, ada=ADA, light=LIGHT)
    for one in statements.statements:
        assert one.fact in statements.graph.facts and is_statement(one.relation)
        assert statements.by_fact[one.fact] is one
        text = " ".join({"ada.md": ADA, "light.md": LIGHT}[one.page].split())
        assert one.sentence in text.replace("[Ada Brant](ada.md)", "Ada Brant")
    query = Proj(f"{DESCRIBED} of", "built the Hallow Light for the Harbour Board")
    assert evaluate_query(query, statements.graph) == {"ada.md"}


@pytest.mark.parametrize(
    "sentence",
    [
        "It was closed in 1930.",  # no subject before it
        "There was a mill in 1930.",
        "This was built in 1930.",
        "Many were sold in 1930.",
        "Ada Brant had seen him in Morrow before.",  # somebody else
        "Ada Brant lived in that house in Morrow.",
        "Ada Brant walked.",
        "Ada Brant, Kim Ost and others.",
    ],
)
def test_sentences_that_need_their_context_are_left_out(tmp_path, sentence):
    found = read(tmp_path, page=f"# Notes of the week\n\n{sentence}\n").statements
    assert [one.question for one in found] == []


def test_a_pronoun_refers_to_another_person_that_was_just_named(tmp_path):
    text = (
        "# Ada Brant\n\nAda Brant was born in Morrow. Hannah Corr came to Aske. She died in 1930.\n"
    )
    assert "In which year did Ada Brant die?" not in questions(read(tmp_path, ada=text))
    clear = "# Ada Brant\n\nAda Brant was born in Morrow. She died in 1930.\n"
    assert questions(read(tmp_path, ada=clear))["In which year did Ada Brant die?"] == "1930"


def test_a_capitalised_heading_is_no_person(tmp_path):
    text = (
        "# Error Logging\n\nError Logging was introduced in 1999. An error has a logging level.\n"
    )
    assert "Who was introduced in 1999?" not in questions(read(tmp_path, page=text))


@pytest.mark.parametrize(
    ("text", "term", "definition"),
    [
        ("**Ooze**: a sediment with remains of tiny animals.", "Ooze", "a sediment with remains"),
        ("- **Ebb** - the fall of the water after high tide.", "Ebb", "the fall of the water"),
        ("A guyot is a seamount with a top that is flat.", "guyot", "a seamount with a top"),
    ],
)
def test_definitions(tmp_path, text, term, definition):
    (one,) = read(tmp_path, page=f"# Terms of the sea\n\n{text}\n").statements
    assert (one.subject, one.relation) == (term, DEFINED) and one.value.startswith(definition)
    assert one.question == f'Which term is defined as "{one.value}"?'


@pytest.mark.parametrize(
    "text",
    [
        "**Ooze**: the ooze of the deep sea floor.",  # the term itself
        "**Warning**: sounds a horn in the cab of a train.",  # a verb
        "**State**: the application has been sent and is read.",  # a sentence
        "The tower is a landmark of the old town.",  # this tower, not the term
        "**Rust**: a large language with many features.",  # fits too much
    ],
)
def test_other_explanations_are_no_definitions(tmp_path, text):
    assert read(tmp_path, page=f"# Terms of the sea\n\n{text}\n").statements == []


def test_a_description_that_fits_another_paragraph_is_dropped(tmp_path):
    first = "# Hill House\n\nHill House was built on Gull Rock for the Harbour Board.\n"
    other = "# Mill House\n\nThe second house on Gull Rock was built for the Harbour Board too.\n"
    asked = "Which house was built on Gull Rock for the Harbour Board?"
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert questions(read(tmp_path / "a", hill=first))[asked] == "hill.md"
    assert asked not in questions(read(tmp_path / "b", hill=first, mill=other))


def test_a_phrase_without_a_name_is_asked_for_by_its_page(tmp_path):
    text = "# Gull Rock\n\nThe long breakwater was finished in 1879.\n"
    (one,) = read(tmp_path, rock=text).statements
    assert (one.subject, one.value, one.scope) == ("the long breakwater", "1879", "rock.md")
    named = "# Gull Rock\n\nThe breakwater of Aske was finished in 1879.\n"
    (tmp_path / "b").mkdir()
    (one,) = read(tmp_path / "b", rock=named).statements
    assert (one.question, one.scope) == ("In which year was the breakwater of Aske finished?", "")


def test_roles_of_the_subject_of_a_page(tmp_path):
    text = "# Hallow Museum\n\nIts director is Mirja Kofler.\n"
    assert questions(read(tmp_path, page=text)) == {
        "Who is the director of Hallow Museum?": "Mirja Kofler"
    }


@pytest.mark.parametrize(
    ("past", "base"),
    [("closed", ("did", "close")), ("covers", ("does", "cover")), ("died", ("did", "die"))]
    + [("married", ("did", "marry")), ("won", ("did", "win")), ("goes", ("does", "go"))]
    + [("has", ("does", "have")), ("wooden", ("", ""))],
)
def test_base_forms(past, base):
    assert find_base(past) == base


def test_statements_of_a_world_without_pages_are_empty():
    assert load_statements(load_world("tour")).statements == []


OPTIONS = """# sift

-n, --lines N

print at most N lines of each file (default: 10).

--sorted

sort the lines by the first word

MAX_OPEN_FILES

The number of files that may be open. Default: 64
"""


def test_options_and_settings_of_a_manual(tmp_path):
    statements = read(tmp_path, sift=OPTIONS)
    assert questions(statements) == {
        'Which option is described as "print at most N lines of each file"?': "--lines",
        "What is the default of the option --lines?": "10",
        'Which option is described as "sort the lines by the first word"?': "--sorted",
        'Which setting is described as "The number of files that may be open"?': "MAX_OPEN_FILES",
        "What is the default of the setting MAX_OPEN_FILES?": "64",
    }
    assert {one.scope for one in statements.statements} == {"sift.md"}


def test_rows_of_options_are_read_like_lists(tmp_path):
    rows = "# sift\n\n||--sorted|sort the lines by the first word|\n"
    (one,) = read(tmp_path, sift=rows).statements
    assert (one.subject, one.value) == ("--sorted", "sort the lines by the first word")


@pytest.mark.parametrize("text", ["--sorted\n\nSorted Output\n", "--sorted\n\nread this first\n"])
def test_headings_and_pointers_describe_no_option(tmp_path, text):
    assert read(tmp_path, sift=f"# sift\n\n{text}").statements == []


def test_who_made_a_thing_and_numbers_in_words(tmp_path):
    text = (
        "# The organ of Saint-Oury\n\nThe case, carved in walnut by the joiner Étienne Roulet, "
        "shows plants. The instrument has thirty-eight stops.\n"
    )
    assert questions(read(tmp_path, organ=text)) == {
        "By whom was the case carved in walnut?": "Étienne Roulet",
        "How many stops does the instrument have?": "thirty-eight",
    }


def test_a_named_person_takes_the_next_pronoun(tmp_path):
    """Jo Corr is not the page's subject, so "She" after her name is not Ada Brant."""
    text = (
        "# Ada Brant\n\nAda Brant was born in Morrow. In spring the painter Jo Corr came to see "
        "Aske. She died in 1930.\n"
    )
    assert "In which year did Ada Brant die?" not in questions(read(tmp_path, ada=text))


def test_two_values_of_one_statement_are_not_asked_for(tmp_path):
    first = "# Aske Hall\n\nAske Hall was built in 1850.\n\nAske Hall was built in 1851.\n"
    assert "In which year was Aske Hall built?" not in questions(read(tmp_path, hall=first))


def test_definitions_that_point_elsewhere_are_left_out(tmp_path):
    text = "# Terms of the sea\n\n**Ebb**: the fall of this water after high tide.\n"
    assert read(tmp_path, page=text).statements == []
