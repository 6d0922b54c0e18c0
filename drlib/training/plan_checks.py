"""What is wrong with a run before it begins: names, paths, what excludes what; and the machine.

Each fault is one line that names the setting and the remedy. `check` reads the settings, and looks
for the files that they name. `here` looks at the machine on which it is called: its GPUs, vLLM or
the server of it, and the disks that the run will fill. It is asked for apart, as a plan is often
made on another machine than the one that trains.

Left out of `here`: the memory of a GPU that is there, which may be in use by somebody else today;
whether a server may be taught (`policy.vllm_server`), which nobody knows before its first lesson.
"""

import json
import re
import shutil
from http.client import HTTPException
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import torch
from transformers.utils import hub

from drlib.config import PATH_WORLDS, ROOT, Config
from drlib.endpoint import MAX_REPLY, ChatEndpoint, EndpointError
from drlib.models.vllm_engine import INSTALL_VLLM
from drlib.models.vllm_server import REMEDY
from drlib.registry import suggest_name
from drlib.training import shapes
from drlib.training.distributed import gpu_fault
from drlib.training.stages import WEIGHTS
from drlib.worlds import WORLDS

ANSWER_S = 5.0  # that a server may be silent
HUB = "the hub's model"  # what is written to the hub's cache, of a plan's bytes by kind
AT_LEAST_ONE = (
    *("processes", "trainer.device_batch", "trainer.pack_tokens", "rollout.max_context_tokens"),
    *("rl.questions", "rl.group", "rl.sampling.oversample"),
)


def check(config: Config) -> list[str]:
    """A line for each name or path that is not there, and for settings that exclude each other."""
    faults = [message for wrong, message in _trainer_rules(config) if wrong]
    faults += [message for wrong, message in _engine_rules(config) if wrong]
    faults += [f"{name} must be at least 1" for name in AT_LEAST_ONE if config.get(name) < 1]
    faults += _world_faults(config)
    start = ROOT / config.rl.start
    if config.rl.start and not (start / WEIGHTS).exists():
        faults.append(f"rl.start={config.rl.start!r}: there is no policy in {start}")
    return faults + (shapes.folder_faults(config.model.path) if config.model.path else [])


def here(config: Config, disk: dict[str, int], runs: Path = ROOT / "runs") -> list[str]:
    """A line for each thing that this machine lacks for the run.

    disk: the bytes that it writes, by kind (`plan.disk_bytes`). runs: the folder that it writes to,
    there or not. It takes seconds, and up to ANSWER_S more for a server that says nothing.
    """
    faults = []
    if config.trainer.backend == "trl":
        faults.append(gpu_fault(config.processes, torch.cuda.device_count()))
    if config.engine.name == "vllm":
        faults.append(vllm_fault())
    elif config.engine.name == "server" and config.engine.url:
        faults.append(server_fault(config.engine.url, config.model.path))
    return [*filter(None, faults), *_disk_faults(disk, runs)]


def vllm_fault() -> str:
    """Why the vLLM of this environment cannot be the engine: it is not there, or of another version
    than drlib's own extra says (TRL takes that one); "" where it can."""
    names = packages_distributions().get("vllm")
    if not names:
        return f"vLLM is not installed: {INSTALL_VLLM}"
    found = version(names[0])
    pins = [re.match(r"vllm==([\w.]+)", each) for each in requires("drlib") or []]
    (wanted,) = {pin.group(1) for pin in pins if pin}
    if found.partition("+")[0] == wanted:  # a wheel for one CUDA says so behind the plus
        return ""
    return f"vLLM {found} is installed, and drlib takes {wanted}: {INSTALL_VLLM}"


def server_fault(url: str, model: str) -> str:
    """Why the server at `url` cannot be the engine: it does not answer the question for its models,
    or has not `model` among them (where that is empty, any will do); "" where it can."""
    what = f"engine.url={url!r}"
    start = f"start a vLLM server there, or name another; {REMEDY}"
    try:
        address = ChatEndpoint(url, model).url + "/models"
        with urlopen(address, timeout=ANSWER_S) as reply:
            names = [each["id"] for each in json.loads(reply.read(MAX_REPLY))["data"]]
    except EndpointError as fault:  # no address
        return f"engine.url: {fault}"
    except HTTPError as fault:
        return f"{what}: what answers there refuses its list of models (HTTP {fault.code}): {start}"
    except (OSError, HTTPException) as fault:
        return f"{what}: no server answers ({getattr(fault, 'reason', fault)}): {start}"
    except (ValueError, LookupError, TypeError):
        return f"{what}: what answers there has no list of models: {start}"
    if model and model not in names:
        return f"{what}: the server has {names}, and not model={model!r}: {start}"
    return ""


def _disk_faults(disk: dict[str, int], runs: Path) -> list[str]:
    """A line for each disk that has less room than is written to it."""
    cache = Path(hub.constants.HF_HUB_CACHE)
    disks: dict[int, dict[Path, int]] = {}  # by the disk's number: the folders on it, in bytes
    for kind, size in disk.items():
        folder = cache if kind == HUB else runs
        if size:
            on_it = disks.setdefault(_nearest(folder).stat().st_dev, {})
            on_it[folder] = on_it.get(folder, 0) + size
    faults = []
    for on_it in disks.values():
        size, free = sum(on_it.values()), shutil.disk_usage(_nearest(next(iter(on_it)))).free
        if size > free:
            faults.append(
                f"the run writes {size / 2**30:.2f} GiB to {' and '.join(map(str, on_it))}, where "
                f"{free / 2**30:.2f} GiB are free: make room, or have it write to another disk "
                "(--runs; HF_HOME for the hub's models)"
            )
    return faults


def _nearest(path: Path) -> Path:
    """The folder itself, or the next one above it that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())


def _trainer_rules(config: Config) -> tuple[tuple[bool, str], ...]:
    """(whether it is broken, what to say)."""
    local = config.trainer.backend == "local"
    return (
        (
            local and config.trainer.lora_rank > 0,
            f"trainer.lora_rank={config.trainer.lora_rank} needs trainer.backend=trl: the local line has no PEFT",
        ),
        (
            local and config.trainer.fsdp,
            "trainer.fsdp=true needs trainer.backend=trl: the local line does not shard",
        ),
        (
            local and config.trainer.gradient_checkpointing,
            "trainer.gradient_checkpointing=true needs trainer.backend=trl: the local line keeps activations",
        ),
        (
            local and config.model.dtype != "float32",
            f"dtype={config.model.dtype} needs trainer.backend=trl: the local line is float32",
        ),
        (
            local and config.model.path != "",
            f"model.path={config.model.path!r} needs trainer.backend=trl: the local line trains the small policy",
        ),
        (
            not local and config.trainer.router_bias_rate > 0,
            f"trainer.router_bias_rate={config.trainer.router_bias_rate} needs trainer.backend=local: TRL's stages move no "
            "biases",
        ),
        (
            not local and config.trainer.fsdp and config.processes < 2,
            "trainer.fsdp=true shards over processes: set processes to 2 or more",
        ),
        (
            config.rollout.max_turn_tokens > config.rollout.max_context_tokens,
            f"rollout.max_turn_tokens={config.rollout.max_turn_tokens} is more than "
            f"rollout.max_context_tokens={config.rollout.max_context_tokens}: a turn cannot be longer than all",
        ),
    )


def _engine_rules(config: Config) -> tuple[tuple[bool, str], ...]:
    """(whether it is broken, what to say)."""
    return (
        (
            config.engine.name == "local" and config.model.path != "",
            "engine.name=local runs the small policy alone: set engine.name=hf, vllm or server",
        ),
        (
            config.engine.name == "server" and not config.engine.url,
            "engine.name=server needs engine.url, where the vLLM server is",
        ),
        (
            config.engine.name == "vllm" and not 0 < config.engine.memory_share < 1,
            f"engine.memory_share={config.engine.memory_share}: an engine beside the trainer takes "
            "a share above 0 and below 1",
        ),
    )


def _world_faults(config: Config) -> list[str]:
    kind, _, rest = config.world.name.partition(":")
    pattern = next((known for known in WORLDS if known.partition(":")[0] == kind), None)
    if pattern is None or bool(rest) != (":" in pattern):
        return [f"unknown world {config.world.name!r}: {suggest_name(config.world.name, WORLDS)}"]
    if kind == "live":
        return [
            f"world.name={config.world.name!r}: a site may change while a policy is trained on it: "
            f"`drlib crawl {rest} FOLDER`, then world.name=folder:FOLDER"
        ]
    if kind not in PATH_WORLDS:
        return []
    path = Path(config.world_name.partition(":")[2])
    there = path.is_dir() if kind == "folder" else path.is_file()
    return [] if there else [f"world.name={config.world.name!r}: there is no {path}"]
