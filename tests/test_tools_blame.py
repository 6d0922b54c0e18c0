"""Attribution of failures: environment faults, policy errors, and what may be cached.

Run: python -m pytest tests/test_tools_blame.py
"""

import json
from dataclasses import asdict

import pytest

from drlib.sandbox import Sandbox, SandboxResult
from drlib.tools import (
    NO_RESULTS,
    ParseFile,
    Provider,
    ReliabilityPolicy,
    Toolbox,
    summarize_calls,
)
from drlib.tools.backends import FunctionBackend
from drlib.worlds import load_world
from tests.provider_examples import Replay
from tests.tool_examples import FakeClock, Scripted, fault, hits, together


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


def test_results_out_of_range_are_refused(cldr):
    for wrong in (0, 101, 200, -1, 2.0, "5", None, True):
        with pytest.raises(ValueError, match="results=.*integer from 1 to 100"):
            Toolbox(cldr, results=wrong)
    with Toolbox(cldr, results=100):
        pass


def test_one_deadline_bounds_the_pages_of_a_call(cldr):
    clock, given = FakeClock(), []

    def hangs(arguments, timeout_s):
        given.append(timeout_s)
        clock.sleep(timeout_s)
        raise fault("unreachable" if "url" in arguments else "timeout")

    source = [FunctionBackend("web", hangs)]
    with Toolbox(None, backends={"visit": source, "search": source}, clock=clock) as toolbox:
        urls = [f"https://{n}.org" for n in range(10)]
        pages = toolbox.call("visit", {"url": urls, "goal": ""})
        assert pages.latency_s <= 60.001 and pages.text.count("could not be accessed.") == 10
        assert not pages.env_fault and len(given) < 10  # slow pages were chosen by the policy
        hits = toolbox.call("search", {"query": urls})
        assert hits.latency_s <= 60.001 and hits.env_fault and hits.error == "timeout"


def test_empty_backup_answer_is_an_environment_fault(cldr):
    live = Scripted("live", hits("a"), *[fault("server")] * 3, after=hits("b"))
    with Toolbox(cldr, backends={"search": [live]}, clock=FakeClock()) as toolbox:
        arguments = {"query": ["one", "zzzqqq"]}
        down, up = (toolbox.call("search", arguments) for _ in range(2))
    assert "[a]" in down.text and down.text.endswith(NO_RESULTS)
    assert (down.ok, down.error, down.env_fault, down.degraded) == (False, "empty", True, True)
    assert up.ok and "[b]" in up.text and not up.cache_hit and not up.env_fault


def test_backup_answer_is_not_cached(cldr):
    live = Scripted("live", *[fault("server")] * 3, after=hits("b"))
    with Toolbox(cldr, backends={"search": [live]}, clock=FakeClock()) as toolbox:
        down, up = (toolbox.call("search", {"query": ["Norway"]}) for _ in range(2))
    assert down.ok and down.degraded and down.source == "cldr"
    assert up.source == "live" and not up.cache_hit


def test_attempts_are_never_negative():
    policy = ReliabilityPolicy(attempts=1, breaker_failures=1)
    with Toolbox(
        None,
        backends={"search": [Scripted("a", after=fault("server"))]},
        policies={"search": policy},
        clock=FakeClock(),
    ) as toolbox:
        assert toolbox.call("search", {"query": ["x"]}).attempts == 1
        skipped = toolbox.call("search", {"query": list("abcd")})  # the breaker is open
    assert skipped.attempts == 0 == summarize_calls([skipped])["attempts"] and skipped.env_fault


@pytest.mark.parametrize("field", ["title", "snippet", "date", "source"])
def test_hit_fields_are_strings(field):
    for value, good in ((5, False), (["x"], False), ({"a": 1}, False), ("t", True), (None, True)):
        backends = {"search": [Scripted("a", after=[{"url": "u", field: value}])]}
        with Toolbox(None, backends=backends, clock=FakeClock()) as toolbox:
            result = toolbox.call("search", {"query": ["x"]})
            assert (result.ok, result.env_fault) == (good, not good)


def test_runner_exception_is_an_observation(cldr):
    class Runner:
        def run(self, code):
            raise errors[0]

    errors = [ValueError("The call has 16000001 characters")]
    policies = {"python": ReliabilityPolicy()}
    for more in ({}, {"policies": policies}):
        with Toolbox(None, Runner(), clock=FakeClock(), **more) as toolbox:
            errors[0] = ValueError("The call has 16000001 characters")
            long = toolbox.call("python", {"code": "#"})
            assert long.text == "Error: the program is too long." and long.error == "too_large"
            assert not long.ok and not long.env_fault
            for errors[0] in (RuntimeError("closed"), OSError("no route")):
                with pytest.warns(UserWarning, match="tool python: .*(closed|route)"):
                    result = toolbox.call("python", {"code": str(errors[0])})
                assert result.env_fault and not result.ok and not result.cache_hit
                assert result.text == "Error: this tool is unavailable now."


def test_closed_sandbox_is_an_environment_fault():
    sandbox = Sandbox(workers=1)
    with Toolbox(None, sandbox) as toolbox:
        assert toolbox.call("python", {"code": "#" * 16_000_001}).error == "too_large"
        sandbox.close()
        with pytest.warns(UserWarning, match="closed"):
            assert toolbox.call("python", {"code": "print(1)"}).env_fault


def test_timed_out_program_is_not_cached():
    class Slow:
        def run(self, code):
            runs.append(code)
            return SandboxResult(code, "", "", None, 0.0, "standard")

    runs = []
    for more in ({}, {"policies": {"python": ReliabilityPolicy()}}):
        with Toolbox(None, Slow(), **more) as toolbox:
            for status, kept in (("timeout", False), ("killed", False), ("cpu_limit", True)):
                runs.clear()
                again = [toolbox.call("python", {"code": status}).cache_hit for _ in range(2)]
                assert again == [False, kept] and len(runs) == (1 if kept else 2)


def test_cached_value_cannot_be_modified(cldr):
    with Toolbox(cldr) as toolbox:
        first = toolbox.call("search", {"query": ["Norway"]})
        right = asdict(first)
        for _ in range(2):
            first.text, first.ok, first.error = "changed", False, "x"
            first.arguments["query"].append("x")
            first.arguments["more"] = 1
            first = toolbox.call("search", {"query": ["Norway"]})
            assert {**asdict(first), "latency_s": 0, "cache_hit": False} == {
                **right,
                "latency_s": 0,
            }


def test_shared_failure_is_no_cache_hit(cldr):
    def down(arguments, timeout_s):
        clock.sleep(1)
        raise fault("server")

    class Broken:
        def run(self, code):
            clock.sleep(1)
            return SandboxResult("worker_died", "", "", None, 0.0, "standard")

    clock, policy = FakeClock(), ReliabilityPolicy(attempts=1, breaker_failures=0)
    with Toolbox(
        None,
        Broken(),
        backends={"search": [FunctionBackend("a", down)]},
        policies={"search": policy},
        clock=clock,
    ) as toolbox:
        for call in (("search", {"query": ["x"]}), ("python", {"code": "print(1)"})):
            results = together(8, lambda _, call=call: toolbox.call(*call))
            assert all(r.env_fault and not r.cache_hit for r in results)


def test_broken_file_is_an_answer_without_retry(tmp_path):
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-nothing")
    (tmp_path / "good.txt").write_bytes(b"fine")
    policy = ReliabilityPolicy(breaker_failures=1)
    with Toolbox(
        None, backends={"parse_file": [ParseFile(tmp_path)]}, policies={"parse_file": policy}
    ) as toolbox:
        bad = toolbox.call("parse_file", {"files": ["bad.pdf"]})
        assert bad.text == "Error: bad.pdf could not be read." and not bad.ok
        assert (bad.error, bad.attempts, bad.env_fault) == ("empty", 1, False)
        assert toolbox.call("parse_file", {"files": ["good.txt"]}).ok


def test_equal_names_in_two_folders_are_different_files(tmp_path):
    texts = []
    for question in ("one", "two"):
        (tmp_path / question).mkdir()
        (tmp_path / question / "data.csv").write_text(question)
        backends = {"parse_file": [ParseFile(tmp_path / question)]}
        with Toolbox(None, backends=backends, cache=tmp_path / "cache") as toolbox:
            texts.append(toolbox.call("parse_file", {"files": ["data.csv"]}).text)
    assert texts == [f"The content of data.csv:\n{text}" for text in ("one", "two")]


def test_misconfigured_service_fails_over_to_the_backup():
    """Report an empty account, a wrong address or throttled engines as faults."""
    throttled = {"results": [], "unresponsive_engines": [["google", "too many requests"]]}
    replies = [
        (404, b""),
        (200, json.dumps(throttled).encode()),
        (400, b'{"message": "Not enough credits"}'),
    ]
    with Replay() as server:
        for status, body in replies:
            server.reply = (status, {}, body)
            for backup in (None, [{"title": "t", "url": "u"}]):
                backends = [Provider("searxng", server.url)]
                backends += (
                    [FunctionBackend("backup", lambda a, t, found=backup: found)] if backup else []
                )
                policies = {"search": ReliabilityPolicy(attempts=1)}
                with Toolbox(None, backends={"search": backends}, policies=policies) as toolbox:
                    result = toolbox.call("search", {"query": ["x"]})
                assert result.ok is bool(backup) and result.degraded
                assert result.env_fault is (not backup) and result.text != NO_RESULTS
        server.says({"results": []})
        assert Provider("searxng", server.url)({"query": "x"}, 5.0) == []
        server.shutdown()
