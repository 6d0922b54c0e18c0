"""Simulate the seccomp filter: every path of the BPF program ends in the right verdict."""

import struct

import pytest

from drlib.sandbox.layers import LayerError
from drlib.sandbox.seccomp import SeccompFilter

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {  # x86-64, aarch64
    "read": (0, 63),
    "execve": (59, 221),
    "socket": (41, 198),
    "clone": (56, 220),
    "clone3": (435, 435),
    "getpid": (39, 172),
    "mount": (165, 40),
    "setrlimit": (160, 164),
    "fcntl": (72, 25),
    "flock": (73, 32),
    "close_range": (436, 436),
    "mmap": (9, 222),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "acct": (163, 89),
    "timer_create": (222, 107),
    "splice": (275, 76),
    "tee": (276, 77),
    "prctl": (157, 167),
    "openat": (257, 56),
    "clock_gettime": (228, 113),
    "getpgid": (121, 155),
    "futex": (202, 98),
    "fchmod": (91, 52),
    "lsetxattr": (189, 6),
    "fremovexattr": (199, 16),
    "unshare": (272, 97),
    "setns": (308, 268),
    "ptrace": (101, 117),
    "bpf": (321, 280),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "madvise": (28, 233),
    "fadvise64": (221, 223),
    "preadv2": (327, 286),
}
ALLOW, EPERM, EAGAIN, ENOSYS, DONE = 0x7FFF0000, 0x50001, 0x5000B, 0x50026, 0x50000
EOPNOTSUPP = 0x5005F
KILL = 0x80000000
THREAD, FORK = 0x3D0F00, 0x1200011
FILES, NEW_USER = 0x400, 0x10000000


@pytest.fixture(params=ARCHITECTURES)
def machine(request):
    return request.param


def judge(machine: str, name: str, *arguments: int) -> int:
    """Return the verdict on one system call."""
    column = list(ARCHITECTURES).index(machine)
    program = SeccompFilter(machine)
    return verdict(program, ARCHITECTURES[machine], NUMBERS[name][column], arguments)


def judge_program(machine: str, name: str, *arguments: int) -> int:
    """Return the verdict of the filter of programs."""
    column = list(ARCHITECTURES).index(machine)
    program = SeccompFilter(machine, programs=True)
    return verdict(program, ARCHITECTURES[machine], NUMBERS[name][column], arguments)


def verdict(program: SeccompFilter, arch: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Interpret the classic BPF program on one system call."""
    arguments = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("=iIQ6Q", number, arch, 0, *arguments)
    code = list(struct.iter_unpack("=HBBI", program._program.raw[: 8 * program.instructions]))
    accumulator, index = 0, 0
    while True:
        operation, yes, no, k = code[index]
        index += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, k)[0]
        elif operation == 0x54:
            accumulator &= k
        elif operation == 0x06:
            return k
        else:
            test = {0x15: accumulator == k, 0x35: accumulator >= k, 0x25: accumulator > k}
            index += yes if test[operation] else no


def test_unconditional_verdicts(machine):
    for name in ("read", "getpid"):
        assert judge(machine, name) == ALLOW
    for name in ("execve", "socket", "mount", "setrlimit", "timer_create", "splice", "tee", "acct"):
        assert judge(machine, name) == EPERM
    assert judge(machine, "clone3") == ENOSYS


def test_programs_may_start_others_but_no_namespaces(machine):
    for name in ("execve", "fchmod", "timer_create", "read"):
        assert judge_program(machine, name) == ALLOW
    for flags in (FORK, 17, THREAD, 0x4111):
        assert judge_program(machine, "clone", flags) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, NEW_USER, 0x20000000, 0x40000000):
        assert judge_program(machine, "clone", FORK | flag) == EPERM, hex(flag)
    for name in ("kill", "tgkill"):  # of its own PID namespace
        assert judge_program(machine, name, 4711, 9) == ALLOW
    denied = "socket mount unshare setns ptrace bpf keyctl io_uring_setup setrlimit splice acct"
    for name in denied.split():
        assert judge_program(machine, name) == EPERM
    assert judge_program(machine, "clone3") == ENOSYS
    for name in ("lsetxattr", "fremovexattr"):
        assert judge_program(machine, name) == EOPNOTSUPP and judge(machine, name) == EPERM


def test_another_architecture_is_killed(machine):
    other = ARCHITECTURES[machine] ^ 1
    assert verdict(SeccompFilter(machine), other, 0) == KILL
    if machine == "x86_64":
        assert verdict(SeccompFilter(machine), ARCHITECTURES[machine], 0x40000000 + 39) == KILL


def test_unknown_machine_raises():
    with pytest.raises(LayerError, match="riscv64"):
        SeccompFilter("riscv64")


def test_threads_but_no_processes_or_own_descriptors(machine):
    assert judge(machine, "clone", THREAD) == ALLOW
    assert judge(machine, "clone", THREAD | 0x400000) == ALLOW  # CLONE_DETACHED, ignored
    for flags in (FORK, THREAD ^ FILES, THREAD | NEW_USER, 17, 0, THREAD ^ 0x10000):
        assert judge(machine, "clone", flags) == EPERM, hex(flags)
    assert judge(machine, "close_range", 3, 9, 0) == judge(machine, "close_range", 3, 9, 4) == ALLOW
    for flags in (2, 6):  # CLOSE_RANGE_UNSHARE
        assert judge(machine, "close_range", 3, 9, flags) == EPERM


def test_locks_succeed_without_effect(machine):
    assert judge(machine, "flock", 3, 2) == DONE
    for command in (6, 7, 37, 38):  # F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW
        assert judge(machine, "fcntl", 3, command) == DONE
    for command in (0, 1, 2, 3, 4, 1030, 1032):
        assert judge(machine, "fcntl", 3, command) == ALLOW
    for command in (5, 36, 8, 10, 1031, 1033):  # read locks, owners, larger pipes, seals
        assert judge(machine, "fcntl", 3, command) == EPERM


def test_shared_anonymous_memory_is_denied(machine):
    for flags in (0x2, 0x22, 0x1, 0x3, 0x32):
        assert judge(machine, "mmap", 0, 4096, 3, flags) == ALLOW, hex(flags)
    for flags in (0x21, 0x23, 0x8021):
        assert judge(machine, "mmap", 0, 4096, 3, flags) == EPERM, hex(flags)


def test_process_signals_only_itself(machine):
    for name in ("kill", "tgkill"):
        # placeholder of the process id until the filter is installed
        assert judge(machine, name, 0xFFFFFFF1, 9) == ALLOW
        for other in (0, 1, 2, 4711, 0xFFFFFFFF):  # 0: its group, -1: all processes
            assert judge(machine, name, other, 9) == EPERM


def test_channels_between_calls_are_denied(machine):
    assert judge(machine, "openat", 0, 0, 0o2) == ALLOW
    assert judge(machine, "openat", 0, 0, 0x400000 | 0x10000 | 2) == EPERM  # O_TMPFILE
    for clock in (0, 1, 2, 3, 7, 11):
        assert judge(machine, "clock_gettime", clock) == ALLOW
    for clock in (16, (~1 << 3 | 2) & 0xFFFFFFFF):  # the processor time of process 1
        assert judge(machine, "clock_gettime", clock) == EPERM
    assert judge(machine, "getpgid", 0) == ALLOW and judge(machine, "getpgid", 1) == EPERM
    for operation in (0x80, 0x81, 0x89 | 0x100):
        assert judge(machine, "futex", 0, operation) == ALLOW
    for operation in (0, 1, 3, 4, 5, 9, 0xA, 0x100, 0x10A, 0x86, 0x87):  # shared, owned
        assert judge(machine, "futex", 0, operation) == EPERM
    # pthread_join waits in this form; it must not reach the kernel
    assert judge(machine, "futex", 0, 0x109) == EAGAIN
    for advice, allowed in ((4, True), (8, True), (10, False), (14, False), (21, False)):
        assert judge(machine, "madvise", 0, 0, advice) == (ALLOW if allowed else EPERM)
    assert judge(machine, "fadvise64", 3, 0, 0, 4) == DONE
    assert judge(machine, "preadv2") == ALLOW
    assert judge(machine, "preadv2", 3, 0, 1, 0, 0, 8) == EPERM
    for option, allowed in ((3, True), (16, True), (15, False), (4, False), (0x53564D41, False)):
        assert judge(machine, "prctl", option) == (ALLOW if allowed else EPERM)
