"""Token segments: the part of a rollout (prompt, thought, call, response, answer) of each token.

`segment_tokens` is for drlib's tokenizer, whose tags are special tokens. `segment_texts` finds tags
in the text of any tokenizer's tokens, and `mark_user_turns` corrects templates without role marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drlib.chat.tool_calls import END, PAD, ROLES, START, TAGS, mask_call_strings
from drlib.trajectory import Segment
from drlib.validation import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_ROLE_SEGMENTS = {"assistant": Segment.THINK, "tool": Segment.TOOL_RESPONSE}


def mark_segments(size: int, marks: Iterable[tuple[int, int, str, str | None]]) -> np.ndarray:
    """Return the `Segment` of each of `size` positions, tokens or characters, uint8.

    Marks are TEMPLATE, and text between tags has the segment of its tag. Outside tags, an
    assistant's text is THINK, a tool's TOOL_RESPONSE, other roles' PROMPT. As in `parse`, no tag
    opens inside an open tag, and only assistants think, call, answer and report.

    marks: (start, end, mark, role) in order. A mark is a tag or one of PAD, START and END; START
        includes the role's name.
    """
    segments = np.full(size, Segment.TEMPLATE, np.uint8)
    outside, opened, at = Segment.PROMPT, "", 0
    for start, end, mark, role in [*marks, (size, size, END, None)]:
        segments[at:start] = Segment[opened.upper()] if opened else outside
        at, name = end, mark.strip("<>")
        if mark in (START, END, PAD):
            outside = (
                _ROLE_SEGMENTS.get(role, Segment.PROMPT) if mark == START else Segment.TEMPLATE
            )
            opened = ""
        elif opened:
            opened = "" if name == f"/{opened}" else opened
        elif name[0] != "/" and (outside == Segment.THINK or name == "tool_response"):
            opened = name
    return segments


def segment_tokens(
    token_ids: Sequence[int] | np.ndarray, tokenizer: PreTrainedTokenizerFast
) -> np.ndarray:
    """Return the `Segment` of each token, uint8[T]; tags are special tokens."""
    ids = np.asarray(token_ids)
    tags = {tokenizer.convert_tokens_to_ids(tag): tag for tag in TAGS}
    headers = {role: tokenizer.encode(role, add_special_tokens=False) for role in ROLES}
    marks = []
    for at in np.flatnonzero(np.isin(ids, list(tags))).tolist():
        header = ids[at + 1 : at + 9].tolist() if tags[int(ids[at])] == START else []
        role = next((r for r, h in headers.items() if header[: len(h)] == h), None)
        end = at + 1 + (len(headers[role]) if role else 0)
        marks.append((at, end, tags[int(ids[at])], role and role.strip()))
    return mark_segments(len(ids), marks)


_MARK = re.compile(
    r"(<\|im_start\|>)(?:(system|user|assistant|tool)\n)?|<\|im_end\|>|<\|endoftext\|>"
    r"|</?(?:think|tool_call|tool_response|answer|report)>"
)


def segment_texts(texts: Sequence[str] | np.ndarray, generated: np.ndarray) -> np.ndarray:
    """Return the `Segment` of each token by its text, uint8[T]; rules as in `mark_segments`.

    Args:
        texts: T pieces of the text; a token belongs to the segment of its first character.
        generated: bool[T]. In a text without ChatML's markers it gives the roles: sampled tokens
            are the assistant's, those before them the user's, those in between a tool's.
    """
    text = mask_call_strings("".join(texts))
    starts = np.cumsum([0, *map(len, texts)])  # character offset of each token, and the end
    marks = [(*m.span(), m[1] or m[0], m[2]) for m in _MARK.finditer(text)]
    if START not in text:
        marks += _speaker_marks(generated, starts)
        marks.sort(key=lambda mark: mark[:2])
    by_character = mark_segments(len(text) + 1, marks)  # + 1, as the last token may be empty
    return by_character[starts[:-1]]


def _speaker_marks(generated: np.ndarray, starts: np.ndarray) -> list[tuple[int, int, str, str]]:
    """Return marks where the role changes, by sampled tokens."""
    before_first = [
        not sampled for sampled in generated[:1]
    ]  # so that the first token counts as a change
    marks = []
    for t in np.flatnonzero(np.diff(generated, prepend=before_first)):
        if generated[t]:
            role = "assistant"
        else:
            role = "tool" if t else "user"
        marks.append((starts[t], starts[t], START, role))
    return marks


def token_texts(tokenizer, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """Return the text of each token, an object array whose pieces join to the decoded text.

    Each is decoded after another token, because many tokenizers drop a leading space at the start.
    Part of a character gives U+FFFD, and so does an unknown id (models are padded and may sample
    one).

    Raises:
        ValueError: more than 1% of the ids are unknown.
    """
    unique, place, counts = np.unique(np.asarray(ids), return_inverse=True, return_counts=True)
    known = (unique >= 0) & (unique < len(tokenizer))
    odd, total = counts[~known].sum(), counts.sum()
    require(
        odd <= 0.01 * total,
        f"{odd} of {total} ids are not among the tokenizer's "
        f"{len(tokenizer)}: the trajectories were sampled with another tokenizer",
    )
    anchor = tokenizer.encode("a", add_special_tokens=False)
    before = tokenizer.decode(anchor)
    texts = np.full(len(unique), "\ufffd", object)
    for i in np.flatnonzero(known):
        texts[i] = tokenizer.decode([*anchor, int(unique[i])]).removeprefix(before)
    return texts[place.reshape(-1)]


def mark_user_turns(segments: np.ndarray, generated: np.ndarray, messages: list[dict]) -> None:
    """Mark user turns between assistant turns as PROMPT, for any template."""
    by_tools: list[bool] = []  # per gap between two assistant turns
    first = [message["role"] for message in messages].index("assistant")
    for message in messages[first:]:
        if message["role"] == "assistant":
            by_tools.append(False)
        elif message["role"] == "tool" or "<tool_response>" in message["content"]:
            by_tools[-1] = True
    between = find_gaps(generated)
    if len(by_tools) - 1 == len(between):  # else a turn has no tokens: keep the segments
        for (start, end), by_tool in zip(between, by_tools):
            if not by_tool:
                segments[start:end] = Segment.PROMPT


def find_gaps(generated: np.ndarray) -> list[tuple[int, int]]:
    """Return (start, end) of each run of other tokens between two sampled ones."""
    change = np.diff(generated.astype(np.int8), prepend=0)
    starts = np.flatnonzero(change < 0)
    ends = np.flatnonzero(change > 0)[1:]  # the first one starts the first sampled run
    return list(zip(starts.tolist(), ends.tolist()))
