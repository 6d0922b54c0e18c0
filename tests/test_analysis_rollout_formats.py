"""Dumps with failures, placeholders, odd tokens and environment text in the tags of other programs.

Run: python -m pytest tests/test_analysis_rollout_formats.py
"""

import math
import time
import warnings

import numpy as np
import pytest

from drlib.analysis.entropy import entropy_bounds
from drlib.analysis.inputs import read_rollouts
from drlib.analysis.report import write_report
from drlib.analysis.rollout_formats import split_observations
from drlib.analysis.token_table import find_responses, token_statistics
from drlib.analysis.viewer import viewer_page
from drlib.trajectory import Segment
from tests.test_analysis_inputs import (
    TOUR,
    foreign,  # noqa: F401 - a fixture
    tokenizer,  # noqa: F401 - a fixture
    write_lines,
)

GOOD = {
    "id": "chatcmpl-1",
    "prompt_token_ids": [5],
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "I "}}],
}
BATCH = {"custom_id": "r", "response": {"status_code": 200, "body": GOOD}, "error": None}
FAILED = {
    "an error in the body": {
        "response": {"status_code": 400, "body": {"error": {"message": "too long"}}}
    },
    "no response": {"response": None, "error": {"code": "expired", "message": "too long"}},
    "a page as the body": {"response": {"status_code": 502, "body": "<html>too long</html>"}},
    "no choices": {"response": {"status_code": 200, "body": {"choices": [], "error": "too long"}}},
    "null choices": {"response": {"status_code": 200, "body": {"choices": None}}},
    "an error as text": {"response": None, "error": "too long"},
}


@pytest.mark.parametrize("failed", FAILED.values(), ids=FAILED)
@pytest.mark.parametrize("first", [True, False])
def test_failed_requests_of_a_batch_are_counted(tokenizer, tmp_path, failed, first):
    failed = {"custom_id": "f", "error": None} | failed
    rows = [failed, BATCH, failed, BATCH] if first else [BATCH, failed, failed, BATCH]
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.warns(UserWarning, match="2 rollouts skipped"):
        assert len(list(read_rollouts(path, tokenizer, format="openai" if first else None))) == 2


def test_failed_first_request_does_not_hide_the_format(tokenizer, tmp_path):
    for name in ("an error in the body", "no response", "an error as text"):
        path = write_lines(tmp_path / "a.jsonl", [{"custom_id": "f"} | FAILED[name], BATCH])
        with pytest.warns(UserWarning, match="1 rollouts skipped.*too long"):
            (t,) = read_rollouts(path, tokenizer)
        assert t.id == "a-2"


def test_file_of_failures_only_is_an_error(tokenizer, tmp_path):
    for rows in ([FAILED["an error as text"]], [{"choices": []}], [{"messages": []}] * 2):
        with pytest.raises(ValueError, match="a.jsonl"):
            list(read_rollouts(write_lines(tmp_path / "a.jsonl", rows), tokenizer))


USER = {"role": "user", "content": "Q"}
SAID = {"role": "assistant", "content": "hm"}
EMPTY = {
    "verl": ({"input": "Q", "output": "", "score": 0}, {"input": "Q", "output": "A", "score": 0}),
    "verl null": (
        {"input": "Q", "output": None, "score": 0},
        {"input": "Q", "output": "A", "score": 0},
    ),
    "trl": (
        {"step": 1, "prompt": "Q", "completion": "", "advantage": 0.0},
        {"step": 1, "prompt": "Q", "completion": "A", "advantage": 0.0},
    ),
    "trl chat": (
        {"step": 1, "prompt": [USER], "completion": [], "advantage": 0.0},
        {"step": 1, "prompt": [USER], "completion": [SAID], "advantage": 0.0},
    ),
    "agent loop": (
        {"prompt_ids": [5], "response_ids": []},
        {"prompt_ids": [5], "response_ids": [15]},
    ),
    "masked": (
        {"prompt_ids": [5], "response_ids": [15], "response_mask": [0]},
        {"prompt_ids": [5], "response_ids": [15], "response_mask": [1]},
    ),
    "vllm": (
        {"prompt_token_ids": [5], "outputs": [{"token_ids": [], "text": ""}]},
        {"prompt_token_ids": [5], "outputs": [{"token_ids": [15]}]},
    ),
    "openai": (
        {"choices": [{"message": {"content": None}, "finish_reason": "content_filter"}]},
        GOOD,
    ),
    "messages": ({"messages": [USER]}, {"messages": [USER, SAID]}),
    "null messages": ({"messages": None}, {"messages": [USER, SAID]}),
    "an empty turn": (
        {"messages": [USER, SAID | {"content": ""}]},
        {"messages": [USER, SAID]},
    ),
}


@pytest.mark.parametrize("empty, good", EMPTY.values(), ids=EMPTY)
def test_rollouts_without_tokens_are_counted(tokenizer, tmp_path, empty, good):
    path = write_lines(tmp_path / "a.jsonl", [good, empty, good, empty])
    with pytest.warns(UserWarning, match="2 rollouts skipped.*row 2"):
        found = list(read_rollouts(path, tokenizer))
    assert [t.id for t in found] == ["a-1", "a-3"]


def test_empty_choice_keeps_the_others_of_its_row(tokenizer, tmp_path):
    row = {"prompt_token_ids": [5], "outputs": [{"token_ids": i} for i in ([15], [], [16])]}
    with pytest.warns(UserWarning, match="1 rollouts skipped"):
        found = list(read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer))
    assert [t.id for t in found] == ["a-1", "a-1-2"]


def test_null_choices_and_messages_are_counted(tokenizer, tmp_path):
    for choice in (None, {"message": None}, {"text": None}, {"message": {"content": None}}):
        row = GOOD | {"choices": [choice, *GOOD["choices"]]}
        with pytest.warns(UserWarning, match="1 rollouts skipped"):
            (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
        assert t.messages[-1]["content"] == "I "


def test_report_lists_what_was_left_out(tokenizer, tmp_path):
    rows = [BATCH, BATCH, {"custom_id": "f"} | FAILED["an error in the body"]]
    rows[0] = BATCH | {"response": {"body": GOOD | {"mystery": "x"}}}
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.warns(UserWarning) as found:
        write_report(tmp_path / "r.html", [path], TOUR / "policy_rl")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "1 rollouts skipped" in page and "mystery (1)" in page
    assert len([w for w in found if "skipped" in str(w.message)]) == 1


# ---------------------------------------------------------------- log-probabilities


def build_chat_row(entries, text):
    choice = {"message": {"role": "assistant", "content": text}, "logprobs": {"content": entries}}
    return {"prompt_token_ids": [5], "choices": [choice]}


@pytest.mark.parametrize(
    "value", [-9999.0, None, math.nan, -math.inf, -3.4028234663852886e38, -1e9, "-9999.0"]
)
def test_placeholders_are_unknown_values(tokenizer, tmp_path, value):
    rows = [
        {
            "prompt_token_ids": [5],
            "outputs": [{"token_ids": [15, 16], "logprobs": [{"15": value}, {"16": -2.0}]}],
        },
        {
            "prompt_token_ids": [5],
            "outputs": [
                {
                    "token_ids": [15, 16],
                    "logprobs": [{"15": {"logprob": value}}, {"16": {"logprob": -2.0}}],
                }
            ],
        },
        {"prompt_ids": [5], "response_ids": [15, 16], "response_logprobs": [value, -2.0]},
    ]
    text = [tokenizer.decode([i]) for i in (15, 16)]
    entries = [{"token": text[0], "logprob": value}, {"token": text[1], "logprob": -2.0}]
    rows.append(build_chat_row(entries, "".join(text)))
    logs = {"tokens": text, "token_logprobs": [value, -2.0]}
    rows.append({"prompt_token_ids": [5], "choices": [{"text": "".join(text), "logprobs": logs}]})
    for row in rows:
        with pytest.warns(UserWarning, match="without a value .1."):
            (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
        assert math.isnan(t.logprobs[1]) and t.logprobs[2] == -2.0, row


@pytest.mark.parametrize("value", [-9999.0, None, math.nan, -math.inf])
def test_placeholders_of_alternatives_add_no_probability(tokenizer, tmp_path, value):
    logprobs = [{"15": -0.1, "8": -3.0, "9": value}, {"16": -0.2, "8": -3.0, "9": -4.0}]
    row = {"prompt_token_ids": [5], "outputs": [{"token_ids": [15, 16], "logprobs": logprobs}]}
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
    assert t.top_ids[1].tolist() == [15, 8, -1] and np.isneginf(t.top_logprobs[1, 2])
    low, high, tail = entropy_bounds(t.top_logprobs[t.generated], 2048)
    assert (low <= high).all() and tail[0] == pytest.approx(1 - np.exp(-0.1) - np.exp(-3))


def test_positive_values_are_rejected(tokenizer, tmp_path):
    for value in (0.5, "0.5", "high", math.inf):
        row = {"prompt_ids": [5], "response_ids": [15], "response_logprobs": [value]}
        with pytest.raises(ValueError, match="row 1 .*log-probability"):
            list(read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer))


@pytest.mark.parametrize("text", ["\ufffd", "", "I "])
def test_alternatives_with_one_text_are_different_tokens(tokenizer, tmp_path, text):
    tops = [{"token": text, "logprob": v} for v in (math.log(0.5), math.log(0.3))]
    tops.append({"token": "zebra?", "logprob": math.log(0.1)})
    entry = {"token": "I ", "logprob": math.log(0.05), "top_logprobs": tops}
    row = build_chat_row([entry], "I ")
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
    known = np.exp(t.top_logprobs[-1][np.isfinite(t.top_logprobs[-1])])
    assert known[:3] == pytest.approx([0.5, 0.3, 0.1], abs=1e-6)
    _, _, tail = entropy_bounds(t.top_logprobs[t.generated], 2048)
    assert tail[0] <= 0.1 + 1e-6
    ids = [i for i in t.top_ids[-1].tolist() if i >= 0]
    assert len(ids) == len({*ids})


def test_bounds_hold_where_a_server_overwrites_equal_texts(tokenizer, tmp_path):
    """The key of the sampled token is taken by another token with the same text."""
    for text in ("\ufffd", "I "):
        logs = {
            "tokens": ["I " if text == "I " else "\ufffd"],
            "token_logprobs": [math.log(0.6)],
            "top_logprobs": [{text: math.log(0.2), "x": math.log(0.1)}],
        }
        choice = {"text": "I ", "logprobs": logs}
        if text != "I ":
            choice["token_ids"] = tokenizer.encode("I ", add_special_tokens=False)
        row = {"prompt_token_ids": [5], "choices": [choice]}
        (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
        known = np.exp(t.top_logprobs[-1])
        assert sorted(known[known > 0]) == pytest.approx([0.1, 0.2, 0.6], abs=1e-6)


def test_bounds_hold_if_a_probable_alternative_was_overwritten(tokenizer, tmp_path):
    """The text U+FFFD had two tokens, of probability 0.5 (lost) and 0.1."""
    true = np.array([0.5, 0.3, 0.1, 0.1])
    for key in ("\ufffd", ""):
        tops = [{key: math.log(0.1), "I ": math.log(0.3)}]
        logs = {"tokens": ["I "], "token_logprobs": [math.log(0.3)], "top_logprobs": tops}
        row = {"prompt_token_ids": [5], "choices": [{"text": "I ", "logprobs": logs}]}
        (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
        low, high, _ = entropy_bounds(t.top_logprobs[t.generated], 2048)
        assert low[0] <= -(true * np.log(true)).sum() <= high[0]


def test_tokens_are_identified_by_bytes(foreign, tmp_path):
    said = "東"
    ids = foreign.encode(said)
    data = [list(said.encode()[n : n + 1]) for n in range(len(said.encode()))]
    assert len(ids) == len(data)
    entries = [
        {
            "token": "\ufffd",
            "bytes": one,
            "logprob": -0.5,
            "top_logprobs": [
                {"token": "\ufffd", "bytes": one, "logprob": -0.5},
                {"token": "\ufffd", "bytes": [255], "logprob": -1.0},
                {"token": "\ufffd", "bytes": [254], "logprob": -4.0},
            ],
        }
        for one in data
    ]
    path = write_lines(tmp_path / "a.jsonl", [build_chat_row(entries, said)])
    (t,) = read_rollouts(path, foreign)
    assert t.token_ids[t.generated].tolist() == ids
    vocabulary = foreign.get_vocab()
    last = list(t.top_ids[-1].tolist())
    assert last == [ids[-1], vocabulary["ÿ"], vocabulary["þ"]]


def test_tokens_that_cannot_be_identified_lose_their_values(foreign, tmp_path):
    entries = [{"token": "\ufffd", "logprob": -0.5}, {"token": "a", "logprob": -0.5}]
    path = write_lines(tmp_path / "a.jsonl", [build_chat_row(entries, "\ufffda")])
    with pytest.warns(UserWarning, match="tokens are unclear .1."):
        (t,) = read_rollouts(path, foreign)
    assert np.isnan(t.logprobs[t.generated]).all()


# ---------------------------------------------------------------- ids of a padded vocabulary


@pytest.mark.parametrize("ids", [[15, 2048], [2100], [15, 2050, 2051, 16]])
def test_ids_of_a_padded_vocabulary_are_read(tokenizer, tmp_path, ids):
    rows = [
        {"prompt_ids": [5], "response_ids": ids},
        {"prompt_token_ids": [5], "outputs": [{"token_ids": ids}]},
    ]
    for row in rows:
        path = write_lines(tmp_path / "a.jsonl", [row])
        with pytest.warns(UserWarning, match="padded vocabulary"):
            (t,) = read_rollouts(path, tokenizer)
        assert t.token_ids[t.generated].tolist() == ids
        assert "\ufffd" in t.messages[-1]["content"]
        with pytest.warns(UserWarning, match="padded vocabulary"):
            viewer_page(path, tokenizer)
            write_report(tmp_path / "r.html", [path], tokenizer)


def test_ids_of_another_vocabulary_are_rejected(tokenizer, tmp_path):
    for ids in ([15, 3000], [-1], [2**31 - 1]):
        path = write_lines(tmp_path / "a.jsonl", [{"prompt_ids": [5], "response_ids": ids}])
        with pytest.raises(ValueError, match="row 1 .*tokenizer of the model"):
            list(read_rollouts(path, tokenizer))


# ---------------------------------------------------------------- environment text

CALL = "<search>capital</search>"
OBSERVED = {
    "information": f"{CALL}\n\n<information>Doc 1: Oslo</information>\n\n",
    "interpreter": "<code>\nprint(1)\n</code>\n<interpreter>\nDoc 1: Oslo\n</interpreter>\n",
    "ipython": "call<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\nDoc 1: Oslo<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "ipython, eom": "call<|eom_id|><|start_header_id|>ipython<|end_header_id|>\n\nDoc 1: Oslo"
    "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "ipython without markers": 'search("x")ipython\n\nDoc 1: Osloassistant\n\n',
    # others of the kind
    "observation": "Act<observation>Doc 1: Oslo</observation>",
    "tool_result": "<tool_call>{}</tool_call><tool_result>Doc 1: Oslo</tool_result>",
    "search_results": f"{CALL}<search_results>\nDoc 1: Oslo\n</search_results>",
    "result after a call": f"{CALL} <result>\nDoc 1: Oslo\n</result>\n",
    "output after a call": "<python>1</python><output>Doc 1: Oslo</output>",
    "a fenced output": "```python\nprint(1)\n```\n```output\nDoc 1: Oslo\n```",
    "Search-o1": "<|begin_search_query|>x<|end_search_query|><|begin_search_result|>Doc 1: Oslo"
    "<|end_search_result|>",
    "R1-Searcher": "x<|begin_of_documents|>Doc 1: Oslo<|end_of_documents|>",
    "Mistral": '[TOOL_CALLS][{}]</s>[TOOL_RESULTS]{"content": "Doc 1: Oslo"}[/TOOL_RESULTS]',
    "DeepSeek": "x<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>Doc 1: Oslo<｜tool▁output▁end｜>"
    "<｜tool▁outputs▁end｜>",
    "GLM": "search\n{}<|observation|>\nDoc 1: Oslo<|assistant|>\n",
    "ChatML, role tool": "call<|im_end|>\n<|im_start|>tool\nDoc 1: Oslo<|im_end|>\n"
    "<|im_start|>assistant\n",
    "Harmony": "{}<|call|><|start|>functions.search to=assistant<|channel|>commentary<|message|>"
    "Doc 1: Oslo<|end|><|start|>assistant",
}
END = "<think>So</think><answer>Oslo is it</answer>"


@pytest.mark.parametrize("output", OBSERVED.values(), ids=OBSERVED)
def test_environment_text_in_other_tags_is_observed(foreign, tmp_path, output):
    row = {"input": "Which capital?\n", "output": f"Hm. {output}{END}", "score": 1}
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), foreign)
    sampled = foreign.decode(t.token_ids[t.generated])
    seen = foreign.decode(t.token_ids[~t.generated])
    assert "Doc 1" not in sampled and "Doc 1: Oslo" in seen
    assert sampled.startswith("Hm. ") and sampled.endswith(END)
    assert foreign.decode(t.token_ids) == row["input"] + row["output"]
    (result,) = t.tool_results
    assert "Doc 1: Oslo" in result.text and "<" not in result.text and result.ok
    assert [status for *_, status in find_responses(t)] == ["ok"]
    assert (t.segments[~t.generated] == Segment.TOOL_RESPONSE).any()
    assert t.answer == "Oslo is it" and len(token_statistics([t]))


def test_several_observations_and_parallel_ones(foreign, tmp_path):
    two = "<information>A</information>"
    row = {"input": "Q", "output": f"a{CALL}{two}{two} \n b{CALL}{two}{END}", "score": 1}
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), foreign)
    assert [r.text for r in t.tool_results] == ["A\nA", "A"]
    assert [status for *_, status in find_responses(t)] == ["ok", "ok"]


def test_turns_of_users_in_an_output_are_not_sampled(foreign, tmp_path):
    turns = (
        "A<|im_end|>\n<|im_start|>user\nMore?<|im_end|>\n<|im_start|>assistant\nB",
        "A<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nMore?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nB",
        "A<end_of_turn>\n<start_of_turn>user\nMore?<end_of_turn>\n<start_of_turn>model\nB",
    )
    for output in turns:
        path = write_lines(tmp_path / "a.jsonl", [{"input": "Q", "output": output, "score": 1}])
        (t,) = read_rollouts(path, foreign)
        assert foreign.decode(t.token_ids[t.generated]) == "AB"
        assert not t.tool_results and not find_responses(t)


@pytest.mark.parametrize(
    "cut",
    [
        f"{CALL}\n<information>Doc 1",
        "<tool_call>{}</tool_call>\nuser\n<tool_response>\nDoc 1",
        "<code>1</code><interpreter>Doc 1",
        "A<|im_end|>\n<|im_start|>tool\nDoc 1",
    ],
)
def test_observations_that_a_limit_has_cut_are_not_sampled(foreign, tmp_path, cut):
    path = write_lines(tmp_path / "a.jsonl", [{"input": "Q", "output": f"a{cut}", "score": 0}])
    (t,) = read_rollouts(path, foreign)
    assert "Doc 1" not in foreign.decode(t.token_ids[t.generated])


def test_long_outputs_are_split_fast():
    for text in (" \n" * 20_000, "<|im_end|>\n" * 5_000, "</code>" + " " * 20_000):
        start = time.perf_counter()
        split_observations(f"a{text}<information>x</information>b")
        assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    "text",
    [
        "I write <result>4</result> as the result",
        "<answer><output>4</output></answer>",
        "the tag <information> is never closed",
        "```python\nprint(1)\n```\nand ```sh\nls\n```",
        "a user\nand a tool\nin two lines",
    ],
)
def test_texts_of_the_policy_are_not_observations(text):
    assert split_observations(text) == [text]


def test_observations_in_one_message_of_a_chat(tokenizer, tmp_path):
    said = f"Hm. {CALL}<information>Doc 1</information>{END}"
    rows = [
        {"messages": [USER, {"role": "assistant", "content": said}]},
        {"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": said}]},
        {"prompt": [USER], "completion": [{"role": "assistant", "content": said}], "reward": 1},
        {"prompt": "Q", "completion": said, "reward": 1},
        {"step": 1, "prompt": "Q", "completion": said, "advantage": 0.5},
    ]
    for row in rows:
        (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
        sampled = tokenizer.decode(t.token_ids[t.generated])
        assert "Doc 1" not in sampled and sampled.endswith(END), row
        assert [r.text for r in t.tool_results] == ["Doc 1"]
        assert [status for *_, status in find_responses(t)] == ["ok"]


@pytest.mark.parametrize("tag", ["retrieved_docs", "env_output", "evidence", "my_observation"])
def test_tags_that_look_like_observations_are_reported(foreign, tmp_path, tag):
    output = f"a<call>x</call><{tag}>Doc</{tag}>{END}"
    rows = [{"input": "Q", "output": output, "score": 1}] * 2
    path = write_lines(tmp_path / "a.jsonl", rows)
    with pytest.warns(UserWarning, match=f"<{tag}> .2."):
        list(read_rollouts(path, foreign))
    # no warning if the file has observations
    rows[0] = {"input": "Q", "output": f"a{OBSERVED['information']}{END}", "score": 1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(read_rollouts(write_lines(tmp_path / "b.jsonl", rows), foreign))


def test_masks_without_an_observation_are_reported(foreign, tmp_path):
    ids = foreign.encode(f"a{CALL}<information>Doc</information>{END}")
    path = write_lines(tmp_path / "a.jsonl", [{"prompt_ids": [5], "response_ids": ids}])
    with pytest.warns(UserWarning, match="<information>"):
        list(read_rollouts(path, foreign))


def test_examples_in_a_prompt_are_not_sampled(tokenizer, tmp_path):
    prompt = [USER, {"role": "assistant", "content": "an example"}, USER]
    for row in (
        {"prompt": prompt, "completion": [SAID], "reward": 1.0},
        {"step": 1, "prompt": prompt, "completion": [SAID], "advantage": 0.1},
    ):
        (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
        assert tokenizer.decode(t.token_ids[t.generated]) == "hm"
        assert "an example" in tokenizer.decode(t.token_ids)
