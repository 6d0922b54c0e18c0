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
- `pipeline=Pipeline(...)`: the selective filtering pipeline that public notes on Tongyi
  DeepResearch draw. The boxes are theirs, what each checks is ours: the report prints only the
  over-length example. Labels are then "high" (weight 1), "low" (`low_weight`) and "drop" (0).

Left out: filters of whole groups (`drlib.rl.resampling`; `drop_equal_groups` is exported here
too), repetition rules (rStar2-Agent saw them hit honest re-checking). Replaying, judging again and
scoring under the trainer are the caller's work: they arrive as `Evidence`.
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from drlib.rl.checks import finite, require, require_choices
from drlib.rl.resampling import assistant_texts, drop_equal_groups
from drlib.rl.rewards import has_env_fault
from drlib.trajectory import Segment, Termination, Trajectory

__all__ = ["Evidence", "FilterConfig", "Pipeline", "Verdict", "apply_filter", "classify",
           "drop_equal_groups", "hallucinated"]  # fmt: skip

FOREIGN_TAGS = ("<tool_response>", "</tool_response>", "<|im_start|>")
# what the agent answers to such a turn (`drlib.chat.FORMAT_REASONS`; that room loads transformers)
FOREIGN_REASONS = ("policy wrote a tool response.", "policy wrote a chat marker.")


@dataclass(frozen=True)
class Pipeline:
    """Thresholds of the selective filtering pipeline; None switches a check off.

    low_weight: loss weight of low quality, in (0, 1].
    validation: "replay" lets low quality in only where `Evidence.replayed` is True.
    Quality, each makes a rollout low: max_format_errors (turns that could not be parsed),
        max_tool_errors (share of failed calls), ambiguous_from (a reward from here up to
        `positive_from` is neither success nor failure).
    Consistency, each drops it: max_log_ratio (largest |mean(trainer's - rollout's
        log-probability)|, nats), two_judges (the second judge's reward must be on the same side of
        `positive_from`); always: one policy version, its group's world, not right by hallucination.
    Diversity: max_alike rollouts are kept of one group, one outcome and the same actions.
    """

    low_weight: float = 1.0
    validation: Literal["none", "replay"] = "none"
    max_format_errors: int | None = 0
    max_tool_errors: float | None = None
    ambiguous_from: float | None = None
    max_log_ratio: float | None = None
    two_judges: bool = False
    max_alike: int | None = None

    def __post_init__(self):
        require_choices(self)
        require(0 < self.low_weight <= 1, f"low_weight must be in (0, 1], got {self.low_weight}")
        for name in ("max_format_errors", "max_tool_errors", "max_log_ratio", "max_alike"):
            limit, least = getattr(self, name), int(name == "max_alike")
            require(limit is None or limit >= least, f"{name} must be >= {least}, got {limit}")
        known = self.ambiguous_from is None or not math.isnan(self.ambiguous_from)
        require(known, "ambiguous_from is NaN; give a reward below positive_from, or None")


@dataclass(frozen=True)
class FilterConfig:
    """The filter's switches; the defaults are the recipe.

    overlong: "exclude" leaves unanswered failures that hit a limit out of the loss and keeps their
        reward in the baseline; "keep" trains on them as on any failure.
    limits: the terminations that count as hitting a limit.
    positive_from: a reward from here on is a success, below it a failure.
    hallucination: "exclude" leaves a success after an imagined tool response or turn out of the
        loss; "keep" trains on it. A pipeline always excludes it.
    baseline: "all" keeps the reward of what is left out of the loss in the baseline (Tongyi's
        over-long rule, as E-GRPO spells it out); "kept" takes it out.
    pipeline: the selective filtering pipeline; None is off.
    """

    overlong: Literal["exclude", "keep"] = "exclude"
    limits: tuple[Termination, ...] = (Termination.LENGTH,)
    positive_from: float = 0.5
    hallucination: Literal["keep", "exclude"] = "keep"
    baseline: Literal["all", "kept"] = "all"
    pipeline: Pipeline | None = None

    def __post_init__(self):
        require_choices(self)
        known = {Termination.LENGTH, Termination.TURNS, Termination.WALL_CLOCK, Termination.LOOP}
        unknown = [limit for limit in self.limits if limit not in known]
        require(not unknown, f"limits may hold {sorted(known)}, not {unknown}")
        named = not math.isnan(self.positive_from)
        require(named, "positive_from is NaN; give the smallest reward of a success")
        if self.pipeline is not None and not isinstance(self.pipeline, Pipeline):
            raise TypeError(f"pipeline must be a Pipeline or None, got {self.pipeline!r}")


@dataclass(frozen=True)
class Evidence:
    """What a trajectory does not know of itself; only the checks switched on ask for it.

    log_ratio: mean over generated tokens of trainer's minus rollout's log-probability, nats.
    second_reward: a second judge's reward.
    replayed: whether its actions, run again, gave the same observations and verdict.
    """

    log_ratio: float | None = None
    second_reward: float | None = None
    replayed: bool | None = None


@dataclass(frozen=True)
class Verdict:
    """What becomes of a trajectory.

    label: "positive" or "negative" by its reward, "excluded" when its loss_weight is 0; under a
        pipeline "high", "low" or "drop" (loss_weight 0).
    loss_weight: 0 leaves its tokens out of the loss.
    in_baseline: whether its reward enters the group's baseline.
    reasons: why it is excluded ("overlong", "env_fault", "unjudged", "hallucination"); under a
        pipeline why it is low or dropped; empty otherwise.
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
    others are in both. A pipeline's rules come after these; `apply_filter` compares group members.
    ValueError where a check that is switched on lacks its evidence.
    """
    config = config or FilterConfig()
    drop = "drop" if config.pipeline else "excluded"
    fault, unjudged = has_env_fault(trajectory), trajectory.reward is None
    if fault or unjudged:
        return Verdict(drop, 0.0, False, ("env_fault",) * fault + ("unjudged",) * unjudged)
    finite(trajectory.reward, f"trajectory {trajectory.id}: the reward (None: not judged)")
    positive = trajectory.reward >= config.positive_from
    limits = (*config.limits, *([Termination.WALL_CLOCK] if config.pipeline else []))
    at_limit = trajectory.termination in limits and trajectory.answer is None
    in_baseline = config.baseline == "all"
    if at_limit and not positive and config.overlong == "exclude":
        return Verdict(drop, 0.0, in_baseline, ("overlong",))
    gated = config.pipeline or config.hallucination == "exclude"
    if positive and gated and hallucinated(trajectory):
        return Verdict(drop, 0.0, in_baseline, ("hallucination",))
    if config.pipeline:
        return _grade(trajectory, positive, config, evidence or Evidence())
    return Verdict("positive" if positive else "negative", 1.0, True)


def apply_filter(
    trajectories: Sequence[Trajectory],
    config: FilterConfig | None = None,
    evidence: Sequence[Evidence | None] | None = None,
) -> tuple[Tensor, Tensor, dict]:
    """Classify a batch.

    Args:
        evidence: one per trajectory, for the checks of `config.pipeline` that ask for it.

    Returns:
        (weights_N, in_baseline_N, report): float loss weights for `policy_loss`, bool members of
        the baseline for `advantages` (as `valid_N`), and counts for the log: `labels`, `reasons`,
        `excluded_tokens` (share of the generated tokens), `reward_mean` of the judged and
        `reward_mean_in_loss` of those trained on (None where there are none); with a pipeline
        also `reasons_by_label`. The order of the batch does not matter.

    Raises:
        ValueError: as `classify`, or `evidence` has another length.
    """
    config = config or FilterConfig()
    evidence = [None] * len(trajectories) if evidence is None else evidence
    counts = len(evidence), len(trajectories)
    require(counts[0] == counts[1], f"{counts[0]} pieces of evidence for {counts[1]} trajectories")
    verdicts = [classify(t, config, e) for t, e in zip(trajectories, evidence, strict=True)]
    if config.pipeline:
        verdicts = _compare_within_groups(trajectories, verdicts, config)
    tokens = [int(trajectory.generated.sum()) for trajectory in trajectories]
    lost = sum(n for n, verdict in zip(tokens, verdicts, strict=True) if not verdict.loss_weight)
    judged = [t.reward for t in trajectories if t.reward is not None and not has_env_fault(t)]
    kept = [t.reward for t, v in zip(trajectories, verdicts, strict=True) if v.loss_weight]
    report = {
        "labels": dict(sorted(Counter(verdict.label for verdict in verdicts).items())),
        "reasons": dict(sorted(Counter(r for v in verdicts for r in v.reasons).items())),
        "excluded_tokens": lost / max(sum(tokens), 1),
        "reward_mean": sum(judged) / len(judged) if judged else None,
        "reward_mean_in_loss": sum(kept) / len(kept) if kept else None,
    }
    if config.pipeline:
        by_label = defaultdict(Counter)
        for verdict in verdicts:
            by_label[verdict.label].update(verdict.reasons or ("clean",))
        table = {label: dict(sorted(counts.items())) for label, counts in by_label.items()}
        report["reasons_by_label"] = dict(sorted(table.items()))
    weights_N = torch.tensor([verdict.loss_weight for verdict in verdicts])
    in_baseline_N = torch.tensor([verdict.in_baseline for verdict in verdicts], dtype=torch.bool)
    return weights_N, in_baseline_N, report


def hallucinated(trajectory: Trajectory) -> bool:
    """Whether the policy wrote a tool response or another speaker's turn itself.

    Any of three signs: a sampled token inside a tool response, such a tag in an assistant message,
    the format error that the agent answered with.
    """
    refused = [result.text for result in trajectory.tool_results if result.tool == "format"]
    return (
        bool((trajectory.generated & (trajectory.segments == Segment.TOOL_RESPONSE)).any())
        or any(tag in text for text in assistant_texts(trajectory) for tag in FOREIGN_TAGS)
        or any(reason in text for text in refused for reason in FOREIGN_REASONS)
    )


def _grade(
    trajectory: Trajectory, positive: bool, config: FilterConfig, evidence: Evidence
) -> Verdict:
    """The pipeline's verdict on a judged trajectory that no earlier rule took."""
    broken = _inconsistencies(trajectory, positive, config, evidence)
    flaws = broken or _quality_flaws(trajectory, positive, config.pipeline)
    if not flaws:
        return Verdict("high", 1.0, True)
    if not broken and config.pipeline.validation == "replay":
        if not _needed(trajectory, evidence, "replayed", "validation"):
            flaws, broken = [*flaws, "replay_failed"], True
    if broken:
        return Verdict("drop", 0.0, config.baseline == "all", tuple(flaws))
    return Verdict("low", config.pipeline.low_weight, True, tuple(flaws))


def _inconsistencies(
    trajectory: Trajectory, positive: bool, config: FilterConfig, evidence: Evidence
) -> list[str]:
    pipeline, found = config.pipeline, []
    if len(np.unique(trajectory.versions[trajectory.generated])) > 1:
        found.append("mixed_versions")
    if pipeline.max_log_ratio is not None:
        gap = _needed(trajectory, evidence, "log_ratio", "max_log_ratio")
        if not abs(gap) <= pipeline.max_log_ratio:  # NaN is a mismatch too
            found.append("log_ratio")
    if pipeline.two_judges:
        second = _needed(trajectory, evidence, "second_reward", "two_judges")
        if (second >= config.positive_from) != positive:
            found.append("judges_disagree")
    return found


def _quality_flaws(trajectory: Trajectory, positive: bool, pipeline: Pipeline) -> list[str]:
    results, unparsed = trajectory.tool_results, trajectory.termination == Termination.FORMAT
    refused = sum(result.tool == "format" for result in results)
    failed = sum(not result.ok for result in results) / max(len(results), 1)
    formats, tools = pipeline.max_format_errors, pipeline.max_tool_errors
    doubtful = pipeline.ambiguous_from
    flaws = {
        "format": formats is not None and (refused > formats or unparsed),
        "tool_errors": tools is not None and failed > tools,
        "ambiguous": not positive and doubtful is not None and trajectory.reward >= doubtful,
        "no_answer": not positive and trajectory.answer is None,
        "hallucination": not positive and hallucinated(trajectory),
    }
    return [flaw for flaw, found in flaws.items() if found]


def _needed(trajectory: Trajectory, evidence: Evidence, name: str, check: str):
    value, who = getattr(evidence, name), f"trajectory {trajectory.id}"
    remedy = f"{check} needs Evidence({name}=...); pass it or switch the check off"
    require(value is not None, f"{who}: {remedy}")
    return value


def _compare_within_groups(
    trajectories: Sequence[Trajectory], verdicts: list[Verdict], config: FilterConfig
) -> list[Verdict]:
    """One world, and not too many alike; quality, then the id decides who stays."""
    members, verdicts = defaultdict(list), list(verdicts)
    for i, trajectory in enumerate(trajectories):
        members[trajectory.group_id].append(i)
    for group in members.values():
        worlds = Counter(trajectories[i].world_version for i in group)
        world = min(worlds, key=lambda version: (-worlds[version], version))
        kept: Counter = Counter()  # (success, actions) -> rollouts
        for i in sorted(group, key=lambda i: (verdicts[i].label, trajectories[i].id)):
            trajectory, verdict = trajectories[i], verdicts[i]
            if trajectory.world_version != world:  # its reward answers another question
                verdicts[i] = Verdict("drop", 0.0, False, (*verdict.reasons, "mixed_worlds"))
            elif verdict.loss_weight and config.pipeline.max_alike is not None:
                alike = trajectory.reward >= config.positive_from, _actions(trajectory)
                kept[alike] += 1
                if kept[alike] > config.pipeline.max_alike:
                    reasons = (*verdict.reasons, "duplicate")
                    verdicts[i] = Verdict("drop", 0.0, config.baseline == "all", reasons)
    return verdicts


def _actions(trajectory: Trajectory) -> frozenset:
    """What was done, without order: each call with its arguments, and the answer."""
    calls = {
        (result.tool, json.dumps(result.arguments, sort_keys=True, default=repr))
        for result in trajectory.tool_results
    }
    return frozenset(calls | {("answer", trajectory.answer)})
