"""The toolbox: Tongyi's shapes, faults as observations, a cache that knows the world.

Run: python -m pytest tests/test_tools.py
"""

import json
import math
import random
import threading
from dataclasses import asdict

import pytest
from tool_examples import FakeClock, Scripted, fault, hits

from drlib.sandbox import Sandbox, SandboxResult
from drlib.tools import NO_RESULTS, SCHEMAS, TOOLS, Faults, ReliabilityPolicy, Toolbox, ledger
from drlib.tools.backends import ANSWERS, PAGE, Source
from drlib.trajectory import ToolResult
from drlib.worlds import Entity, World, load_world


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


def test_visit_reads_pages_and_says_which_it_could_not(toolbox):
    page = toolbox.call("visit", {"url": ["cldr:Norway"], "goal": "its currency"})
    assert page.ok and "for user goal its currency" in page.text
    assert "[Norwegian Krone](cldr:Norwegian Krone)" in page.text
    none = toolbox.call("visit", {"url": ["cldr:Atlantis"], "goal": "x"})
    assert not none.ok and "cldr:Atlantis could not be accessed" in none.text


def test_python_prints_and_its_exceptions_are_observations(toolbox):
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
        ("visit", {"url": ["cldr:Norway"]}, "needs goal"),
        ("python", {"code": 3}, "needs code"),
        ("browse", {}, "no tool 'browse'; tools: search, visit, python"),
    ],
)
def test_bad_calls_come_back_as_text(toolbox, name, arguments, message):
    result = toolbox.call(name, arguments)
    assert not result.ok and message in result.text and not result.env_fault


def test_a_search_for_the_word_python_is_a_search(toolbox):
    assert toolbox.call("search", {"query": ["python Norway"]}).tool == "search"


def test_cache_answers_again_for_the_same_world_only(toolbox):
    arguments = {"query": ["Gabon"]}
    toolbox.call("search", arguments)
    assert toolbox.call("search", arguments).cache_hit
    other = World([Entity("Gabon", "city", {"territory": "Nowhere"})], "other")
    fresh = toolbox.call("search", arguments, world=other)
    assert not fresh.cache_hit and "territory Nowhere" in fresh.text and fresh.source == "other"


def test_closed_book_finds_nothing_anywhere(cldr):
    with Sandbox() as sandbox, Toolbox(cldr, sandbox, closed_book=True) as closed:
        assert closed.call("search", {"query": ["Norway"]}).text == NO_RESULTS
        assert closed.call("python", {"code": "print(1)"}).text == NO_RESULTS
        assert "Norwegian" not in closed.call("visit", {"url": ["cldr:Norway"], "goal": ""}).text


def test_calls_run_at_the_same_time(cldr):
    """Two calls that wait for each other can only end if they run together."""
    meeting = threading.Barrier(2, timeout=10)

    class Meeting(World):
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
def test_a_broken_sandbox_is_a_fault_of_the_environment_and_is_not_cached(cldr, status, level):
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


def test_schemas_name_what_is_there(cldr, toolbox):
    assert [s["name"] for s in toolbox.schemas] == ["search", "visit", "python"]
    with Toolbox(cldr) as without:
        assert [s["name"] for s in without.schemas] == ["search", "visit"]
    assert all(s["parameters"]["required"] for s in SCHEMAS)


# ---------------------------------------------------------------- other sources


def test_live_hits_show_date_and_source_and_every_query_is_an_operation(cldr):
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
        assert result.attempts == 1  # none was tried twice
        again = toolbox.call("search", {"query": ["two"]})  # another call, the same operation
        assert again.cache_hit and len(backend.calls) == 2 and result.source == "live"


def test_the_world_of_the_call_is_the_last_to_be_asked(cldr):
    clock = FakeClock()
    backends = {"search": [Scripted("live", after=fault("server"))]}
    other = World([Entity("Gabon", "city", {"territory": "Nowhere"})], "other")
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


def test_a_policy_alone_makes_the_world_s_own_tool_dependable(cldr):
    clock, script = FakeClock(), {"*": ["503", "cut"]}
    world, policies = Faults(script=script, clock=clock).world(cldr), {"search": PATIENT}
    with Toolbox(world, policies=policies, clock=clock) as toolbox:
        result = toolbox.call("search", {"query": ["Norway"]})
        assert result.ok and result.attempts == 3 and result.latency_s == clock.now > 2
        assert not toolbox.call("visit", {"url": ["cldr:Norway"], "goal": ""}).ok


def test_one_query_that_broke_marks_the_whole_call(cldr):
    world = Faults(script={"Peru": ["503"]}).world(cldr)
    with Toolbox(world) as toolbox:
        result = toolbox.call("search", {"query": ["Norway", "Peru"]})
    assert result.text.startswith("1. [Norway]") and result.text.endswith("unavailable now.")
    assert (result.ok, result.error, result.env_fault) == (False, "server", True)


def test_scholar_and_files_have_tongyi_s_shapes():
    files = Scripted("files", {"name": "a.csv", "text": "x,y"}, fault("not_found"))
    backends = {"google_scholar": [Scripted("papers", hits("p"))], "parse_file": [files]}
    with Toolbox(None, backends=backends) as toolbox:
        assert [s["name"] for s in toolbox.schemas] == ["google_scholar", "parse_file"]
        assert toolbox.call("google_scholar", {"query": ["q"]}).text.startswith("1. [p](https://p")
        both = toolbox.call("parse_file", {"files": ["a.csv", "b.csv"]})
        lost = "Error: b.csv could not be read."
        assert both.text == f"The content of a.csv:\nx,y\n=======\n{lost}" and both.ok
        assert not toolbox.call("parse_file", {"files": ["b.csv"]}).ok


@pytest.mark.parametrize("kind", [*PAGE, *ANSWERS])
def test_a_page_that_the_policy_chose_badly_does_not_void_its_rollout(kind):
    clock, backends = FakeClock(), [Scripted("a", after=fault(kind)), Scripted("b", after={})]
    with Toolbox(None, backends={"visit": backends[:1]}, clock=clock) as toolbox:
        page = toolbox.call("visit", {"url": ["https://x.org"], "goal": ""})
    assert page.text == "Error: https://x.org could not be accessed." and not page.ok
    assert not page.env_fault and page.attempts == (3 if kind == "unreachable" else 1)
    backends[1].after = {"text": "here"}
    with Toolbox(None, backends={"visit": backends}, clock=clock) as toolbox:
        page = toolbox.call("visit", {"url": ["https://x.org"], "goal": ""})
    assert page.ok is (kind in PAGE)  # another backend may get through where one is kept out


def test_a_key_without_the_right_is_the_environment_s_fault():
    backends = {name: [Scripted("a", after=fault("forbidden"))] for name in ("visit", "search")}
    with Toolbox(None, backends=backends, clock=FakeClock()) as toolbox:
        assert toolbox.call("visit", {"url": ["https://x.org"], "goal": ""}).env_fault
        assert toolbox.call("search", {"query": ["x"]}).env_fault


@pytest.mark.parametrize("reply", [None, [], "<html>", {"text": 3}, [None], [{"title": "no url"}]])
def test_a_reply_of_another_form_is_a_fault_and_no_crash(reply):
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


def test_a_python_service_has_the_sandbox_behind_it(cldr):
    class Local:
        def run(self, code):
            return SandboxResult("ok", "from here\n", "", 0, 0.0, "standard")

    remote = Scripted("remote", {"text": "1", "status": "ok"}, after=fault("server"))
    with Toolbox(None, Local(), backends={"python": [remote]}, clock=FakeClock()) as toolbox:
        first, second = (toolbox.call("python", {"code": code}) for code in ("print(1)", "x"))
    assert (first.text, first.source, first.degraded) == ("1", "remote", False)
    assert (second.text, second.source, second.degraded) == ("from here", "standard", True)


def test_the_disk_cache_outlives_a_toolbox(tmp_path):
    def run(*replies):
        backend = Scripted("live", *replies, after=fault("server"))
        with Toolbox(
            None, backends={"search": [backend]}, cache=tmp_path / "cache", clock=FakeClock()
        ) as toolbox:
            return toolbox.call("search", {"query": ["q"]})

    first, second = run(hits("a")), run()
    assert second.cache_hit and not first.cache_hit and second.text == first.text


def test_backends_and_policies_for_no_tool_are_refused(cldr):
    with pytest.raises(ValueError, match="no tool 'browse' here; tools: search, visit"):
        Toolbox(cldr, backends={"browse": []})
    with pytest.raises(ValueError, match="no tool 'python' here"):
        Toolbox(cldr, policies={"python": ReliabilityPolicy()})


def test_a_ledger_counts_what_a_trajectory_took(cldr):
    clock = FakeClock()
    world = Faults(script={"Norway": ["503"], "Peru": ["cut"] * 3}, clock=clock).world(cldr)
    policies = {"search": ReliabilityPolicy(backoff_s=1, seed=3)}
    with Toolbox(world, policies=policies, clock=clock) as toolbox:
        results = [toolbox.call("search", {"query": [q]}) for q in ("Norway", "Norway", "Peru")]
        results.append(toolbox.call("search", {"query": "Norway"}))
    found = ledger(results)
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
    assert ledger([])["calls"] == 0


# ---------------------------------------------------------------- calculator


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("0.1 + 0.2", "0.3"),
        ("123456789012345678.25 * 4", "493827156049382713"),
        ("7 // 2", "3"),
        ("123456789012345678 * 10", "1234567890123456780"),
        ("-7 % 3", "2"),
        ("2**-2", "0.25"),
        ("1/3", "0.333333333333333"),
        ("(1/3) * 3", "1"),
        ("round(2.675, 2)", "2.68"),
        ("sqrt(2)", "1.4142135623731"),
        ("max(1, 2.5) - min(3, abs(-4))", "-0.5"),
        ("1e3", "1000"),
        ("floor(-0.5) + ceil(0.5)", "0"),
        ("1_000 * 2", "2000"),
        ("0**0", "1"),
        ("1**10**9", "1"),
    ],
)
def test_the_calculator_is_exact(expression, text):
    with Toolbox(None, calculator=True) as toolbox:
        result = toolbox.call("calculator", {"expression": expression})
    assert result.ok and result.text == text and result.source == "calculator"


REAL = "Error: not an arithmetic expression with a real value."
LARGE = "Error: a number is too large or too small."
ZERO = "Error: division by zero."


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("9**9**9", LARGE),
        ("2**99999", LARGE),
        ("(1/2)**99999", LARGE),
        ("1e999999999", LARGE),
        ("1e-999999999", LARGE),
        ("1" + "+1" * 300, LARGE),
        ("9" * 399, None),
        ("(2**4000)**2", LARGE),
        ("sqrt(2**4000)", LARGE),
        ("1/0", ZERO),
        ("5 % 0", ZERO),
        ("1 // (1-1)", ZERO),
        ("0**-1", ZERO),
        ("__import__('os').getcwd()", REAL),
        ("open('x')", REAL),
        ("(lambda: 1)()", REAL),
        ("x", REAL),
        ("'a' * 9", REAL),
        ("True + 1", REAL),
        ("1 if 1 else 2", REAL),
        ("1, 2", REAL),
        ("2j", REAL),
        ("sqrt(-1)", REAL),
        ("abs(1, 2)", REAL),
        ("max()", REAL),
        ("max(1)", REAL),
        ("", REAL),
        ("abs", REAL),
        ("round(1, 0.5)", REAL),
        ("1 <<  9", REAL),
        ("[1][0]", REAL),
        ("\0", REAL),
        ("\ud800", REAL),
        ("1 +", REAL),
        ("(" * 399, REAL),
        ("-" * 390 + "1", None),
        ("f'{1}'", REAL),
    ],
    ids=repr,
)
def test_the_calculator_refuses_the_rest_with_fixed_texts(expression, text):
    with Toolbox(None, calculator=True) as toolbox:
        result = toolbox.call("calculator", {"expression": expression})
    assert result.ok is (text is None) and not result.env_fault
    assert text is None or result.text == text


# ---------------------------------------------------------------- anything at all


def anything(rng, depth=0):
    """A random value: JSON mostly, at times what no JSON is."""
    kind = rng.randrange(12 if depth < 3 else 8)
    text = "".join(
        chr(rng.choice([rng.randrange(128), rng.randrange(0xD7FF), 0xD800]))
        for _ in range(rng.randrange(20))
    )
    if kind < 4:
        return text
    if kind < 8:
        return rng.choice(
            [
                None,
                True,
                rng.randrange(-(10**20), 10**20),
                rng.random(),
                math.nan,
                math.inf,
                rng.randbytes(9),
                {1, 2},
                object(),
            ]
        )
    if kind < 10:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ["query", "url", "goal", "code", "files", "expression", text, 3, b"x", None]
    return {rng.choice(keys): anything(rng, depth + 1) for _ in range(rng.randrange(4))}


def fitting(rng, name):
    """Arguments of the right form, with anything in them."""
    texts = [str(anything(rng, 3)) for _ in range(rng.randrange(1, 3))]
    tool = next(tool for tool in TOOLS if tool.name == name)
    return {p.name: texts if p.many else texts[0] for p in tool.parameters}


def test_10_000_random_calls_give_typed_results_only(cldr):
    rng = random.Random(0)
    echo = Source("echo", lambda arguments, timeout_s: {"text": arguments["file"]})
    papers = Source("papers", lambda arguments, timeout_s: anything(rng))
    with (
        Sandbox(workers=1) as sandbox,
        Toolbox(
            cldr,
            sandbox,
            calculator=True,
            clock=FakeClock(),
            backends={"parse_file": [echo], "google_scholar": [papers]},
            policies={"google_scholar": ReliabilityPolicy(attempts=1)},
        ) as toolbox,
    ):
        errors = set()
        for n in range(10_000):
            name = rng.choice([tool.name for tool in TOOLS if tool.name != "python" or n % 8 == 0])
            right = rng.random() < 0.5
            arguments = fitting(rng, name) if right else anything(rng)
            name = anything(rng) if rng.random() < 0.05 else name
            result = toolbox.call(name, arguments)
            assert isinstance(result, ToolResult) and isinstance(result.text, str)
            assert isinstance(result.error, str) and result.ok is (not result.error)
            json.dumps(asdict(result))
            assert not result.env_fault or name == "google_scholar"
            errors.add(result.error)
    assert errors >= {"", "arguments", "unknown", "empty", "malformed", "error"}
