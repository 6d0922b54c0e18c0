"""Start stages and other modules as subprocesses, with a progress bar, and stop them cleanly.

A notebook kernel never trains: output of several processes would interleave, an interrupt could not
save a checkpoint, and CUDA may not be initialised before torchrun forks. On Ctrl-C the program gets
SIGINT (stages then save a checkpoint) and is killed with all its descendants after a grace period.
"""

import ctypes
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from drlib.config import Config, runs_folder
from drlib.files import write_atomic

PACKAGE = Path(__file__).resolve().parents[1]
DEVICES = Path("/dev")
ACCELERATORS = ("nvidia[0-9]*", "nvidiactl", "dxg", "kfd", "accel*", "davinci*", "xpu*")
GRACE_S = 60.0  # from SIGINT to SIGKILL; a large model is saved in between
POLL_S = 0.2
REDRAW_S = 1.0
LOG_LINES = 30
# the last line of a traceback, or the error of a stage about its settings
FAULT = re.compile(r"^(?:\[rank\d+\]: )?((?:error|[\w.]+(?:Error|Exception|Interrupt)): .+)$", re.M)
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


class LaunchError(RuntimeError):
    """A launched program failed.

    Attributes:
        returncode: its exit status.
        log: path of the complete log.
        reason: the program's own error on one line, with its name and exit status.
    """

    def __init__(self, name: str, returncode: int, log: Path):
        text = log.read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines()[-LOG_LINES:]
        how = (
            f"exit status {returncode}"
            if returncode >= 0
            else f"killed by {signal.Signals(-returncode).name}"
        )
        tail = "\n".join(lines) or "(it printed nothing)"
        super().__init__(f"{name} failed ({how}); the end of {log}:\n{tail}")
        self.returncode = returncode
        self.log = log
        self.reason = f"{name} ({how}): {find_error(text)}"


def find_error(log: str) -> str:
    """Return the error of a program on one line, without what torchrun prints after it."""
    faults = FAULT.findall(log)
    settings = [fault for fault in faults if fault.startswith("error: ")]
    last = log.strip().splitlines()[-1:]
    return " ".join((settings or faults or last or ["it printed nothing"])[0].split())


def progress(iterable: Iterable | None = None, total: float | None = None, desc: str = ""):
    """Return a tqdm bar: a widget in Jupyter, text elsewhere, disabled if DRLIB_HEADLESS=1.

    DRLIB_TEXT_BARS=SECONDS draws text on stderr at that interval (used by `drlib run`, whose
    terminal cannot show widgets).
    """
    from tqdm import auto, std

    if os.environ.get("DRLIB_HEADLESS") == "1":  # tqdm.notebook ignores TQDM_DISABLE
        return std.tqdm(iterable, total=total, desc=desc, disable=True)
    pause = os.environ.get("DRLIB_TEXT_BARS")
    if pause:  # with an explicit size: tqdm hides the bar if the terminal reports none
        size = dict(ncols=88, nrows=20, mininterval=float(pause))
        return std.tqdm(iterable, total=total, desc=desc, **size)
    return auto.tqdm(iterable, total=total, desc=desc)


def count_steps(path: Path, default: int = 0) -> int:
    """Count the complete lines of a metrics file, one per step; `default` if it does not exist.

    The file appears after the start, may shrink when a stage resumes, and moves when the stage
    renames its finished folder.
    """
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return default


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")  # not on macOS
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


def count_threads(config: Config, processes: int) -> int:
    """Return the threads of each process of a stage: its share of the cores for a real model.

    The tour's policy has one thread: its matrices are so small that threads only wait.
    """
    if not config.model.path:
        return 1
    return max(1, count_cores() // processes)


def stop_with_parent() -> None:
    """Make this child receive SIGTERM when its parent dies (Linux), and restore SIGINT.

    Shells start background jobs with SIGINT ignored; such a job could not save a checkpoint.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def launch(
    module: str,
    arguments: Sequence[str] = (),
    processes: int = 1,
    *,
    threads: int = 1,
    follow: Path | None = None,
    total: int | None = None,
    desc: str = "",
    logs: Path | None = None,
) -> Path:
    """Run `python -m module arguments`, wait, and return the path of its log.

    The program runs in the working directory, in its own process group.

    Args:
        processes: if above 1, torchrun starts this many on this machine (loopback only).
        threads: of each process.
        follow: a file to which the program appends one line per step; it drives the bar.
        total: the number of steps; None shows only the elapsed time.
        desc: the label of the bar; default: `module`.
        logs: folder of the log; default: logs/ in the folder of runs.

    Raises:
        LaunchError: the exit status is not 0.
        KeyboardInterrupt: after Ctrl-C, when nothing is left running.
    """
    if processes < 1:
        raise ValueError(f"processes must be at least 1, got {processes}")
    from drlib.training.build import TORCHRUN  # lazy: most kernels launch nothing

    name = desc or module
    how = (*TORCHRUN, f"--nproc-per-node={processes}") if processes > 1 else ()
    log = _new_log(name, logs or runs_folder() / "logs")
    command = [sys.executable, *how, "-m", module, *map(str, arguments)]
    environment = _environment() | {"OMP_NUM_THREADS": str(threads)}
    child = _Program(command, environment, log, preexec_fn=stop_with_parent)
    return _wait(child, name, log, follow, total)


class _Program(psutil.Popen):
    """A program in its own process group, with its output in a log."""

    def __init__(self, command: Sequence[str], environment: dict, log: Path, **options):
        with open(log, "ab") as output:
            super().__init__(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
                **options,
            )

    def interrupt(self) -> None:
        """Send SIGINT to the process group, like Ctrl-C."""
        os.killpg(self.pid, signal.SIGINT)


class _ForkServer(_Program):
    """A process that forks the processes of stages (`drlib.training.fork_server`)."""

    def __init__(self, environment: dict, backend: str, log: Path):
        self.owner, self.requests = os.getpid(), 0
        self._folder = tempfile.TemporaryDirectory(prefix="drlib-stages-")
        command = [sys.executable, "-m", "drlib.training.fork_server", self._folder.name, backend]
        # no preexec_fn: the signal would come at the end of the thread that started the server
        super().__init__(command, environment, log)

    def start(self, arguments: Sequence[str], processes: int, log: Path) -> "_ForkedStage":
        """Request the processes of a stage."""
        folder = Path(self._folder.name)
        request = {"arguments": list(arguments), "processes": processes, "log": str(log)}
        write_atomic(folder / f"{self.requests}.json", json.dumps(request))
        stage = _ForkedStage(self, folder / f"{self.requests}.done")
        self.requests += 1
        return stage

    def stop(self) -> None:
        """Kill the server; in a fork of its program, leave it."""
        if self.owner == os.getpid():
            with suppress(psutil.NoSuchProcess):
                self.kill()
            self.wait()


class _ForkedStage:
    """The processes of one stage, used like the `Popen` of one process.

    The server ends with a stage that fails.
    """

    def __init__(self, server: _ForkServer, done: Path):
        self.returncode: int | None = None
        self._server, self._done = server, done
        self.interrupt, self.children = server.interrupt, server.children

    def poll(self) -> int | None:
        ended = self._server.poll()  # before the file is looked for, which may be its last action
        self.returncode = 0 if self._done.exists() else ended
        return self.returncode

    def wait(self, timeout_s: float | None = None) -> None:
        """Raise psutil.TimeoutExpired if the stage runs longer."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while self.poll() is None:
            if end is not None and time.monotonic() > end:
                raise psutil.TimeoutExpired(timeout_s)
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Kill the server, unless the stage has succeeded."""
        if self.returncode != 0:
            self._server.kill()


_fork_servers: dict[str, _ForkServer] = {}  # at most one: key of its code and environment
_fork_lock = threading.Lock()


def _start_stage(
    config: Config,
    arguments: Sequence[str],
    processes: int,
    name: str,
    follow: Path,
    total: int | None,
    logs: Path,
) -> None:
    """Build one stage in forks; in new processes if they cannot be forked or the server is busy."""
    threads = count_threads(config, processes)
    if not _can_fork(config) or not _fork_lock.acquire(blocking=False):
        from drlib.training.build import MODULE

        launch(
            MODULE,
            arguments,
            processes,
            threads=threads,
            follow=follow,
            total=total,
            desc=name,
            logs=logs,
        )
        return
    try:
        log = _new_log(name, logs)
        environment = _environment() | {"OMP_NUM_THREADS": str(threads)}
        server = _fork_server(environment, config.trainer.backend, log)
        _wait(server.start(arguments, processes, log), name, log, follow, total)
    finally:
        _fork_lock.release()


def _can_fork(config: Config) -> bool:
    """Return False for TRL on a machine with an accelerator: its imports may initialise it."""
    if config.trainer.backend == "local":
        return True
    if config.engine.name == "vllm" or sys.platform != "linux":
        return False
    return not any(device for pattern in ACCELERATORS for device in DEVICES.glob(pattern))


def _fork_server(environment: dict, backend: str, log: Path) -> _ForkServer:
    """Return the server of this process; replace it if its code or environment has changed.

    Args:
        log: of the stage that needs it; shows why a new server cannot start.
    """
    sources = sorted((str(path), path.stat().st_mtime_ns) for path in PACKAGE.rglob("*.py"))
    settings = sorted(item for item in environment.items() if item[0] != "PYTEST_CURRENT_TEST")
    key = repr((os.getpid(), backend, settings, sources))
    server = _fork_servers.get(key)
    if server is None or server.poll() is not None:
        while _fork_servers:
            _, old = _fork_servers.popitem()
            old.stop()
        server = _fork_servers[key] = _ForkServer(environment, backend, log)
    return server


def _new_log(name: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    prefix = f"{name.replace('/', '_')}-"
    handle, log = tempfile.mkstemp(prefix=prefix, suffix=".log", dir=folder)
    os.close(handle)
    return Path(log)


def _wait(
    child: _Program | _ForkedStage, name: str, log: Path, follow: Path | None, total: int | None
) -> Path:
    """Wait for the program and return its log; on any exit, kill it and its descendants."""
    family: set[psutil.Process] = set()
    try:
        _watch(child, family, follow, total, name)
    finally:
        _end(child, family)
    if child.returncode:
        raise LaunchError(name, child.returncode, log)
    return log


def build_stage(
    stage: str, config: Config | str, *, runs: Path | None = None, processes: int | None = None
) -> Path:
    """Build a stage and its missing inputs in subprocesses; return its finished folder.

    Args:
        stage: a name in `drlib.training.stages.STAGES`, such as "sft".
        config: a Config or the name of a profile.
        runs: the folder of run folders; default: that of `config.runs_folder`.
        processes: for stages that support several; default: `config.processes`.
    """
    from drlib.training import stages  # lazy: most kernels build nothing

    config = Config.load(config) if isinstance(config, str) else config
    runs = runs_folder() if runs is None else Path(runs).resolve()
    missing = stages.missing_stages(stage, config, runs)
    check_stages(missing, config)
    for name in missing:
        launch_stage(name, config, runs, processes)
    return stages.folder(stage, config, runs)


def check_stages(names: Sequence[str], config: Config) -> None:
    """Call a reward with an example before any process starts, unless it is the default one.

    Raises:
        ValueError: the reward fails.
    """
    from drlib.training import stages

    for name in names:
        reward = stages.stage_config(name, config).rl.reward
        is_default = reward.name == "exact_match" and not reward.arguments
        if (stages.STAGES[name].reads or name) == "rl" and not is_default:
            from drlib.rewards.functions import check_reward
            from drlib.training.rollouts import reward_arguments

            check_reward(reward.name, **reward_arguments(stages.stage_config(name, config)))


def launch_stage(name: str, config: Config, runs: Path, processes: int | None = None) -> None:
    """Build one stage, whose inputs are complete, in processes of its own.

    Raises:
        LaunchError: the stage failed.
        KeyboardInterrupt: after Ctrl-C, when nothing is left running.
    """
    from drlib.training import stages

    spec = stages.STAGES[name]
    final = stages.folder(name, config, runs)
    count = (processes or config.processes) if spec.parallel else 1
    follow = final.with_name(final.name + ".partial") / "metrics.jsonl"
    total = config.get(spec.steps) if spec.steps else None
    arguments = stages.arguments(name, config, runs)
    _start_stage(config, arguments, count, name, follow, total, runs / "logs")


def _environment() -> dict[str, str]:
    """Return the environment of a stage: loopback only, plugins importable.

    The malloc thresholds make glibc keep freed memory: page faults of large tensors cost 4 to 6% of
    a training stage. 32 MiB is the largest threshold that every glibc accepts.
    """
    from drlib.training.build import search_path

    loopback = "lo" if sys.platform == "linux" else "lo0"
    return os.environ | {
        "MALLOC_MMAP_THRESHOLD_": str(2**25),
        "MALLOC_TRIM_THRESHOLD_": str(2**31),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": loopback,
        "PYTHONPATH": search_path(),
    }


def _watch(child, family: set, follow: Path | None, total: int | None, desc: str) -> None:
    """Update the bar until the child ends; collect its descendants in `family`."""
    with progress(total=total, desc=desc) as bar:
        if total is None:
            bar.bar_format = "{desc}: {elapsed}"
        if follow:  # steps of an interrupted run must not count for the pace
            bar.initial = bar.n = count_steps(follow)
        pause = max(REDRAW_S, getattr(bar, "mininterval", 0))  # a disabled bar has no mininterval
        for poll in itertools.count():
            if child.poll() is not None:
                break
            time.sleep(POLL_S)
            _collect_descendants(child, family)
            if poll % round(pause / POLL_S) == 0:  # also redraw the elapsed time
                bar.update(count_steps(follow, bar.n) - bar.n if follow else 0)
                bar.refresh()
        if child.returncode == 0 and total is not None:
            bar.update(total - bar.n)


def _collect_descendants(child, family: set) -> None:
    """Add the current descendants: torchrun workers have their own sessions and process groups."""
    with suppress(psutil.NoSuchProcess):  # the child has ended; earlier descendants are in `family`
        family.update(child.children(recursive=True))


def _end(child, family: set) -> None:
    """Interrupt the child, wait GRACE_S, then kill every descendant that still runs."""
    try:
        if child.poll() is None:
            child.interrupt()
            child.wait(GRACE_S)
    except (ProcessLookupError, psutil.TimeoutExpired, KeyboardInterrupt):
        pass  # exited, unresponsive, or a second Ctrl-C
    finally:
        _collect_descendants(child, family)
        for process in (child, *family):
            with suppress(psutil.NoSuchProcess):
                process.kill()  # psutil compares start times: a reused id is not touched
        child.wait()


def train_sft(config: Config | str = "laptop", runs: Path | None = None) -> Path:
    """Build the cold start (stage `sft`) and its inputs; return its finished folder."""
    return build_stage("sft", config, runs=runs)


def train_grpo(config: Config | str = "laptop", runs: Path | None = None) -> Path:
    """Build the stage `rl` and its inputs; return its finished folder.

    The folder contains `policy/` (a Hugging Face model), `metrics.jsonl` and trajectories.
    """
    return build_stage("rl", config, runs=runs)


def evaluate_stage(
    stage: str = "rl", config: Config | str = "laptop", runs: Path | None = None
) -> list[dict]:
    """Evaluate a stage's policy on held-out questions.

    Returns:
        One row per kind of question, number of hops and decoding (greedy, sample, pass@k), with
        `n` and `correct`.
    """
    folder = build_stage(f"evaluate_{stage.removeprefix('evaluate_')}", config, runs=runs)
    return json.loads((folder / "rows.json").read_text(encoding="utf-8"))
