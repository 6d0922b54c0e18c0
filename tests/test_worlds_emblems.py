"""Emblems: deterministic, unique, and their digits can be read from crops.

Run: python -m pytest tests/test_worlds_emblems.py
"""

import hashlib
import itertools

import numpy as np
import pytest

from drlib.worlds.emblems import (
    COLOURS,
    SHAPES,
    SIZE,
    Emblem,
    assign_emblems,
    draw,
    find_boxes,
    make_emblem,
    make_sheet,
    read_numbers,
    resize,
    sheet_boxes,
)

NUMBERS = ("0123", "4567", "8901", "1111", "7770")
SHEET = make_sheet([draw(Emblem("ring", "red", number)) for number in NUMBERS], columns=2)


def crop(pixels, box):
    left, top, width, height = box
    return pixels[top : top + height, left : left + width]


def test_emblem_depends_on_the_title_only():
    assert (
        make_emblem("Norway") == Emblem("ring", "yellow", "9366") != make_emblem("Norway", salt=1)
    )
    drawn = draw(make_emblem("Norway"))
    assert drawn.shape == (SIZE, SIZE, 3) and drawn.dtype == np.uint8
    assert hashlib.sha256(drawn.tobytes()).hexdigest()[:12] == "8e1fd4448bdf"
    assert make_emblem("Norway").caption == "a yellow ring over the number 9366"


def test_emblems_are_unique():
    titles = [f"thing {n}" for n in range(3000)]
    found = assign_emblems(titles)
    assert len({*found.values()}) == len(titles) > len({make_emblem(title) for title in titles})
    assert found == assign_emblems(reversed(titles)), "in whatever order they come"
    with pytest.raises(ValueError, match="exceed the"):
        assign_emblems(map(str, range(240_001)))


def test_shapes_and_colours_all_differ():
    drawn = [draw(Emblem(*how, "0000")) for how in itertools.product(SHAPES, COLOURS)]
    apart = [(one != other).any(axis=2).sum() for one, other in itertools.combinations(drawn, 2)]
    assert min(apart) > 100, "pixels"


def test_every_digit_is_read_at_every_position():
    for number in ("0123", "1234", "2345", "3456", "4567", "5678", "6789", "7890", "8901", "9012"):
        drawn = draw(Emblem("square", "grey", number))
        assert read_numbers(drawn) == number
        assert read_numbers(drawn.repeat(3, 0).repeat(3, 1)) == number
        assert read_numbers(resize(drawn, 96, 96)) == number


def test_sheet_is_read_in_reading_order():
    assert find_boxes(SHEET) == sheet_boxes(5, columns=2)
    assert read_numbers(SHEET) == "0123 4567\n8901 1111\n7770"
    assert [read_numbers(crop(SHEET, box)) for box in find_boxes(SHEET)] == [*NUMBERS]
    blank = np.full_like(SHEET, 255)
    assert find_boxes(blank) == [] and read_numbers(blank) == ""


def test_crops_read_whole_digits_and_mark_cut_ones():
    left, top, width, height = sheet_boxes(5)[1]  # of 4567
    for less in range(1, 9):
        whole = (left + less, top + less, width - 2 * less, height - less)
        assert read_numbers(crop(SHEET, whole)) == "4567"
    wide = (left - 7, top - 7, width + 14, height + 14)
    assert read_numbers(crop(SHEET, wide)) == "4567"
    assert read_numbers(crop(SHEET, (left, top, 30, height)))[:2] == "45"
    through_the_5 = crop(SHEET, (left, top, 25, height))
    assert read_numbers(through_the_5) == "4?"
    halved = crop(SHEET, (left, top, width, height - 12))
    assert set(read_numbers(halved)) <= {"?", " "}, "no digit out of half a glyph"
