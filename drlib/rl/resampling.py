"""Group and rollout resampling by reward: DAPO's filter, DUPO, GRPO-RoC; all off by default.

- Groups of equal rewards have no gradient. `drop_zero_variance_groups` masks them (DAPO's filter;
  dynamic sampling is in `drlib.training.rollouts`). `replace_zero_variance_groups` puts copies of
  other groups in their place (WebSailor's DUPO), which nearly equals a larger weight and is cheap.
- Successes with failed tool calls reinforce failed tool calls. `resample_on_correct` keeps a subset
  of the rollouts and prefers clean successes (rStar2-Agent's GRPO-RoC, arXiv 2508.20722, section
  2.2.3). Rewards are unchanged, and failures keep their variety.

The paper of RoC samples successes with probability inverse to their penalty, its code takes the
cleanest; `mode` selects. Two deviations from that code: failures are drawn at random (the first to
finish would be the short ones), and errors are `ToolResult.ok`, not the word "error".
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from drlib.rewards.functions import has_env_fault
from drlib.rl.advantages import group_mean
from drlib.trajectory import Trajectory
from drlib.validation import require, require_finite, require_one_of, require_within

_FLOOR = 2  # rollouts of each outcome kept, if available (rStar2-Agent's code)
_NO_CALLS = 0.5  # p_err without a tool call (paper, section 2.2.3)


def assistant_texts(trajectory: Trajectory) -> list[str]:
    """Return the policy's turns, one text each."""
    return [m["content"] for m in trajectory.messages if m["role"] == "assistant"]


def error_penalty(trajectory: Trajectory) -> float:
    """Return p_err: share of failed tool calls, unparsed turns included; 0.5 without calls."""
    results = trajectory.tool_results
    if not results:
        return _NO_CALLS
    return sum(not result.ok for result in results) / len(results)


def format_penalty(trajectory: Trajectory) -> float:
    """Return p_fmt = min(1, (answer tags - 1) / turns).

    1 without an answer (section 2.2.3) or with unpaired tags (published code).
    """
    texts = assistant_texts(trajectory)
    opened = sum(text.count("<answer>") for text in texts)
    closed = sum(text.count("</answer>") for text in texts)
    if not opened or opened != closed:
        return 1.0
    return min(1.0, (opened - 1) / len(texts))


def roc_quotas(negatives: int, positives: int, keep: int) -> tuple[int, int]:
    """Return (failures, successes) to keep: proportional, with at least two of each if available.

    The failures' share is round(negatives * keep / n) as in the published code; successes get the
    rest, so the two always add up to `keep`. With `keep` below 4 the minimum is keep // 2.

    Raises:
        ValueError: fewer rollouts than `keep`.

    >>> roc_quotas(negatives=6, positives=2, keep=4)
    (2, 2)
    """
    if min(negatives, positives, keep) < 0 or keep > negatives + positives:
        raise ValueError(
            f"cannot keep {keep} of {negatives} failures and {positives} successes; roll out more"
        )
    share = round(negatives * keep / max(negatives + positives, 1))
    lowest = max(min(_FLOOR, keep // 2, negatives), keep - positives)
    highest = min(negatives, keep - min(_FLOOR, keep // 2, positives))
    kept = min(max(share, lowest), highest)
    return kept, keep - kept


def resample_on_correct(
    group: Sequence[Trajectory],
    keep: int,
    mode: Literal["sample", "sort"] = "sample",
    epsilon: float = 1e-6,
    generator: torch.Generator | None = None,
    *,
    positive_from: float = 0.5,
) -> list[int]:
    """Select `keep` rollouts of one question to train on (GRPO-RoC, arXiv 2508.20722, 2.2.3).

    Failures are drawn uniformly. For successes, mode "sample" draws without replacement with
    probability proportional to 1 / (epsilon + p_err + p_fmt); "sort" takes the lowest penalties,
    ties at random. Compute advantages over the selected rollouts only. Rollouts with an environment
    fault or without a reward are used, in order, only when the others do not suffice.

    Args:
        group: rollouts of one question.
        keep: number to select, in 0..len(group).
        epsilon: > 0. The paper leaves it open and it matters: a small value is nearly "sort", 1
            nearly uniform.
        generator: of the draws; None is torch's global one.
        positive_from: rewards from here on are successes, as in `FilterConfig`.

    Returns:
        `keep` different indices into `group`, ascending.

    Raises:
        ValueError: `keep` out of range, several groups, a reward that is not finite, an unknown
            mode or an epsilon <= 0.
    """
    require_one_of(mode, ("sample", "sort"), "mode")
    require_within(epsilon, "(0, inf)", "epsilon")
    require(0 <= keep <= len(group), f"cannot keep {keep} of {len(group)} rollouts; roll out more")
    names = {trajectory.group_id for trajectory in group}
    require(len(names) < 2, f"resample one group at a time, got {sorted(names)}")
    for trajectory in group:
        require_finite(
            trajectory.reward or 0.0, f"trajectory {trajectory.id}: reward (None: not judged)"
        )

    # judged failures and successes, and the number of each to keep
    judged = [i for i, t in enumerate(group) if t.reward is not None and not has_env_fault(t)]
    failures = [i for i in judged if group[i].reward < positive_from]
    successes = [i for i in judged if group[i].reward >= positive_from]
    quotas = roc_quotas(len(failures), len(successes), min(keep, len(judged)))

    # failures in random order, successes by penalty
    failures = _shuffled(failures, generator)
    successes = _shuffled(successes, generator)
    penalties = [error_penalty(group[i]) + format_penalty(group[i]) for i in successes]
    cost = torch.tensor(penalties, dtype=torch.float64)
    if mode == "sample":  # race of exponential clocks with rate 1 / (epsilon + penalty)
        uniform = torch.rand(len(successes), generator=generator, dtype=torch.float64)
        cost = (cost + epsilon) * -torch.log1p(-uniform)
    order = torch.argsort(cost, stable=True).tolist()

    kept = failures[: quotas[0]] + [successes[i] for i in order[: quotas[1]]]
    unjudged = [i for i in range(len(group)) if i not in judged]
    return sorted(kept + unjudged[: keep - len(kept)])


def _shuffled(indices: list[int], generator: torch.Generator | None) -> list[int]:
    return [indices[i] for i in torch.randperm(len(indices), generator=generator)]


def drop_zero_variance_groups(rewards_N, groups_N, valid_N=None) -> Tensor:
    """Mask rollouts whose group has equal rewards (DAPO, arXiv 2503.14476, section 3.2).

    Args:
        rewards_N: float.
        groups_N: int, one number per question.
        valid_N: bool or None (all).

    Returns:
        keep_N, bool: False in groups of one or of equal rewards and for invalid members.

    Raises:
        ValueError: lengths differ, a valid reward is not finite, or a dtype is wrong.

    >>> drop_zero_variance_groups([1.0, 0.0, 1.0, 1.0], [0, 0, 1, 1]).tolist()
    [True, True, False, False]
    """
    spread_N = group_mean(torch.as_tensor(rewards_N).double(), groups_N, valid_N).abs()
    groups_N = torch.as_tensor(groups_N, device=spread_N.device)
    varied_N = torch.isin(groups_N, groups_N[spread_N > 0])
    return (
        varied_N if valid_N is None else varied_N & torch.as_tensor(valid_N, device=varied_N.device)
    )


def replace_zero_variance_groups(
    rewards_N, groups_N, valid_N=None, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Replace zero-variance groups with random copies of the others (DUPO, WebSailor, 2507.02592).

    Args:
        rewards_N: float.
        groups_N: int, one number per question.
        valid_N: bool or None (all).
        generator: of the choice; None is torch's global one.

    Returns:
        (indices_M, groups_M), int64: the rollout at each place, and the number of its slot. A copy
        has its own slot, otherwise it would enter the baseline of its original. Both are empty if
        every
        group has equal rewards: skip the step.

    Raises:
        ValueError: as `drop_zero_variance_groups`.
    """
    members, varied = _members(rewards_N, groups_N, valid_N)
    indices, slots = [], []
    for slot, group in enumerate(members if varied else []):
        if group not in varied:
            group = varied[int(torch.randint(len(varied), (), generator=generator))]
        indices += members[group]
        slots += [slot] * len(members[group])
    return torch.tensor(indices, dtype=torch.int64), torch.tensor(slots, dtype=torch.int64)


def truncate_to_multiple(
    n: int, multiple: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """Sample floor(n / multiple) * multiple of `n` indices, so that all processes get equal shares.

    WebResearcher's down-sampling of rounds (arXiv 2509.13309). generator: of the choice; None is
    torch's global one. Returns indices_M, int64, ascending.

    Raises:
        ValueError: a multiple below 1.
    """
    require(multiple >= 1, f"multiple={multiple} must be at least 1")
    kept = torch.randperm(n, generator=generator)[: n // multiple * multiple]
    return kept.sort().values


def _members(rewards_N, groups_N, valid_N) -> tuple[dict[int, list[int]], list[int]]:
    """Return each group's indices and the groups with reward variance, in order of appearance."""
    varied_N = drop_zero_variance_groups(rewards_N, groups_N, valid_N).tolist()
    members: dict[int, list[int]] = {}
    for i, group in enumerate(torch.as_tensor(groups_N).tolist()):
        members.setdefault(group, []).append(i)
    return members, [g for g, rows in members.items() if any(varied_N[i] for i in rows)]
