"""What keeps a long run in a changing world from breaking: watch metrics, decide, say why.

The architecture page of Tongyi DeepResearch draws a stabiliser for non-stationary environments
without a formula; its report has none of it. Each box is here the plainest published rule, with
its source at the class. Stale samples and replay: `drlib.rl.staleness`.

Metrics in, decisions out: each is a frozen dataclass whose fields are settings, and `state` (JSON
values) is what it has seen, so that a killed run resumes to the same decisions. Without arguments
each one is off: a constant, or never an alarm. Left out: acting on a decision (the trainer's
work), learned change-point models, entropy control.
"""

import copy
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

import torch

from drlib.rewards.functions import has_env_fault
from drlib.rl.state_machine import StateMachine, initial_state
from drlib.trajectory import Termination, Trajectory
from drlib.validation import (
    AtLeastOne,
    Coefficient,
    Positive,
    require,
    require_finite,
    require_within,
)

_COEF_RANGE = (1e-6, 1e3)  # of a steered KL coefficient: neither underflow nor a frozen policy


@dataclass(frozen=True)
class KLController(StateMachine):
    """The coefficient of the KL term, steered so that KL stays near `target` (nats; None: fixed).

    It is doubled above 1.5 target and halved below target / 1.5 (PPO, arXiv 1707.06347, section 4).
    """

    coef: Coefficient = 0.0
    target: Annotated[float, "(0, inf)"] | None = None
    state: dict = initial_state(coef=0.0)

    def __post_init__(self):
        super().__post_init__()
        usable = self.target is None or _COEF_RANGE[0] <= self.coef <= _COEF_RANGE[1]
        require(usable, f"coef {self.coef} is not in {_COEF_RANGE}: factors of 2 cannot leave 0")
        self.state["coef"] = self.coef

    def update(self, kl: float) -> float:
        """The next step's coefficient, from a step's mean KL (nats; an estimate may be below 0)."""
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
    """When to make the policy its own reference and renew the optimizer (ProRL, 2505.24864).

    None: never for that cause. Progress after a reset is measured from the score at it.
    """

    patience: AtLeastOne | None = (
        None  # validations in a row that do not beat the best since a reset
    )
    min_delta: Coefficient = 0.0  # by which to beat it
    every: AtLeastOne | None = None  # steps since the last reset
    state: dict = initial_state(since=0, best=None, stale=0)

    def update(self, score: float | None = None) -> str | None:
        """After a step, with its validation score if there was one: "stagnation" or "period" if a
        reset is due, else None."""
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
    """Move a module to another in place, and empty the optimizers' state.

    reference, policy: modules; parameters become decay * reference + (1 - decay) * policy, exact at
    0 and 1, buffers are copied as they are. decay: in [0, 1]; in bfloat16 one near 1 rounds the
    change away: keep the reference in float32. optimizers: anything with a `state` mapping, such as
    AdamW, whose moments and step count belong to the old objective; none given, they stay.
    ValueError, before anything is changed, where the models do not match or share a tensor.
    """
    require_within(decay, "[0, 1]", "decay")
    ours = [*reference.parameters(), *reference.buffers()]
    theirs = [*policy.parameters(), *policy.buffers()]
    alike = [t.shape for t in ours] == [t.shape for t in theirs]
    require(alike, "reference and policy differ in their tensors' shapes")
    shared = any(a.data_ptr() == b.data_ptr() for a, b in zip(ours, theirs) if a.numel())
    require(not shared, "reference and policy share a tensor; make one with copy.deepcopy")
    states = [optimizer.state for optimizer in optimizers]
    for old, new in zip(ours, theirs):
        if decay and isinstance(old, torch.nn.Parameter):
            old.lerp_(new.to(old), 1 - decay)
        else:
            old.copy_(new)
    for state in states:
        state.clear()


def rollout_signals(
    trajectories: Sequence[Trajectory], tools: Iterable[str] = ()
) -> dict[str, float | list[float] | None]:
    """What a step's rollouts say of environment and policy; None where nothing was measured.

    Of the rollouts without environment fault: mean reward, shares of unanswered and of those ended
    by format_errors. faults: share with one. observation_chars: one a call. For each of `tools`:
    shares errors/NAME and cache_hits/NAME, mean latency_s/NAME.
    """
    sound = [t for t in trajectories if not has_env_fault(t)]
    calls = [result for t in trajectories for result in t.tool_results]
    signals = {
        "reward": _mean(t.reward for t in sound if t.reward is not None),
        "unanswered": _mean(t.answer is None for t in sound),
        "format_errors": _mean(t.termination == Termination.FORMAT for t in sound),
        "faults": _mean(has_env_fault(t) for t in trajectories),
        "observation_chars": [float(len(r.text)) for r in calls if r.tool != "format"],
    }
    for tool in tools:
        mine = [result for result in calls if result.tool == tool]
        signals[f"errors/{tool}"] = _mean(not result.ok for result in mine)
        signals[f"latency_s/{tool}"] = _mean(result.latency_s for result in mine)
        signals[f"cache_hits/{tool}"] = _mean(result.cache_hit for result in mine)
    return signals


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


@dataclass(frozen=True)
class PageHinkley(StateMachine):
    """Two-sided test for a shift of a mean (Page 1954, Hinkley 1971), in the units of what it sees.

    With m_t the sum of (x_i - mean(x_1..x_i) - delta) and m_0 = 0, an alarm "up" when m_t less its
    smallest value so far exceeds `threshold`; "down" with the signs turned. delta: half of the
    smallest shift worth an alarm. A larger one is seen after some threshold / (shift - delta)
    steps; false alarms fall like exp(-2 delta threshold / variance). None in the first `warmup`
    steps; after an alarm all starts again.
    """

    delta: Coefficient = 0.0  # half of the smallest shift worth an alarm
    threshold: Positive = math.inf
    warmup: int = 10  # first steps, without alarm
    state: dict = initial_state(n=0, mean=0.0, up=0.0, down=0.0)

    def update(self, value: float) -> str | None:
        """After a step's value: "up", "down" or None. ValueError: it is not finite."""
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
    """Population stability index of two histograms, sum of (q - p) ln(q / p), in nats.

    `smoothing` is added to every count. Equal distributions give about (K - 1)(1/n + 1/m) by
    chance; by custom 0.1 is worth a look and 0.25 a shift. ValueError where a share would be 0.
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
    """`psi` of each `window` values against the first window; "shape" above `above`.

    Bins lie between the first window's quantiles, and a value that equals one is a bin of its own,
    so that 0/1 rewards and constants work too. After an alarm the new window is the first one. At
    window 200 and 5 bins chance exceeds 0.25 in about one of 20,000 windows, at 64 in one of ten.
    """

    above: Positive = math.inf
    window: int = 200
    bins: int = 5
    state: dict = initial_state(reference=[], current=[], psi=0.0)

    def __post_init__(self):
        super().__post_init__()
        require(2 <= self.bins <= self.window, f"2 <= bins <= {self.window}, got {self.bins}")

    def update(self, values: Iterable[float]) -> str | None:
        """After a step's values: "shape" or None. ValueError: one is not finite."""
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

    def _histograms(self) -> list[list[int]]:
        """How many values of each window lie in each bin; an edge is a bin between two others."""
        edges = sorted(set(statistics.quantiles(self.state["reference"], n=self.bins)))
        histograms = []
        for window in (self.state["reference"], self.state["current"]):
            bins = [bisect_left(edges, value) + bisect_right(edges, value) for value in window]
            histograms.append([bins.count(k) for k in range(2 * len(edges) + 1)])
        return histograms


class Alarm(NamedTuple):
    """What a detector saw."""

    step: int  # of the detector, from 1
    signal: str
    kind: str  # "up", "down", "shape", or "changed" (an identity)


@dataclass(frozen=True)
class DriftDetector(StateMachine):
    """A monitor a signal, running averages of all numbers, and the identity of what answers.

    monitors: `PageHinkley` for a signal of a number a step, `HistogramShift` for one of a list;
        they are copied.
    """

    monitors: Mapping[str, PageHinkley | HistogramShift] = field(default_factory=dict)
    memory: Annotated[float, "[0, 1)"] = 0.9  # of the running averages, a step
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
        """After a step: its alarms. signals: as of `rollout_signals`; None: not measured. identity:
        versions of world, index and tools; an alarm when one is not as it was last. ValueError
        where a monitored signal is missing or not finite."""
        state = self.state
        missing = sorted(set(self.monitors) - set(signals))
        require(not missing, f"signals lack {missing}; give None where none was measured")
        state["step"] += 1
        for name, value in signals.items():
            if isinstance(value, int | float):
                old = state["averages"].get(name, value)
                new = require_finite(value, name)
                state["averages"][name] = self.memory * old + (1 - self.memory) * new
        alarms = []
        for name in sorted(self.monitors):
            kind = None if signals[name] is None else self.monitors[name].update(signals[name])
            if kind:
                alarms.append(Alarm(state["step"], name, kind))
        for name, version in sorted((identity or {}).items()):
            if state["identity"].setdefault(name, version) != version:
                alarms.append(Alarm(state["step"], name, "changed"))
                state["identity"][name] = version
        return alarms

    def state_dict(self) -> dict:
        kept = {name: monitor.state_dict() for name, monitor in self.monitors.items()}
        return super().state_dict() | {"monitors": kept}

    def load_state_dict(self, state: Mapping) -> None:
        known = sorted(self.monitors)
        held = sorted(state.get("monitors", {}))
        require(known == held, f"the detector watches {known}, the state is of {held}")
        super().load_state_dict({**state, "monitors": {}})
        for name, monitor in self.monitors.items():
            monitor.load_state_dict(state["monitors"][name])


@dataclass(frozen=True)
class AdaptiveLearningRate(StateMachine):
    """A factor of the scheduled learning rate: lowered by an alarm, held, then led back to 1.

    An alarm multiplies what is in force by `factor` for `hold` steps; the next `recovery` steps
    lead back in equal parts. Never above 1, never below `floor`. factor 1: always exactly 1.
    """

    factor: Annotated[float, "(0, 1]"] = 1.0
    hold: AtLeastOne = 10
    recovery: AtLeastOne = 10
    floor: Annotated[float, "[0, 1]"] = 0.01
    state: dict = initial_state(low=1.0, age=0, scale=1.0)

    def update(self, alarm: bool) -> float:
        """The factor for the next step."""
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
    """Says stop when the policy forgets how to answer (format collapse late in a run).

    limits: signal -> (fine below, collapsed above) for its mean over the last `window` steps, such
        as {"unanswered": (0.3, 0.6), "format_errors": (0.1, 0.3)}; empty: never.
    A signal counts only once it has been fine: an untrained policy is not a collapse. Then
    `patience` steps in a row above its upper limit stop, until it is fine again (hysteresis).
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
        """The reason to stop after this step, or None. A signal of None leaves all as it was."""
        reasons = []
        for name, (fine, collapsed) in self.limits.items():
            require(name in signals, f"signals lack {name!r}; give None where none was measured")
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
                    "go back to an earlier checkpoint"
                )
        return "; ".join(reasons) or None
