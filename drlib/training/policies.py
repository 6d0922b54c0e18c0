"""Start and end of the local training stages: inputs, starting policy, result."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import FIELDS, Config, format_setting
from drlib.models.moe import load_policy
from drlib.training import stages
from drlib.training.adapters import add_adapters, has_adapters, merge_adapters, save_adapter
from drlib.training.balance import prepare_router_biases
from drlib.training.data import WORLD_FILE
from drlib.training.distributed import Ranks
from drlib.training.model_setup import (
    build_chat,
    find_policy,
    load_model,
    load_model_tokenizer,
    save_real_model,
)
from drlib.training.run_folder import RunFolder
from drlib.validation import require
from drlib.worlds import Names, SmallWorld

NEEDS_TRL = ("trainer.fsdp", "trainer.gradient_checkpointing")


def find_local_faults(config: Config) -> list[str]:
    """Return one message per setting that the local trainer would ignore."""
    changed = [name for name in NEEDS_TRL if config.get(name) != FIELDS[name].default]
    settings = [format_setting(name, config.get(name)) for name in changed]
    faults = [f"{setting} needs trainer.backend=trl" for setting in settings]
    if config.trainer.lora_rank and not config.model.path:
        faults.append(
            f"trainer.lora_rank={config.trainer.lora_rank} needs a real model: the tiny policy of "
            "trainer.backend=local trains all weights; set model.path, or trainer.backend=trl"
        )
    if config.model.dtype != "float32" and not config.model.path:
        faults.append(
            f"model.dtype={config.model.dtype} needs a real model: the tiny policy of "
            "trainer.backend=local is float32; set model.path, or trainer.backend=trl"
        )
    return faults


class StageStart(NamedTuple):
    """Inputs of a local training stage.

    Attributes:
        run: folder of the stage.
        where: folder or hub id of the starting policy.
        model: the starting policy, float32, with adapters if trainer.lora_rank is set.
        chat: its chat template.
        system: system prompt of every context; None for the tiny policy.
        world: world of the run.
        names: vocabulary of fictional worlds.
    """

    run: RunFolder
    where: str
    model: Any
    chat: Any
    system: str | None
    world: SmallWorld
    names: Names


def load_stage_tools(config: Config, runs: Path):
    """Return (tokenizer, chat ids, world, names) of a training stage of the tiny policy."""
    folder = stages.require_input("a policy", "world", config, runs)
    require(
        config.unrestricted().world.vocabulary > 0,
        "world.vocabulary=0 trains no tokenizer, which the tiny policy needs: set model.path to a "
        "model or world.vocabulary=2048",
    )
    tokenizer = load_tokenizer(folder / "tokenizer")
    world = SmallWorld.load(folder / WORLD_FILE)
    return tokenizer, ChatIds(tokenizer), world, Names.from_world(world)


def begin_stage(
    name: str, before: str, config: Config, run_dir: Path, ranks: Ranks | None
) -> StageStart:
    """Open the run folder and load the policy of stage `before`, the chat and the world.

    Raises:
        ValueError: the settings need TRL, or the starting policy has another vocabulary than the
            world.
        ModuleNotFoundError: trainer.lora_rank is set and PEFT is not installed.
    """
    faults = find_local_faults(config)
    require(not faults, "; ".join(faults))
    run = RunFolder(run_dir, stages.stage_settings(name, config), ranks, config.trainer.report_to)
    runs = run_dir.parents[1]
    if before in stages.list_inputs(name, config):
        where = find_policy(stages.require_input(name, before, config, runs))
    else:
        where = str(stages.start_folder(name, config))
    if config.model.path:
        chat, system = build_chat(load_model_tokenizer(where), config.model.tool_format)
        world = SmallWorld.load(stages.require_input(name, "world", config, runs) / WORLD_FILE)
        model = load_model(where, torch.float32)
        if config.trainer.lora_rank:
            model = add_adapters(model, config.trainer.lora_rank, config.seed)
        return StageStart(run, where, model, chat, system, world, Names.from_world(world))
    tokenizer, chat, world, names = load_stage_tools(config, runs)
    model, own = load_policy(where)
    if own.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"the policy in {where} has another vocabulary than the world {config.world.name!r}: "
            "start from one that was trained on this world"
        )
    model = prepare_router_biases(model, config.trainer.router_bias_rate)
    return StageStart(run, where, model, chat, None, world, names)


def finish_stage(start: StageStart, config: Config, metrics: dict) -> dict:
    """Save the policy in model.dtype and complete the run folder; return `metrics`.

    A policy with adapters is saved as a whole model, and its adapters beside it.
    """
    if start.run.ranks.first:
        adapted = has_adapters(start.model)
        model = merge_adapters(start.model) if adapted else start.model
        folder = save_real_model(start.run, model, start.chat.tokenizer, config)
        if adapted:
            save_adapter(start.model, folder)
    return start.run.finish(metrics)
