"""A real model in the stages: where it comes from, what it is told, who generates with it, LoRA.

`trainer.backend=trl` trains any causal language model of transformers: the one that `model` names, a folder
or a hub's id, or the small policy where that is empty. Every stage leaves a whole model behind, a
Hugging Face folder; where it changed nothing, a note where the model lies (`policy.json`), because
sixty gigabytes are not copied for nothing.

Adapters live within a stage: they are merged into the weights when it ends, so that whoever comes
next (a stage, vLLM, `drlib ask --folder`) needs no PEFT. What is trained is held in float32 and
computed in `dtype`: a step of 1e-6 is less than bfloat16 can add to a weight. Under LoRA the base
model is not trained and is held in `dtype`.

Left out: quantised base models; experts of other layouts than transformers' 3-D tensors.
"""

import copy
import datetime
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from drlib.chat.model_template import TemplateIds, is_drlib_tokenizer
from drlib.chat.prompts import research_prompt
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.endpoint import ChatEndpoint
from drlib.files import write_atomic
from drlib.models.engine import Engine
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import default_device, quiet_loading, save_policy
from drlib.models.transformers_engine import TransformersEngine
from drlib.models.vllm_engine import VllmEngine
from drlib.models.vllm_server import VllmServer
from drlib.tools import TOOLS
from drlib.training import stages
from drlib.training.distributed import Ranks
from drlib.training.pretrain import build_untrained
from drlib.training.run_folder import RunFolder
from drlib.validation import require

TOLD_DAY = datetime.date(2026, 1, 1)  # in a prompt that is trained on: it must not change
ROUTER = re.compile(r".*\.(gate|router)")  # of a mixture of experts; a dense map is `gate_proj`
EXPERTS = {"gate_proj", "up_proj", "down_proj"}
HAS_TOOLS = ("search", "visit", "python")  # of a stage's toolbox
REPORT_ROUTES = ("hf", "vllm")  # engines that say the experts of their tokens


class Told(NamedTuple):
    """How a model is spoken to: its chat, and the system prompt that every context begins with."""

    chat: Any
    system: str | None


def told(tokenizer, config: Config) -> Told:
    """The chat of a model's tokenizer. The policy that is made here knows its tools by heart.

    ValueError: its template cannot express what `model.tool_format` asks of it.
    """
    if is_drlib_tokenizer(tokenizer):
        return Told(ChatIds(tokenizer), None)
    tools = [TOOLS[name] for name in HAS_TOOLS]
    if config.model.tool_format == "template":
        chat = TemplateIds(tokenizer, [tool.function for tool in tools])
        return Told(chat, research_prompt(today=TOLD_DAY))
    schemas = [tool.schema for tool in tools]
    return Told(TemplateIds(tokenizer, tool_role="user"), research_prompt(schemas, TOLD_DAY))


def policy_of(folder: Path) -> str:
    """Where the policy that a finished stage left lies: in its folder, or where it was before."""
    note = folder / "policy.json"
    if note.exists():
        return json.loads(note.read_text(encoding="utf-8"))["model"]
    return str(folder / "policy")


def point_to(run: RunFolder, where: str, metrics: dict) -> dict:
    """End a stage that leaves the model where it is; returns `metrics`."""
    run.ranks.barrier()  # the others have seen that it is not complete yet
    if run.ranks.first:
        write_atomic(run.path / "policy.json", json.dumps({"model": where}))
    return run.finish(metrics)


def load_tokenizer_of(where: str):
    """The tokenizer of a model, with a token to pad with. ValueError: there is none."""
    remedy = f"no tokenizer at {where}: give a model's folder or hub id"
    here = Path(where)
    if here.is_dir():  # where none is, transformers makes one that knows no word
        require(any(here.glob("tokenizer*")), remedy)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError) as error:
        raise ValueError(f"{remedy} ({error})".splitlines()[0]) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def load_model(where: str, dtype: torch.dtype) -> PreTrainedModel:
    """The model at `where`, a folder or a hub's id. ValueError: none, or without its weights."""
    try:
        with quiet_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                where, dtype=dtype, output_loading_info=True
            )
    except (OSError, ValueError) as error:
        what = f"no causal language model at {where} ({error})"
        raise ValueError(what.splitlines()[0]) from error
    missing = sorted(report["missing_keys"])
    require(not missing, f"the model at {where} lacks weights, for example {missing[:1]}")
    return model


def load_trained(where: str, checkpoint: str | None, config: Config) -> PreTrainedModel:
    """The model that a stage trains: that at `where`, or as its `checkpoint` left it.

    The trainer's own resuming would pass over the experts, whose weights a checkpoint holds one by
    one and the model in a block, without a word. It is right about adapters and shards.
    """
    whole = checkpoint is not None and config.trainer.lora_rank == 0 and not config.trainer.fsdp
    model = load_model(checkpoint if whole else where, trained_dtype(config))
    model.config._name_or_path = where  # whence TRL takes a reference for the KL
    return model


def trained_dtype(config: Config) -> torch.dtype:
    """Of the weights that are loaded: float32 where they are trained themselves."""
    return getattr(torch, config.model.dtype) if config.trainer.lora_rank else torch.float32


def adapters(model: PreTrainedModel, config: Config) -> LoraConfig | None:
    """PEFT's plan: adapters of every linear layer, and of the experts' 3-D weights.

    The router stays as it is, although PEFT's own "all-linear" means it too: who moves it sends
    tokens to experts that were not trained on them, and lets trainer and engine choose differently.
    `EXPERTS` are the names that PEFT knows the experts' maps by: gate and up, which are one weight
    today, so get an adapter of the rank each.
    """
    if config.trainer.lora_rank == 0:
        return None
    names = [name for name, _ in model.named_parameters()]
    experts = sorted({name for name in names if name.endswith(("gate_up_proj", "down_proj"))})
    shared = sorted({name.split("mlp.", 1)[1] for name in experts if "mlp.experts." in name})
    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not head and not ROUTER.fullmatch(name)
    }
    return LoraConfig(
        r=config.trainer.lora_rank,
        lora_alpha=2 * config.trainer.lora_rank,
        target_modules=sorted(linear | (EXPERTS if shared else set())),
        target_parameters=[f"mlp.{name}" for name in shared] or None,
        task_type="CAUSAL_LM",
    )


def whole_model(trainer, everywhere: bool = False) -> PreTrainedModel | None:
    """The model of a trainer as one process can save or score it: adapters merged into a copy, and
    a sharded one gathered, in the first process or (`everywhere`) in each; None in the others."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not trainer.is_fsdp_enabled:
        return copy.deepcopy(model).merge_and_unload() if _has_adapters(model) else model
    plan = StateDictOptions(full_state_dict=True, cpu_offload=not everywhere)
    state = get_model_state_dict(trainer.model, options=plan)
    if not (everywhere or trainer.accelerator.is_main_process):
        return None
    base = model.get_base_model() if _has_adapters(model) else model
    whole = AutoModelForCausalLM.from_config(base.config)
    if _has_adapters(model):
        whole = get_peft_model(whole, model.peft_config["default"])
    whole.load_state_dict(state, assign=True)
    whole.tie_weights()
    return whole.merge_and_unload() if _has_adapters(model) else whole


def _has_adapters(model) -> bool:
    return isinstance(model, PeftModel)


def save_whole(run: RunFolder, trainer, tokenizer, config: Config, metrics: dict) -> dict:
    """End a stage that has trained: the whole model saved, in `dtype`; returns `metrics`."""
    model = whole_model(trainer)
    if run.ranks.first:
        save_policy(model, tokenizer, run.path / "policy", getattr(torch, config.model.dtype))
        shutil.rmtree(trainer.args.output_dir)  # its checkpoints
    return run.finish(metrics)


@contextmanager
def engine_of(
    model: PreTrainedModel, where: str, config: Config, routes: bool = False
) -> Iterator[Engine]:
    """Who generates with `model`, whose folder or hub id is `where`; it is closed at the end.

    An engine of this process computes with the model itself, on `default_device`: who trains it would
    move it there later, who evaluates it never.

    routes: whether its completions must say the experts of their tokens.

    Raises:
        ValueError: an engine that cannot run this model, or reports no routes. ModuleNotFoundError:
            vLLM is not here. WeightsDiffer: the server runs other weights.
    """
    require(
        not routes or config.engine.name in REPORT_ROUTES,
        f"rl.off_policy.routing_replay=r3 replays the routes of the sampling engine, and engine={config.engine.name} "
        "reports none: use engine.name=hf, or engine.name=vllm on a GPU",
    )
    longest = model.config.get_text_config().max_position_embeddings
    context = config.rollout.max_context_tokens
    require(
        context <= longest, f"rollout.max_context_tokens={context}: {where} reads {longest} at most"
    )
    if config.engine.name == "vllm":
        options = {"dtype": config.model.dtype}
        if torch.cuda.is_available():
            options["gpu_memory_utilization"] = config.engine.memory_share
        gap = config.engine.max_mismatch
        engine = VllmEngine(model, max_context=context, max_gap=gap, routes=routes, **options)
        try:
            yield engine
        finally:
            engine.close()
    elif config.engine.name == "server":
        server = _server(model, where, config)
        _teach(server, model)
        yield server
    elif config.engine.name == "hf":
        yield TransformersEngine(model.to(default_device()), max_context=context, routes=routes)
    else:
        kind = model.config.model_type
        ours = kind == "qwen3_moe"
        require(ours, f"engine.name=local cannot run a {kind}: set engine.name=hf, vllm or server")
        yield LocalEngine(model.to(default_device()), max_context=context, lockstep=True)


@contextmanager
def opened_model(folder: Path, config: Config) -> Iterator[tuple[Engine, Any, str | None]]:
    """(engine, chat, system prompt) of the policy that a finished stage left."""
    where = policy_of(folder)
    chat, system = told(load_tokenizer_of(where), config)
    model = load_model(where, getattr(torch, config.model.dtype)).eval()
    with engine_of(model, where, config) as engine:
        yield engine, chat, system


def _server(model: PreTrainedModel, where: str, config: Config) -> VllmServer:
    require(
        bool(config.engine.url), "engine.name=server needs engine.url, where the vLLM server is"
    )
    endpoint = ChatEndpoint(config.engine.url, config.model.path or where, timeout_s=600.0)
    context = config.rollout.max_context_tokens
    return VllmServer(endpoint, where, max_context=context, max_gap=config.engine.max_mismatch)


def _teach(server: VllmServer, model: PreTrainedModel) -> None:
    """A server begins with what it was started with, or with what it was last taught: it is taught
    anyway, as a parity within `engine.max_mismatch` does not tell a small step from none."""
    ranks = Ranks("trl")
    if ranks.first:
        server.update_weights(model)
        server.version = 0
    ranks.barrier()


def begin_with(config: Config, run_dir: Path, ranks: Ranks | None = None) -> dict:
    """Stage `untrained`: whether the model is there and can be spoken to, before anything is spent
    on it; without `model` the small policy is made."""
    if not config.model.path:
        return build_untrained(config, run_dir, ranks or Ranks("trl"))
    run = RunFolder(run_dir, stages.settings_of("untrained", config), ranks)
    told(load_tokenizer_of(config.model.path), config)
    model = load_model(config.model.path, getattr(torch, config.model.dtype))
    return point_to(run, config.model.path, {"parameters": model.num_parameters()})
