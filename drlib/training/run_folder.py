"""Run folders and the loop over steps: what every stage needs around its own work.

A stage is built in `<name>.partial` and renamed when it is complete, so a killed stage is never
mistaken for a finished one. Inside it keeps one checkpoint (written under a temporary name, then
renamed) and `metrics.jsonl`, a line a step. Started again, it goes on from its last checkpoint;
lines after that checkpoint are dropped and made again. Nothing a stage draws depends on anything
but (seed, step), so the resumed run reaches the same weights bit for bit.

Whoever only asks what is finished (the stage graph, a command's help, a misspelled setting) needs
no torch: it is imported where a checkpoint is read or written.
"""

import json
import os
import shutil
import signal
import subprocess
import threading
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
    """A run folder cannot be used or written; the message says which and what to do."""


class NotFinite(RuntimeError):
    """Gradients stay NaN or infinite; the message says what to do."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a polite kill: the stage stops at a step's end and can be resumed."""


class RunFolder:
    """The folder of one stage while it is being built.

    final: its name when it is complete, with the hash of the settings in it: a partial folder of
    that name was begun with the same ones. settings: all that the stage depends on (manifest).
    report_to: where `loop` shows its metrics (drlib.training.reporting); ValueError where that
    cannot be.
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
        self.path = final.with_name(final.name + ".partial")
        if self.is_complete(final):
            raise RunFolderError(f"{final} is already complete: delete it to build it again")
        self.path.mkdir(parents=True, exist_ok=True)

    @staticmethod
    def is_complete(path: Path) -> bool:
        """Whether `path` is a finished stage: it carries a readable manifest."""
        try:
            return "settings" in json.loads((path / MANIFEST).read_text())
        except (OSError, ValueError):
            return False

    def resume(self, model, optimizers) -> dict:
        """Load the last checkpoint into what `loop` will train; what else it held, {} if none."""
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
        if self.ranks.first and log.exists():  # a line a step
            kept = b"".join(log.read_bytes().splitlines(True)[: self._done])
            write_atomic(log, kept)
        self.ranks.barrier()
        return extra

    def loop(self, take: Callable[[int], dict], steps: int, every: int, extra=dict) -> dict:
        """Take the steps that are left, a line of metrics each; returns the last step's metrics.

        `take(step)` gives the metrics; "stopped" among them ends the stage early. A checkpoint with
        `extra()` beside the weights is written after each `every` steps and at the end. When any
        rank gets SIGINT or SIGTERM, all write one at their step's end and raise Interrupted.
        """
        asked: list[int] = []
        metrics: dict = (read_metrics(self.path) or [{}])[-1] if self._done else {}
        shown = self.reporter(self._done)
        old = {s: signal.signal(s, lambda *_: asked.append(1)) for s in polite_signals()}
        try:
            for step in range(self._done, self._done if "stopped" in metrics else steps):
                metrics = take(step)
                if self.ranks.first:
                    append_json_line(self.path / METRICS, metrics)
                    shown.show(step + 1, metrics)
                last = step + 1 == steps or "stopped" in metrics
                stop = self.ranks.sum({"asked": len(asked)})["asked"] > 0
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
        """Of the first rank, behind the first `done` steps; the others show nothing."""
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
        """Write the manifest, drop the checkpoint, take the final name; returns `metrics`."""
        if self.ranks.first:
            (self.path / CHECKPOINT).unlink(missing_ok=True)
            manifest = {
                "settings": self.settings,
                "metrics": metrics,
                "processes": self.ranks.size,
                "code": code_version(),
                "versions": {p: version(p) for p in ("torch", "transformers", "numpy")},
            }
            text = json.dumps(manifest, indent=1, sort_keys=True)
            write_atomic(self.path / MANIFEST, text)
            shutil.rmtree(self.final, ignore_errors=True)  # half a folder: it has no manifest
            os.replace(self.path, self.final)
        self.ranks.barrier()
        return metrics


def polite_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a stage to stop: none where it is not the main thread (in a worker of Ray),
    which alone may listen; there it is killed, and goes on from its last checkpoint."""
    is_main = threading.current_thread() is threading.main_thread()
    return (signal.SIGINT, signal.SIGTERM) if is_main else ()


def git(*arguments: str) -> str:
    """What git says of the folder that holds this package; "" where it is no git checkout."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def code_version() -> str:
    """The commit that runs, with "-dirty" behind it where files differ from it."""
    return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*") or "unknown"


def read_manifest(folder: Path) -> dict:
    """The manifest of a finished stage."""
    return json.loads((folder / MANIFEST).read_text(encoding="utf-8"))


def read_metrics(folder: Path) -> list[dict]:
    """The lines of a stage's metrics.jsonl; RunFolderError names a folder without any."""
    path = folder / METRICS
    if not path.exists():
        raise RunFolderError(f"no {path}: has the stage been run?")
    return read_json_lines(path)
