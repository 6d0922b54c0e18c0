"""A run in the terminal: thoughts, calls and what came back, line by line as they come.

What pages and models say is printed as plain text: no markup, no control characters.
"""

import re
import threading
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from drlib.app.research import Answered
from drlib.chat.tool_calls import Answer, ToolCall, parse

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
STYLES = {"thinks": "dim", "unreadable": "yellow", "reads": "green", "fails": "red"}
WIDE = 300  # characters of a thought or response


class Line(NamedTuple):
    """Something that happened. head: thinks, reads, fails, unreadable, or the tool that is called;
    run: of Heavy mode, 0 elsewhere."""

    run: int
    head: str
    text: str


def lines_of(what: str, at, value) -> list[Line]:
    """What a `Watch` is told, as lines for a person."""
    number = at.name.rpartition("-")[2] if at is not None else ""
    run = int(number) if number.isdecimal() else 0
    if what == "result":
        return [Line(run, "reads" if value.ok else "fails", value.text)]
    if what != "turn":
        return []
    action = parse(value)
    thought, closed, _ = value.partition("</think>")
    lines = [Line(run, "thinks", thought.removeprefix("<think>"))] if closed else []
    if isinstance(action, ToolCall):
        given = "; ".join(f"{v}" for v in action.arguments.values())
        lines.append(Line(run, action.name, given))
    elif not isinstance(action, Answer):
        lines.append(Line(run, "unreadable", action.reason))
    return lines


class Trace:
    """A `Watch` that prints; runs of Heavy mode are told apart by their number."""

    def __init__(self, console: Console):
        self._console = console
        self._lock = threading.Lock()

    def __call__(self, what: str, at, value) -> None:
        """One line of each thing that happened."""
        for line in lines_of(what, at, value):
            self._line(line)

    def _line(self, line: Line) -> None:
        number = f"{line.run:>2} " if line.run else "   "
        shown = plain(" ".join(line.text.split()))
        shown = shown if len(shown) <= WIDE else shown[:WIDE] + " ..."
        with self._lock:
            head = Text(f"{number}{plain(line.head):>10}  ", style="bold")
            self._console.print(head + Text(shown, style=STYLES.get(line.head, "cyan")))


def show(console: Console, done: Answered) -> None:
    """Answer, sources, cost."""
    console.print()
    console.print(Text("Answer  ", style="bold") + Text(plain(done.answer), style="bold green"))
    for source in done.sources:
        mark = "*" if source.supports else " "
        console.print(Text(f"  {mark} {plain(source.title)}  {plain(source.url)}", style="dim"))
    if any(source.supports for source in done.sources):
        console.print(Text("  * its text has the answer in it", style="dim"))
    counts = {name.replace("_", " "): value for name, value in done.usage.items() if value}
    console.print(
        Text(", ".join(f"{value:,} {name}" for name, value in counts.items()), style="dim")
    )


def plain(text: str) -> str:
    """Without what would move the cursor or change colours."""
    return CONTROL.sub("", text)
