"""`drlib plan --profile gpu8`: what a run needs, before anything is loaded.

Parameters, memory of a training device part by part, tokens and seconds of a step, disk, and every
name and path that the settings give: from the model's configuration alone. What does not fit is
refused, with the part that is largest and the nearest setting that fits; that setting has been
planned as well. What is planned is the largest step of the run (`sft` or `rl`).

`plan` is pure but for the paths it looks at; `render` puts its result into text. `--here` looks
also at the machine on which it is typed (`plan_checks.here`): fewer GPUs than asked, no vLLM or
another version, no server at `engine.url`, a disk without room for what the run writes.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drlib.config import ROOT, Config, load_from_arguments
from drlib.files import read_json_lines
from drlib.training import memory, shapes
from drlib.training.fitting import GIB, Fit, fit_of, gib, remedy_of, rollouts_of
from drlib.training.memory import Load, Shape
from drlib.training.plan_checks import HUB, check, here
from drlib.training.step_time import (
    TOUR_RATES,
    Rates,
    StepTime,
    Workload,
    estimated,
    measured_rates,
    rates_from,
    step_time,
)
from drlib.validation import require

SAVED_GROUPS, SAVES, TOKEN_BYTES = 4, 3, 20  # of trajectories that a stage rl keeps
CHECKPOINTS = 3  # of TRL: two, and one that is being written


@dataclass(frozen=True)
class Plan:
    """All that is printed. remedy: settings that fit where these do not ({}: none was found);
    disk: bytes by kind; faults: a line each, of names, paths and settings that exclude each other;
    notes: what was assumed."""

    config: Config
    shape: Shape
    fit: Fit
    rates: Rates
    work: Workload
    time: StepTime
    disk: dict[str, int]
    remedy: dict
    faults: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def errors(self) -> list[str]:
        """What stops the run, a line each; empty where it may begin."""
        if not self.fit.fault:
            return [*self.faults]
        cure = " ".join(f"--{name}={_typed(value)}" for name, value in self.remedy.items())
        advice = f"fits with {cure}" if cure else "take a smaller model or larger devices"
        return [*self.faults, f"{self.fit.fault}; {advice}"]


def plan(config: Config, device_gb: float | None = None, rates: Rates | None = None) -> Plan:
    """Plan the run of these settings.

    device_gb: GiB of one training device; None for 80, and for the local line for this machine's
    memory over its processes. rates: as far as they are known.

    ValueError: the model's sizes are not known, or a setting cannot be planned at all.
    """
    require(device_gb is None or device_gb > 0, f"device_gb must be above 0, got {device_gb}")
    rates = rates or (TOUR_RATES if config.trainer.backend == "local" else Rates())
    faults = check(config)
    shape = shapes.shape_of(config)
    device = int((device_gb or _usual_gib(config)) * GIB)
    if config.rollout.max_context_tokens > shape.positions:
        faults.append(
            f"rollout.max_context_tokens={config.rollout.max_context_tokens}: the model reads "
            f"{shape.positions} tokens at most"
        )
    fit = fit_of(config, shape, device, rates.engines)
    notes = _notes(config, rates)
    cache = min(fit.serving.cache, _all_rollouts(config, shape, fit.load))
    rates = estimated(rates, shape, fit.load, cache, config.rollout.max_context_tokens)
    work = workload(config, shape, rates)
    time = step_time(work, rates, engines=fit.serving.engines, learners=config.processes)
    remedy = remedy_of(config, shape, device) if fit.fault else {}
    disk = disk_bytes(config, shape, fit.load)
    return Plan(config, shape, fit, rates, work, time, disk, remedy, tuple(faults), notes)


def _all_rollouts(config: Config, shape: Shape, load: Load) -> int:
    """Bytes of the keys and values of a step's rollouts, at their longest."""
    tokens = rollouts_of(config) * config.rollout.max_context_tokens
    return tokens * shape.kv_bytes(load.itemsize)


def workload(config: Config, shape: Shape, rates: Rates) -> Workload:
    """A step's tokens by `rates`; its new weights go to engines of other processes."""
    context = config.rollout.max_context_tokens
    each = rates.generated_per_rollout or rates.generated_share * context
    generated = rollouts_of(config) * each
    elsewhere = config.engine.name in ("vllm", "server")
    push = shape.parameters * memory.ITEMSIZE[config.model.dtype] if elsewhere else 0
    return Workload(generated, generated * rates.trained_share, push)


def disk_bytes(config: Config, shape: Shape, load: Load) -> dict[str, int]:
    """What is written, by kind: whole models of the stages, checkpoints while one runs, rollouts
    that a stage rl keeps, metrics; and a hub's model in the local cache."""
    steps = {"cpt": config.pretrain.steps, "sft": config.sft.steps, "rl": config.rl.steps}
    model = shape.parameters * memory.ITEMSIZE[load.dtype]
    trained = memory.trained_parameters(shape, load)
    # a checkpoint has what is trained, and its two states
    checkpoint = (1 + memory.STATES) * trained * memory.FLOAT32
    kept = CHECKPOINTS if config.trainer.backend == "trl" else 2
    saved = SAVES * SAVED_GROUPS * config.rl.group * config.rollout.max_context_tokens * TOKEN_BYTES
    hub = bool(config.model.path) and shapes.folder_of(config.model.path) is None
    return {
        "final models": model * sum(n > 0 for n in steps.values()),
        "checkpoints": checkpoint * kept,
        "rollouts": saved,
        "metrics": 1000 * sum(steps.values()),
        HUB: model if hub else 0,
    }


def _notes(config: Config, rates: Rates) -> tuple[str, ...]:
    """What was assumed, a line each."""
    notes = []
    if rates.generate_tokens_s is None or rates.train_tokens_s is None:
        whose = "the tour's runs" if config.trainer.backend == "local" else "an H100's numbers"
        notes.append(f"rates that were not given are estimated from {whose}, not measured")
    if not rates.generated_per_rollout:
        notes.append(f"a rollout is assumed to generate {rates.generated_share:.0%} of its context")
    if config.trainer.backend == "trl":
        notes.append("a CUDA context and an engine's graphs are assumed to take 1 GiB each")
    if config.trainer.backend == "trl" and config.trainer.device_batch > 1:
        notes.append(
            "rollouts of one micro-batch are padded: sdpa makes a T x T mask in each layer; "
            "trainer.device_batch=1 makes none"
        )
    if config.engine.name == "server" and not rates.engines:
        notes.append(f"as many engines as processes ({config.processes}): give the rate `engines`")
    return tuple(notes)


def _usual_gib(config: Config) -> float:
    """GiB of a device where nobody says: an 80 GB card, or this machine's share of memory."""
    if config.trainer.backend == "trl":
        return 80.0
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pages / max(1, config.processes) / GIB


def render(done: Plan) -> str:
    """The plan as text, errors left out."""
    config, shape, fit, time = done.config, done.shape, done.fit, done.time
    name = config.model.path or "the small policy"
    trained = memory.trained_parameters(shape, fit.load)
    kind = f"LoRA of rank {fit.load.lora_rank}" if not fit.load.full else "all of them"
    needs, serving = fit.memory, fit.serving
    lines = [
        f"model        {name}",
        f"parameters   {_count(shape.parameters)}, {_count(shape.active)} of them for a token; "
        f"trained: {_count(trained)} ({kind})",
        f"device       {gib(fit.device)}; {config.processes} that train"
        f"{', sharded' if fit.load.fsdp else ''}; the largest step is one of {fit.stage}: "
        f"{fit.load.rows} x {fit.load.tokens} tokens a micro-batch",
        *(f"  {part:<12} {gib(n):>11}" for part, n in needs.parts.items() if n),
        *([f"  {'- shared':<12} {gib(needs.shared):>11}"] if needs.shared else []),
        f"  {'total':<12} {gib(needs.total):>11}",
        f"  activations: {gib(needs.activations_kept)} kept, "
        f"{gib(needs.activations_checkpointed)} with gradient checkpointing",
        f"  logits: {gib(needs.logits_usual)} with the usual head, "
        f"{gib(needs.logits_frugal)} with the frugal one",
        f"engine       {config.engine.name} x {serving.engines}: "
        f"{_count(shape.kv_bytes(fit.load.itemsize))}B of cache a token, "
        f"{gib(max(serving.cache, 0))} for it: {serving.at_once} full contexts at once",
        f"step         {rollouts_of(config)} rollouts of {config.rollout.max_context_tokens} tokens at "
        f"most: {_count(rollouts_of(config) * config.rollout.max_context_tokens)}; generated: "
        f"{_count(done.work.generated)}",
        f"seconds      generate {time.generate:.3g}, train {time.train:.3g}, "
        f"sync {time.sync:.3g}: {time.synchronous:.3g} one after the other, "
        f"{time.asynchronous:.3g} side by side",
        f"  knee at {time.knee} engines; side by side rollouts are {time.staleness} updates old, "
        f"the learner is busy {time.learner_busy:.0%}, the engines {time.engines_busy:.0%}",
        f"  {config.rl.steps} steps: {config.rl.steps * time.synchronous / 3600:.3g} hours; rates: "
        f"{done.rates.generate_tokens_s:.0f} tokens/s generated by an engine, "
        f"{done.rates.train_tokens_s:.0f} trained by a process",
        f"disk         {gib(sum(done.disk.values()))} in runs/ and the cache: "
        + ", ".join(f"{kind} {gib(n)}" for kind, n in done.disk.items() if n),
        *(f"note         {note}" for note in done.notes),
    ]
    return "\n".join(lines)


def _count(n: float) -> str:
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if n >= size:
            return f"{n / size:.3g}{letter}"
    return f"{n:.0f} "


def _typed(value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_rates(path: Path, processes: int = 1) -> Rates:
    """Rates of a JSON file, or of the metrics.jsonl of a run with so many processes. ValueError: it
    has none."""
    try:
        if path.suffix == ".jsonl":
            return measured_rates(read_json_lines(path), processes)
        return rates_from(json.loads(path.read_text(encoding="utf-8")))
    except OSError as fault:
        raise ValueError(f"--rates {path}: {fault.strerror}") from fault
    except json.JSONDecodeError as fault:
        raise ValueError(f"--rates {path} is no JSON: {fault}") from fault


def main(argv: Sequence[str] | None = None) -> int:
    """The command: 0 where the run may begin, 1 and a line on stderr for each thing against it."""
    parser = argparse.ArgumentParser(prog="drlib plan", description="what a run needs")
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--recipe", default="", help="a published recipe in drlib/recipes")
    parser.add_argument("--device-gb", type=float, help="GiB of one device (default: 80)")
    parser.add_argument("--rates", type=Path, help="a JSON file, or a run's metrics.jsonl")
    parser.add_argument("--here", action="store_true", help="look also what this machine lacks")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs", help="of --here: their disk")
    args, settings = parser.parse_known_args(argv)
    try:
        config = load_from_arguments(args.profile, args.recipe, settings)
        rates = read_rates(args.rates, config.processes) if args.rates else None
        done = plan(config, args.device_gb, rates)
    except ValueError as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    print(render(done))
    errors = done.errors + (here(config, done.disk, args.runs) if args.here else [])
    for error in errors:
        print(f"error: {error}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
