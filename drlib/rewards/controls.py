"""Rewards that cannot teach, as fair controls of those that should.

A random reward trains on every group and on every token, so a policy may collapse under it for that
alone. Two controls leave a step as it is but for what is rewarded:

- `shuffled`: a group's own rewards, handed round among its rollouts. The same groups are live, with
  the same advantages on as many tokens; only who earned them is by chance.
- `majority_wrong_answer`: the group's most frequent wrong answer is taken for the right one (the "incorrect"
  reward of Spurious Rewards, arXiv 2506.10947).
"""

from collections import Counter
from collections.abc import Sequence

import torch

from drlib.task import Task, is_correct, normalise_answer


def shuffle_rewards(
    rewards: Sequence[float | None], generator: torch.Generator
) -> list[float | None]:
    """The rewards of one group in another order; None (not judged) stays where it is."""
    judged = [i for i, reward in enumerate(rewards) if reward is not None]
    order = torch.randperm(len(judged), generator=generator).tolist()
    found = list(rewards)
    for i, source in zip(judged, order):
        found[i] = rewards[judged[source]]
    return found


def majority_wrong_answer(answers: Sequence[str | None], task: Task) -> str | None:
    """The most frequent wrong answer of a group, normalised (the first of those that tie); None
    where nobody gave one."""
    wrong = Counter(
        normalise_answer(answer)
        for answer in answers
        if answer is not None and not is_correct(answer, task)
    )
    wrong.pop("", None)
    return wrong.most_common(1)[0][0] if wrong else None
