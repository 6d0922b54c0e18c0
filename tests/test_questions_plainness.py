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


def book(*more: tuple[str, str, str], without: tuple[str, ...] = ()) -> Phrasebook:
    """Five countries use the Crown and five have Common as official language; only Arden has
    both.
    """
    facts = [(land, "currency", "Crown") for land in LANDS[:5] if land not in without]
    facts += [(land, "official language", "Common") for land in [LANDS[0], *LANDS[5:]]]
    names = {name for fact in more for name in (fact[0], fact[2])} - KINDS.keys()
    nodes = [Node(name, kind) for name, kind in KINDS.items()]
    nodes += [Node(name, "territory") for name in sorted(names) if not name.isdigit()]
    return Phrasebook(Graph(nodes, [*facts, *more]), "cldr")


def like(relation: str, thing) -> Proj:
    return Proj(f"{relation} of", Proj(relation, thing))


MONEY, SPEECH = like("currency", "Bolm"), like("official language", "Fenn")


def measured(query, phrases: Phrasebook) -> int:
    return measure_strangeness(query, write_sentences(query, phrases), phrases)


def test_two_things_in_common_are_plain():
    assert evaluate_query(And((MONEY, SPEECH)), book().graph) == {"Arden"}
    assert measured(And((MONEY, SPEECH)), book()) == 0


def test_a_public_condition_that_leaves_few_tells_the_answer():
    fewer = book(without=("Drune", "Estland"))
    assert measured(And((MONEY, SPEECH)), fewer) == REVEALING_PENALTY
    assert measured(And((MONEY, SPEECH)), book(without=("Drune",))) == 0


def test_a_name_that_holds_what_is_shared_tells_it():
    """Oldcrownia uses the Crown, which its name reveals."""
    phrases = book(("Oldcrownia", "currency", "Crown"))
    assert measured(And((like("currency", "Oldcrownia"), SPEECH)), phrases) == REVEALING_PENALTY
    assert measured(And((MONEY, SPEECH)), phrases) == 0


def test_a_dependency_tells_its_state_and_its_money():
    facts = [(land, "currency", "Crown") for land in ("Jersey", "United Kingdom")]
    facts += [("United Kingdom", "official language", "Common")]
    phrases = book(*facts, without=("Arden",))
    same_money, same_speech = like("currency", "Jersey"), SPEECH
    assert evaluate_query(And((same_money, same_speech)), phrases.graph) == {"United Kingdom"}
    assert measured(And((same_money, same_speech)), phrases) == REVEALING_PENALTY
    assert measured(And((MONEY, SPEECH)), phrases) == 0  # Bolm is no dependency
    other = book(*facts[:1])
    assert (
        measured(And((like("currency", "Jersey"), SPEECH)), other) == REVEALING_PENALTY
    )  # for Arden too
    speech = like("official language", "Jersey")
    spoken = book(("Jersey", "official language", "Common"))
    assert measured(And((MONEY, speech)), spoken) == 0  # many speak as Jersey does
    state = book(("Jersey", "official language", "Common"), *facts[1:], without=("Arden",))
    assert evaluate_query(And((MONEY, speech)), state.graph) == {"United Kingdom"}
    assert measured(And((MONEY, speech)), state) == REVEALING_PENALTY


def test_what_is_on_the_way_and_looks_like_the_answer_tells_it():
    """German reveals Germany; Quint and Rusk also use the Mark and speak German."""
    query = And((MONEY, like("official language", Proj("currency of", "Mark"))))
    told = []
    for language in ("Tongue", "German"):
        speakers = ("Germany", "Quint", "Rusk", "Sorn", "Tarn")
        facts = [(land, "official language", language) for land in speakers]
        facts += [("Quint", "currency", "Mark"), ("Rusk", "currency", "Mark")]
        phrases = book(*facts, ("Germany", "currency", "Crown"))
        assert evaluate_query(query, phrases.graph) == {"Germany"}
        told.append(measured(query, phrases))
    assert told[1] == told[0] + REVEALING_PENALTY


def test_a_land_and_its_language_begin_alike():
    query = And((MONEY, Proj("widely spoken language of", Proj("official language", "Finland"))))
    told = []
    for language in ("Tongue", "Finnish"):
        facts = [("Finland", "official language", language)]
        facts += [(land, "widely spoken language", language) for land in ("Arden", *LANDS[5:])]
        phrases = book(*facts)
        assert evaluate_query(query, phrases.graph) == {"Arden"}
        told.append(measured(query, phrases))
    assert told == [0, REVEALING_PENALTY]


@pytest.mark.parametrize(
    "official, more", [((), 0), (("Arden",), REVEALING_PENALTY)], ids=["one", "both"]
)
def test_two_official_languages_of_the_answer_tell_it(official, more):
    """French and Dutch reveal Belgium; French and a minority language do not."""
    facts = [(land, "official language", "Tongue") for land in ("Sorn", *official)]
    facts += [(land, "widely spoken language", "Tongue") for land in LANDS[:4]]
    query = And((SPEECH, Proj("widely spoken language of", Proj("official language", "Sorn"))))
    phrases = book(*facts)
    assert evaluate_query(query, phrases.graph) == {"Arden"}
    assert measured(query, phrases) == more


def test_money_that_another_had_before_tells_a_neighbour():
    """Ireland used the currency of the United Kingdom."""
    had = [(one, "former currency", "Mark") for one in (*LANDS[:4], "Quint")]
    has = [(one, "currency", "Mark") for one in ("Sorn", "Tarn")]
    phrases = book(*had, *has)
    told = [
        measured(And((SPEECH, Proj("former currency of", Proj(relation, land)))), phrases)
        for relation, land in (("former currency", "Quint"), ("currency", "Sorn"))
    ]
    assert told == [0, REVEALING_PENALTY]


def test_two_lands_in_one_name_are_not_joined_to_another_condition():
    phrases = book(("Jorn & Kest", "currency", "Crown"))
    assert measured(And((like("currency", "Jorn & Kest"), SPEECH)), phrases) == 1


def test_one_of_what_is_mostly_several_is_not_said_as_the_one():
    """The zone of Gorm is ambiguous if most countries have two zones."""
    query = And((MONEY, like("official language", Proj("time zone of", "Zone/Fenn"))))
    one = book(("Fenn", "time zone", "Zone/Fenn"))
    several = [(land, "time zone", f"{land}/{i}") for land in ("Gorm", "Hask") for i in "12"]
    back = [(land, "time zone", "Shared/Zone") for land in ("Ivar", "Hask")]
    assert evaluate_query(query, one.graph) == {"Arden"}
    first = measured(query, one)
    assert measured(query, book(("Fenn", "time zone", "Zone/Fenn"), *several)) == first
    twice = [(land, "time zone", zone) for land in ("Ivar", "Hask") for zone in ("S/1", "S/2")]
    assert measured(query, book(("Fenn", "time zone", "Zone/Fenn"), *back, *twice)) == first + 1


def test_two_lands_in_one_name_are_joined_by_a_word():
    phrases = book(("Jorn & Kest", "currency", "Crown"))
    query = And((like("currency", "Jorn & Kest"), SPEECH))
    assert "as Jorn and Kest" in write_sentences(query, phrases)
    assert read_question(write_sentences(query, phrases), Grammar(phrases)) == normalise_query(
        query
    )


def test_a_condition_that_leaves_the_answer_and_what_is_named_is_idle_for_a_reader():
    pair = book(without=("Corvia", "Drune", "Estland"))
    assert measured(And((MONEY, SPEECH)), pair) == REVEALING_PENALTY + 1


@pytest.mark.parametrize("land, more", [("Bolmian Reef", REVEALING_PENALTY), ("Jorn Reef", 0)])
def test_names_that_share_a_word_tell(land, more):
    marks = [(one, "former currency", "Mark") for one in (land, *LANDS[5:])]
    phrases = book((land, "currency", "Crown"), *marks)
    query = And((MONEY, Proj("former currency of", "Mark")))
    assert evaluate_query(query, phrases.graph) == {land}
    assert measured(query, phrases) == more


def test_a_language_of_one_land_names_it():
    query = And((like("currency", Proj("official language of", "Tongue")), SPEECH))
    one, two = ("Bolm", "official language", "Tongue"), ("Corvia", "official language", "Tongue")
    assert measured(query, book(one)) == REVEALING_PENALTY
    assert measured(query, book(one, two)) == 1  # which of them is not said


def test_a_time_zone_names_a_place():
    zone = [(land, "time zone", "Nord/Gorm") for land in ("Arden", *LANDS[6:])]
    zoned = book(*zone)
    assert measured(And((MONEY, Proj("time zone of", "Nord/Gorm"))), zoned) == REVEALING_PENALTY
    assert measured(And((MONEY, like("time zone", "Hask"))), zoned) == 0


@pytest.mark.parametrize(
    "query, more",
    [
        (And((MONEY, like("currency", "Corvia"), SPEECH)), 2),  # three conditions, one twice
        (And((MONEY, like("clock time", "Fenn"))), 2),  # nobody asks by clock times
        (And((MONEY, like("script", "Fenn"))), 2),  # nor by scripts in common
        (And((MONEY, Or((SPEECH, like("clock time", "Fenn"))))), 5),
    ],
)
def test_other_faults_are_counted(query, more):
    shared = (("clock time", "Noon"), ("script", "Runes"))
    phrases = book(*[(land, *fact) for land in ("Arden", *LANDS[5:]) for fact in shared])
    assert measured(query, phrases) >= more


def shop(*managed: str) -> Phrasebook:
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


def test_a_clause_inside_a_clause_twice_is_one_too_many():
    once = And((like("product", OF_MIA), like("office", "Dune")))
    twice = And((like("product", OF_MIA), like("office", OF_NED)))
    assert evaluate_query(twice, shop("Birk").graph) == {"Ash"}
    assert measured(once, shop("Birk")) == 0
    assert measured(twice, shop("Birk")) == 1


def test_nothing_is_compared_with_one_of_several():
    """ "the same product as a customer whose account manager is Mia": which of them?"""
    query = And((like("product", OF_MIA), like("office", "Dune")))
    assert measured(query, shop("Birk")) == 0
    assert measured(query, shop("Birk", "Cole")) == 1


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
def test_what_is_said_twice_or_in_two_times_is_not_plain(text, times):
    assert measure_strangeness(And((MONEY, SPEECH)), text, book()) == times


def office() -> Phrasebook:
    kinds = {"Ada": "person", "Ben": "person", "Cleo": "person", "Lamp": "product", "Blue": "team"}
    kinds["Dora"] = "person"
    nodes = [Node(name, kind) for name, kind in kinds.items()]
    facts = [(name, "team", "Blue") for name in ("Ada", "Ben", "Lamp")]
    facts += [("Ada", "mentor", "Cleo"), ("Ben", "mentor", "Cleo"), ("Cleo", "team", "Blue")]
    facts += [("Dora", "mentor", "Cleo"), ("Blue", "lead", "Cleo")]
    return Phrasebook(Graph(nodes, facts), "folder")


def test_a_person_is_not_compared_with_a_product():
    together = like("team", "Lamp"), like("team", "Ben")
    asked = [And((one, Proj("mentor of", "Cleo"))) for one in together]
    assert [measured(query, office()) for query in asked] == [2, 0]  # a team of two kinds


def test_a_description_in_the_middle_of_a_phrase_is_torn():
    led = Proj("mentor of", Proj("lead", "Blue"))
    assert write_sentences(led, office()) == (
        "Which person has the lead of the Blue team as their mentor?"
    )
    assert measured(led, office()) == 1 + measured(Proj("mentor of", "Cleo"), office())


def test_plain_questions_are_drawn_from_what_people_ask_by():
    zones = [("Arden", "time zone", "Nord/Gorm"), ("Arden", "clock time", "Noon")]
    phrases = book(*zones, ("Bouvet Island", "currency", "Crown"))
    part = select_plain_facts(phrases.graph, phrases)
    left_out = set(phrases.graph.facts) - set(part.facts)
    assert left_out == {*zones, ("Bouvet Island", "currency", "Crown")}


def test_two_methods_share_self_and_so_are_not_compared_by_a_parameter():
    """A function can share only "mode"; a method could share "self"."""
    kinds = dict.fromkeys(("one.A.read", "two.B.read", "six.C.open", "seven.D.open"), "method")
    kinds |= {"three.read": "function", "Oops": "exception"}
    named = ("one.A.read", "two.B.read", "three.read", "seven.D.open")
    facts = [(title, "parameter", "mode") for title in named]
    facts += [(title, "raised exception", "Oops") for title in ("one.A.read", "six.C.open")]
    nodes = [Node(title, kind) for title, kind in kinds.items()]
    phrases = Phrasebook(Graph(nodes, facts), "pydocs")
    raises = like("raised exception", "six.C.open")
    with_function, with_method = (
        And((like("parameter", other), raises)) for other in ("three.read", "two.B.read")
    )
    assert evaluate_query(with_method, phrases.graph) == {"one.A.read"}
    assert measured(with_method, phrases) == measured(with_function, phrases) + 1


def test_a_name_with_a_small_word_in_it_wants_quotes():
    query = And((like("product", OF_MIA), like("office", "Dune")))

    def strange(title):
        nodes = [*shop().graph.nodes.values(), Node(title, "course")]
        facts = [*shop("Birk").graph.facts, ("Ash", "course", title), ("Elm", "course", title)]
        phrases = Phrasebook(Graph(nodes, facts), "folder")
        return measured(And((*query.parts[:1], Proj("course of", title))), phrases)

    assert strange("SQL for everyone") == strange("Plain writing") + 1
