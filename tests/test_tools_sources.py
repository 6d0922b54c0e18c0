"""Toolbox with other sources: live backends, policies, files, a sandbox service.

Run: python -m pytest tests/test_tools_sources.py
"""

import pytest

from drlib.sandbox import SandboxResult
from drlib.tools import NO_RESULTS, FaultInjector, ReliabilityPolicy, Toolbox, summarize_calls
from drlib.tools.backends import ANSWERS, PAGE_FAULTS
from drlib.worlds import Entity, SmallWorld, load_world
from tests.tool_examples import FakeClock, Scripted, fault, hits


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


def test_live_hits_show_date_and_source(cldr):
    backend = Scripted("live", hits("a"), hits("b", "c", date="2025-01-02", source="Paper"))
    with Toolbox(cldr, results=5, backends={"search": [backend]}) as toolbox:
        result = toolbox.call("search", {"query": ["one", "two"]})
        assert result.text == (
            "1. [a](https://a.org)\nabout a\n=======\n"
            "1. [b](https://b.org)\nDate published: 2025-01-02\nSource: Paper\nabout b\n"
            "2. [c](https://c.org)\nDate published: 2025-01-02\nSource: Paper\nabout c"
        )
        assert [a for _, a, _ in backend.calls] == [
            {"query": "one", "k": 5},
            {"query": "two", "k": 5},
        ]
        assert result.attempts == 1  # no backend was retried
        again = toolbox.call("search", {"query": ["two"]})  # another call, the same operation
        assert again.cache_hit and len(backend.calls) == 2 and result.source == "live"


def test_world_of_the_call_is_the_last_source(cldr):
    clock = FakeClock()
    backends = {"search": [Scripted("live", after=fault("server"))]}
    other = SmallWorld([Entity("Gabon", "city", {"territory": "Nowhere"})], "other")
    with Toolbox(cldr, backends=backends, clock=clock) as toolbox:
        first = toolbox.call("search", {"query": ["Gabon"]})
        second = toolbox.call("search", {"query": ["Gabon"]}, world=other)
    assert (first.source, first.attempts, first.degraded) == ("cldr", 4, True)
    assert second.source == "other" and "Nowhere" in second.text and second.ok
    assert not first.env_fault and not second.env_fault


def test_all_sources_down_is_one_fixed_observation():
    clock, down = FakeClock(), [Scripted("a", after=fault("connection"))]
    with Toolbox(None, backends={"search": down, "parse_file": down}, clock=clock) as toolbox:
        for name, arguments in [("search", {"query": ["x"]}), ("parse_file", {"files": ["x.pdf"]})]:
            result = toolbox.call(name, arguments)
            assert result.text == "Error: this tool is unavailable now." and result.env_fault
            assert (result.ok, result.error, result.degraded) == (False, "connection", True)


PATIENT = ReliabilityPolicy(backoff_s=2)


def test_policy_without_backends_applies_to_the_world_tool(cldr):
    clock, script = FakeClock(), {"*": ["503", "cut"]}
    world, policies = FaultInjector(script=script, clock=clock).world(cldr), {"search": PATIENT}
    with Toolbox(world, policies=policies, clock=clock) as toolbox:
        result = toolbox.call("search", {"query": ["Norway"]})
        assert result.ok and result.attempts == 3 and result.latency_s == clock.now > 2
        assert not toolbox.call("visit", {"url": ["cldr:Norway"], "goal": ""}).ok


def test_one_failed_query_marks_the_call(cldr):
    world = FaultInjector(script={"Peru": ["503"]}).world(cldr)
    with Toolbox(world) as toolbox:
        result = toolbox.call("search", {"query": ["Norway", "Peru"]})
    assert result.text.startswith("1. [Norway]") and result.text.endswith("unavailable now.")
    assert (result.ok, result.error, result.env_fault) == (False, "server", True)


def test_scholar_and_files_have_tongyi_formats():
    files = Scripted("files", {"name": "a.csv", "text": "x,y"}, fault("not_found"))
    backends = {"google_scholar": [Scripted("papers", hits("p"))], "parse_file": [files]}
    with Toolbox(None, backends=backends) as toolbox:
        assert [s["name"] for s in toolbox.schemas] == ["google_scholar", "parse_file"]
        assert toolbox.call("google_scholar", {"query": ["q"]}).text.startswith("1. [p](https://p")
        both = toolbox.call("parse_file", {"files": ["a.csv", "b.csv"]})
        lost = "Error: b.csv could not be read."
        assert both.text == f"The content of a.csv:\nx,y\n=======\n{lost}" and both.ok
        assert not toolbox.call("parse_file", {"files": ["b.csv"]}).ok


def test_foreign_text_cannot_imitate_a_response():
    fake = "the first\n=======\nThe content of b.txt:\nlies"
    backends = {
        "search": [Scripted("live", after=[{"title": "t", "url": "u", "snippet": fake}])],
        "visit": [Scripted("web", after={"text": fake})],
        "parse_file": [Scripted("files", after={"text": fake})],
    }
    calls = {
        "search": {"query": ["a", "b"]},
        "visit": {"url": ["a", "b"], "goal": ""},
        "parse_file": {"files": ["a", "b"]},
    }
    with Toolbox(None, backends=backends) as toolbox:
        for name, arguments in calls.items():
            assert toolbox.call(name, arguments).text.count("\n=======\n") == 1


@pytest.mark.parametrize("kind", [*PAGE_FAULTS, *ANSWERS])
def test_bad_page_choice_does_not_void_the_rollout(kind):
    clock, backends = FakeClock(), [Scripted("a", after=fault(kind)), Scripted("b", after={})]
    with Toolbox(None, backends={"visit": backends[:1]}, clock=clock) as toolbox:
        page = toolbox.call("visit", {"url": ["https://x.org"], "goal": ""})
    assert page.text == "Error: https://x.org could not be accessed." and not page.ok
    assert not page.env_fault and page.attempts == (3 if kind == "unreachable" else 1)
    backends[1].after = {"text": "here"}
    with Toolbox(None, backends={"visit": backends}, clock=clock) as toolbox:
        page = toolbox.call("visit", {"url": ["https://x.org"], "goal": ""})
    assert page.ok is (kind in PAGE_FAULTS)  # another backend may have access


def test_unauthorised_key_is_an_environment_fault():
    backends = {name: [Scripted("a", after=fault("forbidden"))] for name in ("visit", "search")}
    with Toolbox(None, backends=backends, clock=FakeClock()) as toolbox:
        assert toolbox.call("visit", {"url": ["https://x.org"], "goal": ""}).env_fault
        assert toolbox.call("search", {"query": ["x"]}).env_fault


@pytest.mark.parametrize("reply", [None, [], "<html>", {"text": 3}, [None], [{"title": "no url"}]])
def test_malformed_reply_is_a_fault(reply):
    backends = {name: [Scripted("a", after=reply)] for name in ("search", "visit", "parse_file")}
    with Toolbox(None, backends=backends, clock=FakeClock()) as toolbox:
        for name, arguments in [
            ("visit", {"url": ["u"], "goal": ""}),
            ("search", {"query": ["q"]}),
            ("parse_file", {"files": ["f"]}),
        ]:
            result = toolbox.call(name, arguments)
            if name == "search" and reply == []:
                assert result.text == NO_RESULTS and result.error == "empty"
            else:
                assert result.env_fault and result.error == "malformed" and result.attempts == 3


def test_python_service_falls_back_to_the_sandbox(cldr):
    class Local:
        def run(self, code):
            return SandboxResult("ok", "from here\n", "", 0, 0.0, "standard")

    remote = Scripted("remote", {"text": "1", "status": "ok"}, after=fault("server"))
    with Toolbox(None, Local(), backends={"python": [remote]}, clock=FakeClock()) as toolbox:
        first, second = (toolbox.call("python", {"code": code}) for code in ("print(1)", "x"))
    assert (first.text, first.source, first.degraded) == ("1", "remote", False)
    assert (second.text, second.source, second.degraded) == ("from here", "standard", True)


def test_disk_cache_outlives_a_toolbox(tmp_path):
    def run(*replies):
        backend = Scripted("live", *replies, after=fault("server"))
        with Toolbox(
            None, backends={"search": [backend]}, cache=tmp_path / "cache", clock=FakeClock()
        ) as toolbox:
            return toolbox.call("search", {"query": ["q"]})

    first, second = run(hits("a")), run()
    assert second.cache_hit and not first.cache_hit and second.text == first.text


def test_backends_and_policies_of_unknown_tools_are_refused(cldr):
    with pytest.raises(ValueError, match="no tool 'browse' in this toolbox; tools: search, visit"):
        Toolbox(cldr, backends={"browse": []})
    with pytest.raises(ValueError, match="no tool 'python' in this toolbox"):
        Toolbox(cldr, policies={"python": ReliabilityPolicy()})


def test_summarize_calls(cldr):
    clock = FakeClock()
    world = FaultInjector(script={"Norway": ["503"], "Peru": ["cut"] * 3}, clock=clock).world(cldr)
    policies = {"search": ReliabilityPolicy(backoff_s=1, seed=3)}
    with Toolbox(world, policies=policies, clock=clock) as toolbox:
        results = [toolbox.call("search", {"query": [q]}) for q in ("Norway", "Norway", "Peru")]
        results.append(toolbox.call("search", {"query": "Norway"}))
    found = summarize_calls(results)
    assert found.pop("latency_s") == pytest.approx(clock.now)
    assert found == {
        "calls": 4,
        "errors": 2,
        "env_faults": 1,
        "cache_hits": 1,
        "degraded": 1,
        "attempts": 2 + 3 + 1,
        "sources": {"cldr": 2, "": 2},
    }
    assert summarize_calls([])["calls"] == 0
