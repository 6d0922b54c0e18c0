"""Whether a run fits its devices: the largest step, the engines' caches, and what to change.

The step that needs most is planned, that of `sft` or of `rl` (`drlib.training.memory` has the
parts). Where it does not fit, changes are tried from the least costly to the dearest, each planned
like the settings themselves, so what is proposed fits.

Left out: engines over several cards (tensor parallelism), weights in less than 16 bits.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from drlib.config import Config
from drlib.training import memory
from drlib.training.learner import MICRO_BATCH_CONTEXTS
from drlib.training.memory import Load, MemoryPlan, Shape
from drlib.training.plan_checks import check

GIB = 2**30
SHORTEST = 1024  # tokens of a context that a remedy may propose
LORA_RANK = 32  # that a remedy proposes


@dataclass(frozen=True)
class Serving:
    """Who generates. engines: how many; cache: bytes of one's keys and values; at_once: rollouts of
    full length that it holds; beside: bytes that it takes of a training device."""

    engines: int
    cache: int
    at_once: int
    beside: int


@dataclass(frozen=True)
class Fit:
    """One device of a setting: the largest step's `stage`, its load, memory and engines."""

    stage: str
    load: Load
    memory: MemoryPlan
    serving: Serving
    device: int

    @property
    def fault(self) -> str:
        """Why it does not fit, in one line; "" where it does."""
        need, part = self.memory.total, self.memory.largest
        if need > self.device:
            return (
                f"does not fit: a step of {self.stage} needs {gib(need)} of {gib(self.device)}, "
                f"most of it {part} ({gib(self.memory.parts[part])})"
            )
        if self.serving.at_once < 1:
            cache = gib(max(self.serving.cache, 0))
            return f"does not fit: an engine has {cache} left for keys and values, not one context"
        return ""


def loads_of(config: Config) -> dict[str, Load]:
    """The micro-batches of the stages that train, by stage."""
    trl = config.trainer.backend == "trl"
    common = Load(
        dtype=config.model.dtype if trl else "float32",
        rows=max(1, config.trainer.device_batch) if trl else MICRO_BATCH_CONTEXTS,
        tokens=config.rollout.max_context_tokens,
        lora_rank=config.trainer.lora_rank if trl else 0,
        checkpointing=config.trainer.gradient_checkpointing and trl,
        processes=max(1, config.processes),
        fsdp=config.trainer.fsdp and trl,
        frugal=trl,
        trainer=config.trainer.backend,
    )
    kl = config.rl.loss.kl_coef > 0
    several = (
        trl and config.trainer.device_batch > 1
    )  # a row alone has no padding (`trl_batch.live_rows`)
    loads = {"rl": dataclasses.replace(common, padded=several, reference=kl)}
    if trl and config.sft.steps + config.pretrain.steps > 0:
        loads["sft"] = dataclasses.replace(common, tokens=config.trainer.pack_tokens)
    return loads


def fit_of(config: Config, shape: Shape, device: int, engines: int = 0) -> Fit:
    """The largest step of the run on a device of so many bytes. engines: 0 for one a process."""
    trl = config.trainer.backend == "trl"
    loads = loads_of(config)
    beside = 0
    if config.engine.name == "vllm":
        beside = int(config.engine.memory_share * device)
    elif config.engine.name in ("hf", "local") and loads["rl"].fsdp:
        # the generating process needs a copy of all weights
        beside = shape.parameters * loads["rl"].itemsize
    plans = {
        stage: (load, memory.memory_plan(shape, load, beside, memory.RESERVED if trl else 0))
        for stage, load in loads.items()
    }
    stage = max(plans, key=lambda name: plans[name][1].total)
    load, needs = plans[stage]
    weights = shape.parameters * load.itemsize
    if config.engine.name == "vllm":
        cache = beside - weights - memory.ENGINE_WORK
    elif config.engine.name == "server":
        cache = int(memory.SERVER_SHARE * device) - weights - memory.ENGINE_WORK
    else:  # the trainer's own weights; nothing is trained meanwhile
        held = ("weights", "reference", "optimiser", "engine", "reserved")
        cache = device - sum(needs.parts.get(name, 0) for name in held)
    at_once = memory.rollouts_at_once(
        shape, load.itemsize, cache, config.rollout.max_context_tokens
    )
    at_once = min(at_once, rollouts_of(config))
    serving = Serving(engines or max(1, config.processes), cache, at_once, beside)
    return Fit(stage, load, needs, serving, device)


def rollouts_of(config: Config) -> int:
    """Rollouts of a step."""
    return config.rl.questions * config.rl.group * config.rl.sampling.oversample


def remedy_of(config: Config, shape: Shape, device: int) -> dict:
    """The nearest settings that fit, {} for none: each change alone, then one upon another."""
    for changes in _changes(config):
        tried = config.derive(**changes)
        if not check(tried) and not fit_of(tried, shape, device).fault:
            return changes
    return {}


def _changes(config: Config) -> Iterator[dict]:
    """Changes to try, the least costly first."""
    lengths, length = [], config.rollout.max_context_tokens // 2
    while length >= SHORTEST:
        lengths.append(_context(config, length))
        length //= 2
    engine = (
        [{"engine.memory_share": n / 10} for n in range(1, 9)]
        if config.engine.name == "vllm"
        else []
    )
    if config.trainer.backend == "local":
        yield from lengths
        return
    ladders = [
        [] if config.trainer.gradient_checkpointing else [{"trainer.gradient_checkpointing": True}],
        [] if config.trainer.device_batch <= 1 else [{"trainer.device_batch": 1}],
        [] if config.trainer.lora_rank else [{"trainer.lora_rank": LORA_RANK}],
        _shardings(config),
        lengths,
        engine,
    ]
    for ladder in ladders:
        yield from ladder
    cheap: dict = {}
    for ladder in ladders[:3]:
        for change in ladder:
            cheap |= change
    for length in ({}, *lengths):
        for share in ({}, *engine):
            yield cheap | length | share
            for shards in ladders[3]:
                yield shards | cheap | length | share


def _shardings(config: Config) -> list[dict]:
    """FSDP over the processes that there are, then over more."""
    over = [{"trainer.fsdp": True, "processes": n} for n in (2, 4, 8, 16) if n > config.processes]
    return over if config.trainer.fsdp or config.processes < 2 else [{"trainer.fsdp": True}, *over]


def _context(config: Config, tokens: int) -> dict:
    """A shorter context, with what must be no longer than it."""
    names = ("trainer.pack_tokens", "rollout.max_turn_tokens")
    shorter = {name: tokens for name in names if config.get(name) > tokens}
    return {"rollout.max_context_tokens": tokens} | (
        shorter if config.trainer.backend == "trl" else {}
    )


def gib(n: float) -> str:
    """Bytes as text."""
    return f"{n / GIB:.2f} GiB" if n >= GIB / 100 else f"{n / 2**20:.2f} MiB"
