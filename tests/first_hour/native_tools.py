"""Ask a model with native tools, which ends with plain text, by the command of docs/agents.md.

The model calls two tools in its first turn, and one in its second.

Run: python -m tests.first_hour.native_tools
"""

import json
from pathlib import Path

from tests.first_hour import printed
from tests.scripted_server import Scripted

PAGE = "agents.md"
ENDPOINT = "http://localhost:8000/v1"
ANSWER = "The class is in the module `html.parser`."


def call_tool(name: str, arguments: dict, ident: str) -> dict:
    """Return a call of a tool as OpenAI-compatible servers send it."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": ident, "type": "function", "function": function}


def fill_in(command: str, server: Scripted) -> str:
    """Return a printed command with the address and the model of a server."""
    assert ENDPOINT in command and "MODEL" in command
    return command.replace(ENDPOINT, server.url).replace("MODEL", server.model)


def main(folder: Path) -> None:
    """Run the printed command; the model searches, opens a page and answers without tags.

    Both calls of one turn are executed in order and answered by their ids.
    """
    both = [
        call_tool("search", {"query": ["HTMLParser"]}, "call_a"),
        call_tool("python", {"code": "print(6 * 7)"}, "call_b"),
    ]

    def say(messages: list[dict]) -> dict:
        results = [message for message in messages if message["role"] == "tool"]
        if not results:
            return {"role": "assistant", "content": "I do both.", "tool_calls": both}
        if len(results) == 3:
            return {"role": "assistant", "content": ANSWER, "tool_calls": None}
        url = results[0]["content"].partition("](")[2].partition(")")[0]
        call = call_tool("visit", {"url": [url], "goal": "the module"}, "second")
        return {"role": "assistant", "content": None, "tool_calls": [call]}

    command = printed.find_block(PAGE, "--native-tools").text
    with Scripted(say) as server:
        server.keep = True
        ended = printed.run_command(fill_in(command, server), folder)
    lines = [line.split() for line in ended.stdout.splitlines() if line.strip()]
    assert [words[0] for words in lines[:5]] == ["writes", "search", "python", "reads", "reads"]
    assert f"Answer  {ANSWER}" in ended.stdout
    sources = ended.stdout.partition("Answer")[2]
    assert "html.parser" in sources  # the opened page
    first, middle, last = server.bodies
    assert [tool["function"]["name"] for tool in first["tools"]] == ["search", "visit", "python"]
    assert "<tool_call>" not in first["messages"][0]["content"]
    roles = [message["role"] for message in last["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    answered = [
        message["tool_call_id"] for message in last["messages"] if "tool_call_id" in message
    ]
    assert answered == ["call_a", "call_b", "second"]
    turn, *_ = middle["messages"][-3:]
    assert turn["content"] == "I do both."
    assert [call["id"] for call in turn["tool_calls"]] == ["call_a", "call_b"]
    assert "HTMLParser" in last["messages"][-1]["content"]


if __name__ == "__main__":
    printed.run_job(main)
