"""OpenEnv: play the environments of its servers, and serve ours to its clients.

`openenv:http://localhost:8000` connects to a running server; no package of OpenEnv is needed
(extra `openenv`: a WebSocket library). Each episode has its own connection, which carries JSON
messages: reset, step, close. A server with MCP tools offers these; any other offers one tool,
`step`, with the fields of its actions. The score is the sum of the rewards, divided by `largest` in
`openenv:URL,largest=10`. If the server has a tool named `answer` with a parameter `text`, it gets
the final answer, as the servers of `openenv_app` expect.

`openenv_app` needs OpenEnv, whose pins conflict with this project's: use an environment of its own
(`make test-adapters` creates one).
"""

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from drlib.environments.environment import Environment, Episode, Observation, Split
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.tools.definitions import Parameter, Tool
from drlib.tools.mcp import tool_from_schema
from drlib.validation import require

ANSWER = Tool("answer", "Give the final answer.", (Parameter("text", "The answer."),))
STEP = "step"  # name of the tool of a server without MCP tools
MCP_ACTIONS = ("Action", "CallToolAction", "ListToolsAction")  # titles of their action schemas
POLICY_ERRORS = ("execution_error", "invalid_args", "tool_not_found")  # of a tool, not the server
REPLY_S = 120.0  # longest wait for a reply
REPLY_BYTES = 1_000_000
OVER = Observation("Error: the episode is over.", False)
NO_CLIENT = "openenv: no WebSocket library is installed: pip install 'drlib[openenv]'"
NO_SERVER = "openenv is not installed in this environment: see docs/environments.md"


class OpenEnv(Environment):
    """Episodes of an OpenEnv server.

    Args:
        arguments: "URL" or "URL,largest=NUMBER"; the number is the largest sum of rewards.

    Raises:
        ValueError: no URL, another option, or no WebSocket library.
        ConnectionError: the server cannot be reached, or is no OpenEnv server.
    """

    def __init__(self, arguments: str):
        self.name = f"openenv:{arguments}"
        url, _, option = arguments.partition(",")
        key, _, value = option.partition("=")
        require(
            url.startswith(("http://", "https://")) and key in ("", "largest"),
            f"{self.name}: write openenv:http://HOST:PORT or openenv:http://HOST:PORT,largest=10",
        )
        self.url = url.rstrip("/")
        self.largest = float(value) if value else 1.0
        require(self.largest > 0, f"{self.name}: largest must be positive")
        action = self._get("schema")["action"]
        self._step = None
        if action.get("title") not in MCP_ACTIONS:
            fields = {k: v for k, v in action["properties"].items() if k != "metadata"}
            schema = {"properties": fields, "required": action.get("required", [])}
            self._step = tool_from_schema(STEP, "Act.", schema).schema
        self._about = self._get("metadata").get("description", "")

    def draw(self, rng: random.Random) -> Task:
        """Reset the server with a seed; its first observation is the question."""
        seed = rng.getrandbits(31)
        with _Session(self.url) as session:
            question = _text(session.request("reset", {"seed": seed})["observation"]) or self._about
            tools = [self._step] if self._step else session.tools()
        data = {"seed": seed, "tools": tools}
        name = f"openenv-{seed}"
        return Task(name, question, "", self.name, self.name, environment=json.dumps(data))

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return the server's tools for this task, without `answer`."""
        return [
            tool_from_schema(each["name"], each["description"], each["parameters"])
            for each in json.loads(task.environment)["tools"]
            if not _is_answer(each)
        ]

    def reset(self, task: Task) -> Episode:
        """Connect, and reset the server with the task's seed."""
        data = json.loads(task.environment)
        has_answer = any(map(_is_answer, data["tools"]))
        return _Remote(self, data["seed"], has_answer)

    def _get(self, page: str) -> dict:
        import httpx2

        try:
            reply = httpx2.get(f"{self.url}/{page}", timeout=REPLY_S)
            return reply.raise_for_status().json()
        except (httpx2.HTTPError, ValueError) as error:
            raise ConnectionError(f"{self.name}: no OpenEnv server: {error}") from error


class _Remote(Episode):
    """An episode on the server; `total` is the sum of its rewards."""

    def __init__(self, environment: OpenEnv, seed: int, has_answer: bool):
        self.environment = environment
        self.has_answer = has_answer
        self.total = 0.0
        self.is_over = False
        self.session = _Session(environment.url)
        try:
            self._count(self.session.request("reset", {"seed": seed}))
        except BaseException:
            self.close()
            raise

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        """Send an action; a rejected one is the policy's failure, any other error a fault."""
        if self.is_over:
            return OVER
        if self.environment._step is not None:
            action = dict(arguments)
        else:
            action = {"type": "call_tool", "tool_name": name, "arguments": dict(arguments)}
        try:
            reply = self.session.request("step", action)
        except RejectedAction as error:
            return Observation(f"Error: {error}.", False)
        self._count(reply)
        shown = reply["observation"]
        if self.environment._step is not None:
            return Observation(_text(shown))
        error = shown.get("error")
        if error is None:
            return Observation(_result(shown.get("result")))
        if error["error_type"] not in POLICY_ERRORS:
            raise RuntimeError(f"openenv tool {name}: {error['message']}")
        return Observation(error["message"], False)

    def verify(self, answer: str | None) -> float:
        """Return the sum of the rewards, after the answer if the server wants it."""
        if self.has_answer and answer is not None and not self.is_over:
            self.call(ANSWER.name, {ANSWER.parameters[0].name: answer})
        score = self.total / self.environment.largest
        require(
            0 <= score <= 1,
            f"the rewards sum to {self.total:g}: set largest in openenv:URL,largest=NUMBER",
        )
        return score

    def close(self) -> None:
        self.session.close()

    def _count(self, reply: Mapping[str, Any]) -> None:
        self.total += float(reply.get("reward") or 0)
        self.is_over = bool(reply.get("done"))


class RejectedAction(Exception):
    """The server rejects the fields of an action."""


class _Session:
    """A WebSocket connection to a server, with one environment of its own."""

    def __init__(self, url: str):
        import httpx2

        self._stack = ExitStack()
        try:
            opening = httpx2.websocket(f"ws{url[4:]}/ws", max_message_size_bytes=REPLY_BYTES)
            self._socket: Any = self._stack.enter_context(opening)
        except ImportError:
            raise ValueError(NO_CLIENT) from None

    def request(self, kind: str, data: Mapping[str, Any]) -> dict:
        """Send a message and return the data of the reply.

        Raises:
            RejectedAction: its fields are wrong.
            RuntimeError: the environment failed.
        """
        self._socket.send_text(json.dumps({"type": kind, "data": data}))
        reply = json.loads(self._socket.receive_text(timeout=REPLY_S))
        found = reply["data"]
        if reply["type"] != "error":
            return found
        if found.get("code") == "VALIDATION_ERROR":
            errors = found.get("errors") or [{"msg": found["message"], "loc": ()}]
            where = ".".join(map(str, errors[0]["loc"]))
            raise RejectedAction(f"{where}: {errors[0]['msg']}".lstrip(": "))
        raise RuntimeError(f"openenv server: {found.get('code')}: {found.get('message')}")

    def tools(self) -> list[dict]:
        """Return the schemas of the server's MCP tools."""
        listed = self.request("step", {"type": "list_tools"})["observation"]["tools"]
        return [
            tool_from_schema(each["name"], each["description"], each["input_schema"]).schema
            for each in listed
        ]

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "_Session":
        return self

    def __exit__(self, *_exc) -> None:
        self.close()


def _is_answer(schema: Mapping[str, Any]) -> bool:
    return schema["name"] == ANSWER.name and [*schema["parameters"]["properties"]] == ["text"]


def _text(observation: Mapping[str, Any]) -> str:
    """Return the only text of an observation, or its fields as JSON; "" if it is empty."""
    hidden = ("done", "reward", "metadata")
    fields = {k: v for k, v in observation.items() if k not in hidden and v not in (None, "")}
    (*others, last) = fields.values() or [""]
    if not others and isinstance(last, str):
        return last
    return json.dumps(fields, ensure_ascii=False)


def _result(result: Any) -> str:
    """Return the text of an MCP tool's result."""
    if isinstance(result, dict) and isinstance(result.get("content"), list):
        texts = [part["text"] for part in result["content"] if part.get("type") == "text"]
        return "\n".join(texts)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


# ---------------------------------------------------------------- serving


def openenv_app(
    environment: Environment, toolbox: Toolbox, *, split: Split = "train", sessions: int = 64
) -> Any:
    """Return an ASGI application (FastAPI) that serves an environment to OpenEnv's clients.

    `reset(seed)` draws a task and returns its question. The tools are MCP tools, and `answer` ends
    the episode with the score as the reward. A fault of the environment is an error of the server.

    Args:
        toolbox: has the environment.
        sessions: most episodes at the same time.

    Raises:
        ImportError: OpenEnv is not installed.
    """
    try:
        from openenv.core.env_server import create_fastapi_app
        from openenv.core.env_server import mcp_types as mcp
        from openenv.core.env_server.interfaces import Environment as Base
        from openenv.core.env_server.types import Observation as BaseObservation
        from openenv.core.env_server.types import State
    except ImportError as error:
        raise ImportError(NO_SERVER) from error

    class TaskObservation(BaseObservation):
        question: str

    class Served(Base):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._episode: Any = None
            self._state = State()

        def reset(self, seed=None, episode_id=None, **_):
            self.close()
            task = environment.draw_split(random.Random(seed), split)
            self._episode = toolbox.open_episode(task)
            self._state = State(episode_id=episode_id or task.id)
            return TaskObservation(question=task.question)

        def step(self, action, timeout_s=None, **_):
            own = self._episode.tools.values() if self._episode else ()
            if isinstance(action, mcp.ListToolsAction):
                schemas = [tool.schema for tool in (*own, ANSWER)]
                return mcp.ListToolsObservation(tools=[_listed(schema) for schema in schemas])
            if self._episode is None:
                raise RuntimeError("reset the environment before the first step")
            self._state.step_count += 1
            if action.tool_name == ANSWER.name:
                verification = self._episode.verify(str(action.arguments.get("text", "")))
                if verification.score is None:
                    raise RuntimeError(verification.fault)
                self._episode = None
                return mcp.CallToolObservation(
                    tool_name=ANSWER.name, result="", reward=verification.score, done=True
                )
            result = self._episode.call(action.tool_name, action.arguments)
            if result.env_fault:
                raise RuntimeError(result.source)
            error = None
            if not result.ok:
                error = mcp.ToolError(error_type="execution_error", message=result.text)
            return mcp.CallToolObservation(
                tool_name=action.tool_name, result=result.text, error=error
            )

        @property
        def state(self):
            return self._state

        def close(self):
            if self._episode is not None:
                self._episode.close()
                self._episode = None

    def _listed(schema: dict) -> Any:
        return mcp.Tool(
            name=schema["name"],
            description=schema["description"],
            input_schema=schema["parameters"],
        )

    return create_fastapi_app(
        Served, mcp.CallToolAction, mcp.CallToolObservation, max_concurrent_envs=sessions
    )
