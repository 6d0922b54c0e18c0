"""`python -m drlib.training STAGE --profile P --set NAME=VALUE`: a stage, and what it needs.

    python -m drlib.training rl --profile ci --rl.steps=5
    python -m drlib.training rl --settings        what it and the stages before it read
    python -m drlib.training --list               all stages
    python -m drlib.training plan --profile gpu8  what a run needs, before it starts

Builds what is missing, one stage after another, each in processes of its own, and says so; a
finished stage of the same settings is reused. Ctrl-C stops, and the same command goes on.
"""

import os
import signal
import subprocess
import sys

from drlib.config import FIELDS, ROLLOUT_STAGES, ROOT, Config, load_from_arguments, settings_table
from drlib.training import build, stages
from drlib.training.build import MODULE, TORCHRUN, stage_arguments
from drlib.training.run_folder import RunFolderError
from drlib.validation import require


def main(argv: list[str] | None = None) -> None:
    """The command; exits with the status of the stage that failed."""
    parser = stage_arguments("build a stage of the recipe, and what it needs")
    parser.add_argument("--settings", action="store_true", help="show what it reads, and stop")
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["plan"]:
        from drlib.training import plan  # transformers: only for who plans

        sys.exit(plan.main(argv[1:]))
    if argv == ["--list"]:
        print(listing())
        return
    args, settings = parser.parse_known_args(argv)
    try:
        config = load_from_arguments(args.profile, args.recipe, settings)
        if args.settings:
            print(settings_table(read_settings_of(args.stage, config), config))
            return
        runs = args.runs.resolve()
        missing = stages.needed(args.stage, config, runs)
        require_machine(missing, config)
        for name in missing:
            start(name, config, runs)
        path = stages.folder(args.stage, config, runs)
        print(path if missing else f"{path}: it was there already, nothing was built")
    except (ValueError, RunFolderError) as fault:
        sys.exit(f"error: {fault}")


def require_machine(names: list[str], config: Config) -> None:
    """ValueError, before anything is built, where TRL would not have a GPU for each process of the
    stages `names` (none at all is a test's CPU), or vLLM is not here for their rollouts."""
    if config.trainer.backend != "trl":
        return
    if config.processes > 1 and any(stages.STAGES[name].parallel for name in names):
        import torch  # only here: who asks for help waits for no torch

        from drlib.training.distributed import gpu_fault

        gpus = torch.cuda.device_count()
        fault = gpu_fault(config.processes, gpus)
        require(gpus == 0 or not fault, fault)
    rolled = {stages.STAGES[name].reads or name for name in names} & {*ROLLOUT_STAGES}
    if config.demonstrations.teacher != "model":
        rolled -= {"demonstrations"}
    if config.engine.name == "vllm" and rolled:
        from drlib.training.plan_checks import vllm_fault

        fault = vllm_fault()
        require(not fault, fault)


def start(name: str, config: Config, runs) -> None:
    """Build one stage in processes of its own; exits as they did where they failed."""
    stage = stages.STAGES[name]
    processes = config.processes if stage.parallel else 1
    steps = f"{config.get(stage.steps)} steps, " if stage.steps else ""
    print(f"== {name}: {steps}{processes} process{'es' * (processes > 1)}", flush=True)
    how = (*TORCHRUN, f"--nproc-per-node={processes}") if processes > 1 else ()
    command = [sys.executable, *how, "-m", MODULE, *stages.arguments(name, config, runs)]
    usual = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment = usual | os.environ | {"PYTHONPATH": build.search_path()}
    child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        status = child.wait()
    except KeyboardInterrupt:  # the terminal told the child as well; it writes its checkpoint
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.wait()
        status = 130
    if status:
        sys.exit(status)


def listing() -> str:
    """Every stage and what it is made from."""
    lines = [
        f"{name:<26} <- {', '.join(stage.inputs) or 'nothing'}"
        for name, stage in stages.STAGES.items()
    ]
    return "\n".join(lines)


def read_settings_of(stage: str, config: Config) -> list[str]:
    """Return the names of the settings that a stage and its inputs read."""
    stages_read = {stages.STAGES[name].reads or name for name in stages.before(stage, config)}
    return [name for name, one in FIELDS.items() if stages_read & {*one.metadata["stages"]}]


if __name__ == "__main__":
    main()
