"""What watches a run and acts: the KL's weight, the reference, hard resets, and drift.

The rules are `drlib.rl.stability`'s; here they get what a step of the loop has shown, and what they
decide is done. Each is off by default, works without the others, and keeps all that it has seen in
the checkpoint, a moved reference too. A column of metrics.jsonl says what was in force in its step
(`kl_coef`, `reference_age`, `lr_scale`) or what happened in it (`reset`, `validation`,
`drift_alarms`); what is decided after a step counts from the next one on.

- `rl.callbacks.kl_target`: the weight of the KL is doubled and halved (PPO, arXiv 1707.06347, section 4). At
  the reference the KL is 0 whatever the weight, so at the start of a run and after each move of
  the reference the weight is halved step by step until the policy has gone somewhere.
- `rl.callbacks.reference_every`, `rl.callbacks.reference_decay`: the policy becomes its own reference (TR-DPO, arXiv
  2404.09656: hard, or by a moving average). `reference_age`: steps since the last move.
- `rl.callbacks.reset_patience`: ProRL's hard reset (arXiv 2505.24864): reference = policy where there is
  one, and the optimizer's state is cleared. The schedule of the learning rate goes on, without a
  new warm-up (ProRL resets the states alone), so Adam's first step after it is a large one.
- `rl.callbacks.drift_factor`: an alarm lowers the learning rate, which then recovers (the architecture page
  of Tongyi DeepResearch, drawn there without a formula).

Left out: changing the rollouts after an alarm, and going back to an earlier checkpoint.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from drlib.config import Config
from drlib.rl.stability import (
    AdaptiveLearningRate,
    Alarm,
    DriftDetector,
    HistogramShift,
    KLController,
    PageHinkley,
    ReferenceReset,
    rollout_signals,
    sync_reference,
)
from drlib.rl.state_machine import StateMachine, initial_state
from drlib.tools import Toolbox
from drlib.training.optim import Optimizers
from drlib.training.distributed import Ranks
from drlib.training.rollouts import has_changed
from drlib.trajectory import Termination, ToolResult, Trajectory
from drlib.validation import AtLeastOne, require, require_within
from drlib.worlds.perturbed import perturbed_version

KL_COEF_RANGE = "[1e-6, 1e3]"  # in which factors of 2 lead somewhere


def check_steering(config: Config) -> None:
    """ValueError for settings that would do nothing, or something else, without each other."""
    held = config.rl.loss.kl_coef > 0
    if config.rl.callbacks.kl_target > 0:
        require(
            held,
            "rl.callbacks.kl_target steers rl.loss.kl_coef, whose first value it needs: set both",
        )
        require_within(
            config.rl.loss.kl_coef,
            KL_COEF_RANGE,
            "rl.loss.kl_coef, as rl.callbacks.kl_target steers it,",
        )
    require(
        held or config.rl.callbacks.reference_every == 0,
        "rl.callbacks.reference_every moves the reference of the KL term: set rl.loss.kl_coef too",
    )
    require_within(config.rl.callbacks.reference_decay, "[0, 1)", "rl.callbacks.reference_decay")
    require(
        config.rl.callbacks.reference_every > 0 or config.rl.callbacks.reference_decay == 0,
        "rl.callbacks.reference_decay says how rl.callbacks.reference_every moves the reference: set that too",
    )
    require(
        config.rl.callbacks.validate_every >= 1, "rl.callbacks.validate_every must be at least 1"
    )
    require_within(config.rl.callbacks.drift_factor, "(0, 1]", "rl.callbacks.drift_factor")


class Steering:
    """Watches step after step and acts on the policy's surroundings.

    model, reference, optimizers: what is acted upon, the checkpoint loaded into the first and the
    last; reference: None without a KL term. toolbox: whose tools and world are watched. state: of
    `state_dict`, from the checkpoint; None at the start of a run.
    """

    def __init__(
        self,
        config: Config,
        model,
        reference,
        optimizers: Optimizers,
        toolbox: Toolbox,
        state: Mapping | None = None,
    ):
        self.config, self.model, self.reference = config, model, reference
        self.optimizers, self.toolbox = optimizers, toolbox
        self.kl = KLController(config.rl.loss.kl_coef, config.rl.callbacks.kl_target or None)
        self.period = ReferenceReset(every=config.rl.callbacks.reference_every or None)
        self.plateau = ReferenceReset(config.rl.callbacks.reset_patience or None)
        self.validation = Validation(config.rl.callbacks.validate_every)
        watched = monitors_of(config, toolbox.tools) if config.rl.callbacks.drift_factor < 1 else {}
        self.detector = DriftDetector(watched)
        self.rate = AdaptiveLearningRate(config.rl.callbacks.drift_factor)
        self.age = 0  # steps that the reference has stood
        self.moved = False  # whether the reference is not the starting policy any more
        if state:
            self._load(state)

    @property
    def kl_coef(self) -> float:
        """The weight of the KL in the next step's loss."""
        return self.kl.state["coef"]

    @property
    def lr_scale(self) -> float:
        """The factor of the schedule's learning rate in the next step."""
        return self.rate.state["scale"]

    def after(
        self,
        step: int,
        row: Mapping,
        trajectories: Sequence[Trajectory],
        outcomes: Iterable[tuple[str, float]],
        ranks: Ranks,
    ) -> dict[str, float]:
        """Act on what a step has shown; its columns of metrics.

        step: from 0. row: of the update (`learn`), over all ranks. trajectories: this rank's.
        outcomes: (skill, 1.0 right or 0.0 wrong) of all ranks' rollouts. ValueError: the KL, a
        reward or a share is not finite.
        """
        columns = self._steer_kl(row) | self._renew(outcomes)
        if self.config.rl.callbacks.drift_factor < 1:
            columns |= self._watch(step, trajectories, ranks)
        return columns

    def _steer_kl(self, row: Mapping) -> dict[str, float]:
        """A step that trained on nothing has measured no KL: the weight stays."""
        if self.config.rl.callbacks.kl_target == 0:
            return {}
        columns = {"kl_coef": self.kl_coef}
        if row["trained_share"] > 0:
            self.kl.update(row["kl"])
        return columns

    def _renew(self, outcomes: Iterable[tuple[str, float]]) -> dict[str, float]:
        """Move the reference where its time has come; reset where nothing has got better."""
        columns: dict[str, float] = {}
        age, self.age = self.age, self.age + 1
        if self.period.update() is not None:
            self._move_reference(self.config.rl.callbacks.reference_decay)
        if self.config.rl.callbacks.reset_patience > 0:
            score = self.validation.update(outcomes)
            stagnates = self.plateau.update(score) is not None
            if stagnates:
                self.start_anew()
            columns["reset"] = float(stagnates)
            columns |= {} if score is None else {"validation": score}
        moves = (
            self.config.rl.callbacks.reference_every > 0
            or self.config.rl.callbacks.reset_patience > 0
        )
        if moves and self.reference is not None:
            columns["reference_age"] = age
        return columns

    def start_anew(self) -> None:
        """The policy becomes its own reference, and the optimizer's state is cleared."""
        self._move_reference(0.0)
        self.optimizers.forget()

    def _move_reference(self, decay: float) -> None:
        """To the policy; without a KL term there is none."""
        if self.reference is not None:
            sync_reference(self.reference, self.model, decay=decay)
            self.age, self.moved = 0, True

    def _watch(self, step: int, trajectories: Sequence[Trajectory], ranks: Ranks) -> dict:
        """Alarms of all ranks' rollouts; they lower the rate of the next step."""
        scale = self.lr_scale
        told = ranks.gather([_told(trajectory) for trajectory in trajectories])
        signals = watched_signals(told, self.toolbox.tools, self.config.rl.questions)
        world = self.toolbox.world.version
        if has_changed(self.config, step):
            world = perturbed_version(world)
        alarms = [a for a in self.detector.update(signals, {"world": world}) if is_worse(a)]
        self.rate.update(bool(alarms))
        averages = self.detector.state["averages"].items()
        columns = {f"state_{name.replace('/', '_')}": value for name, value in averages}
        return {"drift_alarms": len(alarms), "lr_scale": scale, **columns}

    def state_dict(self) -> dict:
        """All that the next step depends on; the reference only where it has moved."""
        return {
            **{name: part.state_dict() for name, part in self._parts().items()},
            "age": self.age,
            "reference": self.reference.state_dict() if self.moved else None,
        }

    def _load(self, state: Mapping) -> None:
        for name, part in self._parts().items():
            part.load_state_dict(state[name])
        self.age = state["age"]
        if state["reference"] is not None:
            self.reference.load_state_dict(state["reference"])
            self.moved = True

    def _parts(self) -> dict:
        return {
            "kl": self.kl,
            "period": self.period,
            "plateau": self.plateau,
            "validation": self.validation,
            "detector": self.detector,
            "rate": self.rate,
        }


@dataclass(frozen=True)
class Validation(StateMachine):
    """The score that stagnates or not: the mean over skills of the accuracy of `every` steps.

    ProRL validates on held-out benchmarks. Here every question is drawn afresh, so the rollouts
    that are trained on are unseen when they are made, and a validation costs none besides. The
    curriculum asks more of what the policy half knows, so the mean over rollouts stands still while
    the policy gets better: each skill counts the same. One that was not asked in these steps keeps
    its last accuracy, or its absence would look like progress.
    """

    every: AtLeastOne = 5
    state: dict = initial_state(steps=0, seen={}, known={})

    def update(self, outcomes: Iterable[tuple[str, float]]) -> float | None:
        """After a step's (skill, right): the score in 0..1 at the end of `every` steps, or None."""
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


# ---------------------------------------------------------------- drift

SHIFT = 0.35  # half of the smallest shift of a share worth an alarm, by 1 / sqrt(questions a step)
THRESHOLD = 3.5  # of Page-Hinkley, in the same unit
SHAPE = 0.4  # of the population stability index, nats
QUESTIONS_A_WINDOW = 240  # whose calls are one histogram
CALLS_A_ROLLOUT = 1.5  # about
WORSE = {"reward": "down", "errors": "up"}  # the other direction is what learning looks like
NOT_REPEATABLE = ("latency_s", "cache_hits")  # depend on the clock and on threads


class Told(NamedTuple):
    """What `rollout_signals` reads of a trajectory: other ranks get this and no tokens."""

    answer: str | None
    reward: float | None
    termination: Termination
    tool_results: list[ToolResult]


def _told(trajectory: Trajectory) -> Told:
    return Told(
        trajectory.answer, trajectory.reward, trajectory.termination, trajectory.tool_results
    )


def monitors_of(config: Config, tools: Iterable[str]) -> dict[str, PageHinkley | HistogramShift]:
    """Signal -> its monitor; none where `rl.callbacks.drift_factor` is 1.

    A step's shares are the surer the more questions it has, so the thresholds fall with their root;
    rollouts of one question see the same pages, so a histogram is of questions and not of calls.
    Measured on the 500 steps of the five committed runs: no false alarm of reward or errors (in the
    direction that counts: learning itself is ten alarms in the other), and all five controls of
    random reward collapse under alarms of both. On rollouts of the laptop profile the stability
    index of the observations is at most 0.28 in 60 steps of learning and 0.54 once the world has
    changed: that alarm comes 13 steps after the change. (A histogram of 200 calls, the monitor's
    default, alarms in every step.)
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


def watched_signals(rollouts: Sequence[Told], tools: Iterable[str], fewest: int) -> dict:
    """`rollout_signals` without what two runs of the same seed do not share (times, cache hits);
    None for the errors of a tool that was called less than `fewest` times: a share of next to
    nothing is 0 or 1 by chance."""
    calls = Counter(result.tool for rollout in rollouts for result in rollout.tool_results)
    signals = rollout_signals(rollouts, tools)
    rare = {f"errors/{tool}" for tool in tools if calls[tool] < fewest}
    return {
        name: None if name in rare else value
        for name, value in signals.items()
        if not name.startswith(NOT_REPEATABLE)
    }


def is_worse(alarm: Alarm) -> bool:
    """Whether an alarm is a reason to learn more slowly: rewards that rise and errors that fall
    are none."""
    return alarm.kind == WORSE.get(alarm.signal.partition("/")[0], alarm.kind)
