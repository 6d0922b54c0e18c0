"""Analyse twenty chat transcripts with the commands of docs/rollouts.md.

Run: python -m tests.first_hour.transcripts
"""

import json
import re
from pathlib import Path

from tests.first_hour import printed

PAGE = "rollouts.md"
RIVERS = {"Tibera": "Ostmark", "Lunel": "Kesh", "Orvane": "Tal", "Sarn": "Mirel"}


def write_transcripts(path: Path) -> None:
    """Write twenty chats about invented rivers; every second one checks and is right."""
    rows = []
    for number in range(20):
        river, town = [*RIVERS.items()][number % len(RIVERS)]
        checks = number % 2 == 0
        call = {"name": "lookup", "arguments": json.dumps({"river": river})}
        messages = [
            {"role": "user", "content": f"Chat {number}: which town is at the mouth of {river}?"},
            {
                "role": "assistant",
                "content": "",
                "reasoning_content": f"I look up {river}.",
                "tool_calls": [{"id": "c", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": "c", "content": f"{river} ends at {town}."},
            {
                "role": "assistant",
                "reasoning_content": "Wait, I verify it." if checks else "That is it.",
                "content": f"<answer>{town if checks else river}</answer>",
            },
        ]
        rows.append({"messages": messages, "answer": town})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main(folder: Path) -> None:
    """Run the report, the Python block and the example row of the page."""
    write_transcripts(folder / "rollouts.jsonl")
    command = printed.find_block(PAGE, "drlib report").text
    assert printed.run_command(command, folder).stdout == "report.html\n"
    page = (folder / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<iframe.*", "", page, flags=re.S)))
    assert "20 trajectories" in text and "20 judged, 50.0% of them right" in text
    assert "Counted in words, not in tokens" in text
    assert "raml 10 wait 10, retry 0" in text and "verify 10, wait 10" in text
    # right with a reflection word: all ten; right without: none
    assert "50.0% 100.0% of 10 0.0% of 10" in text
    assert "Tibera" in page[page.index("<iframe") :]

    rows = printed.run_python(printed.find_block(PAGE, "read_rollouts(").text, folder).stdout
    lines = rows.splitlines()
    assert len(lines) == 20
    assert lines[:2] == ["rollouts-1 Ostmark None", "rollouts-2 Lunel None"]  # no rewards there

    # the row that the page shows is a file of its own
    row = next(block for block in printed.read_blocks(PAGE) if block.language == "json")
    (folder / "rollouts.jsonl").write_text(row.text)
    printed.run_command(command, folder)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "1 judged, 100.0% of them right" in page and "wait 1" in page


if __name__ == "__main__":
    printed.run_job(main)
