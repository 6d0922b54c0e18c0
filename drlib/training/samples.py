"""What is trained on of a rollout whose policy began several contexts: each context as a sample.

The policy saw the tokens of one context only when it sampled, so a context is a sequence of its
own: a round of IterResearch (WebResearcher, arXiv 2509.13309), a segment between two summaries
(ReSum-GRPO, 2509.13313). A rollout of one context is one sample, and nothing changes. Rewards are
compared over rollouts and each context has its rollout's advantage, as in ReSum-GRPO; or over all
contexts of a group's rollouts (`rl.advantage.baseline=samples`), as in WebResearcher.

Left out: rewards for single rounds.
"""

from collections.abc import Iterable

import numpy as np

from drlib.trajectory import Trajectory, select_tokens


def contexts_of(trajectory: Trajectory) -> list[Trajectory]:
    """The contexts in which the policy spoke, each with the rollout's reward and group; the
    trajectory itself where it is one context."""
    if trajectory.contexts is None:
        return [trajectory]
    found = []
    for number in np.unique(trajectory.contexts):
        inside_T = trajectory.contexts == number
        if trajectory.generated[inside_T].any():
            name = f"{trajectory.id}/{number}"
            found.append(select_tokens(trajectory, inside_T, id=name, contexts=None))
    return found


def all_contexts(trajectories: Iterable[Trajectory]) -> tuple[list[Trajectory], list[int]]:
    """(the contexts of all, the index of the trajectory that each is of)."""
    samples, owners = [], []
    for index, trajectory in enumerate(trajectories):
        some = contexts_of(trajectory)
        samples += some
        owners += [index] * len(some)
    return samples, owners
