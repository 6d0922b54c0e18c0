"""Test every isolation layer in a forked child that applies it and checks what it forbids.

`selftest.probe` runs this module through `launcher.py` in a clean process, which prints the result
as JSON. Kernel versions prove nothing: a container may block a call or its effect.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

from drlib.sandbox import layers, seccomp

WHAT_NAMESPACES_GIVE = "PID, mount, network, IPC and host name, file tree"


def in_child(trial: Callable[[], str]) -> tuple[bool, str]:
    """Run `trial` in a forked child; return (success, its text or error)."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            text = "1" + trial()
        except BaseException as error:  # noqa: BLE001 - any error means that the layer is unavailable
            text = f"0{type(error).__name__}: {error}"
        os.write(write, text.encode()[:2000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(pid, 0)
    if not text:
        return False, f"the trial ended with code {os.waitstatus_to_exitcode(status)}"
    return text[0] == "1", text[1:]


def need(trial: Callable[[], str]) -> None:
    """Run `trial` in a forked child; raise AssertionError if it fails."""
    ok, detail = in_child(trial)
    if not ok:
        raise AssertionError(detail)


def read_own_status(name: str) -> int:
    """Read a hexadecimal entry of /proc/self/status."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1], 16) for line in file if line.startswith(name + ":"))


def expect(error: type[BaseException], action: Callable[[], object], what: str) -> None:
    """Raise AssertionError unless `action` raises `error`."""
    try:
        action()
    except error:
        return
    raise AssertionError(f"{what} was possible")


def try_limits() -> str:
    """Check limits of descriptors and, if the system enforces it, address space."""
    layers.take(layers.limits({"NOFILE": 16, "CORE": 0}))
    expect(OSError, lambda: [os.dup(0) for _ in range(32)], "a descriptor beyond RLIMIT_NOFILE")
    layers.take(layers.limits({"AS": 1 << 30}))
    try:
        bytearray(4 << 30)
    except MemoryError:
        return "descriptors, address space"
    return "descriptors; address space is not enforced here"


def try_no_new_privileges() -> str:
    """Check that the no_new_privs flag is set."""
    layers.take(layers.NO_NEW_PRIVILEGES)
    if read_own_status("NoNewPrivs") != 1:
        raise AssertionError("NoNewPrivs is not 1")
    return "set"


def try_landlock() -> str:
    """Check that only one folder is accessible."""
    with tempfile.TemporaryDirectory() as base:
        os.mkdir(os.path.join(base, "work"))
        need(lambda: _inside_landlock(base))  # a restricted process could not remove the folder
    return f"ABI {layers.landlock_abi()}"


def _inside_landlock(base: str) -> str:
    """Check access inside and outside the work folder."""
    work = os.path.join(base, "work")
    layers.take(layers.NO_NEW_PRIVILEGES)
    layers.take(layers.landlock_restrict(layers.landlock_ruleset([], [], work)))
    with open(os.path.join(work, "inside"), "w") as file:
        file.write("x")
    expect(PermissionError, lambda: _open(__file__, "r"), "reading a file outside")
    expect(PermissionError, lambda: _open(os.path.join(base, "out"), "w"), "writing")
    return ""


def _open(path: str, mode: str) -> None:
    with open(path, mode):
        pass


def try_seccomp() -> str:
    """Check that only threads are possible: no process, socket, program or signal to others."""
    layers.take(layers.NO_NEW_PRIVILEGES)
    program = seccomp.SeccompFilter()
    parent = os.getppid()
    program.install()
    expect(PermissionError, os.fork, "fork")
    expect(PermissionError, socket.socket, "socket")
    expect(PermissionError, lambda: os.execv(sys.executable, ["python"]), "exec")
    expect(PermissionError, lambda: subprocess.run(["true"], check=False), "a subprocess")
    expect(PermissionError, lambda: os.kill(parent, 0), "a signal to the parent")
    thread = threading.Thread(target=os.getpid)
    thread.start()
    thread.join()
    return f"{program.instructions} instructions"


def drop_capabilities() -> None:
    """Drop all capabilities and check that none is left."""
    layers.take(layers.NO_CAPABILITIES)
    if read_own_status("CapEff") or read_own_status("CapPrm"):
        raise AssertionError("capabilities are left")


def check_dropped_root(drop: Callable[[], None], roots: list[str], folder: str, what: str) -> str:
    """Check that uid 65534 has no powers but can read Python and its temporary folder."""
    drop()
    drop_capabilities()
    expect(OSError, lambda: os.setuid(0), "setuid(0)")
    if os.geteuid() != layers.NOBODY:
        raise AssertionError(f"uid is {os.geteuid()}")
    with open(os.__file__, "rb") as file:
        file.read(1)
    os.stat(os.path.join(folder, "."))
    os.listdir(os.path.dirname(os.__file__))
    for root in roots:
        package = os.path.join(root, "sympy")
        os.listdir(package if os.path.isdir(package) else root)
    return what


def check_open_files_visible(drop: Callable[[], None]) -> None:
    """Check that we can list the open files of a child that has dropped root.

    Without namespaces, this is the only limit on deleted files that a call keeps open.
    """
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(read)
        try:
            drop()
            os.write(write, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write)
    try:
        if os.read(read, 1):  # else dropping failed, which another trial reports
            os.readlink(f"/proc/{pid}/fd/0")
    except PermissionError as error:
        remedy = "run as an ordinary user, or with the capability SYS_PTRACE"
        raise AssertionError(f"open files of other users are hidden: {remedy}") from error
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)


def try_mode(mode: str, roots: list[str], folder: str, what: str) -> str:
    """Test one method of dropping root ("setuid" or "userns") in a child."""
    if mode == "userns":
        return check_dropped_root(layers.enter_user_namespace, roots, folder, what)
    check_open_files_visible(_become_nobody)
    return check_dropped_root(_become_nobody, roots, folder, what)


def _become_nobody() -> None:
    layers.take(layers.become_nobody())


def _try_without_root() -> str:
    if sys.platform == "linux":
        drop_capabilities()
    return f"uid {os.geteuid()}"


def try_drop(roots: list[str], scratch: str) -> tuple[str, tuple[bool, str]]:
    """Return how a child drops root: ("none"|"setuid"|"userns"|"impossible", (ok, detail))."""
    if os.geteuid() != 0:
        return "none", in_child(_try_without_root)
    uid = f"uid {layers.NOBODY}"
    what = {"setuid": uid, "userns": f"user namespace, {uid}, no capabilities"}
    failures = []
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        os.chmod(folder, 0o711)
        for mode in what:
            trial = functools.partial(try_mode, mode, roots, folder, what[mode])
            ok, detail = in_child(trial)
            if ok:
                return mode, (ok, detail)
            failures.append(detail)
    return "impossible", (False, "; ".join(failures))


def try_namespaces(drop: str, scratch: str) -> str:
    """Check two calls in a row: process 1, own folder, no network, restricted file tree."""
    if drop == "setuid":
        return _two_namespaced_calls(scratch)
    layers.enter_user_namespace()
    layers.unshare(layers.NEW_PID)
    need(lambda: _two_namespaced_calls(scratch))
    return f"user, {WHAT_NAMESPACES_GIVE}"


def _two_namespaced_calls(scratch: str) -> str:
    """Build the file tree and run two calls in it."""
    home = layers.enter_namespaces()
    # Never removed recursively: after a failed unmount it would contain the host's files.
    folder = tempfile.mkdtemp(dir=scratch)
    try:
        layers.build_root(folder, [os.path.dirname(os.__file__), os.devnull], [], "/box/work")
        for _ in range(2):
            layers.take(layers.new_pid_namespace(home))
            need(lambda: _one_namespaced_call(folder))
        if os.listdir(f"{folder}/box/work"):
            raise AssertionError("a call's folder outlived it")
    finally:
        with contextlib.suppress(layers.LayerError):  # never mounted
            layers.remove_root(folder)
        os.rmdir(folder)
    return WHAT_NAMESPACES_GIVE


def _one_namespaced_call(folder: str) -> str:
    """Check one call inside its namespaces."""
    if os.getpid() != 1:
        raise AssertionError(f"process id {os.getpid()}, not 1")
    layers.take(layers.work_mount(f"{folder}/box/work", 1 << 20, 16))
    layers.take(layers.change_root(folder))
    os.chdir("/box/work")
    with open("inside", "wb", buffering=0) as file:
        expect(OSError, lambda: _write_all(file, bytes(2 << 20)), "more than the size")
        os.ftruncate(file.fileno(), 0)
    expect(OSError, lambda: os.mkdir("/box/other"), "a change of the file tree")
    if not os.statvfs(os.__file__).f_flag & os.ST_RDONLY:
        raise AssertionError("the file tree is writable")
    if os.path.exists("/proc") or not os.path.exists(os.__file__):
        raise AssertionError("the file tree was not changed")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        expect(OSError, lambda: probe.connect(("192.0.2.1", 9)), "a route to the network")
    return ""


def _write_all(file: io.RawIOBase, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


def main(argument: str) -> None:
    """Print {"drop": mode, "layers": {name: [ok, detail]}}; argument: [roots, scratch] as JSON."""
    roots, scratch = json.loads(argument)
    mode, unprivileged = try_drop(roots, scratch)
    namespaces = in_child(lambda: try_namespaces(mode, scratch))
    results = {
        "limits": in_child(try_limits),
        "unprivileged": unprivileged,
        "no_new_privileges": in_child(try_no_new_privileges),
        "landlock": in_child(try_landlock),
        "seccomp": in_child(try_seccomp),
        "namespaces": namespaces,
    }
    if namespaces[0] and mode == "none":
        mode = "userns"
    print(json.dumps({"drop": mode, "layers": results}))
