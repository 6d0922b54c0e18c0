"""Render trajectories for notebooks, as blocks of think, call, response and answer.

A `Rendered` has an HTML and a text form. Every block is labelled with its name, because GitHub
removes the colours of HTML outputs. Texts of policies and pages are escaped. Invisible characters,
such as direction marks, are shown as code points, and right-to-left text is isolated, so a text
cannot change the display around it. Latencies are not shown, so equal trajectories give equal
bytes.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drlib.task import is_accepted
from drlib.trajectory import Trajectory

TINTS = {
    "think": "#eeeeee",
    "call": "#d6e9f5",
    "response": "#fdf0d5",
    "failed": "#f8d7c4",
    "answer": "#d5efe6",
    "text": "#ffffff",
}
# Invisible characters: controls except newline and tab, line separators, Unicode's "default
# ignorable" characters (direction marks, joiners, fillers, variation selectors, tags), surrogates.
# The page of `viewer` uses the same pattern.
UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_MARK = '<span style="border:1px solid;border-radius:3px;padding:0 2px;font-size:75%">{}</span>'
_BLOCK = re.compile(r"<(think|tool_call|answer)>(.*?)(?:</\1>|\Z)", re.S)


class Block(NamedTuple):
    """One block of a conversation.

    Attributes:
        turn: number of the assistant turn.
        name: "think", "call", "response", "failed", "answer", or "text" outside all tags.
        text: content of the block.

    """

    turn: int
    name: str
    text: str


@dataclass(frozen=True, repr=False)
class Rendered:
    """Output with an HTML form for notebooks and a text form."""

    markup: str
    text: str

    def _repr_html_(self) -> str:
        return self.markup

    def __repr__(self) -> str:
        return self.text

    def __add__(self, other: "Rendered") -> "Rendered":
        return Rendered(self.markup + other.markup, f"{self.text}\n\n{other.text}")


def _format_code_point(found: re.Match) -> str:
    return f"U+{ord(found[0]):04X}"


def escape_unseen(text: str) -> str:
    """Replace invisible characters by code points such as <U+202E>, as `less` does."""
    return UNSEEN.sub(lambda found: f"<{_format_code_point(found)}>", text)


def to_html(text: str) -> str:
    """Convert text to HTML of a block, with code points of invisible characters in boxes."""
    return UNSEEN.sub(lambda found: _MARK.format(_format_code_point(found)), html.escape(text))


def to_isolated_html(text: str) -> str:
    """Convert text to inline HTML, isolating right-to-left text from the rest of the line."""
    is_rtl = any(unicodedata.bidirectional(character) in ("R", "AL", "AN") for character in text)
    return f"<bdi>{to_html(text)}</bdi>" if is_rtl else to_html(text)


def split_blocks(messages: Sequence[dict], failed: Sequence[bool] = ()) -> list[Block]:
    """Split a conversation after its first message into blocks at the tags.

    Args:
        messages: messages with `role` and `content`.
        failed: one flag per tool response.
    """
    found: list[Block] = []
    turn = 0
    flags = iter(failed)
    for message in messages[1:]:
        text = message["content"]
        if message["role"] != "assistant":
            found.append(Block(turn, "failed" if next(flags, False) else "response", text))
            continue
        turn += 1
        # text before a tag, tag name, content, ..., and the rest
        *pieces, rest = _BLOCK.split(text)
        for before, name, inner in zip(pieces[::3], pieces[1::3], pieces[2::3]):
            if before.strip():
                found.append(Block(turn, "text", before))
            found.append(Block(turn, name.removeprefix("tool_"), inner))
        if rest.strip() or not text:
            found.append(Block(turn, "text", rest))
    return found


def is_right(trajectory: Trajectory) -> bool:
    """Return True if the answer equals the right answer in the metadata."""
    return is_accepted(trajectory.answer, [trajectory.metadata["right_answer"]])


def describe_outcome(trajectory: Trajectory) -> str:
    """Return "right", "wrong", or "no answer" with the termination."""
    if trajectory.answer is None:
        return f"no answer ({trajectory.termination.value})"
    return "right" if is_right(trajectory) else "wrong"


def render_trajectory(trajectory: Trajectory, title: str = "") -> Rendered:
    """Render a trajectory: title, outcome and question, then a table of blocks."""
    parts = split_blocks(trajectory.messages, [not result.ok for result in trajectory.tool_results])
    head = f"{title}: {describe_outcome(trajectory)}" if title else describe_outcome(trajectory)
    metadata = trajectory.metadata
    return render_conversation(head, metadata["question"], metadata["right_answer"], parts)


def render_conversation(head: str, question: str, right: str, parts: Sequence[Block]) -> Rendered:
    """Render a conversation, such as a demonstration, as a table of blocks.

    Args:
        head: title line.
        question: the question.
        right: right answer, or "" to hide it.
        parts: blocks from `split_blocks`.
    """
    answer = f"  (right: {right})" if right else ""
    rows = []
    lines = [escape_unseen(head), escape_unseen(f"  question  {question}{answer}")]
    before = 0  # turn of the previous block; only the first block of a turn is numbered
    for part in parts:
        number = str(part.turn) if part.turn != before else ""
        label = "response: failed" if part.name == "failed" else part.name
        shown = to_html(part.text).strip().replace("\n", "<br>")
        style = f"background:{TINTS[part.name]};color:#000;text-align:left;vertical-align:top"
        rows.append(
            f'<tr style="{style}"><td style="{style}">{number}</td>'
            f'<td style="{style}"><b>{label}</b></td>'
            f'<td style="{style};white-space:normal">{shown}</td></tr>'
        )
        first, *rest = escape_unseen(part.text).strip().split("\n")
        lines.append(f"{number:>1} {label:<9} {first}")
        lines += [" " * 12 + line for line in rest]
        before = part.turn
    question_line = (
        f"{to_isolated_html(question)}  (right: {to_isolated_html(right)})"
        if right
        else to_isolated_html(question)
    )
    top = f"<p><b>{to_isolated_html(head)}</b><br>{question_line}</p>"
    return Rendered(f"{top}<table>{''.join(rows)}</table>", "\n".join(lines))


def render_tokens(trajectory: Trajectory, tokenizer, advantage: float) -> Rendered:
    """Render the tokens of a rollout, marking those in the loss.

    Tokens in the loss are bold in HTML and bracketed in text, tinted by the sign of the advantage.

    Args:
        trajectory: the rollout.
        tokenizer: tokenizer of the policy.
        advantage: advantage of the rollout.
    """
    if advantage == 0:
        tint = TINTS["text"]
    else:
        tint = TINTS["call"] if advantage > 0 else TINTS["failed"]
    pieces, plain = [], []
    names = tokenizer.convert_ids_to_tokens(trajectory.token_ids.tolist())
    for name, trained in zip(names, trajectory.generated):
        shown = to_isolated_html(name.replace("\n", "⏎"))
        mark = f'<b style="background:{tint};color:#000">{shown}</b>'
        pieces.append(mark if trained else f'<span style="color:#777">{shown}</span>')
        plain.append(f"[{escape_unseen(name)}]" if trained else escape_unseen(name))
    n = int(trajectory.generated.sum())
    head = f"advantage {advantage + 0.0:+.2f}, {n} of {len(names)} tokens carry loss (bold)"
    return Rendered(f"<p>{head}</p><p>{' '.join(pieces)}</p>", f"{head}\n{''.join(plain)}")


def decode_turns_and_contexts(trajectory: Trajectory, tokenizer) -> tuple[list[str], list[str]]:
    """Decode each turn, and the context that it was sampled from.

    Returns:
        (turns, contexts): one text per turn each.

    """
    turns, contexts_seen = [], []
    contexts = trajectory.contexts
    for turn in np.unique(trajectory.turns[trajectory.generated]):
        own = trajectory.generated & (trajectory.turns == turn)
        first = int(np.argmax(own))
        same = np.ones(len(trajectory), bool) if contexts is None else contexts == contexts[first]
        same[first:] = False
        turns.append(tokenizer.decode(trajectory.token_ids[own].tolist()))
        contexts_seen.append(tokenizer.decode(trajectory.token_ids[same].tolist()))
    return turns, contexts_seen
