"""Use the tools of docs/own_tool.md: of functions, and over the Model Context Protocol.

Run: python -m tests.first_hour.own_tool
"""

import asyncio
import json
import shlex
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters

from tests.first_hour import printed
from tests.first_hour.native_tools import call_tool, fill_in
from tests.scripted_server import Scripted

PAGE = "own_tool.md"
TIME_SERVER = '''
from mcp.server.mcpserver import MCPServer

server = MCPServer("time")

@server.tool()
def current_time(zone: str, seconds: bool = False) -> str:
    """Time in a zone."""
    return f"{zone} 12:00" + ":00" * seconds

server.run()
'''


def main(folder: Path) -> None:
    """Run every block of the page."""
    train_with_function(folder)
    ask_with_every_kind(folder)
    read_notes_over_mcp(folder)
    ask_with_mcp_server(folder)


def train_with_function(folder: Path) -> None:
    """Run the first command with the printed module; the policy's toolbox has the tool."""
    path = printed.save_block(printed.find_block(PAGE, "def days_between("), folder)
    assert path.name == "my_tools.py"
    ended = printed.run_command(printed.find_block(PAGE, "drlib train rl").text, folder)
    run = Path(ended.stdout.splitlines()[-1].partition(": already complete")[0])
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 3  # steps of the profile ci
    program = """
import my_tools
from drlib.tools import Toolbox
with Toolbox(None) as toolbox:
    for last, unit in (("2024-03-14", "days"), ("2024-03-14", "weeks"), ("soon", "days")):
        given = {"first": "2024-02-29", "last": last, "unit": unit}
        print(toolbox.call("days_between", given).text)
    print(toolbox.call("days_between", {"first": "2024-02-29"}).text)
"""
    days, weeks, wrong, missing = printed.run_python(program, folder).stdout.splitlines()
    assert (days, weeks) == ("14", "2.0")  # 2024 is a leap year
    assert wrong.startswith("Error: Invalid isoformat") and "needs last" in missing


def ask_with_every_kind(folder: Path) -> None:
    """Run the printed question; the model's calls have every kind of argument."""
    printed.save_block(printed.find_block(PAGE, "def route("), folder)
    required = {"stops": ["A", "B", "C"], "speed": 12.5, "extra": {"B": 5}}
    optional = {"by": "rail", "is_return": True, "limit": 40}
    calls = [
        call_tool("route", required, "c1"),
        call_tool("route", required | optional, "c2"),
        call_tool("route", required | {"speed": "12.5", "stops": "A"}, "c3"),
        call_tool("route", required | {"by": "sea"}, "c4"),
    ]

    def say(messages: list[dict]) -> dict:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "two hours"}
        return {"role": "assistant", "content": None, "tool_calls": calls}

    command = printed.find_block(PAGE, "--plugins my_route").text
    with Scripted(say) as server:
        server.keep = True
        ended = printed.run_command(fill_in(command, server), folder)
    assert "Answer  two hours" in ended.stdout
    tools = {tool["function"]["name"]: tool["function"] for tool in server.bodies[0]["tools"]}
    schema = tools["route"]["parameters"]
    kinds = {name: value["type"] for name, value in schema["properties"].items()}
    assert kinds == {
        "stops": "array",
        "speed": "number",
        "extra": "object",
        "by": "string",
        "is_return": "boolean",
        "limit": "integer",
    }
    assert schema["properties"]["by"]["enum"] == ["road", "rail"]
    assert schema["required"] == ["stops", "speed", "extra"]
    plain, full, converted, refused = (m["content"] for m in server.bodies[1]["messages"][-4:])
    # 2 legs of 10 km and 5 km, at 12.5 km/h; back again 50 km, above the limit of 40
    assert json.loads(plain) == {"km": 25, "hours": 2.0, "by": "road", "allowed": True}
    assert json.loads(full) == {"km": 50, "hours": 4.0, "by": "rail", "allowed": False}
    assert json.loads(converted)["km"] == 5  # a text for a list of one, "12.5" for 12.5
    assert "by" in refused and "rail" in refused and refused.startswith("Error: ")


def read_notes_over_mcp(folder: Path) -> None:
    """Start the server of the printed client configuration and read a note as a client."""
    (folder / "notes").mkdir()
    (folder / "notes" / "tibera.md").write_text("# Tibera\n\nThe Tibera ends at Ostmark.\n")
    settings = json.loads(printed.find_block(PAGE, "mcpServers").text)["mcpServers"]["notes"]
    assert [settings["command"], *settings["args"]] == ["drlib", "mcp", "folder:notes"]
    command = Path(sys.executable).parent / settings["command"]
    server = StdioServerParameters(command=str(command), args=settings["args"], cwd=folder)

    async def read() -> tuple[list[str], list[str]]:
        async with Client(server) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            found = await client.call_tool("search", {"query": ["Tibera"]})
            ran = await client.call_tool("python", {"code": "print(6 * 7)"})
            return names, [found.content[0].text, ran.content[0].text]

    names, (found, ran) = asyncio.run(read())
    assert names == ["search", "visit", "python"]
    assert "Ostmark" in found and ran == "42"


def ask_with_mcp_server(folder: Path) -> None:
    """Offer the tools of a server by the printed module; a model calls one."""
    (folder / "time_server.py").write_text(TIME_SERVER)
    text = printed.find_block(PAGE, "from_mcp(").text
    assert "uvx mcp-server-time" in text  # downloads a server; ours has another tool
    command = shlex.join([sys.executable, "time_server.py"])
    (folder / "my_servers.py").write_text(text.replace("uvx mcp-server-time", command))
    call = call_tool("current_time", {"zone": "Oslo", "seconds": True}, "t")

    def say(messages: list[dict]) -> dict:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": messages[-1]["content"]}
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    command = printed.find_block(PAGE, "--plugins my_route").text
    with Scripted(say) as server:
        asked = fill_in(command.replace("my_route", "my_servers"), server)
        ended = printed.run_command(asked, folder)
    assert "Answer  Oslo 12:00:00" in ended.stdout


if __name__ == "__main__":
    printed.run_job(main)
