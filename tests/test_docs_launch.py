"""docs/launch: run the scripts, and parse the commands that they start.

SLURM, the vLLM server and the stages are replaced by programs on the PATH that record their
arguments and exit (srun executes the rest of its line). The recorded command lines are parsed by
torchrun, accelerate, vLLM and drlib. These tests run without a GPU.

Run: python -m pytest tests/test_docs_launch.py
(the test of vLLM's flags is skipped if vLLM is not installed; `make test-vllm` runs it)
"""

import functools
import json
import os
import re
import shlex
import subprocess
import sys

import psutil
import pytest
from waiting import until

from drlib.config import ROOT, Config, load_from_arguments
from drlib.training import stages
from drlib.training.build import MODULE, stage_arguments
from tests.waiting import HANG_S

LAUNCH = ROOT / "docs" / "launch"
SCRIPTS = ("accelerate", "slurm")
NODES = ("alpha", "beta", "gamma")

# Records how it was called. The server runs until it is killed, or exits at once.
PROGRAM = """import json, os, sys, time
SERVER = "vllm.entrypoints.openai.api_server"
name, rest = sys.argv[1], sys.argv[2:]
told = dict(name=name, argv=rest, environment=dict(os.environ), pid=os.getpid())
with open({log!r}, "a") as file:
    file.write(json.dumps(told) + "\\n")
if name == "srun":
    command = rest[next(i for i, a in enumerate(rest) if not a.startswith("--")):]
    os.execvp(command[0], command)
if name == "scontrol":
    print("\\n".join({nodes!r}))
if name == "curl":
    calls = map(json.loads, open({log!r}))  # srun, which names it too, is not yet the server
    servers = (c for c in calls if c["name"] == "python" and SERVER in c["argv"])
    sys.exit({dies} or next(servers, None) is None)
if SERVER in rest and not {dies}:
    time.sleep(100)
"""


class Calls:
    """Run the script with the recording programs; `all` lists their calls in order."""

    def __init__(self, script, folder, dies=False):
        self.log, programs = folder / "log", folder / "bin"
        programs.mkdir()
        (folder / "program.py").write_text(
            PROGRAM.format(log=str(self.log), nodes=NODES, dies=dies)
        )
        # through bash, because a shebang cannot contain an interpreter path with a space
        wrapper = [sys.executable, str(folder / "program.py")]
        for name in "python drlib torchrun accelerate srun scontrol curl sleep".split():
            line = f'#!/bin/bash\nexec {shlex.join([*wrapper, name])} "$@"\n'
            (programs / name).write_text(line)
            (programs / name).chmod(0o755)
        self.runs = folder / "runs"
        slurm = {"SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NODELIST": "some", "SLURM_JOB_ID": "7"}
        environment = os.environ | slurm | {"RUNS": str(self.runs)}
        environment["PATH"] = f"{programs}{os.pathsep}{os.environ['PATH']}"
        # vLLM sets it on import, and the loader warns about it if the folder has a space
        environment.pop("LD_PRELOAD", None)
        self.done = subprocess.run(
            ["bash", LAUNCH / f"{script}.sh"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
        self.all = [json.loads(line) for line in self.log.read_text().splitlines()]

    def of(self, name, *words):
        """Return (words, environment) of the calls of a program that contain these words."""
        found = [c for c in self.all if c["name"] == name and {*words} <= {*c["argv"]}]
        return [(call["argv"], call["environment"]) for call in found]


@pytest.fixture(scope="module")
def calls_of(tmp_path_factory):
    """Return a function that runs a script once and returns its calls."""

    @functools.cache
    def run(script):
        result = Calls(script, tmp_path_factory.mktemp(script))
        assert result.done.returncode == 0, result.done.stderr
        return result

    return run


@pytest.fixture(scope="module", params=SCRIPTS)
def script(request):
    return request.param


@pytest.fixture(scope="module")
def calls(script, calls_of):
    return calls_of(script)


def after(words, first):
    return words[words.index(first) + 1 :]


def server_of(calls):
    ((words, environment),) = calls.of("python", "vllm.entrypoints.openai.api_server")
    return after(words, "vllm.entrypoints.openai.api_server"), environment


def option_value(words, flag):
    return words[words.index(flag) + 1]


def launcher_of(calls, script):
    """Return (parsed arguments of the launcher, arguments of the stage command)."""
    if script == "accelerate":
        from accelerate.commands.launch import launch_command_parser

        ((words, _),) = calls.of("accelerate", MODULE)
        assert words[0] == "launch"
        parsed = launch_command_parser().parse_args(words[1:])
    else:
        from torch.distributed.run import get_args_parser

        ((words, _),) = calls.of("torchrun", MODULE)
        parsed = get_args_parser().parse_args(words)
    assert parsed.module and parsed.training_script == MODULE
    return parsed, parsed.training_script_args


def parse_stage(words):
    """Return stage and settings, parsed by drlib."""
    args, settings = stage_arguments("").parse_known_args(words)
    return args, load_from_arguments(args.profile, args.recipe, settings)


def test_stages_run_in_order_with_the_same_settings(calls, script):
    commands = [after(words, "train") for words, _ in calls.of("drlib", "train")]
    _, launched = launcher_of(calls, script)
    read_all = [parse_stage(words) for words in (commands[0], launched, commands[1])]
    assert len(commands) == 2
    assert [args.stage for args, _ in read_all] == ["sft", "rl", "evaluate_rl"]
    assert all(args.stage in stages.STAGES for args, _ in read_all)
    assert {str(args.runs) for args, _ in read_all} == {str(calls.runs)}
    folders = {stages.folder("rl", config, calls.runs) for _, config in read_all}
    assert folders == {stages.folder("rl", Config.load("gpu8"), calls.runs)}
    starts = [c["name"] for c in calls.all if {"train", MODULE} & {*c["argv"]}]
    launcher = "torchrun" if script == "slurm" else "accelerate"
    assert [name for name in starts if name != "srun"] == ["drlib", launcher, "drlib"]


def test_accelerate_starts_one_process_per_training_gpu(calls_of):
    calls = calls_of("accelerate")
    parsed, words = launcher_of(calls, "accelerate")
    _, config = parse_stage(words)
    assert (parsed.num_machines, parsed.num_processes, parsed.multi_gpu) == (1, 4, True)
    assert parsed.num_processes == config.processes and parsed.mixed_precision == "bf16"
    assert config.trainer.fsdp and not parsed.use_fsdp and not parsed.cpu
    ((_, environment),) = calls.of("accelerate", MODULE)
    trains = environment["CUDA_VISIBLE_DEVICES"].split(",")
    serves = server_of(calls)[1]["CUDA_VISIBLE_DEVICES"].split(",")
    assert len(trains) == parsed.num_processes and len(serves) == 4
    assert sorted(trains + serves) == list("01234567")


def test_torchrun_starts_on_every_training_node(calls_of):
    calls = calls_of("slurm")
    parsed, _ = launcher_of(calls, "slurm")
    assert (parsed.nnodes, parsed.nproc_per_node) == ("2", "4")
    assert (parsed.rdzv_backend, parsed.rdzv_endpoint) == ("c10d", "beta:29500")
    assert parsed.rdzv_id == "7" and not parsed.standalone
    from torch.distributed.run import config_from_args

    launch, _, _ = config_from_args(parsed)
    assert (launch.min_nodes, launch.max_nodes, launch.nproc_per_node) == (2, 2, 4)
    placements = []
    for words, environment in calls.of("srun"):
        options = dict(word.split("=", 1) for word in words if word.startswith("--no"))
        placements.append((options["--nodes"], options["--nodelist"], "torchrun" in words))
        assert environment["TMPDIR"] == f"{calls.runs}/tmp", "where weights go to the server"
    one = ("1", "beta", False)
    assert placements == [("1", "alpha", False), one, ("2", "beta,gamma", True), one]


def test_server_matches_the_engine_settings(calls, script):
    words, environment = server_of(calls)
    _, config = parse_stage(launcher_of(calls, script)[1])
    host, port = option_value(words, "--host"), option_value(words, "--port")
    assert host == ("127.0.0.1" if script == "accelerate" else "alpha")
    assert config.engine.name == "server" and config.engine.url == f"http://{host}:{port}/v1"
    assert option_value(words, "--model") == config.model.path == Config.load("gpu8").model.path
    assert option_value(words, "--dtype") == config.model.dtype
    assert int(option_value(words, "--max-model-len")) >= config.rollout.max_context_tokens
    assert option_value(words, "--worker-extension-cls") == "drlib.models.vllm_engine.WeightSync"
    assert option_value(words, "--logprobs-mode") == "processed_logprobs"
    assert option_value(words, "--generation-config") == "vllm"
    assert environment["VLLM_SERVER_DEV_MODE"] == environment["VLLM_NO_USAGE_STATS"] == "1"


def test_scripts_wait_for_the_server_and_stop_it(calls):
    names = [c["name"] for c in calls.all]
    server = next(c for c in calls.all if c["name"] == "python")
    assert "vllm.entrypoints.openai.api_server" in server["argv"]
    first = next(i for i, c in enumerate(calls.all) if "train" in c["argv"])
    assert "curl" in names[:first] and calls.all.index(server) < first
    until(lambda: not psutil.pid_exists(server["pid"]))


@pytest.mark.parametrize("name", SCRIPTS)
def test_failed_server_stops_the_script(name, tmp_path):
    calls = Calls(name, tmp_path, dies=True)
    assert calls.done.returncode == 1
    assert calls.done.stderr.splitlines() == ["error: the vLLM server ended"]
    assert not [c for c in calls.all if {"train", MODULE} & {*c["argv"]}]


def test_vllm_accepts_the_server_flags(calls):
    pytest.importorskip("vllm", reason="vLLM is not installed")
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    words, _ = server_of(calls)
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    assert (parsed.tensor_parallel_size, parsed.max_model_len) == (4, 32768)
    assert parsed.worker_extension_cls == "drlib.models.vllm_engine.WeightSync"


# Options of sbatch, from its manual.
SBATCH = set(
    "account array begin comment constraint cpus-per-gpu cpus-per-task dependency error exclude "
    "exclusive export gpus gpus-per-node gpus-per-task gres hint job-name licenses mail-type "
    "mail-user mem mem-per-cpu mem-per-gpu nice no-requeue nodelist nodes ntasks ntasks-per-gpu "
    "ntasks-per-node open-mode output partition qos requeue reservation signal switches time "
    "tmp wait-all-nodes".split()
)
SRUN = {"nodes", "ntasks", "ntasks-per-node", "nodelist"}


def test_slurm_directives_are_valid():
    lines = (LAUNCH / "slurm.sh").read_text().splitlines()
    assert lines[0].startswith("#!"), "sbatch wants a script with an interpreter"
    last = max(i for i, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[:last]), "after a command they are not read"
    matches = [re.fullmatch(r"#SBATCH --([a-z-]+)(=(\S+))?", line) for line in lines[1 : last + 1]]
    options = {match[1]: match[3] for match in matches}
    assert options.keys() <= SBATCH and len(options) == len(matches)
    assert int(options["nodes"]) >= 2 and options["ntasks-per-node"] == "1"
    assert re.fullmatch(r"(\d+-)?\d+:\d\d:\d\d", options["time"])
    assert options["open-mode"] in ("append", "truncate")
    assert int(options["gpus-per-node"]) == Config.load("gpu8").processes


def test_srun_options_are_valid(calls_of):
    for words, _ in calls_of("slurm").of("srun"):
        own = words[: next(i for i, word in enumerate(words) if not word.startswith("--"))]
        assert {word[2:].partition("=")[0] for word in own} <= SRUN and all("=" in w for w in own)


def test_accelerate_on_cpus_starts_one_process(tmp_path):
    program = tmp_path / "size.py"
    program.write_text("import os; print('size', os.environ.get('WORLD_SIZE', '1'))")
    start = [sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch"]
    done = subprocess.run(
        [*start, "--cpu", "--num_processes", "2", program],
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.stdout.splitlines() == ["size 1"]
    words = " ".join((LAUNCH / "accelerate.sh").read_text().replace("\n#", "").split())
    assert "`accelerate launch --cpu --num_processes 2` starts one process" in words
