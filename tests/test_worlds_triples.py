"""Triples of a model: a loopback server that replies correctly, invents, hangs and breaks."""

import itertools
import json
import subprocess
import sys
import threading
import time

import pytest

from drlib.notebook import ROOT
from drlib.worlds import load_world, read_facts, triples
from drlib.worlds.triples import TripleExtractor, relation_name
from tests.scripted_server import Scripted
from tests.triples_examples import Model, model_server
from tests.waiting import until

ADA = "Ada Lovelace wrote the first program. It ran on the Analytical Engine of Charles Babbage."
BABBAGE = "# Engine\n\nThe Analytical Engine was designed by Charles Babbage in 1837."
RIGHT = {
    "Ada": [
        ("Ada Lovelace", "work", "first program", "Ada Lovelace wrote the first program"),
        ("Analytical Engine", "owner", "Charles Babbage", "Analytical Engine of Charles Babbage"),
    ],
    "designed": [
        (
            "Analytical Engine",
            "designer",
            "Charles Babbage",
            "Analytical Engine was designed by Charles Babbage",
        ),
        (
            "Analytical Engine",
            "year of",
            "1837",
            "The Analytical Engine was designed by Charles Babbage in 1837.",
        ),
    ],
}


def reply_correctly(text):
    return [row for word, rows in RIGHT.items() if word in text for row in rows]


@pytest.fixture
def model():
    with model_server(reply_correctly) as server:
        yield server


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "ada.txt").write_text(ADA)
    (tmp_path / "docs" / "engine.md").write_text(BABBAGE)
    return tmp_path / "docs"


def load(place, model, index=None, **options):
    return load_world(f"folder:{place}", index, endpoint=model.url, model="tiny", **options)


def test_quoted_triples_become_facts_between_entities_of_many_files(place, model):
    world = load(place, model, api_key="key")
    graph = world.graph
    assert graph.values("Charles Babbage", "designer of") == {"Analytical Engine"}
    assert graph.values("Analytical Engine", "owner") == {"Charles Babbage"}
    assert graph.values("Analytical Engine", "mentioned in") == {"ada.txt", "engine.md"}
    assert graph.values("Analytical Engine", "year") == {"1837"} and graph.is_value("1837")
    assert graph.nodes["Ada Lovelace"].kind == "entity"
    page = world.page("analytical engine")
    assert "- designer: [Charles Babbage](folder:Charles Babbage)" in page.text
    assert "ada.txt" in page.links and world.search("Ada Lovelace")[0].title == "Ada Lovelace"
    assert +world.extraction == {"kept": 4}
    assert world.changes.skipped == {}
    assert {row[:3] for row in model.seen} == {("/v1/chat/completions", "tiny", "Bearer key")}
    assert sorted(row[3] for row in model.seen) == sorted([ADA, BABBAGE.replace("# ", "")])


LIES = [
    ("Ada Lovelace", "work", "second program", "Ada Lovelace wrote the first program"),
    ("Ada Lovelace", "work", "Ada wrote it", "Ada wrote it all by herself"),
    ("Charles Babbage", "friend", "Ada Lovelace", "Ada Lovelace wrote the first program"),
    ("Ada  Lovelace", "work", "first program", "Ada  Lovelace wrote the first program"),
    ("ada lovelace", "work", "first program", "Ada Lovelace wrote the first program"),
]
BROKEN = [
    ("Ada Lovelace", "", "first program", "Ada Lovelace wrote the first program"),
    ("Ada Lovelace", "of", "first program", "Ada Lovelace wrote the first program"),
    ("", "work", "first program", "Ada Lovelace wrote the first program"),
    ("Ada Lovelace", "x" * 100, "first program", "Ada Lovelace wrote the first program"),
    ("Ada Lovelace", "work", "Ada Lovelace", "Ada Lovelace wrote the first program"),
    ("Ada Lovelace", 7, "first program", "Ada Lovelace wrote the first program"),
    {"subject": "Ada Lovelace"},
    "Ada Lovelace",
    3,
    None,
    [1, 2],
]


def test_unquoted_and_malformed_rows_are_dropped_and_counted(place, model):
    model.replies = lambda text: LIES + BROKEN + reply_correctly(text) if "Ada" in text else []
    world = load(place, model)
    assert +world.extraction == {"kept": 2, "not quoted": len(LIES), "malformed": len(BROKEN)}
    subjects = {fact[0] for fact in world.graph.facts if fact[1] != "mentioned in"}
    assert subjects == {"Ada Lovelace", "Analytical Engine", "engine.md"}
    assert world.changes.skipped == {}


@pytest.mark.parametrize(
    "junk",
    [
        b"{}",
        b'{"choices": []}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": "no array"}}]}',
        b'{"choices": [{"message": {"content": "][ "}}]}',
    ],
    ids=range(5),
)
def test_junk_replies_are_counted_and_texts_are_kept(place, model, junk):
    model.replies = lambda text: junk if "Ada" in text else reply_correctly(text)
    world = load(place, model)
    assert +world.extraction == {"junk": 1, "kept": 2} and world.changes.skipped == {}
    assert world.find("ada.txt") and world.find("Charles Babbage")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (None, "Timeout"),
        (500, "500 Internal Server Error"),
        (401, "401"),
        (b"x" * 2_000_000, "bytes"),
        (b"", "no content"),
        (b"<html>", "<html>"),
        (b"[]", "no JSON object"),
        (b"\xff", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
    ],
)
def test_failed_endpoint_is_reported_and_retried_at_the_next_load(
    place, model, tmp_path, reply, reason
):
    model.replies = lambda text: reply if "Ada" in text else reply_correctly(text)
    index, start = tmp_path / "index.sqlite", time.monotonic()
    world = load(place, model, index, timeout_s=1.0)
    assert time.monotonic() - start < 15
    assert list(world.changes.skipped) == ["~triples//ada.txt"]
    assert model.url in world.changes.skipped["~triples//ada.txt"]
    assert reason in world.changes.skipped["~triples//ada.txt"]
    assert world.find("ada.txt") and not world.find("Ada Lovelace")
    assert world.find("Charles Babbage")
    request_count = len(model.seen)
    model.replies = reply_correctly
    again = load(place, model, index, timeout_s=5.0)
    assert again.changes.skipped == {} and again.find("Ada Lovelace")
    assert [row[3] for row in model.seen[request_count:]] == [ADA]
    request_count = len(model.seen)
    third = load(place, model, index)
    assert (
        len(model.seen) == request_count
        and third.version == again.version == load(place, model).version
    )


def test_slow_response_ends_at_the_deadline(place, model):
    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            if model.over.wait(0.1):
                return

    class Dripping(Model):
        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            drip(self)

    model.RequestHandlerClass = Dripping
    start = time.monotonic()
    world = load(place, model, timeout_s=0.5)
    assert time.monotonic() - start < 10 and len(world.changes.skipped) == 2
    assert all("no complete reply within 0.5 s" in why for why in world.changes.skipped.values())


def test_missing_server_and_consecutive_failures_stop_requests(place, model):
    model.shutdown()
    model.server_close()
    for i in range(5):
        (place / f"{i}.txt").write_text(ADA)
    world = load(place, model, timeout_s=5.0)
    skipped = world.changes.skipped
    assert len(skipped) == 7 and len(world) == 7
    assert sum("ConnectError" in why for why in skipped.values()) == triples.MAX_FAILED_FILES
    assert sum("failed 3 times in a row" in why for why in skipped.values()) == 4


def test_small_files_are_requested_concurrently_and_once(place, model):
    """Requests run concurrently, up to the workers; the result equals that of sequential ones."""
    for i in range(30):
        (place / f"{i:02}.txt").write_text(f"{ADA} Note {i}.")
    lock = threading.Lock()
    running = most = 0

    def slowly(text):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return reply_correctly(text)

    model.replies = slowly
    world = load(place, model)
    assert triples.WORKERS // 2 < most <= triples.WORKERS
    assert len(model.seen) == len({row[3] for row in model.seen}) == 32
    pages = world.graph.values("Ada Lovelace", "mentioned in")
    assert pages == {"ada.txt", *(f"{i:02}.txt" for i in range(30))}


def test_refusing_server_gets_few_requests(place, model):
    for i in range(78):
        (place / f"{i:02}.txt").write_text(f"{ADA} Note {i}.")
    model.replies = lambda text: 401
    assert len(load(place, model).changes.skipped) == 80
    assert len(model.seen) == triples.MAX_FAILED_FILES
    model.seen.clear()
    numbers = itertools.count()
    model.replies = lambda text: reply_correctly(text) if next(numbers) < 5 else 401
    skipped = load(place, model).changes.skipped
    # requests in flight are reported with the server's message
    assert 5 + triples.MAX_FAILED_FILES <= len(model.seen) <= 5 + 2 * triples.AHEAD
    # "HTTP 401", because the port in the URL may contain 401
    assert sum("HTTP 401" in why for why in skipped.values()) == len(model.seen) - 5
    assert len(skipped) == 80 - 5


def test_only_a_changed_file_is_requested_again(place, model, tmp_path):
    index = tmp_path / "index.sqlite"
    load(place, model, index)
    assert len(model.seen) == 2
    (place / "engine.md").write_text("An Ada Lovelace fan. Ada Lovelace wrote the first program.")
    world = load(place, model, index)
    assert len(model.seen) == 3
    assert world.find("Ada Lovelace") and world.graph.values("Charles Babbage", "owner of")
    assert not world.graph.values("Charles Babbage", "designer of")
    plain = load_world(f"folder:{place}", index)  # no endpoint: no triples
    assert plain.graph is None and plain.find("ada.txt") and not plain.find("Ada Lovelace")


def test_unreadable_file_is_reported_once(place, model):
    (place / "binary.txt").write_bytes(b"\0")
    world = load(place, model)
    assert list(world.changes.skipped) == ["binary.txt"] and len(model.seen) == 2


def test_every_entity_has_a_page(place, model):
    (place / "ada.txt").unlink()
    text = "# É\n\n|City|Land|\n|--|--|\n|Oslo|Norway|\n\nOslo is led by Bob."
    (place / "é.md").write_text(text)
    rows = [("Oslo", "mayor", "Bob", "Oslo is led by Bob")]
    model.replies = lambda text: rows if "led" in text else []
    world = load(place, model)
    assert world.find("Oslo") == "Oslo" and world.find("Bob") == "Bob"
    assert read_facts(world.page("Oslo").text)["mayor"] == ["Bob"]


def test_unreachable_endpoint_keeps_existing_triples(place, model, tmp_path):
    before = load(place, model, tmp_path / "index")
    gone = {"endpoint": "http://127.0.0.1:9/v1", "model": "tiny"}
    after = load_world(f"folder:{place}", tmp_path / "index", **gone)
    assert after.version == before.version and after.changes.skipped == {}


def test_relation_names():
    for name in ("part of :", "part: of :", " * part of of:* ", "part of `:` of"):
        assert relation_name(name) == "part", name
    assert relation_name("of :") == relation_name(": of") == "" != relation_name("more facts")
    assert relation_name("more facts") == "more facts field"
    assert relation_name("capital of") == "capital" and relation_name(" part  of of ") == "part"
    assert relation_name("of") == relation_name("") == relation_name(" ** ") == ""
    assert relation_name("link") == "link field" and relation_name("a: b") == "a b"
    assert relation_name("x; of") == "x," and relation_name("x: of:") == "x"
    assert relation_name(1999) == "1999" and relation_name("\ud800") == "?"
    for name in ("a: b of", "of of", "x of: of", "; of", ": ", " of", "a of; of"):
        found = relation_name(name)
        assert not found.endswith(" of") and ": " not in found and found == found.strip()


def test_endpoint_requires_a_model(place, model):
    for options in ({"endpoint": model.url}, {"model": "tiny"}):
        with pytest.raises(ValueError, match="endpoint=.*model=.*together"):
            load_world(f"folder:{place}", **options)
    assert TripleExtractor("http://x/v1/", "m").url == "http://x/v1"


def notes_of(place, number):
    for i in range(number):
        (place / f"{i:02}.txt").write_text(f"{ADA} Note {i}.")


LOADED_ELSEWHERE = """
import sys
from drlib.worlds import load_world

load_world(f"folder:{sys.argv[1]}", sys.argv[2], endpoint=sys.argv[3], model="tiny")
"""


def test_killed_load_resumes_with_the_remaining_chunks(place, model, tmp_path):
    """SIGKILL after some of 62 files: the index is empty, the replies are kept."""
    notes_of(place, 60)
    index = tmp_path / "index"

    def slowly(text):
        time.sleep(0.05)
        return reply_correctly(text)

    model.replies = slowly
    command = [sys.executable, "-c", LOADED_ELSEWHERE, str(place), str(index), model.url]
    loading = subprocess.Popen(command, cwd=ROOT)
    until(lambda: len(model.seen) >= 30)
    loading.kill()
    loading.wait()
    replied = len((tmp_path / "index.replies").read_text().splitlines())
    assert 30 - triples.WORKERS <= replied < 62
    time.sleep(0.2)  # the server finishes the requests of the killed process
    model.seen.clear()
    world = load(place, model, index)
    assert len(model.seen) == 62 - replied
    assert world.changes.skipped == {} and len(world.changes.added) > 62
    assert world.version == load(place, model).version
    assert +world.extraction == {"kept": 2 * 60 + 4}


def test_incomplete_saved_reply_is_requested_again(place, model, tmp_path):
    before = load(place, model, tmp_path / "index")
    kept = tmp_path / "index.replies"
    kept.write_text(kept.read_text()[:-20])
    (tmp_path / "index").unlink()
    model.seen.clear()
    assert load(place, model, tmp_path / "index").version == before.version
    assert len(model.seen) == 1 and len(kept.read_text().splitlines()) == 2


def test_changed_file_requests_only_changed_chunks(place, model, tmp_path):
    sections = [f"# Part {i}\n\n{ADA} In part {i}.\n\n" for i in range(5)]
    (place / "engine.md").write_text("".join(sections))
    load(place, model, tmp_path / "index")
    assert len(model.seen) == 1 + 5
    model.seen.clear()
    sections[2] = f"# Part 2\n\n{BABBAGE.removeprefix('# Engine')}\n\n"
    (place / "engine.md").write_text("".join(sections))
    world = load(place, model, tmp_path / "index")
    assert len(model.seen) == 1 and "designed" in model.seen[0][3]
    assert world.graph.values("Analytical Engine", "designer") == {"Charles Babbage"}


def test_replies_are_saved_per_model_without_junk(place, model, tmp_path):
    kept = {"replies_path": tmp_path / "said"}
    load(place, model, **kept)
    model.replies = lambda text: b"{}" if "Ada" in text else reply_correctly(text)
    other = {"endpoint": model.url, "model": "other", **kept}
    world = load_world(f"folder:{place}", **other)
    assert +world.extraction == {"junk": 1, "kept": 2} and len(model.seen) == 4
    model.replies = reply_correctly
    assert +load_world(f"folder:{place}", **other).extraction == {"kept": 4}
    assert [row[3] for row in model.seen[4:]] == [ADA]


def test_lone_surrogates_survive_the_reply_file(place, model, tmp_path):
    """JSON can escape a lone surrogate, which UTF-8 cannot encode."""
    rows = [dict(zip(triples.KEYS, row, strict=True)) for row in RIGHT["Ada"]]
    said = {"choices": [{"message": {"content": f"\ud800 {json.dumps(rows)}"}}]}
    model.replies = lambda text: (
        json.dumps(said).encode() if "Ada" in text else reply_correctly(text)
    )
    before = load(place, model, tmp_path / "index")
    assert +before.extraction == {"kept": 4}
    (tmp_path / "index").unlink()
    model.seen.clear()
    assert load(place, model, tmp_path / "index").version == before.version
    assert model.seen == []


def test_foreign_file_is_refused_as_reply_file(place, model, tmp_path):
    (tmp_path / "said").write_text('{"question": "?"}\n')
    with pytest.raises(ValueError, match="said, line 1 is no saved reply"):
        load(place, model, replies_path=tmp_path / "said")
    assert (tmp_path / "said").read_text() == '{"question": "?"}\n'
    assert model.seen == []


@pytest.mark.parametrize(
    "form",
    [
        "Based on [1] and [2]: {}",
        "{} (sources: [1], [ada.txt])",
        "<think>Perhaps [[1]] or []?</think>{}",
        "<think>[{{}}]</think>\n```json\n{}\n```\nAll are quoted [3].",
        '{{"facts": {}}}',
    ],
)
def test_reasoning_and_citations_around_the_array_are_skipped(place, model, form):
    def reply(text):
        rows = [dict(zip(triples.KEYS, row, strict=True)) for row in reply_correctly(text)]
        content = form.format(json.dumps(rows))
        return json.dumps({"choices": [{"message": {"content": content}}]}).encode()

    right = load(place, model)
    model.replies = reply
    world = load(place, model)
    assert +world.extraction == +right.extraction == {"kept": 4}
    assert set(world.graph.facts) == set(right.graph.facts)


def test_a_relation_that_ends_in_of_is_turned(tmp_path):
    """ "Lisgard, capital of, Ossel" says that Ossel has a capital, and "year of, 1837" a value."""
    (tmp_path / "docs").mkdir()
    text = "Lisgard is the capital of Ossel. The year of Lisgard was 1837."
    (tmp_path / "docs" / "a.txt").write_text(text)
    rows = [
        {"subject": "Lisgard", "relation": "capital of", "object": "Ossel", "evidence": text},
        {"subject": "Lisgard", "relation": "year of", "object": "1837", "evidence": text},
    ]
    with Scripted(lambda messages: json.dumps(rows)) as server:
        world = load_world(f"folder:{tmp_path / 'docs'}", endpoint=server.url, model="scripted")
    assert world.graph.values("Ossel", "capital") == {"Lisgard"}
    assert world.graph.values("Lisgard", "year") == {"1837"}
