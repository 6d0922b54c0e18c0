"""Tests of natural-language wording and of parsing it back."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from query_examples import any_query, small_graph, unique_queries

from drlib.questions.phrases import Phrasebook, add_article, to_plural
from drlib.questions.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    canonicalise,
    evaluate_query,
    from_text,
    list_constants,
    walk,
)
from drlib.questions.question_engine import synthesize_questions
from drlib.questions.read_back import (
    Grammar,
    load_grammar,
    normalise_query,
    read_question,
    word_question,
)
from drlib.questions.sentences import STYLES, format_range, write_sentences
from drlib.worlds.cldr import SPOKEN_PERCENT
from drlib.worlds.graph import Graph, Node
from tests.shared_worlds import shared_world

SMALL = Grammar(Phrasebook(small_graph()))


@pytest.fixture(scope="module")
def cldr():
    return shared_world("cldr")


@pytest.fixture(scope="module")
def grammar(cldr):
    return load_grammar(cldr.graph, cldr.scheme)


def uses(money):
    return Proj("currency of", money)


def speaks(language):
    return Proj("official language of", language)


# ------------------------------------------------------------------------------------ writing

CURRENCY_OF_TOGO = Proj("currency", "Togo")
IN_MALI = Proj("official language", "Mali")
EXAMPLES = [
    (
        And((uses(CURRENCY_OF_TOGO), speaks("French"))),
        "which",
        "which territory has the same currency as Togo and officially uses French?",
    ),
    (
        And((uses("Euro"), speaks(Proj("script of", "Cyrillic script")))),
        "which",
        "which territory uses the Euro and officially uses a language written in the Cyrillic"
        " script?",
    ),
    (
        And((uses("Euro"), speaks(Proj("script of", "Cyrillic script")))),
        "what",
        "which territory uses the Euro and officially uses a language written in the Cyrillic"
        " script?",
    ),
    (
        And((uses("Euro"), speaks(Proj("script of", "Cyrillic script")))),
        "name",
        "Name the territory that uses the Euro and that officially uses a language written in the"
        " Cyrillic script, according to Unicode CLDR.",
    ),
    (
        And((uses("Euro"), speaks(Proj("script of", "Cyrillic script")))),
        "steps",
        "Find the languages written in the Cyrillic script, according to Unicode CLDR. Finally,"
        " which territory uses the Euro and officially uses one of those languages?",
    ),
    (  # a comma ends a description before the next condition
        And((uses(Proj("currency", speaks("French"))), speaks(Proj("script of", "Latin script")))),
        "which",
        "which territory has the same currency as a territory whose official languages include"
        " French, and officially uses a language written in the Latin script?",
    ),
    (  # nested clauses occur only at the end
        And((speaks(Proj("official language", uses(Proj("currency", "Togo")))), uses("Euro"))),
        "which",
        "which territory uses the Euro and has an official language in common with a territory with"
        " the same currency as Togo?",
    ),
    (  # conditions of an intermediate entity use a separate sentence
        speaks(And((Proj("official language", "Togo"), Proj("script of", "Latin script")))),
        "which",
        "Find the language that is official in Togo and that is written in the Latin script,"
        " according to Unicode CLDR. Finally, which territory officially uses that language?",
    ),
    (
        Proj("currency start year of", Proj("introduction year", "Jamaican Dollar")),
        "which",
        "which territory adopted its present currency in the year in which the Jamaican Dollar was"
        " introduced?",
    ),
    (
        And((uses("Euro"), Range("currency start year", 2000, 2009))),
        "which",
        "which territory uses the Euro and adopted its present currency in the 2000s?",
    ),
    (
        And((uses("Euro"), Range("currency start year", 2002, 2006))),
        "which",
        "which territory uses the Euro and adopted its present currency between 2002 and 2006?",
    ),
    (
        Diff(And((uses("Euro"), speaks("German"))), Proj("first weekday of", "Monday")),
        "name",
        "Name the territory that uses the Euro and that officially uses German, but is not one"
        " where the week begins on Monday, according to Unicode CLDR.",
    ),
    (
        Diff(And((uses("Euro"), speaks("German"))), "Austria"),
        "which",
        "which territory uses the Euro and officially uses German, and is not Austria?",
    ),
    (
        And((Or((uses("Euro"), uses("US Dollar"))), speaks("Spanish"))),
        "which",
        "which territory officially uses Spanish and either uses the Euro or uses the US Dollar?",
    ),
    (
        speaks(Or(("Danish", "Faroese"))),
        "which",
        "which territory officially uses the Danish language or the Faroese language?",
    ),
    (
        Count(uses("Euro")),
        "which",
        "how many territories whose currency is the Euro are there?",
    ),
    (
        Count(And((uses("Euro"), speaks("German")))),
        "which",
        "Find the territories whose currency is the Euro and whose official languages include"
        " German, according to Unicode CLDR. Finally, what is the number of those territories?",
    ),
    (
        uses(Extreme("introduction year", Proj("former currency", "Ukraine"), True)),
        "which",
        "which territory uses the currency with the latest year of introduction among the"
        " former currencies of Ukraine?",
    ),
    (
        Proj("widely spoken language", "U.S. Outlying Islands"),
        "which",
        "which language is spoken by at least 5% of the people of the U.S. Outlying Islands?",
    ),
]


@pytest.mark.parametrize("query, style, text", EXAMPLES)
def test_sentences_round_trip(query, style, text, grammar):
    source = "" if text[0].isupper() else "According to Unicode CLDR, "
    assert write_sentences(query, grammar.book, style) == source + text
    assert read_question(source + text, grammar) == canonicalise(query)


def test_steps_with_one_noun_are_numbered(grammar):
    query = Proj(
        "script",
        And((Proj("official language", uses("Euro")), IN_MALI)),
    )
    two = And((query, Proj("script", Diff(IN_MALI, Proj("official language", "Togo")))))
    text = write_sentences(two, grammar.book, "steps")
    assert "the language" in text and "of the third step" in text
    assert read_question(text, grammar) == canonicalise(two)


def test_custom_names_replace_titles(grammar):
    query = And((uses(Or(("Euro", "US Dollar"))), speaks("French")))
    names = {Or(("Euro", "US Dollar")): "a coin of two metals", "French": "the tongue of Molière"}
    text = write_sentences(query, grammar.book, "which", names)
    assert text.endswith("uses a coin of two metals and officially uses the tongue of Molière?")


def test_table_columns_get_phrases():
    nodes = [Node("Ada", "person"), Node("Ben", "person"), Node("Blue", "team")]
    facts = [
        ("Ada", "team", "Blue"),
        ("Ben", "team", "Blue"),
        ("Ada", "skill", "Python"),
        ("Ada", "skill", "Rust"),
        ("Ben", "skill", "Python"),
        ("Ada", "entry year", "2019"),
    ]
    book = Phrasebook(Graph(nodes, facts))
    query = And((Proj("team of", Proj("team", "Ben")), Proj("skill of", "Rust")))
    text = 'Who has the skill "Rust" and belongs to the same team as Ben?'
    assert write_sentences(query, book, "what") == text
    assert write_sentences(Proj("team", Proj("skill of", "Rust")), book, "what") == (
        'What is the team of the person whose skills include "Rust"?'
    )
    assert write_sentences(Range("entry year", 2010, 2019), book, "what") == (
        "Who has an entry year in the 2010s?"
    )
    for asked in (query, Range("entry year", 2010, 2019)):
        assert read_question(
            write_sentences(asked, book, "what"), Grammar(book)
        ) == normalise_query(asked)


@pytest.mark.parametrize(
    "title, said",
    [
        ("Norway", "Norway"),
        ("Falkland Islands", "the Falkland Islands"),
        ("Netherlands", "the Netherlands"),
        ("Norwegian Krone", "the Norwegian Krone"),
        ("Georgian", "the Georgian language"),
        ("Cyrillic script", "the Cyrillic script"),
        ("Europe/Oslo", "the time zone Europe/Oslo"),
        ("1999", "1999"),
        ("NO", '"NO"'),
    ],
)
def test_mention_by_kind(title, said, grammar):
    assert grammar.book.mention(title) == said
    assert grammar.book.titles[said] == title


def test_mentions_are_unique(grammar):
    mentions = Counter(map(grammar.book.mention, grammar.book.graph.nodes))
    assert mentions.most_common(1)[0][1] == 1
    alike = [Node("Nauru", "language"), Node("Nauru (language)", "language")]
    book = Phrasebook(Graph(alike, []))
    assert [book.mention(node.title) for node in alike] == [
        "the Nauru language",
        '"Nauru (language)"',
    ]
    assert [book.titles[book.mention(node.title)] for node in alike] == [
        "Nauru",
        "Nauru (language)",
    ]


@pytest.mark.parametrize(
    "low, high, said",
    [
        (1990, 1999, "in the 1990s"),
        (1990, 1995, "between 1990 and 1995"),
        (1991, 1999, "between 1991 and 1999"),
        (1990, 1990, "in 1990"),
        (0, 9, "between 0 and 9"),
    ],
)
def test_format_range_uses_full_decades_only(low, high, said):
    assert format_range(low, high, "in") == said


def test_stated_share_matches_the_world(grammar):
    phrase = grammar.book.phrases["widely spoken language"]
    share = f"at least {SPOKEN_PERCENT:g}% of the people"
    forms = (phrase.of_thing, phrase.of_things, phrase.of_value, phrase.of_values, phrase.sames)
    assert all(share in form for form in forms)


def test_articles_and_plurals():
    assert [add_article(noun) for noun in ("hour", "university", "exception")] == [
        "an hour",
        "a university",
        "an exception",
    ]
    assert [to_plural(noun) for noun in ("currency", "class or exception", "person")] == [
        "currencies",
        "classes or exceptions",
        "people",
    ]


# ------------------------------------------------------------------------------------ parsing


@pytest.mark.parametrize("name, n", [("cldr", 150), ("pydocs", 40)])
def test_questions_round_trip_in_every_style(name, n):
    world = shared_world(name)
    grammar = load_grammar(world.graph, world.scheme)
    for task in synthesize_questions(world, n, 3):
        query = from_text(task.query)
        assert read_question(task.question, grammar) == normalise_query(query), task.question
        for style in STYLES:
            assert read_question(
                write_sentences(query, grammar.book, style), grammar
            ) == normalise_query(query)


def test_small_queries_round_trip():
    for query, _ in unique_queries(small_graph(), 40, 1, depth=3, width=3):
        for style in STYLES:
            assert read_question(word_question(query, SMALL, style), SMALL) == normalise_query(
                query
            )


def test_sentences_are_never_misread():
    """Some unnatural queries have no sentence; none has a wrong one."""
    rng = random.Random(5)
    read = Counter()
    for _ in range(400):
        query = canonicalise(any_query(small_graph(), rng, depth=rng.choice((1, 2, 3))))
        text = word_question(query, SMALL, rng.choice(STYLES))
        read[text is not None] += 1
        if text:
            assert read_question(text, SMALL) == normalise_query(query)
    assert read[True] > 200


def test_removed_clause_is_missing_in_the_query(cldr, grammar):
    """A question without a condition is parsed without it, or not at all."""
    tried = 0
    for task in synthesize_questions(cldr, 60, 4, hops={2: 1}):
        query = from_text(task.query)
        text = hidden = write_sentences(query, grammar.book, "which")
        for name in map(
            grammar.book.mention, list_constants(query)
        ):  # "Svalbard and Jan Mayen" is one name
            hidden = hidden.replace(name, name.replace(" and ", " & "))
        shorter = re.sub(r",? and [^?.]*\?$", "?", hidden).replace(" & ", " and ")
        if shorter != text:
            tried += 1
            assert read_question(shorter, grammar) in [*map(normalise_query, walk(query))][1:]
    assert tried > 20


def test_documented_example_has_its_answer(cldr, grammar):
    page = (Path(__file__).parents[1] / "docs/questions.md").read_text(encoding="utf-8")
    ((text, answer),) = re.findall(r"(?m)^> (According to Unicode CLDR.*\?) \((.*)\)$", page)
    assert evaluate_query(read_question(text, grammar), cldr.graph) == {answer}


@pytest.mark.parametrize(
    "text",
    [
        "Which territory uses the Euro?",  # the source is missing
        "According to Unicode CLDR, which territory uses the Eurro?",
        "According to Unicode CLDR, which territory uses the Euro and?",
        "According to Unicode CLDR, which territory uses that currency?",  # no step introduces it
        "According to Unicode CLDR, which territory uses the Euro, but is not one?",
        "",
    ],
)
def test_other_questions_are_rejected(text, grammar):
    with pytest.raises(ValueError, match="is none of ours"):
        read_question(text, grammar)


def test_wording_option_of_the_engine(cldr):
    (sentences,) = synthesize_questions(cldr, 1, 0)
    (brackets,) = synthesize_questions(cldr, 1, 0, wording="brackets")
    assert sentences.query == brackets.query and sentences.id == brackets.id
    assert "ccording to Unicode CLDR" in sentences.question
    assert "(" in brackets.question and "ccording" not in brackets.question


@pytest.mark.parametrize(
    "relation, name, said",
    [
        ("subclass of", "shutil.Error", "raises the direct base class of shutil.Error?"),
        ("subclass", "email.errors.MessageError", "raises a direct subclass of email.errors.Me"),
    ],
)
def test_base_and_subclass_phrases(relation, name, said):
    library = shared_world("pydocs")
    grammar = load_grammar(library.graph, library.scheme)
    query = Proj("raised exception of", Proj(relation, name))
    text = write_sentences(query, grammar.book)
    assert text.startswith("Going by the signatures and raise statements in Python's library, ")
    assert said in text and read_question(text, grammar) == canonicalise(query)


@pytest.mark.parametrize("name", ["cldr", "pydocs"])
def test_phrase_forms_round_trip(name):
    world = shared_world(name)
    grammar = load_grammar(world.graph, world.scheme)
    for relation in grammar.book.phrases:
        rows = world.graph.adjacent[relation]
        thing = min(rows)
        value, back = min(rows[thing]), f"{relation} of"
        likes = Proj(back, Proj(relation, thing)), Proj(relation, Proj(back, value))
        for query in (Proj(back, value), Proj(relation, thing), *likes):
            for style in STYLES:
                text = write_sentences(query, grammar.book, style)
                assert read_question(text, grammar) == normalise_query(query), text


def test_verbs_agree_with_nouns():
    library = shared_world("pydocs")
    grammar = load_grammar(library.graph, library.scheme)
    query = Count(Proj("raised exception of", "aifc.Error"))
    for style in STYLES:
        text = write_sentences(query, grammar.book, style)
        assert "methods that raise aifc.Error" in text and read_question(text, grammar) == query
