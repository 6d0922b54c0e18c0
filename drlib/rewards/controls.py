"""Control rewards that carry no information about the answer, for fair comparisons.

A random reward trains on every group and every token, which alone can collapse a policy. Three
controls change nothing about a step except which rollouts are rewarded:

- `shuffle_rewards` permutes a group's own rewards. The same groups have reward variance, with the
  same advantages on as many tokens; only the assignment to rollouts is random.
- `majority_wrong_answer` replaces the right answer by the group's most frequent wrong one (the
  "incorrect" reward of Spurious Rewards, arXiv 2506.10947).
- `majority_answer` replaces it by the group's most frequent answer, right or wrong: training
  without labels (TTRL, arXiv 2504.16084; "majority vote" of Spurious Rewards).
"""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from drlib.task import Task, is_correct, normalise_answer

if TYPE_CHECKING:
    import torch

# Names of rewards that ignore the answer on purpose. A run with another reward is refused if it
# pays right and wrong answers the same (drlib.training.doctor); add your own control here.
CONTROL_REWARDS = {"random", "format", "inverse"}


def shuffle_rewards(
    rewards: Sequence[float | None], generator: "torch.Generator"
) -> list[float | None]:
    """Permute the rewards of one group; None (not judged) keeps its place."""
    import torch

    judged = [i for i, reward in enumerate(rewards) if reward is not None]
    order = torch.randperm(len(judged), generator=generator).tolist()
    shuffled = list(rewards)
    for i, source in zip(judged, order):
        shuffled[i] = rewards[judged[source]]
    return shuffled


def majority_wrong_answer(answers: Sequence[str | None], task: Task) -> str | None:
    """Return the most frequent wrong answer of a group, normalised; the first one in a tie.

    None if there is no wrong answer.
    """
    return majority_answer(
        [answer for answer in answers if answer is not None and not is_correct(answer, task)]
    )


def majority_answer(answers: Sequence[str | None]) -> str | None:
    """Return the most frequent answer of a group, normalised; the first one in a tie.

    None if there is no answer.
    """
    counts = Counter(normalise_answer(answer) for answer in answers if answer is not None)
    counts.pop("", None)
    return counts.most_common(1)[0][0] if counts else None
