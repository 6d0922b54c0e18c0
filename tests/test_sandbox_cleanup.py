"""Empty and measure folders while hostile processes replace their content.

Every file is addressed by a descriptor of its folder and its last path component, and no link is
followed. The controls do the same work by path and are redirected outside.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from drlib.sandbox import file_usage, layers
from drlib.sandbox.cleanup import wipe

ROUNDS = 200


def test_wipe_removes_any_tree_and_follows_no_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    work = tmp_path / "work"
    (work / "a" / "b" / "c").mkdir(parents=True)
    (work / "a" / "b" / "f").write_text("x")
    (work / "link").symlink_to(outside)
    (work / "a" / "link").symlink_to(outside)
    (work / "a" / "b").chmod(0)
    wipe(str(work))
    assert os.listdir(work) == [] and os.listdir(outside) == ["kept"]


def test_wipe_rejects_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    (tmp_path / "work").symlink_to(outside)
    with pytest.raises(OSError):
        wipe(str(tmp_path / "work"))
    assert os.listdir(outside) == ["kept"]


# It follows no link itself: what is inside a folder is named by the folder's descriptor.
SWAPPER = """
import os, sys, time
work, outside = sys.argv[1:]
os.chdir(work)
def stay():  # long enough to be followed
    end = time.perf_counter() + 0.0003
    while time.perf_counter() < end: pass
def attempt(action, *arguments, **more):
    try: return action(*arguments, **more)
    except OSError: return None
while True:  # until it is killed
    attempt(os.mkdir, "a")
    inside = attempt(os.open, "a", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    if inside is None:
        attempt(os.unlink, "a")
        continue
    here = {"dir_fd": inside}
    attempt(os.mkdir, "b", **here)
    attempt(os.mkdir, "c", **here)
    attempt(os.rename, "b", "x", src_dir_fd=inside, dst_dir_fd=inside)
    attempt(os.symlink, outside, "b", **here)
    stay()
    attempt(os.unlink, "b", **here)
    attempt(os.rename, "x", "b", src_dir_fd=inside, dst_dir_fd=inside)
    os.close(inside)
    attempt(os.rename, "a", "y")
    attempt(os.symlink, outside, "a")
    stay()
    attempt(os.unlink, "a")
    attempt(os.rename, "y", "a")
"""


@contextmanager
def swap_folders(tmp_path):
    """Yield (work, outside): two processes replace folders in `work` by links to `outside`.

    The folder `outside` holds 100 files.

    """
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    (outside / "b" / "c").mkdir(parents=True)
    for i in range(100):
        (outside / f"kept-{i}").write_text("x" * 100)
        (outside / "b" / f"kept-{i}").write_text("x" * 100)
    command = [sys.executable, "-c", SWAPPER, str(work), str(outside)]
    swappers = [subprocess.Popen(command) for _ in range(2)]
    try:
        yield work, outside
    finally:
        for swapper in swappers:
            swapper.kill()
            swapper.wait()


def state(folder):
    found = []
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        found.append((str(path), info.st_mode, info.st_size, info.st_mtime_ns))
    return found


def test_wipe_stays_inside_during_races(tmp_path):
    with swap_folders(tmp_path) as (work, outside):
        before = state(outside)
        for _ in range(ROUNDS):
            with suppress(OSError):  # a lost race, but inside
                wipe(str(work))
            assert state(outside) == before


def wipe_by_path(folder):
    """Empty a folder by path: the negative control of `wipe`."""
    for entry in list(os.scandir(folder)):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)
            continue
        for child in list(os.scandir(entry.path)):
            if child.is_dir(follow_symlinks=False):
                os.rename(child.path, os.path.join(folder, os.urandom(8).hex()))
            else:
                os.unlink(child.path)
        os.rmdir(entry.path)


def test_control_wipe_by_path_escapes(tmp_path):
    with swap_folders(tmp_path) as (work, outside):
        before = state(outside)
        end = time.monotonic() + 60
        while state(outside) == before and time.monotonic() < end:
            with suppress(OSError):
                wipe_by_path(work)
        assert state(outside) != before


def plain_open(top: int, path: str) -> int:
    """Open a folder and follow links: the negative control of `open_below`."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=top)


@pytest.mark.parametrize("open_folder", [layers.open_below, plain_open])
def test_open_below_stays_inside_during_races(open_folder, tmp_path):
    """Files of the outside folder must never be listed."""
    seen = opened = refused = 0
    enough = (
        ROUNDS if open_folder is layers.open_below else 10**6
    )  # the control runs until it fails
    with swap_folders(tmp_path) as (work, _):
        end = time.monotonic() + 30
        top = os.open(work, os.O_RDONLY)
        while min(opened, refused) < enough and not seen and time.monotonic() < end:
            for path in ("a", "a/b"):
                try:
                    here = open_folder(top, path)
                except OSError:  # not there, or a link
                    refused += 1
                    continue
                opened += 1
                seen += any("kept-" in name for name in os.listdir(here))
                os.close(here)
        os.close(top)
    assert bool(seen) == (open_folder is plain_open)
    assert seen or min(opened, refused) >= ROUNDS


def test_measurement_counts_bytes_entries_and_deleted_files(tmp_path, monkeypatch):
    monkeypatch.setattr(file_usage, "WORK_BYTES", 1 << 20)
    monkeypatch.setattr(file_usage, "WORK_ENTRIES", 50)
    work, here = str(tmp_path), os.getpid()

    def too_much():
        return file_usage.holds_too_much(here, work)

    assert not too_much()
    (tmp_path / "f").write_bytes(bytes(900 << 10))
    assert not too_much()
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "g").write_bytes(bytes(200 << 10))
    assert too_much()
    (tmp_path / "f").unlink()
    assert not too_much()
    with open(tmp_path / "f", "wb") as file:
        file.write(bytes(900 << 10))
        file.flush()
        (tmp_path / "f").unlink()
        assert file_usage.nameless_bytes(here, work) >= 900 << 10
        assert too_much()
    assert file_usage.nameless_bytes(here, work) == 0
    for i in range(50):
        (tmp_path / f"entry-{i}").touch()
    assert too_much()
    assert not file_usage.holds_too_much(2**22 - 1, work)  # an unused process id


def test_deleted_mapped_file_counts_as_the_largest(tmp_path):
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    with open(tmp_path / "f\rwith odd \n name", "w+b") as file:
        file.truncate(4096)
        place = libc.mmap(None, ctypes.c_size_t(4096), 3, 1, file.fileno(), ctypes.c_long(0))
    assert file_usage.nameless_bytes(os.getpid(), str(tmp_path)) == 0
    next(tmp_path.iterdir()).unlink()
    assert file_usage.nameless_bytes(os.getpid(), str(tmp_path)) == file_usage.FILE_BYTES
    assert libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(4096)) == 0
    assert file_usage.nameless_bytes(os.getpid(), str(tmp_path)) == 0


def test_walk_of_a_deep_tree_is_linear(tmp_path, monkeypatch):
    """Count path components, not seconds.

    Opening each folder from the top again would take about 800,000 components.

    """
    walked = []
    open_below = file_usage.layers.open_below

    def count_and_open(above, path):
        walked.append(path.count("/") + 1)
        return open_below(above, path)

    monkeypatch.setattr(file_usage.layers, "open_below", count_and_open)
    monkeypatch.setattr(file_usage, "WALK_SECONDS", 60.0)
    top = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(900):
            os.mkdir("n" * 20)
            os.mkdir("m" * 20)
            os.chdir("n" * 20)
        assert file_usage.holds_too_much(os.getpid(), str(tmp_path))  # 1,800 entries
        monkeypatch.setattr(file_usage, "WORK_ENTRIES", 2000)
        walked.clear()
        assert not file_usage.holds_too_much(os.getpid(), str(tmp_path))
        assert len(walked) == 1801 and max(walked) <= file_usage.KEPT_APART + 1
        before = len(os.listdir("/proc/self/fd"))
        monkeypatch.setattr(file_usage, "WALK_SECONDS", 0.0)
        assert file_usage.holds_too_much(os.getpid(), str(tmp_path))
        assert len(os.listdir("/proc/self/fd")) == before
    finally:
        os.chdir(top)
        wipe(str(tmp_path))


def test_too_many_mappings_exceed_the_limit(tmp_path, monkeypatch):
    assert not file_usage.holds_too_much(os.getpid(), str(tmp_path))
    monkeypatch.setattr(file_usage, "MOST_MAPPINGS", 5)
    assert file_usage.holds_too_much(os.getpid(), str(tmp_path))


def test_tree_deeper_than_path_max_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(file_usage, "WORK_BYTES", 2 << 20)
    top = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(40):
            os.mkdir("n" * 250)
            os.chdir("n" * 250)
        assert not file_usage.holds_too_much(os.getpid(), str(tmp_path))
        with open("f", "wb") as file:
            file.write(bytes(3 << 20))
        assert file_usage.holds_too_much(os.getpid(), str(tmp_path))
    finally:
        os.chdir(top)
        wipe(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_vanishing_files_are_no_error(tmp_path):
    """Files appear and vanish during the measurement."""
    going = threading.Event()

    def churn():
        while not going.is_set():
            shutil.rmtree(tmp_path / "d", ignore_errors=True)
            with suppress(OSError):
                (tmp_path / "d" / "e").mkdir(parents=True)
                (tmp_path / "d" / "e" / "f").write_text("x")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(ROUNDS):
            assert file_usage.holds_too_much(os.getpid(), str(tmp_path)) is False
    finally:
        going.set()
        thread.join()
