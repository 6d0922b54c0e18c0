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

Left out: filters of whole groups (`drlib.rl.resampling`; `drop_equal_groups` is exported here
too), repetition rules (rStar2-Agent saw them hit honest re-checking).
"""

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor

from drlib.checks import Coefficient, Count, check_fields, finite, require
from drlib.format import FOREIGN_REASONS, FOREIGN_TAGS
from drlib.rl.resampling import assistant_texts, drop_equal_groups  # noqa: F401
from drlib.rl.rewards import has_env_fault
from drlib.trajectory import Segment, Termination, Trajectory

Real = Annotated[float, "[-inf, inf]"]


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
    ambiguous_from: Real | None = None  # quality: rewards from here up to `positive_from` are low
    max_log_ratio: Coefficient | None = None  # consistency: |`Evidence.log_ratio`|, nats
    two_judges: bool = False  # consistency: both on one side of `positive_from`
    max_alike: Count | None = None  # diversity: of one group and outcome, with the same actions

    def __post_init__(self):
        check_fields(self)


@dataclass(frozen=True)
class FilterConfig:
    """The filter's switches; the defaults are the recipe. "exclude" is from the loss; whether the
    baseline keeps the reward of what the loss leaves out is for `baseline` to say ("all": it does;
    "kept": no). ValueError: a value that a switch does not have."""

    overlong: Literal["exclude", "keep"] = "exclude"  # unanswered failures at one of `limits`
    limits: tuple[Termination, ...] = (Termination.LENGTH,)
    positive_from: Real = 0.5  # a reward from here on is a success, below it a failure
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
        "labels": _counts(verdict.label for verdict in verdicts),
        "reasons": _counts(reason for verdict in verdicts for reason in verdict.reasons),
        "excluded_tokens": lost / max(sum(tokens), 1),
        "reward_mean": sum(judged) / len(judged) if judged else None,
        "reward_mean_in_loss": sum(kept) / len(kept) if kept else None,
    }
    if config.pipeline:
        report["reasons_by_label"] = {
            label: _counts(r for v in verdicts if v.label == label for r in v.reasons or ("clean",))
            for label in report["labels"]
        }
    weights_N = torch.tensor([verdict.loss_weight for verdict in verdicts])
    in_baseline_N = torch.tensor([verdict.in_baseline for verdict in verdicts], dtype=torch.bool)
    return weights_N, in_baseline_N, report


def _counts(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items()))


def hallucinated(trajectory: Trajectory) -> bool:
    """Whether the policy wrote a tool response or another speaker's turn itself, by any of three
    signs: a sampled token inside one, a tag in its message, the agent's format error."""
    refused = [result.text for result in trajectory.tool_results if result.tool == "format"]
    inside = (trajectory.generated & (trajectory.segments == Segment.TOOL_RESPONSE)).any()
    tagged = any(tag in text for text in assistant_texts(trajectory) for tag in FOREIGN_TAGS)
    return bool(inside) or tagged or any(r in text for text in refused for r in FOREIGN_REASONS)


def _grade(trajectory, positive: bool, config: FilterConfig, evidence: Evidence) -> Verdict:
    """The pipeline's verdict on a judged trajectory that no earlier rule took."""
    pipeline, results = config.pipeline, trajectory.tool_results

    def needed(name: str, check: str):
        remedy = f"{check} needs Evidence({name}=...); pass it or switch the check off"
        require(getattr(evidence, name) is not None, f"trajectory {trajectory.id}: {remedy}")
        return getattr(evidence, name)

    def limit(check: str) -> float:  # a threshold that is None is never passed
        threshold = getattr(pipeline, check)
        return math.inf if threshold is None else threshold

    gap = 0.0 if pipeline.max_log_ratio is None else needed("log_ratio", "max_log_ratio")
    second = needed("second_reward", "two_judges") if pipeline.two_judges else trajectory.reward
    broken = {
        "mixed_versions": len(np.unique(trajectory.versions[trajectory.generated])) > 1,
        "log_ratio": not abs(gap) <= limit("max_log_ratio"),  # NaN is a mismatch too
        "judges_disagree": (second >= config.positive_from) != positive,
    }
    refused = sum(result.tool == "format" for result in results)
    failed = sum(not result.ok for result in results) / max(len(results), 1)
    if trajectory.termination == Termination.FORMAT:
        refused = math.inf
    flawed = {
        "format": refused > limit("max_format_errors"),
        "tool_errors": failed > limit("max_tool_errors"),
        "ambiguous": not positive and trajectory.reward >= limit("ambiguous_from"),
        "no_answer": not positive and trajectory.answer is None,
        "hallucination": not positive and hallucinated(trajectory),
    }
    drop = any(broken.values())
    reasons = tuple(name for name, found in (broken if drop else flawed).items() if found)
    if not reasons:
        return Verdict("high", 1.0, True)
    if not drop and pipeline.validation == "replay" and not needed("replayed", "validation"):
        drop, reasons = True, (*reasons, "replay_failed")
    if drop:
        return Verdict("drop", 0.0, config.baseline == "all", reasons)
    return Verdict("low", pipeline.low_weight, True, reasons)


def _compare_within_groups(trajectories, verdicts: list[Verdict], config: FilterConfig) -> None:
    """Drop, in `verdicts`, those of another world and too many alike; quality, then the id decides
    who stays."""
    worlds = defaultdict(Counter)  # of each group
    for t in trajectories:
        worlds[t.group_id][t.world_version] += 1
    kept: Counter = Counter()  # (group, success, answer, calls in any order) -> rollouts
    for i in sorted(range(len(verdicts)), key=lambda i: (verdicts[i].label, trajectories[i].id)):
        t, verdict, versions = trajectories[i], verdicts[i], worlds[trajectories[i].group_id]
        calls = {
            (r.tool, json.dumps(r.arguments, sort_keys=True, default=repr)) for r in t.tool_results
        }
        if t.world_version != min(versions, key=lambda version: (-versions[version], version)):
            # its reward answers another question than its group's
            verdicts[i] = Verdict("drop", 0.0, False, (*verdict.reasons, "mixed_worlds"))
        elif verdict.loss_weight and config.pipeline.max_alike is not None:
            alike = t.group_id, t.reward >= config.positive_from, t.answer, frozenset(calls)
            kept[alike] += 1
            if kept[alike] > config.pipeline.max_alike:
                reasons = (*verdict.reasons, "duplicate")
                verdicts[i] = Verdict("drop", 0.0, config.baseline == "all", reasons)
