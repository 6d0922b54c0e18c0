"""Questions in English: nothing of a query is lost; a model's wording is kept only if checked."""

import json
import random
import re
import threading
import time
from collections import defaultdict
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from query_examples import any_query, small_graph, tour_graph, unique_queries

from drlib.synthesis.queries import (
    And,
    Count,
    Diff,
    Extreme,
    Or,
    Proj,
    Range,
    canonical,
    constants,
    to_text,
    walk,
)
from drlib.synthesis.wording import (
    TEMPLATES,
    flaw,
    plural,
    render,
    rewrite,
    says,
    span,
)

SMALL = small_graph()
RIVER = Proj("river of", "Rin")
NORDIC = And((RIVER, Proj("region of", "Nord")))


# ------------------------------------------------------------------------------------ templates


def test_five_wordings_of_one_question():
    assert [render(NORDIC, SMALL, i) for i in range(TEMPLATES)] == [
        "Which town is the one that has the river Rin and that has the region Nord?",
        "Find the town with the river Rin and with the region Nord.",
        "What is the name of the town that has the river Rin and that has the region Nord?",
        "There is exactly one town with the river Rin and with the region Nord. Name it.",
        "I am looking for a town that has the river Rin and that has the region Nord."
        " Which one is it?",
    ]
    assert render(NORDIC, SMALL, TEMPLATES) == render(NORDIC, SMALL, 0)


def test_what_stands_inside_is_in_brackets_where_it_could_be_misread():
    inner = And((Proj("region", "Borg"), Proj("region", "Cove")))
    query = And((Proj("region of", inner), RIVER))
    assert render(query, SMALL) == (
        "Which town is the one that has a region (that is a region of Borg and that is a region of "
        "Cove) and that has the river Rin?"
    )
    chain = Proj("length", Proj("river", Proj("region of", "Nord")))
    assert render(chain, SMALL) == (
        "Which length is the one that is a length of a river that is a river of a town that has "
        "the region Nord?"
    )


@pytest.mark.parametrize(
    "query, text",
    [
        (Count(RIVER), "How many towns with the river Rin are there?"),
        (
            Proj("region", Or(("Alba", "Borg"))),
            "Which region is the one that is a region of Alba or Borg?",
        ),
        (
            Or((RIVER, Proj("river of", "Sava"))),
            "Which town is the one that has the river Rin or that has the river Sava?",
        ),
        (
            Diff(RIVER, Proj("region of", "Nord")),
            "Which town is the one that has the river Rin, except any that has the region Nord?",
        ),
        (
            And((RIVER, Range("founding year", 1410, 1413))),
            "Which town is the one that has the river Rin and with a founding year in the early 1410s?",
        ),
        (Range("length", 900, 999), "Which river is the one with a length between 900 and 999?"),
        (
            Extreme("founding year", RIVER, True),
            "Which town is the one with the latest founding year of any town that has the river Rin?",
        ),
        (
            Extreme("founding year", NORDIC, False),
            "Which town is the one with the earliest founding year of any town that has the river Rin and "
            "that has the region Nord?",
        ),
        (
            And((Extreme("length", Proj("river", "Alba"), True), Proj("length of", "940"))),
            "Which thing is the one with the largest length of any river (that is a river of Alba) and "
            "that has the length 940?",
        ),
    ],
)
def test_each_node_has_its_words(query, text):
    assert render(query, SMALL) == text


def test_other_names_stand_in_for_titles():
    assert "Sau" in render(Proj("river of", "Sava"), SMALL, 0, {"Sava": "Sau"})
    merged = Or(("Rin", "Sava"))
    text = render(Proj("river of", merged), SMALL, 0, {merged: "some river"})
    assert "the river some river" in text and "Sava" not in text


def test_every_constant_relation_and_number_of_any_query_is_said():
    rng = random.Random("said")
    for _ in range(400):
        query = any_query(SMALL, rng)
        text = render(query, SMALL, rng.randrange(TEMPLATES))
        for part in walk(query):
            if isinstance(part, Proj | Range | Extreme):
                assert says(text, part.relation.removesuffix(" of")), (query, text)
            if isinstance(part, Range):
                assert says(text, span(part.low, part.high))
        assert all(says(text, name) for name in constants(query))
        assert text.endswith(("?", ".")) and "{" not in text


@pytest.mark.parametrize("template", [0, 1])
def test_different_queries_read_differently(template):
    """Two trees with the same words differ in their brackets: the reader can recover the tree."""
    rng, by_text = random.Random("differ"), defaultdict(set)
    for _ in range(3000):
        query = any_query(SMALL, rng)
        by_text[render(query, SMALL, template)].add(to_text(canonical(query)))
    assert len(by_text) > 1500
    for text, queries in by_text.items():
        assert len(queries) == 1, (text, queries)


def test_the_tour_reads_without_loss_and_the_same_each_time():
    graph = tour_graph()
    for i, (query, _) in enumerate(unique_queries(graph, 60, 0)):
        text = render(query, graph, i)
        assert text == render(query, graph, i)
        assert all(says(text, name) for name in constants(query))
        assert len({render(query, graph, t) for t in range(TEMPLATES)}) == TEMPLATES


@pytest.mark.parametrize(
    "low, high, text",
    [
        (1990, 1999, "in the 1990s"),
        (2010, 2013, "in the early 2010s"),
        (2014, 2016, "in the mid 2010s"),
        (2017, 2019, "in the late 2010s"),
        (2010, 2014, "between 2010 and 2014"),
        (1995, 2004, "between 1995 and 2004"),
        (50, 59, "between 50 and 59"),
        (0, 0, "of less than 1"),
        (0, 9, "of less than 10"),
        (7, 7, "of 7"),
    ],
)
def test_ranges_of_numbers_in_words(low, high, text):
    assert span(low, high) == text


def test_plurals_and_whole_words():
    assert [plural(n) for n in ("territory", "key", "class", "script")] == [
        "territories",
        "keys",
        "classes",
        "scripts",
    ]
    assert says("is it MALI?", "Mali") and not says("Somalia", "Mali")


# ------------------------------------------------------------------------------------ endpoints

QUESTION = render(NORDIC, SMALL)
GOOD = "By the Rin lies a town in the region Nord. Which town is meant?"


class Model(BaseHTTPRequestHandler):
    """Answers as its path says; keeps what it was sent."""

    seen = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).seen.append((self.path, body, self.headers.get("Authorization")))
        said = {
            "good": GOOD,
            "spaces": GOOD.replace(". ", ".\n\n  "),
            "leak": GOOD[:-1] + ", Alba?",
            "alias": GOOD[:-1] + ", the ALBA TOWN?",
            "lost": "Which town lies in the region Nord?",
            "number": GOOD[:-1] + " among 3?",
            "long": GOOD + " Think." * 200 + "?",
            "hidden": GOOD[:-1] + ", Al\u200bba?",
            "short": "Rin, Nord?",
            "open": "The town by the Rin in the region Nord",
            "empty": "",
        }
        kind = self.path.split("/")[1]
        if kind == "hang":
            time.sleep(1.0)
        reply = {"choices": [{"message": {"content": said.get(kind)}}]}
        raw = {
            "text": b"no json",
            "deep": b"[" * 100_000,
            "list": b"[]",
            "bytes": b"\xff\xfe\x00",
            "number0": b"7",
            "nothing": b'{"choices": []}',
        }.get(kind, json.dumps(reply).encode())
        self.send_response(500 if kind == "500" else 200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        with suppress(BrokenPipeError):  # who waits no longer hangs up
            self.wfile.write(raw)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def base():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def ask(base, kind, **more):
    names = ["Alba", "Alba Town"]
    return rewrite(QUESTION, NORDIC, f"{base}/{kind}/v1", "tiny", answers=names, **more)


@pytest.mark.parametrize("kind", ["good", "spaces"])
def test_a_model_that_answers_well_is_used(base, kind):
    assert ask(base, kind, key="secret") == (GOOD, "")
    path, body, authorization = Model.seen[-1]
    assert path == f"/{kind}/v1/chat/completions" and authorization == "Bearer secret"
    assert body["model"] == "tiny" and body["messages"][-1]["content"].endswith(QUESTION)
    assert "Alba" not in json.dumps(body)  # the answer is never shown


@pytest.mark.parametrize(
    "kind, reason",
    [
        ("leak", "tells the answer 'Alba'"),
        ("alias", "tells the answer 'Alba'"),
        ("hidden", "do not print"),
        ("deep", "no chat completion"),
        ("lost", "loses 'Rin'"),
        ("number", "numbers"),
        ("long", "characters"),
        ("short", "characters"),
        ("open", "end like a question"),
        ("empty", "loses 'Rin'"),
        ("500", "HTTP 500"),
        ("text", "no chat completion"),
        ("list", "no chat completion"),
        ("bytes", "no chat completion"),
        ("nothing", "no chat completion"),
        ("number0", "no chat completion"),
        ("none", "no chat completion"),
    ],
)
def test_a_model_that_does_not_leaves_the_template_and_a_reason(base, kind, reason):
    text, why = ask(base, kind)
    assert text == QUESTION and reason in why


def test_a_model_that_hangs_is_not_waited_for(base):
    text, why = ask(base, "hang", timeout_s=0.1)
    assert text == QUESTION and "timeout" in why


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9/v1", "no address", "ftp://x"])
def test_no_model_at_all(endpoint):
    text, why = rewrite(QUESTION, NORDIC, endpoint, "tiny", answers=["Alba"], timeout_s=5)
    assert text == QUESTION and why.startswith("the endpoint failed")


def test_numbers_may_move_but_not_change():
    query = And((RIVER, Range("length", 50, 59)))
    question = render(query, SMALL)
    fine = "Between 50 and 59 is its length, and it lies by the Rin: what is it?"
    assert flaw(fine, question, ["Rin"], []) == ""
    assert flaw(re.sub("59", "69", fine), question, ["Rin"], []) == "its numbers are others"


def test_what_stands_for_a_name_must_stay_too(base):
    question = render(NORDIC, SMALL, 0, {"Nord": '"N." (initials)'})
    text, why = rewrite(question, NORDIC, f"{base}/good/v1", "tiny", answers=["Alba"])
    assert (text, why) == (GOOD, "")  # Nord is not in the question: nothing asks for it
    text, why = rewrite(
        question, NORDIC, f"{base}/good/v1", "tiny", answers=["Alba"], keep=['"N." (initials)']
    )
    assert text == question and "loses" in why and "initials" in why
