"""Reading rollouts of other programs: the tour's trajectories written in each format and read back.

Committed trajectories are written in the format of each program and read again. Ids, segments,
tool statuses and answers must equal the originals. TRL writes its file itself; the tour's policy
scores what was read. A byte-level tokenizer without drlib's tags represents other tokenizers.

Run: python -m pytest tests/test_analysis_inputs.py
"""

import copy
import json

import numpy as np
import pandas as pd
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from drlib.analysis.chat_messages import extract_tool_results
from drlib.analysis.inputs import read_rollouts
from drlib.analysis.rescoring import rescore
from drlib.analysis.token_table import find_responses, judge_outcome, token_statistics
from drlib.chat.segments import segment_texts, token_texts
from drlib.chat.template import load_tokenizer
from drlib.chat.tool_calls import END
from drlib.models.moe import load_policy
from drlib.trajectory import Segment, Termination, load_trajectories
from tests.test_layout import ROOT

TOUR = ROOT / "figures" / "reference" / "tour"
FILES = ("sft_sampled", "sft_greedy", "rl_sampled", "rl_greedy")
P, T, C, R, A, X = (
    Segment.PROMPT,
    Segment.THINK,
    Segment.TOOL_CALL,
    Segment.TOOL_RESPONSE,
    Segment.ANSWER,
    Segment.TEMPLATE,
)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(TOUR / "policy_rl")


@pytest.fixture(scope="module")
def tour():
    return {name: load_trajectories(TOUR / f"{name}.parquet") for name in FILES}


@pytest.fixture(scope="module")
def foreign():
    """Return a byte-level BPE like most models have: without drlib's tags or a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(["the search for the answer of the question"] * 9, trainer)
    tokenizer.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def statuses(trajectory):
    return [
        (r.ok, "empty" if r.error == "empty" else bool(r.error)) for r in trajectory.tool_results
    ]


def runs(trajectory):
    """Return (ids, sampled) of the prompt, each turn and each observation."""
    edges = np.flatnonzero(np.diff(trajectory.generated)) + 1
    ids = [part.tolist() for part in np.split(trajectory.token_ids, edges)]
    return list(zip(ids, (i % 2 == 1 for i in range(len(ids)))))


# ---------------------------------------------------------------- segments


@pytest.mark.parametrize("name", FILES)
def test_segments_from_text_equal_segments_from_ids(tour, tokenizer, name):
    for t in tour[name]:
        found = segment_texts(token_texts(tokenizer, t.token_ids), t.generated)
        assert found.dtype == np.uint8
        np.testing.assert_array_equal(found, t.segments, err_msg=t.id)


def test_segments_do_not_depend_on_the_tokenization(tour):
    t = tour["sft_sampled"][0]
    text = "".join(token_texts(load_tokenizer(TOUR / "policy_rl"), t.token_ids))
    whole = segment_texts(list(text), np.ones(len(text), bool))
    for size in (2, 3, 7):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        np.testing.assert_array_equal(segment_texts(pieces, np.ones(len(pieces))), whole[::size])


def test_segments_of_text_with_chat_markers():
    """Tags inside an open tag are ignored; only assistant turns think, call and answer."""
    start = "<|im_start|>"
    pieces = [
        (start + "system\n", X),
        ("Be good.", P),
        ("<|im_end|>\n", X),
        (start + "user\n", X),
        ("Who", P),
        ("<answer>", X),
        ("I?", P),
        ("</answer>", X),
        ("<|im_end|>", X),
        (start + "assistant\n", X),
        ("<think>", X),
        ("Hm", T),
        ("<answer>", X),
        ("no", T),
        ("</think>", X),
        ("so", T),
        ("<tool_call>", X),
        ("{}", C),
        ("</tool_call>", X),
        ("<|im_end|>\n", X),
        (start + "tool\n", X),
        ("found", R),
        ("<|im_end|>\n", X),
        (start + "user\n", X),
        ("<tool_response>", X),
        ("<think>", X),
        ("more", R),
        ("</tool_response>", X),
        ("<|im_end|>", X),
        (start + "assistant\n", X),
        ("<answer>", X),
        ("you", A),
        ("</answer>", X),
        ("<report>", X),
        ("all", Segment.REPORT),
    ]
    texts, expected = zip(*pieces)
    assert segment_texts(texts, np.zeros(len(texts), bool)).tolist() == list(expected)
    letters = [(c, segment) for text, segment in pieces for c in text]
    found = segment_texts([c for c, _ in letters], np.ones(len(letters), bool))
    assert found.tolist() == [segment for _, segment in letters]


def test_without_markers_sampled_text_is_the_assistants():
    pieces = ["user", " ask", "I", " think", "<tool", "_call", ">", "c", "obs", "<answer>", "x", ""]
    sampled = np.array([0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1], bool)
    # an unclosed call ends at the next unsampled token
    expected = [P, P, T, T, X, X, X, C, R, X, A]
    assert segment_texts(pieces, sampled)[:-1].tolist() == expected
    assert segment_texts([], np.zeros(0, bool)).shape == (0,)


# ---------------------------------------------------------------- messages and Tongyi


def tongyi_row(t, **more):
    return {
        "question": t.metadata["question"],
        "answer": t.metadata["right_answer"],
        "messages": t.messages,
        "prediction": t.answer or "No answer found.",
        "termination": {"answered": "answer", "turns": "exceed available llm calls"}.get(
            t.termination, str(t.termination)
        ),
        **more,
    }


@pytest.mark.parametrize("name", FILES)
def test_tongyi_files_round_trip(tour, tokenizer, tmp_path, name):
    """Most rows have the ids of their text. The others sampled their own end token, or split the
    same text into other pieces than the tokenizer does.
    """
    path = write_lines(tmp_path / "iter1.jsonl", [tongyi_row(t) for t in tour[name]])
    back = list(read_rollouts(path, TOUR / "policy_rl"))
    equal = 0
    for t, b in zip(tour[name], back, strict=True):
        assert (b.answer, b.termination, statuses(b)) == (t.answer, t.termination, statuses(t))
        assert [s for *_, s in find_responses(b)] == [s for *_, s in find_responses(t)]
        for r, s in zip(t.tool_results, b.tool_results, strict=True):
            assert (s.tool, s.arguments, s.text) == (r.tool, r.arguments, r.text)
        assert b.metadata["question"] == t.metadata["question"]
        assert b.metadata["right_answer"] == t.metadata["right_answer"]
        assert b.entropies is None and np.isnan(b.logprobs[b.generated]).all()
        if np.array_equal(b.token_ids, t.token_ids):
            equal += 1
            np.testing.assert_array_equal(b.segments, t.segments)
            ends = t.token_ids == tokenizer.convert_tokens_to_ids(END)
            np.testing.assert_array_equal((b.generated == t.generated) | ends, True)
        else:
            texts = [tokenizer.decode(x.token_ids).replace(END, "") for x in (t, b)]
            assert texts[0] == texts[1]
    assert equal >= 40, equal
    assert [b.id for b in back[:2]] == ["iter1-1", "iter1-2"]


def test_imported_rollouts_can_be_rescored(tour, tmp_path):
    model, tokenizer = load_policy(TOUR / "policy_rl")
    path = write_lines(tmp_path / "iter1.jsonl", [tongyi_row(t) for t in tour["rl_sampled"][:8]])
    read = list(rescore(model, read_rollouts(path, tokenizer)))
    for t, b in zip(list(rescore(model, tour["rl_sampled"][:8])), read, strict=True):
        np.testing.assert_array_equal(b.token_ids, t.token_ids)
        np.testing.assert_array_equal(b.entropies, t.entropies)
    table = token_statistics(read_rollouts(path, tokenizer))
    assert table.right_M.tolist() == [judge_outcome(t) for t in tour["rl_sampled"][:8]]


def test_parquet_and_jsonl_messages_read_alike(tour, tokenizer, tmp_path):
    rows = [{"messages": t.messages, "reward": 1.0} for t in tour["rl_greedy"][:5]]
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    a = list(read_rollouts(tmp_path / "a.parquet", tokenizer))
    b = list(read_rollouts(write_lines(tmp_path / "a.jsonl", rows), tokenizer))
    assert a == b and len(a) == 5 and a[0].reward == 1.0


def test_openai_messages_with_reasoning_calls_and_flags(tokenizer, tmp_path):
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "search", "arguments": '{"query": ["Malawi"]}'},
    }
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Which code?"}]},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Look.",
                "tool_calls": [call],
            },
            {"role": "tool", "tool_call_id": "c1", "name": "search", "content": "it", "ok": False},
            {"role": "assistant", "content": "<answer>MWK</answer>", "tool_calls": None},
            {"role": "user", "content": "Thank you, never answered to."},
        ],
        "score": True,
        "id": "own",
        "termination": "a word that nobody knows",
    }
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
    turn = '<think>Look.</think><tool_call>{"name": "search", "arguments": {"query": ["Malawi"]}}'
    assert t.messages[1]["content"] == turn + "</tool_call>"
    (result,) = t.tool_results
    assert (result.tool, result.arguments, result.ok) == ("search", {"query": ["Malawi"]}, False)
    assert (t.answer, t.reward, t.termination) == ("MWK", 1.0, Termination.ANSWERED)
    assert t.metadata["termination"] == "a word that nobody knows" and t.metadata["id"] == "own"
    text = "".join(token_texts(tokenizer, t.token_ids))
    assert text.endswith("<|im_start|>assistant\n<answer>MWK</answer>")
    assert np.unique(t.turns[t.generated]).tolist() == [0, 1]


@pytest.mark.parametrize(
    "message, ok, error",
    [
        ({"content": "Finland. No Error here, KeyErrors neither"}, True, None),
        ({"content": "Errors and how to avoid them"}, True, None),
        ({"content": "Error: query must be a list"}, False, "error"),
        ({"content": "KeyError: 'x'"}, False, "error"),
        ({"content": "json.decoder.JSONDecodeError: no"}, False, "error"),
        ({"content": "[Python Interpreter Error]: Formatting error."}, False, "error"),
        ({"content": "Traceback (most recent call last):\n"}, False, "error"),
        ({"content": "{'error': 'no such tool'}"}, False, "error"),  # TRL's str of a failed call
        ({"content": " \n"}, False, "empty"),
        ({"content": "No results found for 'x'."}, False, "empty"),
        ({"content": "Error 404, a page about it", "ok": True}, True, None),
        ({"content": "fine", "is_error": True}, False, "error"),
        ({"content": "fine", "isError": False}, True, None),
        ({"content": "fine", "status": "error"}, False, "error"),
        ({"content": "fine", "error": "timeout"}, False, "timeout"),
    ],
)
def test_tool_result_status_is_recognised(message, ok, error):
    said = '<tool_call>{"name": "visit", "arguments": {"url": "a"}}</tool_call>'
    tool = {"role": "tool"} | message
    (result,) = extract_tool_results([{"role": "assistant", "content": said}, tool])
    assert (result.tool, result.ok, result.error) == ("visit", ok, error)


def test_parallel_responses_merge_and_format_errors_are_marked():
    both = "<tool_response>\none\n</tool_response>\n<tool_response>\nError\n</tool_response>"
    calls = '<tool_call>{"name": "a", "arguments": {}}</tool_call>' * 2
    conversation = [
        ("user", "<tool_response>not one</tool_response>"),
        ("assistant", calls),
        ("user", both),
        ("assistant", "<tool_call>{"),
        ("tool", "Error: not JSON"),
        ("assistant", "I ask you"),
        ("user", "a person's words"),
    ]
    first, second = extract_tool_results(
        [{"role": role, "content": said} for role, said in conversation]
    )
    assert (first.tool, first.text, first.ok) == ("a", "one\nError", False)
    assert (second.tool, second.error) == ("format", "format")


def test_template_without_markers_separates_tool_and_user_turns(foreign, tmp_path):
    """Llama's format: its own markers contain the role names, and tool text is not in tags."""
    foreign = copy.deepcopy(foreign)
    foreign.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    )
    call = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'
    for role, between in (("tool", Segment.TOOL_RESPONSE), ("user", Segment.PROMPT)):
        said = [("user", "Q"), ("assistant", call), (role, "Error: R"), ("assistant", "So")]
        row = {"messages": [{"role": role, "content": content} for role, content in said]}
        (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), foreign)
        texts = token_texts(foreign, t.token_ids)
        assert "".join(texts) == f"[user]Q[assistant]{call}[{role}]Error: R[assistant]So"
        later = ~t.generated & (t.turns > 0)
        assert set(t.segments[later]) == {between} and "".join(texts[later]).count("R") == 1
        assert [status for *_, status in find_responses(t)] == ["error"] * (role == "tool")
    said = [
        ("user", "Q"),
        ("assistant", call),
        ("tool", "Error: R"),
        ("assistant", "So"),
        ("user", "And?"),
        ("assistant", call),
        ("tool", "found"),
        ("assistant", "End"),
    ]
    row = {"messages": [{"role": role, "content": content} for role, content in said]}
    (t,) = read_rollouts(write_lines(tmp_path / "b.jsonl", [row]), foreign)
    found = find_responses(t)
    assert [status for *_, status in found] == ["error", "ok"]
    texts = token_texts(foreign, t.token_ids)
    assert ["".join(texts[a:b]) for a, b, _ in found] == [
        "[tool]Error: R[assistant]",
        "[tool]found[assistant]",
    ]


@pytest.mark.parametrize(
    "prediction, word, answer, end",
    [
        ("MWK", "answer", "MWK", Termination.ANSWERED),  # without a tag in the text
        ("No answer found.", "answer not found", None, Termination.FORMAT),
        (
            "No answer found after 2h30mins",
            "No answer found after 2h30mins",
            None,
            Termination.WALL_CLOCK,
        ),
        (
            "a turn",
            "format error: generate an answer as token limit reached",
            None,
            Termination.LENGTH,
        ),
        ("MWK", "generate an answer as token limit reached", "MWK", Termination.ANSWERED),
        ("No answer found.", "exceed available llm calls", None, Termination.TURNS),
    ],
)
def test_tongyi_termination_reasons(tokenizer, tmp_path, prediction, word, answer, end):
    row = {
        "question": "q",
        "prediction": prediction,
        "termination": word,
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "hm"}],
    }
    (t,) = read_rollouts(write_lines(tmp_path / "iter1.jsonl", [row]), tokenizer)
    assert (t.answer, t.termination, t.metadata["termination"]) == (answer, end, word)


def test_failed_tongyi_rows_are_skipped_with_a_warning(tour, tokenizer, tmp_path):
    failed = {
        "question": "q",
        "answer": "a",
        "error": "Timeout (>1800s)",
        "messages": [],
        "prediction": "[Failed]",
    }
    path = write_lines(tmp_path / "iter1.jsonl", [failed, tongyi_row(tour["rl_greedy"][0])])
    with pytest.warns(UserWarning, match="Timeout"):
        (t,) = read_rollouts(path, tokenizer)
    assert t.id == "iter1-2"
