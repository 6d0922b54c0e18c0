"""Search ranking is bit-identical to one FTS query and follows the visible state.

Run: python -m pytest tests/test_worlds_store_ranking.py
"""

import math
import random

import pytest

from drlib.worlds import load_world
from drlib.worlds import store as store_module
from drlib.worlds.store import Document, Part, Store
from drlib.worlds.terms import (
    FUNCTION_WORDS,
    LONG_QUERY,
    MAX_TERMS,
    STOP,
    query_weights,
    search_terms,
)
from tests.store_examples import library, place

WORDS = "the of moon river json.dumps stone Émile red_bird 7 harbour salt".split()
QUERY = "SELECT title FROM pages WHERE pages MATCH ? ORDER BY bm25(pages, 4.0, 1.0, 1.0), title"


def pages(seed, n=120):
    """Create short pages, many of equal length and score."""
    rng = random.Random(seed)
    return [
        Document(f"{rng.choice(WORDS)} {number}", " ".join(rng.choices(WORDS, k=rng.randint(1, 9))))
        for number in range(n)
    ]


def make_store(documents, path=None):
    store = Store(path)
    store.update({"all": "1"}, lambda _: Part(documents))
    return store


def rank_by_one_query(store, query):
    """Return SQLite's ranking of one query with OR."""
    terms = dict.fromkeys(search_terms(query))
    return [title for (title,) in store.rows(QUERY, " OR ".join(f'"{term}"' for term in terms))]


@pytest.mark.parametrize("seed", range(5))
def test_ranking_equals_a_single_fts_query(seed):
    store, rng = make_store(pages(seed)), random.Random(seed)
    for _ in range(60):
        query = " ".join(rng.choices([*WORDS, "JSON", "emile", "nowhere"], k=rng.randint(1, 6)))
        expected = rank_by_one_query(store, query)
        for k in (1, 3, 10, 1000):
            assert store.search(query, k) == expected[:k]


def test_tour_ranking_equals_a_single_fts_query():
    world = load_world("tour")
    for entity in [*world.entities.values()][::25]:
        query = " ".join([entity.kind, *entity.facts, *entity.facts.values()])
        assert world.store.search(query, 8) == rank_by_one_query(world.store, query)[:8]


def test_scores_match_the_bm25_formula():
    """BM25 with k1 = 1.2 and b = 0.75 and titles weighted 4x, computed by hand."""
    documents = [Document(f"p{i}" + " moon" * (i % 3 == 0), "moon salt " * i) for i in range(9)]
    documents += [Document(f"q{i}", "river stone") for i in range(30)]
    words = {d.title: (d.title.split(), d.text.split()) for d in documents}
    mean = sum(len(title) + len(text) for title, text in words.values()) / len(words)

    def score(title, terms):
        total = 0.0
        for term in terms:
            has = sum(term in head + text for head, text in words.values())
            weight = math.log((len(words) - has + 0.5) / (has + 0.5))
            head, text = words[title]
            times = 4.0 * head.count(term) + text.count(term)
            length = 1.2 * (0.25 + 0.75 * (len(head) + len(text)) / mean)
            total += weight * times * 2.2 / (times + length)
        return total

    terms = ("moon", "salt")
    matching = [title for title, (head, text) in words.items() if {*terms} & {*head, *text}]
    best = sorted(matching, key=lambda title: (-score(title, terms), title))
    assert make_store(documents).search("moon salt", 100) == best and len(best) == 9


def test_ties_are_ordered_by_title():
    titles = ["b", "é", "B", "a", "c"]
    for seed in range(3):
        random.Random(seed).shuffle(titles)
        store = make_store([Document(title, "moon") for title in titles])
        assert store.search("moon", 3) == ["B", "a", "b"]
        assert store.search("moon", 9) == sorted(titles)


def test_common_words_do_not_outrank_rare_ones():
    documents = [Document(f"page {i}", "moon salt river " * 5) for i in range(500)]
    documents.append(Document("other", "moon zircon ochre " + "stone " * 200))
    store = make_store(documents)
    assert store.search("zircon moon salt ochre", 1) == ["other"]
    assert "other" in store.search("moon salt zircon", 500)


def test_title_match_outranks_frequent_mentions():
    parts = {"t": Part([Document("Moon river", "x")])}
    parts |= {str(i): Part([Document(f"Moon river {i}", "moon river " * 9)]) for i in range(20)}
    assert library(parts).search("moon RIVER", 5)[0].title == "Moon river"


def test_update_is_visible_to_its_writer_only(tmp_path):
    path, parts = tmp_path / "index", {str(i): place(f"Place {i}", ("r", "salt")) for i in range(9)}
    old = library(parts, path)
    before = old.store.search("salt place", 20)
    assert len(before) == 9
    store = Store(path)
    store.update(dict.fromkeys(parts, "1"), None)
    assert store.search("salt place", 20) == before
    parts["3"] = Part([Document("Place 3", "salt salt")])
    del parts["5"]
    parts["new"] = Part([Document("Salt", "a place")])
    stamps = dict.fromkeys(parts, "1") | {"3": "2"}
    store.update(stamps, parts.__getitem__)
    after = store.search("salt place", 20)
    fresh = library(parts).store
    assert after == fresh.search("salt place", 20) == rank_by_one_query(store, "salt place")
    assert "Salt" in after and "Place 5" not in after
    assert old.store.search("salt place", 20) == before


def test_evicted_words_are_ranked_again(monkeypatch):
    store = make_store(pages(1))
    expected = {word: rank_by_one_query(store, word) for word in WORDS}
    monkeypatch.setattr(store_module, "MAX_RANKED", 60)
    for _ in range(2):
        for word in WORDS:
            assert store.search(word, 1000) == expected[word]
    kept = store._ranking._scores_by_term
    assert store._ranking._cached_pages == sum(len(places) for places, _ in kept.values())
    assert store._ranking._cached_pages <= 60 or len(kept) == 1


def scores_by_sqlite(store, term):
    """Return title -> BM25 score of one term, higher is better."""
    sql = "SELECT title, bm25(pages, 4.0, 1.0, 1.0) FROM pages WHERE pages MATCH ?"
    return {title: -score for title, score in store.rows(sql, f'"{term}"')}


def test_long_queries_count_words_and_leave_out_function_words():
    """One term above the limit: the sum over content words of occurrences x BM25."""
    rng = random.Random(4)
    content = [f"word{number}" for number in range(LONG_QUERY - 1)]
    words = [*content, "you", "your"]
    documents = [
        Document(f"page {number}", " ".join(rng.choices(words, k=rng.randint(3, 30))))
        for number in range(60)
    ]
    store = make_store(documents)
    counts = {word: 1 + number % 4 for number, word in enumerate(words)}
    query = [word for word, times in counts.items() for _ in range(times)]
    rng.shuffle(query)
    assert len(set(query)) == LONG_QUERY + 1
    total = dict.fromkeys((document.title for document in documents), 0.0)
    for word in content:
        for title, score in scores_by_sqlite(store, word).items():
            total[title] += counts[word] * score
    best = sorted((t for t in total if total[t]), key=lambda t: (-total[t], t))
    found = store.search(" ".join(query).title(), 100)
    assert len(found) == len(best) and found[:20] == best[:20]


def test_queries_up_to_the_limit_are_questions():
    """As many terms, with repetitions and function words: the ranking of one query with OR."""
    words = [f"word{number}" for number in range(LONG_QUERY - 2)]
    rng = random.Random(5)
    documents = [
        Document(f"p{number}", " ".join(rng.choices([*words, "you", "your"], k=9)))
        for number in range(80)
    ]
    store = make_store(documents)
    query = " ".join([*words, "you", "your", *words[:9], "you"])
    assert len(dict.fromkeys(search_terms(query))) == LONG_QUERY
    assert store.search(query, 80) == rank_by_one_query(store, query)


def test_long_queries_of_function_words_only_still_find_pages():
    words = sorted(FUNCTION_WORDS - STOP)[: LONG_QUERY + 1]
    store = make_store([Document("x", f"once upon {words[3]}"), Document("y", "moon")])
    assert store.search(" ".join(words), 5) == ["x"]


def test_queries_of_any_length_are_answered():
    store = make_store([Document("first", "word3"), Document("last", f"word{MAX_TERMS + 3}")])
    query = " ".join(f"word{number}" for number in range(20_000))
    assert store.search(query, 5) == ["first"]
    assert len(query_weights(query)) == MAX_TERMS
