"""The toolbox of one rollout in an environment: tools over the rollout's own state.

Unlike the tools of a `Toolbox`, its calls depend on earlier ones, so they are neither cached nor
retried.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from drlib.task import Task
from drlib.tools.definitions import Tool
from drlib.trajectory import ToolResult
from drlib.validation import require


class RejectedCall(Exception):
    """A call of an unknown tool, or with wrong arguments; `result` is its observation."""

    def __init__(self, tool: str, arguments: Mapping, text: str, error: str):
        super().__init__(text)
        self.result = ToolResult(str(tool), dict(arguments), f"Error: {text}", False, error)


def find_tool(
    name: str, arguments: Mapping, tools: Mapping[str, Tool], coerce: bool
) -> tuple[Tool, dict]:
    """Return the called tool and its valid arguments, converted if `coerce`.

    Raises:
        RejectedCall: the arguments are no JSON object or wrong, or there is no such tool.
    """
    try:
        json.dumps({**arguments})
    except (TypeError, ValueError, RecursionError):
        text = "the arguments are no JSON object."
        raise RejectedCall(name, {}, text, "arguments") from None
    tool = tools.get(name) if isinstance(name, str) else None
    if tool is None:
        known = ", ".join(tools)
        raise RejectedCall(name, arguments, f"no tool {name!r}; tools: {known}.", "unknown")
    given = tool.coerce(arguments) if coerce else dict(arguments)
    wrong = tool.argument_error(given)
    if wrong:
        raise RejectedCall(name, given, wrong, "arguments")
    return tool, given


class Observation(NamedTuple):
    """Result of a tool of an environment.

    Attributes:
        ok: False if the call failed through the policy's fault.
    """

    text: str
    ok: bool = True


class Verification(NamedTuple):
    """Result of the verification of a rollout.

    Attributes:
        score: in [0, 1], 1 is solved; None if the environment failed.
        fault: cause of the failure.
    """

    score: float | None
    fault: str = ""


class EpisodeToolbox(AbstractContextManager):
    """Tools of one task's environment, and those that it shares with the run's toolbox.

    The state is created at the first call or verification.

    Args:
        toolbox: the run's `Toolbox` (not imported: it imports this module).
        environment: see `drlib.environments.Environment`.
        task: of this environment.

    Raises:
        ValueError: the environment shares a tool that the toolbox does not have, or has one of the
            same name.
    """

    def __init__(self, toolbox: Any, environment: Any, task: Task):
        own = {tool.name: tool for tool in environment.tools(task)}
        for name in environment.shared_tools:
            require(
                name in toolbox.tools and name not in own,
                f"environment {environment.name} needs the tool {name!r} of the toolbox: create "
                "the toolbox with it (python needs a sandbox, search a world)",
            )
        self.tools = own | {name: toolbox.tools[name] for name in environment.shared_tools}
        self.world = toolbox.world
        self.pictures = toolbox.pictures
        self._own = own
        self._toolbox = toolbox
        self._environment = environment
        self._task = task
        self._lock = threading.Lock()
        self._episode: Any = None
        self._is_closed = False

    @property
    def schemas(self) -> list[dict]:
        """JSON schemas of the tools."""
        return [tool.schema for tool in self.tools.values()]

    def call(self, name: str, arguments: Mapping, *, world: Any = None) -> ToolResult:
        """Run a tool and return its observation; an exception becomes an environment fault."""
        if name not in self._own and name in self.tools:
            return self._toolbox.call(name, arguments, world=world)
        started = time.monotonic()
        result = self._run(name, arguments)
        result.latency_s = time.monotonic() - started
        return result

    def submit(
        self,
        name: str,
        arguments: Mapping,
        *,
        world: Any = None,
        then: Callable[[ToolResult], Any] = lambda result: result,
    ) -> Future:
        """Run `then(call(...))` on the toolbox's threads."""
        return self._toolbox.submit_work(lambda: then(self.call(name, arguments, world=world)))

    def verify(self, answer: str | None) -> Verification:
        """Judge the end of the rollout, then close its state."""
        with self._lock:
            try:
                score = float(self._open().verify(answer))
                require(0 <= score <= 1, f"the score {score} is not within 0..1")
                return Verification(score)
            except Exception as error:  # noqa: BLE001 - code of any environment
                return Verification(None, self._fault(error))
            finally:
                self._close()

    def submit_verification(self, answer: str | None) -> Future:
        """Run `verify` on the toolbox's threads."""
        return self._toolbox.submit_work(lambda: self.verify(answer))

    def close(self) -> None:
        """Close the state; further calls are environment faults."""
        with self._lock:
            self._close()

    def __exit__(self, *_exc) -> None:
        self.close()

    def _run(self, name: str, arguments: Mapping) -> ToolResult:
        try:
            tool, given = find_tool(name, arguments, self.tools, self._toolbox.coerce)
        except RejectedCall as rejected:
            return rejected.result
        values = tool.operands(given)[0] if tool.run is not None else given
        with self._lock:
            try:
                shown = Observation(*self._open().call(name, values))
            except Exception as error:  # noqa: BLE001 - code of any environment
                text = "Error: this tool is unavailable now."
                source = self._fault(error)
                return ToolResult(
                    name, given, text, False, "environment", source=source, env_fault=True
                )
        error = "" if shown.ok else "failed"
        return ToolResult(name, given, shown.text, shown.ok, error, source=self._environment.name)

    def _open(self) -> Any:
        """Return the state of this rollout; create it at first use."""
        require(not self._is_closed, f"the episode of task {self._task.id} is closed")
        if self._episode is None:
            self._episode = self._environment.reset(self._task)
        return self._episode

    def _close(self) -> None:
        if self._episode is not None and not self._is_closed:
            self._episode.close()
        self._is_closed = True

    def _fault(self, error: Exception) -> str:
        where = f"{self._environment.name}, task {self._task.id}"
        return f"{where}: {type(error).__name__}: {error}"
