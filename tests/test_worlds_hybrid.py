"""Search by word embeddings and its fusion with full-text search.

Run: python -m pytest tests/test_worlds_hybrid.py
"""

import random

import numpy as np
import pytest

from drlib.worlds import embeddings, load_world
from drlib.worlds import library as library_module
from drlib.worlds.embeddings import load_embeddings
from drlib.worlds.library import Library
from drlib.worlds.store import Document, Part, Store
from drlib.worlds.terms import LONG_QUERY

PAGES = {
    "Bakery": "Bread, rolls and cakes are sold every morning.",
    "Harbour": "Ships and boats lie at the quay.",
    "Physician": "The doctor treats patients in the clinic.",
    "River": "The water flows past the mill.",
    "Loan": "The bank lends money at a rate of interest.",
}


@pytest.fixture(scope="module")
def world():
    store = Store()
    store.update({"all": "1"}, lambda _: Part([Document(*page) for page in PAGES.items()]))
    return Library("test", store, "t", "hybrid")


def test_vectors_are_means_of_token_vectors():
    model = load_embeddings()
    a, b, both, function_words = model.embed(["ship", "bread", "ship bread", "you the"])
    # means of one token each have the same direction as the mean of both, up to their lengths
    residual = both - np.stack([a, b]).T @ np.linalg.lstsq(np.stack([a, b]).T, both)[0]
    assert np.abs(residual).max() < 1e-5
    assert np.allclose(np.linalg.norm([a, b, both, function_words], axis=1), 1, atol=1e-5)
    assert np.allclose(model.embed(["The SHIP, your bread!"]), model.embed(["SHIP bread"]))
    assert a @ model.embed(["boat"])[0] > a @ b + 0.1
    empty = model.embed(["", "?!"])
    assert empty.shape == (2, 256) and not empty.any()
    assert model.embed([]).shape == (0, 256)


def test_words_that_no_page_has_find_pages_by_meaning(world):
    assert world.store.search("vessels", 3) == []
    assert world.search("vessels", 1)[0].title == "Harbour"
    assert world.search("mortgage credit", 1)[0].title == "Loan"


def long_query(*words):
    """Return the words and others that are on no page, in more terms than a question has."""
    return " ".join([*words, *(f"filler{number}" for number in range(LONG_QUERY))])


def test_long_queries_add_reciprocal_ranks():
    """Recomputed from both rankings of 150 pages: 1 / (60 + rank), first rank 1, ties by title."""
    rng = random.Random(0)
    words = " ".join(PAGES.values()).split()
    pages = {f"page {i:03}": " ".join(rng.choices(words, k=8)) for i in range(150)}
    store = Store()
    store.update({"all": "1"}, lambda _: Part([Document(*page) for page in pages.items()]))
    world = Library("test", store, "t", "hybrid")
    titles = sorted(pages)
    embed = load_embeddings().embed  # a page that is a file by itself
    vectors = embed(f"{title} {pages[title]}" for title in titles)
    vectors = vectors + embed(pages[title] for title in titles)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for found in ("bread bank", "water doctor", "money interest clinic quay", "nothing"):
        query = long_query(*found.split())
        by_meaning = vectors @ embed([query])[0]
        order = sorted(range(150), key=lambda place: (-by_meaning[place], place))
        scores = {titles[place]: 1 / (60 + rank) for rank, place in enumerate(order, 1)}
        for rank, title in enumerate(store.search(query, 150), 1):
            scores[title] += 1 / (60 + rank)
        best = sorted(titles, key=lambda title: (-scores[title], title))
        assert [hit.title for hit in world.search(query, 150)] == best
        assert [hit.title for hit in world.search(query, 2)] == best[:2]


def test_questions_are_ranked_by_words_first(world):
    """The word "rolls" is on one page, which is not the nearest one in meaning."""
    question = "rolls, mortgages and finance"
    assert world.store.search(question, 5) == ["Bakery"]
    assert world.search("mortgages and finance", 1)[0].title == "Loan"
    found = [hit.title for hit in world.search(question, 5)]
    assert found[:2] == ["Bakery", "Loan"] and {*found} == {*PAGES}
    assert [hit.title for hit in world.search(question, 1)] == ["Bakery"]


def test_sections_are_embedded_with_their_file():
    """Hand-computed: the mean of the page's direction and that of all texts of its file."""
    pages = {"a.md": "Ships", "a.md#x": "Open at noon", "b.md": "Bread", "b.md#x": "Open at noon"}
    store = Store()
    store.update({"all": "1"}, lambda _: Part([Document(*page) for page in pages.items()]))
    titles, vectors = Library("test", store, "t", "hybrid")._embedded
    assert titles == sorted(pages)
    model = load_embeddings()
    for title, vector in zip(titles, vectors):
        name = title.partition("#")[0]
        (own,) = model.embed([f"{title} {pages[title]}"])
        (file,) = model.embed([f"{pages[name]} {pages[f'{name}#x']}"])
        expected = (own + file) / np.linalg.norm(own + file)
        assert np.allclose(vector, expected, atol=1e-4)
    ships = vectors @ model.embed(["vessel"])[0]
    assert ships[1] > ships[3] + 0.05  # equal sections of different files


def test_only_the_best_pages_of_each_ranking_are_fused(world, monkeypatch):
    monkeypatch.setattr(library_module, "FUSED", 1)
    query = long_query("interest", "clinic", "quay")
    (first,) = world.store.search(query, 1)
    assert [hit.title for hit in world.search(query, 1)] == [first]
    assert len(world.search(query, 4)) == 4  # k above the limit


def test_titles_come_first(world):
    assert world.search("river", 3)[0].title == "River"
    assert world.search("t:River", 1)[0].title == "River"


def test_folders_have_the_engine(tmp_path):
    for title, text in PAGES.items():
        (tmp_path / f"{title}.md").write_text(text)
    world = load_world(f"folder:{tmp_path}", engine="hybrid")
    assert world.search("vessels", 1)[0].title == "Harbour.md"


def test_missing_package_is_named(monkeypatch):
    find = embeddings.importlib.util.find_spec
    missing = {"wordllama"}
    monkeypatch.setattr(
        embeddings.importlib.util, "find_spec", lambda name: None if name in missing else find(name)
    )
    load_embeddings.cache_clear()
    for load in (load_embeddings, lambda: load_world("cldr", engine="hybrid")):
        with pytest.raises(ImportError, match=r"pip install \"drlib\[retrieval\]\""):
            load()
