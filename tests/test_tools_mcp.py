"""MCP: the official client against `drlib mcp`, and our client against real servers.

Run: python -m pytest tests/test_tools_mcp.py
"""

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys

import pytest
from mcp import Client, StdioServerParameters

from drlib.tools import TOOLS, Toolbox, from_mcp
from drlib.tools import mcp as ours

SERVE = [sys.executable, "-m", "drlib.cli", "mcp"]

# A server of the SDK, with all kinds of results.
OTHER = '''
import os, sys, time
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("other")

@server.tool()
def weather(city: str, days: int = 1) -> str:
    """Forecast the weather."""
    return f"{city}: sun for {days} days, {os.environ.get('WEATHER_KEY')}"

@server.tool()
def numbers(n: int) -> list[int]:
    """Count."""
    return list(range(n))

@server.tool()
def fail(text: str) -> str:
    """Fail."""
    raise ToolError("cannot do " + text)

@server.tool()
def slow() -> str:
    """Wait."""
    time.sleep(60)
    return "late"

@server.tool()
def die() -> str:
    """Exit."""
    os._exit(3)

server.run()
'''


@pytest.fixture
def other(tmp_path):
    (tmp_path / "other.py").write_text(OTHER)
    return shlex.join([sys.executable, str(tmp_path / "other.py")])


@pytest.fixture
def toolbox(other):
    tools = {tool.name: tool for tool in from_mcp(other, env={"WEATHER_KEY": "k1"})}
    before = dict(TOOLS)
    for name, tool in tools.items():
        TOOLS.register(name, tool)
    with Toolbox(None) as toolbox:
        yield toolbox
    for name in set(TOOLS) - set(before):
        del TOOLS[name]


def test_tools_of_a_server_are_called(toolbox):
    schemas = {schema["name"]: schema for schema in toolbox.schemas}
    weather = schemas["weather"]
    assert weather["description"] == "Forecast the weather."
    assert weather["parameters"]["required"] == ["city"]
    assert weather["parameters"]["properties"]["days"]["type"] == "integer"
    first = toolbox.call("weather", {"city": "Oslo", "days": 3})
    assert first.ok and first.text == "Oslo: sun for 3 days, k1"
    assert toolbox.call("weather", {"city": "Rome"}).text == "Rome: sun for 1 days, k1"
    assert toolbox.call("weather", {"city": "Oslo", "days": 3}).cache_hit
    assert "2" in toolbox.call("numbers", {"n": 3}).text


def test_errors_of_tools_are_observations(toolbox):
    failed = toolbox.call("fail", {"text": "this"})
    assert not failed.ok and not failed.env_fault and "cannot do this" in failed.text
    missing = toolbox.call("weather", {})
    assert not missing.ok and "city" in missing.text
    wrong = toolbox.call("weather", {"city": "Oslo", "days": "many"})
    assert not wrong.ok and not wrong.env_fault and "days" in wrong.text


def test_dead_server_is_an_environment_fault_and_is_started_again(toolbox):
    dead = toolbox.call("die", {})
    assert dead.env_fault and not dead.ok
    assert toolbox.call("weather", {"city": "Bergen"}).text == "Bergen: sun for 1 days, k1"


def test_slow_server_is_a_timeout(toolbox, monkeypatch):
    monkeypatch.setattr(ours, "CALL_S", 0.5)
    late = toolbox.call("slow", {})
    assert late.env_fault and late.error == "timeout"


@pytest.mark.parametrize(
    "server", ["no-such-command-anywhere", "http://127.0.0.1:9/mcp", f"{sys.executable} -c pass"]
)
def test_unreachable_server_is_named(server, monkeypatch):
    monkeypatch.setattr(ours, "START_S", 15.0)
    with pytest.raises(ConnectionError, match=re.escape(f"MCP server {server}")):
        from_mcp(server)


async def use(server):
    """Return (names, results) of the official client."""
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        calls = [
            ("search", {"query": "Norway"}),  # a text for a list of one
            ("visit", {"url": ["Norway"]}),
            ("python", {"code": "print(6 * 7)"}),
            ("search", {}),
            ("nothing", {}),
        ]
        results = [await client.call_tool(*call) for call in calls if call[0] != "python"]
        if any(tool.name == "python" for tool in tools):
            results.insert(2, await client.call_tool(*calls[2]))
        return tools, [(result.content[0].text, result.is_error) for result in results]


def test_official_client_uses_a_world_over_stdio():
    command, *arguments = [*SERVE, "tour"]
    server = StdioServerParameters(command=command, args=arguments)
    tools, results = asyncio.run(use(server))
    assert [tool.name for tool in tools] == ["search", "visit", "python"]
    assert tools[0].input_schema["properties"]["query"]["items"] == {"type": "string"}
    texts = [text for text, _ in results]
    assert "(cldr:Norway)" in texts[0] and "Norwegian Krone" in texts[1] and texts[2] == "42"
    assert [is_error for _, is_error in results] == [False, False, False, True, True]


def test_official_client_and_ours_use_a_world_over_http():
    environment = os.environ | {"DRLIB_HEADLESS": "1"}
    command = [*SERVE, "tour", "--port", "0", "--no-python"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        url = re.search(r"http://\S+/mcp", process.stderr.readline())[0]
        tools, results = asyncio.run(use(url))
        own = from_mcp(url)
        text = own[0].answer({"query": ["Oslo"]})["text"]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert [tool.name for tool in tools] == ["search", "visit"] == [tool.name for tool in own]
    assert "(cldr:Norway)" in results[0][0] and "(cldr:Oslo)" in text


def test_unknown_world_is_one_line():
    done = subprocess.run([*SERVE, "atlantis"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("drlib mcp: unknown world 'atlantis'")
