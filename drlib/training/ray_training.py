"""Training on several hosts with Ray Train: `drlib train STAGE --workers N --address A`.

    ray start --head            on one host; on each other: ray start --address=HOST:6379
    drlib train rl --workers 16 --address auto --profile gpu8 \\
        --runs /shared/runs --engine.url=http://HOST:8000/v1

Ray Train starts the workers (ranks, process group; gloo on CPUs, NCCL on GPUs). Each one calls
`drlib.training.build.build` like a process of torchrun, so the stage, its folder and its weights
are the same. The inputs of the stage must be finished. Without an address, the workers start on
this host. accelerate finds Ray's processes through the usual environment variables.

Requirements: the runs folder has the same path on all hosts, on a shared file system (checked with
a token before the work begins), and the package and its plugins are installed on every host.

A stage keeps its own checkpoints, so nothing is reported to Ray. Ctrl-C stops the workers; the same
command resumes. With `restarts`, Ray starts the workers again if one died.

Not supported: changing the number of workers, stages on different hosts at the same time.
"""

import os
import secrets
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from drlib.config import Config
from drlib.endpoint import EndpointError
from drlib.files import WriteError
from drlib.registry import load_plugins
from drlib.sandbox.remote import import_extra
from drlib.training import stages
from drlib.training.build import build
from drlib.training.run_folder import Interrupted, RunFolder, RunFolderError
from drlib.validation import require

# errors whose messages contain the remedy
REPORTED = (ValueError, RunFolderError, WriteError, EndpointError, ModuleNotFoundError)
CONNECT_TIMEOUT_S = 10.0
STARTS = 3  # attempts to start a cluster on this host
RESUME = "run the same command again to resume from the last checkpoint"


class WorkerFailed(RuntimeError):
    """A worker failed; the message names it and the cause."""


def train_on_ray(
    stage: str,
    config: Config,
    runs: Path,
    *,
    workers: int,
    address: str | None = None,
    restarts: int = 0,
) -> Path:
    """Build `stage` from its finished inputs on workers of a Ray cluster; return its folder.

    Args:
        runs: folder on a file system that all hosts share.
        workers: processes; each gets a GPU with trainer.backend=trl if the cluster has any.
        address: of the cluster ("auto": this host's); None: start Ray on this host. An existing
            connection is used and left open.
        restarts: number of restarts after failures.

    Raises:
        ImportError: Ray is not installed.
        ValueError, RunFolderError, WriteError: as `build`; or the cluster is missing, too small, or
            does not share `runs`.
        WorkerFailed: a worker died or raised an unexpected error.
        Interrupted: Ctrl-C.
    """
    parallel = stages.STAGES[stage].parallel
    require(parallel or workers == 1, f"stage {stage!r} takes one process: give --workers 1")
    for name in stages.list_inputs(stage, config):
        stages.require_input(stage, name, config, runs)
    path = stages.folder(stage, config, runs)
    if RunFolder.is_complete(path):
        return path
    runs.mkdir(parents=True, exist_ok=True)
    with (
        connect_to_ray(address),
        tempfile.TemporaryDirectory(dir=runs, prefix=".hosts-") as scratch,
    ):
        token = Path(scratch, "token")
        token.write_text(secrets.token_hex())
        work = {"stage": stage, "config": config, "runs": runs, "token": token}
        _run_workers(work | {"text": token.read_text()}, workers, restarts, scratch)
    return path


@contextmanager
def connect_to_ray(address: str | None) -> Iterator[None]:
    """Connect to Ray inside the block; ValueError if there is no cluster at the address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_extra("ray")
    if ray.is_initialized():
        yield
        return
    where: dict[str, Any] = (
        {"address": address} if address else {"address": "local", "include_dashboard": False}
    )
    if shlex.quote(sys.executable) != sys.executable:
        # Ray passes the interpreter's path to a shell unquoted
        where["runtime_env"] = {"py_executable": shlex.quote(sys.executable)}
    if address:
        try:
            _check_address(address)
            ray.init(**where, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, RuntimeError) as fault:
            place = "" if address == "auto" else f" at {address!r}"
            remedy = 'start one with "ray start --head", and name it with --address'
            raise ValueError(f"no Ray cluster answers{place}: {remedy}") from fault
    else:
        _start_ray(ray, where)
    try:
        yield
    finally:
        ray.shutdown()


def _start_ray(ray: Any, where: dict[str, Any]) -> None:
    """Start a cluster on this host; again if a node takes longer than Ray's fixed 15 s.

    Raises:
        ValueError: no attempt succeeded.
    """
    for _ in range(STARTS):
        try:
            ray.init(**where, log_to_driver=False, logging_level="error")
            return
        except Exception as fault:
            # Ray raises the base class here (its issue 65983), and subclasses for other errors
            if type(fault) is not Exception or "timed out" not in str(fault):
                raise
            ray.shutdown()
    raise ValueError(
        f"Ray did not start in {STARTS} attempts, because this host is busy: run the command again "
        'when it is not, or start a cluster with "ray start --head" and set RAY_ADDRESS=auto'
    )


def _check_address(address: str) -> None:
    """Raise OSError if no server listens at HOST:PORT; Ray itself would retry for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection(
            (host.removeprefix("ray://"), int(port)), CONNECT_TIMEOUT_S
        ).close()


def _run_workers(work: dict, workers: int, restarts: int, scratch: str) -> None:
    """Run `_build_in_worker` with Ray Train; raises as `train_on_ray`."""
    ray, train = import_extra("ray"), import_extra("ray.train")
    torch = import_extra("ray.train.torch")
    offered = ray.cluster_resources()
    gpus = work["config"].trainer.backend == "trl" and offered.get("GPU", 0) > 0
    kind = "GPU" if gpus else "CPU"
    there = int(offered.get(kind, 0))
    require(1 <= workers <= there, f"workers={workers}: the cluster has {there} {kind}s")
    trainer = torch.TorchTrainer(
        _build_in_worker,
        train_loop_config=work,
        # Ranks sums numbers on CPUs, TRL sums gradients on GPUs
        torch_config=torch.TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=gpus),
        run_config=train.RunConfig(
            name="ray",
            storage_path=scratch,
            failure_config=train.FailureConfig(max_failures=restarts),
        ),
    )
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit()
    except train.TrainingFailedError as error:
        raise _find_cause(error) from error
    except (SystemExit, KeyboardInterrupt, ray.exceptions.RayActorError) as error:
        raise Interrupted(RESUME) from error  # how Ray ends a run at Ctrl-C
    finally:
        if signal.getsignal(signal.SIGINT) is not handler:  # Ray does not restore it
            signal.signal(signal.SIGINT, handler)


def _build_in_worker(work: dict) -> None:
    """Build the stage in a worker; RunFolderError if a worker does not see the shared folder."""
    from drlib.training.distributed import Ranks  # imports torch

    config, token = work["config"], work["token"]
    ranks = Ranks(config.trainer.backend)
    sees = token.exists() and token.read_text() == work["text"]
    blind = sorted({*ranks.gather([] if sees else [socket.gethostname()])})
    if blind:
        raise RunFolderError(
            f"{', '.join(blind)} cannot see what this host writes to {work['runs']}: give --runs a "
            "folder on a file system that all hosts share, under the same path"
        )
    load_plugins(config.plugins)
    build(work["stage"], config, work["runs"], ranks)


def _find_cause(error: Exception) -> Exception:
    """Return the cause: if one worker fails, the others raise errors of closed connections."""
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return WorkerFailed(_one_line(str(error)))
    rank, fault = min(failures.items(), key=lambda item: (_is_consequence(item[1]), item[0]))
    if isinstance(fault, REPORTED):
        return fault
    return WorkerFailed(f"worker {rank} failed: {type(fault).__name__}: {_one_line(str(fault))}")


def _is_consequence(fault: Exception) -> bool:
    return type(fault) is RuntimeError or type(fault).__module__.startswith("torch.distributed")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
