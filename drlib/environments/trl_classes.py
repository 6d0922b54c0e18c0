"""TRL's environment classes (`environment_factory` of GRPOTrainer), as ours and the other way.

A class of TRL has `reset(**row)`, public methods that are tools, and optionally `get_reward()`.
"""

import inspect
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drlib.environments.environment import Environment, Episode, Observation
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.tools.definitions import Tool, tool_method
from drlib.tools.function_tool import FunctionTool
from drlib.validation import require

NOT_TOOLS = ("reset", "get_reward")


class TrlEnvironment(Environment):
    """An environment from a class written for TRL.

    Args:
        name: of the environment.
        factory: the class.
        rows: one task each; "prompt" is the question (text or messages), all fields are passed to
            `reset`, whose text is appended to the question.
        score: called with (instance, row, answer), returns a score in [0, 1]; None uses the
            instance's `get_reward()`.

    Raises:
        ValueError: no rows, a row without "prompt", or neither `score` nor `get_reward`.
    """

    def __init__(
        self,
        name: str,
        factory: Callable[[], Any],
        rows: Sequence[Mapping[str, Any]],
        score: Callable[[Any, Mapping[str, Any], str | None], float] | None = None,
    ):
        require(len(rows) > 0, f"environment {name} has no rows")
        for number, row in enumerate(rows):
            require("prompt" in row, f"environment {name}, row {number} has no field 'prompt'")
        self.name = name
        self.factory = factory
        self.rows = list(rows)
        self.score = score
        probe = factory()
        if score is None:
            require(
                callable(getattr(probe, "get_reward", None)),
                f"environment {name}: {type(probe).__name__} has no get_reward(): pass score",
            )
        self._tools = [
            FunctionTool.from_function(tool, method)
            for tool, method in inspect.getmembers(probe, inspect.ismethod)
            if not tool.startswith("_") and tool not in NOT_TOOLS
        ]

    def draw(self, rng: random.Random) -> Task:
        """Draw a row."""
        number = rng.randrange(len(self.rows))
        row = self.rows[number]
        shown = self.factory().reset(**row)
        question = "\n".join(filter(None, [_question(row["prompt"]), shown]))
        data = json.dumps({"row": number})
        return Task(f"{self.name}-{number}", question, "", self.name, self.name, environment=data)

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return the public methods of the class."""
        return self._tools

    def reset(self, task: Task) -> Episode:
        """Create and reset an instance."""
        row = self.rows[json.loads(task.environment)["row"]]
        instance = self.factory()
        instance.reset(**row)
        return _Instance(instance, row, self.score)


class _Instance(Episode):
    """An instance of a TRL class."""

    def __init__(self, instance: Any, row: Mapping[str, Any], score: Callable | None):
        self.instance = instance
        self.row = row
        self.score = score

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call the method; as in TRL, an exception is an observation of the policy's failure."""
        try:
            return Observation(str(getattr(self.instance, name)(**arguments)))
        except Exception as error:  # noqa: BLE001 - code of any environment, as TRL treats it
            return Observation(f"Error: {error}", False)

    def verify(self, answer: str | None) -> float:
        """Return the score of `score` or `get_reward`."""
        if self.score is not None:
            return self.score(self.instance, self.row, answer)
        return self.instance.get_reward()


def trl_class(environment: Environment, toolbox: Toolbox, tasks: Sequence[Task]) -> type:
    """Create a class for TRL's `environment_factory` from an environment.

    Rows come from `trl_rows`. `get_reward` verifies without the final answer, which TRL does not
    pass on, so only environments whose state is the result can be used.

    Args:
        toolbox: it has the environment.
        tasks: the questions of the rows.

    Raises:
        ValueError: the tasks have different tools, which a class cannot express.
    """
    definitions = {tuple(environment.tools(task)) for task in tasks}
    require(
        len(definitions) == 1,
        f"the tasks of environment {environment.name} have different tools: TRL's classes need the "
        "same for all",
    )
    known = {task.id: task for task in tasks}

    class TrlEpisode:
        def __init__(self):
            self._tools = None

        def reset(self, task_id: str = "", **_row: Any) -> None:
            if self._tools is not None:
                self._tools.close()
            if task_id:
                self._tools = toolbox.open_episode(known[task_id])

        def get_reward(self) -> float:
            verification = self._tools.verify("")
            if verification.score is None:
                raise RuntimeError(verification.fault)
            return verification.score

    def run(self, name: str, arguments: dict) -> str:
        return self._tools.call(name, arguments).text

    for tool in definitions.pop():
        setattr(TrlEpisode, tool.name, tool_method(tool, run))
    TrlEpisode.__name__ = TrlEpisode.__qualname__ = environment.name.replace(":", "_")
    return TrlEpisode


def trl_rows(tasks: Sequence[Task]) -> list[dict[str, Any]]:
    """Return a data set's rows for `trl_class`."""
    return [
        {"prompt": [{"role": "user", "content": task.question}], "task_id": task.id}
        for task in tasks
    ]


def _question(prompt: str | Sequence[Mapping[str, str]]) -> str:
    """Return the text of a prompt, or of its last user message."""
    if isinstance(prompt, str):
        return prompt
    return [message["content"] for message in prompt if message["role"] == "user"][-1]
