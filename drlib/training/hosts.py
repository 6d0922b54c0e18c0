"""`python -m drlib.training.hosts STAGE --workers 16 --address auto`: one stage on several hosts.

    ray start --head            on one host; on each other: ray start --address=HOST:6379
    python -m drlib.training.hosts rl --workers 16 --address auto --profile gpu8 \\
        --runs /shared/runs --engine.url=http://HOST:8000/v1

Ray Train starts the workers (`TorchTrainer`: ranks, process group; gloo on CPUs, NCCL beside it on
GPUs), and each of them does what a process of torchrun does: `drlib.training.build.build`. So the
stage, its folder and its weights are the same, and its inputs must be there already (as they are
after `drlib train`). Without an address the workers start on this host.

A stage of `trainer.backend=trl` needs nothing else there. Ray sets RANK, WORLD_SIZE, LOCAL_RANK and
ACCELERATE_TORCH_DEVICE, by which accelerate finds the same processes and a device for each, and it
takes the process group that is there; what `accelerate launch` would say besides (precision, FSDP2)
the stage says itself. On two nodes of CPUs weights and metrics are torchrun's to the bit. Ray runs
a stage beside its worker's main thread, where TRL's end at a signal is not heard.

The runs folder must lie under the same path on every host, on one file system: the driver writes a
token there, and no work begins before every worker has seen it. The package, and the modules of
`plugins`, are installed on every host.

A stage keeps its own checkpoints, so nothing is reported to Ray. After Ctrl-C, which ends the
workers at once, the same command goes on from the last one; with `restarts` Ray starts the workers
again where one died.

Left out: numbers of workers that change, and stages on different hosts at the same time.
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

from drlib.config import Config, load_from_arguments
from drlib.endpoint import EndpointError
from drlib.files import WriteError
from drlib.registry import load_plugins
from drlib.sandbox.client import import_extra
from drlib.training import stages
from drlib.training.build import build, stage_arguments
from drlib.training.run_folder import Interrupted, RunFolder, RunFolderError
from drlib.validation import require

# faults whose messages say what to do
SAID = (ValueError, RunFolderError, WriteError, EndpointError, ModuleNotFoundError)
KNOCK_S = 10.0
GO_ON = "the same command goes on from the last checkpoint"


class WorkerFailed(RuntimeError):
    """A worker ended before its stage did; the message names it and its fault, on one line."""


def train_on_ray(
    stage: str,
    config: Config,
    runs: Path,
    *,
    workers: int,
    address: str | None = None,
    restarts: int = 0,
) -> Path:
    """Build `stage` from its finished inputs on workers of a Ray cluster; returns its folder.

    Args:
        runs: on a file system that all hosts share.
        workers: processes, a GPU each where TRL trains on a cluster that has some, else a CPU.
        address: of the cluster ("auto": the one that this host is in); None starts Ray on this host
            alone. Ray that is connected already is used as it is, and stays so.
        restarts: how often the workers are started again after one failed.

    Raises:
        ImportError: Ray is not installed.
        ValueError, RunFolderError, WriteError: as `build`, by the first worker that raised it, or
            because the cluster is not there, is too small, or does not share `runs`.
        WorkerFailed: a worker died, or met what nobody foresaw.
        Interrupted: Ctrl-C.
    """
    parallel = stages.STAGES[stage].parallel
    require(parallel or workers == 1, f"stage {stage!r} takes one process: give --workers 1")
    for name in stages.inputs_of(stage, config):
        stages.input_folder(stage, name, config, runs)
    path = stages.folder(stage, config, runs)
    if RunFolder.complete(path):
        return path
    runs.mkdir(parents=True, exist_ok=True)
    with connected(address), tempfile.TemporaryDirectory(dir=runs, prefix=".hosts-") as scratch:
        token = Path(scratch, "token")
        token.write_text(secrets.token_hex())
        work = {"stage": stage, "config": config, "runs": runs, "token": token}
        _fit(work | {"text": token.read_text()}, workers, restarts, scratch)
    return path


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Inside the block Ray is connected; ValueError where no cluster is at the address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = import_extra("ray")
    if ray.is_initialized():
        yield
        return
    where = {"address": address} if address else {"address": "local", "include_dashboard": False}
    if shlex.quote(sys.executable) != sys.executable:
        # Ray hands the interpreter's path to a shell as it is: one with a space would be cut
        where["runtime_env"] = {"py_executable": shlex.quote(sys.executable)}
    try:
        _knock(address or "")
        ray.init(**where, log_to_driver=False, logging_level="error")
    except (OSError, ValueError, RuntimeError) as fault:
        told = "" if address == "auto" else f" at {address!r}"
        remedy = 'start one with "ray start --head", and name it with --address'
        raise ValueError(f"no Ray cluster answers{told}: {remedy}") from fault
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """OSError where nobody listens at HOST:PORT: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), KNOCK_S).close()


def _fit(work: dict, workers: int, restarts: int, scratch: str) -> None:
    """Ray Train around `_build_here`; raises as `train_on_ray`."""
    ray, train = import_extra("ray"), import_extra("ray.train")
    torch = import_extra("ray.train.torch")
    offered = ray.cluster_resources()
    gpus = work["config"].trainer == "trl" and offered.get("GPU", 0) > 0
    kind = "GPU" if gpus else "CPU"
    there = int(offered.get(kind, 0))
    require(1 <= workers <= there, f"workers={workers}: the cluster has {there} {kind}s")
    trainer = torch.TorchTrainer(
        _build_here,
        train_loop_config=work,
        # ours sums numbers on CPUs, TRL gradients where they are
        torch_config=torch.TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo"),
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=gpus),
        run_config=train.RunConfig(
            name="ray",
            storage_path=scratch,
            failure_config=train.FailureConfig(max_failures=restarts),
        ),
    )
    ours = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit()
    except train.TrainingFailedError as error:
        raise _first_fault(error) from error
    except (SystemExit, KeyboardInterrupt, ray.exceptions.RayActorError) as error:
        raise Interrupted(GO_ON) from error  # Ray's own way to end a run at Ctrl-C
    finally:
        if signal.getsignal(signal.SIGINT) is not ours:  # which it does not put back
            signal.signal(signal.SIGINT, ours)


def _build_here(work: dict) -> None:
    """What each worker does. RunFolderError: some do not see what the driver wrote."""
    from drlib.training.distributed import Ranks  # only here: who asks for help waits for no torch

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


def _first_fault(error: Exception) -> Exception:
    """The fault to be told, of all that the workers ended with: one of them fails, and the others
    with RuntimeErrors of a connection that closed."""
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return WorkerFailed(_one_line(str(error)))
    rank, fault = min(failures.items(), key=lambda item: (_is_echo(item[1]), item[0]))
    if isinstance(fault, SAID):
        return fault
    return WorkerFailed(f"worker {rank} failed: {type(fault).__name__}: {_one_line(str(fault))}")


def _is_echo(fault: Exception) -> bool:
    return type(fault) is RuntimeError or type(fault).__module__.startswith("torch.distributed")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def main(argv: list[str] | None = None) -> None:
    """The command."""
    parser = stage_arguments("build one stage, whose inputs are there, on the hosts of a cluster")
    parser.add_argument("--workers", type=int, default=2, help="processes, on all hosts together")
    parser.add_argument("--address", help="of the Ray cluster, or auto (default: this host alone)")
    parser.add_argument("--restarts", type=int, default=0, help="after a worker that died")
    args, settings = parser.parse_known_args(argv)
    how = {"workers": args.workers, "address": args.address, "restarts": args.restarts}
    try:
        config = load_from_arguments(args.profile, args.recipe, settings)
        print(train_on_ray(args.stage, config, args.runs.resolve(), **how))
    except (*SAID, WorkerFailed, ImportError) as fault:
        sys.exit(f"error: {fault}")
    except KeyboardInterrupt:  # before Ray listens it is the plain one
        print(f"interrupted: {GO_ON}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
