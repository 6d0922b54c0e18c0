"""Which rollouts and groups of a batch are kept or repeated, decided by their rewards.

Three answers to the same waste, all off in the recipe:

- Groups of equal rewards have no gradient. `drop_zero_variance_groups` masks them (DAPO's filter; its
  dynamic sampling is `first_live` of `drlib.training.rollouts`), `replace_zero_variance_groups` puts
  copies of live groups in their place (WebSailor's DUPO), which is much the same as a larger
  weight, and cheap.
- Successes with broken tool calls teach broken tool calls. `resample_on_correct` keeps fewer than
  were rolled out and prefers clean successes (rStar2-Agent's GRPO-RoC, arXiv 2508.20722, section
  2.2.3): rewards stay as they are, and failures as varied as they came.

RoC's paper samples successes with probability inverse to their penalty, its code takes the
cleanest: `mode` chooses. Where the code takes the first failures we draw (the first to finish are
the short ones), and where it counts the word "error" we count `ToolResult.ok`. Left out: the
rollouts, and a cache of surplus live groups.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from drlib.rewards.functions import has_env_fault
from drlib.rl.advantages import group_mean
from drlib.trajectory import Trajectory
from drlib.validation import require, require_finite, require_one_of, require_within

_FLOOR = 2  # rollouts of each outcome kept where there are so many (rStar2-Agent's code)
_UNTRIED = 0.5  # p_err without a tool call (paper, section 2.2.3)


def assistant_texts(trajectory: Trajectory) -> list[str]:
    """What the policy wrote, a text a turn."""
    return [m["content"] for m in trajectory.messages if m["role"] == "assistant"]


def error_penalty(trajectory: Trajectory) -> float:
    """p_err: share of failed tool calls, unparsed turns among them; 0.5 without any (2.2.3)."""
    results = trajectory.tool_results
    if not results:
        return _UNTRIED
    return sum(not result.ok for result in results) / len(results)


def format_penalty(trajectory: Trajectory) -> float:
    """p_fmt: min(1, (answer tags - 1) / turns); 1 without an answer (2.2.3) or unpaired (code)."""
    texts = assistant_texts(trajectory)
    opened = sum(text.count("<answer>") for text in texts)
    closed = sum(text.count("</answer>") for text in texts)
    if not opened or opened != closed:
        return 1.0
    return min(1.0, (opened - 1) / len(texts))


def roc_quotas(negatives: int, positives: int, keep: int) -> tuple[int, int]:
    """(failures, successes) to keep: in proportion, at least two of each where there are so many.

    The failures' share is round(negatives * keep / n) as in the published code; successes get the
    rest, so that the two always add up to `keep`. With `keep` below 4 the floor is keep // 2.
    ValueError when there are fewer rollouts than `keep`.
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
    """Which `keep` rollouts of one question to train on (GRPO-RoC).

    Failures are drawn uniformly. Successes: "sample" draws without replacement, each next one with
    probability in proportion to 1 / (epsilon + p_err + p_fmt); "sort" takes the lowest penalties,
    ties at random. Compute advantages over the kept ones only. Rollouts that an environment fault
    spoilt or nobody judged are kept, the first ones first, only when the others run out.

    epsilon: > 0; what a clean success counts as. The paper leaves it open and it matters: a small
    one is nearly "sort", 1 nearly uniform. generator: of the draws; None is torch's global one.
    positive_from: as in `FilterConfig`.

    Returns `keep` different indices into `group`, ascending. ValueError: keep is not in
    0..len(group), several groups, a reward that is not finite, an unknown mode or epsilon.
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

    # failures and successes among those that were judged, and how many of each to keep
    judged = [i for i, t in enumerate(group) if t.reward is not None and not has_env_fault(t)]
    failures = [i for i in judged if group[i].reward < positive_from]
    successes = [i for i in judged if group[i].reward >= positive_from]
    quotas = roc_quotas(len(failures), len(successes), min(keep, len(judged)))

    # failures come in any order, successes by how clean they are
    failures = _shuffled(failures, generator)
    successes = _shuffled(successes, generator)
    penalties = [error_penalty(group[i]) + format_penalty(group[i]) for i in successes]
    cost = torch.tensor(penalties, dtype=torch.float64)
    if mode == "sample":  # the first of exponential clocks of rate 1 / (epsilon + penalty)
        uniform = torch.rand(len(successes), generator=generator, dtype=torch.float64)
        cost = (cost + epsilon) * -torch.log1p(-uniform)
    order = torch.argsort(cost, stable=True).tolist()

    kept = failures[: quotas[0]] + [successes[i] for i in order[: quotas[1]]]
    spoilt = [i for i in range(len(group)) if i not in judged]
    return sorted(kept + spoilt[: keep - len(kept)])


def _shuffled(indices: list[int], generator: torch.Generator | None) -> list[int]:
    return [indices[i] for i in torch.randperm(len(indices), generator=generator)]


def drop_zero_variance_groups(rewards_N, groups_N, valid_N=None) -> Tensor:
    """Which rollouts lie in a group whose rewards differ (DAPO, arXiv 2503.14476, section 3.2).

    rewards_N: float. groups_N: int, one number a question. valid_N: bool or None (all). Returns
    keep_N, bool: False in groups of one or of equal rewards and for members not valid. ValueError:
    lengths differ, a valid reward is not finite, a dtype is wrong.
    """
    spread_N = group_mean(torch.as_tensor(rewards_N).double(), groups_N, valid_N).abs()
    groups_N = torch.as_tensor(groups_N, device=spread_N.device)
    live_N = torch.isin(groups_N, groups_N[spread_N > 0])
    return live_N if valid_N is None else live_N & torch.as_tensor(valid_N, device=live_N.device)


def replace_zero_variance_groups(
    rewards_N, groups_N, valid_N=None, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Dead groups' slots filled with random copies of live ones (DUPO, WebSailor, 2507.02592).

    rewards_N: float. groups_N: int, one number a question. valid_N: bool or None (all). generator:
    of the choice; None is torch's global one. ValueError as `drop_zero_variance_groups`.

    Returns (indices_M, groups_M), int64: which rollout stands in each place, and the number of its
    slot (a copy has its own, or it would enter the baseline of its original). Both are empty when
    no group is live: skip the step.
    """
    members, live = _members(rewards_N, groups_N, valid_N)
    indices, slots = [], []
    for slot, group in enumerate(members if live else []):
        if group not in live:
            group = live[int(torch.randint(len(live), (), generator=generator))]
        indices += members[group]
        slots += [slot] * len(members[group])
    return torch.tensor(indices, dtype=torch.int64), torch.tensor(slots, dtype=torch.int64)


def truncate_to_multiple(
    n: int, multiple: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """`n` samples cut down to a multiple of `multiple`, so that as many processes have as much
    each; fewer than `multiple` are lost, at random (WebResearcher's down-sampling of rounds, arXiv
    2509.13309: floor(n / multiple) * multiple stay).

    generator: of the choice; None is torch's global one. Returns indices_M, int64, ascending.
    ValueError: a multiple below 1.
    """
    require(multiple >= 1, f"samples are cut down to a multiple of {multiple}: it starts at 1")
    kept = torch.randperm(n, generator=generator)[: n // multiple * multiple]
    return kept.sort().values


def _members(rewards_N, groups_N, valid_N) -> tuple[dict[int, list[int]], list[int]]:
    """(indices of each group's rollouts, live groups), both in order of appearance."""
    live_N = drop_zero_variance_groups(rewards_N, groups_N, valid_N).tolist()
    members: dict[int, list[int]] = {}
    for i, group in enumerate(torch.as_tensor(groups_N).tolist()):
        members.setdefault(group, []).append(i)
    return members, [g for g, rows in members.items() if any(live_N[i] for i in rows)]
