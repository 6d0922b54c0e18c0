"""Planner: estimate memory, step time and disk space of a run, and suggest settings that fit.

Everything is computed from settings and the model's configuration (`drlib.training.memory_model`);
nothing is loaded. The step that needs the most memory is planned, that of `sft` or of `rl`.

Not modelled: engines over several GPUs, overlap of generation and weight transfer, waiting for the
longest rollout of a batch.
"""

import math
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import packages_distributions, requires, version
from itertools import product
from pathlib import Path
from typing import Any

from drlib.config import Config, format_setting
from drlib.models.dense_decoder import find_unsupported
from drlib.models.moe import policy_config
from drlib.models.vllm_engine import INSTALL_VLLM
from drlib.training import memory_model
from drlib.training.distributed import gpu_fault
from drlib.training.learner import micro_batch_tokens
from drlib.training.memory_model import Load, MemoryPlan, Shape
from drlib.training.policies import find_local_faults
from drlib.training.pretrain import policy_shape
from drlib.validation import AtLeastOne, Coefficient, Positive, check_fields, require

GIB = 2**30
RESERVED = GIB  # a CUDA context and cuBLAS: assumed, not measured
ENGINE_WORK = GIB  # an engine besides weights and cache (CUDA graphs): assumed
SERVER_SHARE = 0.9  # share of its device that vLLM uses by default
SHORTEST = 1024  # shortest context that is suggested, tokens
LORA_RANK = 32  # suggested rank
SAVED_GROUPS = 12  # stage rl keeps the trajectories of 4 groups at 3 steps
TOKEN_BYTES = 20  # of a saved trajectory
CHECKPOINT_BYTES = 12  # of a trained parameter: float32, with AdamW's two states
HUB = "the hub's model"  # key of the bytes written to the hub's cache
CONTEXT_SHARE = 0.5  # assumed mean length of a context as a share of its maximum
# H100 (vendor's numbers): bfloat16 FLOP/s without sparsity, memory bytes/s, and the assumed
# utilisation in training and decoding
FLOPS, BANDWIDTH = 989e12, 3.35e12
TRAINING_SHARE, DECODING_SHARE = 0.3, 0.5
COUNTS = (  # settings that must be at least 1
    *("processes", "trainer.device_batch", "trainer.pack_tokens", "rollout.max_context_tokens"),
    *("rl.questions", "rl.group", "rl.sampling.oversample"),
)


# ---------------------------------------------------------------- step time


@dataclass(frozen=True)
class Rates:
    """Speeds and shares that determine the time of a step; None: to be estimated.

    Attributes:
        generate_tokens_s: generated tokens per second of one engine.
        train_tokens_s: generated tokens per second that one process trains on.
        push_bytes_s: weight transfer, one engine after another.
        engines: number of engines; None: one per process.
        generated_per_rollout: tokens; None: generated_share of the maximum context.
        trained_share: share of the generated tokens with a gradient.
        tool_seconds: time per step spent waiting for tools only.
    """

    generate_tokens_s: Positive | None = None
    train_tokens_s: Positive | None = None
    push_bytes_s: Positive = 20e9
    engines: AtLeastOne | None = None
    generated_per_rollout: Positive | None = None
    generated_share: Coefficient = 0.25
    trained_share: Coefficient = 1.0
    tool_seconds: Coefficient = 0.0

    def __post_init__(self):
        check_fields(self)


# one process of the local loop: figures/reference/tour/seed0_rl.jsonl, two processes of a laptop
TOUR_RATES = Rates(4700.0, 2600.0, generated_share=0.1, trained_share=0.3)


@dataclass(frozen=True)
class Workload:
    """Work of one step, over all processes: generated and trained tokens, bytes of new weights."""

    generated: float
    trained: float
    push_bytes: float = 0.0


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step.

    Attributes:
        generate: with all engines.
        knee: number of engines beyond which the learner is slower.
        staleness: minimum age of rollouts in asynchronous training, in updates.
    """

    generate: float
    train: float
    sync: float
    engines: int
    knee: int
    staleness: int

    @property
    def synchronous(self) -> float:
        return self.generate + self.train + self.sync

    @property
    def asynchronous(self) -> float:
        return max(self.generate, self.train) + self.sync

    @property
    def learner_busy(self) -> float:
        """Share of an asynchronous step."""
        return self.train / self.asynchronous

    @property
    def engines_busy(self) -> float:
        """Share of an asynchronous step."""
        return self.generate / self.asynchronous


def step_time(work: Workload, rates: Rates, *, engines: int = 1, learners: int = 1) -> StepTime:
    """Compute the seconds of a step with N engines (de Freitas: actors and learners).

    Synchronous: T = T_generate / N + T_train + T_sync. Asynchronous: T = max(T_generate / N,
    T_train) + T_sync. Engines beyond the knee N* = T_generate / T_train wait for the learner. If
    each engine generates whole batches, rollouts are ceil(T_generate / T) updates old.

    Raises:
        ValueError: a rate is None, or there is no engine or learner.
    """
    require(engines >= 1 and learners >= 1, "a step needs at least one engine and one learner")
    if rates.generate_tokens_s is None or rates.train_tokens_s is None:
        raise ValueError("a step needs rates of generation and training: measure or estimate them")
    alone = work.generated / rates.generate_tokens_s
    train = work.trained / rates.train_tokens_s / learners
    sync = work.push_bytes * engines / rates.push_bytes_s
    generate = alone / engines + rates.tool_seconds
    knee = max(1, math.ceil(alone / train - 1e-9)) if train > 0 else engines
    update = max(generate, train) + sync
    stale = math.ceil((alone + rates.tool_seconds) / update - 1e-9)
    return StepTime(generate, train, sync, engines, knee, stale)


def estimate_rates(rates: Rates, shape: Shape, load: Load, cache: int, context: int) -> Rates:
    """Fill in missing rates from an H100's FLOP/s and memory bandwidth.

    Args:
        cache: bytes of one engine's KV cache.
        context: maximum tokens of a rollout.
    """
    length = context * CONTEXT_SHARE
    running = max(1.0, cache / (shape.kv_bytes(load.itemsize) * length))
    # a decoding step reads the weights that some rollout needs, and the cache of all rollouts
    idle: float = shape.parameters - shape.active  # for one token
    if shape.experts > shape.chosen:
        idle *= (1 - shape.chosen / shape.experts) ** (running - 1)
    read = (shape.parameters - idle) * load.itemsize + max(cache, 0)
    passes = 1 + (2 if load.full else 1) + load.checkpointing  # forward, backward, recomputation
    by_token = passes * (2 * shape.active + 2 * shape.layers * shape.query_width * length)
    generated = rates.generated_per_rollout or rates.generated_share * context
    generate = running * DECODING_SHARE * BANDWIDTH / read
    # the learner also processes prompts and pages
    train = TRAINING_SHARE * FLOPS / by_token * min(1.0, generated / length)
    return replace(
        rates,
        generate_tokens_s=rates.generate_tokens_s or generate,
        train_tokens_s=rates.train_tokens_s or train,
        generated_per_rollout=generated,
    )


def parse_rates(numbers: Mapping) -> Rates:
    """Build rates from a JSON object; ValueError for unknown names and wrong values."""
    try:
        return Rates(**numbers)
    except TypeError as error:
        known = ", ".join(field.name for field in fields(Rates))
        raise ValueError(
            f"wrong rates ({error}): pass a JSON object of numbers: {known}"
        ) from error


def read_workload(row: Mapping) -> Workload:
    """Return the work of a measured step, a row of metrics.jsonl."""
    return Workload(row["generated"] * row["rollouts"], row["tokens"] * row["trained_share"])


def measure_rates(rows: Sequence[Mapping], processes: int = 1) -> Rates:
    """Compute rates from the metrics.jsonl of stage `rl`; each process is an engine and a learner.

    Raises:
        ValueError: a column is missing, or no step had a gradient.
    """
    try:
        work = [read_workload(row) for row in rows]
        rollouts = sum(row["rollouts"] for row in rows)
        generating = sum(row["rollout_seconds"] for row in rows)
        training = sum(row["seconds"] for row in rows) - generating
    except KeyError as error:
        raise ValueError(f"metrics lack {error}: pass the metrics.jsonl of a stage `rl`") from error
    generated, trained = sum(w.generated for w in work), sum(w.trained for w in work)
    require(min(trained, generating, training) > 0, "no step of these metrics has a gradient")
    return Rates(
        generate_tokens_s=generated / generating / processes,
        train_tokens_s=trained / training / processes,
        engines=processes,
        generated_per_rollout=generated / rollouts,
        trained_share=trained / generated,
    )


# ---------------------------------------------------------------- memory of a run


def load_shape(config: Config) -> Shape:
    """Return the sizes of the model that these settings train; nothing is downloaded.

    Raises:
        ValueError: the model's configuration is not available.
    """
    if config.model.path == "":
        return memory_model.count_shape(policy_config(policy_shape(config)))
    return memory_model.count_shape(memory_model.load_configuration(config.model_path))


@dataclass(frozen=True)
class Fit:
    """Memory of the largest step on one device of `device` bytes.

    Attributes:
        cache: bytes of one engine's KV cache.
        contexts: contexts of maximum length that it holds.
    """

    stage: str
    load: Load
    memory: MemoryPlan
    device: int
    cache: int
    contexts: int

    @property
    def fault(self) -> str:
        """Reason that the step does not fit; empty if it does."""
        need, parts = self.memory.total, self.memory.parts
        if need > self.device:
            part = max(parts, key=parts.__getitem__)
            return (
                f"does not fit: a step of {self.stage} needs {gib(need)} of {gib(self.device)}, "
                f"most of it {part} ({gib(parts[part])})"
            )
        if self.contexts < 1:
            left = gib(max(self.cache, 0))
            return f"does not fit: an engine has {left} left for its KV cache, less than a context"
        return ""


def list_loads(config: Config) -> dict[str, Load]:
    """Return the micro-batch of each stage that trains."""
    trainer, context = config.trainer, config.rollout.max_context_tokens
    has_reference = config.rl.loss.kl_coef > 0
    if trainer.backend == "local":
        load = Load(
            dtype="float32",
            rows=1,
            tokens=micro_batch_tokens(config),
            lora_rank=trainer.lora_rank,
            processes=config.processes,
            chunked=config.rl.loss.chunked_logprobs,
            trainer="local",
            reference=has_reference,
        )
        return {"rl": load}
    common = Load(
        dtype=config.model.dtype,
        rows=trainer.device_batch,
        tokens=context,
        lora_rank=trainer.lora_rank,
        checkpointing=trainer.gradient_checkpointing,
        processes=config.processes,
        fsdp=trainer.fsdp,
    )
    # a single row has no padding (`trl.drop_dead_rows`)
    loads = {"rl": replace(common, padded=trainer.device_batch > 1, reference=has_reference)}
    if config.sft.steps + config.pretrain.steps > 0:
        loads["sft"] = replace(common, tokens=trainer.pack_tokens)
    return loads


def fit_memory(config: Config, shape: Shape, device: int) -> Fit:
    """Compute the memory of the largest step on one device of `device` bytes."""
    loads = list_loads(config)
    weights = shape.parameters * loads["rl"].itemsize
    beside = 0
    if config.engine.name == "vllm":
        beside = int(config.engine.memory_share * device)
    elif config.engine.name in ("hf", "local") and loads["rl"].fsdp:
        # the generating process needs a copy of all weights
        beside = weights
    reserved = RESERVED if config.trainer.backend == "trl" else 0
    plans = {
        name: memory_model.memory_plan(shape, load, beside, reserved)
        for name, load in loads.items()
    }
    stage = max(plans, key=lambda name: plans[name].total)
    if config.engine.name in ("vllm", "server"):
        own = beside if config.engine.name == "vllm" else int(SERVER_SHARE * device)
        cache = own - weights - ENGINE_WORK
    else:  # the trained weights generate; nothing is trained meanwhile
        kept = ("weights", "reference", "optimiser", "engine", "reserved")
        cache = device - sum(plans[stage].parts.get(name, 0) for name in kept)
    context = shape.kv_bytes(loads["rl"].itemsize) * config.rollout.max_context_tokens
    contexts = min(max(cache, 0) // context, count_rollouts(config))
    return Fit(stage, loads[stage], plans[stage], device, cache, contexts)


def count_rollouts(config: Config) -> int:
    """Return the number of rollouts per step."""
    return config.rl.questions * config.rl.group * config.rl.sampling.oversample


def find_remedy(config: Config, shape: Shape, device: int) -> dict[str, Any]:
    """Return the fewest changed settings that fit, the least costly first; {} if none do."""
    context, processes = config.rollout.max_context_tokens, config.processes
    limits = ["rollout.max_context_tokens"]
    options: list[list[dict[str, Any]]] = []
    if config.trainer.backend == "trl":
        limits += ["rollout.max_turn_tokens", "trainer.pack_tokens"]
        sizes = [n for n in (processes, 2, 4, 8, 16) if n >= max(2, processes)]
        options = [
            [{"trainer.fsdp": True, "processes": n} for n in sizes],
            [] if config.trainer.lora_rank else [{"trainer.lora_rank": LORA_RANK}],
            [{"trainer.device_batch": 1}],
            [{"trainer.gradient_checkpointing": True}],
        ]
    # a shorter context, with the limits that must not exceed it
    halves = [half for n in range(1, 20) if (half := context >> n) >= SHORTEST]
    options.insert(0, [{n: half for n in limits if config.get(n) > half} for half in halves])
    if config.engine.name == "vllm":
        options.insert(0, [{"engine.memory_share": n / 10} for n in range(1, 9)])
    # the last option varies fastest, so that it comes first among equally many changes
    choices = product(*([{}, *option] for option in options))
    for chosen in sorted(choices, key=lambda changes: sum(map(bool, changes))):
        given = {name: value for changes in chosen for name, value in changes.items()}
        changed = config.derive(**given)
        if not check_settings(changed) and not fit_memory(changed, shape, device).fault:
            return {name: value for name, value in given.items() if value != config.get(name)}
    return {}


def gib(n: float) -> str:
    """Format bytes."""
    return f"{n / GIB:.2f} GiB" if n >= GIB / 100 else f"{n / 2**20:.2f} MiB"


# ---------------------------------------------------------------- checks of settings and machine


def check_settings(config: Config) -> list[str]:
    """Return one message per combination of settings that excludes itself.

    Unknown worlds and missing files are not checked: `drlib train` refuses them at its start.
    """
    trainer, engine, rollout = config.trainer, config.engine, config.rollout
    is_trl, faults = trainer.backend == "trl", []
    if not is_trl:
        faults = find_local_faults(config)
    if is_trl and trainer.router_bias_rate > 0:
        faults.append("trainer.router_bias_rate needs trainer.backend=local")
    if is_trl and trainer.fsdp and config.processes < 2:
        faults.append("trainer.fsdp=true shards over processes: set processes to 2 or more")
    if rollout.max_turn_tokens > rollout.max_context_tokens:
        faults.append(
            f"rollout.max_turn_tokens={rollout.max_turn_tokens} is larger than "
            f"rollout.max_context_tokens={rollout.max_context_tokens}: lower it"
        )
    if engine.name == "local" and config.model.path:
        fault = find_unsupported(memory_model.load_configuration(config.model_path))
        if fault:
            faults.append(f"engine.name=local cannot run {fault}: set engine.name=hf or vllm")
    if engine.name == "server" and not engine.url:
        faults.append("engine.name=server needs engine.url, the address of a vLLM server")
    if engine.name == "vllm" and not 0 < engine.memory_share < 1:
        faults.append(f"engine.memory_share={engine.memory_share} must be above 0 and below 1")
    if config.world.name.startswith("live:"):
        url = config.world.name.removeprefix("live:")
        faults.append(
            f"world.name=live:{url}: a live site may change during training: run "
            f"`drlib crawl {url} FOLDER`, then set world.name=folder:FOLDER"
        )
    return faults


def check_machine(config: Config, disk: dict[str, int], runs: Path) -> list[str]:
    """Return one message per thing that this machine lacks: GPUs, vLLM, or space on a disk.

    Args:
        disk: bytes to be written, from `estimate_disk`.
        runs: folder to which the run is written; it need not exist.
    """
    import torch

    is_trl, is_vllm = config.trainer.backend == "trl", config.engine.name == "vllm"
    faults = [
        gpu_fault(config.processes, torch.cuda.device_count()) if is_trl else "",
        check_vllm() if is_vllm else "",
        *_check_disks(disk, runs),
    ]
    return [fault for fault in faults if fault]


def check_vllm() -> str:
    """Return why this environment's vLLM cannot be the engine; empty if it can."""
    names = packages_distributions().get("vllm")
    if not names:
        return f"vLLM is not installed: {INSTALL_VLLM}"
    found = version(names[0])
    pins = [re.match(r"vllm==([\w.]+)", each) for each in requires("drlib") or []]
    (wanted,) = {pin.group(1) for pin in pins if pin}
    if found.partition("+")[0] == wanted:  # "+cu129" marks a build for one CUDA version
        return ""
    return f"vLLM {found} is installed, drlib needs {wanted}: {INSTALL_VLLM}"


def _check_disks(disk: dict[str, int], runs: Path) -> list[str]:
    """Return one message per disk with too little free space."""
    from transformers.utils import hub

    # the run and the hub's cache may be on the same disk
    disks: dict[Path, Counter[Path]] = defaultdict(Counter)  # mount point -> folder -> bytes
    for kind, size in disk.items():
        folder = Path(hub.constants.HF_HUB_CACHE) if kind == HUB else runs
        path = folder.resolve()
        mount = next(each for each in (path, *path.parents) if each.is_mount())
        disks[mount][folder] += size
    return [
        f"the run writes {sizes.total() / GIB:.2f} GiB to {' and '.join(map(str, +sizes))}, "
        f"which has {free / GIB:.2f} GiB free: free some, or use another disk "
        "(--runs; HF_HOME for the hub's models)"
        for mount, sizes in disks.items()
        if sizes.total() > (free := shutil.disk_usage(mount).free)
    ]


# ---------------------------------------------------------------- plan


@dataclass(frozen=True)
class Plan:
    """Estimates of a run.

    Attributes:
        remedy: settings that fit if these do not; {} if none were found.
        disk: bytes by kind.
        faults: messages about settings.
        notes: assumptions.
    """

    config: Config
    shape: Shape
    fit: Fit
    rates: Rates
    work: Workload
    time: StepTime
    disk: dict[str, int]
    remedy: dict[str, Any]
    faults: list[str]
    notes: list[str]

    @property
    def errors(self) -> list[str]:
        """Reasons not to start the run."""
        if not self.fit.fault:
            return self.faults
        cure = " ".join(f"--{format_setting(*each)}" for each in self.remedy.items())
        advice = f"fits with {cure}" if cure else "use a smaller model or larger devices"
        return [*self.faults, f"{self.fit.fault}; {advice}"]


def plan(config: Config, device_gb: float | None = None, rates: Rates | None = None) -> Plan:
    """Plan a run.

    Args:
        device_gb: GiB of one training device; None: 80, or this machine's memory per process for
            the local trainer.
        rates: as far as known.

    Raises:
        ValueError: the model's sizes are unknown, or a setting cannot be planned.
    """
    for name in COUNTS:
        require(config.get(name) >= 1, f"{name} must be at least 1")
    is_local, context = config.trainer.backend == "local", config.rollout.max_context_tokens
    if device_gb is None:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
        device_gb = memory / config.processes if is_local else 80.0
    require(device_gb > 0, f"device_gb must be above 0, got {device_gb}")
    rates = rates or (TOUR_RATES if is_local else Rates())
    faults, shape = check_settings(config), load_shape(config)
    if context > shape.positions:
        faults.append(
            f"rollout.max_context_tokens={context} exceeds the model's {shape.positions} positions"
        )
    device = int(device_gb * GIB)
    fit = fit_memory(config, shape, device)
    remedy = find_remedy(config, shape, device) if fit.fault else {}

    # time; an engine does not need more cache than all rollouts of a step
    notes, rollouts = _list_notes(config, rates), count_rollouts(config)
    cache = min(fit.cache, rollouts * context * shape.kv_bytes(fit.load.itemsize))
    rates = estimate_rates(rates, shape, fit.load, cache, context)
    generated = rollouts * (rates.generated_per_rollout or 0.0)
    is_remote = config.engine.name in ("vllm", "server")
    push = shape.parameters * fit.load.itemsize if is_remote else 0
    work = Workload(generated, generated * rates.trained_share, push)
    engines = rates.engines or config.processes
    time = step_time(work, rates, engines=engines, learners=config.processes)

    steps, path = (config.pretrain.steps, config.sft.steps, config.rl.steps), config.model_path
    is_downloaded = bool(path) and memory_model.find_folder(path) is None
    disk = estimate_disk(shape, fit.load, steps, config.rl.group * context, is_downloaded)
    return Plan(config, shape, fit, rates, work, time, disk, remedy, faults, notes)


def estimate_disk(
    shape: Shape, load: Load, steps: Sequence[int], group_tokens: int, is_downloaded: bool
) -> dict[str, int]:
    """Estimate the bytes that a run writes, by kind.

    Args:
        steps: optimizer steps of each stage; a stage without steps has no final model.
        group_tokens: tokens of the rollouts of one group.
        is_downloaded: the model comes from the hub.
    """
    model = shape.parameters * load.itemsize
    checkpoints = 3 if load.trainer == "trl" else 2  # TRL keeps two and writes a third
    return {
        "final models": model * sum(n > 0 for n in steps),
        "checkpoints": checkpoints * CHECKPOINT_BYTES * shape.trained_parameters(load.lora_rank),
        "rollouts": SAVED_GROUPS * group_tokens * TOKEN_BYTES,
        "metrics": 1000 * sum(steps),
        HUB: model if is_downloaded else 0,
    }


def _list_notes(config: Config, rates: Rates) -> list[str]:
    """Return the assumptions of a plan."""
    is_trl, notes = config.trainer.backend == "trl", []
    if rates.generate_tokens_s is None or rates.train_tokens_s is None:
        source = "an H100's specification" if is_trl else "the reference runs of the tour"
        notes.append(f"missing rates are estimated from {source}, not measured")
    if not rates.generated_per_rollout:
        notes.append(f"a rollout is assumed to generate {rates.generated_share:.0%} of its context")
    if is_trl:
        notes.append("a CUDA context and an engine's graphs are assumed to take 1 GiB each")
    if is_trl and config.trainer.device_batch > 1:
        notes.append(
            "rows of a micro-batch are padded, which needs a T x T mask in each layer; "
            "trainer.device_batch=1 needs none"
        )
    if config.engine.name == "server" and not rates.engines:
        count = config.processes
        notes.append(f"one engine per process is assumed ({count}): set the rate `engines`")
    return notes


def render(done: Plan) -> str:
    """Format the plan as text, without errors."""
    config, shape, fit, time = done.config, done.shape, done.fit, done.time
    needs, load, rollouts = fit.memory, fit.load, count_rollouts(config)
    context, rates = config.rollout.max_context_tokens, done.rates
    method = "all" if load.full else f"LoRA of rank {load.lora_rank}"
    parts = needs.parts | {"- shared": needs.shared, "total": needs.total}
    table = "\n".join(f"  {part:<12} {gib(n):>11}" for part, n in parts.items() if n)
    # both alternatives of two choices
    kept, checkpointed = (
        memory_model.activation_bytes(shape, replace(load, checkpointing=is_on))
        for is_on in (False, True)
    )
    logits, chunked = (
        memory_model.head_bytes(shape, replace(load, chunked=is_on)) for is_on in (False, True)
    )
    disk = ", ".join(f"{kind} {gib(n)}" for kind, n in done.disk.items() if n)
    text = f"""\
model        {config.model.path or "the tiny policy"}
parameters   {_count(shape.parameters)}, active per token: {_count(shape.active)}, \
trained: {_count(shape.trained_parameters(load.lora_rank))} ({method})
device       {gib(fit.device)}, {config.processes} training{", sharded" if load.fsdp else ""}; \
largest step: {fit.stage}, micro-batches of {load.rows} x {load.tokens} tokens
{table}
  activations: {gib(kept)}, with gradient checkpointing {gib(checkpointed)}
  logits: {gib(logits)}, with chunked log-probabilities {gib(chunked)}
engine       {config.engine.name} x {time.engines}: KV cache {gib(max(fit.cache, 0))}, \
{_count(shape.kv_bytes(load.itemsize))}B per token, {fit.contexts} full contexts
step         {rollouts} rollouts of at most {context} tokens: {_count(rollouts * context)}, \
generated: {_count(done.work.generated)}
seconds      generate {time.generate:.3g}, train {time.train:.3g}, sync {time.sync:.3g}; \
synchronous {time.synchronous:.3g}, asynchronous {time.asynchronous:.3g}
  knee: {time.knee} engines; asynchronous: staleness {time.staleness}, \
learner busy {time.learner_busy:.0%}, engines busy {time.engines_busy:.0%}
  {config.rl.steps} steps: {config.rl.steps * time.synchronous / 3600:.3g} hours; \
rates: {rates.generate_tokens_s:.0f} tokens/s per engine, \
{rates.train_tokens_s:.0f} per training process
disk         {gib(sum(done.disk.values()))}: {disk}"""
    return "\n".join([text, *(f"note         {note}" for note in done.notes)])


def _count(n: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if n >= size:
            return f"{n / size:.3g}{letter}"
    return f"{n:.0f} "
