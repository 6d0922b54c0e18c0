"""Toolbox on a world and a sandbox: Tongyi formats, faults as observations, caching.

Run: python -m pytest tests/test_tools.py
"""

import threading

import pytest

from drlib.sandbox import Sandbox, SandboxResult
from drlib.tools import NO_RESULTS, TOOLS, Toolbox
from drlib.worlds import Entity, SmallWorld, load_world


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


@pytest.fixture(scope="module")
def toolbox(cldr):
    with Sandbox() as sandbox, Toolbox(cldr, sandbox) as toolbox:
        yield toolbox


def test_search_shows_numbered_links_and_joins_queries(toolbox):
    one = toolbox.call("search", {"query": ["Norway"]})
    assert one.ok and one.source == "cldr"
    assert one.text.startswith("1. [Norway](cldr:Norway)\ncurrency Norwegian Krone; ")
    assert len(one.text.splitlines()) <= 20
    two = toolbox.call("search", {"query": ["Norway", "Gabon"]})
    first, second = two.text.split("\n=======\n")
    assert first == one.text and second.startswith("1. [Gabon]")


def test_visit_reads_pages_and_reports_missing_ones(toolbox):
    page = toolbox.call("visit", {"url": ["cldr:Norway"], "goal": "its currency"})
    assert page.ok and "for user goal its currency" in page.text
    assert "[Norwegian Krone](cldr:Norwegian Krone)" in page.text
    none = toolbox.call("visit", {"url": ["cldr:Atlantis"], "goal": "x"})
    assert not none.ok and "cldr:Atlantis could not be accessed" in none.text


def test_python_output_and_exceptions_are_observations(toolbox):
    assert toolbox.call("python", {"code": "print(37*45)"}).text == "1665"
    assert toolbox.call("python", {"code": "x = 1"}).text == "Finished execution."
    wrong = toolbox.call("python", {"code": "print(1/0)"})
    assert not wrong.ok and not wrong.env_fault and "ZeroDivisionError" in wrong.text


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("search", {"query": "Norway"}, "query must be a list of strings"),
        ("search", {"query": []}, "list of strings"),
        ("search", {"query": [3]}, "list of strings"),
        ("search", {}, "list of strings"),
        ("search", {"query": ["Norway"] * 11}, "query may have 10 entries at most"),
        ("visit", {"url": ["cldr:Norway"]}, "needs goal"),
        ("python", {"code": 3}, "needs code"),
        ("browse", {}, "no tool 'browse'; tools: search, visit, python"),
    ],
)
def test_invalid_calls_return_text(toolbox, name, arguments, message):
    result = toolbox.call(name, arguments)
    assert not result.ok and message in result.text and not result.env_fault


def test_query_python_is_an_ordinary_search(toolbox):
    assert toolbox.call("search", {"query": ["python Norway"]}).tool == "search"


def test_cache_depends_on_the_world(toolbox):
    arguments = {"query": ["Gabon"]}
    toolbox.call("search", arguments)
    assert toolbox.call("search", arguments).cache_hit
    other = SmallWorld([Entity("Gabon", "city", {"territory": "Nowhere"})], "other")
    uncached = toolbox.call("search", arguments, world=other)
    assert (
        not uncached.cache_hit
        and "territory Nowhere" in uncached.text
        and uncached.source == "other"
    )


def test_closed_book_finds_nothing_anywhere(cldr):
    with Sandbox() as sandbox, Toolbox(cldr, sandbox, closed_book=True) as closed:
        assert closed.call("search", {"query": ["Norway"]}).text == NO_RESULTS
        assert closed.call("python", {"code": "print(1)"}).text == NO_RESULTS
        assert "Norwegian" not in closed.call("visit", {"url": ["cldr:Norway"], "goal": ""}).text


def test_calls_run_concurrently(cldr):
    """Two calls that wait for each other can only end if they run concurrently."""
    meeting = threading.Barrier(2, timeout=10)

    class Meeting(SmallWorld):
        def search(self, query, k=10):
            meeting.wait()
            return super().search(query, k)

    world = Meeting([Entity("A", "city", {"territory": "B"})])
    with Toolbox(world) as toolbox:
        calls = [toolbox.submit("search", {"query": [q]}) for q in ("A", "a ")]
        assert all(call.result(timeout=20).ok for call in calls)


@pytest.mark.parametrize(
    ("status", "level"),
    [
        ("worker_died", "standard"),
        ("setup_failed", "weak"),
        ("queue_timeout", ""),
        ("service_unavailable", ""),
    ],
)
def test_broken_sandbox_is_an_uncached_environment_fault(cldr, status, level):
    class Broken:
        def run(self, code):
            runs.append(code)
            return SandboxResult(status, "", "", None, 0.0, level)

    runs = []
    with Toolbox(cldr, Broken()) as toolbox:
        for _ in range(2):
            result = toolbox.call("python", {"code": "print(1)"})
            assert result.env_fault and not result.ok and not result.cache_hit
            assert (result.error, result.source, result.degraded) == (status, level, False)
            assert result.text == Broken().run("").text and "SandboxError" in result.text
    assert len(runs) == 4


def test_schemas_list_available_tools(cldr, toolbox):
    assert [s["name"] for s in toolbox.schemas] == ["search", "visit", "python"]
    with Toolbox(cldr) as without:
        assert [s["name"] for s in without.schemas] == ["search", "visit"]
    assert all(s["parameters"]["required"] for s in [tool.schema for tool in TOOLS.values()])
