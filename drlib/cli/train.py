"""`drlib train STAGE`: build a stage and its missing inputs, each in separate processes.

Settings are options such as `--rl.lr 2e-4`. `--list` lists the stages, `STAGE --settings` the
settings that a stage and its inputs read. `--workers` and `--address` train on a Ray cluster.

A finished stage with the same settings is reused. Stop with Ctrl-C; run the command again to
resume.
"""

import argparse
import sys
from pathlib import Path

from drlib.cli.examples import add_examples
from drlib.config import FIELDS, ROLLOUT_STAGES, Config, load_from_arguments, settings_table
from drlib.training import stages
from drlib.training.build import stage_arguments
from drlib.training.launch import LaunchError, check_stages, launch_stage
from drlib.training.run_folder import RunFolderError
from drlib.validation import require


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0, the status of the stage that failed, or 1 with the cause."""
    parser = stage_arguments(__doc__)
    parser.prog = "drlib train"
    add_examples(
        parser,
        "drlib train rl --profile ci --rl.steps 5",
        "drlib train rl --recipe dapo --rl.lr 2e-4",
        "drlib train rl --settings",
        "drlib train --list",
        "drlib train rl --workers 16 --address auto",
    )
    parser.add_argument("--workers", type=int, help="train with Ray in this number of processes")
    parser.add_argument("--address", help="Ray cluster, or auto; default: start Ray on this host")
    parser.add_argument(
        "--restarts", type=int, default=0, help="Ray: maximum number of restarts after failures"
    )
    parser.add_argument("--settings", action="store_true", help="list the settings and exit")
    argv = sys.argv[1:] if argv is None else argv
    if argv == ["--list"]:
        print(list_stages())
        return 0
    if argv == ["--settings"]:
        print(settings_table(FIELDS, Config.load()))
        return 0
    args, settings = parser.parse_known_args(argv)
    try:
        config = load_from_arguments(args.profile, args.recipe, settings)
        if args.settings:
            print(settings_table(list_settings(args.stage, config), config))
            return 0
        runs = args.runs.resolve()
        if args.workers is not None or args.address:
            return train_on_hosts(args, config, runs)
        missing = stages.missing_stages(args.stage, config, runs)
        check_machine(missing, config)
        check_stages(missing, config)
        for name in missing:
            status = run_stage(name, config, runs)
            if status:
                return status
        path = stages.folder(args.stage, config, runs)
        print(path if missing else f"{path}: already complete, nothing was built")
    except (ValueError, RunFolderError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def train_on_hosts(args: argparse.Namespace, config: Config, runs: Path) -> int:
    """Train one stage with Ray and return the exit status; its inputs must be complete."""
    from drlib.training import ray_training

    options = {"address": args.address, "restarts": args.restarts}
    workers = 2 if args.workers is None else args.workers
    try:
        print(ray_training.train_on_ray(args.stage, config, runs, workers=workers, **options))
    except (*ray_training.REPORTED, ray_training.WorkerFailed, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # includes Interrupted
        print(f"interrupted: {ray_training.RESUME}", file=sys.stderr)
        return 130
    return 0


def check_machine(names: list[str], config: Config) -> None:
    """Check that the stages `names` can run on this machine, before any is built.

    Raises:
        ValueError: TRL has fewer GPUs than processes (no GPU at all is accepted, for tests), or
            vLLM is not installed.
    """
    if config.trainer.backend != "trl":
        return
    if config.processes > 1 and any(stages.STAGES[name].parallel for name in names):
        import torch

        from drlib.training.distributed import gpu_fault

        gpus = torch.cuda.device_count()
        fault = gpu_fault(config.processes, gpus)
        require(gpus == 0 or not fault, fault)
    readers = set().union(*(stages.STAGES[name].readers for name in names))
    rollout_stages = readers & {*ROLLOUT_STAGES}
    if config.demonstrations.teacher != "model":
        rollout_stages -= {"demonstrations"}
    if config.engine.name == "vllm" and rollout_stages:
        from drlib.training.planner import check_vllm

        fault = check_vllm()
        require(not fault, fault)


def run_stage(name: str, config: Config, runs: Path) -> int:
    """Build one stage in subprocesses and return their exit status."""
    stage = stages.STAGES[name]
    processes = config.processes if stage.parallel else 1
    steps = f"{config.get(stage.steps)} steps, " if stage.steps else ""
    print(f"== {name}: {steps}{processes} process{'es' * (processes > 1)}", flush=True)
    try:
        launch_stage(name, config, runs)
    except LaunchError as error:
        print(f"{error}\nerror: {error.reason}", file=sys.stderr)
        return abs(error.returncode)
    except KeyboardInterrupt:
        print("interrupted: run the same command again to resume", file=sys.stderr)
        return 130
    return 0


def list_stages() -> str:
    """Return one line per stage with its inputs."""
    lines = [
        f"{name:<26} <- {', '.join(stage.inputs) or 'nothing'}"
        for name, stage in stages.STAGES.items()
    ]
    return "\n".join(lines)


def list_settings(stage: str, config: Config) -> list[str]:
    """Return the names of the settings that a stage and its inputs read."""
    ancestors = stages.list_ancestors(stage, config)
    readers = set().union(*(stages.STAGES[name].readers for name in ancestors))
    return [name for name, one in FIELDS.items() if readers & {*one.metadata["stages"]}]
