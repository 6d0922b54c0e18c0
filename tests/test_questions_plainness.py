"""Tests of plainness, fault by fault, on a world of nine countries."""

import pytest

from drlib.questions.joins import normalise_query
from drlib.questions.phrases import Phrasebook
from drlib.questions.plainness import REVEALING_PENALTY, measure_strangeness, select_plain_facts
from drlib.questions.queries import And, Or, Proj, evaluate_query
from drlib.questions.read_back import Grammar, read_question
from drlib.questions.sentences import write_sentences
from drlib.worlds.graph import Graph, Node

LANDS = "Arden Bolm Corvia Drune Estland Fenn Gorm Hask Ivar".split()
KINDS = dict.fromkeys(LANDS, "territory") | {
    "Crown": "currency",
    "Mark": "currency",
    "Common": "language",
    "Tongue": "language",
    "Nord/Gorm": "time zone",
}


def make_book(*more: tuple[str, str, str], without: tuple[str, ...] = ()) -> Phrasebook:
    """Five countries use the Crown and five have Common as official language; only Arden has
    both.
    """
    facts = [(land, "currency", "Crown") for land in LANDS[:5] if land not in without]
    facts += [(land, "official language", "Common") for land in [LANDS[0], *LANDS[5:]]]
    names = {name for fact in more for name in (fact[0], fact[2])} - KINDS.keys()
    nodes = [Node(name, kind) for name, kind in KINDS.items()]
    nodes += [Node(name, "territory") for name in sorted(names) if not name.isdigit()]
    return Phrasebook(Graph(nodes, [*facts, *more]), "cldr")


def shares(relation: str, thing) -> Proj:
    return Proj(f"{relation} of", Proj(relation, thing))


MONEY, SPEECH = shares("currency", "Bolm"), shares("official language", "Fenn")


def measure(query, phrases: Phrasebook) -> int:
    return measure_strangeness(query, write_sentences(query, phrases), phrases)


def test_two_shared_values_are_plain():
    assert evaluate_query(And((MONEY, SPEECH)), make_book().graph) == {"Arden"}
    assert measure(And((MONEY, SPEECH)), make_book()) == 0


def test_condition_with_few_matches_reveals_the_answer():
    fewer = make_book(without=("Drune", "Estland"))
    assert measure(And((MONEY, SPEECH)), fewer) == REVEALING_PENALTY
    assert measure(And((MONEY, SPEECH)), make_book(without=("Drune",))) == 0


def test_name_that_contains_the_shared_value_reveals_it():
    """Oldcrownia uses the Crown, which its name reveals."""
    phrases = make_book(("Oldcrownia", "currency", "Crown"))
    assert measure(And((shares("currency", "Oldcrownia"), SPEECH)), phrases) == REVEALING_PENALTY
    assert measure(And((MONEY, SPEECH)), phrases) == 0


def test_dependency_reveals_its_state_and_currency():
    facts = [(land, "currency", "Crown") for land in ("Jersey", "United Kingdom")]
    facts += [("United Kingdom", "official language", "Common")]
    phrases = make_book(*facts, without=("Arden",))
    same_money, same_speech = shares("currency", "Jersey"), SPEECH
    assert evaluate_query(And((same_money, same_speech)), phrases.graph) == {"United Kingdom"}
    assert measure(And((same_money, same_speech)), phrases) == REVEALING_PENALTY
    assert measure(And((MONEY, SPEECH)), phrases) == 0  # Bolm is not a dependency
    other = make_book(*facts[:1])
    assert (
        measure(And((shares("currency", "Jersey"), SPEECH)), other) == REVEALING_PENALTY
    )  # also for Arden
    speech = shares("official language", "Jersey")
    spoken = make_book(("Jersey", "official language", "Common"))
    assert measure(And((MONEY, speech)), spoken) == 0  # many countries share the language of Jersey
    state = make_book(("Jersey", "official language", "Common"), *facts[1:], without=("Arden",))
    assert evaluate_query(And((MONEY, speech)), state.graph) == {"United Kingdom"}
    assert measure(And((MONEY, speech)), state) == REVEALING_PENALTY


def test_similar_intermediate_name_reveals_the_answer():
    """German reveals Germany; Quint and Rusk also use the Mark and speak German."""
    query = And((MONEY, shares("official language", Proj("currency of", "Mark"))))
    scores = []
    for language in ("Tongue", "German"):
        speakers = ("Germany", "Quint", "Rusk", "Sorn", "Tarn")
        facts = [(land, "official language", language) for land in speakers]
        facts += [("Quint", "currency", "Mark"), ("Rusk", "currency", "Mark")]
        phrases = make_book(*facts, ("Germany", "currency", "Crown"))
        assert evaluate_query(query, phrases.graph) == {"Germany"}
        scores.append(measure(query, phrases))
    assert scores[1] == scores[0] + REVEALING_PENALTY


def test_language_with_the_stem_of_a_country_reveals_it():
    query = And((MONEY, Proj("widely spoken language of", Proj("official language", "Finland"))))
    scores = []
    for language in ("Tongue", "Finnish"):
        facts = [("Finland", "official language", language)]
        facts += [(land, "widely spoken language", language) for land in ("Arden", *LANDS[5:])]
        phrases = make_book(*facts)
        assert evaluate_query(query, phrases.graph) == {"Arden"}
        scores.append(measure(query, phrases))
    assert scores == [0, REVEALING_PENALTY]


@pytest.mark.parametrize(
    "official, more", [((), 0), (("Arden",), REVEALING_PENALTY)], ids=["one", "both"]
)
def test_two_official_languages_reveal_the_answer(official, more):
    """French and Dutch reveal Belgium; French and a minority language do not."""
    facts = [(land, "official language", "Tongue") for land in ("Sorn", *official)]
    facts += [(land, "widely spoken language", "Tongue") for land in LANDS[:4]]
    query = And((SPEECH, Proj("widely spoken language of", Proj("official language", "Sorn"))))
    phrases = make_book(*facts)
    assert evaluate_query(query, phrases.graph) == {"Arden"}
    assert measure(query, phrases) == more


def test_former_currency_reveals_a_neighbour():
    """Ireland used the currency of the United Kingdom."""
    had = [(one, "former currency", "Mark") for one in (*LANDS[:4], "Quint")]
    has = [(one, "currency", "Mark") for one in ("Sorn", "Tarn")]
    phrases = make_book(*had, *has)
    scores = [
        measure(And((SPEECH, Proj("former currency of", Proj(relation, land)))), phrases)
        for relation, land in (("former currency", "Quint"), ("currency", "Sorn"))
    ]
    assert scores == [0, REVEALING_PENALTY]


def test_compound_country_names_are_penalised():
    phrases = make_book(("Jorn & Kest", "currency", "Crown"))
    assert measure(And((shares("currency", "Jorn & Kest"), SPEECH)), phrases) == 1


def test_definite_phrase_for_multi_valued_relation():
    """The zone of Gorm is ambiguous if most countries have two zones."""
    query = And((MONEY, shares("official language", Proj("time zone of", "Zone/Fenn"))))
    one = make_book(("Fenn", "time zone", "Zone/Fenn"))
    several = [(land, "time zone", f"{land}/{i}") for land in ("Gorm", "Hask") for i in "12"]
    back = [(land, "time zone", "Shared/Zone") for land in ("Ivar", "Hask")]
    assert evaluate_query(query, one.graph) == {"Arden"}
    first = measure(query, one)
    assert measure(query, make_book(("Fenn", "time zone", "Zone/Fenn"), *several)) == first
    twice = [(land, "time zone", zone) for land in ("Ivar", "Hask") for zone in ("S/1", "S/2")]
    assert measure(query, make_book(("Fenn", "time zone", "Zone/Fenn"), *back, *twice)) == first + 1


def test_compound_names_are_written_with_and():
    phrases = make_book(("Jorn & Kest", "currency", "Crown"))
    query = And((shares("currency", "Jorn & Kest"), SPEECH))
    assert "as Jorn and Kest" in write_sentences(query, phrases)
    assert read_question(write_sentences(query, phrases), Grammar(phrases)) == normalise_query(
        query
    )


def test_condition_matching_only_answer_and_named_entity():
    pair = make_book(without=("Corvia", "Drune", "Estland"))
    assert measure(And((MONEY, SPEECH)), pair) == REVEALING_PENALTY + 1


@pytest.mark.parametrize("land, more", [("Bolmian Reef", REVEALING_PENALTY), ("Jorn Reef", 0)])
def test_names_that_share_a_word_reveal_the_answer(land, more):
    marks = [(one, "former currency", "Mark") for one in (land, *LANDS[5:])]
    phrases = make_book((land, "currency", "Crown"), *marks)
    query = And((MONEY, Proj("former currency of", "Mark")))
    assert evaluate_query(query, phrases.graph) == {land}
    assert measure(query, phrases) == more


def test_language_of_one_country_reveals_it():
    query = And((shares("currency", Proj("official language of", "Tongue")), SPEECH))
    one, two = ("Bolm", "official language", "Tongue"), ("Corvia", "official language", "Tongue")
    assert measure(query, make_book(one)) == REVEALING_PENALTY
    assert measure(query, make_book(one, two)) == 1  # it is ambiguous which of them is meant


def test_time_zone_reveals_its_place():
    zone = [(land, "time zone", "Nord/Gorm") for land in ("Arden", *LANDS[6:])]
    zoned = make_book(*zone)
    assert measure(And((MONEY, Proj("time zone of", "Nord/Gorm"))), zoned) == REVEALING_PENALTY
    assert measure(And((MONEY, shares("time zone", "Hask"))), zoned) == 0


@pytest.mark.parametrize(
    "query, more",
    [
        (And((MONEY, shares("currency", "Corvia"), SPEECH)), 2),  # three conditions, one twice
        (And((MONEY, shares("clock time", "Fenn"))), 2),  # clock times are unusual conditions
        (And((MONEY, shares("script", "Fenn"))), 2),  # shared scripts are unusual too
        (And((MONEY, Or((SPEECH, shares("clock time", "Fenn"))))), 5),
    ],
)
def test_other_faults_increase_strangeness(query, more):
    shared = (("clock time", "Noon"), ("script", "Runes"))
    phrases = make_book(*[(land, *fact) for land in ("Arden", *LANDS[5:]) for fact in shared])
    assert measure(query, phrases) >= more


def make_shop_book(*managed: str) -> Phrasebook:
    """Ash, Birk and Cole buy the Lamp; Ash and Dune are served from Porto and managed by Mia."""
    kinds = dict.fromkeys(("Ash", "Birk", "Cole", "Dune", "Elm"), "customer")
    kinds |= {"Lamp": "product", "Porto": "office", "Mia": "person", "Ned": "person"}
    facts = [(name, "product", "Lamp") for name in ("Ash", "Birk", "Cole")]
    facts += [(name, "office", "Porto") for name in ("Ash", "Dune", "Elm")]
    facts += [(name, "account manager", "Mia") for name in managed]
    facts += [("Dune", "account manager", "Ned")]
    nodes = [Node(name, kind) for name, kind in kinds.items()]
    return Phrasebook(Graph(nodes, facts), "folder")


OF_MIA, OF_NED = (Proj("account manager of", name) for name in ("Mia", "Ned"))


def test_two_nested_clauses_are_penalised():
    once = And((shares("product", OF_MIA), shares("office", "Dune")))
    twice = And((shares("product", OF_MIA), shares("office", OF_NED)))
    assert evaluate_query(twice, make_shop_book("Birk").graph) == {"Ash"}
    assert measure(once, make_shop_book("Birk")) == 0
    assert measure(twice, make_shop_book("Birk")) == 1


def test_comparison_with_ambiguous_entity_is_penalised():
    """ "the same product as a customer whose account manager is Mia": which of them?"""
    query = And((shares("product", OF_MIA), shares("office", "Dune")))
    assert measure(query, make_shop_book("Birk")) == 0
    assert measure(query, make_shop_book("Birk", "Cole")) == 1


@pytest.mark.parametrize(
    "text, times",
    [
        (
            "Which policy is owned by the same person as Sick leave and was made by the same team?",
            0,
        ),
        (
            "Which policy is owned by the same person as A and approved by the same person as B?",
            1,
        ),
        ("Which person is supervised by the same person as Quinn Brandt?", 1),
        ("Who is supervised by the same person as Quinn Brandt?", 0),
        ("Which setting was added in the release whose release manager is Jonas Thorne?", 1),
        ("Which setting was added in the release whose manager is Jonas Thorne?", 0),
        ("Which module is maintained by a maintainer of Lamp?", 1),
        ("Which paper was written by a person led by the same person as Quinn Brandt?", 1),
        ("Which customer buys the product of the customer that has been a customer since 1999?", 1),
        ("Who reports to the office manager of the Porto office?", 1),
        ("Who reports to the manager of the Porto office?", 0),
        ("Which experiment was led by Ada and uses the same method as experiment E12?", 1),
        ("Which experiment uses the same method as experiment E12 and was led by Ada?", 1),
        ("Which paper uses the same method as the paper in which experiment E2 was reported?", 0),
    ],
)
def test_repetition_and_mixed_tenses_are_penalised(text, times):
    assert measure_strangeness(And((MONEY, SPEECH)), text, make_book()) == times


def make_office_book() -> Phrasebook:
    kinds = {"Ada": "person", "Ben": "person", "Cleo": "person", "Lamp": "product", "Blue": "team"}
    kinds["Dora"] = "person"
    nodes = [Node(name, kind) for name, kind in kinds.items()]
    facts = [(name, "team", "Blue") for name in ("Ada", "Ben", "Lamp")]
    facts += [("Ada", "mentor", "Cleo"), ("Ben", "mentor", "Cleo"), ("Cleo", "team", "Blue")]
    facts += [("Dora", "mentor", "Cleo"), ("Blue", "lead", "Cleo")]
    return Phrasebook(Graph(nodes, facts), "folder")


def test_comparison_across_kinds_is_penalised():
    together = shares("team", "Lamp"), shares("team", "Ben")
    queries = [And((one, Proj("mentor of", "Cleo"))) for one in together]
    assert [measure(query, make_office_book()) for query in queries] == [
        2,
        0,
    ]  # a team of two kinds


def test_description_inside_a_phrase_is_penalised():
    led = Proj("mentor of", Proj("lead", "Blue"))
    assert write_sentences(led, make_office_book()) == (
        "Which person has the lead of the Blue team as their mentor?"
    )
    assert measure(led, make_office_book()) == 1 + measure(
        Proj("mentor of", "Cleo"), make_office_book()
    )


def test_select_plain_facts_excludes_unusual_facts():
    zones = [("Arden", "time zone", "Nord/Gorm"), ("Arden", "clock time", "Noon")]
    phrases = make_book(*zones, ("Bouvet Island", "currency", "Crown"))
    part = select_plain_facts(phrases.graph, phrases)
    left_out = set(phrases.graph.facts) - set(part.facts)
    assert left_out == {*zones, ("Bouvet Island", "currency", "Crown")}


def test_methods_are_not_compared_by_a_parameter():
    """A function can share only "mode"; a method could share "self"."""
    kinds = dict.fromkeys(("one.A.read", "two.B.read", "six.C.open", "seven.D.open"), "method")
    kinds |= {"three.read": "function", "Oops": "exception"}
    named = ("one.A.read", "two.B.read", "three.read", "seven.D.open")
    facts = [(title, "parameter", "mode") for title in named]
    facts += [(title, "raised exception", "Oops") for title in ("one.A.read", "six.C.open")]
    nodes = [Node(title, kind) for title, kind in kinds.items()]
    phrases = Phrasebook(Graph(nodes, facts), "pydocs")
    raises = shares("raised exception", "six.C.open")
    with_function, with_method = (
        And((shares("parameter", other), raises)) for other in ("three.read", "two.B.read")
    )
    assert evaluate_query(with_method, phrases.graph) == {"one.A.read"}
    assert measure(with_method, phrases) == measure(with_function, phrases) + 1


def test_names_with_function_words_are_penalised():
    query = And((shares("product", OF_MIA), shares("office", "Dune")))

    def strange(title):
        nodes = [*make_shop_book().graph.nodes.values(), Node(title, "course")]
        facts = [
            *make_shop_book("Birk").graph.facts,
            ("Ash", "course", title),
            ("Elm", "course", title),
        ]
        phrases = Phrasebook(Graph(nodes, facts), "folder")
        return measure(And((*query.parts[:1], Proj("course of", title))), phrases)

    assert strange("SQL for everyone") == strange("Plain writing") + 1
