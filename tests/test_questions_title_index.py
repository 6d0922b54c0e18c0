"""Tests of the title index against a plain search.

Run: python -m pytest tests/test_questions_title_index.py
"""

import random

from drlib.questions.read_back import TitleIndex

TITLES = ("Go", "Oslo", "Oslo Fjord", "7", "Oslo F", "Gothenburg", "O", "a b c", "Oslo Fjord 2")


def find_by_scan(titles, text, at):
    """Return every title that matches, one by one."""
    found = [
        (title, at + len(name))
        for name, title in titles.items()
        if text.startswith(name, at) and not text[at + len(name) : at + len(name) + 1].isalnum()
    ]
    return sorted(found, key=lambda row: -row[1])


def test_find_at_returns_whole_words_longest_first():
    index = TitleIndex({name: name.upper() for name in TITLES})
    assert list(index.find_at("to Oslo Fjord.", 3)) == [("OSLO FJORD", 13), ("OSLO", 7)]
    assert list(index.find_at("Oslos", 0)) == [] == list(index.find_at("", 0))
    assert list(index.find_at("Go", 0)) == [("GO", 2)]  # shorter than the index prefix


def test_find_at_matches_a_linear_scan():
    titles = {name: name.upper() for name in TITLES}
    index, rng, seen = TitleIndex(titles), random.Random(1), 0
    for _ in range(300):
        text = rng.choice(["", " "]).join(rng.choices([*TITLES, "is", ", "], k=5))
        for at in range(len(text) + 1):
            found = list(index.find_at(text, at))
            assert found == find_by_scan(titles, text, at), (text, at)
            seen += len(found)
    assert seen > 500
