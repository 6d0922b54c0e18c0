"""Models of the stages: loading, chat, engines, adapters, saving.

A stage trains the causal language model of transformers at model.path, a folder or a hub id, or the
tiny policy if that is empty. Every stage leaves a Hugging Face folder, or `policy.json` with the
model's location if it changed nothing.

LoRA adapters live within one stage and are merged into the weights at its end, so the next stage,
vLLM and `drlib ask --folder` need no PEFT. Trained weights are kept in float32 and computed in
model.dtype, because bfloat16 cannot represent a step of 1e-6. With LoRA, the base model is not
trained; TRL keeps it in model.dtype, the local trainer (`adapters`) in float32.

Not supported: quantised base models; experts in other layouts than transformers' 3-D tensors.
"""

import copy
import datetime
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from drlib.chat.model_template import TemplateIds, is_drlib_tokenizer
from drlib.chat.prompts import BRIEF_PROMPT, research_prompt, save_trained_prompt
from drlib.chat.template import ChatIds
from drlib.config import Config
from drlib.endpoint import ChatEndpoint
from drlib.files import write_atomic
from drlib.models.dense_decoder import find_unsupported
from drlib.models.engine import Engine
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import default_device, load_policy, quiet_loading, save_policy
from drlib.models.router_bias import RouterBiasConfig
from drlib.models.sampling import Forks
from drlib.models.transformers_engine import TransformersEngine
from drlib.models.vllm_engine import VllmEngine
from drlib.models.vllm_server import VllmServer
from drlib.registry import Registry
from drlib.tools import TOOLS
from drlib.training.distributed import Ranks
from drlib.training.run_folder import RunFolder
from drlib.validation import require

if TYPE_CHECKING:  # importing PEFT takes seconds
    from peft import LoraConfig

PROMPT_DATE = datetime.date(2026, 1, 1)  # date in trained prompts: must not change between runs
ROUTER = re.compile(r".*\.(gate|router)")  # router of a mixture of experts, unlike `gate_proj`
EXPERTS = {"gate_proj", "up_proj", "down_proj"}
PROMPT_TOOLS = ("search", "visit", "python")  # described in the system prompt
TINY_TYPES = ("qwen3_moe", RouterBiasConfig.model_type)
DENSE_SLOTS = 128  # rows of the local engine's cache for a dense model
REPORT_ROUTES = ("hf", "vllm")  # engines that report the experts of their tokens


# ---------------------------------------------------------------- chat and weights


class ChatSetup(NamedTuple):
    """Chat template of a model, and the system prompt of every context."""

    chat: Any
    system: str | None


def build_chat(tokenizer, tool_format: str) -> ChatSetup:
    """Build the chat of a tokenizer; the tiny policy was trained without a system prompt.

    Raises:
        ValueError: the chat template cannot express model.tool_format.
    """
    if is_drlib_tokenizer(tokenizer):
        return ChatSetup(ChatIds(tokenizer), None)
    if tool_format == "brief":
        return ChatSetup(TemplateIds(tokenizer, tool_role="user"), BRIEF_PROMPT)
    tools = [TOOLS[name] for name in PROMPT_TOOLS]
    if tool_format == "template":
        chat = TemplateIds(tokenizer, [tool.function for tool in tools])
        return ChatSetup(chat, research_prompt(today=PROMPT_DATE))
    schemas = [tool.schema for tool in tools]
    return ChatSetup(
        TemplateIds(tokenizer, tool_role="user"), research_prompt(schemas, PROMPT_DATE)
    )


def find_policy(folder: Path) -> str:
    """Return the location of the policy that a finished stage left."""
    note = folder / "policy.json"
    if note.exists():
        return json.loads(note.read_text(encoding="utf-8"))["model"]
    return str(folder / "policy")


def finish_unchanged(run: RunFolder, where: str, metrics: dict) -> dict:
    """Finish a stage that left the model unchanged; return `metrics`."""
    run.ranks.barrier()  # the other processes have seen that the stage is incomplete
    if run.ranks.first:
        write_atomic(run.path / "policy.json", json.dumps({"model": where}))
    return run.finish(metrics)


def load_model_tokenizer(where: str):
    """Load the tokenizer of a model, with a padding token.

    Raises:
        ValueError: there is no tokenizer.
    """
    remedy = f"no tokenizer at {where}: give a model's folder or hub id"
    folder = Path(where)
    if folder.is_dir():  # transformers would create an empty tokenizer
        require(any(folder.glob("tokenizer*")), remedy)
    try:
        tokenizer = AutoTokenizer.from_pretrained(where)
    except (OSError, ValueError) as error:
        raise ValueError(f"{remedy} ({error})".splitlines()[0]) from error
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    return tokenizer


def load_model(where: str, dtype: torch.dtype) -> PreTrainedModel:
    """Load the model from a folder or a hub id.

    Raises:
        ValueError: there is no causal language model, or it lacks weights.
    """
    try:
        with quiet_loading():
            model, report = AutoModelForCausalLM.from_pretrained(
                where, dtype=dtype, output_loading_info=True
            )
    except (OSError, ValueError) as error:
        message = f"no causal language model at {where} ({error})"
        raise ValueError(message.splitlines()[0]) from error
    missing = sorted(report["missing_keys"])
    require(not missing, f"the model at {where} lacks weights, for example {missing[:1]}")
    return model


def load_trainable_model(where: str, checkpoint: str | None, config: Config) -> PreTrainedModel:
    """Load the model that a stage trains, from `where` or from its checkpoint.

    TRL's own resuming silently skips experts: a checkpoint stores them one by one, the model as one
    tensor. It restores adapters and shards correctly, so these are left to it.
    """
    whole = checkpoint is not None and config.trainer.lora_rank == 0 and not config.trainer.fsdp
    dtype = choose_weight_dtype(config.model.dtype, config.trainer.lora_rank)
    model = load_model(checkpoint if whole else where, dtype)
    model.config._name_or_path = where  # TRL loads the reference of the KL term from here
    return model


def choose_weight_dtype(dtype: str, lora_rank: int) -> torch.dtype:
    """Return the dtype of loaded weights: float32 if they are trained themselves."""
    return getattr(torch, dtype) if lora_rank else torch.float32


def build_lora_config(model: PreTrainedModel, rank: int) -> "LoraConfig | None":
    """Build the LoRA configuration: all linear layers and the 3-D weights of the experts.

    Routers are excluded, although PEFT's "all-linear" includes them: a changed router sends tokens
    to experts that were not trained on them and makes trainer and engine disagree. PEFT addresses
    experts as `EXPERTS`; gate and up are one weight and get an adapter of the rank each.
    """
    if rank == 0:
        return None
    from peft import LoraConfig

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
        r=rank,
        lora_alpha=2 * rank,
        target_modules=sorted(linear | (EXPERTS if shared else set())),
        target_parameters=[f"mlp.{name}" for name in shared] or None,
        task_type="CAUSAL_LM",
    )


def gather_model(trainer, everywhere: bool = False) -> PreTrainedModel | None:
    """Return a trainer's model with merged adapters and gathered shards.

    Args:
        everywhere: gather a sharded model in every process; otherwise the first one gets it and the
            others get None.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not trainer.is_fsdp_enabled:
        return copy.deepcopy(model).merge_and_unload() if _has_adapters(model) else model
    options = StateDictOptions(full_state_dict=True, cpu_offload=not everywhere)
    state = get_model_state_dict(trainer.model, options=options)
    if not (everywhere or trainer.accelerator.is_main_process):
        return None
    base = model.get_base_model() if _has_adapters(model) else model
    whole = AutoModelForCausalLM.from_config(base.config)
    if _has_adapters(model):
        from peft import get_peft_model

        whole = get_peft_model(whole, model.peft_config["default"])
    whole.load_state_dict(state, assign=True)
    whole.tie_weights()
    return whole.merge_and_unload() if _has_adapters(model) else whole


def _has_adapters(model) -> bool:
    from peft import PeftModel

    return isinstance(model, PeftModel)


def save_real_model(run: RunFolder, model, tokenizer, config: Config) -> Path:
    """Save the policy of a stage in model.dtype, with its system prompt if that is a brief one.

    Returns the policy's folder.

    `drlib ask --folder` gives a model with a stored prompt no other one.
    """
    folder = save_policy(model, tokenizer, run.path / "policy", getattr(torch, config.model.dtype))
    if config.model.tool_format == "brief" and not is_drlib_tokenizer(tokenizer):
        save_trained_prompt(folder, BRIEF_PROMPT)
    return folder


def save_trained_model(run: RunFolder, trainer, tokenizer, config: Config, metrics: dict) -> dict:
    """Finish a stage of TRL: save the whole model; return `metrics`."""
    model = gather_model(trainer)
    if run.ranks.first:
        save_real_model(run, model, tokenizer, config)
        shutil.rmtree(trainer.args.output_dir)  # its checkpoints
    return run.finish(metrics)


# ---------------------------------------------------------------- engines

# name (engine.name) -> function (model, where, config, routes) -> engine
ENGINES = Registry("engine")


@contextmanager
def create_engine(
    model: PreTrainedModel, where: str, config: Config, routes: bool = False
) -> Iterator[Engine]:
    """Create the engine named by engine.name; close it at the end of the block.

    An engine in this process runs the model itself, on `default_device`.

    Args:
        where: folder or hub id of the model.
        routes: completions must report the experts of their tokens.

    Raises:
        ValueError: an unknown engine, one that cannot run this model, or reports no routes.
        ModuleNotFoundError: vLLM is not installed.
        WeightsDiffer: the server runs other weights.
    """
    create = ENGINES[config.engine.name]
    require(
        not routes or config.engine.name in REPORT_ROUTES,
        "rl.off_policy.routing_replay=r3 replays the routes of the sampling engine, and "
        f"engine.name={config.engine.name} reports none: use engine.name=hf, or engine.name=vllm "
        "on a GPU",
    )
    longest = model.config.get_text_config().max_position_embeddings
    context = config.rollout.max_context_tokens
    require(
        context <= longest,
        f"rollout.max_context_tokens={context} exceeds the {longest} positions of {where}",
    )
    engine = create(model, where, config, routes)
    try:
        yield engine
    finally:
        if hasattr(engine, "close"):
            engine.close()


def _engine_device(config: Config) -> torch.device:
    """Return the device of an engine in this process; the local trainer, its owner, uses CPUs."""
    return default_device() if config.trainer.backend == "trl" else torch.device("cpu")


@ENGINES.register("local")
def _create_local_engine(model, where: str, config: Config, routes: bool) -> Engine:
    return build_local_engine(model.to(_engine_device(config)), config)


def build_local_engine(model, config: Config, **options) -> LocalEngine:
    """Build the local engine for the tiny policy, or for a dense model in model.dtype.

    Raises:
        ValueError: the engine does not support this model.
    """
    options |= {"max_context": config.rollout.max_context_tokens, "lockstep": True}
    if model.config.model_type in TINY_TYPES:
        return LocalEngine(model, **options)
    fault = find_unsupported(model.config)
    require(not fault, f"engine.name=local cannot run {fault}: set engine.name=hf, vllm or server")
    dtype = getattr(torch, config.model.dtype)
    return LocalEngine(model, slots=DENSE_SLOTS, dtype=dtype, **options)


def sampling_forks(config: Config) -> Forks | None:
    """Return the temperature at forking tokens (rl.sampling.fork_temperature); None without."""
    sampling = config.rl.sampling
    if sampling.fork_temperature == 0:
        return None
    return Forks(sampling.fork_entropy, sampling.fork_temperature)


@ENGINES.register("hf")
def _create_transformers_engine(model, where: str, config: Config, routes: bool) -> Engine:
    context = config.rollout.max_context_tokens
    model = model.to(_engine_device(config))
    return TransformersEngine(model, max_context=context, routes=routes)


@ENGINES.register("vllm")
def _create_vllm_engine(model, where: str, config: Config, routes: bool) -> Engine:
    options: dict[str, Any] = {"dtype": config.model.dtype}
    if torch.cuda.is_available():
        options["gpu_memory_utilization"] = config.engine.memory_share
    return VllmEngine(
        model,
        max_context=config.rollout.max_context_tokens,
        max_gap=config.engine.max_mismatch,
        routes=routes,
        **options,
    )


@ENGINES.register("server")
def _create_server_engine(model, where: str, config: Config, routes: bool) -> Engine:
    require(
        bool(config.engine.url),
        "engine.name=server needs engine.url, the address of a vLLM server",
    )
    model_name = config.model.path or where
    replicas = [
        ChatEndpoint(url.strip(), model_name, timeout_s=600.0)
        for url in config.engine.url.split(",")
    ]
    server = VllmServer(
        replicas,
        where,
        router=config.engine.router,
        max_context=config.rollout.max_context_tokens,
        max_gap=config.engine.max_mismatch,
    )
    # Send the weights even if the parity check passes: it cannot detect a difference as small as
    # one step, and the server may have weights of an earlier run.
    ranks = Ranks("trl")
    if ranks.first:
        server.update_weights(model)
        server.version = 0
    ranks.barrier()
    return server


@contextmanager
def open_policy(folder: Path, config: Config) -> Iterator[tuple[Engine, Any, str | None]]:
    """Yield (engine, chat, system prompt) of the policy that a finished stage left in `folder`."""
    if config.trainer.backend == "trl" or config.model.path:
        where = find_policy(folder)
        chat, system = build_chat(load_model_tokenizer(where), config.model.tool_format)
        model = load_model(where, getattr(torch, config.model.dtype)).eval()
        with create_engine(model, where, config) as engine:
            yield engine, chat, system
        return
    model, tokenizer = load_policy(folder / "policy")
    context = config.rollout.max_context_tokens
    engine = LocalEngine(model.eval(), max_context=context, lockstep=True)
    yield engine, ChatIds(tokenizer), None
