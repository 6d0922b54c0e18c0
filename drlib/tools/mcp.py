"""Tools over the Model Context Protocol (MCP): use those of a server, and serve a toolbox.

    from drlib.tools import TOOLS, from_mcp

    for tool in from_mcp("uvx mcp-server-time"):  # or "http://localhost:8000/mcp"
        TOOLS.register(tool.name, tool)

`drlib mcp WORLD` serves search, visit and python to any MCP client. Both sides use the official SDK
(extra `mcp`). Only text results are read; resources, prompts and sampling are not offered.
"""

import asyncio
import concurrent.futures
import json
import shlex
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from drlib.chat.tool_calls import escape_tags
from drlib.tools.backends import ToolFault
from drlib.tools.definitions import REQUIRED, Parameter, Tool
from drlib.tools.toolbox import Toolbox

HINTS = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}
START_S = 60.0  # seconds to connect and list the tools
CALL_S = 60.0  # seconds of a call


@dataclass(frozen=True)
class McpTool(Tool):
    """A tool of an MCP server."""

    connection: Any = field(default=None, repr=False, compare=False)

    def argument_error(self, arguments: Mapping[str, Any]) -> str:
        """Return the first missing argument; the server checks the types."""
        for parameter in self.parameters:
            if parameter.default is REQUIRED and parameter.name not in arguments:
                return f"{self.name} needs {parameter.name}."
        return ""

    def coerce(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged."""
        return dict(arguments)

    def operands(self, arguments: Mapping[str, Any]) -> list:
        """Return the call as one operation."""
        return [dict(arguments)]

    def answer(self, arguments: Mapping[str, Any], _world: Any = None) -> dict[str, str]:
        """Call the server; return {"text", "status"}.

        Raises:
            ToolFault: the server cannot be reached, or does not answer in time.
        """
        result = self.connection.call(self.name, dict(arguments))
        texts = [part.text for part in result.content if part.type == "text"]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, ensure_ascii=False)]
        if not texts:
            kinds = ", ".join(sorted({part.type for part in result.content})) or "nothing"
            texts = [f"The result has no text ({kinds})."]
        return {"text": "\n".join(texts), "status": "error" if result.is_error else "ok"}


def from_mcp(server: str, *, env: Mapping[str, str] | None = None) -> list[Tool]:
    """Return the tools of an MCP server.

    The server is connected again if it was restarted. A command ends with this process.

    Args:
        server: address of a server ("http://localhost:8000/mcp"), or a command that speaks MCP on
            its standard input and output ("uvx mcp-server-time").
        env: environment variables of the command, such as keys. It inherits only harmless ones.

    Raises:
        ImportError: the extra `mcp` is missing.
        ConnectionError: the server cannot be started or reached.
    """
    connection = _Connection(server, env)
    tools: list[Tool] = []
    for each in connection.list_tools():
        description = each.description or each.title or each.name
        tools.append(tool_from_schema(each.name, description, each.input_schema, connection))
    return tools


def tool_from_schema(
    name: str, description: str, schema: Mapping[str, Any], connection: Any = None
) -> McpTool:
    """Create a tool from the JSON schema of its arguments.

    Args:
        connection: has the method `call`; None if an environment runs the tool.
    """
    # descriptions enter the system prompt, where a template would read tags as turns
    listed = json.dumps(schema.get("properties", {}), ensure_ascii=False)
    required = schema.get("required", ())
    parameters = tuple(
        _parameter(key, kind, key in required)
        for key, kind in json.loads(escape_tags(listed)).items()
    )
    run = None if connection is None else connection.call
    return McpTool(name, escape_tags(description), parameters, run, connection)


def _parameter(name: str, kind: Mapping[str, Any], is_required: bool) -> Parameter:
    described = dict(kind)
    description = described.pop("description", "") or described.get("title", name)
    hint = HINTS.get(str(described.get("type")), Any)
    default = REQUIRED if is_required else described.get("default")
    return Parameter(name, description, kind=described, hint=hint, default=default)


class _Connection:
    """A session with a server in a background thread; used from any thread."""

    def __init__(self, server: str, env: Mapping[str, str] | None):
        self._server = server
        self._env = dict(env or {})
        self._lock = threading.Lock()
        self._client: Any = None
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="drlib-mcp")
        thread.start()

    def list_tools(self) -> list:
        """Return all tools of the server, page by page."""
        try:
            client = self._connected()
            found, cursor = [], None
            while True:
                page = self._wait(client.list_tools(cursor=cursor), START_S)
                found += page.tools
                cursor = page.next_cursor
                if not cursor:
                    return found
        except ToolFault as fault:
            raise ConnectionError(f"MCP server {self._server}: {fault.detail}") from fault

    def call(self, name: str, arguments: dict) -> Any:
        """Call a tool; raise ToolFault if the server does not answer."""
        client = self._connected()
        try:
            return self._wait(client.call_tool(name, arguments), CALL_S)
        except ToolFault:
            with self._lock:  # the next call connects again
                if self._client is client:
                    self._client = None
            raise

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                ready: concurrent.futures.Future = concurrent.futures.Future()
                asyncio.run_coroutine_threadsafe(self._hold(ready), self._loop)
                try:
                    self._client = ready.result(START_S)
                except TimeoutError:
                    raise ToolFault("timeout", f"no connection in {START_S:g} s") from None
            return self._client

    async def _hold(self, ready: concurrent.futures.Future) -> None:
        """Open the session and keep it open; the SDK closes it in the task that opened it."""
        try:
            async with _client(self._server, self._env) as client:
                ready.set_result(client)
                await asyncio.Event().wait()
        except BaseException as error:  # noqa: BLE001 - raised by ready.result()
            with suppress(concurrent.futures.InvalidStateError):
                ready.set_exception(ToolFault("connection", _describe(error)))

    def _wait(self, work, seconds: float) -> Any:
        """Run a coroutine in the session's thread and return its result."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(seconds)
        except TimeoutError:
            future.cancel()
            raise ToolFault("timeout", f"no answer in {seconds:g} s") from None
        except Exception as error:  # the SDK raises errors of all transports
            raise ToolFault("connection", _describe(error)) from error


def _client(server: str, env: dict[str, str]) -> Any:
    try:
        from mcp import Client, StdioServerParameters
    except ImportError as error:
        raise ImportError("MCP needs the extra `mcp`: pip install 'drlib[mcp]'") from error
    if server.startswith(("http://", "https://")):
        return Client(server)
    command, *arguments = shlex.split(server)
    return Client(StdioServerParameters(command=command, args=arguments, env=env))


def _describe(error: BaseException) -> str:
    """Return the first cause of an error; task groups wrap it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def create_server(toolbox: Toolbox, name: str) -> Any:
    """Return an MCP server (`mcp.server.Server`) that offers the tools of a toolbox.

    Args:
        name: shown by clients.
    """
    from mcp import types
    from mcp.server import Server

    async def list_tools(_context, _params) -> types.ListToolsResult:
        found = []
        for tool in toolbox.tools.values():
            function = tool.function["function"]
            schema = function["parameters"]
            found.append(
                types.Tool(name=tool.name, description=function["description"], input_schema=schema)
            )
        return types.ListToolsResult(tools=found)

    async def call_tool(_context, params) -> types.CallToolResult:
        arguments = params.arguments or {}
        result = await asyncio.to_thread(toolbox.call, params.name, arguments)
        content = types.TextContent(type="text", text=result.text)
        return types.CallToolResult(content=[content], is_error=not result.ok)

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)
