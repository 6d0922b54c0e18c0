"""Callback that keeps the buffer of evolving rubrics (`drlib.rewards.evolving_rubrics`).

Before a step the buffer's criteria become arguments of the reward. After the rollouts the spread of
every criterion is gathered over all processes, criteria are dropped and added, and a model writes
new ones for some groups with different rewards. A new criterion is kept if it discriminates in the
group it was written for. The buffer is part of the checkpoint.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from drlib.config import Config
from drlib.rewards.evolving_rubrics import (
    NAME,
    RubricBuffer,
    RubricModel,
    measure_spreads,
    open_endpoint,
)
from drlib.training.callbacks import CALLBACKS, Callback, StepState
from drlib.training.rollouts import reward_arguments
from drlib.trajectory import Trajectory
from drlib.validation import require


class RubricUpdates(Callback):
    """Passes the buffer to the reward, and updates it after every step.

    Args:
        config: whose reward is `evolving_rubrics`, or a combination with that term.
    """

    def __init__(self, config: Config):
        own = _own_arguments(config)
        self.buffer = RubricBuffer(own.get("window", 5))
        self.groups_written = own.get("write", 1)
        url = own.get("url", "")
        self.model = RubricModel(open_endpoint(url, own.get("model", ""))) if url else None

    def on_step_begin(self, trainer, state: StepState) -> None:
        """Set the arguments of the reward."""
        text = json.dumps(_with_own(state.config, self.buffer.arguments()))
        state.config = state.config.derive(rl__reward__arguments=text)

    def on_batch(self, trainer, state: StepState) -> None:
        """Update the buffer with all groups of the step."""
        groups = defaultdict(list)
        for one in state.rollouts:
            groups[one.group_id].append(one)
        rows = [(group[0].task_id, measure_spreads(group)) for group in groups.values()]
        counts = self.buffer.update(trainer.ranks.gather(rows))
        found = self._write([*groups.values()]) if self.model else []
        # every process adds the criteria of all processes, in the same order
        for question, text, spread in trainer.ranks.gather(found):
            counts["added"] += self.buffer.add_written(question, text, spread)
        state.metrics |= {f"rubrics/{name}": count for name, count in counts.items()}

    def _write(self, groups: Sequence[Sequence[Trajectory]]) -> list[tuple[str, str, float]]:
        """Return (question id, criterion, spread) for some groups with different rewards."""
        judged = [[one for one in group if one.reward is not None] for group in groups]
        mixed = [group for group in judged if len({one.reward for one in group}) > 1]
        found = []
        for group in mixed[: self.groups_written]:
            for text in self.model.write(group[0].metadata["question"], group):
                met = [self.model.judge(text, one) for one in group]
                if None not in met:
                    found.append((group[0].task_id, text, float(np.std(met))))
        return found

    def state_dict(self) -> dict:
        """Return the state of the buffer."""
        return self.buffer.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Restore the state saved by state_dict()."""
        self.buffer.load_state_dict(state)


@CALLBACKS.register("rubric_buffer")
def _build_rubric_updates(config: Config, trainer) -> Callback | None:
    if config.rl.reward.name != NAME and NAME not in reward_arguments(config).get("weights", ()):
        return None
    # rewards come from elsewhere, so the buffer would have no effect
    for name, value in (("rl.asynchronous.actors", 0), ("rl.off_policy.rollouts", "")):
        found = config.get(name)
        require(
            found == value,
            f"{NAME} does not go with {name}={found}: the rollouts are judged before the buffer is "
            f"updated; set {name}={value!r}, or use the reward rubrics",
        )
    return RubricUpdates(config)


def _own_arguments(config: Config) -> dict[str, Any]:
    """Return the arguments of `evolving_rubrics`, also as a term of another reward."""
    arguments = reward_arguments(config)
    if config.rl.reward.name == NAME:
        return arguments
    return arguments.get("arguments", {}).get(NAME, {})


def _with_own(config: Config, changes: dict[str, Any]) -> dict[str, Any]:
    """Return rl.reward.arguments with changed arguments of `evolving_rubrics`."""
    arguments = reward_arguments(config)
    own = _own_arguments(config) | changes
    if config.rl.reward.name == NAME:
        return own
    return arguments | {"arguments": arguments.get("arguments", {}) | {NAME: own}}
