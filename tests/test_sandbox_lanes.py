"""Lanes, queue time, memory and closing: short calls pass long ones, every call gets one result."""

import os
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path

import pytest

from drlib.sandbox import Sandbox, pool, probe

pytestmark = pytest.mark.skipif(
    probe().level not in ("strong", "standard"), reason=f"isolation here is {probe().level}"
)


def test_long_call_does_not_delay_short_ones():
    with Sandbox(timeout_s=20.0, long_s=0.1) as single:
        ended = []
        long = single.submit("import time; time.sleep(8); print('long')")
        long.add_done_callback(lambda _: ended.append("long"))
        short = [single.submit(f"print({i})") for i in range(5)]
        for i, future in enumerate(short):
            future.add_done_callback(lambda _, i=i: ended.append(i))
        assert long.result().text == "long"
        assert [f.result().text for f in short] == ["0", "1", "2", "3", "4"]
        assert ended == [0, 1, 2, 3, 4, "long"]


def test_a_spare_template_starts_only_for_a_long_call():
    with Sandbox(timeout_s=20.0, long_s=0.3) as single:
        single.map(["print(1)"] * 20)
        assert len(single.template_pids()) == 1


def test_long_calls_are_limited_and_none_is_lost():
    with Sandbox(timeout_s=20.0, long_s=0.05, long_workers=2) as single:
        peak, gauge = [0], threading.Event()

        def watch():
            while not gauge.wait(0.01):
                peak[0] = max(peak[0], single._workers.running)

        thread = threading.Thread(target=watch)
        thread.start()
        results = single.map(f"import time; time.sleep(.3); print({i})" for i in range(12))
        gauge.set()
        thread.join()
        assert [r.text for r in results] == [str(i) for i in range(12)]
        assert peak[0] == 3
        assert (single._workers.short, single._workers.long) in ((0, 0), (1, 0))


def test_queue_timeout_is_an_environment_fault():
    with Sandbox(timeout_s=20.0, queue_timeout_s=0.5, long_workers=0) as single:
        first = single.submit("import time; time.sleep(1.5); print('ran')")
        late = single.submit("print('late')")
        assert first.result().text == "ran"
        result = late.result()
        assert (result.status, result.env_fault, result.ok) == ("queue_timeout", True, False)
        assert result.text == "SandboxError: the code could not be run."
        assert "queue_timeout_s=0.5" in result.stderr
        assert single.run("print('next')").text == "next"


def test_calls_wait_for_memory_and_then_run(monkeypatch):
    """The machine's free memory is replaced: 150 MB, then 1,000 MB."""
    left = [150 << 20]
    monkeypatch.setattr(pool, "available_bytes", lambda: left[0])
    with Sandbox(workers=2, memory_mb=100, timeout_s=20.0) as double:
        first = double.submit("import time; time.sleep(1); print(time.monotonic())")
        while not first.running():
            time.sleep(0.01)
        second = double.submit("import time; print(time.monotonic())")
        assert float(second.result().text) > float(first.result().text)  # one at a time
        left[0] = 1000 << 20
        began = double.map(["import time; a = time.monotonic(); time.sleep(1); print(a)"] * 2)
        assert abs(float(began[0].text) - float(began[1].text)) < 0.9  # side by side


def test_missing_memory_is_reported(monkeypatch):
    monkeypatch.setattr(pool, "available_bytes", lambda: 1 << 20)
    monkeypatch.setattr(pool, "MEMORY_PATIENCE_S", 0.2)
    with Sandbox(memory_mb=64) as single:
        result = single.run("print(1)")
        assert result.status == "queue_timeout" and "lower memory_mb" in result.stderr


def test_available_bytes_are_plausible():
    import psutil

    assert 0 < pool.available_bytes() <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"queue_timeout_s": 0}, "queue_timeout_s"),
        ({"long_workers": -1}, "long_workers"),
        ({"long_s": 0}, "long_s"),
        ({"memory_mb": 1}, "memory_mb"),
        ({"workers": 0}, "workers"),
        ({"min_level": "best"}, "min_level"),
        ({"long_s": float("inf")}, "long_s"),
    ],
)
def test_bad_settings_are_named(arguments, name):
    with pytest.raises(ValueError, match=name):
        Sandbox(**arguments)


LEVELS = {
    "strong": probe(),
    "standard": probe().without("namespaces"),
    "weak": probe().without("namespaces", "landlock", "seccomp"),
}


@pytest.mark.parametrize("level", [name for name, found in LEVELS.items() if found.level == name])
@pytest.mark.filterwarnings("ignore:Sandbox runs with WEAK")
def test_a_template_serves_many_calls(level):
    """A retry would hide a template that restarts for every call."""
    with Sandbox(found=LEVELS[level], min_level="weak") as single:
        single.run("import numpy")
        pids = single.template_pids()
        codes = ["print(1)", "import numpy; print(1)", "__import__('num' + 'py'); print(1)"] * 10
        assert {result.text for result in single.map(codes)} == {"1"}
        assert single.template_pids() == pids and len(pids) == 2


def test_code_inherits_no_descriptor_of_the_caller():
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(400)]
    scan = """
import os
seen = []
for fd in range(3, 4096):
    try: seen.append((fd, os.fstat(fd)))
    except OSError: pass
print(seen)
"""
    try:
        with Sandbox() as single:
            assert [single.run(scan + end).text for end in ("", "import numpy")] == ["[]", "[]"]
    finally:
        for fd in held:
            os.close(fd)


def test_closing_answers_every_call():
    for _ in range(5):
        single, futures = Sandbox(), []

        def submit(single=single, futures=futures):
            try:
                while True:
                    futures.append(single.submit("print(1)"))
            except RuntimeError as error:
                assert "is closed" in str(error)

        threads = [threading.Thread(target=submit) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        single.close()
        for thread in threads:
            thread.join()
        for future in futures:
            with suppress(CancelledError, RuntimeError):
                assert future.result(timeout=20).text == "1"


def test_a_callback_may_close_the_sandbox():
    single = Sandbox()
    done = threading.Event()
    future = single.submit("print(1)")
    future.add_done_callback(lambda _: (single.close(), done.set()))
    assert future.result().text == "1" and done.wait(20)


def test_internal_error_reaches_the_caller(monkeypatch):
    def broken():
        raise ZeroDivisionError("ours")

    with Sandbox() as single:
        monkeypatch.setattr(pool, "available_bytes", broken)
        with pytest.raises(ZeroDivisionError, match="ours"):
            single.run("print(1)")
        monkeypatch.undo()
        assert single.run("print(2)").text == "2"


def find_descendants(pid):
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [p for word in words for p in (int(word), *find_descendants(int(word)))]


def waiting_child(template):
    """Return the child prepared for the next call: the last session leader below a template."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for pid in reversed(find_descendants(template)):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            if int(fields[3]) == pid:
                return pid
        time.sleep(0.02)
    raise AssertionError("no child waits")


@pytest.mark.parametrize("level", [name for name, found in LEVELS.items() if found.level == name])
@pytest.mark.filterwarnings("ignore:Sandbox runs with WEAK")
def test_next_child_has_no_descriptor_of_its_template(level):
    """A copy of the socket would hide the template's death from the caller."""
    with Sandbox(found=LEVELS[level], min_level="weak") as single:
        single.run("print(1)")
        held, end = [], time.monotonic() + 20
        while len(held) != 4 and time.monotonic() < end:  # until it waits
            time.sleep(0.1)
            folder = f"/proc/{waiting_child(single.template_pids()[0])}/fd"
            held = [os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder)]
        assert len([name for name in held if name.startswith("socket:")]) == 1 and len(held) == 4


def test_killed_spare_loses_no_answer():
    with Sandbox() as single:
        for _ in range(3):
            assert single.run("print(1)").text == "1"
            for top in single.template_pids():
                os.kill(waiting_child(top), 9)
            assert single.run("print(2)").text == "2"
