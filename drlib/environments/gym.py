"""Tasks of reasoning-gym (arXiv 2505.24760): procedural questions, scored by its own verifiers.

`gym:chain_sum`, or with the data set's settings `gym:chain_sum:max_terms=2,max_digits=2`. A task is
one item of a data set with its own seed, so it is drawn again from its `Task.environment` alone.
Scores between 0 and 1 are partial credit of the data set. Needs the extra `gym`.
"""

import json
import random
from typing import Any

from drlib.environments.environment import Environment, Episode, Solution, parse_settings
from drlib.task import Task
from drlib.validation import require

REMEDY = "reasoning-gym is not installed: pip install 'drlib[gym]'"


class ReasoningGym(Environment):
    """A data set of reasoning-gym; its task has no tools.

    Args:
        arguments: "DATASET" or "DATASET:KEY=VALUE,KEY=VALUE"; values are JSON or text.

    Raises:
        ValueError: reasoning-gym is not installed, or it has no such data set or setting.
    """

    def __init__(self, arguments: str):
        try:
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
        except ImportError:
            raise ValueError(REMEDY) from None
        self._gym = reasoning_gym
        self.dataset, _, settings = arguments.partition(":")
        require(
            self.dataset in DATASETS,
            f"gym:{self.dataset}: reasoning-gym has no such data set, only "
            f"{', '.join(sorted(DATASETS))}",
        )
        self.name = f"gym:{arguments}"
        self.settings = parse_settings("gym", settings)
        try:
            self._create(0)
        except (TypeError, AssertionError, ValueError) as error:
            raise ValueError(f"{self.name}: {error}") from error

    def draw(self, rng: random.Random) -> Task:
        """Draw an item with a seed of its own."""
        seed = rng.getrandbits(31)
        item = self._create(seed)[0]
        return Task(
            f"{self.dataset}-{seed}",
            item["question"].strip(),
            str(item["answer"]),
            self.name,
            self.name,
            environment=json.dumps({"seed": seed}),
        )

    def reset(self, task: Task) -> Episode:
        """Create the item again from its seed."""
        return _Item(self._create(json.loads(task.environment)["seed"]))

    def solve(self, task: Task) -> Solution:
        """Answer with the data set's own answer."""
        yield from ()
        return "", task.answer

    def _create(self, seed: int) -> Any:
        return self._gym.create_dataset(self.dataset, size=1, seed=seed, **self.settings)


class _Item(Episode):
    """An item; its data set scores the answer."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def verify(self, answer: str | None) -> float:
        return self.dataset.score_answer(answer=answer, entry=self.dataset[0])
