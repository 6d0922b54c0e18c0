"""Tests of picture questions: every leak and every swapped picture is dropped with a reason.

Run: python -m pytest tests/test_questions_webwatcher.py
"""

import random
from collections import Counter
from dataclasses import replace

import pytest

from drlib.questions import chain_questions
from drlib.questions.webwatcher import (
    Visual,
    blank_picture,
    export_rows,
    filter_visuals,
    find_examiner_fault,
    find_selector_fault,
    identify_thing,
    make_visual_questions,
    measure_relevance,
)
from drlib.task import Task
from drlib.tools.pictures import Album, from_png
from drlib.worlds import Entity, Graph, Node, SmallWorld, load_world
from drlib.worlds.emblems import draw, find_boxes, make_sheet, read_numbers

WORLD = load_world("tour")
TASKS = chain_questions(WORLD, 120, 0)


class Named(SmallWorld):
    """A world with aliases."""

    @property
    def graph(self):
        aliases = {"Côte d'Ivoire": ("Ivory Coast", "CIV"), "Peru": ("Republic of Peru",)}
        nodes = [Node(t, e.kind, aliases.get(t, ())) for t, e in self.entities.items()]
        facts = [(t, r, v) for t, e in self.entities.items() for r, v in e.facts.items()]
        return Graph(nodes, facts)


NAMED = Named(
    [
        Entity("Côte d'Ivoire", "territory", {"currency": "CFA Franc"}),
        Entity("Peru", "territory", {"currency": "Sol"}),
        Entity("Lima", "city", {"territory": "Peru"}),
        Entity("Quechua", "language", {"script": "Latin"}),
    ],
    "named",
)


@pytest.fixture(scope="module")
def album():
    return Album(WORLD)


@pytest.fixture(scope="module")
def visuals(album):
    """Return both kinds of picture for every task."""
    sheets, none = make_visual_questions(TASKS, WORLD, album)
    alone, neither = make_visual_questions(TASKS, WORLD, album, others=0)
    assert none == neither == [] and len(sheets) == len(alone) == len(TASKS)
    return sheets + alone


def replace_question(visual, question):
    return replace(visual, task=replace(visual.task, question=question))


def test_picture_questions_replace_only_the_name(album, visuals):
    for visual in visuals:
        task, source = visual.task, visual.source
        words = f"the thing numbered {visual.number} in" if visual.number else "the thing in"
        assert task.question == source.question.replace(source.start, f"{words} the picture")
        assert (task.answer, task.hops, task.relations) == (
            source.answer,
            source.hops,
            source.relations,
        )
        assert task.start == "" and visual.entity == source.start
    assert len({visual.task.id for visual in visuals}) == len(visuals)
    again, _ = make_visual_questions(TASKS, WORLD, Album(WORLD))
    assert again == visuals[: len(TASKS)], "equal in another album"
    other, _ = make_visual_questions(TASKS, WORLD, album, seed=1)
    assert [v.task.picture for v in other] != [v.task.picture for v in again]


def test_sheets_show_the_entity_once_at_any_position(album, visuals):
    places = Counter()
    for visual in visuals[: len(TASKS)]:
        pixels = album.pixels(visual.task.picture)
        numbers = read_numbers(pixels).split()
        assert len(numbers) == len(find_boxes(pixels)) == 4 and numbers.count(visual.number) == 1
        places[numbers.index(visual.number)] += 1
    assert len(places) == 4 and min(places.values()) > len(TASKS) / 8


def test_valid_picture_questions_are_kept(album, visuals):
    kept, dropped = filter_visuals(visuals, WORLD, album)
    assert kept == visuals and dropped == []


def test_tasks_without_a_picture_are_reported(album):
    lost = Task("t", "What is 2 + 2?", "4", "python", "")
    assert make_visual_questions([lost], WORLD, album) == ([], [(lost, "no picture of ''")])
    with pytest.raises(ValueError, match="others=4: 4 emblems"):
        make_visual_questions(TASKS, NAMED, Album(NAMED), others=4)


WAYS = (
    "{}, that is. {}",
    "{1} I mean {0}.",
    "{1} ({0})",
    "{1} It is {0}'s.",
    '{1} Its name is "{0}"',
)


def test_selector_detects_injected_leaks(visuals):
    """Names in all positions, other cases and without accents."""
    caught = Counter()
    for visual in visuals:
        for way in WAYS:
            for change in (str, str.upper, str.lower):
                name = change(visual.entity)
                text = way.format(name, visual.task.question)
                caught[
                    find_selector_fault(replace_question(visual, text), WORLD)
                    == f"leaks {visual.entity!r}"
                ] += 1
    assert caught[True] == len(visuals) * len(WAYS) * 3 and not caught[False]


@pytest.mark.parametrize(
    "told", ["Cote d’Ivoire", "CÔTE D'IVOIRE", "Ivory Coast", "ivory  coast", "CIV"]
)
def test_selector_detects_aliases(told):
    album = Album(NAMED)
    task = Task("t", "What is the currency of Côte d'Ivoire?", "CFA Franc", "search", "", 1)
    ((visual,), _) = make_visual_questions(
        [replace(task, start="Côte d'Ivoire")], NAMED, album, others=0
    )
    assert visual.task.question == "What is the currency of the thing in the picture?"
    assert (
        find_selector_fault(visual, NAMED) == ""
        and find_selector_fault(replace_question(visual, "What currency?"), NAMED) == ""
    )
    leaking = replace_question(
        visual, f"What is the currency of the thing in the picture ({told})?"
    )
    assert find_selector_fault(leaking, NAMED).startswith("leaks ")
    aliased = replace(task, question="What is the currency of Ivory Coast?", start="Côte d'Ivoire")
    ((visual,), _) = make_visual_questions([aliased], NAMED, album, others=0)
    assert visual.task.question == "What is the currency of the thing in the picture?"


def test_partial_word_match_is_not_a_leak():
    task = Task("t", "What is the script of Quechua?", "Latin", "search", "", 1, "Peru")
    question = "Which Peruvian currency is that of the thing in the picture?"
    assert find_selector_fault(Visual(replace(task, question=question), task, "Peru"), NAMED) == ""


def test_selector_drops_unchanged_and_irrelevant_questions(visuals):
    for visual in visuals:
        same = replace_question(visual, visual.source.question.upper())
        assert find_selector_fault(same, WORLD) == "unchanged"
        other = "Helsinki" if visual.entity != "Helsinki" else "Oslo"
        beside = replace(visual, entity=other)
        question = "What is the currency code of the language of the thing in the picture?"
        assert find_selector_fault(replace_question(beside, question), WORLD) == "relevance 0.00"
        assert (
            find_selector_fault(replace_question(beside, "What about the thing there?"), WORLD)
            == "relevance 0.00"
        )
        words = " ".join(visual.task.relations).split()
        assert 1 / len(words) <= measure_relevance(visual, WORLD) <= 1
        strict = find_selector_fault(visual, WORLD, least=0.9)
        assert strict == "" or strict.startswith("relevance 0.")


def test_examiner_drops_swapped_pictures(album, visuals):
    """Pixels of another picture of the same kind, or with one emblem changed."""
    dropped = 0
    for visual, other in zip(visuals, visuals[1:] + visuals[:1]):
        swapped = replace(visual, task=replace(visual.task, picture=other.task.picture))
        identified = identify_thing(album.pixels(other.task.picture), visual.number, album)
        assert bool(find_examiner_fault(swapped, album)) == (identified != visual.entity)
        dropped += bool(find_examiner_fault(swapped, album))
    same = sum(v.entity == o.entity for v, o in zip(visuals, visuals[1:] + visuals[:1]))
    assert dropped == len(visuals) - same
    rng = random.Random(0)
    for visual in visuals:
        stranger = rng.choice([t for t in album.emblems if t != visual.entity])
        drawn = [draw(album.emblems[stranger])] * (4 if visual.number else 1)
        picture = album.add(make_sheet(drawn) if visual.number else drawn[0])
        swapped = replace(visual, task=replace(visual.task, picture=picture))
        reason = "shows nothing known" if visual.number else f"shows {stranger!r}"
        assert find_examiner_fault(swapped, album) == reason
        assert find_examiner_fault(blank_picture(visual, album), album) == "shows nothing known"
    lost = replace(visual, task=replace(visual.task, picture="no.png"))
    assert find_examiner_fault(lost, album) == "no picture"


def test_custom_examiner_is_used(album, visuals):
    seen = []

    def see(pixels, number):
        seen.append((pixels.shape, number))
        return "Norway"

    kept, dropped = filter_visuals(visuals, WORLD, album, see)
    assert len(seen) == len(visuals) and {v.entity for v in kept} <= {"Norway"}
    assert {reason for _, reason in dropped} == {"shows 'Norway'"}


def test_dropped_questions_have_reasons(album, visuals):
    mixed = [
        visuals[0],
        replace_question(visuals[1], visuals[1].source.question),
        replace_question(visuals[2], visuals[2].task.question + visuals[2].entity),
        blank_picture(visuals[3], album),
    ]
    kept, dropped = filter_visuals(mixed, WORLD, album)
    assert kept == mixed[:1] and [visual for visual, _ in dropped] == mixed[1:]
    reasons = [reason for _, reason in dropped]
    assert reasons == ["unchanged", f"leaks {visuals[2].entity!r}", "shows nothing known"]


def test_rows_have_the_released_fields(album, visuals, tmp_path):
    rows = export_rows(visuals[:3] + visuals[-1:], album, tmp_path)
    assert {*rows[0]} == {"question", "image_path", "answers", "domain"}
    assert [row["domain"] for row in rows] == ["sheet"] * 3 + ["emblem"]
    for row, visual in zip(rows, visuals):
        assert row["answers"] == [visual.task.answer]
        written = from_png((tmp_path / row["image_path"]).read_bytes())
        assert (written == album.pixels(visual.task.picture)).all()
        break
