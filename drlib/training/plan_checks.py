"""What is wrong with a run's settings before it begins: names, paths, and what excludes what.

Each fault is one line that names the setting and the remedy. Only the disk is looked at; whether a
server answers is its engine's first question.
"""

from pathlib import Path

from drlib.config import PATHS, ROOT, Config
from drlib.registry import nearest
from drlib.training import shapes
from drlib.training.stages import WEIGHTS
from drlib.worlds import WORLDS

AT_LEAST_ONE = (
    *("processes", "device_batch", "pack_tokens", "max_context_tokens"),
    *("rl_questions", "rl_group", "rl_oversample"),
)


def check(config: Config) -> list[str]:
    """A line for each name or path that is not there, and for settings that exclude each other."""
    faults = [message for wrong, message in _trainer_rules(config) if wrong]
    faults += [message for wrong, message in _engine_rules(config) if wrong]
    faults += [f"{name} must be at least 1" for name in AT_LEAST_ONE if getattr(config, name) < 1]
    faults += _world_faults(config)
    start = ROOT / config.rl_start
    if config.rl_start and not (start / WEIGHTS).exists():
        faults.append(f"rl_start={config.rl_start!r}: there is no policy in {start}")
    return faults + (shapes.folder_faults(config.model) if config.model else [])


def _trainer_rules(config: Config) -> tuple[tuple[bool, str], ...]:
    """(whether it is broken, what to say)."""
    local = config.trainer == "local"
    return (
        (
            local and config.lora_rank > 0,
            f"lora_rank={config.lora_rank} needs trainer=trl: the local line has no PEFT",
        ),
        (local and config.fsdp, "fsdp=true needs trainer=trl: the local line does not shard"),
        (
            local and config.gradient_checkpointing,
            "gradient_checkpointing=true needs trainer=trl: the local line keeps activations",
        ),
        (
            local and config.dtype != "float32",
            f"dtype={config.dtype} needs trainer=trl: the local line is float32",
        ),
        (
            local and config.model != "",
            f"model={config.model!r} needs trainer=trl: the local line trains the small policy",
        ),
        (
            not local and config.fsdp and config.processes < 2,
            "fsdp=true shards over processes: set processes to 2 or more",
        ),
        (
            config.max_turn_tokens > config.max_context_tokens,
            f"max_turn_tokens={config.max_turn_tokens} is more than "
            f"max_context_tokens={config.max_context_tokens}: a turn cannot be longer than all",
        ),
    )


def _engine_rules(config: Config) -> tuple[tuple[bool, str], ...]:
    """(whether it is broken, what to say)."""
    return (
        (
            config.engine == "local" and config.model != "",
            "engine=local runs the small policy alone: set engine=hf, vllm or server",
        ),
        (
            config.engine == "server" and not config.engine_url,
            "engine=server needs engine_url, where the vLLM server is",
        ),
        (
            config.engine == "vllm" and not 0 < config.engine_memory_share < 1,
            f"engine_memory_share={config.engine_memory_share}: an engine beside the trainer takes "
            "a share above 0 and below 1",
        ),
    )


def _world_faults(config: Config) -> list[str]:
    kind, _, rest = config.world.partition(":")
    pattern = next((known for known in WORLDS if known.partition(":")[0] == kind), None)
    if pattern is None or bool(rest) != (":" in pattern):
        return [f"unknown world {config.world!r}: {nearest(config.world, WORLDS)}"]
    if kind not in PATHS:
        return []
    path = Path(config.world_name.partition(":")[2])
    there = path.is_dir() if kind == "folder" else path.is_file()
    return [] if there else [f"world={config.world!r}: there is no {path}"]
