"""Failures under running calls: killed processes, full disks, no descriptors; and 2,000 calls.

Real processes and real full file systems (small ones, mounted here: root only). Afterwards every
accepted call has exactly one result or a typed error, and the sandbox works again.
"""

import contextlib
import errno
import gc
import os
import resource
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from drlib.sandbox import Sandbox, probe, template_process

pytestmark = pytest.mark.skipif(
    probe().level not in ("standard", "strong"), reason=f"isolation here is {probe().level}"
)
STATUSES = """ok error killed timeout cpu_limit memory_limit output_limit
setup_failed worker_died queue_timeout service_unavailable""".split()
SLOW = "import time; time.sleep({}); print({})"


class Answers:
    """Submit calls and count the answers of each."""

    def __init__(self, sandbox, codes):
        self.counts, self.futures = [0] * len(codes), []
        for i, code in enumerate(codes):
            self.futures.append(sandbox.submit(code))
            self.futures[-1].add_done_callback(lambda _, i=i: self._count(i))

    def _count(self, i):
        self.counts[i] += 1

    def results(self):
        """Return every result, or its OSError; each call has one with a known status."""
        found = [future.exception(60) or future.result() for future in self.futures]
        end = time.monotonic() + 10
        while 0 in self.counts and time.monotonic() < end:  # callbacks come after the result
            time.sleep(0.01)
        assert self.counts == [1] * len(found)
        assert all(isinstance(r, OSError) or r.status in STATUSES for r in found), found
        return found

    def until_some(self, number):
        end = time.monotonic() + 60
        while sum(self.counts) < number:
            assert time.monotonic() < end, "no call ended"
            time.sleep(0.01)


def check_works(sandbox):
    return [r.text for r in sandbox.map([f"print({i})" for i in range(6)])] == list("012345")


@pytest.fixture
def small_disk(tmp_path):
    """Return the path of a file system of 4 MB."""
    if os.geteuid():
        pytest.skip("mounting a small file system needs root")
    command = ["mount", "-t", "tmpfs", "-o", "size=4m,mode=1777", "tmpfs", str(tmp_path)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        pytest.skip(f"mounting a small file system failed: {made.stderr}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def fill(folder):
    """Fill all bytes and inodes of a disk."""
    with open(folder / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    with pytest.raises(OSError) as full:
        (folder / "more").write_bytes(bytes(4096))
    assert full.value.errno == errno.ENOSPC
    (folder / "more").unlink()


@pytest.mark.parametrize("what", ["temporary folder", "scratch folder"])
@pytest.mark.parametrize("level", ["strong", "standard"])
def test_a_full_disk(what, level, small_disk, monkeypatch):
    if level == "strong" and probe().level != "strong":
        pytest.skip("no namespaces here")
    found = probe() if level == "strong" else probe().without("namespaces")
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    if what == "scratch folder":
        monkeypatch.setattr(template_process, "scratch", lambda: str(small_disk))
    with Sandbox(workers=2, found=found) as sandbox:
        if what == "scratch folder":
            assert any(small_disk.iterdir())
        answers = Answers(
            sandbox,
            [SLOW.format(0.05, i) for i in range(20)]
            + ["open('f', 'w').write('a' * 100_000); print('written')"] * 4,
        )
        answers.until_some(3)
        fill(small_disk)
        os.kill(sandbox.template_pids()[0], signal.SIGKILL)  # a new one finds the disk full
        results = answers.results()
        # Calls that write nothing have their answer, or say that the sandbox is at fault.
        for i, result in enumerate(results[:20]):
            assert result.env_fault or result.text == str(i), result
        for result in results[20:]:
            assert result.env_fault or result.text == "written" or "No space" in result.text, result
        (small_disk / "filler").unlink()
        assert check_works(sandbox)
    assert not list(small_disk.iterdir())  # nothing is left there


@pytest.mark.parametrize("whom", ["template", "child"])
def test_killed_process_affects_no_other_call(whom):
    with Sandbox(workers=2) as sandbox:
        answers = Answers(sandbox, [SLOW.format(0.05, i) for i in range(60)])
        killed = 0
        for done in (5, 20, 35):
            answers.until_some(done)
            for pid in sandbox.template_pids():
                victims = [psutil.Process(pid)]
                if whom == "child":
                    victims = victims[0].children(recursive=True)[-1:]
                for victim in victims:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        victim.kill()
                        killed += 1
        results = answers.results()
        assert killed >= 3
        for i, result in enumerate(results):
            assert result.text == str(i) or result.status in (
                "killed",
                "worker_died",
                "setup_failed",
            ), result
        # The call of a killed template is retried; a started child is not.
        assert sum(result.ok for result in results) >= 60 - killed
        assert check_works(sandbox)


def failed(result):
    """Return True for an environment fault: a result with that status, or an error."""
    return result.errno == errno.EMFILE if isinstance(result, OSError) else result.env_fault


def take_all(held):
    """Open files until no descriptor is left."""
    with pytest.raises(OSError) as full:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    assert full.value.errno == errno.EMFILE


def test_no_free_descriptors_in_the_caller():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Sandbox(workers=2) as sandbox:
        assert check_works(sandbox)
        held, answers = [], Answers(sandbox, [SLOW.format(0.05, i) for i in range(6)])
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
        try:
            take_all(held)
            under_way = answers.results()
            take_all(held)  # those of the calls that have ended
            others = Answers(sandbox, [f"print({i})" for i in range(6)]).results()
        finally:
            for fd in held:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for i, result in enumerate(under_way):
            assert failed(result) or result.text == str(i), result
        assert all(failed(result) for result in others), others
        assert check_works(sandbox)


def test_two_thousand_calls_leak_nothing():
    def count_resources():
        gc.collect()
        family = [psutil.Process(pid) for pid in sandbox.template_pids()]
        own = psutil.Process()
        return (
            own.num_fds(),
            threading.active_count(),
            len(list(Path("/dev/shm").iterdir())),
            sum(p.num_fds() for p in family),
            (own.memory_info().rss + sum(p.memory_info().rss for p in family)) / 2**20,
        )

    codes = ["print(1)", "1 / 0", "print('a' * 9999)", "open('f', 'w').write('x' * 9999)"] * 125
    with Sandbox(workers=2) as sandbox:
        sandbox.map(codes[:200])
        pids, before = sandbox.template_pids(), count_resources()
        for _ in range(4):
            results = Answers(sandbox, codes).results()
            assert [r.status for r in results] == ["ok", "error", "ok", "ok"] * 125
        after = count_resources()
        assert sandbox.template_pids() == pids
    assert after[:2] == before[:2] and after[2] <= before[2] + 8  # others use /dev/shm as well
    assert after[3] <= before[3] + 4, (before, after)  # of a child's start, perhaps under way
    assert after[4] < before[4] + 8.0, (before, after)
