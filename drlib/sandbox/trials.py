"""Try every layer for real: each in a forked child that uses it and checks what it forbids.

`probing.probe` runs this file by its path in a clean process, as `pool` runs `zygote.py`; the
result goes to stdout as JSON. A kernel that has a call is no proof that a container
lets it through or that it forbids anything, so nothing is concluded from versions alone.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable


def _load_layers():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "layers.py")
    spec = importlib.util.spec_from_file_location("layers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layers = _load_layers()


def in_child(trial: Callable[[], str]) -> tuple[bool, str]:
    """Run `trial` in a forked child: (whether it returned, its text or its error)."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        try:
            text = "1" + trial()
        except BaseException as error:  # noqa: BLE001 - any failure means: the layer is not there
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


def expect(error: type[BaseException], action: Callable[[], object], what: str) -> None:
    """Fail unless `action` raises `error`."""
    try:
        action()
    except error:
        return
    raise AssertionError(f"{what} was possible")


def try_limits() -> str:
    """Descriptors, and address space where the system enforces it."""
    layers.take(layers.limits({"NOFILE": 16, "CORE": 0}))
    expect(OSError, lambda: [os.dup(0) for _ in range(32)], "a descriptor beyond RLIMIT_NOFILE")
    layers.take(layers.limits({"AS": 1 << 30}))
    try:
        bytearray(4 << 30)
    except MemoryError:
        return "descriptors, address space"
    return "descriptors; address space is not enforced here"


def try_no_new_privileges() -> str:
    """The mark that set-uid programs gain nothing, read back."""
    layers.take(layers.no_new_privileges())
    if not layers.has_no_new_privileges():
        raise AssertionError("PR_GET_NO_NEW_PRIVS is 0")
    return "set"


def try_landlock() -> str:
    """One folder open, all else closed, this file included."""
    abi = layers.landlock_abi()
    with tempfile.TemporaryDirectory() as base:
        work = os.path.join(base, "work")
        os.mkdir(work)
        ruleset = layers.landlock_ruleset([], [], work)
        pid = os.fork()  # so that the folder can be removed afterwards
        if not pid:
            layers.take(layers.no_new_privileges())
            layers.take(layers.landlock_restrict(ruleset))
            try:
                with open(os.path.join(work, "inside"), "w") as file:
                    file.write("x")
                expect(PermissionError, lambda: open(__file__).read(), "reading a foreign file")
                expect(PermissionError, lambda: open(os.path.join(base, "out"), "w"), "writing")
            except BaseException:  # noqa: BLE001 - told by the exit code
                os._exit(1)
            os._exit(0)
        if os.waitpid(pid, 0)[1]:
            raise AssertionError("the rules do not hold")
    return f"ABI {abi}"


def try_seccomp() -> str:
    """Threads yes; processes, sockets, programs and signals to others no."""
    layers.take(layers.no_new_privileges())
    program = layers.SeccompFilter()
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
    """Give them up and check that none is left."""
    layers.take(layers.no_capabilities())
    if layers.has_capabilities():
        raise AssertionError("capabilities are left")


def _can_read_python(roots: list[str]) -> None:
    """Raise where this user could not import what generated code needs."""
    os.listdir(os.path.dirname(os.__file__))
    with open(os.__file__, "rb") as file:
        file.read(1)
    for root in roots:
        os.listdir(os.path.join(root, "sympy") if os.path.isdir(f"{root}/sympy") else root)


def try_setuid(roots: list[str], folder: str) -> str:
    """From root to uid 65534, which must still be able to read Python, and its temporary folder."""
    layers.take(layers.nobody())
    drop_capabilities()
    expect(PermissionError, lambda: os.setuid(0), "setuid(0)")
    _can_read_python(roots)
    os.stat(os.path.join(folder, "."))
    return f"uid {layers.NOBODY}"


def try_user_namespace(roots: list[str]) -> str:
    """Root outside, nobody inside, and no capability."""
    layers.enter_user_namespace()
    drop_capabilities()
    if os.geteuid() != layers.NOBODY:
        raise AssertionError(f"uid is {os.geteuid()}")
    _can_read_python(roots)
    return f"user namespace, uid {layers.NOBODY}, no capabilities"


def try_drop(roots: list[str], scratch: str) -> tuple[str, list]:
    """How a child loses root's powers: ("none"|"setuid"|"userns"|"impossible", [ok, detail])."""
    if os.geteuid() != 0:
        if sys.platform != "linux":
            return "none", [True, f"uid {os.geteuid()}"]
        return "none", list(in_child(lambda: drop_capabilities() or f"uid {os.geteuid()}"))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        os.chmod(folder, 0o711)
        ok, detail = in_child(lambda: try_setuid(roots, folder))
    if ok:
        return "setuid", [ok, detail]
    ok, other = in_child(lambda: try_user_namespace(roots))
    return ("userns" if ok else "impossible"), [ok, other if ok else f"{detail}; {other}"]


def try_namespaces(drop: str, scratch: str) -> str:
    """Two calls in a row: each process 1 of its own, with its own folder and no network."""
    if drop != "setuid":
        layers.enter_user_namespace()
        layers.unshare(layers.NEW_PID)
        if pid := os.fork():
            if os.waitpid(pid, 0)[1]:
                raise AssertionError("no PID namespace that can be returned to")
            return "user, PID, mount, network, IPC and host name"
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        home = layers.enter_namespaces()
        for _ in range(2):
            layers.take(layers.new_pid_namespace(home))
            ok, detail = in_child(lambda: _one_namespaced_call(folder))
            if not ok:
                raise AssertionError(detail)
        if os.listdir(folder):
            raise AssertionError("a call's folder outlived it")
    if drop != "setuid":
        os._exit(0)
    return "PID, mount, network, IPC and host name"


def _one_namespaced_call(folder: str) -> str:
    if os.getpid() != 1:
        raise AssertionError(f"process id {os.getpid()}, not 1")
    layers.take(layers.work_mount(folder, 1 << 20, 16))
    with open(os.path.join(folder, "inside"), "wb") as file:
        expect(OSError, lambda: (file.write(bytes(2 << 20)), file.flush()), "more than the size")
        os.ftruncate(file.fileno(), 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        expect(OSError, lambda: probe.connect(("192.0.2.1", 9)), "a route to the network")
    return ""


def main() -> None:
    """Print {"drop": mode, "layers": {name: [ok, detail]}}; argv: `try_drop`'s."""
    mode, detail = try_drop(*json.loads(sys.argv[1]))
    namespaces = in_child(lambda: try_namespaces(mode, json.loads(sys.argv[1])[1]))
    if namespaces[0] and mode == "none":
        mode = "userns"
    results = {
        "limits": in_child(try_limits),
        "unprivileged": detail,
        "no_new_privileges": in_child(try_no_new_privileges),
        "landlock": in_child(try_landlock),
        "seccomp": in_child(try_seccomp),
        "namespaces": namespaces,
    }
    print(json.dumps({"drop": mode, "layers": results}))


if __name__ == "__main__":
    main()
