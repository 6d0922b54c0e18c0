"""Invalid rows are rejected with their file, row number and reason.

Run: python -m pytest tests/test_analysis_inputs_bad.py
"""

import math

import pytest
from transformers import AutoTokenizer

from drlib.analysis.inputs import read_rollouts
from tests.test_analysis_inputs import (
    TOUR,
    foreign,  # noqa: F401 - a fixture
    tokenizer,  # noqa: F401 - a fixture
    tour,  # noqa: F401 - a fixture
    write_lines,
)

OUTPUT = {"text": "", "token_ids": [15, 16], "logprobs": [{"15": -1.0}, {"16": -2.0}]}


TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


BAD = {
    "no messages": ({"text": "a"}, "no field .messages.; the row has text"),
    "no role": ({"messages": [{"content": "a"}]}, "no field 'role'"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}, TURNS[1]]},
        r"messages\[0\].content\[0\].*image",
    ),
    "not a list": ({"messages": 3}, "the field messages is .3."),
    "NaN reward": ({"messages": TURNS, "reward": math.nan}, "reward is nan"),
    "infinite score": ({"messages": TURNS, "score": math.inf}, "reward is inf"),
    "a word for a reward": ({"messages": TURNS, "score": "right"}, "reward is 'right'; use"),
    "other vocabulary": ({"prompt_token_ids": [1], "outputs": [{"token_ids": [99999]}]}, "99999"),
    "negative id": ({"prompt_token_ids": [-1], "outputs": [{"token_ids": [15]}]}, "-1"),
    "other tokenizer": (
        {"prompt_token_ids": [5], "outputs": [OUTPUT | {"text": "zz"}]},
        "the tokenizer of the model",
    ),
    "too few log-probs": (
        {"prompt_token_ids": [5], "outputs": [OUTPUT | {"logprobs": [{"15": -1.0}]}]},
        "1 log-probabilities for 2 sampled",
    ),
    "too many": (
        {
            "prompt_token_ids": [5],
            "outputs": [OUTPUT | {"logprobs": [{"15": -1.0}, {"16": -1.0}, {"17": -1.0}]}],
        },
        "3 log-prob.* for 2",
    ),
    "not its log-prob": (
        {"prompt_token_ids": [5], "outputs": [OUTPUT | {"logprobs": [{"15": -1.0}, {"17": -2.0}]}]},
        "sampled id 16 is missing at token 1",
    ),
    "a probability": (
        {"prompt_token_ids": [5], "outputs": [OUTPUT | {"logprobs": [{"15": 0.9}, {"16": -2.0}]}]},
        "at token 0 is 0.9",
    ),
    "no prompt": ({"choices": [{"message": {"content": "a"}}]}, "no prompt.*return_token_ids"),
    "other tokens": (
        {
            "prompt_token_ids": [5],
            "choices": [
                {
                    "message": {"content": "a"},
                    "logprobs": {"content": [{"token": "Ġxyzzy", "logprob": -1.0}]},
                }
            ],
        },
        "'Ġxyzzy' is not a token of this tokenizer",
    ),
    "echoed": (
        {
            "prompt_token_ids": [5],
            "choices": [
                {
                    "text": "I ",
                    "token_ids": [1665],
                    "logprobs": {"tokens": ["a", "b"], "token_logprobs": [None, -1.0]},
                }
            ],
        },
        "2 log-probabilities for 1",
    ),
    "masks": ({"prompt_ids": [5], "response_ids": [15, 16], "response_mask": [1]}, "differ in"),
}


@pytest.mark.parametrize("row, message", BAD.values(), ids=BAD)
def test_invalid_rows_are_rejected_by_number(tokenizer, tmp_path, row, message):
    good = {"messages": TURNS} if "messages" in row or "text" in row else None
    rows = [good, row] if good else [row]
    path = write_lines(tmp_path / "bad.jsonl", rows)
    with pytest.raises(ValueError, match=rf"bad\.jsonl, row {len(rows)} \([\w ]+\): .*{message}"):
        list(read_rollouts(path, tokenizer))


def test_lines_that_are_not_objects_are_rejected(tokenizer, tmp_path):
    for text in ("3", "no", "\udcff", "null", '"a text"'):
        path = tmp_path / "a.jsonl"
        path.write_bytes(text.encode("utf-8", "surrogateescape") + b"\n")
        with pytest.raises(ValueError, match="line 1 is no"):
            read_rollouts(path, tokenizer)


def test_template_that_rejects_or_drops_turns(tmp_path, tokenizer):
    other = AutoTokenizer.from_pretrained(TOUR / "policy_rl")
    turns = [*TURNS, {"role": "tool", "content": "r"}, TURNS[1]]
    path = write_lines(tmp_path / "a.jsonl", [{"messages": turns}])
    other.chat_template = "{{ raise_exception('no role tool here') }}"
    with pytest.raises(ValueError, match="row 1 .messages.: no role tool here"):
        list(read_rollouts(path, other))
    other.chat_template = "{{ messages[0].content }}"
    with pytest.raises(ValueError, match="drops assistant messages"):
        list(read_rollouts(path, other))
