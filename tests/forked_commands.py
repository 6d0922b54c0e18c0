"""`drlib` and `python` commands that fork from a process that has imported torch and transformers.

Most of the time of a short command is the import of other packages. `command_folder` returns a
folder for PATH whose commands ask a server to fork. The fork gets the arguments, working folder,
environment, search path, open streams and signals of the caller, which gets its exit status. The
fork itself imports `drlib`, from where its environment says, so nothing of one command is left for
the next. Stages that `drlib train` and `drlib experiment` start are forked as well.

Python with other arguments than a file or a module of drlib or tests is the real one.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import traceback
from pathlib import Path

PACKAGES = (
    "datasets",
    "fastapi",
    "huggingface_hub",
    "matplotlib.pyplot",
    "mcp.server.mcpserver",
    "networkx",
    "nbformat",
    "openai",
    "pandas",
    "psutil",
    "pyarrow.parquet",
    "rich.console",
    "scipy.optimize",
    "sympy",
    "torch._dynamo",
    "transformers.modeling_utils",
    "yaml",
)
POLL_S = 0.2
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@functools.cache
def command_folder() -> Path:
    """Start the server, which ends with this process; return the folder of its commands."""
    folder = Path(tempfile.mkdtemp(prefix="drlib-forks-"))
    address = folder / "server"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen(64)  # a command that comes during the imports waits
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", str(listener.fileno()), str(folder)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    for name in ("drlib", "python"):
        # a shell, because the first line of a script must be short and have no spaces
        call = shlex.join([sys.executable, "-I", "-S", __file__, "ask", str(address), name])
        (folder / name).write_text(f'#!/bin/sh\nexec {call} "$@"\n')
        (folder / name).chmod(0o755)

    def stop(owner: int = os.getpid()) -> None:
        if os.getpid() == owner:
            server.terminate()
            server.wait()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    return folder


def can_fork(name: str, arguments: list[str]) -> bool:
    """Return True for a command that a fork can run as a new process would."""
    if name == "drlib":
        return True
    if arguments[:1] == ["-m"]:
        return arguments[1].startswith(("drlib.", "tests."))
    return bool(arguments) and arguments[0].endswith(".py")


def ask(address: str, name: str, arguments: list[str]) -> None:
    """Let the server run a command with the streams of this process; exit as it does."""
    if not can_fork(name, arguments):
        os.execv(sys.executable, [sys.executable, *arguments])
    parent = os.getppid()
    wanted = {"name": name, "arguments": arguments, "folder": os.getcwd(), "env": {**os.environ}}
    body = json.dumps(wanted).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [len(body).to_bytes(4, "big")], [0, 1, 2])
    connection.sendall(body)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: connection.send(bytes([number])))
    while not select.select([connection], [], [], POLL_S)[0]:
        if os.getppid() != parent:
            sys.exit(1)  # the server ends the command
    answer = connection.recv(4)
    if not answer:
        sys.exit("the server of forked commands has ended")
    status = int.from_bytes(answer, "big", signed=True)
    _end(status)


def serve(listener: socket.socket) -> dict | None:
    """Fork a process per connection; return its command in the fork, None when the parent ends."""
    parent = os.getppid()
    running: dict[int, tuple[socket.socket, int]] = {}  # handle of a process: its caller and id
    while os.getppid() == parent:
        callers = {caller.fileno(): handle for handle, (caller, _) in running.items()}
        for ready in select.select([listener.fileno(), *running, *callers], [], [], POLL_S)[0]:
            if ready == listener.fileno():
                caller, _ = listener.accept()
                head, streams, _, _ = socket.recv_fds(caller, 4, 3)
                body = b""
                while head and len(body) < int.from_bytes(head, "big"):
                    body += caller.recv(1 << 20)
                if not body:
                    caller.close()
                    continue
                process = os.fork()
                if process == 0:
                    for stream, given in enumerate(streams):
                        os.dup2(given, stream)
                    for open_one in (listener, caller, *(one for one, _ in running.values())):
                        open_one.close()
                    for descriptor in (*streams, *running):
                        os.close(descriptor)
                    return json.loads(body)
                for descriptor in streams:
                    os.close(descriptor)
                running[os.pidfd_open(process)] = caller, process
            elif ready in running:
                caller, process = running.pop(ready)
                status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
                with contextlib.suppress(BrokenPipeError):  # the caller was killed
                    caller.send(status.to_bytes(4, "big", signed=True))
                caller.close()
                os.close(ready)
            elif callers[ready] in running:  # it has not ended in this round
                caller, process = running[callers[ready]]
                numbers = caller.recv(16)
                for number in numbers or [signal.SIGKILL]:
                    signal.pidfd_send_signal(callers[ready], number)
    for handle in running:
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    return None


def _end(status: int) -> None:
    """End this process with an exit status; below 0, by that signal."""
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def become(wanted: dict, commands: str) -> None:
    """Run a command in this fork as a new process would, and end it.

    The objects of the imported packages are not destroyed one by one, which would take longer than
    most commands.
    """
    status = 1
    try:
        run(wanted, commands)
        status = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status = (end.code or 0) & 255
        else:
            print(end.code, file=sys.stderr)
    finally:
        if fault := sys.exception():
            traceback.print_exc()
            status = -signal.SIGINT if isinstance(fault, KeyboardInterrupt) else 1
        threading._shutdown()
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except BrokenPipeError:
                status = 120  # as Python does
        _end(status)


def run(wanted: dict, commands: str) -> None:
    """Run a command with its folder, environment, search path and arguments."""
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["env"])
    sys.modules["numpy"].random.seed()  # as a new process; `random` does this by itself
    name, arguments = wanted["name"], wanted["arguments"]
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = map(os.path.abspath, known)
    importlib.invalidate_caches()
    is_module = arguments[:2] == ["-m", "drlib.cli"]
    if (arguments[2:] if is_module else arguments)[:1] in (["train"], ["experiment"]):
        sys.executable = os.path.join(commands, "python")  # starts the stages
    if name == "python" and arguments[0] == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    script = os.path.join(sysconfig.get_path("scripts"), "drlib")
    sys.argv = [script, *arguments] if name == "drlib" else arguments
    sys.path.insert(0, os.path.dirname(os.path.realpath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


def _import_packages() -> None:
    """Import what the commands need, except drlib."""
    import gc

    gc.disable()
    for name in PACKAGES:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    assert "drlib" not in sys.modules


if __name__ == "__main__" and sys.argv[1] == "ask":
    ask(sys.argv[2], sys.argv[3], sys.argv[4:])
elif __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    _import_packages()
    given = serve(socket.socket(fileno=int(sys.argv[2])))
    if given is not None:
        become(given, sys.argv[3])
