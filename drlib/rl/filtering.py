"""Trajectory filtering: membership in the loss and in the group baseline.

Two separate decisions per trajectory: does it enter the loss, and does its reward enter the
baseline? By default, an unanswered failure at the length limit enters the baseline only. Its
tokens are not pushed down, which Tongyi DeepResearch (section 3.4) identifies as the cause of
policy collapse, but the group still counts it as a failure. rStar2-Agent found the opposite to
work better, hence the option. A trajectory with an environment fault enters neither. Two more
options, both off by default:

- `hallucination="exclude"`: a policy that writes a `<tool_response>` or another role's turn itself
  and then answers correctly used invented evidence. Its loss weight is 0, not negative, which would
  push the correct answer down too. Wrong answers after one remain failures. A pipeline always
  does this.
- `pipeline=Pipeline(...)`: the selective filtering pipeline drawn in public notes on Tongyi
  DeepResearch. The stages are theirs, the checks are ours: the report only prints the over-length
  example. Replaying, a second judge and trainer log-probabilities are computed by the caller and
  passed as `Evidence`.

Filters of whole groups are in `drlib.rl.resampling`.
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

from drlib.chat.tool_calls import FOREIGN_REASONS, FOREIGN_TAGS, mask_call_strings
from drlib.rewards.functions import has_env_fault
from drlib.rl.resampling import assistant_texts
from drlib.trajectory import Segment, Termination, Trajectory
from drlib.validation import AtLeastOne, Coefficient, check_fields, require, require_finite

_Real = Annotated[float, "[-inf, inf]"]


@dataclass(frozen=True)
class Pipeline:
    """Thresholds of the selective filtering pipeline; None disables a check.

    Quality failures make a rollout "low". Consistency failures drop it, as do several policy
    versions in one rollout, a world version that differs from the group's, and success after a
    hallucination. Diversity keeps at most `max_alike` equal rollouts.

    Raises:
        ValueError: a value out of range.
    """

    low_weight: Annotated[float, "(0, 1]"] = 1.0  # loss weight of low quality
    validation: Literal["none", "replay"] = (
        "none"  # "replay": low quality needs `Evidence.replayed`
    )
    max_format_errors: Coefficient | None = 0  # quality: turns that could not be parsed
    max_tool_errors: Coefficient | None = None  # quality: share of failed calls
    ambiguous_from: _Real | None = None  # quality: rewards in [this, `positive_from`)
    max_log_ratio: Coefficient | None = None  # consistency: |`Evidence.log_ratio`|, nats
    two_judges: bool = False  # consistency: both judges agree about `positive_from`
    max_alike: AtLeastOne | None = (
        None  # diversity: of one group and outcome, with the same actions
    )

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class FilterConfig:
    """Options of the filter; the defaults are the Tongyi recipe.

    "exclude" concerns the loss. `baseline` decides about the reward of what the loss excludes:
    "all" keeps it in the baseline, "kept" does not.

    Raises:
        ValueError: an invalid value.
    """

    overlong: Literal["exclude", "keep"] = (
        "exclude"  # unanswered failures that ended at one of `limits`
    )
    limits: tuple[Termination, ...] = (Termination.LENGTH,)
    positive_from: _Real = 0.5  # minimum reward of a success
    hallucination: Literal["keep", "exclude"] = "keep"  # successes after an invented turn
    baseline: Literal["all", "kept"] = "all"  # "all": Tongyi's rule, explicit in E-GRPO
    pipeline: Pipeline | None = None

    def __post_init__(self):
        check_fields(self)
        known = {Termination.LENGTH, Termination.TURNS, Termination.WALL_CLOCK, Termination.LOOP}
        require(known >= {*self.limits}, f"limits may hold {sorted(known)}, not {self.limits}")
        if self.pipeline is not None and not isinstance(self.pipeline, Pipeline):
            raise TypeError(f"pipeline must be a Pipeline or None, got {self.pipeline!r}")


@dataclass(frozen=True)
class Evidence:
    """Facts about a trajectory that it does not record; used by the enabled checks only."""

    log_ratio: float | None = None  # mean over its tokens of log(trainer's / rollout's), nats
    second_reward: float | None = None  # reward of another judge
    replayed: bool | None = None  # re-running its actions gave the same result


Label = Literal["positive", "negative", "excluded", "high", "low", "drop"]


@dataclass(frozen=True)
class Verdict:
    """The decision about one trajectory.

    Attributes:
        label: "positive" or "negative" by its reward, "excluded" if its loss_weight is 0; with a
            pipeline "high", "low" or "drop" (loss_weight 0).
        loss_weight: weight for `policy_loss`.
        in_baseline: membership in the group baseline.
        reasons: causes of exclusion, such as "overlong", "env_fault", "unjudged", "hallucination".
    """

    label: Label
    loss_weight: float
    in_baseline: bool
    reasons: tuple[str, ...] = ()


def classify(
    trajectory: Trajectory, config: FilterConfig | None = None, evidence: Evidence | None = None
) -> Verdict:
    """Decide about one trajectory; the first matching rule decides its baseline membership.

    Environment fault or no reward: out of loss and baseline. Unanswered failure at a limit: out of
    the loss only, unless `overlong="keep"`; a success by hallucination likewise, if excluded. All
    others are in both. A pipeline's rules follow; `filter_rollouts` also compares group members.

    Raises:
        ValueError: an enabled check lacks its evidence.
    """
    config = config or FilterConfig()
    drop: Label = "drop" if config.pipeline else "excluded"

    # not judged
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

    # a success with invented evidence
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
    """Classify a batch of trajectories; their order does not matter.

    Args:
        trajectories: rollouts with rewards.
        config: options; the Tongyi recipe when None.
        evidence: one per trajectory, for the checks of `config.pipeline` that need it.

    Returns:
        (weights_N, in_baseline_N, report): float loss weights for `policy_loss`, bool baseline
        membership (`valid_N` of `advantages`), and counts for the log: `labels`, `reasons`,
        `excluded_tokens` (share of the generated tokens), `reward_mean` of the judged and
        `reward_mean_in_loss` of the trained ones (None without any); with a pipeline also
        `reasons_by_label`.

    Raises:
        ValueError: `evidence` has another length, a reward is not finite, or an enabled check lacks
            its evidence.
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
    """Return the counts for the log."""
    tokens = [int(trajectory.generated.sum()) for trajectory in trajectories]
    lost = sum(n for n, verdict in zip(tokens, verdicts) if not verdict.loss_weight)
    judged = [t.reward for t in trajectories if t.reward is not None and not has_env_fault(t)]
    kept = [t.reward for t, v in zip(trajectories, verdicts) if v.loss_weight]
    report: dict[str, Any] = {
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
    """Return True if the policy wrote a tool response or another role's turn itself.

    Signs: a sampled token inside one, a tag in its message, or the agent's format error.
    """
    sampled_inside = trajectory.generated & (trajectory.segments == Segment.TOOL_RESPONSE)
    if sampled_inside.any():
        return True
    texts = map(mask_call_strings, assistant_texts(trajectory))
    if any(tag in text for text in texts for tag in FOREIGN_TAGS):
        return True
    refused = [result.text for result in trajectory.tool_results if result.tool == "format"]
    return any(reason in text for text in refused for reason in FOREIGN_REASONS)


def _grade(trajectory, positive: bool, config: FilterConfig, evidence: Evidence) -> Verdict:
    """Apply the pipeline to a judged trajectory that no earlier rule excluded."""
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
    """Return disagreements of trainer, policy versions and judges."""
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
    """Return the causes of low quality."""
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
    """Return the threshold, infinity for None."""
    return math.inf if threshold is None else threshold


def _needed(trajectory: Trajectory, evidence: Evidence, name: str, check: str) -> Any:
    """Return a field of the evidence. ValueError: it is missing."""
    remedy = f"{check} needs Evidence({name}=...): pass it or disable the check"
    require(getattr(evidence, name) is not None, f"trajectory {trajectory.id}: {remedy}")
    return getattr(evidence, name)


def _compare_within_groups(trajectories, verdicts: list[Verdict], config: FilterConfig) -> None:
    """Drop, in `verdicts`, other world versions and surplus equal rollouts of each group.

    Of equal rollouts, better labels stay, then smaller ids.
    """
    worlds = defaultdict(Counter)  # group -> world versions
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
            # its reward is not comparable with its group's
            verdicts[i] = Verdict("drop", 0.0, False, (*verdict.reasons, "mixed_worlds"))
        elif verdict.loss_weight and config.pipeline.max_alike is not None:
            alike = _likeness(trajectory, config)
            kept[alike] += 1
            if kept[alike] > config.pipeline.max_alike:
                reasons = (*verdict.reasons, "duplicate")
                verdicts[i] = Verdict("drop", 0.0, config.baseline == "all", reasons)


def _likeness(trajectory: Trajectory, config: FilterConfig) -> tuple:
    """Return a key shared by rollouts of one group with the same calls, answer and outcome."""
    calls = {
        (result.tool, json.dumps(result.arguments, sort_keys=True, default=repr))
        for result in trajectory.tool_results
    }
    success = trajectory.reward >= config.positive_from
    return trajectory.group_id, success, trajectory.answer, frozenset(calls)
