"""One operation behind several backends: retries, limits, caches, breakers, fail-over.

Time is a fake clock that threads share, so waits are exact and cost nothing.
Run: python -m pytest tests/test_tools_dependable.py
"""

import json
import sqlite3
import subprocess
import sys
import threading
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from tool_examples import FakeClock, Scripted, fault, together

from drlib.tools import Dependable, Disk, ReliabilityPolicy
from drlib.tools.backends import Source, digest, uniform
from drlib.tools.dependable import Memory

Q = {"query": "Norway", "k": 2}
PLAIN = ReliabilityPolicy(breaker_failures=0)


@pytest.fixture
def clock():
    return FakeClock()


# ---------------------------------------------------------------- retries


def test_attempts_and_back_off_are_exact(clock):
    policy = ReliabilityPolicy(attempts=5, backoff_s=1, backoff_max_s=4, breaker_failures=0, seed=7)
    backend = Scripted("a", *[fault("server")] * 4, clock=clock)
    outcome = Dependable("search", [backend], policy, clock=clock).call(Q)
    key = digest("search", Q, "")
    waits = [step * (0.5 + uniform(7, key, n) / 2) for n, step in enumerate([1, 2, 4, 4], 1)]
    assert outcome.waits_s == pytest.approx(waits) and outcome.attempts == 5
    assert outcome.waits_s == pytest.approx((0.7357, 1.2803, 2.7477, 3.9304), abs=1e-4)
    assert backend.times == pytest.approx([sum(waits[:n]) for n in range(5)])
    assert (outcome.value, outcome.source, outcome.error) == ("ok", "a", "")
    assert not outcome.degraded and not outcome.env_fault


def test_jitter_depends_on_seed_key_and_attempt_alone(clock):
    def waits(seed, arguments):
        policy = ReliabilityPolicy(attempts=3, breaker_failures=0, seed=seed)
        chain = Dependable("search", [Scripted("a", after=fault("connection"))],
                           policy, clock=clock)  # fmt: skip
        return chain.call(arguments).waits_s

    assert waits(1, Q) == waits(1, dict(reversed(Q.items())))
    assert len({waits(1, Q), waits(2, Q), waits(1, {**Q, "k": 3})}) == 3


@pytest.mark.parametrize("kind", ["auth", "forbidden", "too_large"])
def test_a_fault_that_time_does_not_heal_is_not_retried(kind, clock):
    backend = Scripted("a", after=fault(kind))
    outcome = Dependable("visit", [backend], clock=clock).call(Q)
    assert (outcome.attempts, outcome.error, outcome.env_fault) == (1, kind, True)
    assert clock.now == 0 and outcome.waits_s == ()


@pytest.mark.parametrize("kind", ["not_found", "refused"])
def test_answers_of_the_world_are_no_faults(kind, clock):
    policy = ReliabilityPolicy(breaker_failures=1)
    first, second = Scripted("a", after=fault(kind)), Scripted("b")
    chain = Dependable("visit", [first, second], policy, clock=clock)
    for n in range(3):
        outcome = chain.call({"url": str(n)})
        assert (outcome.error, outcome.source, outcome.value) == (kind, "a", None)
        assert not outcome.env_fault and not outcome.degraded and outcome.attempts == 1
    assert chain.call({"url": "0"}).cache_hit
    assert len(first.calls) == 3 and not second.calls  # no breaker opened, no fail-over


def test_what_one_source_does_not_have_the_source_in_this_process_may(clock):
    here = Source("world", lambda arguments, timeout_s: "page")
    chain = Dependable("visit", [Scripted("a", after=fault("refused")), Scripted("b")], clock=clock)
    outcome = chain.call({"url": "cldr:Norway"}, "v1", here)
    assert (outcome.value, outcome.source, outcome.degraded) == ("page", "world", True)


def test_retry_after_is_honoured(clock):
    backend = Scripted("a", fault("rate_limited", retry_after_s=7.25), clock=clock)
    outcome = Dependable("search", [backend], clock=clock).call(Q)
    assert outcome.waits_s == (7.25,) and backend.times == [0, 7.25]


def test_a_wait_beyond_the_deadline_is_not_begun(clock):
    policy = ReliabilityPolicy(deadline_s=30)
    first = Scripted("a", after=fault("rate_limited", retry_after_s=31), clock=clock)
    outcome = Dependable("search", [first, Scripted("b")], policy, clock=clock).call(Q)
    assert outcome.source == "b" and clock.now == 0 and outcome.attempts == 2


def test_the_deadline_holds_and_every_try_knows_what_is_left(clock):
    def hangs(arguments, timeout_s):
        given.append(timeout_s)
        clock.sleep(timeout_s)
        raise fault("timeout")

    given, policy = [], ReliabilityPolicy(attempts=9, timeout_s=4, deadline_s=10, backoff_s=0.5)
    chain = Dependable("visit", [Source("a", hangs), Scripted("b")], policy, clock=clock)
    outcome = chain.call(Q)
    assert clock.now <= 10 + 1e-9 and outcome.env_fault and outcome.degraded
    assert given[:2] == [4, 4] and 0 < given[2] < 2 and len(given) == 3


def test_a_bug_in_a_backend_is_raised_and_forgotten(clock):
    backend = Scripted("a", RuntimeError("bug"))
    chain = Dependable("search", [backend], clock=clock)
    with pytest.raises(RuntimeError, match="bug"):
        chain.call(Q)
    assert chain.call(Q).value == "ok"


# ---------------------------------------------------------------- fail-over


def test_primary_down_gives_the_backup_and_says_so(clock):
    first, second = Scripted("a", after=fault("server")), Scripted("b", after="backup")
    outcome = Dependable("search", [first, second], PLAIN, clock=clock).call(Q)
    assert (outcome.value, outcome.source, outcome.attempts) == ("backup", "b", 4)
    assert outcome.degraded and not outcome.env_fault and outcome.error == ""


@pytest.mark.parametrize("answer", ["not_found", "refused", []])
@pytest.mark.parametrize("critical", [True, False])
def test_that_the_backup_has_nothing_is_no_word_of_the_primary_that_is_down(
    answer, critical, tmp_path, clock
):
    policy = ReliabilityPolicy(attempts=1, breaker_failures=0, critical=critical)
    after = answer if isinstance(answer, list) else fault(answer)
    here = Source("world", lambda arguments, timeout_s: backup(arguments, timeout_s))
    for in_process in (False, True):
        first = Scripted("a", fault("server"), after=["page"])
        backup = Scripted("b", after=after)
        backends, last = ([first], here) if in_process else ([first, backup], None)
        disk = Disk(tmp_path / str(in_process))
        chain = Dependable("visit", backends, policy, disk=disk, clock=clock)
        down, up = chain.call(Q, last=last), chain.call(Q, last=last)
        assert not down.value and down.degraded and down.env_fault is critical
        assert (up.value, up.source, up.cache_hit) == (["page"], "a", False)


def test_what_a_backup_answered_is_not_kept_either(clock):
    first = Scripted("a", fault("server"), after="new")
    chain = Dependable("visit", [first, Scripted("b", after="old")],
                       ReliabilityPolicy(attempts=1), clock=clock)  # fmt: skip
    assert [chain.call(Q).value for _ in range(3)] == ["old", "new", "new"]
    assert len(first.calls) == 2


def test_faults_of_one_page_open_no_breaker_and_ask_the_next_backend(clock):
    policy = ReliabilityPolicy(attempts=2, breaker_failures=1)
    first = Scripted("a", *[fault("unreachable")] * 2, fault("unreadable"), after="page")
    second = Scripted("b", after=fault("unreadable"))
    chain = Dependable("visit", [first, second], policy, clock=clock)
    for attempts in (3, 2):  # "unreachable" is tried again, "unreadable" is not
        outcome = chain.call(Q)
        assert (outcome.error, outcome.attempts) == ("unreadable", attempts)
        assert outcome.answered and not outcome.env_fault and not outcome.cache_hit
    assert chain.call(Q).source == "a"
    second.after = fault("server")  # that one is down: it might have had the page
    first.after = fault("unreadable")
    assert chain.call({"url": "2"}).env_fault


def test_the_source_in_this_process_is_asked_after_the_deadline_too(clock):
    def hangs(arguments, timeout_s):
        clock.sleep(timeout_s)
        raise fault("timeout")

    given = []
    here = Source("world", lambda arguments, timeout_s: given.append(timeout_s) or "page")
    chain = Dependable("search", [Source("a", hangs), Source("b", hangs)], PLAIN, clock=clock)
    outcome = chain.call(Q, last=here)
    assert clock.now >= 60 and given == [15.0]
    assert (outcome.value, outcome.source, outcome.degraded) == ("page", "world", True)
    assert chain.call({"query": "x"}, last=here, until=clock.now + 1).value == "page"
    assert clock.now <= 61.001


def test_all_down_is_an_outcome_and_no_exception(clock):
    backends = [Scripted("a", after=fault("server")), Scripted("b", after=fault("timeout"))]
    chain = Dependable("search", backends, PLAIN, clock=clock)
    for _ in range(2):  # a failure is not kept
        outcome = chain.call(Q)
        assert (outcome.value, outcome.source, outcome.error) == (None, "", "timeout")
        assert outcome.degraded and outcome.env_fault and outcome.attempts == 6
        assert not outcome.answered and not outcome.cache_hit
    assert len(backends[0].calls) == 6


def test_what_is_not_critical_is_no_fault_of_the_environment(clock):
    policy = ReliabilityPolicy(critical=False)
    outcome = Dependable("visit", [Scripted("a", after=fault("auth"))], policy, clock=clock).call(Q)
    assert outcome.degraded and not outcome.env_fault


def test_a_malformed_reply_is_tried_again(clock):
    def check(value):
        if value != "ok":
            raise fault("malformed")
        return value

    backend = Scripted("a", "<html>")
    outcome = Dependable("search", [backend], check=check, clock=clock).call(Q)
    assert (outcome.value, outcome.attempts) == ("ok", 2)


# ---------------------------------------------------------------- circuit breaker


def test_the_breaker_opens_half_opens_and_closes(clock):
    policy = ReliabilityPolicy(attempts=1, breaker_failures=3, breaker_open_s=10)
    first, second = Scripted("a", *[fault("server")] * 4), Scripted("b", after="backup")
    chain = Dependable("search", [first, second], policy, clock=clock)
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


@pytest.mark.parametrize(("kind", "opens"), [
    ("auth", True), ("server", True), ("forbidden", False), ("too_large", False),
    ("refused", False), ("unreachable", False),
])  # fmt: skip
def test_which_faults_open_the_breaker(kind, opens, clock):
    backend = Scripted("a", after=fault(kind))
    policy = ReliabilityPolicy(attempts=1, breaker_failures=2)
    chain = Dependable("search", [backend], policy, clock=clock)
    for n in range(4):
        chain.call({"query": str(n)})
    assert len(backend.calls) == (2 if opens else 4)


def test_a_half_open_breaker_lets_one_call_through(clock):
    entered, leave = threading.Event(), threading.Event()

    def slow(arguments, timeout_s):
        calls.append(arguments)
        if len(calls) == 1:
            raise fault("server")
        entered.set()
        assert leave.wait(20)
        return "ok"

    calls, policy = [], ReliabilityPolicy(attempts=1, breaker_failures=1, breaker_open_s=5)
    chain = Dependable("search", [Source("a", slow), Scripted("b")], policy, clock=clock)
    chain.call({"query": "first"})
    clock.now = 6.0
    trial = threading.Thread(target=chain.call, args=({"query": "trial"},))
    trial.start()
    assert entered.wait(20)
    assert {chain.call({"query": str(n)}).source for n in range(5)} == {"b"}
    leave.set()
    trial.join(20)
    assert len(calls) == 2 and chain.call({"query": "after"}).source == "a"


def test_a_call_from_before_the_breaker_opened_does_not_close_it(clock):
    entered, leave = threading.Event(), threading.Event()

    def uneven(arguments, timeout_s):
        if arguments["query"] != "slow":
            raise fault("server")
        entered.set()
        assert leave.wait(20)
        return "ok"

    policy = ReliabilityPolicy(attempts=1, breaker_failures=1)
    chain = Dependable("search", [Source("a", uneven), Scripted("b")], policy, clock=clock)
    slow = threading.Thread(target=chain.call, args=({"query": "slow"},))
    slow.start()
    assert entered.wait(20) and chain.call({"query": "1"}).attempts == 2
    leave.set()
    slow.join(20)
    assert chain.call({"query": "2"}).attempts == 1  # still open: only b was tried


def test_a_breaker_that_is_open_everywhere_is_skipped_at_once(clock):
    policy = ReliabilityPolicy(attempts=3, breaker_failures=1)
    chain = Dependable("search", [Scripted("a", after=fault("server"))], policy, clock=clock)
    outcome = chain.call({"query": "1"})  # opened in the middle: no more tries and no wait
    assert (outcome.attempts, outcome.error, outcome.waits_s) == (1, "server", ())
    outcome = chain.call({"query": "2"})
    assert (outcome.attempts, outcome.error, outcome.env_fault) == (0, "skipped", True)


# ---------------------------------------------------------------- rate limit


@pytest.mark.parametrize("rate", [1, 7])
def test_the_rate_is_never_exceeded_in_any_window_with_50_threads(rate, clock):
    backend = Scripted("a", clock=clock)
    policy = ReliabilityPolicy(rate=rate, deadline_s=1000)
    chain = Dependable("search", [backend], policy, clock=clock)
    outcomes = together(50, lambda i: chain.call({"query": str(i)}))
    assert all(o.value == "ok" and o.waits_s == () for o in outcomes)
    times = sorted(backend.times)
    assert len(times) == 50
    assert all(b - a >= 1 for a, b in zip(times, times[rate:]))
    assert times[-1] <= 100 / rate + 1  # nor does it wait for nothing


def test_a_retry_takes_its_turn_like_any_call(clock):
    backend = Scripted("a", *[fault("server")] * 3, clock=clock)
    policy = ReliabilityPolicy(attempts=4, rate=1, backoff_s=0.01)
    Dependable("search", [backend], policy, clock=clock).call(Q)
    assert all(b - a >= 1 for a, b in zip(backend.times, backend.times[1:]))


def test_no_turn_before_the_deadline_is_a_skipped_backend(clock):
    policy = ReliabilityPolicy(rate=1, deadline_s=0.5)
    chain = Dependable("search", [Scripted("a"), Scripted("b")], policy, clock=clock)
    assert [chain.call({"query": str(n)}).source for n in range(3)] == ["a", "b", ""]
    assert clock.now == 0


# ---------------------------------------------------------------- equal calls, caches


def test_equal_calls_at_the_same_time_are_one(clock):
    def slow(arguments, timeout_s):
        calls.append(arguments)
        clock.sleep(1)
        return "ok"

    calls = []
    chain = Dependable("search", [Source("a", slow)], clock=clock)
    outcomes = together(20, lambda _: chain.call(Q))
    assert len(calls) == 1 and {o.value for o in outcomes} == {"ok"}
    assert sum(not o.cache_hit for o in outcomes) == 1


def test_a_shared_failure_is_no_cache_hit(clock):
    def down(arguments, timeout_s):
        clock.sleep(1)
        raise fault("server")

    policy = ReliabilityPolicy(attempts=1, breaker_failures=0)
    for last in (None, Source("here", lambda arguments, timeout_s: [])):
        chain = Dependable("search", [Source("a", down)], policy, clock=clock)
        outcomes = together(8, lambda _, chain=chain, last=last: chain.call(Q, last=last))
        assert all(o.env_fault and not o.cache_hit for o in outcomes)


def test_memory_keeps_what_was_used_last_within_its_entries_and_bytes():
    def get(key, value="x"):
        return memory.get(key, lambda: value, lambda made: made != "no")

    memory = Memory(entries=2)
    assert [get(key)[1] for key in "ababcbaca"] == [0, 0, 1, 1, 0, 1, 0, 0, 1]
    memory = Memory(size=3_000)
    big = "y" * 1_000
    assert [get(key, big)[1] for key in "ababcaac"] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert get("d", "z" * 10_000) == ("z" * 10_000, False) and not get("d")[1]
    memory = Memory(size=3_000)
    for n in range(1_000):  # what is not kept takes no room
        assert get(str(n), "no") == ("no", False)
    assert memory._held == 0 and not get("a")[1] and get("a")[1]


def test_how_a_program_ended_by_the_clock_is_not_kept(tmp_path, clock):
    for status, kept in (("timeout", False), ("killed", False), ("error", True), ("ok", True)):
        value = {"text": "", "status": status}
        backend, disk = Scripted("a", after=value), Disk(tmp_path / status)
        chain = Dependable("python", [backend], disk=disk, clock=clock)
        assert [chain.call({"code": "x"}).cache_hit for _ in range(2)] == [False, kept]
        again = Dependable("python", [backend], disk=disk, clock=clock)
        assert again.call({"code": "x"}).cache_hit is kept


def test_a_cached_call_does_not_reach_the_backend(clock):
    backend = Scripted("a", fault("server"))
    chain = Dependable("search", [backend], clock=clock)
    first, again = chain.call(Q, "v1"), chain.call(dict(reversed(Q.items())), "v1")
    assert not first.cache_hit and again.cache_hit and len(backend.calls) == 2
    assert (again.value, again.attempts, again.waits_s) == ("ok", 2, first.waits_s)
    assert not chain.call(Q, "v2").cache_hit and len(backend.calls) == 3


def test_the_disk_answers_after_a_restart_for_the_same_world_only(tmp_path, clock):
    def run(version):
        backend = Scripted("a", after={"text": "æ\ud800"})
        chain = Dependable("visit", [backend], disk=Disk(tmp_path / "deep" / "cache"), clock=clock)
        outcome = chain.call(Q, version)
        assert outcome.value == {"text": "æ\ud800"} and outcome.source == "a"
        return outcome.cache_hit, len(backend.calls)

    assert run("v1") == (False, 1) and run("v1") == (True, 0) and run("v2") == (False, 1)


def test_the_disk_keeps_no_failure_no_backup_and_no_missing_page(tmp_path, clock):
    def run(*kinds):
        disk = Disk(tmp_path / "cache")
        backends = [Scripted(k, after=fault(k) if k else "ok") for k in kinds]
        return Dependable("visit", backends, PLAIN, disk=disk, clock=clock).call(Q)

    run("server")
    run("server", "")
    run("not_found")
    assert not run("").cache_hit and run("").cache_hit


@pytest.mark.parametrize("damage", ["garbage", "a byte of a value", "cut", "another file"])
def test_a_damaged_cache_is_named_and_set_aside(damage, tmp_path, clock):
    path = tmp_path / "cache"
    Disk(path).put("key", "the right value")
    Disk(path).put("more", ["filler"] * 5000)
    data = path.read_bytes()
    assert data.count(b"the right value") == 1
    path.write_bytes({
        "garbage": b"\xff" * len(data), "cut": data[: len(data) // 2],
        "a byte of a value": data.replace(b"the right value", b"the wrong value"),
        "another file": b"my notes, not a data base " * 100,
    }[damage])  # fmt: skip
    damaged, disk = path.read_bytes(), Disk(path)
    with pytest.warns(UserWarning, match=r"cache is damaged .*cache\.corrupt-1"):
        assert disk.get("key") is None and disk.get("more") is None
    assert (tmp_path / "cache.corrupt-1").read_bytes() == damaged
    disk.put("key", "new")
    assert disk.get("key") == "new" and Disk(path).get("key") == "new"


@pytest.mark.parametrize("seed", range(12))
def test_threads_that_find_the_damage_together_lose_no_file(seed, tmp_path):
    """The damaged file is set aside once, and the new one is not taken for damaged."""
    path, notes = tmp_path / "cache", b"my notes, not a data base " * 100
    path.write_bytes(notes)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            disks = [Disk(path), Disk(path)]

            def work(i):
                disk = disks[(i + seed) % 2]
                disk.get(str(i))
                disk.put(str(i), [i])
                return disk.get(str(i))

            found = together(8, work)
    finally:
        sys.setswitchinterval(before)
    assert [p.read_bytes() for p in tmp_path.glob("cache.corrupt-*")] == [notes]
    assert found == [[i] for i in range(8)] == [Disk(path).get(str(i)) for i in range(8)]


def test_a_body_of_another_type_is_damage_and_no_exception(tmp_path):
    for kind in ("BLOB", "INTEGER"):
        disk = Disk(tmp_path / kind)
        disk.put("key", ["value", "a"])
        with closing(sqlite3.connect(tmp_path / kind)) as db, db:
            db.execute(f"UPDATE calls SET body=CAST(body AS {kind})")
        with pytest.warns(UserWarning, match="row key is not as it was written"):
            assert disk.get("key") is None
        assert disk.get("key") is None and list(tmp_path.glob(f"{kind}.corrupt-1"))


def test_a_place_that_cannot_be_written_costs_the_cache_and_not_the_call(tmp_path, clock):
    disk = Disk(tmp_path)  # a folder
    chain = Dependable("visit", [Scripted("a")], disk=disk, clock=clock)
    with pytest.warns(UserWarning, match="unable to open"):
        assert chain.call(Q).value == "ok"


WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from drlib.tools import Disk
disk, me = Disk(sys.argv[1]), sys.argv[2]
def work(n):
    disk.put(f"{me}-{n}", [me, n] * 50)
    disk.put("shared", "same")
    return disk.get(f"{me}-{n}") == [me, n] * 50 and disk.get("shared") == "same"
with ThreadPoolExecutor(4) as pool:
    assert all(pool.map(work, range(40)))
"""


def test_threads_and_processes_share_a_disk_cache(tmp_path):
    path = tmp_path / "cache"
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-W", "error", "-c", WRITER, str(path)]
    writers = [subprocess.Popen([*command, str(i)], cwd=root) for i in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    rows = sqlite3.connect(path).execute("SELECT key, body FROM calls").fetchall()
    assert len(rows) == 121 and all(json.loads(body) for _, body in rows)


@pytest.mark.parametrize("setting", [
    {"attempts": 0}, {"rate": -1}, {"breaker_failures": -1}, {"timeout_s": 0},
    {"deadline_s": float("nan")}, {"backoff_s": -1},
], ids=str)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        ReliabilityPolicy(**setting)
