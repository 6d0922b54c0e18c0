"""Run folders and ranks: what every stage needs around its loop.

A stage is built in `<name>.partial` and renamed when it is complete, so a killed stage is never
mistaken for a finished one. Inside it keeps one checkpoint (written under a temporary name, then
renamed) and `metrics.jsonl`, a line a step. Started again, it goes on from its last checkpoint;
lines after that checkpoint are dropped and made again. Nothing a stage draws depends on anything
but (seed, step), so the resumed run reaches the same weights bit for bit.

Ranks are processes started by torchrun (gloo, loopback). Work is cut into *shards* whose number
does not depend on how many processes there are: two processes take one shard each, one process
takes both, and the losses are the same.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import time
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist

SHARDS = 2
MANIFEST, METRICS, CHECKPOINT = "manifest.json", "metrics.jsonl", "checkpoint.pt"


class RunFolderError(RuntimeError):
    """A run folder cannot be used or written; the message says which and what to do."""


class Ranks:
    """This process among its siblings. One process without torchrun is rank 0 of 1."""

    def __init__(self):
        self.rank = int(os.environ.get("RANK", 0))
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        if SHARDS % self.size:
            raise ValueError(f"{self.size} processes cannot share {SHARDS} shards evenly")
        torch.set_num_threads(1)
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("gloo")

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def shards(self) -> list[int]:
        """The shards that this process works on."""
        return list(range(self.rank, SHARDS, self.size))

    def sum_gradients(self, model: torch.nn.Module) -> None:
        """Add the gradients of all ranks into each; one message for the whole model."""
        params = [p for p in model.parameters() if p.requires_grad]
        for p in params:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        if self.size == 1:
            return
        flat = torch.cat([p.grad.reshape(-1) for p in params])
        dist.all_reduce(flat)
        at = 0
        for p in params:
            p.grad.copy_(flat[at : at + p.numel()].view_as(p))
            at += p.numel()

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """The same numbers, summed over ranks (in float64)."""
        if self.size == 1:
            return dict(values)
        names = sorted(values)
        total = torch.tensor([float(values[n]) for n in names], dtype=torch.float64)
        dist.all_reduce(total)
        return dict(zip(names, total.tolist()))

    def gather(self, rows: list) -> list:
        """All ranks' rows, in the order of ranks."""
        if self.size == 1:
            return list(rows)
        parts: list = [None] * self.size
        dist.all_gather_object(parts, rows)
        return [row for part in parts for row in part]

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def close(self) -> None:
        if self.size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def write_atomically(path: Path, write) -> None:
    """`write(temporary path)`, then rename; a failure leaves no file and names the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        os.replace(partial, path)
    except (OSError, RuntimeError) as fault:  # torch.save reports a full disk as RuntimeError
        raise RunFolderError(f"could not write {path}: {fault}; is the disk full?") from fault
    finally:
        partial.unlink(missing_ok=True)


class RunFolder:
    """The folder of one stage while it is being built.

    Args:
        final: the name it gets when it is complete.
        settings: everything the stage depends on; a partial folder with other settings is refused.
    """

    def __init__(self, final: Path, settings: dict, ranks: Ranks):
        self.final, self.settings, self.ranks = final, settings, ranks
        self.path = final.with_name(final.name + ".partial")
        if ranks.first:
            self._open()
        ranks.barrier()
        self._metrics = None
        self._started = time.time()

    def _open(self) -> None:
        if self.complete(self.final):
            raise RunFolderError(f"{self.final} is already complete: delete it to build it again")
        self.path.mkdir(parents=True, exist_ok=True)
        note = self.path / "settings.json"
        if note.exists():
            try:
                same = json.loads(note.read_text()) == json.loads(json.dumps(self.settings))
            except ValueError:
                same = False
            if not same:
                raise RunFolderError(f"{self.path} was begun with other settings: delete it")
        else:
            text = json.dumps(self.settings, indent=1, sort_keys=True)
            write_atomically(note, lambda p: p.write_text(text))

    @staticmethod
    def complete(path: Path) -> bool:
        """Whether `path` is a finished stage: it carries a readable manifest."""
        try:
            return "settings" in json.loads((path / MANIFEST).read_text())
        except (OSError, ValueError):
            return False

    def log(self, row: dict) -> None:
        """Append one line to metrics.jsonl, flushed (first rank only)."""
        if not self.ranks.first:
            return
        if self._metrics is None:
            self._metrics = open(self.path / METRICS, "a", encoding="utf-8")
        self._metrics.write(json.dumps(row) + "\n")
        self._metrics.flush()

    def save_checkpoint(self, step: int, model, optimizers, extra: dict | None = None) -> None:
        """The state after `step` steps: weights, optimizers, whatever else the loop carries."""
        if self.ranks.first:
            state = {
                "step": step, "model": model.state_dict(), "optimizers": optimizers.state_dict(),
                "extra": extra or {},
            }  # fmt: skip
            write_atomically(self.path / CHECKPOINT, lambda p: torch.save(state, p))
        self.ranks.barrier()

    def resume(self, model, optimizers) -> tuple[int, dict]:
        """Load the last checkpoint; (steps done, extra), or (0, {}) when there is none."""
        path = self.path / CHECKPOINT
        step, extra = 0, {}
        if path.exists():
            try:
                state = torch.load(path, weights_only=True)
            except (RuntimeError, EOFError, OSError, ValueError) as fault:
                raise RunFolderError(
                    f"{path} cannot be read ({fault}): delete it to start this stage again"
                ) from fault
            model.load_state_dict(state["model"])
            optimizers.load_state_dict(state["optimizers"])
            step, extra = state["step"], state["extra"]
        if self.ranks.first:
            self._truncate_metrics(step)
        self.ranks.barrier()
        return step, extra

    def _truncate_metrics(self, step: int) -> None:
        path = self.path / METRICS
        if not path.exists():
            return
        kept = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except (ValueError, KeyError):  # the line that was being written when it was killed
                continue
        write_atomically(path, lambda p: p.write_text("".join(kept), encoding="utf-8"))

    def finish(self, metrics: dict | None = None) -> Path:
        """Write the manifest, drop the checkpoint, take the final name."""
        if self._metrics is not None:
            self._metrics.close()
        if self.ranks.first:
            (self.path / CHECKPOINT).unlink(missing_ok=True)
            manifest = {
                "settings": self.settings, "metrics": metrics or {},
                "seconds": round(time.time() - self._started, 1), "processes": self.ranks.size,
                "versions": {p: version(p) for p in ("torch", "transformers", "numpy")},
                "python": platform.python_version(),
            }  # fmt: skip
            text = json.dumps(manifest, indent=1, sort_keys=True)
            write_atomically(self.path / MANIFEST, lambda p: p.write_text(text))
            (self.path / "settings.json").unlink()
            if self.final.exists():  # half a folder under the final name: no manifest
                shutil.rmtree(self.final)
            os.replace(self.path, self.final)
        self.ranks.barrier()
        return self.final


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or a polite kill: the stage stops at a step's end and can be resumed."""


@contextmanager
def interruptible(ranks: Ranks):
    """Yields `stop()`: True on every rank once any rank got SIGINT or SIGTERM.

    A stage asks at each step's end, saves a checkpoint and leaves: nothing is lost and no rank
    waits for another in vain.
    """
    asked = []
    old = {s: signal.signal(s, lambda *_: asked.append(1)) for s in (signal.SIGINT, signal.SIGTERM)}

    def stop() -> bool:
        return ranks.sum({"asked": float(bool(asked))})["asked"] > 0

    try:
        yield stop
    finally:
        for s, handler in old.items():
            signal.signal(s, handler)


def read_metrics(folder: Path) -> list[dict]:
    """The lines of a stage's metrics.jsonl; RunFolderError names a folder without any."""
    path = folder / METRICS
    if not path.exists():
        raise RunFolderError(f"no {path}: has the stage been run?")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
