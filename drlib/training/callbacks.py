"""Callbacks: optional mechanisms attached to the RL loop through hooks, each off by default.

A callback is registered under a name. The loop builds every registered callback whose factory
returns one for the settings. A plugin registers its own in the same way:

    @CALLBACKS.register("print_accuracy")
    def build(config, trainer):
        return PrintAccuracy()

Built in: adaptive KL coefficient (PPO, arXiv 1707.06347, section 4), reference updates (TR-DPO,
2404.09656), hard resets (ProRL, 2505.24864), drift alarm, emergency stop. Question selection and
group replay are in `question_selection` and `group_replay`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from drlib.config import Config
from drlib.registry import Registry
from drlib.rl.stability import (
    AdaptiveLearningRate,
    Alarm,
    DriftDetector,
    EmergencyStop,
    HistogramShift,
    KLController,
    PageHinkley,
    ReferenceReset,
    rollout_signals,
)
from drlib.rl.state_machine import StateMachine, initial_state
from drlib.training.rollouts import has_changed
from drlib.trajectory import Termination, ToolResult, Trajectory
from drlib.validation import AtLeastOne, require, require_within
from drlib.worlds.perturbed import perturbed_version

KL_COEF_RANGE = "[1e-6, 1e3]"  # outside it, doubling and halving have no practical effect
COLLAPSE = {"unanswered": (0.3, 0.95)}  # shares of rollouts: healthy below, collapsed above
COLLAPSED_STEPS = 5  # no run in figures/reference recovered from so many

CALLBACKS = Registry("callback")  # name -> function (config, trainer) -> Callback or None


@dataclass
class StepState:
    """State of one step, read and changed by callbacks.

    Attributes:
        config: settings of this step; a callback may change the rollout limits in on_step_begin.
        batch: samples per shard, from on_batch on; a callback may replace it there.
        metrics: row of metrics.jsonl; "stopped" ends the stage after this step.
        rollouts: all rollouts of this process, from on_batch on.
        outcomes: (skill, 1.0 if correct else 0.0) of the rollouts of all processes.
    """

    step: int
    config: Config
    batch: list = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)
    rollouts: list[Trajectory] = field(default_factory=list)
    outcomes: list[tuple[str, float]] = field(default_factory=list)


class Callback:
    """Base class; every hook does nothing by default."""

    def on_step_begin(self, trainer, state: StepState) -> None:
        """Run before the rollouts of a step."""

    def on_batch(self, trainer, state: StepState) -> None:
        """Run between the preparation of the batch and the update."""

    def on_step_end(self, trainer, state: StepState) -> None:
        """Run after the update and the weight synchronisation."""

    def state_dict(self) -> Any:
        """Return what a checkpoint needs to resume."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Restore the state saved by state_dict()."""


class CallbackList:
    """The callbacks of a run, called in the order of their registration."""

    def __init__(self, parts: Mapping[str, Callback]):
        self.parts = dict(parts)

    def on_step_begin(self, trainer, state: StepState) -> None:
        """Call this hook of every callback."""
        for part in self.parts.values():
            part.on_step_begin(trainer, state)

    def on_batch(self, trainer, state: StepState) -> None:
        """Call this hook of every callback."""
        for part in self.parts.values():
            part.on_batch(trainer, state)

    def on_step_end(self, trainer, state: StepState) -> None:
        """Call this hook of every callback."""
        for part in self.parts.values():
            part.on_step_end(trainer, state)

    def state_dict(self) -> dict:
        """Return the state of every callback by name."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def build_callbacks(config: Config, trainer) -> CallbackList:
    """Build the registered callbacks that the settings turn on."""
    built = {name: build(config, trainer) for name, build in CALLBACKS.items()}
    return CallbackList({name: part for name, part in built.items() if part is not None})


def check_callbacks(config: Config) -> None:
    """Raise ValueError for callback settings without effect."""
    has_kl = config.rl.loss.kl_coef > 0
    if config.rl.callbacks.kl_target > 0:
        require(
            has_kl,
            "rl.callbacks.kl_target adapts rl.loss.kl_coef and needs its first value: set both",
        )
        require_within(
            config.rl.loss.kl_coef,
            KL_COEF_RANGE,
            "rl.loss.kl_coef, adapted by rl.callbacks.kl_target,",
        )
    require(
        has_kl or config.rl.callbacks.reference_every == 0,
        "rl.callbacks.reference_every updates the KL reference: set rl.loss.kl_coef too",
    )
    require_within(config.rl.callbacks.reference_decay, "[0, 1)", "rl.callbacks.reference_decay")
    require(
        config.rl.callbacks.reference_every > 0 or config.rl.callbacks.reference_decay == 0,
        "rl.callbacks.reference_decay has no effect without rl.callbacks.reference_every: set both",
    )
    require(
        config.rl.callbacks.validate_every >= 1, "rl.callbacks.validate_every must be at least 1"
    )
    require_within(config.rl.callbacks.drift_factor, "(0, 1]", "rl.callbacks.drift_factor")


class AdaptiveKL(Callback):
    """Double or halve rl.loss.kl_coef to keep the KL near rl.callbacks.kl_target."""

    def __init__(self, kl_coef: float, target: float):
        self.controller = KLController(kl_coef, target)

    def on_batch(self, trainer, state: StepState) -> None:
        """Set the coefficient of this step's loss."""
        trainer.learner.kl_coef = self.controller.state["coef"]

    def on_step_end(self, trainer, state: StepState) -> None:
        """Log the coefficient in use and compute the next one."""
        state.metrics["kl_coef"] = self.controller.state["coef"]
        if state.metrics["trained_share"] > 0:  # otherwise no KL was measured
            self.controller.update(state.metrics["kl"])

    def state_dict(self) -> dict:
        """Return the state of the controller."""
        return self.controller.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self.controller.load_state_dict(state)


@CALLBACKS.register("adaptive_kl")
def _build_adaptive_kl(config: Config, trainer) -> Callback | None:
    target = config.rl.callbacks.kl_target
    return AdaptiveKL(config.rl.loss.kl_coef, target) if target > 0 else None


class ReferenceUpdates(Callback):
    """Move the reference of the KL term periodically, and reset hard when validation stagnates.

    The reset (ProRL) makes the policy its own reference and clears the optimizer's state. The
    learning-rate schedule continues without a new warm-up.
    """

    def __init__(self, every: int, decay: float, patience: int, validate_every: int):
        self.decay, self.patience = decay, patience
        self.period = ReferenceReset(every=every or None)
        self.plateau = ReferenceReset(patience or None)
        self.validation = Validation(validate_every)

    def on_step_end(self, trainer, state: StepState) -> None:
        """Move the reference if it is due; reset if the score has not improved."""
        learner = trainer.learner
        age, learner.reference_age = learner.reference_age, learner.reference_age + 1
        if self.period.update() is not None:
            learner.sync_reference(self.decay)
        if self.patience > 0:
            score = self.validation.update(state.outcomes)
            is_stagnant = self.plateau.update(score) is not None
            if is_stagnant:
                learner.restart()
            state.metrics["reset"] = float(is_stagnant)
            state.metrics |= {} if score is None else {"validation": score}
        if learner.reference is not None:
            state.metrics["reference_age"] = age

    def state_dict(self) -> dict:
        """Return the state of period, plateau and validation."""
        return {
            "period": self.period.state_dict(),
            "plateau": self.plateau.state_dict(),
            "validation": self.validation.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self.period.load_state_dict(state["period"])
        self.plateau.load_state_dict(state["plateau"])
        self.validation.load_state_dict(state["validation"])


@CALLBACKS.register("reference_updates")
def _build_reference_updates(config: Config, trainer) -> Callback | None:
    settings = config.rl.callbacks
    if settings.reference_every == 0 and settings.reset_patience == 0:
        return None
    return ReferenceUpdates(
        config.rl.callbacks.reference_every,
        config.rl.callbacks.reference_decay,
        config.rl.callbacks.reset_patience,
        config.rl.callbacks.validate_every,
    )


@dataclass(frozen=True)
class Validation(StateMachine):
    """Validation score for ProRL's reset: mean over skills of the accuracy in `every` steps.

    Every question is new, so the training rollouts serve as validation. Skills count equally,
    because the curriculum shifts towards questions that the policy half solves. A skill without
    questions in this window keeps its last accuracy.
    """

    every: AtLeastOne = 5
    state: dict = initial_state(steps=0, seen={}, known={})

    def update(self, outcomes: Iterable[tuple[str, float]]) -> float | None:
        """Add the (skill, correct) pairs of a step; return the score after `every` steps."""
        state = self.state
        state["steps"] += 1
        for skill, right in outcomes:
            n, total = state["seen"].get(skill, (0, 0.0))
            state["seen"][skill] = [n + 1, total + float(right)]
        if state["steps"] < self.every:
            return None
        state["known"] |= {skill: total / n for skill, (n, total) in state["seen"].items()}
        state.update(steps=0, seen={})
        return sum(state["known"].values()) / max(len(state["known"]), 1)


class DriftAlarm(Callback):
    """Lower the learning rate when rewards, tool errors or observations drift, then recover."""

    def __init__(self, config: Config, tools: Iterable[str]):
        self.detector = DriftDetector(build_monitors(config, tools))
        self.rate = AdaptiveLearningRate(config.rl.callbacks.drift_factor)

    def on_batch(self, trainer, state: StepState) -> None:
        """Set the learning-rate factor of this step."""
        trainer.learner.lr_scale = self.rate.state["scale"]

    def on_step_end(self, trainer, state: StepState) -> None:
        """Update the monitors with the rollouts of all ranks; alarms affect the next step."""
        scale, toolbox = self.rate.state["scale"], trainer.toolbox
        facts = trainer.ranks.gather([_facts(trajectory) for trajectory in state.rollouts])
        signals = watched_signals(facts, toolbox.tools, trainer.config.rl.questions)
        world = toolbox.world.version
        if has_changed(trainer.config.rl.callbacks.world_change, state.step):
            world = perturbed_version(world)
        alarms = [a for a in self.detector.update(signals, {"world": world}) if is_worse(a)]
        self.rate.update(bool(alarms))
        averages = self.detector.state["averages"].items()
        state.metrics |= {"drift_alarms": len(alarms), "lr_scale": scale}
        state.metrics |= {f"state_{name.replace('/', '_')}": value for name, value in averages}

    def state_dict(self) -> dict:
        """Return the state of the monitors and of the learning-rate factor."""
        return {"detector": self.detector.state_dict(), "rate": self.rate.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self.detector.load_state_dict(state["detector"])
        self.rate.load_state_dict(state["rate"])


@CALLBACKS.register("drift_alarm")
def _build_drift_alarm(config: Config, trainer) -> Callback | None:
    is_on = config.rl.callbacks.drift_factor < 1
    return DriftAlarm(config, trainer.toolbox.tools) if is_on else None


SHIFT = 0.35  # half of the smallest relevant shift of a share, times sqrt(questions per step)
THRESHOLD = 3.5  # Page-Hinkley threshold, in the same unit
SHAPE = 0.4  # threshold of the population stability index, nats
QUESTIONS_A_WINDOW = 240  # window of a histogram
CALLS_A_ROLLOUT = 1.5  # approximate
WORSE = {"reward": "down", "errors": "up"}  # the other direction is normal learning
NOT_REPEATABLE = ("latency_s", "cache_hits")  # vary between two runs of one seed


class RolloutFacts(NamedTuple):
    """Fields of a trajectory for `rollout_signals`; ranks exchange these instead of tokens."""

    answer: str | None
    reward: float | None
    termination: Termination
    tool_results: list[ToolResult]


def _facts(trajectory: Trajectory) -> RolloutFacts:
    return RolloutFacts(
        trajectory.answer, trajectory.reward, trajectory.termination, trajectory.tool_results
    )


def build_monitors(config: Config, tools: Iterable[str]) -> dict[str, PageHinkley | HistogramShift]:
    """Return one monitor per signal; none if rl.callbacks.drift_factor is 1.

    Thresholds scale with 1 / sqrt(questions per step), the standard error of a share. A histogram
    covers a number of questions instead of calls, because rollouts of one question see the same
    pages. On the five committed runs (500 steps) reward and errors raise no false alarm, and all
    controls with random reward do. The stability index of observations stays below 0.28 while
    learning and reaches 0.54 after a change of the world.
    """
    if config.rl.callbacks.drift_factor == 1:
        return {}
    chance = 1 / math.sqrt(config.rl.questions)
    share = PageHinkley(SHIFT * chance, THRESHOLD * chance)
    tries = config.rl.group * config.rl.sampling.oversample
    window = round(QUESTIONS_A_WINDOW * tries * CALLS_A_ROLLOUT)
    return {
        "reward": share,
        **{f"errors/{tool}": share for tool in tools},
        "observation_chars": HistogramShift(SHAPE, window),
    }


def watched_signals(rollouts: Sequence[Any], tools: Iterable[str], fewest: int) -> dict:
    """Return the reproducible signals; None for tools with fewer than `fewest` calls.

    Times and cache hits are dropped, because they differ between runs of one seed.
    """
    calls = Counter(result.tool for rollout in rollouts for result in rollout.tool_results)
    signals = rollout_signals(rollouts, tools)
    rare = {f"errors/{tool}" for tool in tools if calls[tool] < fewest}
    return {
        name: None if name in rare else value
        for name, value in signals.items()
        if not name.startswith(NOT_REPEATABLE)
    }


def is_worse(alarm: Alarm) -> bool:
    """Return True unless the alarm is an improvement (rising reward, falling errors)."""
    return alarm.kind == WORSE.get(alarm.signal.partition("/")[0], alarm.kind)


# ---------------------------------------------------------------- emergency stop


class EmergencyStopCallback(Callback):
    """End a run whose policy no longer answers: it gets no reward and rollouts become long."""

    def __init__(self, config: Config):
        self.emergency = emergency_stop(config.rl.callbacks.emergency_stop)

    def on_step_end(self, trainer, state: StepState) -> None:
        """Set the metric "stopped" when the policy has collapsed."""
        unanswered = state.metrics["overlong"] + state.metrics["out_of_turns"]
        reason = self.emergency.update({"unanswered": unanswered})
        if reason:
            state.metrics["stopped"] = reason

    def state_dict(self) -> dict:
        """Return the state of the detector."""
        return self.emergency.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self.emergency.load_state_dict(state)


def emergency_stop(enabled: bool) -> EmergencyStop:
    """Build the collapse detector; without limits if it is not enabled."""
    limits = COLLAPSE if enabled else {}
    return EmergencyStop(limits, patience=COLLAPSED_STEPS)


@CALLBACKS.register("emergency_stop")
def _build_emergency_stop(config: Config, trainer) -> Callback | None:
    return EmergencyStopCallback(config) if config.rl.callbacks.emergency_stop else None
