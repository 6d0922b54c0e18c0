"""Ask a model that calls two tools in one turn, by the command of docs/agents.md.

Run: python -m tests.first_hour.parallel_calls
"""

from pathlib import Path

from tests.first_hour import printed
from tests.first_hour.native_tools import PAGE, call_tool, fill_in
from tests.scripted_server import Scripted


def main(folder: Path) -> None:
    """Run the printed command; both calls are executed in order and answered by their ids."""
    calls = [
        call_tool("search", {"query": ["HTMLParser"]}, "call_a"),
        call_tool("python", {"code": "print(6 * 7)"}, "call_b"),
    ]

    def say(messages: list[dict]) -> dict:
        if messages[-1]["role"] == "tool":
            return {"role": "assistant", "content": "html.parser"}
        return {"role": "assistant", "content": "I do both.", "tool_calls": calls}

    command = printed.find_block(PAGE, "--native-tools").text
    with Scripted(say) as server:
        server.keep = True
        ended = printed.run_command(fill_in(command, server), folder)
    lines = [line.split() for line in ended.stdout.splitlines() if line.strip()]
    heads = [words[0] for words in lines]
    assert heads[:5] == ["writes", "search", "python", "reads", "reads"]
    assert "Answer  html.parser" in ended.stdout
    assert len(server.bodies) == 2
    turn, first, second = server.bodies[1]["messages"][-3:]
    assert turn["content"] == "I do both."
    assert [call["id"] for call in turn["tool_calls"]] == ["call_a", "call_b"]
    assert [first["tool_call_id"], second["tool_call_id"]] == ["call_a", "call_b"]
    assert "html.parser" in first["content"] and second["content"] == "42"


if __name__ == "__main__":
    printed.run_job(main)
