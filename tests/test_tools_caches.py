"""Caching of tool calls: equal calls, memory, the disk cache and its damage.

Run: python -m pytest tests/test_tools_caches.py
"""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from drlib.tools import DiskCache, ReliabilityPolicy, ReliableOperation, Toolbox
from drlib.tools.backends import FunctionBackend
from drlib.tools.reliability import MemoryCache
from tests.tool_examples import PLAIN, FakeClock, Q, Scripted, fault, together


@pytest.fixture
def clock():
    return FakeClock()


def test_concurrent_equal_calls_share_one_request(clock):
    def slow(arguments, timeout_s):
        calls.append(arguments)
        clock.sleep(1)
        return "ok"

    calls = []
    chain = ReliableOperation("search", [FunctionBackend("a", slow)], clock=clock)
    outcomes = together(20, lambda _: chain.call(Q))
    assert len(calls) == 1 and {o.value for o in outcomes} == {"ok"}
    assert sum(not o.cache_hit for o in outcomes) == 1


def test_tools_of_a_toolbox_share_one_cache(monkeypatch):
    monkeypatch.setattr("drlib.tools.toolbox.MemoryCache", partial(MemoryCache, entries=2))
    backends = {name: [Scripted(name, after={"text": name})] for name in ("python", "calculator")}
    with Toolbox(None, backends=backends) as toolbox:
        calls = [("python", {"code": "1"}), ("calculator", {"expression": "1"})] * 2
        results = [toolbox.call(*call) for call in calls]
        assert [(r.text, r.cache_hit) for r in results] == [
            ("python", False),
            ("calculator", False),
            ("python", True),
            ("calculator", True),
        ]
        for code in ("2", "3"):
            toolbox.call("python", {"code": code})
        assert not toolbox.call("calculator", {"expression": "1"}).cache_hit  # evicted


def test_shared_failure_is_no_cache_hit(clock):
    def down(arguments, timeout_s):
        clock.sleep(1)
        raise fault("server")

    policy = ReliabilityPolicy(attempts=1, breaker_failures=0)
    for last in (None, FunctionBackend("here", lambda arguments, timeout_s: [])):
        chain = ReliableOperation("search", [FunctionBackend("a", down)], policy, clock=clock)
        outcomes = together(8, lambda _, chain=chain, last=last: chain.call(Q, local=last))
        assert all(o.env_fault and not o.cache_hit for o in outcomes)


def test_memory_cache_evicts_least_recently_used():
    def get(key, value="x"):
        return memory.get(key, lambda: value, lambda result: result != "no")

    memory = MemoryCache(entries=2)
    assert [get(key)[1] for key in "ababcbaca"] == [0, 0, 1, 1, 0, 1, 0, 0, 1]
    memory = MemoryCache(size=3_000)
    big = "y" * 1_000
    assert [get(key, big)[1] for key in "ababcaac"] == [0, 0, 1, 1, 0, 0, 1, 1]
    assert get("d", "z" * 10_000) == ("z" * 10_000, False) and not get("d")[1]
    memory = MemoryCache(size=3_000)
    for n in range(1_000):  # uncached values need no space
        assert get(str(n), "no") == ("no", False)
    assert memory._bytes == 0 and not get("a")[1] and get("a")[1]


def test_timed_out_program_is_not_cached(tmp_path, clock):
    for status, kept in (("timeout", False), ("killed", False), ("error", True), ("ok", True)):
        value = {"text": "", "status": status}
        backend, disk = Scripted("a", after=value), DiskCache(tmp_path / status)
        chain = ReliableOperation("python", [backend], disk=disk, clock=clock)
        assert [chain.call({"code": "x"}).cache_hit for _ in range(2)] == [False, kept]
        again = ReliableOperation("python", [backend], disk=disk, clock=clock)
        assert again.call({"code": "x"}).cache_hit is kept


def test_cached_call_does_not_reach_the_backend(clock):
    backend = Scripted("a", fault("server"))
    chain = ReliableOperation("search", [backend], clock=clock)
    first, again = chain.call(Q, "v1"), chain.call(dict(reversed(Q.items())), "v1")
    assert not first.cache_hit and again.cache_hit and len(backend.calls) == 2
    assert (again.value, again.attempts) == ("ok", 2)
    assert not chain.call(Q, "v2").cache_hit and len(backend.calls) == 3


def test_disk_cache_survives_a_restart_per_world(tmp_path, clock):
    def run(version):
        backend = Scripted("a", after={"text": "æ\ud800"})
        chain = ReliableOperation(
            "visit", [backend], disk=DiskCache(tmp_path / "deep" / "cache"), clock=clock
        )
        outcome = chain.call(Q, version)
        assert outcome.value == {"text": "æ\ud800"} and outcome.source == "a"
        return outcome.cache_hit, len(backend.calls)

    assert run("v1") == (False, 1) and run("v1") == (True, 0) and run("v2") == (False, 1)


def test_disk_cache_excludes_failures_backups_and_missing_pages(tmp_path, clock):
    def run(*kinds):
        disk = DiskCache(tmp_path / "cache")
        backends = [Scripted(k, after=fault(k) if k else "ok") for k in kinds]
        return ReliableOperation("visit", backends, PLAIN, disk=disk, clock=clock).call(Q)

    run("server")
    run("server", "")
    run("not_found")
    assert not run("").cache_hit and run("").cache_hit


@pytest.mark.parametrize("damage", ["garbage", "cut", "another file"])
def test_damaged_cache_warns_and_calls_continue(damage, tmp_path, clock):
    path = tmp_path / "cache"
    DiskCache(path).put("key", "the right value")
    DiskCache(path).put("more", ["filler"] * 5000)
    data = path.read_bytes()
    path.write_bytes(
        {
            "garbage": b"\xff" * len(data),
            "cut": data[: len(data) // 2],
            "another file": b"my notes, not a data base " * 100,
        }[damage]
    )
    damaged, disk = path.read_bytes(), DiskCache(path)
    chain = ReliableOperation("visit", [Scripted("a")], disk=disk, clock=clock)
    with pytest.warns(UserWarning, match="cache: .*delete the file if it is damaged"):
        assert disk.get("key") is None and disk.get("more") is None
        disk.put("key", "new")
        assert chain.call(Q).value == "ok"
    assert path.read_bytes() == damaged  # a foreign file is left unchanged
    path.unlink()
    disk.put("key", "new")
    assert disk.get("key") == "new" and DiskCache(path).get("key") == "new"


def test_modified_cache_row_is_a_miss(tmp_path):
    path = tmp_path / "cache"
    disk = DiskCache(path)
    disk.put("key", "the right value")
    data = path.read_bytes()
    assert data.count(b"the right value") == 1
    path.write_bytes(data.replace(b"the right value", b"the wrong value"))
    assert disk.get("key") is None
    disk.put("key", "again right")
    assert disk.get("key") == "again right"
    for kind in ("BLOB", "INTEGER"):
        disk.put("key", ["value", "a"])
        with closing(sqlite3.connect(path)) as db, db:
            db.execute(f"UPDATE calls SET body=CAST(body AS {kind})")
        assert disk.get("key") is None


def test_unwritable_cache_path_does_not_fail_calls(tmp_path, clock):
    disk = DiskCache(tmp_path)  # a folder
    chain = ReliableOperation("visit", [Scripted("a")], disk=disk, clock=clock)
    with pytest.warns(UserWarning, match="unable to open"):
        assert chain.call(Q).value == "ok"


WRITER = """
import sys
from concurrent.futures import ThreadPoolExecutor
from drlib.tools import DiskCache
disk, me = DiskCache(sys.argv[1]), sys.argv[2]
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
