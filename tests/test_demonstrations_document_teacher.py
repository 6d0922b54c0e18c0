"""The teacher that reads documents: what it opens, what it quotes, what it gives up.

Run: python -m pytest tests/test_demonstrations_document_teacher.py
"""

import random
import re

import pytest

from drlib.chat.tool_calls import ToolCall, parse
from drlib.config import ROOT
from drlib.demonstrations import document_teacher
from drlib.demonstrations.document_teacher import (
    DocumentQuestion,
    draw_document_questions,
    read_documents,
    says,
)
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.worlds import load_world

TERN = f"folder:{ROOT / 'notebooks' / 'tern'}"


@pytest.fixture(scope="module")
def tern():
    """Return (world, questions, {question: episode or None}) of a folder."""
    world, questions = draw_document_questions(TERN, 60, seed=0)
    episodes = {}
    with Toolbox(world, results=3) as toolbox:
        for question in questions:
            try:
                episodes[question] = read_documents(question, toolbox, world, random.Random(0))
            except LookupError:
                episodes[question] = None
    return world, questions, episodes


def turns(episode):
    """Return (thought, call or answer, everything observed before) of each turn."""
    seen, found = "", []
    for message in episode.messages[1:]:
        if message["role"] == "tool":
            seen += message["content"]
        else:
            thought = re.search(r"<think>(.*?)</think>", message["content"], re.DOTALL)[1]
            found.append((thought, parse(message["content"]), seen))
    return found


def test_questions_are_answered_correctly_or_given_up(tern):
    _, questions, episodes = tern
    done = [episode for episode in episodes.values() if episode]
    assert len(questions) == 60 and len(done) >= 20
    assert all(episode.correct for episode in done)
    assert {len(question.quotes) for question, episode in episodes.items() if episode} >= {1, 2}


def test_only_shown_pages_are_opened_and_quotes_are_from_opened_ones(tern):
    *_, episodes = tern
    for question, episode in episodes.items():
        if episode is None:
            continue
        for _, action, seen in turns(episode):
            if isinstance(action, ToolCall) and action.name == "visit":
                assert f"({action.arguments['url'][0]})" in seen
                assert action.arguments["goal"] == question.task.question
        last_thought, _, seen = turns(episode)[-1]
        assert last_thought == question.quotes[-1][0]
        search, *opened = [m["content"] for m in episode.messages if m["role"] == "tool"]
        assert all(says("\n".join(opened), quote) for quote, _ in question.quotes)


# longer than the beginning of a page that a search shows
PROSE = (
    "Nothing of importance is said in this paragraph, which is only here to be long enough. " * 3
)


@pytest.fixture
def notes(tmp_path):
    """Write a folder in which Ada's office leads to its city."""
    place = tmp_path / "notes"
    place.mkdir()
    (place / "ada.md").write_text(f"# Ada Brant\n\n{PROSE}\n\n- Office: [Harbour](harbour.md)\n")
    (place / "harbour.md").write_text(f"# Harbour House\n\n{PROSE}\n\n- City: Lisgard\n")
    return load_world(f"folder:{place}")


def ask(world, quotes, answer="Lisgard", results=1, rng=0):
    question = "What is the city of the office of Ada Brant?"
    task = Task("q", question, answer, "search", world.version)
    with Toolbox(world, results=results) as toolbox:
        return read_documents(
            DocumentQuestion(task, tuple(quotes)), toolbox, world, random.Random(rng)
        )


OFFICE = ("- Office: [Harbour](folder:harbour.md)", "folder:ada.md")
CITY = ("- City: Lisgard", "folder:harbour.md")


def test_a_link_leads_to_the_next_hop(notes):
    episode = ask(notes, [OFFICE, CITY])
    calls = [action for _, action, _ in turns(episode)[:-1]]
    assert [call.name for call in calls] == ["search", "visit", "visit"]
    assert [call.arguments["url"] for call in calls[1:]] == [
        ["folder:ada.md"],
        ["folder:harbour.md"],
    ]
    assert turns(episode)[2][0].startswith(OFFICE[0])
    assert episode.answer == "Lisgard" and episode.correct


def test_quotes_are_in_the_order_of_the_hops(tern):
    """The line of the first hop links to the page of the second."""
    _, questions, _ = tern
    chains = [q for q in questions if len(q.quotes) == 2 and ' of"' not in q.task.query]
    assert chains
    for question in chains:
        (line, _), (_, address) = question.quotes
        assert f"({address})" in line


def test_a_search_result_is_opened_even_if_it_shows_the_quote(tmp_path):
    (tmp_path / "ada.md").write_text("# Ada Brant\n\n- City: Lisgard\n")
    episode = ask(load_world(f"folder:{tmp_path}"), [("- City: Lisgard", "folder:ada.md")])
    search, page = episode.tool_results
    assert "- City: Lisgard" in search.text and "- City: Lisgard" in page.text
    assert [action.name for _, action, _ in turns(episode)[:-1]] == ["search", "visit"]


def test_a_sentence_with_links_is_quoted_without_them(tmp_path):
    sentence = "Ada Brant founded the Harbour House in 1931."
    line = "Ada Brant founded the [Harbour House](harbour.md) in [1931](y.md)."
    (tmp_path / "ada.md").write_text(f"# Ada Brant\n\n{line}\n")
    (tmp_path / "harbour.md").write_text("# Harbour House\n\nA house.\n")
    (tmp_path / "y.md").write_text("# 1931\n\nA year.\n")
    episode = ask(
        load_world(f"folder:{tmp_path}"), [(sentence, "folder:ada.md")], answer="1931", results=3
    )
    assert "[Harbour House](folder:harbour.md)" in episode.tool_results[-1].text
    assert turns(episode)[-1][0] == sentence and episode.correct


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x [Harbour House](a.md) y", True),
        ("x Harbour House y", True),
        ("[Harbour](a.md) [House](b.md)", True),
        ("Harbour  House", False),
        ("", False),
    ],
)
def test_says_ignores_links(text, found):
    assert says(text, "Harbour House") == found


def test_detours_come_back(notes, monkeypatch):
    monkeypatch.setattr(document_teacher, "DETOURS", 1.0)
    episode = ask(notes, [CITY], results=2)
    opened = [a.arguments["url"][0] for _, a, _ in turns(episode)[1:-1]]
    assert opened == ["folder:ada.md", "folder:harbour.md"]
    assert turns(episode)[2][0].startswith(document_teacher.NOT_THERE)
    monkeypatch.setattr(document_teacher, "DETOURS", 0.0)
    assert len(ask(notes, [CITY], results=2).tool_results) == 2


def test_a_detour_that_shows_the_quote_ends_there(notes, monkeypatch):
    monkeypatch.setattr(document_teacher, "DETOURS", 1.0)
    episode = ask(notes, [(OFFICE[0], "folder:harbour.md")], results=2)
    opened = [a.arguments["url"][0] for _, a, _ in turns(episode)[1:-1]]
    assert opened == ["folder:ada.md"] and turns(episode)[-1][0] == OFFICE[0]


@pytest.mark.parametrize(
    ("quotes", "words"),
    [
        ([("- Owner: Ben", "folder:ada.md")], "does not show"),
        ([CITY], "no tool has shown folder:harbour.md"),
        ([("x" * 400, "folder:ada.md")], "400 characters"),
    ],
)
def test_unreadable_questions_are_given_up(notes, quotes, words):
    with pytest.raises(LookupError, match=words):
        ask(notes, quotes)


def test_long_observations_are_given_up(notes, monkeypatch):
    monkeypatch.setattr(document_teacher, "MAX_OBSERVED", 50)
    with pytest.raises(LookupError, match="observations have"):
        ask(notes, [OFFICE, CITY])
