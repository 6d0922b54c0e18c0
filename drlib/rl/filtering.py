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
  over-length example. Replaying, judging again and scoring under the trainer are the caller's
  work and arrive as `Evidence`.

Left out: filters of whole groups (`drlib.rl.resampling`; `drop_equal_groups` is exported here
too), repetition rules (rStar2-Agent saw them hit honest re-checking).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from drlib.rl.checks import Coefficient, Count, check_fields, finite, require
from drlib.rl.resampling import assistant_texts, drop_equal_groups  # noqa: F401
from drlib.rl.rewards import has_env_fault
from drlib.trajectory import Segment, Termination, Trajectory

Real = Annotated[float, "[-inf, inf]"]
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

    low_weight: Annotated[float, "(0, 1]"] = 1.0
    validation: Literal["none", "replay"] = "none"
    max_format_errors: Coefficient | None = 0
    max_tool_errors: Coefficient | None = None
    ambiguous_from: Real | None = None
    max_log_ratio: Coefficient | None = None
    two_judges: bool = False
    max_alike: Count | None = None

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class FilterConfig:
    """The filter's switches; the defaults are the recipe.

    overlong: "exclude" leaves unanswered failures that hit one of `limits` out of the loss.
    positive_from: a reward from here on is a success, below it a failure.
    hallucination: "exclude" leaves a success after an imagined tool response or turn out of the
        loss; a pipeline always does.
    baseline: "all" keeps the reward of what is left out of the loss in the baseline (Tongyi's
        over-long rule, as E-GRPO spells it out); "kept" takes it out.
    """

    overlong: Literal["exclude", "keep"] = "exclude"
    limits: tuple[Termination, ...] = (Termination.LENGTH,)
    positive_from: Real = 0.5
    hallucination: Literal["keep", "exclude"] = "keep"
    baseline: Literal["all", "kept"] = "all"
    pipeline: Pipeline | None = None

    def __post_init__(self):
        check_fields(self)
        known = {Termination.LENGTH, Termination.TURNS, Termination.WALL_CLOCK, Termination.LOOP}
        require(known >= {*self.limits}, f"limits may hold {sorted(known)}, not {self.limits}")
        if self.pipeline is not None and not isinstance(self.pipeline, Pipeline):
            raise TypeError(f"pipeline must be a Pipeline or None, got {self.pipeline!r}")


@dataclass(frozen=True)
class Evidence:
    """What a trajectory does not know of itself; only the checks switched on ask for it.

    log_ratio: mean over generated tokens of trainer's minus rollout's log-probability, nats.
    replayed: whether its actions, run again, gave the same observations and verdict.
    """

    log_ratio: float | None = None
    second_reward: float | None = None
    replayed: bool | None = None


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
    """Classify a batch; its order does not matter.

    evidence: one per trajectory, for the checks of `config.pipeline` that ask for it.

    Returns (weights_N, in_baseline_N, report): float loss weights for `policy_loss`, bool members
    of the baseline for `advantages` (as `valid_N`), and counts for the log: `labels`, `reasons`,
    `excluded_tokens` (share of the generated tokens), `reward_mean` of the judged and
    `reward_mean_in_loss` of those trained on (None where there are none); with a pipeline also
    `reasons_by_label`. ValueError as `classify`, or `evidence` has another length.
    """
    config = config or FilterConfig()
    evidence = [None] * len(trajectories) if evidence is None else evidence
    got, needed = len(evidence), len(trajectories)
    require(got == needed, f"{got} pieces of evidence for {needed} trajectories")
    verdicts = [classify(t, config, e) for t, e in zip(trajectories, evidence)]
    if config.pipeline:
        _compare_within_groups(trajectories, verdicts, config)
    tokens = [int(trajectory.generated.sum()) for trajectory in trajectories]
    lost = sum(n for n, verdict in zip(tokens, verdicts) if not verdict.loss_weight)
    judged = [t.reward for t in trajectories if t.reward is not None and not has_env_fault(t)]
    kept = [t.reward for t, v in zip(trajectories, verdicts) if v.loss_weight]
    report = {
        "labels": dict(sorted(Counter(verdict.label for verdict in verdicts).items())),
        "reasons": dict(sorted(Counter(r for v in verdicts for r in v.reasons).items())),
        "excluded_tokens": lost / max(sum(tokens), 1),
        "reward_mean": sum(judged) / len(judged) if judged else None,
        "reward_mean_in_loss": sum(kept) / len(kept) if kept else None,
    }
    if config.pipeline:
        report["reasons_by_label"] = {
            label: dict(sorted(Counter(r for v in verdicts if v.label == label
                                       for r in v.reasons or ("clean",)).items()))
            for label in report["labels"]
        }  # fmt: skip
    weights_N = torch.tensor([verdict.loss_weight for verdict in verdicts])
    in_baseline_N = torch.tensor([verdict.in_baseline for verdict in verdicts], dtype=torch.bool)
    return weights_N, in_baseline_N, report


def hallucinated(trajectory: Trajectory) -> bool:
    """Whether the policy wrote a tool response or another speaker's turn itself, by any of three
    signs: a sampled token inside one, a tag in its message, the agent's format error."""
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
    pipeline, results = config.pipeline, trajectory.tool_results

    def needed(name: str, check: str):
        value, who = getattr(evidence, name), f"trajectory {trajectory.id}"
        remedy = f"{check} needs Evidence({name}=...); pass it or switch the check off"
        require(value is not None, f"{who}: {remedy}")
        return value

    gap = 0.0 if pipeline.max_log_ratio is None else needed("log_ratio", "max_log_ratio")
    second = needed("second_reward", "two_judges") if pipeline.two_judges else trajectory.reward
    broken = {
        "mixed_versions": len(np.unique(trajectory.versions[trajectory.generated])) > 1,
        "log_ratio": not abs(gap) <= _limit(pipeline.max_log_ratio),  # NaN is a mismatch too
        "judges_disagree": (second >= config.positive_from) != positive,
    }
    refused = sum(result.tool == "format" for result in results)
    failed = sum(not result.ok for result in results) / max(len(results), 1)
    if trajectory.termination == Termination.FORMAT:
        refused = math.inf
    flawed = {
        "format": refused > _limit(pipeline.max_format_errors),
        "tool_errors": failed > _limit(pipeline.max_tool_errors),
        "ambiguous": not positive and trajectory.reward >= _limit(pipeline.ambiguous_from),
        "no_answer": not positive and trajectory.answer is None,
        "hallucination": not positive and hallucinated(trajectory),
    }
    drop = any(broken.values())
    reasons = [name for name, found in (broken if drop else flawed).items() if found]
    if not reasons:
        return Verdict("high", 1.0, True)
    if not drop and pipeline.validation == "replay" and not needed("replayed", "validation"):
        drop, reasons = True, [*reasons, "replay_failed"]
    if drop:
        return Verdict("drop", 0.0, config.baseline == "all", tuple(reasons))
    return Verdict("low", pipeline.low_weight, True, tuple(reasons))


def _limit(threshold: float | None) -> float:
    """A threshold that is None is never passed."""
    return math.inf if threshold is None else threshold


def _compare_within_groups(
    trajectories: Sequence[Trajectory], verdicts: list[Verdict], config: FilterConfig
) -> None:
    """Drop, in `verdicts`, those of another world and too many alike; quality, then the id decides
    who stays."""
    members = defaultdict(list)
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


def _actions(trajectory: Trajectory) -> frozenset:
    """What was done, without order: each call with its arguments, and the answer."""
    calls = {
        (result.tool, json.dumps(result.arguments, sort_keys=True, default=repr))
        for result in trajectory.tool_results
    }
    return frozenset(calls | {("answer", trajectory.answer)})
