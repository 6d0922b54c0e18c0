"""The interface of task environments: draw tasks, reset, call tools, verify.

An environment draws `Task`s whose `kind` is its name. For each rollout of such a task, the toolbox
opens an `Episode`: its tools read and write a state of this rollout alone, and `verify` judges the
end. The toolbox never caches these calls. If an episode raises, the rollout ends with ENV_FAULT and
is excluded from training: a crash of the environment is not the policy's failure.

    environments = load_environments("gym:chain_sum+database")
    tasks = environments["database"].tasks(8, seed=0)
    with Toolbox(None, environments=environments) as toolbox:
        rollouts = ReAct(engine, toolbox).run(tasks)
    rollouts[0].metadata["verification"]  # {"score": 1.0}
"""

import hashlib
import importlib
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from drlib.chat.tool_calls import ToolCall
from drlib.demonstrations.oracle import Episode as Demonstration
from drlib.registry import Registry
from drlib.task import Task
from drlib.tools.definitions import Tool
from drlib.tools.episode_toolbox import Observation
from drlib.validation import require

Split = Literal["train", "test"]
# (thought, call) -> observation; returns (thought, answer)
Solution = Generator[tuple[str, ToolCall], str, tuple[str, str]]
TEST_SHARE = 5  # every fifth question is held out
MAX_REPEATS = 200  # draws in a row without a new question


class Episode(AbstractContextManager):
    """A rollout of a task: tools over its own state, and the verification of its end.

    Calls of one episode are made one after the other, in any thread.
    """

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Run one tool of `Environment.tools` with valid arguments.

        A failure that the policy caused is an `Observation` with `ok=False`. An exception is a
        fault of the environment and ends the rollout.
        """
        raise LookupError(f"{type(self).__name__} has no tool {name!r}")

    @abstractmethod
    def verify(self, answer: str | None) -> float:
        """Return the score in [0, 1]; 1 is solved.

        Args:
            answer: the final answer; None if a limit ended the rollout.
        """

    def close(self) -> None:
        """Release the state; called once, also after a fault."""

    def __exit__(self, *_exc) -> None:
        self.close()


class Environment(ABC):
    """A source of tasks with their own tools and verification.

    Attributes:
        name: of the environment with its arguments, as in `load_environment`; `Task.kind`.
        shared_tools: tools of the run's toolbox, such as "python", that its tasks also offer.
    """

    name: str
    shared_tools: tuple[str, ...] = ()

    @abstractmethod
    def draw(self, rng: random.Random) -> Task:
        """Draw one task; `Task.kind` is `self.name` and `Task.environment` is not empty."""

    @abstractmethod
    def reset(self, task: Task) -> Episode:
        """Create the state of one rollout."""

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return the definitions of the task's own tools; their `run` is not used."""
        return ()

    def solve(self, task: Task) -> Solution:
        """Solve the task: yield (thought, call), receive the observation, return (thought, answer).

        For demonstrations, and to prove that a task can be solved.

        Raises:
            ValueError: there is no scripted solution.
        """
        raise ValueError(f"environment {self.name} has no scripted solution")

    def tasks(self, n: int, seed: int | str, split: Split = "train") -> list[Task]:
        """Draw `n` different questions of a split.

        A question is in the test split by the hash of its text, whatever the seed, so that no test
        question is ever trained on.

        Raises:
            ValueError: there are fewer different questions.
        """
        rng = random.Random(f"{self.name}-{split}-{seed}")
        found: dict[str, Task] = {}
        repeats = 0
        while len(found) < n:
            task = self.draw_split(rng, split)
            repeats = repeats + 1 if task.question in found else 0
            found.setdefault(task.question, task)
            require(
                repeats < MAX_REPEATS,
                f"environment {self.name} has about {len(found)} questions in its {split} split: "
                f"ask for fewer than {n}",
            )
        return list(found.values())

    def draw_split(self, rng: random.Random, split: Split = "train") -> Task:
        """Draw one task of a split.

        Raises:
            ValueError: the split seems to be empty.
        """
        for _ in range(MAX_REPEATS):
            task = self.draw(rng)
            if is_test(task.question) == (split == "test"):
                return task
        raise ValueError(
            f"environment {self.name} has no question in its {split} split: it needs more "
            "different questions"
        )


def choose_tier(kind: str, arguments: str, tiers: Iterable[str]) -> tuple[str, str]:
    """Return the tier and the name of an environment "KIND:TIER"; "" is the tier "easy".

    Raises:
        ValueError: another tier.
    """
    tier = arguments or "easy"
    require(tier in tiers, f"{kind}:{arguments}: choose one of {', '.join(tiers)}")
    return tier, f"{kind}:{arguments}" if arguments else kind


def parse_settings(kind: str, text: str) -> dict[str, Any]:
    """Parse "KEY=VALUE,KEY=VALUE" of an environment's name; values are JSON, or else text.

    Raises:
        ValueError: a part is not KEY=VALUE.
    """
    settings: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, found, value = part.partition("=")
        require(bool(found), f"{kind}: {part!r} must be KEY=VALUE")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings


def is_test(question: str) -> bool:
    """Return True if the question belongs to the test split (a fifth, by its hash)."""
    return int(hashlib.sha256(question.encode()).hexdigest(), 16) % TEST_SHARE == 0


def demonstrate(environment: Environment, task: Task, toolbox: Any) -> Demonstration:
    """Play the scripted solution with the real tools and verify it.

    Args:
        toolbox: a `Toolbox` that has the environment.
    """
    with toolbox.open_episode(task) as tools:
        demonstration = Demonstration(task, tools, None)
        demonstration.tools = tools.schemas
        steps = environment.solve(task)
        shown = None
        while True:
            try:
                thought, call = next(steps) if shown is None else steps.send(shown)
            except StopIteration as end:
                demonstration.finish(*end.value)
                break
            shown = demonstration.call(thought, call.name, call.arguments)
        verification = tools.verify(demonstration.answer)
        demonstration.score = verification.score
    return demonstration


# ---------------------------------------------------------------- names

ENVIRONMENTS = Registry("environment")  # name -> function of the arguments that returns one
# Imported at first use, because some need an extra.
BUILT_IN = {
    "gym": "drlib.environments.gym:ReasoningGym",
    "database": "drlib.environments.database:DatabaseEnvironment",
    "swe": "drlib.environments.swe:SweEnvironment",
    "terminal": "drlib.environments.terminal_tasks:TerminalEnvironment",
    "harbor": "drlib.environments.harbor_tasks:HarborEnvironment",
    "web": "drlib.environments.web_tasks:WebEnvironment",
    "openenv": "drlib.environments.openenv:OpenEnv",
    "verifiers": "drlib.environments.verifiers_tasks:VerifiersEnvironment",
}


def _builder(where: str) -> Callable[[str], Environment]:
    def build(arguments: str) -> Environment:
        module, _, name = where.partition(":")
        return getattr(importlib.import_module(module), name)(arguments)

    return build


for _name, _where in BUILT_IN.items():
    ENVIRONMENTS.register(_name, _builder(_where))


def load_environment(name: str) -> Environment:
    """Create an environment from "NAME" or "NAME:ARGUMENTS".

    Raises:
        ValueError: unknown name, or arguments that the environment rejects.
    """
    kind, _, arguments = name.partition(":")
    environment = ENVIRONMENTS[kind](arguments)
    environment.name = name
    return environment


def environment_names(names: str) -> list[str]:
    """Split "NAME+NAME:ARGUMENTS"; [] for ""."""
    return [name for name in names.split("+") if name]


def fingerprint_environments(names: str) -> dict[str, str]:
    """Return environment -> SHA-256 of its files, for those whose tasks come from a folder.

    Stages include it in the hash of their settings, so that a changed task is another stage.
    """
    found = {}
    for name in environment_names(names):
        kind, _, folder = name.partition(":")
        if kind == "harbor":
            paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            total = hashlib.sha256()
            for path in paths:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                line = f"{path.relative_to(folder)} {path.stat().st_mode} {digest}\n"
                total.update(line.encode())
            found[name] = total.hexdigest()
    return found


def load_environments(names: str) -> dict[str, Environment]:
    """Create the environments of "NAME+NAME:ARGUMENTS", by name; {} for ""."""
    return {name: load_environment(name) for name in environment_names(names)}
