"""Run folders and the loop over steps, shared by all stages.

A stage is built in `<name>.partial` and renamed when complete, so a killed stage is never mistaken
for a finished one. The folder has one checkpoint, written atomically, and `metrics.jsonl` with one
line per step. A restarted stage resumes from the last checkpoint and drops later lines. All random
draws depend on (seed, step) only, so a resumed run is bit-identical.

torch is imported only to read or write a checkpoint, so that the stage graph and help texts load
fast.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from drlib.config import ROOT
from drlib.files import append_json_line, read_json_lines, write_atomic
from drlib.training.reporting import Reporter, require_package

if TYPE_CHECKING:
    from drlib.training.distributed import Ranks

MANIFEST, METRICS, CHECKPOINT = "manifest.json", "metrics.jsonl", "checkpoint.pt"


class RunFolderError(RuntimeError):
    """A run folder cannot be used or written; the message has the cause and the remedy."""


class NotFinite(RuntimeError):
    """Gradients remain NaN or infinite; the message has the remedy."""


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM: the stage stopped after a step and can be resumed."""


class RunFolder:
    """The folder of one stage during its construction.

    Args:
        final: path of the finished stage; its name has the hash of the settings.
        settings: all settings that the stage depends on, for the manifest.
        report_to: destination of the metrics (drlib.training.reporting).

    Raises:
        ValueError: the package for `report_to` is missing.
    """

    def __init__(
        self,
        final: Path,
        settings: dict,
        ranks: "Ranks | None" = None,
        report_to: str = "none",
    ):
        require_package(report_to)
        if ranks is None:
            from drlib.training.distributed import Ranks

            ranks = Ranks()
        self.final, self.settings, self.ranks, self.report_to = final, settings, ranks, report_to
        self._started = time.perf_counter()
        self.path = final.with_name(final.name + ".partial")
        if self.is_complete(final):
            raise RunFolderError(f"{final} is already complete: delete it to rebuild the stage")
        self.path.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def is_complete(path: Path) -> bool:
        """Return True if `path` is a finished stage: its manifest is readable."""
        try:
            return "settings" in json.loads((path / MANIFEST).read_text())
        except (OSError, ValueError):
            return False

    def resume(self, model, optimizers) -> dict:
        """Load the last checkpoint into model and optimizers; return its extra state, {} if there
        is none.
        """
        path, log = self.path / CHECKPOINT, self.path / METRICS
        self._trained, self._done, extra = (model, optimizers), 0, {}
        if path.exists():
            import torch

            try:
                state = torch.load(path, weights_only=True)
            except (RuntimeError, EOFError, OSError, ValueError) as fault:
                message = f"{path} cannot be read ({fault}): delete it to start this stage again"
                raise RunFolderError(message) from fault
            model.load_state_dict(state["model"])
            optimizers.load_state_dict(state["optimizers"])
            self._done, extra = state["step"], state["extra"]
        if self.ranks.first and log.exists():  # one line per step
            kept = b"".join(log.read_bytes().splitlines(True)[: self._done])
            write_atomic(log, kept)
        self.ranks.barrier()
        return extra

    def loop(self, take: Callable[[int], dict], steps: int, every: int, extra=dict) -> dict:
        """Take the remaining steps and return the metrics of the last one.

        A checkpoint with `extra()` is saved after every `every` steps and at the end. If any rank
        gets SIGINT or SIGTERM, all ranks save one after their step and raise Interrupted.

        Args:
            take: takes a step and returns its metrics; "stopped" among them ends the stage.
        """
        signals: list[int] = []
        metrics: dict = (read_metrics(self.path) or [{}])[-1] if self._done else {}
        shown = self.reporter(self._done)
        old = {s: signal.signal(s, lambda *_: signals.append(1)) for s in polite_signals()}
        try:
            for step in range(self._done, self._done if "stopped" in metrics else steps):
                metrics = take(step)
                if self.ranks.first:
                    append_json_line(self.path / METRICS, metrics)
                    shown.show(step + 1, metrics)
                last = step + 1 == steps or "stopped" in metrics
                stop = self.ranks.sum({"signals": len(signals)})["signals"] > 0
                if stop or last or (step + 1) % every == 0:
                    self._save(step + 1, extra())
                if last:
                    break
                if stop:
                    raise Interrupted
        finally:
            for s, handler in old.items():
                signal.signal(s, handler)
            shown.close()
        return metrics

    def reporter(self, done: int) -> Reporter:
        """Build the reporter of the first rank; other ranks report nothing."""
        report_to = self.report_to if self.ranks.first else "none"
        rows = read_metrics(self.path)[:done] if done else []
        return Reporter(report_to, self.path, self.final.name, rows)

    def _save(self, step: int, extra: dict) -> None:
        if self.ranks.first:
            import torch

            model, optimizers = (part.state_dict() for part in self._trained)
            state = {"step": step, "model": model, "extra": extra, "optimizers": optimizers}
            write_atomic(self.path / CHECKPOINT, lambda p: torch.save(state, p))
        self.ranks.barrier()

    def finish(self, metrics: dict) -> dict:
        """Write the manifest, delete the checkpoint, rename the folder; return `metrics`."""
        if self.ranks.first:
            (self.path / CHECKPOINT).unlink(missing_ok=True)
            manifest = {
                "settings": self.settings,
                "metrics": metrics,
                "seconds": round(time.perf_counter() - self._started, 3),  # since the last start
                "processes": self.ranks.size,
                "code": code_version(),
                "versions": {p: version(p) for p in ("torch", "transformers", "numpy")},
            }
            text = json.dumps(manifest, indent=1, sort_keys=True)
            write_atomic(self.path / MANIFEST, text)
            shutil.rmtree(
                self.final, ignore_errors=True
            )  # remove an incomplete folder without a manifest
            os.replace(self.path, self.final)
        self.ranks.barrier()
        return metrics


def polite_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a stage.

    Only the main thread can handle signals. In a Ray worker the stage is killed and resumes from
    its last checkpoint.
    """
    is_main = threading.current_thread() is threading.main_thread()
    return (signal.SIGINT, signal.SIGTERM) if is_main else ()


def git(*arguments: str) -> str:
    """Return the output of a git command in the repository; empty if there is no checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def code_version() -> str:
    """Return the current commit, with "-dirty" if files have changed."""
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or "unknown"


def read_manifest(folder: Path) -> dict:
    """Return the manifest of a finished stage."""
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def read_metrics(folder: Path) -> list[dict]:
    """Return the rows of a stage's metrics.jsonl; raise RunFolderError if there is none."""
    path = folder / METRICS
    if not path.exists():
        raise RunFolderError(f"no {path}: has the stage been run?")
    return read_json_lines(path)
