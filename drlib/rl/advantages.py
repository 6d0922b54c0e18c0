"""Advantages of group-based policy gradients: the reward of a rollout relative to its group.

Estimators with one signature, selected by name from `ADVANTAGES`, where your own can be
registered. `leave_one_out` is the default (Tongyi DeepResearch section 3.4, after LOOP, arXiv
2502.01600, eq. 3); the report's printed eq. 5 is `group_mean`, smaller by (G-1)/G.

Rewards are shifted by their group's minimum before summation. Advantages do not depend on the
shift, so a group of equal rewards gives exactly 0 whatever the rounding.

`share_over_segments` assigns advantages to the segments of a trajectory with context resets
(ReSum).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from drlib.registry import Registry
from drlib.validation import require

ADVANTAGES = Registry("advantage")  # name -> (rewards_N, groups_N, valid_N=None) -> advantages_N


class _Groups(NamedTuple):
    shifted_N: Tensor  # rewards shifted to a smallest 0 within each group, 0 where not valid
    count_N: Tensor  # valid members of each rollout's group
    total_N: Tensor  # sum over them
    valid_N: Tensor
    index_N: Tensor


@ADVANTAGES.register("leave_one_out")
def leave_one_out(rewards_N, groups_N, valid_N=None) -> Tensor:
    """A_i = R_i - mean of the other members' rewards (LOOP eq. 3); the default.

    Equal to G/(G-1) times `group_mean`. The baseline does not contain R_i itself, so the gradient
    stays unbiased. No division by the standard deviation.

    Args:
        rewards_N: float tensor, array or list.
        groups_N: int; rollouts of one question share a number. Order and gaps do not matter.
        valid_N: bool or None (all). A False member (an environment fault, say) is in no baseline,
            its reward may be NaN, and its own advantage is 0.

    Returns:
        advantages_N, dtype of `rewards_N`; exactly 0 in a group of one or of equal rewards.

    Raises:
        ValueError: lengths differ, a valid reward is NaN or infinite, or a dtype is wrong.

    >>> leave_one_out([1.0, 0.0, 0.0], [7, 7, 7]).tolist()
    [1.0, -0.5, -0.5]
    """
    rewards_N, groups = _gather(rewards_N, groups_N, valid_N)
    others_N = (groups.count_N - 1).clamp(min=1)
    baseline_N = (groups.total_N - groups.shifted_N) / others_N
    return _finish(groups.shifted_N - baseline_N, groups, rewards_N)


@ADVANTAGES.register("group_mean")
def group_mean(rewards_N, groups_N, valid_N=None) -> Tensor:
    """A_i = R_i - mean of the whole group, i included (Tongyi report eq. 5 as printed; Dr.GRPO).

    Arguments, result and errors are those of `leave_one_out`.

    >>> group_mean([1.0, 0.0], [7, 7]).tolist()
    [0.5, -0.5]
    """
    rewards_N, groups = _gather(rewards_N, groups_N, valid_N)
    return _finish(_centred(groups), groups, rewards_N)


@ADVANTAGES.register("group_normalized")
def group_normalized(rewards_N, groups_N, valid_N=None, *, epsilon: float = 1e-6) -> Tensor:
    """A_i = (R_i - mean) / (std + epsilon) within the group (GRPO, DeepSeekMath eq. 4).

    `std` is the sample standard deviation (divided by G-1), as in TRL and verl. It gives more
    weight to rare successes and failures of very hard and very easy questions. The advantage is 0
    where the deviation is 0, also with epsilon = 0. Otherwise as `leave_one_out`.
    """
    rewards_N, groups = _gather(rewards_N, groups_N, valid_N)
    centred_N = _centred(groups)
    squares_N = _group_sum(centred_N.square(), groups.index_N)
    std_N = (squares_N / (groups.count_N - 1).clamp(min=1)).sqrt()
    return _finish(_divide(centred_N, std_N, epsilon), groups, rewards_N)


@ADVANTAGES.register("batch_normalized")
def batch_normalized(rewards_N, groups_N, valid_N=None, *, epsilon: float = 1e-6) -> Tensor:
    """A_i = (R_i - group mean) / (std of all rewards in the batch + epsilon) (TRL's "batch").

    One scale for all questions: `group_mean` with a step size that does not depend on the reward
    scale. Pass the rewards of the whole step, because the deviation is computed over the argument.
    The advantage is 0 where the deviation is 0. Otherwise as `leave_one_out`.
    """
    rewards_N, groups = _gather(rewards_N, groups_N, valid_N)
    kept = rewards_N.double()[groups.valid_N]
    std = kept.std() if len(kept) > 1 else kept.new_zeros(())
    return _finish(_divide(_centred(groups), std, epsilon), groups, rewards_N)


@ADVANTAGES.register("uniform")
def uniform(rewards_N, groups_N, valid_N=None) -> Tensor:
    """A_i = 1 for every valid rollout, whatever its reward: behaviour cloning with
    rl.loss.clip=log_likelihood.

    Arguments and errors of this estimator and the next two are those of `leave_one_out`; they have
    no baseline, so a group of one counts too.
    """
    rewards_N, groups = _gather(rewards_N, groups_N, valid_N)
    return groups.valid_N.to(rewards_N.dtype)


@ADVANTAGES.register("reward")
def reward(rewards_N, groups_N, valid_N=None) -> Tensor:
    """A_i = R_i, without a baseline: with log_likelihood and rewards of 0 and 1, cloning of the
    correct rollouts.
    """
    rewards_N, groups = _gather(rewards_N, groups_N, valid_N)
    return torch.where(groups.valid_N, rewards_N, 0.0)


@ADVANTAGES.register("exponential")
def exponential(rewards_N, groups_N, valid_N=None, *, beta: float = 0.5) -> Tensor:
    """A_i = exp(R_i / beta) over its mean over the batch: reward-weighted regression.

    The default gives a reward of 1 the weight e^2 of a reward of 0. As beta grows the weights
    approach those of "uniform", as it falls only the highest reward of the batch counts.

    Raises:
        ValueError: as `leave_one_out`, or beta is not positive.

    >>> [round(a, 3) for a in exponential([1.0, 0.0], [7, 7]).tolist()]
    [1.762, 0.238]
    """
    require(beta > 0, f"beta={beta} must be positive")
    rewards_N, groups = _gather(rewards_N, groups_N, valid_N)
    weights_N = torch.zeros_like(rewards_N, dtype=torch.float64)
    kept = rewards_N.double()[groups.valid_N]
    if len(kept):
        scaled = ((kept - kept.max()) / beta).exp()  # shifted, so that no reward overflows
        weights_N[groups.valid_N] = scaled / scaled.mean()
    return weights_N.to(rewards_N.dtype)


def share_over_segments(advantages_N, trajectory_of_segment_S) -> Tensor:
    """Assign to each segment the advantage of its trajectory (ReSum-GRPO).

    An agent that resets its context K times leaves K + 1 segments, trained as separate sequences;
    only the whole trajectory is judged. Compute the baseline over trajectories first: over
    segments, those with many resets would outweigh the others. In `policy_loss`, aggregate
    "sequence" over such rows is ReSum's 1 / (number of segments), "token" the default recipe's.

    Args:
        advantages_N: float, one per trajectory.
        trajectory_of_segment_S: int, index into `advantages_N`, in any order.

    Returns:
        advantages_S, dtype of `advantages_N`.

    Raises:
        ValueError: wrong shapes, non-integer indices, or an index out of range.

    >>> share_over_segments([0.5, -0.5], [0, 0, 1]).tolist()
    [0.5, 0.5, -0.5]
    """
    advantages_N = torch.as_tensor(advantages_N)
    name = "trajectory_of_segment_S"
    n = advantages_N.numel()
    index_S = _integers(trajectory_of_segment_S, name, advantages_N.device)
    flat = advantages_N.dim() == index_S.dim() == 1
    require(
        flat,
        f"advantages_N and {name} need shapes [N] and [S], got "
        f"{list(advantages_N.shape)} and {list(index_S.shape)}",
    )
    unknown = index_S[(index_S < 0) | (index_S >= n)].tolist()
    require(not unknown, f"{name} names {unknown[:3]}, but there are {n} advantages")
    return advantages_N[index_S]


def _gather(rewards_N, groups_N, valid_N) -> tuple[Tensor, _Groups]:
    """Check the arguments; return float rewards and per-group sums."""
    rewards_N = torch.as_tensor(rewards_N)
    if not rewards_N.is_floating_point():
        rewards_N = rewards_N.to(torch.get_default_dtype())
    groups_N = _integers(groups_N, "groups_N", rewards_N.device)
    valid_N = torch.ones_like(rewards_N).bool() if valid_N is None else torch.as_tensor(valid_N)
    boolean = valid_N.dtype == torch.bool or not valid_N.numel()
    require(boolean, f"valid_N must be boolean, got {valid_N.dtype}; pass counts > 0")
    valid_N = valid_N.to(rewards_N.device, torch.bool)
    shapes = [tuple(tensor.shape) for tensor in (rewards_N, groups_N, valid_N)]
    require(
        rewards_N.dim() == 1 and len(set(shapes)) == 1,
        "rewards_N, groups_N and valid_N need one entry per rollout (shape [N]); got shapes "
        + ", ".join(map(str, shapes)),
    )
    for i in torch.nonzero(valid_N & ~rewards_N.isfinite()).flatten().tolist():
        raise ValueError(
            f"rewards_N[{i}] is {rewards_N[i].item()}; make valid_N[{i}] False where "
            "a rollout could not be judged"
        )
    # each reward less the smallest valid one of its group
    index_N = torch.unique(groups_N, return_inverse=True)[1]
    exact_N = rewards_N.double()
    candidates_N = exact_N.masked_fill(~valid_N, torch.inf)
    smallest = torch.full_like(exact_N, torch.inf).scatter_reduce(0, index_N, candidates_N, "amin")
    shifted_N = torch.where(valid_N, exact_N - smallest[index_N], 0.0)
    count_N = _group_sum(valid_N.double(), index_N)
    total_N = _group_sum(shifted_N, index_N)
    return rewards_N, _Groups(shifted_N, count_N, total_N, valid_N, index_N)


def _integers(values, name: str, device) -> Tensor:
    """Return `values` as an integer tensor; torch reads an empty list as floats."""
    numbers = torch.as_tensor(values, device=device)
    numbers = numbers if numbers.numel() else numbers.long()
    integers = not numbers.is_floating_point() and numbers.dtype != torch.bool
    require(integers, f"{name} holds integers, got {numbers.dtype}")
    return numbers


def _group_sum(values_N: Tensor, index_N: Tensor) -> Tensor:
    """Give each member the sum over its group; [N] -> [N]."""
    return torch.zeros_like(values_N).index_add(0, index_N, values_N)[index_N]


def _centred(groups: _Groups) -> Tensor:
    return groups.shifted_N - groups.total_N / groups.count_N.clamp(min=1)


def _divide(centred_N: Tensor, std: Tensor, epsilon: float) -> Tensor:
    """Return centred / (std + epsilon), 0 where the deviation is 0, also with epsilon = 0."""
    return torch.where(std > 0, centred_N / torch.where(std > 0, std + epsilon, 1.0), 0.0)


def _finish(advantages_N: Tensor, groups: _Groups, rewards_N: Tensor) -> Tensor:
    alone_N = groups.count_N < 2
    return advantages_N.masked_fill(~groups.valid_N | alone_N, 0.0).to(rewards_N.dtype)
