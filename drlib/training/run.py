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

import atexit
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
        self.first = self.rank == 0
        self.shards = list(range(self.rank, SHARDS, self.size))  # that this process works on
        torch.set_num_threads(1)
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group("gloo")
            atexit.register(dist.destroy_process_group)

    def sum_gradients(self, model: torch.nn.Module) -> None:
        """Add the gradients of all ranks into each; one message for the whole model."""
        params = [p for p in model.parameters() if p.requires_grad]
        for p in params:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        if self.size > 1:
            flat = torch.cat([p.grad.reshape(-1) for p in params])
            dist.all_reduce(flat)
            for p, part in zip(params, flat.split([p.numel() for p in params])):
                p.grad.copy_(part.view_as(p))

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """The same numbers, summed over ranks (in float64)."""
        if self.size == 1:
            return dict(values)
        names = sorted(values)  # every rank must add the same things
        total = torch.tensor([values[name] for name in names], dtype=torch.float64)
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

    def __init__(self, final: Path, settings: dict, ranks: Ranks | None = None):
        self.final, self.settings, self.ranks = final, settings, ranks or Ranks()
        self.path = final.with_name(final.name + ".partial")
        if self.ranks.first:
            self._open()
        self.ranks.barrier()
        self._started = time.time()

    def _open(self) -> None:
        if self.complete(self.final):
            raise RunFolderError(f"{self.final} is already complete: delete it to build it again")
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.settings, indent=1, sort_keys=True)
        note = self.path / "settings.json"
        if not note.exists():
            write_atomically(note, lambda p: p.write_text(text))
        if note.read_bytes() != text.encode():
            raise RunFolderError(f"{self.path} was begun with other settings: delete it")

    @staticmethod
    def complete(path: Path) -> bool:
        """Whether `path` is a finished stage: it carries a readable manifest."""
        try:
            return "settings" in json.loads((path / MANIFEST).read_text())
        except (OSError, ValueError):
            return False

    def log(self, row: dict) -> None:
        """Append one line to metrics.jsonl (first rank only): exactly one a step."""
        if self.ranks.first:
            with open(self.path / METRICS, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def save_checkpoint(self, step: int, model, optimizers, extra: dict | None = None) -> None:
        """The state after `step` steps: weights, optimizers, whatever else the loop carries."""
        if self.ranks.first:
            state = {"step": step, "model": model.state_dict(), "extra": extra or {}}
            state["optimizers"] = optimizers.state_dict()
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
        log = self.path / METRICS
        if self.ranks.first and log.exists():  # a line a step; the last one may be half written
            kept = [line for line in log.read_bytes().splitlines(True)[:step] if line[-1:] == b"\n"]
            write_atomically(log, lambda p: p.write_bytes(b"".join(kept)))
        self.ranks.barrier()
        return step, extra

    def finish(self, metrics: dict | None = None) -> Path:
        """Write the manifest, drop the checkpoint, take the final name."""
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
