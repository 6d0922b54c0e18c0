"""Stability of long runs: KL control, reference resets, drift detection, emergency stop.

The architecture page of Tongyi DeepResearch draws a stabiliser for non-stationary environments
without a formula; its report has none. Each component here is the simplest published rule, with its
source at the class. Stale samples and replay are in `drlib.rl.staleness`.

Metrics in, decisions out: each component is a frozen dataclass whose fields are settings, and
`state` (JSON values) is what it has observed, so a resumed run makes the same decisions. The
defaults disable it: a constant, or no alarm. The trainer acts on the decisions.
"""

import copy
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch

from drlib.rewards.functions import has_env_fault
from drlib.rl.state_machine import StateMachine, initial_state
from drlib.trajectory import Trajectory
from drlib.validation import (
    AtLeastOne,
    Coefficient,
    Positive,
    require,
    require_finite,
    require_within,
)

_COEF_RANGE = (1e-6, 1e3)  # of an adaptive KL coefficient: no underflow, no frozen policy


@dataclass(frozen=True)
class KLController(StateMachine):
    """KL coefficient that is adapted to keep the KL near `target` (nats; None: constant).

    Doubled above 1.5 target and halved below target / 1.5 (PPO, arXiv 1707.06347, section 4).
    """

    coef: Coefficient = 0.0
    target: Annotated[float, "(0, inf)"] | None = None
    state: dict = initial_state(coef=0.0)

    def __post_init__(self):
        super().__post_init__()
        usable = self.target is None or _COEF_RANGE[0] <= self.coef <= _COEF_RANGE[1]
        require(
            usable,
            f"coef={self.coef} is not in {_COEF_RANGE}: an adaptive coefficient starts inside",
        )
        self.state["coef"] = self.coef

    def update(self, kl: float) -> float:
        """Return the next step's coefficient from a step's mean KL (nats; may be negative)."""
        if self.target is not None:
            ratio = require_finite(kl, "the KL divergence") / self.target
            change = 1.0
            if ratio > 1.5:
                change = 2.0
            elif ratio < 1 / 1.5:
                change = 0.5
            low, high = _COEF_RANGE
            self.state["coef"] = min(max(self.state["coef"] * change, low), high)
        return self.state["coef"]


@dataclass(frozen=True)
class ReferenceReset(StateMachine):
    """Decides when to reset the reference to the policy and the optimizer (ProRL, 2505.24864).

    None disables a cause. Progress after a reset is measured from the score at the reset.
    """

    patience: AtLeastOne | None = (
        None  # validations in a row that do not beat the best since a reset
    )
    min_delta: Coefficient = 0.0  # by which to beat it
    every: AtLeastOne | None = None  # steps since the last reset
    state: dict = initial_state(since=0, best=None, stale=0)

    def update(self, score: float | None = None) -> str | None:
        """Return "stagnation" or "period" if a reset is due after this step, else None.

        score: validation score, if the step had one.
        """
        state = self.state
        state["since"] += 1
        cause = None
        if self.every is not None and state["since"] >= self.every:
            cause = "period"
        if score is not None:
            score = require_finite(score, "the validation score")
            if state["best"] is None or score > state["best"] + self.min_delta:
                state["best"] = score
                state["stale"] = 0
            else:
                state["stale"] += 1
            if self.patience is not None and state["stale"] >= self.patience:
                cause = "stagnation"
        if cause is not None:
            best = state["best"] if score is None else score
            state.update(since=0, stale=0, best=best)
        return cause


@torch.no_grad()
def sync_reference(reference, policy, *optimizers, decay: float = 0.0) -> None:
    """Move the reference towards the policy in place, and clear the optimizers' state.

    Args:
        reference, policy: modules; parameters become decay * reference + (1 - decay) * policy,
            exact at 0 and 1, and buffers are copied.
        optimizers: objects with a `state` mapping, such as AdamW, whose moments and step count
            belong to the old objective; they are kept if none is given.
        decay: in [0, 1]. In bfloat16 a value near 1 rounds the change away: keep the reference in
            float32.

    Raises:
        ValueError: the modules differ or share a tensor; nothing has been changed.
    """
    require_within(decay, "[0, 1]", "decay")
    targets = [*reference.parameters(), *reference.buffers()]
    sources = [*policy.parameters(), *policy.buffers()]
    alike = [t.shape for t in targets] == [t.shape for t in sources]
    require(alike, "reference and policy differ in their tensors' shapes")
    shared = any(a.data_ptr() == b.data_ptr() for a, b in zip(targets, sources) if a.numel())
    require(not shared, "reference and policy share a tensor; copy one with copy.deepcopy")
    states = [optimizer.state for optimizer in optimizers]
    for old, new in zip(targets, sources):
        if decay and isinstance(old, torch.nn.Parameter):
            old.lerp_(new.to(old), 1 - decay)
        else:
            old.copy_(new)
    for state in states:
        state.clear()


def rollout_signals(
    trajectories: Sequence[Trajectory], tools: Iterable[str] = ()
) -> dict[str, float | list[float] | None]:
    """Compute a step's signals of environment and policy; None if nothing was measured.

    Over rollouts without environment fault: mean reward, shares of unanswered ones and of those
    with a turn that could not be parsed (format_errors). faults: share with one.
    observation_chars: one value per call. For each of `tools`: shares errors/NAME and
    cache_hits/NAME, mean latency_s/NAME in seconds.
    """
    sound = [t for t in trajectories if not has_env_fault(t)]
    calls = [result for t in trajectories for result in t.tool_results]
    signals: dict[str, float | list[float] | None] = {
        "reward": _mean(t.reward for t in sound if t.reward is not None),
        "unanswered": _mean(t.answer is None for t in sound),
        "format_errors": _mean(
            any(result.tool == "format" for result in t.tool_results) for t in sound
        ),
        "faults": _mean(has_env_fault(t) for t in trajectories),
        "observation_chars": [float(len(r.text)) for r in calls if r.tool != "format"],
    }
    for tool in tools:
        own = [result for result in calls if result.tool == tool]
        signals[f"errors/{tool}"] = _mean(not result.ok for result in own)
        signals[f"latency_s/{tool}"] = _mean(result.latency_s for result in own)
        signals[f"cache_hits/{tool}"] = _mean(result.cache_hit for result in own)
    return signals


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class PageHinkley(StateMachine):
    """Two-sided test for a shift of a mean (Page 1954, Hinkley 1971), in the signal's units.

    With m_t the sum of (x_i - mean(x_1..x_i) - delta) and m_0 = 0, the alarm is "up" when m_t minus
    its minimum exceeds `threshold`, "down" with the signs reversed. delta is half of the smallest
    shift worth an alarm. A larger shift is detected after about threshold / (shift - delta) steps;
    false alarms fall like exp(-2 delta threshold / variance). There is no alarm in the first
    `warmup` steps, and the test restarts after an alarm.
    """

    delta: Coefficient = 0.0  # half of the smallest shift worth an alarm
    threshold: Positive = math.inf
    warmup: int = 10  # first steps, without alarm
    state: dict = initial_state(n=0, mean=0.0, up=0.0, down=0.0)

    def update(self, value: float) -> str | None:
        """Return "up", "down" or None after a value. ValueError: it is not finite."""
        state = self.state
        state["n"] += 1
        state["mean"] += (require_finite(value, "the watched value") - state["mean"]) / state["n"]
        gap = value - state["mean"]
        state["up"] = max(0.0, state["up"] + gap - self.delta)
        state["down"] = max(0.0, state["down"] - gap - self.delta)
        if state["n"] <= self.warmup or max(state["up"], state["down"]) <= self.threshold:
            return None
        direction = "up" if state["up"] > state["down"] else "down"
        state.update(n=0, mean=0.0, up=0.0, down=0.0)
        return direction


def psi(reference_K: Sequence[float], current_K: Sequence[float], smoothing: float = 0.5) -> float:
    """Return the population stability index of two histograms, sum of (q - p) ln(q / p), in nats.

    `smoothing` is added to every count. Equal distributions give about (K - 1)(1/n + 1/m) by
    chance; conventionally 0.1 deserves attention and 0.25 is a shift.

    Raises:
        ValueError: a share would be 0.

    >>> psi([5, 5], [5, 5])
    0.0
    """
    require(len(reference_K) == len(current_K) > 0, "two histograms of the same bins are needed")
    shares = []
    for counts in (reference_K, current_K):
        smoothed = [require_finite(count, "a count") + smoothing for count in counts]
        require(min(smoothed) > 0, "a bin is empty: merge it or give a positive smoothing")
        shares.append([count / sum(smoothed) for count in smoothed])
    return sum((q - p) * math.log(q / p) for p, q in zip(*shares))


@dataclass(frozen=True)
class HistogramShift(StateMachine):
    """`psi` of each `window` values relative to the first window; alarm "shape" above `above`.

    Bin edges are the first window's quantiles, and values equal to an edge form a bin of their own,
    so 0/1 rewards and constants work too. After an alarm the current window becomes the reference.
    With window 200 and 5 bins, chance exceeds 0.25 in about one of 20,000 windows; with 64, in one
    of ten.
    """

    above: Positive = math.inf
    window: int = 200
    bins: int = 5
    state: dict = initial_state(reference=[], current=[], psi=0.0)

    def __post_init__(self):
        super().__post_init__()
        require(2 <= self.bins <= self.window, f"2 <= bins <= {self.window}, got {self.bins}")

    def update(self, values: Iterable[float]) -> str | None:
        """Return "shape" or None after a step's values. ValueError: one is not finite."""
        state = self.state
        alarm = None
        for value in values:
            filling = "reference" if len(state["reference"]) < self.window else "current"
            state[filling].append(require_finite(value, "a watched value"))
            if len(state["current"]) < self.window:
                continue
            state["psi"] = psi(*self._histograms())
            if state["psi"] > self.above:
                alarm = "shape"
                state["reference"] = state["current"]
            state["current"] = []
        return alarm

    def _histograms(self) -> tuple[list[int], list[int]]:
        """Count the values of each window per bin; an edge is a bin between two others."""
        edges = sorted(set(statistics.quantiles(self.state["reference"], n=self.bins)))
        histograms = []
        for window in (self.state["reference"], self.state["current"]):
            bins = [bisect_left(edges, value) + bisect_right(edges, value) for value in window]
            histograms.append([bins.count(k) for k in range(2 * len(edges) + 1)])
        return histograms[0], histograms[1]


class Alarm(NamedTuple):
    """An alarm raised by `DriftDetector`."""

    step: int  # of the detector, from 1
    signal: str
    kind: str  # "up", "down", "shape", or "changed" (an identity)


@dataclass(frozen=True)
class DriftDetector(StateMachine):
    """Drift monitors per signal, running averages, and versions of world, index and tools.

    Args:
        monitors: `PageHinkley` for a signal with one number per step, `HistogramShift` for one with
            a list; they are copied.
    """

    monitors: Mapping[str, PageHinkley | HistogramShift] = field(default_factory=dict)
    memory: Annotated[float, "[0, 1)"] = 0.9  # decay of the running averages, per step
    state: dict = initial_state(step=0, averages={}, identity={}, monitors={})

    def __post_init__(self):
        super().__post_init__()
        monitors = {name: copy.deepcopy(monitor) for name, monitor in self.monitors.items()}
        object.__setattr__(self, "monitors", monitors)

    def update(
        self,
        signals: Mapping[str, float | Sequence[float] | None],
        identity: Mapping[str, str] | None = None,
    ) -> list[Alarm]:
        """Return the alarms of a step.

        Args:
            signals: as returned by `rollout_signals`; None: not measured.
            identity: versions of world, index and tools; a change raises an alarm.

        Raises:
            ValueError: a monitored signal is missing or not finite.
        """
        state = self.state
        missing = sorted(set(self.monitors) - set(signals))
        require(not missing, f"signals lack {missing}; pass None if one was not measured")
        state["step"] += 1
        for name, value in signals.items():
            if isinstance(value, int | float):
                old = state["averages"].get(name, value)
                new = require_finite(value, name)
                state["averages"][name] = self.memory * old + (1 - self.memory) * new
        alarms = []
        for name in sorted(self.monitors):
            monitor: Any = self.monitors[name]
            kind = None if signals[name] is None else monitor.update(signals[name])
            if kind:
                alarms.append(Alarm(state["step"], name, kind))
        for name, version in sorted((identity or {}).items()):
            if state["identity"].setdefault(name, version) != version:
                alarms.append(Alarm(state["step"], name, "changed"))
                state["identity"][name] = version
        return alarms

    def state_dict(self) -> dict:
        monitors = {name: monitor.state_dict() for name, monitor in self.monitors.items()}
        return super().state_dict() | {"monitors": monitors}

    def load_state_dict(self, state: Mapping) -> None:
        known = sorted(self.monitors)
        saved = sorted(state.get("monitors", {}))
        require(known == saved, f"the detector monitors {known}, the state has {saved}")
        super().load_state_dict({**state, "monitors": {}})
        for name, monitor in self.monitors.items():
            monitor.load_state_dict(state["monitors"][name])


@dataclass(frozen=True)
class AdaptiveLearningRate(StateMachine):
    """Factor of the scheduled learning rate: reduced by an alarm, held, then restored to 1.

    An alarm multiplies the current value by `factor` for `hold` steps; the next `recovery` steps
    return to 1 in equal increments. It is never above 1 or below `floor`. factor 1: always exactly
    1.
    """

    factor: Annotated[float, "(0, 1]"] = 1.0
    hold: AtLeastOne = 10
    recovery: AtLeastOne = 10
    floor: Annotated[float, "[0, 1]"] = 0.01
    state: dict = initial_state(low=1.0, age=0, scale=1.0)

    def update(self, alarm: bool) -> float:
        """Return the factor for the next step."""
        state = self.state
        if alarm and self.factor < 1:
            state.update(low=max(self.factor * state["scale"], self.floor), age=0)
        recovered = min(max(state["age"] - self.hold + 1, 0) / self.recovery, 1.0)
        state["age"] += 1
        if recovered < 1:
            state["scale"] = state["low"] + (1 - state["low"]) * recovered
        else:
            state["scale"] = 1.0
        return state["scale"]


@dataclass(frozen=True)
class EmergencyStop(StateMachine):
    """Stops training when the policy stops answering (format collapse late in a run).

    A signal counts only after its mean was below the first limit, because an untrained policy is
    not a collapse. Then `patience` consecutive steps above the second limit stop the run, until the
    mean is below the first limit again (hysteresis).

    Args:
        limits: signal -> (fine below, collapsed above) for its mean over the last `window` steps,
            such as {"unanswered": (0.3, 0.6), "format_errors": (0.1, 0.3)}; empty: never stops.
    """

    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    window: AtLeastOne = 5
    patience: AtLeastOne = 3
    state: dict = initial_state()

    def __post_init__(self):
        super().__post_init__()
        for name, (fine, collapsed) in self.limits.items():
            ordered = 0 < fine <= collapsed < 1
            require(ordered, f"{name}: 0 < fine <= collapsed < 1, got {fine} and {collapsed}")
            self.state[name] = {"recent": [], "armed": False, "above": 0}

    def update(self, signals: Mapping[str, float | None]) -> str | None:
        """Return the reason to stop after this step, or None. Signals of None are skipped."""
        reasons = []
        for name, (fine, collapsed) in self.limits.items():
            require(name in signals, f"signals lack {name!r}; pass None if it was not measured")
            state = self.state[name]
            if signals[name] is not None:
                recent = [*state["recent"], require_finite(signals[name], name)][-self.window :]
                state["recent"] = recent
                mean = sum(recent) / len(recent)
                if mean > collapsed:
                    state["above"] += 1
                elif mean < fine or state["above"] < self.patience:
                    state["armed"] = state["armed"] or mean < fine
                    state["above"] = 0
            if state["armed"] and state["above"] >= self.patience:
                reasons.append(
                    f"{name} has been above {collapsed} for {state['above']} steps, "
                    "resume from an earlier checkpoint"
                )
        return "; ".join(reasons) or None
