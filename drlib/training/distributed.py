"""Ranks: the processes of a stage, and sums over them.

torchrun starts the processes (gloo, loopback). The local loop divides work into SHARDS shards: two
processes take one each, one process takes both, with bit-identical results. More processes share a
shard, each with a part of its samples; sums are then grouped differently and differ by rounding
(the non-linear load-balancing loss by a little more).
"""

import atexit
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor

from drlib.validation import require

SHARDS = 2


def all_sum(tensors: list[Tensor]) -> list[Tensor]:
    """Sum each tensor over all ranks, in one message."""
    if not dist.is_initialized():
        return tensors
    flat = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(flat)
    return [p.view_as(t) for p, t in zip(flat.split([t.numel() for t in tensors]), tensors)]


def trained_parameters(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters that are trained: with LoRA, those of the adapters."""
    return [p for p in model.parameters() if p.requires_grad]


def gradients(model: torch.nn.Module) -> list[Tensor]:
    """Return one gradient per trained parameter, zeros if there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in trained_parameters(model)]


def gpu_fault(processes: int, gpus: int) -> str:
    """Return why `processes` TRL processes cannot run on a host with `gpus` GPUs; empty if they
    can.
    """
    if processes <= gpus:
        return ""
    there = f"{gpus} GPU{'s' * (gpus != 1)}" if gpus else "no GPU"
    remedy = f"set processes={gpus}" if gpus else "start it where there are some"
    return f"processes={processes}: this host has {there}, and TRL trains on one each; {remedy}"


def leave_at_once() -> None:
    """Exit with status 0 without the interpreter's shutdown.

    Registered exit functions run, except the shutdown of the process group, which closes with its
    sockets.
    """
    atexit.unregister(dist.destroy_process_group)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Ranks:
    """This process among the processes of a stage; rank 0 of 1 without torchrun.

    Args:
        trainer: trainer.backend. TRL runs on any number of processes, one GPU each if available,
            with one block of questions per process. The local loop uses SHARDS shards.

    Attributes:
        shards: shards of this process.
        part, parts: this process takes the samples [part::parts] of a shared shard.

    Raises:
        ValueError: the processes cannot share the shards evenly, or exceed the host's GPUs.
    """

    def __init__(self, trainer: str = "local"):
        self.rank = int(os.environ.get("RANK", 0))
        self.size = int(os.environ.get("WORLD_SIZE", 1))
        if trainer == "local" and self.size > 1 and self.size % SHARDS:
            raise ValueError(
                f"{self.size} processes cannot share {SHARDS} shards evenly: set processes to 1 or "
                f"to a multiple of {SHARDS}"
            )
        self.first = self.rank == 0
        self.parts = max(self.size // SHARDS, 1)
        self.shards = range(self.rank // self.parts, SHARDS, max(self.size, 1))
        self.has_blocks = trainer == "trl"
        if self.has_blocks:  # TRL batches a process's questions together
            self.shards = range(1)
        self.part = self.rank % self.parts
        # set by launch.count_threads; OpenMP also accepts a list, one value per nesting level
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1").split(",")[0]))
        backend = "gloo"
        if trainer == "trl" and torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", 0))
            beside = int(os.environ.get("LOCAL_WORLD_SIZE", local + 1))  # on this host
            fault = gpu_fault(beside, torch.cuda.device_count())
            require(not fault, fault)
            torch.cuda.set_device(local)
            backend = "cpu:gloo,cuda:nccl"
        if self.size > 1 and not dist.is_initialized():
            # torchrun sets a port, training.fork_server a file
            meeting = os.environ.get("DRLIB_RENDEZVOUS", "env://")
            dist.init_process_group(
                backend, init_method=meeting, rank=self.rank, world_size=self.size
            )
            atexit.register(dist.destroy_process_group)

    def assign(self, n: int, shard: int | None) -> list[int]:
        """Return which of n questions this process samples for a shard (None: for all shards)."""
        if self.has_blocks:
            return list(range(self.rank * n // self.size, (self.rank + 1) * n // self.size))
        mine = list(range(n) if shard is None else range(shard, n, SHARDS))
        return mine[self.part :: self.parts]

    def sum_gradients(self, model: torch.nn.Module) -> float:
        """Sum the gradients over ranks, clip them to norm 1 and return their norm."""
        params = trained_parameters(model)
        for p, total in zip(params, all_sum(gradients(model))):
            p.grad = total
        return float(torch.nn.utils.clip_grad_norm_(params, 1.0))

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """Sum numbers over ranks in float64; every rank passes the same names in the same order."""
        total = all_sum([torch.tensor([*values.values()], dtype=torch.float64)])[0]
        return dict(zip(values, total.tolist()))

    def gather(self, rows: list) -> list:
        """Concatenate the rows of all ranks, in rank order."""
        return [row for part in self.gather_parts(rows) for row in part]

    def gather_parts(self, rows: list) -> list[list]:
        """Return the rows of each rank."""
        parts = [rows] * self.size
        if self.size > 1:
            dist.all_gather_object(parts, rows)
        return parts

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        """Exit with status 0 after all ranks have finished; a single process returns.

        The interpreter's shutdown takes the GIL from threads of gloo's groups, which sometimes
        aborts a process that has written everything ("terminate called without an active
        exception", status -6). It is therefore skipped.
        """
        if self.size > 1:
            self.barrier()
            leave_at_once()
