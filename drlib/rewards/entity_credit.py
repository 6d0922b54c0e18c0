"""Entity credit of E-GRPO (arXiv 2510.24694): wrong answers earn a share for entities in thoughts.

    R = 1                           the answer is right
    R = alpha * gamma / gamma_max   it is wrong; alpha = 0.3
    R = 0                           no answer, or a turn that was refused for its format

gamma is the share of `Task.entities` that the thoughts name, gamma_max its maximum in the group.
The training loop divides by gamma_max; a reward outside a group has gamma_max = 1.
"""

import re
from collections.abc import Sequence

from drlib.rewards.functions import (
    GROUP_REWARDS,
    REWARDS,
    Reward,
    RewardResult,
    exact_match,
    is_well_formed,
)
from drlib.task import Task, normalise_answer
from drlib.trajectory import Trajectory
from drlib.validation import require

_ACTIONS = re.compile(r"<(tool_call|answer)>.*?(</\1>|$)", re.DOTALL)


def named_share(trajectory: Trajectory, entities: Sequence[str]) -> float:
    """Return the share of the entities that the policy's thoughts name as whole words."""
    turns = [m["content"] or "" for m in trajectory.messages if m["role"] == "assistant"]
    thoughts = normalise_answer(" ".join(_ACTIONS.sub(" ", turn) for turn in turns))
    names = [normalise_answer(entity) for entity in entities]
    found = [bool(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", thoughts)) for name in names]
    return sum(found) / len(found) if found else 0.0


@REWARDS.register("entity_credit")
def entity_credit(alpha: float = 0.3) -> Reward:
    """Create the reward of E-GRPO; its terms are `exact_match` and `entities` (gamma).

    Args:
        alpha: credit of a wrong answer that names all entities, in [0, 1).

    Raises:
        ValueError: alpha out of range.
    """
    require(0 <= alpha < 1, f"alpha={alpha} must be in [0, 1): a wrong answer must earn less")
    answer_reward = exact_match()

    def reward(trajectory: Trajectory, task: Task) -> RewardResult:
        right = answer_reward(trajectory, task).value
        if right is None:
            return RewardResult(None)
        named = named_share(trajectory, task.entities)
        credit = alpha * named * is_well_formed(trajectory)
        return RewardResult(right or credit, {"exact_match": right, "entities": named})

    return reward


def divide_by_maximum(group: Sequence[Trajectory]) -> list[float | None]:
    """Return the rewards of a judged group with the credit of wrong answers over gamma_max."""
    judged = [t for t in group if t.reward is not None]
    most = max((t.reward_parts["entities"] for t in judged), default=0.0)
    return [
        t.reward / most if t.reward and not t.reward_parts["exact_match"] else t.reward
        for t in group
    ]


GROUP_REWARDS["entity_credit"] = divide_by_maximum
