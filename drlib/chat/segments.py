"""What each token of somebody else's rollout is part of, by the texts of the tokens.

Our own tokenizer has the tags as tokens (`chat.segment_tokens`); others spell them, so they are
looked for in the text. Templates that mark nobody are read by who was sampled and by the messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from drlib.chat.tool_calls import END, PAD, ROLES, START, TAGS
from drlib.trajectory import Segment
from drlib.validation import require

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_SPEAKS = {"assistant": Segment.THINK, "tool": Segment.TOOL_RESPONSE}


def mark_segments(size: int, marks: Iterable[tuple[int, int, str, str | None]]) -> np.ndarray:
    """The `Segment` of each of `size` places, tokens or characters, uint8.

    marks: (start, end, mark, role) in order. A mark is a tag or one of PAD, START and END; that of
    START reaches over the role's name.

    Marks are TEMPLATE; what stands between tags is what they say. Outside tags, an assistant's text
    is THINK, a tool's TOOL_RESPONSE, everybody else's PROMPT. As in `parse`, nothing opens inside
    an open tag, and only assistants think, call, answer and report.
    """
    segments = np.full(size, Segment.TEMPLATE, np.uint8)
    outside, opened, at = Segment.PROMPT, "", 0
    for start, end, mark, role in [*marks, (size, size, END, None)]:
        segments[at:start] = Segment[opened.upper()] if opened else outside
        at, name = end, mark.strip("<>")
        if mark in (START, END, PAD):
            outside = _SPEAKS.get(role, Segment.PROMPT) if mark == START else Segment.TEMPLATE
            opened = ""
        elif opened:
            opened = "" if name == f"/{opened}" else opened
        elif name[0] != "/" and (outside == Segment.THINK or name == "tool_response"):
            opened = name
    return segments


def segment_tokens(token_ids: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """The `Segment` of each token, uint8[T], by `mark_segments`; tags are the special tokens."""
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


def segment_texts(texts: Sequence[str], generated: np.ndarray) -> np.ndarray:
    """The `Segment` of each token by its text, uint8[T].

    Marks are TEMPLATE, and what a tag of an assistant encloses is what the tag says. Outside tags
    an assistant's text is THINK, a tool's TOOL_RESPONSE, everybody else's PROMPT.
    texts: T pieces of the whole text; a token belongs where its first character does.
    generated: bool[T], who speaks in a text without ChatML's markers: what was sampled counts as
    the assistant's, what stands before as the user's, what stands between as a tool's.
    """
    text = "".join(texts)
    starts = np.cumsum([0, *map(len, texts)])  # of each token in the text, and the end
    marks = [(*m.span(), m[1] or m[0], m[2]) for m in _MARK.finditer(text)]
    if START not in text:
        marks += _speakers(generated, starts)
        marks.sort(key=lambda mark: mark[:2])
    by_character = mark_segments(len(text) + 1, marks)  # + 1: the last token may be empty
    return by_character[starts[:-1]]


def _speakers(generated: np.ndarray, starts: np.ndarray) -> list[tuple[int, int, str, str]]:
    """Marks where who speaks changes: by who was sampled."""
    before_first = [not sampled for sampled in generated[:1]]  # the first token is a change
    marks = []
    for t in np.flatnonzero(np.diff(generated, prepend=before_first)):
        if generated[t]:
            role = "assistant"
        else:
            role = "tool" if t else "user"
        marks.append((starts[t], starts[t], START, role))
    return marks


def token_texts(tokenizer, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """The text of each token, an object array; pieces add up to the decoded text.

    Each is decoded behind another token, because many tokenizers drop a leading space at the start.
    A token that is part of a character shows U+FFFD, and so does an id that the tokenizer does not
    have (models are padded, and may sample one). ValueError where those are more than 1 in 100.
    """
    unique, place, counts = np.unique(np.asarray(ids), return_inverse=True, return_counts=True)
    known = (unique >= 0) & (unique < len(tokenizer))
    odd, total = counts[~known].sum(), counts.sum()
    require(
        odd <= 0.01 * total,
        f"{odd} of {total} ids are none of the tokenizer's "
        f"{len(tokenizer)}: another one made the trajectories",
    )
    anchor = tokenizer.encode("a", add_special_tokens=False)
    before = tokenizer.decode(anchor)
    texts = np.full(len(unique), "\ufffd", object)
    for i in np.flatnonzero(known):
        texts[i] = tokenizer.decode([*anchor, int(unique[i])]).removeprefix(before)
    return texts[place.reshape(-1)]


def mark_user_turns(segments: np.ndarray, generated: np.ndarray, messages: list[dict]) -> None:
    """What persons said between assistants' turns becomes PROMPT, whatever the template is."""
    by_tools: list[bool] = []  # of each gap between two assistants' turns
    first = [message["role"] for message in messages].index("assistant")
    for message in messages[first:]:
        if message["role"] == "assistant":
            by_tools.append(False)
        elif message["role"] == "tool" or "<tool_response>" in message["content"]:
            by_tools[-1] = True
    between = find_gaps(generated)
    if len(by_tools) - 1 == len(between):  # else a turn has no tokens: leave what the texts say
        for (start, end), by_tool in zip(between, by_tools):
            if not by_tool:
                segments[start:end] = Segment.PROMPT


def find_gaps(generated: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of each run of other tokens between two sampled ones."""
    change = np.diff(generated.astype(np.int8), prepend=0)
    starts = np.flatnonzero(change < 0)
    ends = np.flatnonzero(change > 0)[1:]  # the first begins the first sampled run
    return list(zip(starts.tolist(), ends.tolist()))
