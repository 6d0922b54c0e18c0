"""Tests of the title index against a plain search.

Run: python -m pytest tests/test_questions_title_index.py
"""

import random

from drlib.questions.read_back import TitleIndex

TITLES = ("Go", "Oslo", "Oslo Fjord", "7", "Oslo F", "Gothenburg", "O", "a b c", "Oslo Fjord 2")


def find_plainly(titles, text, at):
    """Return every title that matches, one by one."""
    found = [
        (title, at + len(said))
        for said, title in titles.items()
        if text.startswith(said, at) and not text[at + len(said) : at + len(said) + 1].isalnum()
    ]
    return sorted(found, key=lambda row: -row[1])


def test_the_longest_comes_first_and_each_ends_with_a_word():
    index = TitleIndex({said: said.upper() for said in TITLES})
    assert list(index.find_at("to Oslo Fjord.", 3)) == [("OSLO FJORD", 13), ("OSLO", 7)]
    assert list(index.find_at("Oslos", 0)) == [] == list(index.find_at("", 0))
    assert list(index.find_at("Go", 0)) == [("GO", 2)]  # shorter than what titles are looked up by


def test_as_a_plain_search_finds_them():
    titles = {said: said.upper() for said in TITLES}
    index, rng, seen = TitleIndex(titles), random.Random(1), 0
    for _ in range(300):
        text = rng.choice(["", " "]).join(rng.choices([*TITLES, "is", ", "], k=5))
        for at in range(len(text) + 1):
            found = list(index.find_at(text, at))
            assert found == find_plainly(titles, text, at), (text, at)
            seen += len(found)
    assert seen > 500
