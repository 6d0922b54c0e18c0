"""Fault injection: each fault, reproducibility, and recovery by the toolbox.

Run: python -m pytest tests/test_tools_fault_injection.py
"""

import json
from dataclasses import asdict

import pytest
from rl_examples import a_trajectory, changed

from drlib.rewards.functions import has_env_fault
from drlib.tools import FaultInjector, ReliabilityPolicy, ReliableOperation, Toolbox, ToolFault
from drlib.tools.fault_injection import RAISED
from drlib.worlds import load_world
from tests.tool_examples import FakeClock, Scripted, together

QUERIES = [f"{name} {n}" for n in range(20) for name in ("Norway", "Gabon", "Peru", "Chad")]


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


@pytest.mark.parametrize("fault", sorted(RAISED))
def test_each_fault_has_its_kind(fault, cldr):
    faults = FaultInjector(script={"*": [fault]}, clock=FakeClock(), retry_after_s=3.0)
    backend = faults.backend(Scripted("a"))
    with pytest.raises(ToolFault) as caught:
        backend({"query": "x"}, 5.0)
    assert caught.value.kind == RAISED[fault] and backend.name == "a"
    assert caught.value.retry_after_s == (3.0 if fault == "429" else None)
    assert backend({"query": "x"}, 5.0) == "ok" and faults.injected == {fault: 1, "": 1}
    with pytest.raises(ToolFault, match=RAISED[fault]):
        faults.world(cldr).search("Norway")


def test_timeout_takes_time_and_latency_may_time_out():
    clock = FakeClock()
    faults = FaultInjector(
        script={"q": ["timeout", "latency", "latency"]}, latency_s=2, clock=clock
    )
    backend = faults.backend(Scripted("a"))
    with pytest.raises(ToolFault, match="timeout"):
        backend({"query": "q"}, 5.0)
    assert clock.now == 5 and backend({"query": "q"}, 5.0) == "ok" and clock.now == 7
    with pytest.raises(ToolFault, match="timeout"):
        backend({"query": "q"}, 1.5)
    assert clock.now == 8.5


def test_drift_changes_results_only(cldr):
    faults = FaultInjector(rates={"drift": 1.0})
    world = faults.world(cldr)
    assert (world.name, world.version, len(world)) == (cldr.name, cldr.version, len(cldr))
    before, after = cldr.search("Norway", 5), world.search("Norway", 5)
    assert [h.url for h in after] == [h.url for h in reversed(before)]
    assert all(b.snippet.startswith(a.snippet) and a != b for a, b in zip(after, before[::-1]))
    page, changed = cldr.page("Norway"), world.page("Norway")
    assert page.text.startswith(changed.text) and len(changed.text) < len(page.text)
    assert page.url == changed.url
    hits = [{"title": "A", "url": "u", "snippet": "one two"}, {"title": "B", "url": "v"}]
    backend = faults.backend(Scripted("a", hits, {"url": "u", "text": "one two three"}))
    assert backend({}, 1) == [{"title": "B", "url": "v"}, {**hits[0], "snippet": "one"}]
    assert backend({}, 1) == {"url": "u", "text": "one two"}


def test_faults_depend_on_seed_and_operation_and_not_on_threads(cldr):
    def drawn(seed, order):
        faults = FaultInjector(rates={"503": 0.3, "cut": 0.2}, seed=seed)
        backend = faults.backend(Scripted("a"))

        def work(i):
            found = []
            for _ in range(3):
                try:
                    found.append(backend({"query": str(order[i])}, 1))
                except ToolFault as fault:
                    found.append(fault.kind)
            return found

        found = dict(zip(order, together(len(order), work)))
        return [found[i] for i in range(len(order))]

    forward = drawn(1, list(range(40)))
    assert forward == drawn(1, list(reversed(range(40)))) != drawn(2, list(range(40)))
    kinds = [kind for row in forward for kind in row]
    assert 18 < kinds.count("server") < 54 and 6 < kinds.count("connection") < 42  # 36, 24
    assert any(len(set(row)) > 1 for row in forward)  # the next attempt is drawn independently


def test_equal_calls_get_faults_in_order_of_arrival(cldr):
    """Check that equal calls of several rollouts get a reproducible set of faults."""

    def drawn(seed):
        faults = FaultInjector(rates={"503": 0.3, "cut": 0.2}, seed=seed)
        backend = faults.backend(Scripted("a"))

        def work(_):
            try:
                return backend({"query": "one for all"}, 1)
            except ToolFault as fault:
                return fault.kind

        return sorted(together(40, work))

    assert drawn(1) == drawn(1) != drawn(3)


def test_script_selects_the_operation(cldr):
    world = FaultInjector(script={"Norway": ["", "503"], "*": ["cut"]}).world(cldr)
    assert world.search("Norway") and world.search("Norway", 3)
    for query, kind in [("Norway", "server"), ("Gabon", "connection")]:
        with pytest.raises(ToolFault, match=kind):
            world.search(query)
    assert world.search("Norway") == cldr.search("Norway")


@pytest.mark.parametrize(
    ("rates", "script", "message"),
    [
        ({"teapot": 0.1}, None, "unknown fault 'teapot'; use 401"),
        (None, {"*": ["", "teapot"]}, "unknown fault 'teapot'"),
        ({"401": 0.7, "cut": 0.7}, None, "sum of at most 1"),
        ({"cut": -0.1}, None, "must be probabilities"),
    ],
)
def test_invalid_faults_are_refused(rates, script, message):
    with pytest.raises(ValueError, match=message):
        FaultInjector(rates, script)


# ---------------------------------------------------------------- with the toolbox


def transcript(cldr, seed, *, protected=True):
    """Return the observations of 80 rollout calls on eight threads as bytes."""
    clock = FakeClock()
    rates = {"503": 0.2, "429": 0.1, "cut": 0.1, "malformed": 0.1, "drift": 0.1, "latency": 0.1}
    faults = FaultInjector(rates, seed=seed, clock=clock)
    policy = ReliabilityPolicy(attempts=3, breaker_failures=0, deadline_s=1000, seed=seed)
    policies = {"search": policy, "visit": policy} if protected else {}
    with Toolbox(faults.world(cldr), results=2, policies=policies, clock=clock) as toolbox:
        calls = [toolbox.submit("search", {"query": [q, "x " + q]}) for q in QUERIES]
        calls += [
            toolbox.submit("visit", {"url": [f"cldr:{q.split()[0]}", q], "goal": q})
            for q in QUERIES[:4]
        ]
        rows = [asdict(call.result(60)) for call in calls]
    for row in rows:
        del row["latency_s"]
    return rows, json.dumps(rows).encode()


def test_equal_seed_and_script_give_equal_runs(cldr):
    rows, run = transcript(cldr, 1)
    assert run == transcript(cldr, 1)[1] != transcript(cldr, 2)[1]
    assert len({row["attempts"] for row in rows}) > 2
    assert 0 < sum(row["env_fault"] for row in rows) < 40


def test_reliability_can_be_disabled(cldr):
    bare, protected = (transcript(cldr, 1, protected=on)[0] for on in (False, True))
    lost = [sum(row["env_fault"] for row in rows) for rows in (bare, protected)]
    assert lost[0] > 3 * lost[1] and {row["attempts"] for row in bare} == {1}


@pytest.mark.parametrize("fault", sorted({*RAISED} - {"403", "404"}))
@pytest.mark.parametrize("protected", [False, True])
def test_broken_tool_is_always_an_environment_fault(fault, protected, cldr):
    clock = FakeClock()
    world = FaultInjector(rates={fault: 1.0}, clock=clock).world(cldr)
    policies = dict.fromkeys(("search", "visit"), ReliabilityPolicy()) if protected else {}
    with Toolbox(world, policies=policies, clock=clock) as toolbox:
        for name, arguments in [
            ("search", {"query": ["Norway", "Gabon"]}),
            ("visit", {"url": ["cldr:Norway"], "goal": "x"}),
        ]:
            result = toolbox.call(name, arguments)
            assert result.env_fault and not result.ok and result.degraded
            assert result.text.startswith("Error: this tool is unavailable now.")
            assert result.error == RAISED[fault] and not toolbox.call(name, arguments).cache_hit
            assert has_env_fault(changed(a_trajectory(), tool_results=[result]))


def test_missing_page_is_no_environment_fault(cldr):
    with Toolbox(FaultInjector(rates={"404": 1.0}).world(cldr)) as toolbox:
        result = toolbox.call("visit", {"url": ["cldr:Norway"], "goal": "x"})
    assert not result.ok and not result.env_fault
    assert result.text == "Error: cldr:Norway could not be accessed."


def test_primary_faults_fail_over_to_the_backup(cldr):
    clock = FakeClock()
    first = FaultInjector(rates={"500": 1.0}, clock=clock).backend(Scripted("first", after=[]))
    chain = ReliableOperation("search", [first, Scripted("second", after=[])], clock=clock)
    assert chain.call({"query": "x"}).source == "second"
