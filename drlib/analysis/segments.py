"""What each token of somebody else's rollout is part of, by the texts of the tokens.

Our own tokenizer has the tags as tokens (`chat.segment_tokens`); others spell them, so they are
looked for in the text. Templates that mark nobody are read by who was sampled and by the messages.
"""

import re
from collections.abc import Sequence

import numpy as np

from drlib.chat import mark_segments
from drlib.format import START
from drlib.trajectory import Segment

_MARK = re.compile(
    r"(<\|im_start\|>)(?:(system|user|assistant|tool)\n)?|<\|im_end\|>|<\|endoftext\|>"
    r"|</?(?:think|tool_call|tool_response|answer|report)>"
)


def segments_of(texts: Sequence[str], generated: np.ndarray) -> np.ndarray:
    """The `Segment` of each token by its text, uint8[T]; rules as in `chat.mark_segments`.

    texts: T pieces of the whole text; a token belongs where its first character does.
    generated: bool[T], who speaks in a text without ChatML's markers: what was sampled counts as
    the assistant's, what stands before as the user's, what stands between as a tool's.
    """
    text, starts = "".join(texts), np.cumsum([0, *map(len, texts)])
    marks = [(*m.span(), m[1] or m[0], m[2]) for m in _MARK.finditer(text)]
    if START not in text:
        for t in np.flatnonzero(np.diff(generated, prepend=[not g for g in generated[:1]])):
            role = "assistant" if generated[t] else "tool" if t else "user"
            marks.append((starts[t], starts[t], START, role))
        marks.sort(key=lambda mark: mark[:2])
    return mark_segments(len(text) + 1, marks)[starts[:-1]]  # + 1: the last token may be empty


def mark_people(segments: np.ndarray, generated: np.ndarray, messages: list[dict]) -> None:
    """What persons said between assistants' turns becomes PROMPT, whatever the template is."""
    by_tools: list[bool] = []  # of each gap between two assistants' turns
    for message in messages[[m["role"] for m in messages].index("assistant") :]:
        if message["role"] == "assistant":
            by_tools.append(False)
        elif message["role"] == "tool" or "<tool_response>" in message["content"]:
            by_tools[-1] = True
    between = gaps(generated)
    if len(by_tools) - 1 == len(between):  # else a turn has no tokens: leave what the texts say
        for (start, end), tool in zip(between, by_tools):
            segments[start:end] = segments[start:end] if tool else Segment.PROMPT


def gaps(generated: np.ndarray) -> list[tuple[int, int]]:
    """(start, end) of each run of other tokens between two sampled ones."""
    change = np.diff(generated.astype(np.int8), prepend=0)
    starts, ends = np.flatnonzero(change < 0), np.flatnonzero(change > 0)
    return list(zip(starts.tolist(), ends[1:].tolist()))
