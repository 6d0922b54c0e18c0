"""How long a step of reinforcement learning takes: actors generate, a learner trains.

Three times make a step: T_generate, T_train, T_sync (new weights to the engines). One after the
other they add up; side by side the slower of both counts:

    synchronous   T = T_generate / N + T_train + T_sync
    asynchronous  T = max(T_generate / N, T_train) + T_sync

with N engines. More engines than the knee, N* = T_generate / T_train, wait for the learner. Where
each engine makes whole batches for itself, rollouts are ceil(T_generate / T) updates old; beyond
the knee finished ones wait as well, up to an update an engine. `side_by_side` is the clock of this,
`one_after_the_other` that of the first line.

Rates are inputs: measured ones, of a file, or of what a run has written (`measured_rates`). Where
nobody measured, they are estimated from a card's numbers, and the plan says so.

Source: N. de Freitas' series on reinforcement learning of language models (actors and learners,
their durations and bandwidth).

Left out: that the longest rollout of a batch is waited for (T_generate is tokens over a rate), and
overlap of the weights' push with anything.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drlib.registry import suggest_name
from drlib.training.memory import Load, Shape
from drlib.validation import require

# Of an H100 (vendor's numbers): FLOP/s in bfloat16 without sparsity, bytes a second of its memory;
# and the shares of both that a trainer and an engine are assumed to reach.
FLOPS, BANDWIDTH = 989e12, 3.35e12
TRAINING_SHARE, DECODING_SHARE = 0.3, 0.5


@dataclass(frozen=True)
class Rates:
    """What a step's time is made from; None where it is to be estimated.

    generate_tokens_s: generated tokens a second of one engine. train_tokens_s: generated tokens
    that one process trains on in a second. push_bytes_s: of new weights, to one engine after
    another. engines: how many there are (0: one a process). generated_per_rollout: tokens (0: the
    bound `generated_share` of a context). context_share: how full contexts are, of their bound.
    trained_share: of the generated tokens, those with a gradient. tool_seconds: a step waits for
    tools alone.
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
            require(
                value is None or (math.isfinite(value) and value >= 0),
                f"rate {name} must be a number and not negative, got {value}",
            )
        for name in ("generate_tokens_s", "train_tokens_s", "push_bytes_s"):
            require(getattr(self, name) != 0, f"rate {name} must be above 0")


# Of one process of the local line: figures/reference/tour/seed0_rl.jsonl, a laptop's two processes.
TOUR_RATES = Rates(4700.0, 2600.0, generated_share=0.1, trained_share=0.3)


@dataclass(frozen=True)
class Workload:
    """Of one step, over all processes: tokens generated, those trained on, bytes of new weights."""

    generated: float
    trained: float
    push_bytes: float = 0.0


@dataclass(frozen=True)
class StepTime:
    """Seconds. generate: with all engines at work; knee: engines beyond which the learner is the
    slower one; staleness: updates that a rollout is old beside the learner, at least."""

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
    """The step's seconds with `engines` engines and `learners` training processes.

    ValueError: a rate is None (`estimated` fills it), or nobody generates or trains.
    """
    require(engines >= 1 and learners >= 1, "a step needs an engine and a learner, at least")
    known = None not in (rates.generate_tokens_s, rates.train_tokens_s)
    require(known, "rates of generation and training are needed: measure them, or use `estimated`")
    alone = work.generated / rates.generate_tokens_s
    train = work.trained / rates.train_tokens_s / learners
    sync = work.push_bytes * engines / rates.push_bytes_s
    generate = alone / engines + rates.tool_seconds
    knee = max(1, math.ceil(alone / train - 1e-9)) if train > 0 else engines
    update = max(generate, train) + sync
    stale = math.ceil((alone + rates.tool_seconds) / update - 1e-9)
    return StepTime(generate, train, sync, engines, knee, stale)


@dataclass(frozen=True)
class Span:
    """Something that went on for a while. lane: 0 the learner, 1, 2, ... the engines. what:
    "generate", "train" or "sync". batch: which one. age: of a batch that is trained on, the updates
    since its generation began."""

    lane: int
    what: str
    began: float
    ended: float
    batch: int
    age: int = 0


def one_after_the_other(time: StepTime, batches: int) -> list[Span]:
    """The synchronous clock: all engines make one batch, then they wait for its update."""
    spans, now = [], 0.0
    for batch in range(batches):
        made = now + time.generate
        spans += [Span(1 + e, "generate", now, made, batch) for e in range(time.engines)]
        spans.append(Span(0, "train", made, made + time.train, batch))
        now = made + time.train + time.sync
        spans.append(Span(0, "sync", now - time.sync, now, batch))
    return spans


def side_by_side(time: StepTime, batches: int) -> list[Span]:
    """The asynchronous clock, run and not computed: what the formulas above are checked against.

    Each engine makes batches of its own, the first ones spread over the time that a batch takes; it
    holds a finished one until the learner takes it, the oldest first, and begins another with the
    weights of that moment. While new weights are sent all engines pause.
    """
    alone = time.generate * time.engines  # seconds of a batch on one engine
    begun = [alone * (e - time.engines) / time.engines for e in range(1, time.engines + 1)]
    ready = [at + alone for at in begun]
    version = [0] * time.engines
    spans, now = [], 0.0
    for batch in range(batches):
        engine = min(range(time.engines), key=ready.__getitem__)
        taken = max(now, ready[engine])
        spans.append(Span(1 + engine, "generate", begun[engine], ready[engine], batch))
        begun[engine], ready[engine] = taken, taken + alone
        age = batch - version[engine]
        version[engine] = batch
        trained = taken + time.train
        now = trained + time.sync
        spans.append(Span(0, "train", taken, trained, batch, age))
        spans.append(Span(0, "sync", trained, now, batch))
        # a batch that is being made waits for the push, one that is ready waits anyway
        ready = [at + time.sync if at > trained else at for at in ready]
    return spans


def estimated(rates: Rates, shape: Shape, load: Load, cache: int, context: int) -> Rates:
    """`rates` with what is None filled in from a card's FLOP/s and bandwidth.

    cache: bytes of one engine's keys and values; context: bound of a rollout's tokens.
    """
    length = context * rates.context_share
    running = max(1.0, cache / (shape.kv_bytes(load.itemsize) * length))
    # a step of decoding reads the weights that some rollout needs, and the cache of all
    idle = shape.parameters - shape.active  # for one token
    if shape.experts > shape.chosen:
        idle *= (1 - shape.chosen / shape.experts) ** (running - 1)
    read = (shape.parameters - idle) * load.itemsize + max(cache, 0)
    passes = 1 + (2 if load.full else 1) + load.checkpointing  # forward, backward, forward again
    by_token = passes * (2 * shape.active + 2 * shape.layers * shape.query_width * length)
    generated = rates.generated_per_rollout or rates.generated_share * context
    guess = {
        "generate_tokens_s": running * DECODING_SHARE * BANDWIDTH / read,
        # prompts and pages pass through the learner, too
        "train_tokens_s": TRAINING_SHARE * FLOPS / by_token * min(1.0, generated / length),
    }
    missing = {name: value for name, value in guess.items() if getattr(rates, name) is None}
    return dataclasses.replace(rates, **missing)


def rates_from(numbers: Mapping) -> Rates:
    """Rates of a JSON object; ValueError names what is unknown or no number."""
    known = [field.name for field in dataclasses.fields(Rates)]
    require(isinstance(numbers, Mapping), "rates must be one JSON object of names and numbers")
    for name, value in numbers.items():
        require(name in known, f"unknown rate {name!r}: {suggest_name(name, known)}")
        number = isinstance(value, int | float) and not isinstance(value, bool)
        require(number, f"rate {name} must be a number, got {value!r}")
    return Rates(**numbers)


def work_of_row(row: Mapping) -> Workload:
    """What a measured step did; row: of a run's metrics.jsonl."""
    return Workload(row["generated"] * row["rollouts"], row["tokens"] * row["trained_share"])


def measured_rates(metrics_rows: Sequence[Mapping], processes: int = 1) -> Rates:
    """The rates of a run from its rows of metrics.jsonl, as both trainers write them.

    processes: that the run had; each is one engine and one learner. ValueError: no rows, or they
    lack what is needed, or no step had a gradient.
    """
    needed = ("generated", "rollouts", "tokens", "trained_share", "seconds", "rollout_seconds")
    require(len(metrics_rows) > 0, "no rows of metrics: rates cannot be measured")
    for name in needed:
        held = all(name in row for row in metrics_rows)
        require(held, f"rows of metrics lack {name!r}: give those of a stage `rl`")
    work = [work_of_row(row) for row in metrics_rows]
    generated, trained = sum(w.generated for w in work), sum(w.trained for w in work)
    rolling = sum(row["rollout_seconds"] for row in metrics_rows)
    learning = sum(row["seconds"] for row in metrics_rows) - rolling
    require(trained > 0 and rolling > 0 and learning > 0, "no step of these was trained on")
    return Rates(
        generate_tokens_s=generated / rolling / processes,
        train_tokens_s=trained / learning / processes,
        engines=processes,
        generated_per_rollout=generated / sum(row["rollouts"] for row in metrics_rows),
        trained_share=trained / generated,
    )
