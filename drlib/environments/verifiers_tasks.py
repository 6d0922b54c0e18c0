"""Tasks of the library verifiers (version 1 of its interface), with their own rewards.

`verifiers:TASKSET`, or with the taskset's settings `verifiers:TASKSET:KEY=VALUE,KEY=VALUE`. The
tools of its toolsets run in this process. The score is the weighted sum of the rewards, divided by
the setting `largest` (1 by default). A tool that raises shows its error to the policy, as in
verifiers; an error of a reward is a fault. Tasksets with an environment of their own (users who
talk, several agents) and tasks that need a container are refused.

verifiers has pins that conflict with this project's: use an environment of its own
(`make test-adapters` creates one). Its OpenEnv taskset plays our environments from the server of
`drlib.environments.openenv.openenv_app`.
"""

import asyncio
import inspect
import json
import random
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from drlib.environments.environment import Environment, Episode, Observation, parse_settings
from drlib.task import Task
from drlib.tools.definitions import Tool
from drlib.tools.mcp import tool_from_schema
from drlib.validation import require

REMEDY = "verifiers is not installed in this environment: see docs/environments.md"
EXAMPLE = "verifiers:TASKSET:largest=2"
MOST_TASKS = 2000  # of a taskset; the first of an infinite one


class VerifiersEnvironment(Environment):
    """The tasks of a taskset.

    Args:
        arguments: "TASKSET" or "TASKSET:KEY=VALUE,KEY=VALUE"; values are JSON or text.

    Raises:
        ValueError: verifiers is not installed, it has no such taskset or setting, or the tasks need
            a feature that is not available here.
    """

    def __init__(self, arguments: str):
        try:
            import verifiers.v1 as vf
            from verifiers.v1.utils import loaders
        except ImportError:
            raise ValueError(REMEDY) from None
        self._vf = vf
        self.name = f"verifiers:{arguments}"
        taskset_id, _, listed = arguments.partition(":")
        settings = parse_settings("verifiers", listed)
        self.largest = float(settings.pop("largest", 1))
        try:
            given = loaders.taskset_config_type(taskset_id)(id=taskset_id, **settings)
            self._taskset = loaders.load_taskset(given)
            own = loaders.environment_class(taskset_id)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"{self.name}: {error}") from error
        if own is not vf.SingleAgentEnv:
            raise self._need(f"its own environment {own.__name__}")
        self._tasks = list(self._taskset.take(MOST_TASKS))
        require(bool(self._tasks), f"{self.name} has no tasks")
        self._check(self._tasks[0])

    def draw(self, rng: random.Random) -> Task:
        """Draw one of the tasks; its system prompt is part of the question."""
        number = rng.randrange(len(self._tasks))
        data = self._tasks[number].data
        question = "\n\n".join(filter(None, [data.system_prompt, data.prompt_text]))
        require(bool(question), f"{self.name}: task {number} has no prompt")
        # the tools are listed by the taskset's servers, once for a task
        with self._open(number) as episode:
            tools = episode.schemas
        row = json.dumps({"task": number, "tools": tools})
        name = f"{self._taskset.config.id}-{number}"
        return Task(name, question, "", self.name, self.name, environment=row)

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return the tools of the taskset's and the task's toolsets."""
        return [
            tool_from_schema(each["name"], each["description"], each["parameters"])
            for each in json.loads(task.environment)["tools"]
        ]

    def reset(self, task: Task) -> Episode:
        """Create the toolsets and an empty trace."""
        return self._open(json.loads(task.environment)["task"])

    def _open(self, number: int) -> "_Rollout":
        return _Rollout(self._vf, self._taskset, self._tasks[number], self.largest)

    def _check(self, task: Any) -> None:
        """Raise ValueError for tasks that need the machine of a rollout."""
        base = self._vf.Task
        if task.NEEDS_CONTAINER or task.data.image:
            raise self._need("a container")
        for hook in ("setup", "finalize"):
            if getattr(type(task), hook) is not getattr(base, hook):
                raise self._need(f"{type(task).__name__}.{hook} on a runtime")
        for function in (*task.hooks("reward"), *task.hooks("metric")):
            runtime = inspect.signature(function).parameters.get("runtime")
            if runtime is not None and runtime.default is inspect.Parameter.empty:
                raise self._need(f"a runtime for {function.__name__}")

    def _need(self, feature: str) -> ValueError:
        return ValueError(f"{self.name} needs {feature}, which drlib does not provide")


class _Rollout(Episode):
    """A trace of verifiers with the tools of a task; coroutines run in a loop of its own."""

    def __init__(self, vf: Any, taskset: Any, task: Any, largest: float):
        from mcp.server.mcpserver import MCPServer
        from verifiers.v1.state import state_cls

        self._vf = vf
        self._task = task
        self._largest = largest
        self._loop = asyncio.new_event_loop()
        self._trace = vf.Trace(
            task=vf.TraceTask(type=type(task).__name__, data=task.data),
            agent=vf.AgentInfo(config=vf.AgentConfig()),
            state=state_cls(type(task))(),
        )
        self._add(vf.UserMessage(content=task.data.prompt_text))
        self._servers: dict[str, Any] = {}  # name of a tool -> its server
        self.schemas: list[dict] = []
        try:
            own = type(task).toolsets(task.config)
            for toolset in (*taskset.toolsets(taskset.config), *own):
                server = MCPServer(type(toolset).__name__)
                self._run(self._start(toolset, server, has_task=toolset in own))
        except BaseException:
            self.close()
            raise

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Call a tool and record it in the trace."""
        from mcp.server.mcpserver.exceptions import ToolError

        vf = self._vf
        number = f"call-{len(self._trace.nodes)}"
        written = json.dumps(dict(arguments))
        calls = [vf.ToolCall(id=number, name=name, arguments=written)]
        self._add(vf.AssistantMessage(tool_calls=calls), sampled=True)
        try:
            result = self._run(self._servers[name].call_tool(name, dict(arguments)))
            shown = Observation(_text(result), not getattr(result, "is_error", False))
        except ToolError as error:
            shown = Observation(f"Error: {error}", False)
        self._add(vf.ToolMessage(tool_call_id=number, content=shown.text))
        return shown

    def verify(self, answer: str | None) -> float:
        """Return the sum of the rewards of the trace that ends with the answer; 0 without one."""
        if answer is None:
            return 0.0
        self._add(self._vf.AssistantMessage(content=answer), sampled=True)
        self._trace.is_completed = self._trace.ok = True
        self._run(self._task.score(self._trace))
        missing = [name for name, reward in self._trace.rewards.items() if reward is None]
        require(not missing, f"the reward {missing[:1]} was not computed")
        score = self._trace.reward / self._largest
        require(
            0 <= score <= 1,
            f"the rewards sum to {self._trace.reward:g}: set largest, as in {EXAMPLE}",
        )
        return score

    def close(self) -> None:
        self._loop.close()

    def _run(self, work: Coroutine) -> Any:
        return self._loop.run_until_complete(work)

    async def _start(self, toolset: Any, server: Any, has_task: bool) -> None:
        """Register the tools of a toolset, which shares the state of the trace."""

        async def pull_state() -> Any:
            return self._trace.state

        async def push_state(_before: bytes) -> None:
            pass

        # in verifiers, both reach the rollout's process over HTTP
        toolset._pull_state, toolset._push_state = pull_state, push_state
        await toolset.setup()
        if has_task:
            await toolset.setup_task(self._task.data)
        toolset.register(server)
        for tool in await server.list_tools():
            require(tool.name not in self._servers, f"two tools are named {tool.name}")
            self._servers[tool.name] = server
            schema = tool_from_schema(tool.name, tool.description or tool.name, tool.input_schema)
            self.schemas.append(schema.schema)

    def _add(self, message: Any, sampled: bool = False) -> None:
        nodes = self._trace.nodes
        parent = len(nodes) - 1 if nodes else None
        nodes.append(self._vf.MessageNode(parent=parent, message=message, sampled=sampled))


def _text(result: Any) -> str:
    """Return the text of an MCP result."""
    parts = getattr(result, "content", result)
    return "\n".join(part.text for part in parts if getattr(part, "type", "") == "text")
