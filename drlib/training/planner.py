"""Planner: estimate memory, step time and disk space of a run, and suggest settings that fit.

Everything is computed from settings and the model's configuration (`drlib.training.memory_model`);
nothing is loaded. The step that needs the most memory is planned, that of `sft` or of `rl`.

Not modelled: engines over several GPUs, overlap of generation and weight transfer, waiting for the
longest rollout of a batch.
"""

import dataclasses
import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib.metadata import packages_distributions, requires, version
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from drlib.config import PATH_WORLDS, ROOT, Config
from drlib.endpoint import MAX_REPLY, ChatEndpoint, EndpointError
from drlib.models.vllm_engine import INSTALL_VLLM
from drlib.models.vllm_server import REMEDY
from drlib.registry import suggest_name
from drlib.training import memory_model
from drlib.training.distributed import gpu_fault
from drlib.training.learner import MICRO_BATCH_CONTEXTS
from drlib.training.memory_model import Load, MemoryPlan, Shape, find_folder, load_shape
from drlib.training.stages import WEIGHTS
from drlib.validation import require
from drlib.worlds import WORLDS

GIB = 2**30
SHORTEST = 1024  # shortest context that is suggested, tokens
LORA_RANK = 32  # suggested rank
SAVED_GROUPS, SAVES, TOKEN_BYTES = 4, 3, 20  # trajectories that stage rl keeps
CHECKPOINTS = 3  # of TRL: two, and one that is being written
HUB = "the hub's model"  # key of the bytes written to the hub's cache
SERVER_TIMEOUT_S = 5.0
# H100 (vendor's numbers): bfloat16 FLOP/s without sparsity, memory bytes/s, and the assumed
# utilisation in training and decoding
FLOPS, BANDWIDTH = 989e12, 3.35e12
TRAINING_SHARE, DECODING_SHARE = 0.3, 0.5


# ---------------------------------------------------------------- step time


@dataclass(frozen=True)
class Rates:
    """Speeds and shares that determine the time of a step; None: to be estimated.

    Attributes:
        generate_tokens_s: generated tokens per second of one engine.
        train_tokens_s: generated tokens per second that one process trains on.
        push_bytes_s: weight transfer, one engine after another.
        engines: number of engines; 0: one per process.
        generated_per_rollout: tokens; 0: generated_share of the maximum context.
        context_share: mean length of a context as a share of its maximum.
        trained_share: share of the generated tokens with a gradient.
        tool_seconds: time per step spent waiting for tools only.
    """

    generate_tokens_s: float | None = None
    train_tokens_s: float | None = None
    push_bytes_s: float = 20e9
    engines: int = 0
    generated_per_rollout: float = 0.0
    generated_share: float = 0.25
    context_share: float = 0.5
    trained_share: float = 1.0
    tool_seconds: float = 0.0

    def __post_init__(self):
        for name, value in vars(self).items():
            number = isinstance(value, int | float) and math.isfinite(value) and value >= 0
            require(
                value is None or number, f"rate {name} must be a number and not negative: {value!r}"
            )
        for name in ("generate_tokens_s", "train_tokens_s", "push_bytes_s"):
            require(getattr(self, name) != 0, f"rate {name} must be above 0")


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
    length = context * rates.context_share
    running = max(1.0, cache / (shape.kv_bytes(load.itemsize) * length))
    # a decoding step reads the weights that some rollout needs, and the cache of all rollouts
    idle: float = shape.parameters - shape.active  # for one token
    if shape.experts > shape.chosen:
        idle *= (1 - shape.chosen / shape.experts) ** (running - 1)
    read = (shape.parameters - idle) * load.itemsize + max(cache, 0)
    passes = 1 + (2 if load.full else 1) + load.checkpointing  # forward, backward, recomputation
    by_token = passes * (2 * shape.active + 2 * shape.layers * shape.query_width * length)
    generated = rates.generated_per_rollout or rates.generated_share * context
    guess = {
        "generate_tokens_s": running * DECODING_SHARE * BANDWIDTH / read,
        # the learner also processes prompts and pages
        "train_tokens_s": TRAINING_SHARE * FLOPS / by_token * min(1.0, generated / length),
    }
    missing: dict[str, Any] = {n: v for n, v in guess.items() if getattr(rates, n) is None}
    return dataclasses.replace(rates, **missing)


def parse_rates(numbers: Mapping) -> Rates:
    """Build rates from a JSON object; ValueError for unknown names and wrong values."""
    known = [field.name for field in dataclasses.fields(Rates)]
    require(isinstance(numbers, Mapping), "rates must be one JSON object of names and numbers")
    for name in numbers:
        require(name in known, f"unknown rate {name!r}: {suggest_name(name, known)}")
    return Rates(**numbers)


def read_workload(row: Mapping) -> Workload:
    """Return the work of a measured step, a row of metrics.jsonl."""
    return Workload(row["generated"] * row["rollouts"], row["tokens"] * row["trained_share"])


def measure_rates(rows: Sequence[Mapping], processes: int = 1) -> Rates:
    """Compute rates from the metrics.jsonl of stage `rl`; each process is an engine and a learner.

    Raises:
        ValueError: there are no rows, a column is missing, or no step had a gradient.
    """
    require(len(rows) > 0, "no rows of metrics: rates cannot be measured")
    for name in ("generated", "rollouts", "tokens", "trained_share", "seconds", "rollout_seconds"):
        require(
            all(name in row for row in rows),
            f"rows of metrics lack {name!r}: pass the metrics.jsonl of a stage `rl`",
        )
    work = [read_workload(row) for row in rows]
    generated, trained = sum(w.generated for w in work), sum(w.trained for w in work)
    generating = sum(row["rollout_seconds"] for row in rows)
    training = sum(row["seconds"] for row in rows) - generating
    require(trained > 0 and generating > 0 and training > 0, "no step in these rows has a gradient")
    return Rates(
        generate_tokens_s=generated / generating / processes,
        train_tokens_s=trained / training / processes,
        engines=processes,
        generated_per_rollout=generated / sum(row["rollouts"] for row in rows),
        trained_share=trained / generated,
    )


# ---------------------------------------------------------------- memory of a run


@dataclass(frozen=True)
class Serving:
    """Engines: their number, KV-cache bytes of one, the full contexts that it holds, and the bytes
    that it takes of a training device."""

    engines: int
    cache: int
    contexts: int
    beside: int


@dataclass(frozen=True)
class Fit:
    """Memory of the largest step on one device of `device` bytes."""

    stage: str
    load: Load
    memory: MemoryPlan
    serving: Serving
    device: int

    @property
    def fault(self) -> str:
        """Reason that the step does not fit; empty if it does."""
        need, part = self.memory.total, self.memory.largest
        if need > self.device:
            return (
                f"does not fit: a step of {self.stage} needs {gib(need)} of {gib(self.device)}, "
                f"most of it {part} ({gib(self.memory.parts[part])})"
            )
        if self.serving.contexts < 1:
            cache = gib(max(self.serving.cache, 0))
            return f"does not fit: an engine has {cache} left for its KV cache, less than a context"
        return ""


def list_loads(config: Config) -> dict[str, Load]:
    """Return the micro-batch of each stage that trains."""
    is_trl, trainer = config.trainer.backend == "trl", config.trainer
    common = Load(
        dtype=config.model.dtype if is_trl else "float32",
        rows=max(1, trainer.device_batch) if is_trl else MICRO_BATCH_CONTEXTS,
        tokens=config.rollout.max_context_tokens,
        lora_rank=trainer.lora_rank if is_trl else 0,
        checkpointing=trainer.gradient_checkpointing and is_trl,
        processes=max(1, config.processes),
        fsdp=trainer.fsdp and is_trl,
        chunked=is_trl,
        trainer=trainer.backend,
    )
    # a single row has no padding (`trl.drop_dead_rows`)
    is_padded = is_trl and trainer.device_batch > 1
    has_reference = config.rl.loss.kl_coef > 0
    loads = {"rl": dataclasses.replace(common, padded=is_padded, reference=has_reference)}
    if is_trl and config.sft.steps + config.pretrain.steps > 0:
        loads["sft"] = dataclasses.replace(common, tokens=trainer.pack_tokens)
    return loads


def fit_memory(config: Config, shape: Shape, device: int, engines: int = 0) -> Fit:
    """Compute the memory of the largest step; engines: 0 for one per process."""
    loads = list_loads(config)
    beside = 0
    if config.engine.name == "vllm":
        beside = int(config.engine.memory_share * device)
    elif config.engine.name in ("hf", "local") and loads["rl"].fsdp:
        # the generating process needs a copy of all weights
        beside = shape.parameters * loads["rl"].itemsize
    reserved = memory_model.RESERVED if config.trainer.backend == "trl" else 0
    plans = {
        stage: (load, memory_model.memory_plan(shape, load, beside, reserved))
        for stage, load in loads.items()
    }
    stage = max(plans, key=lambda name: plans[name][1].total)
    load, needs = plans[stage]
    weights = shape.parameters * load.itemsize
    if config.engine.name == "vllm":
        cache = beside - weights - memory_model.ENGINE_WORK
    elif config.engine.name == "server":
        cache = int(memory_model.SERVER_SHARE * device) - weights - memory_model.ENGINE_WORK
    else:  # the trained weights generate; nothing is trained meanwhile
        kept = ("weights", "reference", "optimiser", "engine", "reserved")
        cache = device - sum(needs.parts.get(name, 0) for name in kept)
    contexts = memory_model.rollouts_at_once(
        shape, load.itemsize, cache, config.rollout.max_context_tokens
    )
    contexts = min(contexts, count_rollouts(config))
    serving = Serving(engines or max(1, config.processes), cache, contexts, beside)
    return Fit(stage, load, needs, serving, device)


def count_rollouts(config: Config) -> int:
    """Return the number of rollouts per step."""
    return config.rl.questions * config.rl.group * config.rl.sampling.oversample


def find_remedy(config: Config, shape: Shape, device: int) -> dict[str, Any]:
    """Return the least costly changed settings that fit; {} if none do."""
    for changes in _list_changes(config):
        changed = config.derive(**changes)
        if not check_settings(changed) and not fit_memory(changed, shape, device).fault:
            return changes
    return {}


def _list_changes(config: Config) -> Iterator[dict[str, Any]]:
    """Yield changes to try, the least costly first: each alone, then combinations."""
    lengths, length = [], config.rollout.max_context_tokens // 2
    while length >= SHORTEST:
        lengths.append(_shorten_context(config, length))
        length //= 2
    if config.trainer.backend == "local":
        yield from lengths
        return
    trainer, processes = config.trainer, config.processes
    cheap: list[dict[str, Any]] = []
    if not trainer.gradient_checkpointing:
        cheap.append({"trainer.gradient_checkpointing": True})
    if trainer.device_batch > 1:
        cheap.append({"trainer.device_batch": 1})
    if not trainer.lora_rank:
        cheap.append({"trainer.lora_rank": LORA_RANK})
    shards = [{"trainer.fsdp": True, "processes": n} for n in (2, 4, 8, 16) if n > processes]
    if not trainer.fsdp and processes > 1:
        shards.insert(0, {"trainer.fsdp": True})
    is_vllm = config.engine.name == "vllm"
    engine = [{"engine.memory_share": n / 10} for n in range(1, 9)] if is_vllm else []
    yield from (*cheap, *shards, *lengths, *engine)
    combined = {name: value for change in cheap for name, value in change.items()}
    for shorter in ({}, *lengths):
        for share in ({}, *engine):
            for sharded in ({}, *shards):
                yield sharded | combined | shorter | share


def _shorten_context(config: Config, tokens: int) -> dict[str, Any]:
    """Return settings of a shorter context, with the limits that must not exceed it."""
    changes = {"rollout.max_context_tokens": tokens}
    if config.trainer.backend == "trl":
        names = ("trainer.pack_tokens", "rollout.max_turn_tokens")
        changes |= {name: tokens for name in names if config.get(name) > tokens}
    return changes


def gib(n: float) -> str:
    """Format bytes."""
    return f"{n / GIB:.2f} GiB" if n >= GIB / 100 else f"{n / 2**20:.2f} MiB"


# ---------------------------------------------------------------- checks of settings and machine


def check_settings(config: Config) -> list[str]:
    """Return one message per missing path and per combination of settings that excludes itself."""
    trainer, engine, model = config.trainer, config.engine, config.model
    is_local, rollout = trainer.backend == "local", config.rollout
    is_vllm, is_tiny = engine.name == "vllm", model.path == ""
    needs_trl, context = "needs trainer.backend=trl", rollout.max_context_tokens
    counts = (
        *("processes", "trainer.device_batch", "trainer.pack_tokens"),
        *("rollout.max_context_tokens", "rl.questions", "rl.group", "rl.sampling.oversample"),
    )
    rules = {  # message -> applies
        f"trainer.lora_rank={trainer.lora_rank} {needs_trl}": is_local and trainer.lora_rank > 0,
        f"trainer.fsdp=true {needs_trl}": is_local and trainer.fsdp,
        f"trainer.gradient_checkpointing=true {needs_trl}": is_local
        and trainer.gradient_checkpointing,
        f"model.dtype={model.dtype} {needs_trl}": is_local and model.dtype != "float32",
        f"model.path={model.path!r} {needs_trl}": is_local and not is_tiny,
        "trainer.router_bias_rate needs trainer.backend=local": not is_local
        and trainer.router_bias_rate > 0,
        "trainer.fsdp=true shards over processes: set processes to 2 or more": not is_local
        and trainer.fsdp
        and config.processes < 2,
        f"rollout.max_turn_tokens={rollout.max_turn_tokens} is larger than "
        f"rollout.max_context_tokens={context}: lower it": rollout.max_turn_tokens > context,
        "engine.name=local runs the tiny policy only: set engine.name=hf or vllm": not is_tiny
        and engine.name == "local",
        "engine.name=server needs engine.url, the address of a vLLM server": engine.name == "server"
        and not engine.url,
        f"engine.memory_share={engine.memory_share} must be above 0 and below 1": is_vllm
        and not 0 < engine.memory_share < 1,
        **{f"{name} must be at least 1": config.get(name) < 1 for name in counts},
    }
    start = ROOT / config.rl.start
    is_missing = bool(config.rl.start) and not (start / WEIGHTS).exists()
    rules[f"rl.start={config.rl.start!r}: there is no policy in {start}"] = is_missing
    return [message for message, applies in rules.items() if applies] + _check_world(config)


def _check_world(config: Config) -> list[str]:
    name = config.world.name
    kind, _, rest = name.partition(":")
    pattern = next((known for known in WORLDS if known.partition(":")[0] == kind), None)
    if pattern is None or bool(rest) != (":" in pattern):
        return [f"unknown world {name!r}: {suggest_name(name, WORLDS)}"]
    if kind == "live":
        return [
            f"world.name={name!r}: a live site may change during training: run "
            f"`drlib crawl {rest} FOLDER`, then set world.name=folder:FOLDER"
        ]
    path = Path(config.world_name.partition(":")[2])
    if kind in PATH_WORLDS and not (path.is_dir() if kind == "folder" else path.is_file()):
        return [f"world.name={name!r}: there is no {path}"]
    return []


def check_machine(config: Config, disk: dict[str, int], runs: Path = ROOT / "runs") -> list[str]:
    """Return one message per thing that this machine lacks for the run.

    Args:
        disk: bytes to be written, from `estimate_disk`.
        runs: folder to which the run is written; it need not exist.
    """
    import torch

    faults = []
    if config.trainer.backend == "trl":
        faults.append(gpu_fault(config.processes, torch.cuda.device_count()))
    if config.engine.name == "vllm":
        faults.append(check_vllm())
    elif config.engine.name == "server" and config.engine.url:
        faults.append(check_server(config.engine.url, config.model.path))
    return [*filter(None, faults), *_check_disks(disk, runs)]


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


def check_server(url: str, model: str) -> str:
    """Return why the server cannot be the engine of `model` ("": any model); empty if it can."""
    prefix, start = f"engine.url={url!r}", f"start a vLLM server there, or change it; {REMEDY}"
    try:
        address = ChatEndpoint(url, model).url + "/models"
        with urlopen(address, timeout=SERVER_TIMEOUT_S) as reply:
            names = [each["id"] for each in json.loads(reply.read(MAX_REPLY))["data"]]
    except EndpointError as fault:  # not an address
        return f"engine.url: {fault}"
    except HTTPError as fault:
        return f"{prefix}: the list of models was refused (HTTP {fault.code}): {start}"
    except (OSError, HTTPException) as fault:
        return f"{prefix}: no server answers ({getattr(fault, 'reason', fault)}): {start}"
    except (ValueError, LookupError, TypeError):
        return f"{prefix}: the reply is not a list of models: {start}"
    if model and model not in names:
        return f"{prefix}: the server has {names}, not model.path={model!r}: {start}"
    return ""


def _check_disks(disk: dict[str, int], runs: Path) -> list[str]:
    """Return one message per disk with too little free space."""
    from transformers.utils import hub

    cache = Path(hub.constants.HF_HUB_CACHE)
    disks: dict[int, dict[Path, int]] = {}  # device number -> folder -> bytes
    for kind, size in disk.items():
        folder = cache if kind == HUB else runs
        if size:
            sizes = disks.setdefault(_find_existing(folder).stat().st_dev, {})
            sizes[folder] = sizes.get(folder, 0) + size
    faults = []
    for sizes in disks.values():
        size, free = sum(sizes.values()), shutil.disk_usage(_find_existing(next(iter(sizes)))).free
        if size > free:
            faults.append(
                f"the run writes {size / GIB:.2f} GiB to {' and '.join(map(str, sizes))}, "
                f"which has {free / GIB:.2f} GiB free: free some, or use another disk "
                "(--runs; HF_HOME for the hub's models)"
            )
    return faults


def _find_existing(path: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(each for each in (path, *path.absolute().parents) if each.is_dir())


# ---------------------------------------------------------------- plan


@dataclass(frozen=True)
class Plan:
    """Estimates of a run.

    Attributes:
        remedy: settings that fit if these do not; {} if none were found.
        disk: bytes by kind.
        faults: messages about names, paths and settings.
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
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def errors(self) -> list[str]:
        """Reasons not to start the run."""
        if not self.fit.fault:
            return [*self.faults]
        values = {n: str(v).lower() if isinstance(v, bool) else v for n, v in self.remedy.items()}
        cure = " ".join(f"--{name}={value}" for name, value in values.items())
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
    require(device_gb is None or device_gb > 0, f"device_gb must be above 0, got {device_gb}")
    rates = rates or (TOUR_RATES if config.trainer.backend == "local" else Rates())
    faults, shape, context = (
        check_settings(config),
        load_shape(config),
        config.rollout.max_context_tokens,
    )
    if context > shape.positions:
        faults.append(
            f"rollout.max_context_tokens={context} exceeds the model's {shape.positions} positions"
        )
    device = int((device_gb or _default_gib(config)) * GIB)
    fit = fit_memory(config, shape, device, rates.engines)
    notes = _list_notes(config, rates)
    # an engine does not need more cache than all rollouts of a step
    cache = min(
        fit.serving.cache, count_rollouts(config) * context * shape.kv_bytes(fit.load.itemsize)
    )
    rates = estimate_rates(rates, shape, fit.load, cache, context)
    generated = count_rollouts(config) * (
        rates.generated_per_rollout or rates.generated_share * context
    )
    is_remote = config.engine.name in ("vllm", "server")
    push = shape.parameters * memory_model.ITEMSIZE[config.model.dtype] if is_remote else 0
    work = Workload(generated, generated * rates.trained_share, push)
    time = step_time(work, rates, engines=fit.serving.engines, learners=config.processes)
    remedy = find_remedy(config, shape, device) if fit.fault else {}
    disk = estimate_disk(config, shape, fit.load)
    return Plan(config, shape, fit, rates, work, time, disk, remedy, tuple(faults), notes)


def estimate_disk(config: Config, shape: Shape, load: Load) -> dict[str, int]:
    """Estimate bytes by kind: models, checkpoints, kept rollouts, metrics, the hub's cache."""
    steps = (config.pretrain.steps, config.sft.steps, config.rl.steps)
    model = shape.parameters * memory_model.ITEMSIZE[load.dtype]
    # a checkpoint has the trained parameters and the two states of each
    trained = memory_model.trained_parameters(shape, load)
    checkpoint = (1 + memory_model.STATES) * trained * memory_model.FLOAT32
    kept = CHECKPOINTS if config.trainer.backend == "trl" else 2
    tokens = SAVES * SAVED_GROUPS * config.rl.group * config.rollout.max_context_tokens
    is_remote = bool(config.model.path) and find_folder(config.model.path) is None
    return {
        "final models": model * sum(n > 0 for n in steps),
        "checkpoints": checkpoint * kept,
        "rollouts": tokens * TOKEN_BYTES,
        "metrics": 1000 * sum(steps),
        HUB: model if is_remote else 0,
    }


def _list_notes(config: Config, rates: Rates) -> tuple[str, ...]:
    """Return the assumptions of a plan."""
    is_trl = config.trainer.backend == "trl"
    source = "an H100's specification" if is_trl else "the reference runs of the tour"
    notes = []
    if rates.generate_tokens_s is None or rates.train_tokens_s is None:
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
    return tuple(notes)


def _default_gib(config: Config) -> float:
    """Return 80 GiB for TRL, this machine's memory per process for the local trainer."""
    if config.trainer.backend == "trl":
        return 80.0
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return memory / max(1, config.processes) / GIB


def render(done: Plan) -> str:
    """Format the plan as text, without errors."""
    config, shape, fit, time, needs = done.config, done.shape, done.fit, done.time, done.fit.memory
    trained = memory_model.trained_parameters(shape, fit.load)
    method = "all" if fit.load.full else f"LoRA of rank {fit.load.lora_rank}"
    context, rollouts, serving = (
        config.rollout.max_context_tokens,
        count_rollouts(config),
        fit.serving,
    )
    used = {kind: n for kind, n in done.disk.items() if n}
    lines = [
        f"model        {config.model.path or 'the tiny policy'}",
        f"parameters   {_count(shape.parameters)}, active per token: {_count(shape.active)}, "
        f"trained: {_count(trained)} ({method})",
        f"device       {gib(fit.device)}, {config.processes} training"
        f"{', sharded' if fit.load.fsdp else ''}; largest step: {fit.stage}, micro-batches of "
        f"{fit.load.rows} x {fit.load.tokens} tokens",
        *(f"  {part:<12} {gib(n):>11}" for part, n in needs.parts.items() if n),
        *([f"  {'- shared':<12} {gib(needs.shared):>11}"] if needs.shared else []),
        f"  {'total':<12} {gib(needs.total):>11}",
        f"  activations: {gib(needs.activations_kept)}, with gradient checkpointing "
        f"{gib(needs.activations_checkpointed)}",
        f"  logits: {gib(needs.logits_full)}, with chunked log-probabilities "
        f"{gib(needs.logits_chunked)}",
        f"engine       {config.engine.name} x {serving.engines}: KV cache "
        f"{gib(max(serving.cache, 0))}, {_count(shape.kv_bytes(fit.load.itemsize))}B per token, "
        f"{serving.contexts} full contexts",
        f"step         {rollouts} rollouts of at most {context} tokens: "
        f"{_count(rollouts * context)}, generated: {_count(done.work.generated)}",
        f"seconds      generate {time.generate:.3g}, train {time.train:.3g}, sync {time.sync:.3g}; "
        f"synchronous {time.synchronous:.3g}, asynchronous {time.asynchronous:.3g}",
        f"  knee: {time.knee} engines; asynchronous: staleness {time.staleness}, learner busy "
        f"{time.learner_busy:.0%}, engines busy {time.engines_busy:.0%}",
        f"  {config.rl.steps} steps: {config.rl.steps * time.synchronous / 3600:.3g} hours; rates: "
        f"{done.rates.generate_tokens_s:.0f} tokens/s per engine, "
        f"{done.rates.train_tokens_s:.0f} per training process",
        f"disk         {gib(sum(used.values()))}: "
        + ", ".join(f"{kind} {gib(n)}" for kind, n in used.items()),
        *(f"note         {note}" for note in done.notes),
    ]
    return "\n".join(lines)


def _count(n: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if n >= size:
            return f"{n / size:.3g}{letter}"
    return f"{n:.0f} "
