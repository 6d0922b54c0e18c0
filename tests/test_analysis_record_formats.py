"""Records of Harbor (ATIF), verifiers and ShareGPT are read as rollouts.

Run: python -m pytest tests/test_analysis_record_formats.py
"""

import copy
import json

import numpy as np
import pandas as pd
import pytest

from drlib.analysis.inputs import read_rollouts
from drlib.analysis.report import write_report
from drlib.analysis.token_table import find_responses, judge_outcome, token_statistics
from drlib.chat.segments import find_gaps
from drlib.chat.tool_calls import ToolCall, parse
from drlib.trajectory import Termination
from tests.test_analysis_inputs import (
    TOUR,
    tokenizer,  # noqa: F401 - a fixture
    tour,  # noqa: F401 - a fixture
    write_lines,
)

TOOL = {"name": "search", "description": "d", "parameters": {"type": "object", "properties": {}}}


def read(path, rows, tokenizer):
    return list(read_rollouts(write_lines(path / "a.jsonl", rows), tokenizer))


def assert_is_search(t):
    """Check the rollout that every record of this file describes."""
    assert parse(t.messages[-3]["content"]) == ToolCall("search", {"q": "Malawi"})
    assert "Look." in t.messages[-3]["content"]
    assert [(r.tool, r.text, r.ok) for r in t.tool_results] == [("search", "found it", True)]
    assert [status for *_, status in find_responses(t)] == ["ok"]
    assert t.answer == "MWK" and t.metadata["question"] == "Which code?"
    assert np.unique(t.turns[t.generated]).tolist() == [0, 1]


# ---------------------------------------------------------------- ATIF

ATIF = {
    "schema_version": "ATIF-v1.7",
    "session_id": "s-1",
    "agent": {
        "name": "terminus",
        "version": "2",
        "model_name": "m",
        "tool_definitions": [{"type": "function", "function": TOOL}],
    },
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be good."},
        {"step_id": 2, "source": "user", "message": "Which code?", "timestamp": "2026-01-01"},
        {
            "step_id": 3,
            "source": "agent",
            "model_name": "m",
            "message": "",
            "reasoning_content": "Look.",
            "tool_calls": [
                {"tool_call_id": "c", "function_name": "search", "arguments": {"q": "Malawi"}}
            ],
            "observation": {"results": [{"source_call_id": "c", "content": "found it"}]},
            "metrics": {"prompt_tokens": 5, "completion_tokens": 2, "cost_usd": 0.1},
        },
        {"step_id": 4, "source": "agent", "message": "<answer>MWK</answer>"},
    ],
    "final_metrics": {"total_steps": 4},
}


def test_atif_trajectories(tokenizer, tmp_path):
    (t,) = read(tmp_path, [ATIF], tokenizer)
    assert_is_search(t)
    assert t.metadata["session_id"] == "s-1"
    assert '"search"' in tokenizer.decode(t.token_ids[~t.generated])  # the tools in the prompt
    (tmp_path / "trajectory.json").write_text(json.dumps(ATIF, indent=2))
    (again,) = read_rollouts(tmp_path / "trajectory.json", tokenizer)
    np.testing.assert_array_equal(again.token_ids, t.token_ids)


def test_atif_contents_of_later_versions(tokenizer, tmp_path):
    row = copy.deepcopy(ATIF) | {"schema_version": "ATIF-v1.8"}
    row["steps"][1]["message"] = [{"type": "text", "text": "Which code?"}]
    row["steps"][2]["observation"]["results"] = [
        {"source_call_id": "c", "content": [{"type": "text", "text": "found it"}]}
    ]
    (t,) = read(tmp_path, [row], tokenizer)
    assert_is_search(t)
    row["steps"][1]["message"] = [{"type": "image", "source": {"path": "a.png"}}]
    with pytest.raises(ValueError, match="row 1 .*content.0.*image"):
        read(tmp_path, [row], tokenizer)


def test_atif_steps_that_the_model_did_not_sample(tokenizer, tmp_path):
    row = copy.deepcopy(ATIF)
    copied = {"source": "agent", "message": "from before", "is_copied_context": True}
    dispatch = {
        "source": "agent",
        "message": "dispatched",
        "llm_call_count": 0,
        "observation": {"results": [{"content": "done"}]},
    }
    row["steps"][2:2] = [copied, dispatch]
    (t,) = read(tmp_path, [row], tokenizer)
    sampled = tokenizer.decode(t.token_ids[t.generated])
    assert "from before" not in sampled and "dispatched" not in sampled
    assert "from before" in tokenizer.decode(t.token_ids)
    assert_is_search(t)


def test_atif_keeps_token_ids_and_logprobs(tour, tokenizer, tmp_path):
    t = next(t for t in tour["sft_sampled"] if len(find_gaps(t.generated)) == 1 and t.answer)
    ((start, end),) = find_gaps(t.generated)
    first, ids = int(np.flatnonzero(t.generated)[0]), t.token_ids.tolist()
    last = int(np.flatnonzero(t.generated)[-1]) + 1
    row = copy.deepcopy(ATIF)
    for step, a, b in ((row["steps"][2], first, start), (row["steps"][3], end, last)):
        step["metrics"] = {
            "prompt_token_ids": ids[:a],
            "completion_token_ids": ids[a:b],
            "logprobs": t.logprobs[a:b].tolist(),
        }
    (found,) = read(tmp_path, [row], tokenizer)
    np.testing.assert_array_equal(found.token_ids, t.token_ids[:last])
    np.testing.assert_array_equal(found.generated, t.generated[:last])
    np.testing.assert_array_equal(found.logprobs, t.logprobs[:last])
    # an edited context: the sampled ids are kept, the context is rendered
    row["steps"][3]["metrics"]["prompt_token_ids"] = ids[:3]
    (edited,) = read(tmp_path, [row], tokenizer)
    np.testing.assert_array_equal(
        edited.token_ids[edited.generated], t.token_ids[:last][t.generated[:last]]
    )
    np.testing.assert_array_equal(
        edited.logprobs[edited.generated], t.logprobs[:last][t.generated[:last]]
    )
    row["steps"][2]["metrics"]["completion_token_ids"][0] = 99999
    with pytest.raises(ValueError, match="tokenizer of the model"):
        read(tmp_path, [row], tokenizer)


def test_atif_fields_that_are_not_read_are_counted(tokenizer, tmp_path):
    row = copy.deepcopy(ATIF) | {"subagent_trajectories": [ATIF], "extra": {"a": 1}}
    row["steps"][3] |= {"extra": {"b": 2}, "metrics": {"logprobs": [-0.5], "extra": {"c": 3}}}
    with pytest.warns(UserWarning) as found:
        read(tmp_path, [row, row], tokenizer)
    (warning,) = found
    for name in ("subagent_trajectories (2)", "step.extra (2)", "metrics.extra (2)", "logprobs"):
        assert name in str(warning.message)


def test_atif_faults_name_the_step(tokenizer, tmp_path):
    for i, step, said in (
        (2, {"source": "robot", "message": "x"}, r"steps\[2\].source"),
        (1, None, r"steps\[1\]"),
        (3, {"message": "x"}, r"steps\[3\].source"),
    ):
        row = copy.deepcopy(ATIF)
        row["steps"][i] = step
        with pytest.raises(ValueError, match=f"row 1 .*{said}"):
            read(tmp_path, [row], tokenizer)
    row = copy.deepcopy(ATIF)
    row["steps"][2]["tool_calls"][0]["arguments"] = '{"q": "Mal'
    (t,) = read(tmp_path, [row], tokenizer)
    assert [r.error for r in t.tool_results] == ["format"]


# ---------------------------------------------------------------- verifiers

CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "search", "arguments": '{"q":"Malawi"}'},
}
PROMPT = [{"role": "system", "content": "Be good."}, {"role": "user", "content": "Which code?"}]
COMPLETION = [
    # results.jsonl has calls as JSON text
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Look.",
        "tool_calls": [json.dumps(CALL)],
    },
    {"role": "tool", "tool_call_id": "c", "content": "found it"},
    {"role": "assistant", "content": "<answer>MWK</answer>"},
]
VERIFIERS = {
    "example_id": 3,
    "prompt": PROMPT,
    "completion": COMPLETION,
    "answer": "MWK",
    "task": "default",
    "info": {"level": 2},
    "reward": 1.0,
    "metrics": {"exact_match": 1.0, "num_turns": 2},
    "exact_match": 1.0,
    "is_completed": True,
    "is_truncated": False,
    "stop_condition": "no_tools_called",
    "timing": {"total_ms": 3.0},
    "tool_defs": [TOOL],
    "error": None,
}


def test_verifiers_results(tokenizer, tmp_path):
    (t,) = read(tmp_path, [VERIFIERS], tokenizer)
    assert_is_search(t)
    assert t.reward == 1.0 and t.reward_parts == {"exact_match": 1.0, "num_turns": 2}
    assert t.metadata["right_answer"] == "MWK" and judge_outcome(t) == 1
    assert t.metadata["info"] == {"level": 2} and t.metadata["example_id"] == 3
    assert '"search"' in tokenizer.decode(t.token_ids[~t.generated])


def test_verifiers_results_in_other_shapes(tokenizer, tmp_path):
    flat = {"id": "c", "name": "search", "arguments": '{"q":"Malawi"}'}
    turns = [
        COMPLETION[0] | {"tool_calls": calls} for calls in ([CALL], [flat], [json.dumps(flat)])
    ]
    rows = [VERIFIERS | {"completion": [turn, *COMPLETION[1:]]} for turn in turns]
    rows.append(VERIFIERS | {"info": json.dumps({"level": 2}), "prompt": json.dumps(PROMPT)})
    rows.append({k: VERIFIERS[k] for k in ("prompt", "completion")})
    for t in read(tmp_path, rows, tokenizer):
        assert_is_search(t)
    table = [{k: v for k, v in row.items() if k != "tool_defs"} for row in rows[:2]]
    pd.DataFrame(table).to_parquet(tmp_path / "a.parquet")
    for t in read_rollouts(tmp_path / "a.parquet", tokenizer):
        assert_is_search(t)


def test_verifiers_text_completions(tokenizer, tmp_path):
    said = "hm <answer>MWK</answer>"
    texts = [{"role": "text", "content": "Q: code?\n"}], [{"role": "text", "content": said}]
    rows = [
        VERIFIERS | {"prompt": "Q: code?\n", "completion": said},
        VERIFIERS | {"prompt": texts[0], "completion": texts[1]},
        VERIFIERS | {"prompt": "Q: code?\n", "completion": said, "metrics": None, "info": {}},
    ]
    for t in read(tmp_path, rows, tokenizer):
        assert tokenizer.decode(t.token_ids) == "Q: code?\n" + said
        assert tokenizer.decode(t.token_ids[t.generated]) == said and t.answer == "MWK"
        assert t.reward == 1.0


@pytest.mark.parametrize(
    "fields, end",
    [
        ({"stop_condition": "max_turns_reached"}, Termination.TURNS),
        ({"stop_condition": "prompt_too_long"}, Termination.LENGTH),
        ({"stop_condition": "timeout_reached"}, Termination.WALL_CLOCK),
        ({"stop_condition": None, "is_truncated": True}, Termination.LENGTH),
        ({"stop_condition": "has_error", "error": {"error": "E"}}, Termination.ENV_FAULT),
    ],
)
def test_verifiers_stop_conditions(tokenizer, tmp_path, fields, end):
    (t,) = read(tmp_path, [VERIFIERS | fields], tokenizer)
    assert t.termination == end


def test_failed_verifiers_rollouts_are_counted(tokenizer, tmp_path):
    failed = [
        VERIFIERS | {"completion": None, "error": {"error": "ModelError", "message": "too long"}},
        VERIFIERS | {"completion": [], "error": "too long"},
        VERIFIERS | {"completion": "", "prompt": "Q", "error": "too long"},
    ]
    with pytest.warns(UserWarning, match="3 rollouts skipped.*too long"):
        (t,) = read(tmp_path, [*failed, VERIFIERS], tokenizer)
    assert t.id == "a-4"


def test_verifiers_trajectories_keep_token_ids(tokenizer, tmp_path):
    steps = [
        {"tokens": {"prompt_ids": [5, 6], "completion_ids": [15], "completion_logprobs": [-0.5]}},
        {"tokens": {"prompt_ids": [5, 6, 15, 7, 8], "completion_ids": [16, 17]}},
    ]
    (t,) = read(tmp_path, [VERIFIERS | {"trajectory": steps}], tokenizer)
    assert t.token_ids.tolist() == [5, 6, 15, 7, 8, 16, 17]
    assert t.generated.tolist() == [False, False, True, False, False, True, True]
    assert t.logprobs[2] == -0.5 and np.isnan(t.logprobs[5:]).all()


def build_node(message, parent, **fields):
    sampled = message["role"] == "assistant"
    return {"message": message, "parent": parent, "sampled": sampled, "timestamp": 1.0, **fields}


def build_episode(nodes, **fields):
    trace = {
        "version": 1,
        "id": "t1",
        "nodes": nodes,
        "rewards": {"exact": {"score": 1.0, "weight": 0.5}, "other": None},
        "stop_condition": "max_turns",
        "tools": [TOOL],
        **fields,
    }
    data = {"idx": 0, "prompt": "Which code?", "answer": "MWK"}
    return {"id": "e", "task": {"type": "T", "data": data}, "ok": True, "traces": [trace]}


def test_verifiers_traces_as_text(tokenizer, tmp_path):
    nodes = [build_node(m, n - 1 if n else None) for n, m in enumerate([*PROMPT, *COMPLETION])]
    other = {"role": "assistant", "content": "another branch"}
    rows = [build_episode(nodes), build_episode([*nodes, build_node(other, 1)])]
    first, second, third = read(tmp_path, rows, tokenizer)
    for t in (first, second):
        assert_is_search(t)
        assert t.reward == 0.5 and t.reward_parts == {"exact": 1.0}
        assert t.metadata["right_answer"] == "MWK" and t.termination == Termination.TURNS
    assert third.messages[-1]["content"] == "another branch" and third.id == "a-2-1"


def test_verifiers_traces_with_token_ids(tokenizer, tmp_path):
    ids = [[5, 6], [7], [8, 15, 16], [9], [10, 17]]
    masks = [[0, 0], [0], [0, 1, 1], [0], [0, 1]]
    nodes = [
        build_node(
            message,
            n - 1 if n else None,
            token_ids=ids[n],
            mask=[bool(one) for one in masks[n]],
            logprobs=[-0.5] * sum(masks[n]),
        )
        for n, message in enumerate([*PROMPT, *COMPLETION])
    ]
    (t,) = read(tmp_path, [build_episode(nodes)], tokenizer)
    assert t.token_ids.tolist() == sum(ids, []) and t.generated.astype(int).tolist() == sum(
        masks, []
    )
    assert (t.logprobs[t.generated] == -0.5).all() and t.answer == "MWK"
    assert len(token_statistics([t])) == 3


def test_failed_verifiers_traces_are_counted(tokenizer, tmp_path):
    nodes = [build_node(m, n - 1 if n else None) for n, m in enumerate([*PROMPT, *COMPLETION])]
    failed = [
        build_episode([], errors=[{"type": "E", "message": "too long"}]),
        build_episode(nodes[:2]),
    ]
    with pytest.warns(UserWarning, match="2 rollouts skipped"):
        (t,) = read(tmp_path, [*failed, build_episode(nodes)], tokenizer)
    assert_is_search(t)


# ---------------------------------------------------------------- ShareGPT

CALL_TEXT = '{"name": "search", "arguments": {"q": "Malawi"}}'
SHAREGPT = {
    "conversations": [
        {"from": "human", "value": "Which code?"},
        {"from": "gpt", "value": "Look."},
        {"from": "function_call", "value": CALL_TEXT},
        {"from": "observation", "value": "found it"},
        {"from": "gpt", "value": "<answer>MWK</answer>"},
    ],
    "system": "Be good.",
    "tools": json.dumps([TOOL]),
}


def replace_turns(*turns):
    human, *_, last = SHAREGPT["conversations"]
    return SHAREGPT | {"conversations": [human, *turns, last]}


OBSERVED = {"from": "observation", "value": "found it"}


@pytest.mark.parametrize(
    "row",
    [
        SHAREGPT,
        replace_turns(
            {"from": "function_call", "value": f"<think>Look.</think>{CALL_TEXT}"}, OBSERVED
        ),
        replace_turns(
            {"from": "gpt", "value": f"Look.<tool_call>{CALL_TEXT}</tool_call>"},
            {"from": "tool", "value": "found it"},
        ),
        replace_turns(
            {"from": "gpt", "value": "Look."},
            {"from": "function_call", "value": f"[{CALL_TEXT}]"},
            {"from": "function_response", "value": "found it"},
        ),
        replace_turns(
            {"role": "assistant", "content": f"Look.<tool_call>{CALL_TEXT}</tool_call>"},
            {"role": "tool", "content": "found it"},
        ),
        SHAREGPT | {"conversations": json.dumps(SHAREGPT["conversations"]), "tools": ""},
        SHAREGPT | {"conversations": [None, *SHAREGPT["conversations"]], "system": None},
    ],
)
def test_sharegpt_conversations(tokenizer, tmp_path, row):
    (t,) = read(tmp_path, [row], tokenizer)
    assert_is_search(t)
    (tmp_path / "data.json").write_text(json.dumps([row, row], indent=2))
    assert len(list(read_rollouts(tmp_path / "data.json", tokenizer))) == 2


def test_malformed_sharegpt_calls_are_format_errors(tokenizer, tmp_path):
    for value in ('{"name": "search", "argum', "", None, '{"name": "search", "arguments": []}'):
        row = replace_turns({"from": "function_call", "value": value}, OBSERVED)
        (t,) = read(tmp_path, [row], tokenizer)
        assert [r.error for r in t.tool_results] == ["format"], value


def test_sharegpt_faults_name_the_turn(tokenizer, tmp_path):
    for turn, said in (
        ({"from": "narrator", "value": "x"}, "narrator"),
        ("x", "'x'"),
        ({}, "None"),
    ):
        with pytest.raises(ValueError, match=rf"row 1 .*conversations\[1\].*{said}"):
            read(tmp_path, [replace_turns(turn)], tokenizer)


def test_report_reads_all_records(tokenizer, tmp_path):
    for n, row in enumerate((ATIF, VERIFIERS, SHAREGPT)):
        path = write_lines(tmp_path / f"{n}.jsonl", [row])
        page = write_report(tmp_path / "r.html", [path], TOUR / "policy_rl")
        assert "1 trajectories" in page.read_text(encoding="utf-8")
