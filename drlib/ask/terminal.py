"""A run in the terminal: thoughts, calls and what came back, line by line as they come.

What pages and models say is printed as plain text: no markup, no control characters.
"""

import re
import threading

from rich.console import Console
from rich.text import Text

from drlib.ask.asking import Answered
from drlib.format import Answer, ToolCall, parse

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
WIDE = 300  # characters of a thought or response


class Trace:
    """A `Watch` that prints; runs of Heavy mode are told apart by their number."""

    def __init__(self, console: Console):
        self._console = console
        self._lock = threading.Lock()

    def __call__(self, what: str, at, value) -> None:
        """One line of what happened."""
        if what == "turn":
            action = parse(value)
            thought = value.partition("</think>")[0].removeprefix("<think>")
            if "</think>" in value:
                self._line(at, "thinks", thought, "dim")
            if isinstance(action, ToolCall):
                given = "; ".join(f"{v}" for v in action.arguments.values())
                self._line(at, action.name, given, "cyan")
            elif not isinstance(action, Answer):
                self._line(at, "unreadable", action.reason, "yellow")
        elif what == "result":
            self._line(
                at, "reads" if value.ok else "fails", value.text, "green" if value.ok else "red"
            )

    def _line(self, at, head: str, text: str, style: str) -> None:
        run = at.name.rpartition("-")[2]
        number = f"{run:>2} " if run != "0" else "   "
        shown = plain(" ".join(text.split()))
        shown = shown if len(shown) <= WIDE else shown[:WIDE] + " ..."
        with self._lock:
            self._console.print(
                Text(f"{number}{head:>10}  ", style="bold") + Text(shown, style=style)
            )


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
