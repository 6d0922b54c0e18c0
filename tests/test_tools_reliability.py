"""Reliability of one operation: retries, rate limits, circuit breaking, fail-over.

Time is a fake clock shared by threads, so waits are exact and cost nothing.

Run: python -m pytest tests/test_tools_reliability.py
"""

import threading

import pytest

from drlib.tools import DiskCache, ReliabilityPolicy, ReliableOperation
from drlib.tools.backends import FunctionBackend, digest, uniform
from tests.tool_examples import PLAIN, FakeClock, Q, Scripted, fault, together


@pytest.fixture
def clock():
    return FakeClock()


# ---------------------------------------------------------------- retries


def test_attempts_and_backoff_are_exact(clock):
    policy = ReliabilityPolicy(attempts=5, backoff_s=1, backoff_max_s=4, breaker_failures=0, seed=7)
    backend = Scripted("a", *[fault("server")] * 4, clock=clock)
    outcome = ReliableOperation("search", [backend], policy, clock=clock).call(Q)
    key = digest("search", Q, "")
    waits = [step * (0.5 + uniform(7, key, n) / 2) for n, step in enumerate([1, 2, 4, 4], 1)]
    assert backend.times == pytest.approx([sum(waits[:n]) for n in range(5)])
    assert waits == pytest.approx([0.7357, 1.2803, 2.7477, 3.9304], abs=1e-4)
    assert outcome.attempts == 5
    assert (outcome.value, outcome.source, outcome.error) == ("ok", "a", "")
    assert not outcome.degraded and not outcome.env_fault


def test_jitter_depends_on_seed_key_and_attempt_only():
    def waits(seed, arguments):
        policy = ReliabilityPolicy(attempts=3, breaker_failures=0, seed=seed)
        clock, after = FakeClock(), fault("connection")
        backend = Scripted("a", after=after, clock=clock)
        ReliableOperation("search", [backend], policy, clock=clock).call(arguments)
        assert len(backend.times) == 3
        return tuple(backend.times)

    assert waits(1, Q) == waits(1, dict(reversed(Q.items())))
    assert len({waits(1, Q), waits(2, Q), waits(1, {**Q, "k": 3})}) == 3


@pytest.mark.parametrize("kind", ["auth", "forbidden", "too_large"])
def test_permanent_fault_is_not_retried(kind, clock):
    backend = Scripted("a", after=fault(kind))
    outcome = ReliableOperation("visit", [backend], clock=clock).call(Q)
    assert (outcome.attempts, outcome.error, outcome.env_fault) == (1, kind, True)
    assert clock.now == 0


@pytest.mark.parametrize("kind", ["not_found", "refused"])
def test_negative_answers_are_no_faults(kind, clock):
    policy = ReliabilityPolicy(breaker_failures=1)
    first, second = Scripted("a", after=fault(kind)), Scripted("b")
    chain = ReliableOperation("visit", [first, second], policy, clock=clock)
    for n in range(3):
        outcome = chain.call({"url": str(n)})
        assert (outcome.error, outcome.source, outcome.value) == (kind, "a", None)
        assert not outcome.env_fault and not outcome.degraded and outcome.attempts == 1
    assert chain.call({"url": "0"}).cache_hit
    assert len(first.calls) == 3 and not second.calls  # no breaker opened, no fail-over


def test_local_source_is_called_after_a_negative_answer(clock):
    here = FunctionBackend("world", lambda arguments, timeout_s: "page")
    chain = ReliableOperation(
        "visit", [Scripted("a", after=fault("refused")), Scripted("b")], clock=clock
    )
    outcome = chain.call({"url": "cldr:Norway"}, "v1", here)
    assert (outcome.value, outcome.source, outcome.degraded) == ("page", "world", True)


def test_retry_after_is_obeyed(clock):
    backend = Scripted("a", fault("rate_limited", retry_after_s=7.25), clock=clock)
    outcome = ReliableOperation("search", [backend], clock=clock).call(Q)
    assert outcome.value == "ok" and backend.times == [0, 7.25]


def test_wait_beyond_the_deadline_is_skipped(clock):
    policy = ReliabilityPolicy(deadline_s=30)
    first = Scripted("a", after=fault("rate_limited", retry_after_s=31), clock=clock)
    outcome = ReliableOperation("search", [first, Scripted("b")], policy, clock=clock).call(Q)
    assert outcome.source == "b" and clock.now == 0 and outcome.attempts == 2


def test_deadline_limits_every_attempt(clock):
    def hangs(arguments, timeout_s):
        given.append(timeout_s)
        clock.sleep(timeout_s)
        raise fault("timeout")

    given, policy = [], ReliabilityPolicy(attempts=9, timeout_s=4, deadline_s=10, backoff_s=0.5)
    chain = ReliableOperation(
        "visit", [FunctionBackend("a", hangs), Scripted("b")], policy, clock=clock
    )
    outcome = chain.call(Q)
    assert clock.now <= 10 + 1e-9 and outcome.env_fault and outcome.degraded
    assert given[:2] == [4, 4] and 0 < given[2] < 2 and len(given) == 3


def test_backend_bug_is_raised_and_not_cached(clock):
    backend = Scripted("a", RuntimeError("bug"))
    chain = ReliableOperation("search", [backend], clock=clock)
    with pytest.raises(RuntimeError, match="bug"):
        chain.call(Q)
    assert chain.call(Q).value == "ok"


# ---------------------------------------------------------------- fail-over


def test_backup_answer_is_marked_degraded(clock):
    first, second = Scripted("a", after=fault("server")), Scripted("b", after="backup")
    outcome = ReliableOperation("search", [first, second], PLAIN, clock=clock).call(Q)
    assert (outcome.value, outcome.source, outcome.attempts) == ("backup", "b", 4)
    assert outcome.degraded and not outcome.env_fault and outcome.error == ""


@pytest.mark.parametrize("answer", ["not_found", "refused", []])
@pytest.mark.parametrize("critical", [True, False])
def test_empty_backup_answer_after_a_failed_primary_is_a_fault(answer, critical, tmp_path, clock):
    policy = ReliabilityPolicy(attempts=1, breaker_failures=0, critical=critical)
    after = answer if isinstance(answer, list) else fault(answer)
    here = FunctionBackend("world", lambda arguments, timeout_s: backup(arguments, timeout_s))
    for in_process in (False, True):
        first = Scripted("a", fault("server"), after=["page"])
        backup = Scripted("b", after=after)
        backends, last = ([first], here) if in_process else ([first, backup], None)
        disk = DiskCache(tmp_path / str(in_process))
        chain = ReliableOperation("visit", backends, policy, disk=disk, clock=clock)
        down, up = chain.call(Q, local=last), chain.call(Q, local=last)
        assert not down.value and down.degraded and down.env_fault is critical
        assert (up.value, up.source, up.cache_hit) == (["page"], "a", False)


def test_backup_answers_are_not_cached(clock):
    first = Scripted("a", fault("server"), after="new")
    chain = ReliableOperation(
        "visit", [first, Scripted("b", after="old")], ReliabilityPolicy(attempts=1), clock=clock
    )
    assert [chain.call(Q).value for _ in range(3)] == ["old", "new", "new"]
    assert len(first.calls) == 2


def test_page_faults_open_no_breaker_and_fail_over(clock):
    policy = ReliabilityPolicy(attempts=2, breaker_failures=1)
    first = Scripted("a", *[fault("unreachable")] * 2, fault("unreadable"), after="page")
    second = Scripted("b", after=fault("unreadable"))
    chain = ReliableOperation("visit", [first, second], policy, clock=clock)
    for attempts in (3, 2):  # "unreachable" is tried again, "unreadable" is not
        outcome = chain.call(Q)
        assert (outcome.error, outcome.attempts) == ("unreadable", attempts)
        assert outcome.has_answer and not outcome.env_fault and not outcome.cache_hit
    assert chain.call(Q).source == "a"
    second.after = fault("server")  # the backend is down and might have had the page
    first.after = fault("unreadable")
    assert chain.call({"url": "2"}).env_fault


def test_local_source_is_called_after_the_deadline(clock):
    def hangs(arguments, timeout_s):
        clock.sleep(timeout_s)
        raise fault("timeout")

    given = []
    here = FunctionBackend("world", lambda arguments, timeout_s: given.append(timeout_s) or "page")
    chain = ReliableOperation(
        "search", [FunctionBackend("a", hangs), FunctionBackend("b", hangs)], PLAIN, clock=clock
    )
    outcome = chain.call(Q, local=here)
    assert clock.now >= 60 and given == [15.0]
    assert (outcome.value, outcome.source, outcome.degraded) == ("page", "world", True)
    assert chain.call({"query": "x"}, local=here, until=clock.now + 1).value == "page"
    assert clock.now <= 61.001


def test_all_backends_down_is_an_outcome(clock):
    backends = [Scripted("a", after=fault("server")), Scripted("b", after=fault("timeout"))]
    chain = ReliableOperation("search", backends, PLAIN, clock=clock)
    for _ in range(2):  # a failure is not cached
        outcome = chain.call(Q)
        assert (outcome.value, outcome.source, outcome.error) == (None, "", "timeout")
        assert outcome.degraded and outcome.env_fault and outcome.attempts == 6
        assert not outcome.has_answer and not outcome.cache_hit
    assert len(backends[0].calls) == 6


def test_non_critical_failure_is_no_environment_fault(clock):
    policy = ReliabilityPolicy(critical=False)
    outcome = ReliableOperation(
        "visit", [Scripted("a", after=fault("auth"))], policy, clock=clock
    ).call(Q)
    assert outcome.degraded and not outcome.env_fault


def test_malformed_reply_is_retried(clock):
    def check(value):
        if value != "ok":
            raise fault("malformed")
        return value

    backend = Scripted("a", "<html>")
    outcome = ReliableOperation("search", [backend], check=check, clock=clock).call(Q)
    assert (outcome.value, outcome.attempts) == ("ok", 2)


# ---------------------------------------------------------------- circuit breaker


def test_breaker_opens_half_opens_and_closes(clock):
    policy = ReliabilityPolicy(attempts=1, breaker_failures=3, breaker_open_s=10)
    first, second = Scripted("a", *[fault("server")] * 4), Scripted("b", after="backup")
    chain = ReliableOperation("search", [first, second], policy, clock=clock)
    ask = (chain.call({"query": str(n)}) for n in range(99))
    sources = [next(ask).source for _ in range(5)]
    assert sources == ["b"] * 5 and len(first.calls) == 3  # the third failure opened it
    clock.now = 9.999
    assert next(ask).attempts == 1 and len(first.calls) == 3
    clock.now = 10.0
    assert next(ask).source == "b" and len(first.calls) == 4  # the trial failed: open again
    clock.now = 19.0
    assert next(ask).source == "b" and len(first.calls) == 4
    clock.now = 20.5
    assert [next(ask).source for _ in range(3)] == ["a"] * 3  # the trial closed it
    assert len(first.calls) == 7


@pytest.mark.parametrize(
    ("kind", "opens"),
    [
        ("auth", True),
        ("server", True),
        ("forbidden", False),
        ("too_large", False),
        ("refused", False),
        ("unreachable", False),
    ],
)
def test_faults_that_open_the_breaker(kind, opens, clock):
    backend = Scripted("a", after=fault(kind))
    policy = ReliabilityPolicy(attempts=1, breaker_failures=2)
    chain = ReliableOperation("search", [backend], policy, clock=clock)
    for n in range(4):
        chain.call({"query": str(n)})
    assert len(backend.calls) == (2 if opens else 4)


def test_half_open_breaker_allows_one_call(clock):
    entered, leave = threading.Event(), threading.Event()

    def slow(arguments, timeout_s):
        calls.append(arguments)
        if len(calls) == 1:
            raise fault("server")
        entered.set()
        assert leave.wait(20)
        return "ok"

    calls, policy = [], ReliabilityPolicy(attempts=1, breaker_failures=1, breaker_open_s=5)
    chain = ReliableOperation(
        "search", [FunctionBackend("a", slow), Scripted("b")], policy, clock=clock
    )
    chain.call({"query": "first"})
    clock.now = 6.0
    trial = threading.Thread(target=chain.call, args=({"query": "trial"},))
    trial.start()
    assert entered.wait(20)
    assert {chain.call({"query": str(n)}).source for n in range(5)} == {"b"}
    leave.set()
    trial.join(20)
    assert len(calls) == 2 and chain.call({"query": "after"}).source == "a"


def test_earlier_call_does_not_close_the_breaker(clock):
    entered, leave = threading.Event(), threading.Event()

    def uneven(arguments, timeout_s):
        if arguments["query"] != "slow":
            raise fault("server")
        entered.set()
        assert leave.wait(20)
        return "ok"

    policy = ReliabilityPolicy(attempts=1, breaker_failures=1)
    chain = ReliableOperation(
        "search", [FunctionBackend("a", uneven), Scripted("b")], policy, clock=clock
    )
    slow = threading.Thread(target=chain.call, args=({"query": "slow"},))
    slow.start()
    assert entered.wait(20) and chain.call({"query": "1"}).attempts == 2
    leave.set()
    slow.join(20)
    assert chain.call({"query": "2"}).attempts == 1  # still open: only b was tried


def test_open_breaker_is_skipped_immediately(clock):
    policy = ReliabilityPolicy(attempts=3, breaker_failures=1)
    chain = ReliableOperation("search", [Scripted("a", after=fault("server"))], policy, clock=clock)
    outcome = chain.call({"query": "1"})  # opened during the call: no more attempts and no wait
    assert (outcome.attempts, outcome.error, clock.now) == (1, "server", 0)
    outcome = chain.call({"query": "2"})
    assert (outcome.attempts, outcome.error, outcome.env_fault) == (0, "skipped", True)


# ---------------------------------------------------------------- rate limit


@pytest.mark.parametrize("rate", [1, 7])
def test_rate_holds_in_any_window_with_50_threads(rate, clock):
    backend = Scripted("a", clock=clock)
    policy = ReliabilityPolicy(rate=rate, deadline_s=1000)
    chain = ReliableOperation("search", [backend], policy, clock=clock)
    outcomes = together(50, lambda i: chain.call({"query": str(i)}))
    assert all(o.value == "ok" and o.attempts == 1 for o in outcomes)
    times = sorted(backend.times)
    assert len(times) == 50
    assert all(b - a >= 1 for a, b in zip(times, times[rate:]))
    assert times[-1] <= 100 / rate + 1  # no unnecessary waits


def test_retries_count_towards_the_rate(clock):
    backend = Scripted("a", *[fault("server")] * 3, clock=clock)
    policy = ReliabilityPolicy(attempts=4, rate=1, backoff_s=0.01)
    ReliableOperation("search", [backend], policy, clock=clock).call(Q)
    assert all(b - a >= 1 for a, b in zip(backend.times, backend.times[1:]))


def test_rate_limit_beyond_the_deadline_skips_the_backend(clock):
    policy = ReliabilityPolicy(rate=1, deadline_s=0.5)
    chain = ReliableOperation("search", [Scripted("a"), Scripted("b")], policy, clock=clock)
    assert [chain.call({"query": str(n)}).source for n in range(3)] == ["a", "b", ""]
    assert clock.now == 0


@pytest.mark.parametrize(
    "setting",
    [
        {"attempts": 0},
        {"rate": -1},
        {"breaker_failures": -1},
        {"timeout_s": 0},
        {"deadline_s": float("nan")},
        {"backoff_s": -1},
    ],
    ids=str,
)
def test_invalid_policy_is_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        ReliabilityPolicy(**setting)
