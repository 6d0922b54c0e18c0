"""Terminal output of a run: thoughts, tool calls and results while it runs.

Text from pages and models is printed without markup and control characters.
"""

import re
import threading
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from drlib.app.research import AskResult
from drlib.chat.tool_calls import Answer, ToolCall, parse, parse_native

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
STYLES = {
    "thinks": "dim",
    "writes": "dim",
    "unreadable": "yellow",
    "reads": "green",
    "fails": "red",
}
MAX_TEXT_CHARS = 300  # of a thought or response


class Line(NamedTuple):
    """An event in printable form.

    Attributes:
        run: number of the researcher in Heavy mode, else 0.
        head: thinks, writes, reads, fails, unreadable, or the name of the called tool.
        text: thought, text beside a call, arguments, response, or the unreadable turn.
    """

    run: int
    head: str
    text: str


def format_event(event: str, state, value) -> list[Line]:
    """Convert an event of a `Watch` callback to lines."""
    number = state.name.rpartition("-")[2] if state is not None else ""
    run = int(number) if number.isdecimal() else 0
    if event == "result":
        return [Line(run, "reads" if value.ok else "fails", value.text)]
    if event != "turn":
        return []
    has_native_tools = state is not None and state.has_native_tools
    actions = parse_native(value) if has_native_tools else [parse(value)]
    thought, closed, rest = value.partition("</think>")
    lines = [Line(run, "thinks", thought.removeprefix("<think>"))] if closed else []
    beside = (rest if closed else value).partition("<tool_call>")[0].strip()
    if beside and isinstance(actions[0], ToolCall):
        lines.append(Line(run, "writes", beside))
    for action in actions:
        if isinstance(action, ToolCall):
            arguments = "; ".join(f"{value}" for value in action.arguments.values())
            lines.append(Line(run, action.name, arguments))
        elif not isinstance(action, Answer):
            lines.append(Line(run, "unreadable", f"{action.reason} The model wrote: {value}"))
    return lines


class Trace:
    """A `Watch` callback that prints each event, numbered by researcher in Heavy mode."""

    def __init__(self, console: Console):
        self._console = console
        self._lock = threading.Lock()

    def __call__(self, event: str, state, value) -> None:
        """Print the lines of an event."""
        for line in format_event(event, state, value):
            self._print(line)

    def _print(self, line: Line) -> None:
        number = f"{line.run:>2} " if line.run else "   "
        text = strip_controls(" ".join(line.text.split()))
        text = text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS] + " ..."
        with self._lock:
            head = Text(f"{number}{strip_controls(line.head):>10}  ", style="bold")
            self._console.print(head + Text(text, style=STYLES.get(line.head, "cyan")))


def show(console: Console, result: AskResult) -> None:
    """Print answer, sources and usage."""
    console.print()
    console.print(
        Text("Answer  ", style="bold") + Text(strip_controls(result.answer), style="bold green")
    )
    for source in result.sources:
        marks = ("*" if source.supports else " ") + (" " if source.opened else "-")
        page = f"  {marks} {strip_controls(source.title)}  {strip_controls(source.url)}"
        console.print(Text(page, style="dim"))
    if not all(source.opened for source in result.sources):
        console.print(Text("  - listed by a search, not opened", style="dim"))
    if any(source.supports for source in result.sources):
        console.print(Text("  * its text contains the answer", style="dim"))
    counts = {name.replace("_", " "): value for name, value in result.usage.items() if value}
    console.print(
        Text(", ".join(f"{value:,} {name}" for name, value in counts.items()), style="dim")
    )


def strip_controls(text: str) -> str:
    """Remove control characters, which could move the cursor or change colours."""
    return CONTROL.sub("", text)
