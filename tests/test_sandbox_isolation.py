"""Hostile code against the sandbox, at each level of this machine.

The cases are data (`hostile_cases.py`, `greedy_cases.py`). After each one, the output contains no
canary, every planted target (`sandbox_targets.py`) is unchanged, and the same template answers in
an empty folder. At the end no process, file, shared memory or socket is left. The negative control
runs the cases without isolation, where the canaries must leak.
"""

import dataclasses
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import warnings
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from drlib.sandbox import Sandbox, SandboxUnavailable, probe, template_process
from drlib.sandbox.selftest import LEVELS
from tests.hostile_cases import REPOSITORY_CANARY
from tests.sandbox_targets import (
    BOUND,
    BREACH,
    CANARY,
    CASES,
    HERE,
    OTHERS,
    REACHING,
    Places,
    judge,
    nothing_left,
    sandbox_at,
    shown,
    skip_without,
)
from tests.waiting import HANG_S

# Long, so that it is not kept with small objects; the canary is for who reads old memory.
AFTER = f"import os\nprint(os.listdir('.'), '{CANARY}')\n#" + "-" * 700


@pytest.fixture(scope="module", params=["standard", "strong"])
def level(request):
    skip_without(request.param)
    return request.param


def test_control_cases_leak_without_isolation():
    """With limits only, nearly every marked case reads its canary or reports a breach."""
    layers_off = ("landlock", "seccomp", "namespaces", "no_new_privileges", "unprivileged")
    found = dataclasses.replace(probe().without(*layers_off), drop="none")
    marked = [case for case in CASES.values() if case.leaks]
    with warnings.catch_warnings(), nothing_left(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        places = Places(stack)
        made = stack.enter_context(
            Sandbox(workers=2, found=found, min_level="weak", timeout_s=8.0, output_chars=BOUND)
        )
        results = dict(zip(marked, made.map([places.fill(c.code) for c in marked]), strict=True))
        assert {r.isolation for r in results.values()} == {"weak"}
        assert made.run("print(1)").text == "1"
        assert stat.S_IMODE(places.secret.stat().st_mode) == 0o666
    leaked = {
        case.name
        for case, result in results.items()
        if any(w in shown(result) for w in (CANARY, BREACH, REPOSITORY_CANARY))
    }
    assert len(leaked) >= 0.9 * len(marked), {c.name for c in marked} - leaked
    assert leaked >= {
        "read a file",
        "read in home",
        "read in tmp",
        "read the repository",
        "symbolic link",
        "command line of a process",
        "fork",
        "shell",
        "exec",
        "signal a process",
        "write outside",
        "tcp",
        "udp",
        "abstract socket",
        "system V shared memory",
        "memory file",
        "daemon",
    }


@pytest.fixture(scope="module")
def places(level):
    with nothing_left(), ExitStack() as stack:
        yield Places(stack)


@pytest.fixture(scope="module")
def sandbox(level, places):
    with sandbox_at(level, timeout_s=8.0, memory_mb=256, output_chars=BOUND) as made:
        made.map([AFTER, AFTER + "numpy"])
        yield made


@pytest.fixture(scope="module")
def endless(level, places):
    """Return results of the endless cases, all queued at once on separate workers."""
    chosen = [case for case in CASES.values() if case.endless]
    with sandbox_at(level, workers=4, timeout_s=0.4, memory_mb=256, output_chars=BOUND) as made:
        futures = [made.submit(places.fill(c.code), c.stdin, c.history) for c in chosen]
        results = {c.name: f.result() for c, f in zip(chosen, futures, strict=True)}
        assert {r.text for r in made.map([AFTER] * 8)} == {f"[] {CANARY}"}
        places.check()
        yield results


# --- the cases ---------------------------------------------------------------------------------


def names(endless: bool) -> list[str]:
    return [case.name for case in CASES.values() if case.endless == endless]


@pytest.mark.parametrize("name", names(endless=False))
def test_case(name, sandbox, places):
    case, pids = CASES[name], sandbox.template_pids()
    judge(case, sandbox.run(places.fill(case.code), case.stdin, case.history))
    places.check()
    after = AFTER + "numpy" if "numpy" in case.code else AFTER  # the same template
    assert sandbox.run(after).text == f"[] {CANARY}"
    assert set(sandbox.template_pids()) >= set(pids)  # and perhaps one for long calls


@pytest.mark.parametrize("name", names(endless=True))
def test_endless_case(name, endless):
    judge(CASES[name], endless[name])


def test_number_of_cases():
    assert len(CASES) == len(REACHING + OTHERS) >= 130  # no two of one name


SYSTEM_CALLS = {  # x86-64 and aarch64 numbers; each must fail with EPERM
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "mount": (165, 40),
    "umount2": (166, 39),
    "setns": (308, 268),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_setup": (206, 0),
    "userfaultfd": (323, 282),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "seccomp": (317, 277),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "add_key": (248, 217),
    "perf_event_open": (298, 241),
    "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    "setxattr": (188, 5),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "personality": (135, 92),
    "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "openat2": (437, 437),
    "execveat": (322, 281),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "syslog": (103, 116),
    "kcmp": (312, 272),
    "ioprio_set": (251, 30),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
    "socket": (41, 198),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "mlock": (149, 228),
    "mbind": (237, 235),
    "migrate_pages": (256, 238),
    "process_madvise": (440, 440),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "capset": (126, 91),
    "setreuid": (113, 145),
    "vmsplice": (278, 75),
    "sched_setattr": (314, 274),
    "quotactl_fd": (443, 443),
    "cachestat": (451, 451),
    "mincore": (27, 232),
    "timer_create": (222, 107),
    "splice": (275, 76),
    "tee": (276, 77),
    "listmount": (458, 458),
    "statmount": (457, 457),
    "an unknown one": (999, 999),
}


def test_system_calls_outside_the_list_fail(sandbox):
    column = 0 if os.uname().machine == "x86_64" else 1
    numbers = {name: pair[column] for name, pair in SYSTEM_CALLS.items()}
    result = sandbox.run(
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        f"for name, number in {numbers}.items():\n"
        "    ctypes.set_errno(0)\n"
        "    done = libc.syscall(number, 0, 0, 0, 0, 0, 0)\n"
        "    if (done, ctypes.get_errno()) != (-1, 1): print(name, done, ctypes.get_errno())\n"
    )
    assert result.text == "Finished execution."


def test_concurrent_calls_are_isolated(level, places):
    """Two concurrent calls have separate files and enough threads and memory."""
    with sandbox_at(level, workers=2, timeout_s=6.0, memory_mb=256) as pair:
        same = (
            "import time\nopen('f', 'w').write('{0}')\ntime.sleep(0.3)\n"
            "print(open('f').read(), *__import__('os').listdir('.'))"
        )
        assert [r.text for r in pair.map([same.format(i) for i in "ab"])] == ["a f", "b f"]
        bomb = pair.submit(
            "import threading, time\nthreading.stack_size(32768)\ntry:\n    while True:\n"
            "        threading.Thread(target=time.sleep, args=(2,), daemon=True).start()\n"
            "except RuntimeError: time.sleep(2)"
        )
        time.sleep(1.0)
        assert pair.run(CASES["thread pool"].code).text == "[1, 2]"
        bomb.result()


def test_a_template_killed_in_a_call_is_replaced(level, places):
    with sandbox_at(level, timeout_s=20.0) as single:
        (old,) = single.template_pids()
        future = single.submit("import time\ntime.sleep(1)\nprint('done')")
        time.sleep(0.5)
        psutil.Process(old).kill()
        assert future.result().text == "done"
        assert single.template_pids() not in ([], [old])


def test_exiting_caller_leaves_nothing(level, places):
    """The module's last check would find left-over processes and folders of this caller."""
    script = (
        "from drlib.sandbox import template_process\n"
        f"template_process.scratch = lambda: {template_process.scratch()!r}\n"
        "from tests.sandbox_targets import sandbox_at\n"
        f"made = sandbox_at({level!r}, timeout_s=60.0)\n"
        "future = made.submit('import time\\ntime.sleep(50)')\n"
        "print('started', flush=True)\nfuture.result()"
    )
    caller = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    )
    with caller:
        assert caller.stdout.readline() == "started\n"
        time.sleep(0.3)
        caller.send_signal(signal.SIGKILL)


# --- less than everything ----------------------------------------------------------------------


def test_failing_layer_stops_the_call_before_any_code():
    """Without no_new_privs, the kernel refuses Landlock, so no code may run."""
    skip_without("standard")
    incomplete = probe().without("no_new_privileges", "namespaces")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Sandbox(found=incomplete, min_level="weak")
    with made:
        result = made.run("print('ran')")
    assert (result.status, result.exit_code, result.stdout) == ("setup_failed", 97, "")
    assert result.env_fault and "landlock" in result.stderr
    assert result.text == "SandboxError: the code could not be run."


def test_level_below_standard_raises_by_default():
    weak = probe().without("landlock", "seccomp")
    assert weak.level == "weak"
    with pytest.raises(SandboxUnavailable, match="min_level=.weak.") as refusal:
        Sandbox(found=weak)
    assert "landlock" in str(refusal.value)
    nothing = probe().without("limits")
    assert nothing.level == "none"
    with pytest.raises(SandboxUnavailable):
        Sandbox(found=nothing, min_level="weak")
    with pytest.raises(SandboxUnavailable, match="strong"):
        Sandbox(min_level="strong", found=probe().without("namespaces"))


def test_library_path_with_a_colon(tmp_path):
    skip_without("standard")
    ours = Path(template_process.__file__).parents[1]
    copy = tmp_path / "a:b" / "drlib"
    shutil.copytree(ours / "sandbox", copy / "sandbox")
    shutil.copy(ours / "__init__.py", copy)
    code = f"""
import sys
sys.path.insert(0, {str(copy.parent)!r})
from drlib.sandbox import Sandbox, probe, selftest
with Sandbox() as sandbox:
    print(probe().level, selftest.__file__, sandbox.run("print(40 + 2)").text, sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S
    )
    words = done.stdout.strip().split("|")
    assert words == [probe().level, str(copy / "sandbox" / "selftest.py"), "42"], done.stderr


def test_probe_prints_a_table():
    command = [sys.executable, "-m", "drlib.cli", "sandbox", "probe"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == probe().table()
    assert done.returncode == (0 if LEVELS.index(HERE) >= LEVELS.index("standard") else 1)
