"""Trajectories as ATIF: the format's rules, and reading the files back.

Run: python -m pytest tests/test_analysis_atif.py
"""

import json
from dataclasses import replace

import numpy as np
import pytest

from drlib.analysis.atif import to_atif, write_atif
from drlib.analysis.inputs import read_rollouts
from drlib.analysis.reading_notes import ReadingNotes
from drlib.chat.words import WordTokenizer
from drlib.cli import main
from drlib.files import append_json_line, read_json_lines
from drlib.trajectory import load_trajectories, save_trajectories
from tests.test_analysis_inputs import (
    TOUR,
    tokenizer,  # noqa: F401 - a fixture
)

AGENT_ONLY = {"model_name", "reasoning_effort", "reasoning_content", "tool_calls", "metrics"}


@pytest.fixture(scope="module")
def rollouts():
    return load_trajectories(f"{TOUR}/sft_sampled.parquet")


def assert_valid(document):
    """Check the rules of Harbor's validator: ids in order, sources, calls of the same step."""
    assert {*document} <= {
        "schema_version",
        "session_id",
        "agent",
        "steps",
        "final_metrics",
        "extra",
    }
    assert document["schema_version"] == "ATIF-v1.6" and document["steps"]
    assert {"name", "version"} <= document["agent"].keys()
    assert document["final_metrics"]["total_steps"] == len(document["steps"])
    for number, step in enumerate(document["steps"], 1):
        assert step["step_id"] == number and isinstance(step["message"], str)
        assert step["source"] in ("system", "user", "agent")
        assert step["source"] == "agent" or not AGENT_ONLY & step.keys()
        calls = step.get("tool_calls", [])
        ids = [call["tool_call_id"] for call in calls]
        assert len({*ids}) == len(ids)
        for call in calls:
            assert {*call} == {"tool_call_id", "function_name", "arguments"}
            assert isinstance(call["arguments"], dict)
        for result in step.get("observation", {}).get("results", ()):
            assert result.get("source_call_id", None) in (None, *ids)


def with_messages(t, *messages, **changes):
    return replace(t, messages=[{"role": r, "content": c} for r, c in messages], **changes)


def read_back(tmp_path, document, tokenizer):
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    notes = ReadingNotes()
    (found,) = read_rollouts(path, tokenizer, notes=notes)
    assert not notes.fields, "every field is understood"
    return found


def test_files_are_valid_and_read_back(rollouts, tokenizer, tmp_path):
    assert write_atif(tmp_path / "atif", rollouts) == len(rollouts) == 48
    files = sorted((tmp_path / "atif").iterdir())
    assert files[0].name == f"00001-{rollouts[0].id}.json"
    calls = 0
    for path, t in zip(files, rollouts, strict=True):
        document = json.loads(path.read_text())
        assert_valid(document)
        found = read_back(tmp_path, document, tokenizer)
        shown = [(m["role"], m["content"]) for m in found.messages]
        assert shown == [(m["role"], m["content"]) for m in t.messages]
        assert found.answer == t.answer and found.termination == t.termination
        assert found.reward == t.reward
        for name in ("question", "right_answer"):
            assert found.metadata[name] == t.metadata[name]
        # sampled tokens are exact; prompts are rendered again
        assert found.token_ids[found.generated].tolist() == t.token_ids[t.generated].tolist()
        np.testing.assert_array_equal(found.logprobs[found.generated], t.logprobs[t.generated])
        made = sum(len(step.get("tool_calls", ())) for step in document["steps"])
        assert made == sum(result.tool != "format" for result in t.tool_results)
        calls += made
        assert document["final_metrics"]["extra"]["tool_calls"] == len(t.tool_results)
        assert document["final_metrics"]["total_completion_tokens"] == t.generated.sum()
    assert calls > 48


def test_turns_by_hand(rollouts):
    call = '<tool_call>{"name": "search", "arguments": {"query": ["</tool_call> x"]}}</tool_call>'
    second = '<tool_call>{"name": "visit", "arguments": {}}</tool_call>'
    t = with_messages(
        next(t for t in rollouts if t.turns[t.generated].max() > 2),  # more turns than the texts
        ("system", "Be good."),
        ("user", "Which?"),
        ("assistant", f"<think>Look.</think>Now {call}\n{second} done"),
        ("tool", "one"),
        ("tool", "two"),
        ("tool", "three"),
        ("assistant", "<tool_call>{broken</tool_call>"),
        ("user", "<tool_response>Error</tool_response>"),
        ("user", "Go on."),
        ("assistant", "<think>Sure.</think><answer>x</answer>"),
    )
    document = to_atif(t)
    assert_valid(document)
    system, asked, search, broken, more, final = document["steps"]
    assert (system["source"], asked["source"], search["source"]) == ("system", "user", "agent")
    assert search["reasoning_content"] == "Look." and search["message"] == "Now done"
    assert [c["function_name"] for c in search["tool_calls"]] == ["search", "visit"]
    assert search["tool_calls"][0]["arguments"] == {"query": ["</tool_call> x"]}
    ids = [c["tool_call_id"] for c in search["tool_calls"]]
    results = search["observation"]["results"]
    assert [r["content"] for r in results] == ["one", "two", "three"]
    assert [r.get("source_call_id") for r in results] == [*ids, None]
    assert broken["message"] == "<tool_call>{broken</tool_call>" and "tool_calls" not in broken
    assert broken["observation"]["results"] == [{"content": "<tool_response>Error</tool_response>"}]
    assert more == {"step_id": 5, "source": "user", "message": "Go on."}
    assert final["message"] == "<answer>x</answer>" and final["reasoning_content"] == "Sure."
    assert not any("metrics" in step for step in document["steps"])


def test_a_turn_with_an_unreadable_call_stays_a_message(rollouts):
    text = '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call>{broken</tool_call>'
    document = to_atif(with_messages(rollouts[0], ("user", "Q?"), ("assistant", text)))
    assert document["steps"][1] == {"step_id": 2, "source": "agent", "message": text}


def test_only_sampled_tokens_with_logprobs_are_written(rollouts, tmp_path):
    t = rollouts[0]
    unknown = np.where(t.generated, np.nan, 0).astype(np.float32)
    document = to_atif(replace(t, logprobs=unknown))
    assert not any("metrics" in step for step in document["steps"])
    assert "total_completion_tokens" not in document["final_metrics"]
    usage = {"turns": 2, "read_tokens": 9, "said_tokens": 4, "cost": 0.5, "seconds": 1.5}
    served = replace(t, logprobs=unknown, metadata=t.metadata | {"usage": usage})
    metrics = to_atif(served)["final_metrics"]
    assert metrics["total_prompt_tokens"] == 9
    assert metrics["extra"] == {"cost": 0.5, "seconds": 1.5, "tool_calls": len(t.tool_results)}
    first = to_atif(t)["steps"][1]["metrics"]
    end = int(np.flatnonzero(~t.generated[t.generated.argmax() :])[0])
    start = int(t.generated.argmax())
    assert first["completion_token_ids"] == t.token_ids[start : start + end].tolist()
    assert first["logprobs"] == t.logprobs[start : start + end].tolist()


def test_examples_of_a_prompt_are_copied_context(rollouts, tmp_path):
    texts = [("user", "A?"), ("assistant", "<answer>a</answer>")]
    texts += [("user", "B?"), ("assistant", "<answer>b</answer>")]
    t = with_messages(rollouts[0], *texts)
    t.messages[1]["sampled"] = False
    document = to_atif(t)
    assert_valid(document)
    flags = [step.get("is_copied_context") for step in document["steps"]]
    assert flags == [None, True, None, None]
    found = read_back(tmp_path, document, WordTokenizer())
    assert [m.get("sampled", True) for m in found.messages] == [True, False, True, True]


def test_names_of_files_are_safe_and_different(rollouts, tmp_path):
    same = [replace(rollouts[0], id="../a b"), replace(rollouts[0], id="../a b")]
    assert write_atif(tmp_path / "x", same) == 2
    assert [p.name for p in sorted(tmp_path.rglob("*.json"))] == [
        "00001-.._a_b.json",
        "00002-.._a_b.json",
    ]


def test_command(rollouts, tmp_path, capsys):
    answers = tmp_path / "answers.jsonl"
    for t in rollouts[:3]:
        row = {"question": t.metadata["question"], "answer": "x", "prediction": t.answer}
        append_json_line(answers, row | {"messages": t.messages, "termination": "answered"})
    save_trajectories(tmp_path / "t.parquet", rollouts[:2])
    out = tmp_path / "atif"
    arguments = ["report", str(tmp_path / "r.html"), str(answers), "--viewed", "0"]
    assert main([*arguments, "--atif", str(out)]) == 0
    assert "3 trajectories in" in capsys.readouterr().out
    documents = [json.loads(path.read_text()) for path in sorted(out.iterdir())]
    assert len(documents) == 3
    for document, row in zip(documents, read_json_lines(answers), strict=True):
        assert_valid(document)
        assert document["extra"]["drlib"]["question"] == row["question"]
        assert not any("metrics" in step for step in document["steps"]), "words are no token ids"
    assert main([*arguments, "--atif", str(out)]) == 1
    assert "exists: give a new folder" in capsys.readouterr().err
    arguments[2] = str(tmp_path / "t.parquet")
    assert main([*arguments, "--atif", str(tmp_path / "again")]) == 0
    first = json.loads(next((tmp_path / "again").glob("00001*")).read_text())
    assert first["session_id"] == rollouts[0].id and "metrics" in first["steps"][1]
