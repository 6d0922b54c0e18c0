"""Store with several processes: readers keep their state, killed writers leave the old one.

Run: python -m pytest tests/test_worlds_store_processes.py
"""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import suppress

from drlib.worlds import store
from drlib.worlds.library import read_facts
from drlib.worlds.store import Store
from tests.store_examples import library, place


def test_reader_keeps_its_state_and_a_new_one_sees_the_update(tmp_path):
    path = tmp_path / "index"
    old = library({"a": place("A", ("r", "1"))}, path)
    version = old.version
    new = library({"a": place("A", ("r", "1")), "b": place("B", ("r", "A"))}, path)
    assert read_facts(old.page("A").text) == {"r": ["1"]} and old.find("B") is None
    assert old.version == version == old.store.version != new.version
    assert read_facts(new.page("A").text) == {"r": ["1"], "r of": ["B"]}


WRITER = """
import os, sys
sys.path.insert(0, "tests")
from store_examples import Store, place
def read(source):
    if source == "999":
        print("nearly done", flush=True)
        sys.stdin.readline()
    return place(f"New {source}", ("r", "A"))
store = Store(sys.argv[1])
store.update({str(i): "2" for i in range(1000)} | {"a": "1"}, read)
print(store.version, flush=True)
"""


def writer(path):
    """Start a process that has written all but the last source of an update on return."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "nearly done\n"
    return process


def test_readers_are_not_affected_by_a_writer(tmp_path):
    path = tmp_path / "index"
    version = library({"a": place("A", ("r", "1"))}, path).version
    process, faults, shown = writer(path), [], set()

    def read_pages():
        world = library({"a": place("A", ("r", "1"))}, path)
        found = {(world.version, len(world), world.search("A")[0].title) for _ in range(20)}
        faults.extend(found - {(version, 1, "A")})

    one = library({"a": place("A", ("r", "1"))}, path)  # shared by the threads below
    threads = [threading.Thread(target=read_pages) for _ in range(4)]
    threads += [
        threading.Thread(target=lambda: shown.update(one.page("A").text for _ in range(50)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out, _ = process.communicate("\n")
    assert not faults and shown == {one.page("A").text} and process.returncode == 0
    after = Store(path)
    after.update({str(i): "2" for i in range(1000)} | {"a": "1"}, None)
    assert after.version == out.strip() != version == one.store.version


def test_killed_writer_leaves_the_old_state(tmp_path):
    path = tmp_path / "index"
    version = library({"a": place("A", ("r", "1"))}, path).version
    process = writer(path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    world = library({"a": place("A", ("r", "1"))}, path)
    assert (world.version, len(world)) == (version, 1)
    assert world.store.rows("PRAGMA integrity_check") == [("ok",)]


def test_concurrent_builds_read_the_sources_once(tmp_path):
    code = """
import sys
sys.path.insert(0, "tests")
from store_examples import Store, place
store = Store(sys.argv[1])
changes = store.update({str(i): "1" for i in range(50)}, lambda s: place(f"Page {s}", ("r", s)))
print(len(changes.added), store.version)
"""
    run = [sys.executable, "-c", code, tmp_path / "index"]
    processes = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    found = [process.communicate()[0].split() for process in processes]
    assert sorted(int(read) for read, _ in found) == [0, 0, 0, 50]
    assert len({version for _, version in found}) == 1


def test_new_file_locked_by_another_process_is_awaited(tmp_path):
    """SQLite waits for readers but reports a write lock at once."""
    path = tmp_path / "index"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    over = threading.Timer(0.3, other.execute, ["COMMIT"])
    over.start()
    assert library({"a": place("A", ("r", "1"))}, path).find("A") is not None
    over.join()
    other.close()


def test_file_created_concurrently_is_accepted(tmp_path, monkeypatch):
    """A file that another process creates at that moment is not reported as damaged."""
    path, connect = tmp_path / "index", sqlite3.connect
    rivals = []

    class Slow(sqlite3.Connection):
        def execute(self, sql, *values):
            if "sqlite_master" in sql and not rivals:
                rivals.append(connect(path, 0.1, isolation_level=None))
                with suppress(sqlite3.OperationalError):  # waits while another process reads
                    rivals[0].executescript(store._schema())
                with suppress(sqlite3.OperationalError):
                    rivals[0].execute("ROLLBACK")
            return super().execute(sql, *values)

    def slowly(*how, **more):
        return connect(*how, **more, factory=Slow)

    monkeypatch.setattr(store.sqlite3, "connect", slowly)
    world = library({"a": place("A", ("r", "1"))}, path)
    assert len(world) == 1 and len(rivals) == 1
    rivals[0].close()
