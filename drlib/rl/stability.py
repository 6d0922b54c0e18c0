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
from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import torch

from drlib.checks import Coefficient, Count, Positive, finite, require, within
from drlib.rl.rewards import has_env_fault
from drlib.rl.staleness import Machine, StalenessFilter, fresh  # noqa: F401
from drlib.trajectory import Termination, Trajectory

COEF_RANGE = (1e-6, 1e3)  # of a steered KL coefficient: neither underflow nor a frozen policy


@dataclass(frozen=True)
class KLController(Machine):
    """The coefficient of the KL term, steered so that KL stays near `target` (nats; None: fixed):
    doubled above 1.5 target, halved below target / 1.5 (PPO, arXiv 1707.06347, section 4)."""

    coef: Coefficient = 0.0
    target: Annotated[float, "(0, inf)"] | None = None
    state: dict = fresh(coef=0.0)

    def __post_init__(self):
        super().__post_init__()
        usable = self.target is None or COEF_RANGE[0] <= self.coef <= COEF_RANGE[1]
        require(usable, f"coef {self.coef} is not in {COEF_RANGE}: factors of 2 cannot leave 0")
        self.state["coef"] = self.coef

    def update(self, kl: float) -> float:
        """The next step's coefficient, from a step's mean KL (nats; an estimate may be below 0)."""
        if self.target is not None:
            ratio, (low, high) = finite(kl, "the KL divergence") / self.target, COEF_RANGE
            change = 2.0 if ratio > 1.5 else 0.5 if ratio < 1 / 1.5 else 1.0
            self.state["coef"] = min(max(self.state["coef"] * change, low), high)
        return self.state["coef"]


@dataclass(frozen=True)
class ReferenceReset(Machine):
    """When to make the policy its own reference and renew the optimizer (ProRL, 2505.24864).

    None: never for that cause. Progress after a reset is measured from the score at it.
    """

    patience: Count | None = None  # validations in a row that do not beat the best since a reset
    min_delta: Coefficient = 0.0  # by which to beat it
    every: Count | None = None  # steps since the last reset
    state: dict = fresh(since=0, best=None, stale=0)

    def update(self, score: float | None = None) -> str | None:
        """After a step, with its validation score if there was one: "stagnation" or "period" if a
        reset is due, else None."""
        s = self.state
        s["since"] += 1
        cause = "period" if self.every is not None and s["since"] >= self.every else None
        if score is not None:
            score = finite(score, "the validation score")
            better = s["best"] is None or score > s["best"] + self.min_delta
            s["best"], s["stale"] = (score, 0) if better else (s["best"], s["stale"] + 1)
            if self.patience is not None and s["stale"] >= self.patience:
                cause = "stagnation"
        if cause is not None:
            s.update(since=0, stale=0, best=s["best"] if score is None else score)
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
    within(decay, "[0, 1]", "decay")
    ours, theirs = ([*model.parameters(), *model.buffers()] for model in (reference, policy))
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

    def mean(values: Iterable[float]) -> float | None:
        values = list(values)
        return sum(values) / len(values) if values else None

    sound = [t for t in trajectories if not has_env_fault(t)]
    calls = [result for t in trajectories for result in t.tool_results]
    signals = {
        "reward": mean(t.reward for t in sound if t.reward is not None),
        "unanswered": mean(t.answer is None for t in sound),
        "format_errors": mean(t.termination == Termination.FORMAT for t in sound),
        "faults": mean(has_env_fault(t) for t in trajectories),
        "observation_chars": [float(len(r.text)) for r in calls if r.tool != "format"],
    }
    for tool in tools:
        mine = [result for result in calls if result.tool == tool]
        signals[f"errors/{tool}"] = mean(not result.ok for result in mine)
        signals[f"latency_s/{tool}"] = mean(result.latency_s for result in mine)
        signals[f"cache_hits/{tool}"] = mean(result.cache_hit for result in mine)
    return signals


@dataclass(frozen=True)
class PageHinkley(Machine):
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
    state: dict = fresh(n=0, mean=0.0, up=0.0, down=0.0)

    def update(self, value: float) -> str | None:
        """After a step's value: "up", "down" or None. ValueError: it is not finite."""
        s = self.state
        s["n"] += 1
        s["mean"] += (finite(value, "the watched value") - s["mean"]) / s["n"]
        gap = value - s["mean"]
        s["up"] = max(0.0, s["up"] + gap - self.delta)
        s["down"] = max(0.0, s["down"] - gap - self.delta)
        if s["n"] <= self.warmup or max(s["up"], s["down"]) <= self.threshold:
            return None
        direction = "up" if s["up"] > s["down"] else "down"
        s.update(n=0, mean=0.0, up=0.0, down=0.0)
        return direction


def psi(reference_K: Sequence[float], current_K: Sequence[float], smoothing: float = 0.5) -> float:
    """Population stability index of two histograms, sum of (q - p) ln(q / p), in nats.

    `smoothing` is added to every count. Equal distributions give about (K - 1)(1/n + 1/m) by
    chance; by custom 0.1 is worth a look and 0.25 a shift. ValueError where a share would be 0.
    """
    require(len(reference_K) == len(current_K) > 0, "two histograms of the same bins are needed")
    shares = []
    for counts in (reference_K, current_K):
        smoothed = [finite(count, "a count") + smoothing for count in counts]
        require(min(smoothed) > 0, "a bin is empty: merge it or give a positive smoothing")
        shares.append([count / sum(smoothed) for count in smoothed])
    return sum((q - p) * math.log(q / p) for p, q in zip(*shares))


@dataclass(frozen=True)
class HistogramShift(Machine):
    """`psi` of each `window` values against the first window; "shape" above `above`.

    Bins lie between the first window's quantiles, and a value that equals one is a bin of its own,
    so that 0/1 rewards and constants work too. After an alarm the new window is the first one. At
    window 200 and 5 bins chance exceeds 0.25 in about one of 20,000 windows, at 64 in one of ten.
    """

    above: Positive = math.inf
    window: int = 200
    bins: int = 5
    state: dict = fresh(reference=[], current=[], psi=0.0)

    def __post_init__(self):
        super().__post_init__()
        require(2 <= self.bins <= self.window, f"2 <= bins <= {self.window}, got {self.bins}")

    def update(self, values: Iterable[float]) -> str | None:
        """After a step's values: "shape" or None. ValueError: one is not finite."""
        s, alarm = self.state, None
        for value in values:
            filling = "reference" if len(s["reference"]) < self.window else "current"
            s[filling].append(finite(value, "a watched value"))
            if len(s["current"]) == self.window:
                s["psi"] = psi(*self._histograms())
                if s["psi"] > self.above:
                    alarm, s["reference"] = "shape", s["current"]
                s["current"] = []
        return alarm

    def _histograms(self) -> list[list[int]]:
        windows = self.state["reference"], self.state["current"]
        edges = sorted(set(statistics.quantiles(windows[0], n=self.bins)))
        places = ([bisect_left(edges, v) + bisect_right(edges, v) for v in w] for w in windows)
        return [[at.count(k) for k in range(2 * len(edges) + 1)] for at in places]


# step: of the detector, from 1; kind: "up", "down", "shape" or "changed" (an identity)
Alarm = namedtuple("Alarm", "step signal kind")


@dataclass(frozen=True)
class DriftDetector(Machine):
    """A monitor a signal (copied: `PageHinkley` for a number a step, `HistogramShift` for a list),
    running averages of all numbers, identity of what answers."""

    monitors: Mapping[str, PageHinkley | HistogramShift] = field(default_factory=dict)
    memory: Annotated[float, "[0, 1)"] = 0.9  # of the running averages, a step
    state: dict = fresh(step=0, averages={}, identity={}, monitors={})

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
        s, alarms = self.state, []
        missing = sorted(set(self.monitors) - set(signals))
        require(not missing, f"signals lack {missing}; give None where none was measured")
        s["step"] += 1
        for name, value in signals.items():
            if isinstance(value, int | float):
                old = s["averages"].get(name, value)
                s["averages"][name] = self.memory * old + (1 - self.memory) * finite(value, name)
        for name in sorted(self.monitors):
            kind = None if signals[name] is None else self.monitors[name].update(signals[name])
            alarms += [Alarm(s["step"], name, kind)] if kind else []
        for name, version in sorted((identity or {}).items()):
            if s["identity"].setdefault(name, version) != version:
                alarms.append(Alarm(s["step"], name, "changed"))
                s["identity"][name] = version
        return alarms

    def state_dict(self) -> dict:
        kept = {name: monitor.state_dict() for name, monitor in self.monitors.items()}
        return super().state_dict() | {"monitors": kept}

    def load_state_dict(self, state: Mapping) -> None:
        known, held = sorted(self.monitors), sorted(state.get("monitors", {}))
        require(known == held, f"the detector watches {known}, the state is of {held}")
        super().load_state_dict({**state, "monitors": {}})
        for name, monitor in self.monitors.items():
            monitor.load_state_dict(state["monitors"][name])


@dataclass(frozen=True)
class AdaptiveLearningRate(Machine):
    """A factor of the scheduled learning rate: lowered by an alarm, held, then led back to 1.

    An alarm multiplies what is in force by `factor` for `hold` steps; the next `recovery` steps
    lead back in equal parts. Never above 1, never below `floor`. factor 1: always exactly 1.
    """

    factor: Annotated[float, "(0, 1]"] = 1.0
    hold: Count = 10
    recovery: Count = 10
    floor: Annotated[float, "[0, 1]"] = 0.01
    state: dict = fresh(low=1.0, age=0, scale=1.0)

    def update(self, alarm: bool) -> float:
        """The factor for the next step."""
        s = self.state
        if alarm and self.factor < 1:
            s.update(low=max(self.factor * s["scale"], self.floor), age=0)
        done = min(max(s["age"] - self.hold + 1, 0) / self.recovery, 1.0)
        s["age"] += 1
        s["scale"] = s["low"] + (1 - s["low"]) * done if done < 1 else 1.0
        return s["scale"]


@dataclass(frozen=True)
class EmergencyStop(Machine):
    """Says stop when the policy forgets how to answer (format collapse late in a run).

    limits: signal -> (fine below, collapsed above) for its mean over the last `window` steps, such
        as {"unanswered": (0.3, 0.6), "format_errors": (0.1, 0.3)}; empty: never.
    A signal counts only once it has been fine: an untrained policy is not a collapse. Then
    `patience` steps in a row above its upper limit stop, until it is fine again (hysteresis).
    """

    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    window: Count = 5
    patience: Count = 3
    state: dict = fresh()

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
            s = self.state[name]
            if signals[name] is not None:
                s["recent"] = [*s["recent"], finite(signals[name], name)][-self.window :]
                mean = sum(s["recent"]) / len(s["recent"])
                if mean > collapsed:
                    s["above"] += 1
                elif mean < fine or s["above"] < self.patience:
                    s["armed"], s["above"] = s["armed"] or mean < fine, 0
            if s["armed"] and s["above"] >= self.patience:
                reasons.append(
                    f"{name} has been above {collapsed} for {s['above']} steps, "
                    "go back to an earlier checkpoint"
                )
        return "; ".join(reasons) or None
