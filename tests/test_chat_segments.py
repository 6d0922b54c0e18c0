"""Segments by the text of tokens."""

import numpy as np
import pytest

from drlib.chat.segments import segment_texts
from drlib.trajectory import Segment


@pytest.mark.parametrize("inner", ["</tool_call>", "<think>", "<|im_end|>", "</think><answer>"])
def test_tags_in_json_strings_open_and_close_no_segment(inner):
    before, after = ["<tool_call>"], ["</tool_call>", "<|im_end|>"]
    body = ['{"name": "python", "arguments": {"code": "', inner, '"}}']
    texts = ["<|im_start|>user\n", "Q", "<|im_end|>", "<|im_start|>assistant\n"]
    texts += [*before, *body, *after]
    generated = np.arange(len(texts)) > 3
    segments = segment_texts(texts, generated)
    assert segments[5:8].tolist() == [Segment.TOOL_CALL] * 3
    assert segments[8:].tolist() == [Segment.TEMPLATE] * 2
