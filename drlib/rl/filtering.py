"""Which trajectories a policy gradient may learn from, decided before the loss is computed.

Two questions are asked of each trajectory and answered separately: does it enter the loss, and
does its reward enter its group's baseline? The recipe's answer for a failure that ran into the
length limit without an answer is "no" and "yes": its tokens are not pushed down (unfiltered, they
are what Tongyi DeepResearch section 3.4 blames for policy collapse), yet the group still counts it
as a failure. rStar2-Agent found the opposite to work better, hence the switch. A trajectory spoilt
by the environment enters neither.

`drop_equal_groups` is DAPO's filter: groups of equal rewards have no gradient anyway, and dropping
them keeps them out of the loss's token count. The recipe does not use it.

Left out: consistency, diversity and repetition checks, resampling, soft over-length penalties.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from drlib.rl.advantages import group_mean
from drlib.rl.rewards import has_env_fault
from drlib.trajectory import Termination, Trajectory

__all__ = ["FilterConfig", "Verdict", "apply_filter", "classify", "drop_equal_groups"]


@dataclass(frozen=True)
class FilterConfig:
    """The filter's switches; the defaults are the recipe.

    overlong: "exclude" leaves unanswered failures that hit a limit out of the loss and keeps their
        reward in the baseline; "keep" trains on them as on any failure.
    limits: the terminations that count as hitting a limit.
    positive_from: a reward from here on is a success, below it a failure.
    """

    overlong: Literal["exclude", "keep"] = "exclude"
    limits: tuple[Termination, ...] = (Termination.LENGTH,)
    positive_from: float = 0.5

    def __post_init__(self):
        if self.overlong not in ("exclude", "keep"):
            raise ValueError(f'overlong must be "exclude" or "keep", got {self.overlong!r}')
        known = {Termination.LENGTH, Termination.TURNS, Termination.WALL_CLOCK, Termination.LOOP}
        unknown = [limit for limit in self.limits if limit not in known]
        if unknown:
            raise ValueError(f"limits may hold {sorted(known)}, not {unknown[0]!r}")
        if math.isnan(self.positive_from):
            raise ValueError("positive_from is NaN; give the smallest reward of a success")


@dataclass(frozen=True)
class Verdict:
    """What becomes of a trajectory.

    label: "positive" or "negative" by its reward, "excluded" when its loss_weight is 0.
    loss_weight: 0 leaves its tokens out of the loss.
    in_baseline: whether its reward enters the group's baseline.
    reasons: why it is excluded ("overlong", "env_fault", "unjudged"); empty otherwise.
    """

    label: Literal["positive", "negative", "excluded"]
    loss_weight: float
    in_baseline: bool
    reasons: tuple[str, ...] = ()


def classify(trajectory: Trajectory, config: FilterConfig | None = None) -> Verdict:
    """The verdict on one trajectory; the first matching rule decides whether it is in the baseline.

    Environment fault or no reward: out of loss and baseline. Unanswered failure at a limit: out of
    the loss only, unless `overlong="keep"`. All others are in both.
    """
    config = config or FilterConfig()
    unjudged = [
        *(["env_fault"] if has_env_fault(trajectory) else []),
        *(["unjudged"] if trajectory.reward is None else []),
    ]
    if unjudged:
        return Verdict("excluded", 0.0, False, tuple(unjudged))
    positive = trajectory.reward >= config.positive_from
    at_limit = trajectory.termination in config.limits and trajectory.answer is None
    if at_limit and not positive and config.overlong == "exclude":
        return Verdict("excluded", 0.0, True, ("overlong",))
    return Verdict("positive" if positive else "negative", 1.0, True)


def apply_filter(
    trajectories: Sequence[Trajectory], config: FilterConfig | None = None
) -> tuple[Tensor, Tensor, dict]:
    """Classify a batch.

    Returns:
        (weights_N, in_baseline_N, report): float loss weights for `policy_loss`, bool members of
        the baseline for `advantages` (as `valid_N`), and counts for the log: `labels`, `reasons`,
        `excluded_tokens` (share of the batch's generated tokens), `reward_mean` of the judged
        trajectories and `reward_mean_in_loss` of those trained on (None where there are none).
    """
    verdicts = [classify(trajectory, config) for trajectory in trajectories]
    tokens = [int(trajectory.generated.sum()) for trajectory in trajectories]
    lost = sum(n for n, verdict in zip(tokens, verdicts, strict=True) if not verdict.loss_weight)
    judged = [t.reward for t, v in zip(trajectories, verdicts, strict=True) if v.in_baseline]
    kept = [t.reward for t, v in zip(trajectories, verdicts, strict=True) if v.loss_weight]
    report = {
        "labels": dict(sorted(Counter(verdict.label for verdict in verdicts).items())),
        "reasons": dict(sorted(Counter(r for v in verdicts for r in v.reasons).items())),
        "excluded_tokens": lost / max(sum(tokens), 1),
        "reward_mean": sum(judged) / len(judged) if judged else None,
        "reward_mean_in_loss": sum(kept) / len(kept) if kept else None,
    }
    weights_N = torch.tensor([verdict.loss_weight for verdict in verdicts])
    in_baseline_N = torch.tensor([verdict.in_baseline for verdict in verdicts], dtype=torch.bool)
    return weights_N, in_baseline_N, report


def drop_equal_groups(rewards_N, groups_N, valid_N=None) -> Tensor:
    """Which rollouts lie in a group whose rewards differ (DAPO, arXiv 2503.14476, section 3.2).

    Args:
        rewards_N: float. groups_N: int. valid_N: bool or None; rules as in `leave_one_out`.

    Returns:
        keep_N: bool, False in groups of one or of equal rewards and for members not valid.

    Raises:
        ValueError: as `leave_one_out`.
    """
    spread_N = group_mean(torch.as_tensor(rewards_N).double(), groups_N, valid_N).abs()
    groups_N = torch.as_tensor(groups_N, device=spread_N.device)
    index_N = torch.unique(groups_N, return_inverse=True)[1]
    live_N = torch.zeros_like(spread_N).index_add(0, index_N, spread_N)[index_N] > 0
    return live_N if valid_N is None else live_N & torch.as_tensor(valid_N, device=live_N.device)
