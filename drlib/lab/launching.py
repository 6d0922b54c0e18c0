"""Programs that a notebook starts: training in its own processes, never inside the kernel.

A kernel that trains on several processes mixes their prints, cannot be interrupted cleanly and
must not have touched CUDA. `launch` runs a module by `python -m` or by torchrun, draws a bar from
the lines that the module writes, and leaves nothing running: on Ctrl-C the program is asked to stop
(stages then save a checkpoint), and killed with all its descendants when it does not.

Left out: several hosts, live output (it is in the log file).
"""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from drlib.config import Config
from drlib.lab.display import ROOT, progress
from drlib.training.warm import WarmRanks, can_fork, server, stop_with_parent

LOGS = ROOT / "runs" / "logs"
GRACE_S = 10.0  # from SIGINT to SIGKILL
POLL_S = 0.2
REDRAW_S = 1.0
LOG_LINES = 30
_one_warm_stage = threading.Lock()  # the server forks for one at a time


class LaunchError(RuntimeError):
    """A launched program failed. `returncode` and `log` (the whole log file) say more."""

    def __init__(self, name: str, returncode: int, log: Path):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES:]
        how = (
            f"exit status {returncode}"
            if returncode >= 0
            else f"killed by {signal.Signals(-returncode).name}"
        )
        tail = "\n".join(lines) or "(it printed nothing)"
        super().__init__(f"{name} failed ({how}); the end of {log}:\n{tail}")
        self.returncode = returncode
        self.log = log


def steps_done(path: Path, before: int = 0) -> int:
    """The whole lines, one a step, of a file that a running stage writes.

    It may appear late and be cut back by a stage that resumes; once the complete stage has renamed
    its folder the answer is `before`.
    """
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return before


def launch(
    module: str,
    arguments: Sequence[str] = (),
    processes: int = 1,
    *,
    follow: Path | None = None,
    total: int | None = None,
    desc: str = "",
) -> Path:
    """Run `python -m module arguments` and wait; return the path of its log (runs/logs/).

    The program runs in the repository's folder, with one thread a process, in its own process
    group. Ctrl-C stops it and raises KeyboardInterrupt here; nothing is left running. LaunchError:
    it ended with another status than 0.

    processes: above 1, torchrun starts that many on this machine (loopback only). follow: a file to
    which the program adds a line a step: they move the bar towards `total`. desc: the bar's name;
    the module's where empty.
    """
    if processes < 1:
        raise ValueError(f"processes must be at least 1, got {processes}")
    from drlib.training.build import TORCHRUN  # lazily: a kernel may never launch anything

    name = desc or module
    how = (*TORCHRUN, f"--nproc-per-node={processes}") if processes > 1 else ()
    log = _new_log(name)
    with open(log, "wb") as output:
        child = _Program(
            [sys.executable, *how, "-m", module, *map(str, arguments)],
            cwd=ROOT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            preexec_fn=stop_with_parent,
        )
    return _attend(child, name, log, follow, total)


class _Program(psutil.Popen):
    def interrupt(self) -> None:
        """Ask it and what it started to stop, as Ctrl-C does."""
        os.killpg(self.pid, signal.SIGINT)


def _new_log(name: str) -> Path:
    LOGS.mkdir(parents=True, exist_ok=True)
    prefix = f"{name.replace('/', '_')}-"
    handle, log = tempfile.mkstemp(prefix=prefix, suffix=".log", dir=LOGS)
    os.close(handle)
    return Path(log)


def _attend(
    child: "_Program | WarmRanks", name: str, log: Path, follow: Path | None, total: int | None
) -> Path:
    """Wait for it, and leave nothing running however that ends; returns its log."""
    family: set[psutil.Process] = set()
    try:
        _watch(child, family, follow, total, name)
    finally:
        _end(child, family)
    if child.returncode:
        raise LaunchError(name, child.returncode, log)
    return log


def ensure(stage: str, config, *, runs: Path | None = None, processes: int | None = None) -> Path:
    """The finished folder of a stage: it and what it needs are built if missing, else reused.

    stage: a name of drlib.training.stages.STAGES, such as "sft". config: a Config, or the name of a
    profile. runs: where run folders lie; runs/ of the repository where None. processes: for stages
    that can use several; `config.processes` where None.
    """
    from drlib.training import build, stages  # lazily: a kernel may never build anything

    config = Config.load(config) if isinstance(config, str) else config
    runs = ROOT / "runs" if runs is None else Path(runs).resolve()
    for name in stages.needed(stage, config, runs):
        spec = stages.STAGES[name]
        final = stages.folder(name, config, runs)
        arguments = stages.arguments(name, config, runs)
        ranks = (processes or config.processes) if spec.parallel else 1
        follow = final.with_name(final.name + ".partial") / "metrics.jsonl"
        total = getattr(config, spec.steps) if spec.steps else None
        if can_fork(config, ranks):
            log = _new_log(name)
            with _one_warm_stage:
                warm = server(_environment(), ROOT, config.trainer)
                child = WarmRanks(warm, build.MODULE, arguments, ranks, log)
                _attend(child, name, log, follow, total)
        else:
            launch(build.MODULE, arguments, ranks, follow=follow, total=total, desc=name)
    return stages.folder(stage, config, runs)


def _environment() -> dict[str, str]:
    """One thread a process; gloo and the rendezvous stay on loopback; plugins are importable.

    glibc keeps freed memory: touching new pages for every large tensor cost 4 to 6% of a training
    stage. (32 MiB is the most that every release accepts.)
    """
    from drlib.training.build import search_path  # lazily: it brings torch

    loopback = "lo" if sys.platform == "linux" else "lo0"
    return os.environ | {
        "MALLOC_MMAP_THRESHOLD_": str(2**25),
        "MALLOC_TRIM_THRESHOLD_": str(2**31),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": loopback,
        "PYTHONPATH": search_path(),
    }


def _watch(child, family: set, follow: Path | None, total: int | None, desc: str) -> None:
    """Move the bar until the child ends; add all its descendants, while they live, to `family`."""
    with progress(total=total, desc=desc) as bar:
        if total is None:
            bar.bar_format = "{desc}: {elapsed}"
        if follow:  # what an interrupted run had done already says nothing about this one's pace
            bar.initial = bar.n = steps_done(follow)
        pause = max(REDRAW_S, getattr(bar, "mininterval", 0))  # a silent bar has none
        for poll in itertools.count():
            if child.poll() is not None:
                break
            time.sleep(POLL_S)
            _remember(child, family)
            if poll % round(pause / POLL_S) == 0:  # the elapsed time too, also between two steps
                bar.update(steps_done(follow, bar.n) - bar.n if follow else 0)
                bar.refresh()
        if child.returncode == 0 and total is not None:
            bar.update(total - bar.n)


def _remember(child, family: set) -> None:
    """torchrun's workers are in sessions of their own, so a group id would not find them."""
    with suppress(psutil.NoSuchProcess):  # it has just ended: those seen before are known
        family.update(child.children(recursive=True))


def _end(child, family: set) -> None:
    """Ask it to stop, wait, then kill whatever of the family still runs."""
    try:
        if child.poll() is None:
            child.interrupt()
            child.wait(GRACE_S)
    except (ProcessLookupError, psutil.TimeoutExpired, KeyboardInterrupt):
        pass  # gone already, deaf, or the user pressed Ctrl-C again: kill
    finally:
        _remember(child, family)
        for process in (child, *family):
            with suppress(psutil.NoSuchProcess):
                process.kill()  # psutil compares start times: a reused id is not touched
        child.wait()
