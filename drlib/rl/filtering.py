"""Which trajectories a policy gradient may learn from, decided before the loss is computed.

Two questions are asked of each trajectory and answered separately: does it enter the loss, and
does its reward enter its group's baseline? The recipe's answer for a failure that ran into the
length limit without an answer is "no" and "yes": its tokens are not pushed down (unfiltered, they
are what Tongyi DeepResearch section 3.4 blames for policy collapse), yet the group still counts it
as a failure. rStar2-Agent found the opposite to work better, hence the switch. A trajectory spoilt
by the environment enters neither. Two more switches, both off in the recipe:

- `hallucination="exclude"`: a policy that writes a `<tool_response>` or another speaker's turn
  itself and then answers right was right about a world it made up. Its loss weight is 0, not
  negative: that would push the right answer down too. Wrong answers after one stay failures.
  A pipeline always does this.
- `pipeline=Pipeline(...)`: the selective filtering pipeline that public notes on Tongyi
  DeepResearch draw. The boxes are theirs, what each checks is ours: the report prints only the
  over-length example. Replaying, judging again and scoring under the trainer are the caller's
  work and arrive as `Evidence`.

Left out: filters of whole groups (`drlib.rl.resampling`; `drop_zero_variance_groups` is exported here
too), repetition rules (rStar2-Agent saw them hit honest re-checking).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from drlib.chat.tool_calls import FOREIGN_REASONS, FOREIGN_TAGS
from drlib.rewards.functions import has_env_fault
from drlib.rl.resampling import assistant_texts
from drlib.trajectory import Segment, Termination, Trajectory
from drlib.validation import AtLeastOne, Coefficient, check_fields, require, require_finite

_Real = Annotated[float, "[-inf, inf]"]


@dataclass(frozen=True)
class Pipeline:
    """Thresholds of the selective filtering pipeline; None switches a check off.

    Quality: too little makes a rollout low. Consistency: what fails is dropped, and always a
    rollout of several policy versions, of another world than its group's, or right by
    hallucination. Diversity: `max_alike` rollouts are kept. ValueError: a value out of its range.
    """

    low_weight: Annotated[float, "(0, 1]"] = 1.0  # of low quality in the loss
    validation: Literal["none", "replay"] = "none"  # low quality needs `Evidence.replayed`
    max_format_errors: Coefficient | None = 0  # quality: turns that could not be parsed
    max_tool_errors: Coefficient | None = None  # quality: share of failed calls
    ambiguous_from: _Real | None = None  # quality: rewards from here up to `positive_from` are low
    max_log_ratio: Coefficient | None = None  # consistency: |`Evidence.log_ratio`|, nats
    two_judges: bool = False  # consistency: both on one side of `positive_from`
    max_alike: AtLeastOne | None = (
        None  # diversity: of one group and outcome, with the same actions
    )

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class FilterConfig:
    """The filter's switches; the defaults are the recipe.

    "exclude" is from the loss; whether the baseline keeps the reward of what the loss leaves out is
    for `baseline` to say ("all": it does; "kept": no). ValueError: a value that a switch does not
    have.
    """

    overlong: Literal["exclude", "keep"] = "exclude"  # unanswered failures at one of `limits`
    limits: tuple[Termination, ...] = (Termination.LENGTH,)
    positive_from: _Real = 0.5  # a reward from here on is a success, below it a failure
    hallucination: Literal["keep", "exclude"] = "keep"  # successes after an imagined turn
    baseline: Literal["all", "kept"] = "all"  # "all": Tongyi's rule, as E-GRPO spells it out
    pipeline: Pipeline | None = None

    def __post_init__(self):
        check_fields(self)
        known = {Termination.LENGTH, Termination.TURNS, Termination.WALL_CLOCK, Termination.LOOP}
        require(known >= {*self.limits}, f"limits may hold {sorted(known)}, not {self.limits}")
        if self.pipeline is not None and not isinstance(self.pipeline, Pipeline):
            raise TypeError(f"pipeline must be a Pipeline or None, got {self.pipeline!r}")


@dataclass(frozen=True)
class Evidence:
    """What a trajectory does not know of itself; only the checks switched on ask for it."""

    log_ratio: float | None = None  # mean over its tokens of log(trainer's / rollout's), nats
    second_reward: float | None = None  # of another judge
    replayed: bool | None = None  # its actions, run again, gave the same observations and verdict


@dataclass(frozen=True)
class Verdict:
    """What becomes of a trajectory.

    label: "positive" or "negative" by its reward, "excluded" when its loss_weight is 0; under a
        pipeline "high", "low" or "drop" (loss_weight 0). reasons: why it is excluded, low or
        dropped, such as "overlong", "env_fault", "unjudged", "hallucination"; else empty.
    """

    label: Literal["positive", "negative", "excluded", "high", "low", "drop"]
    loss_weight: float
    in_baseline: bool
    reasons: tuple[str, ...] = ()


def classify(
    trajectory: Trajectory, config: FilterConfig | None = None, evidence: Evidence | None = None
) -> Verdict:
    """The verdict on one trajectory; the first matching rule decides whether it is in the baseline.

    Environment fault or no reward: out of loss and baseline. Unanswered failure at a limit: out of
    the loss only, unless `overlong="keep"`; a success by hallucination likewise, if excluded. All
    others are in both. A pipeline's rules come after these; `filter_rollouts` compares group members.
    ValueError where a check that is switched on lacks its evidence.
    """
    config = config or FilterConfig()
    drop = "drop" if config.pipeline else "excluded"

    # nothing to judge by
    reasons = ("env_fault",) if has_env_fault(trajectory) else ()
    if trajectory.reward is None:
        reasons += ("unjudged",)
    if reasons:
        return Verdict(drop, 0.0, False, reasons)
    require_finite(trajectory.reward, f"trajectory {trajectory.id}: the reward (None: not judged)")
    positive = trajectory.reward >= config.positive_from
    in_baseline = config.baseline == "all"

    # an unanswered failure at a limit
    limits = config.limits
    if config.pipeline:
        limits = (*limits, Termination.WALL_CLOCK)
    at_limit = trajectory.termination in limits and trajectory.answer is None
    if at_limit and not positive and config.overlong == "exclude":
        return Verdict(drop, 0.0, in_baseline, ("overlong",))

    # a success about a world of its own
    gated = config.pipeline or config.hallucination == "exclude"
    if positive and gated and has_hallucination(trajectory):
        return Verdict(drop, 0.0, in_baseline, ("hallucination",))

    if config.pipeline:
        return _grade(trajectory, positive, config, evidence or Evidence())
    return Verdict("positive" if positive else "negative", 1.0, True)


def filter_rollouts(
    trajectories: Sequence[Trajectory],
    config: FilterConfig | None = None,
    evidence: Sequence[Evidence | None] | None = None,
) -> tuple[Tensor, Tensor, dict]:
    """Classify a batch; its order does not matter.

    evidence: one per trajectory, for the checks of `config.pipeline` that ask for it.

    Returns (weights_N, in_baseline_N, report): float loss weights for `policy_loss`, bool members
    of the baseline for `advantages` (as `valid_N`), and counts for the log: `labels`, `reasons`,
    `excluded_tokens` (share of the generated tokens), `reward_mean` of the judged and
    `reward_mean_in_loss` of those trained on (None where there are none); with a pipeline also
    `reasons_by_label`. ValueError: `evidence` has another length, a reward is not finite, or a
    check that is switched on lacks its evidence.
    """
    config = config or FilterConfig()
    if evidence is None:
        evidence = [None] * len(trajectories)
    alike = len(evidence) == len(trajectories)
    require(alike, f"{len(evidence)} pieces of evidence for {len(trajectories)} trajectories")
    verdicts = [classify(t, config, e) for t, e in zip(trajectories, evidence)]
    if config.pipeline:
        _compare_within_groups(trajectories, verdicts, config)
    weights_N = torch.tensor([verdict.loss_weight for verdict in verdicts])
    in_baseline_N = torch.tensor([verdict.in_baseline for verdict in verdicts], dtype=torch.bool)
    return weights_N, in_baseline_N, _report(trajectories, verdicts, bool(config.pipeline))


def _report(trajectories: Sequence[Trajectory], verdicts: list[Verdict], by_label: bool) -> dict:
    """What the filter did, for the log."""
    tokens = [int(trajectory.generated.sum()) for trajectory in trajectories]
    lost = sum(n for n, verdict in zip(tokens, verdicts) if not verdict.loss_weight)
    judged = [t.reward for t in trajectories if t.reward is not None and not has_env_fault(t)]
    kept = [t.reward for t, v in zip(trajectories, verdicts) if v.loss_weight]
    report = {
        "labels": _counts(verdict.label for verdict in verdicts),
        "reasons": _counts(reason for verdict in verdicts for reason in verdict.reasons),
        "excluded_tokens": lost / max(sum(tokens), 1),
        "reward_mean": sum(judged) / len(judged) if judged else None,
        "reward_mean_in_loss": sum(kept) / len(kept) if kept else None,
    }
    if by_label:
        report["reasons_by_label"] = {
            label: _counts(r for v in verdicts if v.label == label for r in v.reasons or ("clean",))
            for label in report["labels"]
        }
    return report


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def has_hallucination(trajectory: Trajectory) -> bool:
    """Whether the policy wrote a tool response or another speaker's turn itself.

    Any of three signs tells: a sampled token inside one, a tag in its message, the agent's format
    error.
    """
    sampled_inside = trajectory.generated & (trajectory.segments == Segment.TOOL_RESPONSE)
    if sampled_inside.any():
        return True
    if any(tag in text for text in assistant_texts(trajectory) for tag in FOREIGN_TAGS):
        return True
    refused = [result.text for result in trajectory.tool_results if result.tool == "format"]
    return any(reason in text for text in refused for reason in FOREIGN_REASONS)


def _grade(trajectory, positive: bool, config: FilterConfig, evidence: Evidence) -> Verdict:
    """The pipeline's verdict on a judged trajectory that no earlier rule took."""
    broken = _inconsistencies(trajectory, positive, config, evidence)
    reasons = broken or _flaws(trajectory, positive, config.pipeline)
    if not reasons:
        return Verdict("high", 1.0, True)
    dropped = Verdict("drop", 0.0, config.baseline == "all", reasons)
    if broken:
        return dropped
    by_replay = config.pipeline.validation == "replay"
    if by_replay and not _needed(trajectory, evidence, "replayed", "validation"):
        return replace(dropped, reasons=(*reasons, "replay_failed"))
    return Verdict("low", config.pipeline.low_weight, True, reasons)


def _inconsistencies(
    trajectory: Trajectory, positive: bool, config: FilterConfig, evidence: Evidence
) -> tuple[str, ...]:
    """Why a rollout is none that the trainer, one policy and two judges would agree on."""
    pipeline = config.pipeline
    reasons = []
    if len(np.unique(trajectory.versions[trajectory.generated])) > 1:
        reasons.append("mixed_versions")
    if pipeline.max_log_ratio is not None:
        gap = abs(_needed(trajectory, evidence, "log_ratio", "max_log_ratio"))
        if not gap <= pipeline.max_log_ratio:  # NaN is a mismatch too
            reasons.append("log_ratio")
    if pipeline.two_judges:
        second = _needed(trajectory, evidence, "second_reward", "two_judges")
        if (second >= config.positive_from) != positive:
            reasons.append("judges_disagree")
    return tuple(reasons)


def _flaws(trajectory: Trajectory, positive: bool, pipeline: Pipeline) -> tuple[str, ...]:
    """What makes a rollout one of low quality."""
    results = trajectory.tool_results
    refused = sum(result.tool == "format" for result in results)
    if trajectory.termination == Termination.FORMAT:
        refused = math.inf
    failed = sum(not result.ok for result in results) / max(len(results), 1)
    reasons = []
    if refused > _limit(pipeline.max_format_errors):
        reasons.append("format")
    if failed > _limit(pipeline.max_tool_errors):
        reasons.append("tool_errors")
    if positive:
        return tuple(reasons)
    if trajectory.reward >= _limit(pipeline.ambiguous_from):
        reasons.append("ambiguous")
    if trajectory.answer is None:
        reasons.append("no_answer")
    if has_hallucination(trajectory):
        reasons.append("hallucination")
    return tuple(reasons)


def _limit(threshold: float | None) -> float:
    """A threshold that is None is never passed."""
    return math.inf if threshold is None else threshold


def _needed(trajectory: Trajectory, evidence: Evidence, name: str, check: str) -> Any:
    """A piece of evidence; ValueError where there is none."""
    remedy = f"{check} needs Evidence({name}=...); pass it or switch the check off"
    require(getattr(evidence, name) is not None, f"trajectory {trajectory.id}: {remedy}")
    return getattr(evidence, name)


def _compare_within_groups(trajectories, verdicts: list[Verdict], config: FilterConfig) -> None:
    """Drop, in `verdicts`, those of another world than their group's and too many alike.

    Quality decides who stays of those alike, then the id.
    """
    worlds = defaultdict(Counter)  # of each group
    for trajectory in trajectories:
        worlds[trajectory.group_id][trajectory.world_version] += 1
    kept: Counter = Counter()  # (group, success, answer, calls in any order) -> rollouts
    order = sorted(range(len(verdicts)), key=lambda i: (verdicts[i].label, trajectories[i].id))
    for i in order:
        trajectory = trajectories[i]
        verdict = verdicts[i]
        versions = worlds[trajectory.group_id]
        usual = min(versions, key=lambda version: (-versions[version], version))
        if trajectory.world_version != usual:
            # its reward answers another question than its group's
            verdicts[i] = Verdict("drop", 0.0, False, (*verdict.reasons, "mixed_worlds"))
        elif verdict.loss_weight and config.pipeline.max_alike is not None:
            alike = _likeness(trajectory, config)
            kept[alike] += 1
            if kept[alike] > config.pipeline.max_alike:
                reasons = (*verdict.reasons, "duplicate")
                verdicts[i] = Verdict("drop", 0.0, config.baseline == "all", reasons)


def _likeness(trajectory: Trajectory, config: FilterConfig) -> tuple:
    """Equal for rollouts of one group that did the same, in any order, to the same end."""
    calls = {
        (result.tool, json.dumps(result.arguments, sort_keys=True, default=repr))
        for result in trajectory.tool_results
    }
    success = trajectory.reward >= config.positive_from
    return trajectory.group_id, success, trajectory.answer, frozenset(calls)
