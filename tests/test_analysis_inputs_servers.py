"""Server responses (vLLM and the OpenAI protocol): accepted and rejected formats.

The log-probabilities are the tour policy's own, written as vLLM and its server write them
(RequestOutput; /v1/chat/completions and /v1/completions, with and without return_token_ids).

Run: python -m pytest tests/test_analysis_inputs_servers.py
"""

from itertools import islice

import numpy as np
import pandas as pd
import pytest

from drlib.analysis.entropy import entropy_bounds
from drlib.analysis.inputs import FORMATS, read_rollouts
from drlib.analysis.rescoring import rescore
from drlib.models.moe import load_policy
from drlib.trajectory import Segment, Termination, save_trajectories
from tests.test_analysis_inputs import (
    TOUR,
    foreign,  # noqa: F401 - a fixture
    tokenizer,  # noqa: F401 - a fixture
    tour,  # noqa: F401 - a fixture
    write_lines,
)

K = 4  # alternatives requested from the server


@pytest.fixture(scope="module")
def scored(tour):
    """Return eight trajectories with the policy's log-probabilities, entropies and alternatives."""
    model, _ = load_policy(TOUR / "policy_rl")
    return list(rescore(model, tour["sft_sampled"][:8], top_k=K))


def first_turn(t):
    """Return (prompt ids, ids, logprobs, alternatives, entropies) of the first sampled turn."""
    start = int(np.flatnonzero(t.generated)[0])
    end = start + int(np.argmin(np.append(t.generated[start:], False)))
    tops = [
        dict(zip(ids.tolist(), values.tolist()))
        for ids, values in zip(t.top_ids[start:end], t.top_logprobs[start:end])
    ]
    return (
        t.token_ids[:start].tolist(),
        t.token_ids[start:end].tolist(),
        t.logprobs[start:end].tolist(),
        tops,
        t.entropies[start:end],
    )


def request_output(t, tokenizer):
    """Return vLLM's RequestOutput: the sampled token's entry is first, whatever its rank."""
    prompt, ids, logprobs, tops, _ = first_turn(t)
    entries = [{i: value} | top for i, value, top in zip(ids, logprobs, tops)]
    return {
        "request_id": t.id,
        "prompt": tokenizer.decode(prompt),
        "prompt_token_ids": prompt,
        "finished": True,
        "outputs": [
            {
                "index": 0,
                "text": tokenizer.decode(ids, skip_special_tokens=True),
                "token_ids": ids,
                "cumulative_logprob": sum(logprobs),
                "finish_reason": "length",
                "stop_reason": None,
                "logprobs": [
                    {
                        str(i): {"logprob": v, "rank": 1, "decoded_token": tokenizer.decode(i)}
                        for i, v in entry.items()
                    }
                    for entry in entries
                ],
            }
        ],
    }


def chat_completion(t, tokenizer, **more):
    prompt, ids, logprobs, tops, _ = first_turn(t)
    name = tokenizer.decode

    def entry(i, value, **more):
        return {"token": name(i), "logprob": value, "bytes": list(name(i).encode()), **more}

    content = [
        entry(i, value, top_logprobs=[entry(*top) for top in alternatives.items()])
        for i, value, alternatives in zip(ids, logprobs, tops)
    ]
    message = {"role": "assistant", "content": name(ids), "tool_calls": []}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "policy_rl",
        "choices": [
            {
                "index": 0,
                "message": message,
                "logprobs": {"content": content},
                "finish_reason": "stop",
                **more,
            }
        ],
    }


def assert_is_first_turn(b, t):
    prompt, ids, logprobs, tops, entropies = first_turn(t)
    assert b.token_ids.tolist() == prompt + ids
    assert b.generated.tolist() == [False] * len(prompt) + [True] * len(ids)
    np.testing.assert_array_equal(b.segments, t.segments[: len(b)])
    np.testing.assert_array_equal(b.logprobs[b.generated], np.float32(logprobs))
    assert b.entropies is None and not b.logprobs[~b.generated].any()
    assert (b.top_ids[~b.generated] == -1).all() and not b.top_logprobs[~b.generated].any()
    low, high, _ = entropy_bounds(b.top_logprobs[b.generated], 2048)
    assert (low <= entropies + 1e-4).all() and (entropies <= high + 1e-4).all()
    assert (high - low < 0.3).mean() > 0.5
    for sampled, ids, values, top in zip(
        b.token_ids[b.generated], b.top_ids[b.generated], b.top_logprobs[b.generated], tops
    ):
        # the most probable ones, without the last one if it was sampled
        best = list(top.items())[: -1 if list(top)[-1] == sampled else None]
        assert list(zip(ids.tolist(), values.tolist()))[: len(best)] == best
        assert (ids[len(best) :] == -1).all() and np.isneginf(values[len(best) :]).all()


# ---------------------------------------------------------------- vLLM and OpenAI


def test_vllm_request_outputs(scored, tokenizer, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [request_output(t, tokenizer) for t in scored])
    back = list(read_rollouts(path, tokenizer))
    for t, b in zip(scored, back, strict=True):
        assert_is_first_turn(b, t)
        assert b.metadata["question"] == t.metadata["question"]
        assert b.metadata["request_id"] == t.id and b.metadata["termination"] == "length"
    save_trajectories(tmp_path / "a.parquet", back)
    assert list(read_rollouts(tmp_path / "a.parquet")) == back


def test_outputs_of_one_prompt_form_a_group(scored, tokenizer, tmp_path):
    row = request_output(scored[0], tokenizer)
    row["outputs"] = [row["outputs"][0] | {"index": i, "logprobs": None} for i in range(3)]
    got = list(read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer))
    assert [t.id for t in got] == ["a-1", "a-1-1", "a-1-2"] and len({t.group_id for t in got}) == 1
    assert np.isnan(got[0].logprobs[got[0].generated]).all() and got[0].top_ids is None


@pytest.mark.parametrize("form", ["ids", "request", "batch"])
def test_chat_completions(scored, tokenizer, tmp_path, form):
    rows = []
    for t in scored:
        prompt, ids, *_ = first_turn(t)
        request = {"messages": t.messages[:1], "logprobs": True, "top_logprobs": K}
        if form == "ids":  # return_token_ids
            rows.append(chat_completion(t, tokenizer, token_ids=ids) | {"prompt_token_ids": prompt})
        elif form == "request":
            rows.append({"request": request, "response": chat_completion(t, tokenizer)})
        else:  # vLLM's run_batch
            body = chat_completion(t, tokenizer) | {"prompt_token_ids": prompt}
            rows.append({"custom_id": t.id, "response": {"status_code": 200, "body": body}})
    for t, b in zip(scored, read_rollouts(write_lines(tmp_path / "a.jsonl", rows), tokenizer)):
        assert_is_first_turn(b, t)
        assert b.termination in (Termination.ANSWERED, Termination.FORMAT)


@pytest.mark.parametrize("ids_as_names", [False, True])
def test_completions(scored, tokenizer, tmp_path, ids_as_names):
    rows = []
    for t in scored:
        prompt, ids, logprobs, tops, _ = first_turn(t)
        name = (lambda i: f"token_id:{i}") if ids_as_names else tokenizer.decode
        logs = {
            "tokens": [name(i) for i in ids],
            "token_logprobs": logprobs,
            "text_offset": [],
            "top_logprobs": [{name(i): v for i, v in top.items()} for top in tops],
        }
        choice = {"index": 0, "text": tokenizer.decode(ids), "logprobs": logs}
        rows.append({"object": "text_completion", "choices": [choice]})
        rows[-1] = {"request": {"prompt": tokenizer.decode(prompt)}, "response": rows[-1]}
    for t, b in zip(scored, read_rollouts(write_lines(tmp_path / "a.jsonl", rows), tokenizer)):
        assert_is_first_turn(b, t)


def test_sampled_token_is_not_its_own_alternative(tokenizer, tmp_path):
    content = [{"token": "I ", "logprob": -3.0, "top_logprobs": [{"token": "I ", "logprob": -3.0}]}]
    choice = {"message": {"role": "assistant", "content": "I "}, "logprobs": {"content": content}}
    row = {"choices": [choice], "prompt_token_ids": [5]}
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), tokenizer)
    assert t.top_ids is None and t.logprobs.tolist() == [0, -3]


def test_tokenizer_without_tags_or_template(foreign, tmp_path):
    """Characters of several tokens, tags of several tokens, and ChatML instead of a template."""
    said = "<think>là, 東京 🗼</think><answer>東京</answer>"
    ids = foreign.encode(said)
    tokens = [foreign.decode([i]) for i in ids]
    assert "\ufffd" in tokens and len(foreign.encode("<answer>")) > 1
    content = [{"token": t, "logprob": -0.5, "top_logprobs": []} for t in tokens]
    choice = {"message": {"role": "assistant", "content": said}, "logprobs": {"content": content}}
    row = {
        "request": {"messages": [{"role": "user", "content": "Où?"}]},
        "response": {"choices": [choice]},
    }
    (t,) = read_rollouts(write_lines(tmp_path / "a.jsonl", [row]), foreign)
    assert foreign.decode(t.token_ids) == (
        f"<|im_start|>user\nOù?<|im_end|>\n<|im_start|>assistant\n{said}"
    )
    assert t.token_ids[t.generated].tolist() == ids
    for segment, text in ((Segment.THINK, "là, 東京 🗼"), (Segment.ANSWER, "東京")):
        assert foreign.decode(t.token_ids[t.segments == segment]).strip("<>/") == text
    assert t.answer == "東京" and t.metadata["question"] == "Où?"


# ---------------------------------------------------------------- invalid files


def test_rows_are_read_lazily(scored, tokenizer, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [request_output(t, tokenizer) for t in scored[:2]])
    with open(path, "a", encoding="utf-8") as file:
        file.write('\n{"prompt_token_ids": [1, 2')
    stream = read_rollouts(path, tokenizer)
    assert len(list(islice(stream, 2))) == 2
    with pytest.raises(ValueError, match=r"a\.jsonl, line 4 is not valid JSON.*truncated"):
        next(stream)


def test_missing_and_empty_files_are_rejected(tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match="no file .*nowhere"):
        read_rollouts(tmp_path / "nowhere.jsonl", tokenizer)
    (tmp_path / "empty.jsonl").write_text("\n\n")
    save_trajectories(tmp_path / "empty.parquet", [])
    for name in ("empty.jsonl", "empty.parquet"):
        with pytest.raises(ValueError, match=f"{name} has no rows"):
            read_rollouts(tmp_path / name, tokenizer)


def test_truncated_parquet_is_rejected(tokenizer, tmp_path):
    whole = (TOUR / "rl_greedy.parquet").read_bytes()
    pd.DataFrame([{"messages": [{"role": "user", "content": "q"}]}]).to_parquet(
        tmp_path / "m.parquet"
    )
    for content in (whole[:-100], whole[:100], (tmp_path / "m.parquet").read_bytes()[:-1], b"no"):
        (tmp_path / "cut.parquet").write_bytes(content)
        with pytest.raises(ValueError, match=r"cut\.parquet is truncated or not a Parquet file"):
            read_rollouts(tmp_path / "cut.parquet", tokenizer)


def test_unknown_format_error_lists_the_known_formats(tokenizer, tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"text": "hm", "label": 1}])
    for format in (None, "verl", "nothing"):
        with pytest.raises(ValueError, match="rows have text, label") as error:
            read_rollouts(path, tokenizer, format=format)
        assert all(name in str(error.value) for name in FORMATS)
        assert all(f in str(error.value) for fields, _ in FORMATS.values() for f in fields.split())


def test_missing_tokenizer_is_rejected(tmp_path):
    path = write_lines(
        tmp_path / "a.jsonl", [{"messages": [{"role": "assistant", "content": "a"}]}]
    )
    with pytest.raises(ValueError, match="with the tokenizer of its model"):
        read_rollouts(path)
    with pytest.raises(ValueError, match="no tokenizer at .*here: give the folder"):
        read_rollouts(path, tmp_path / "here")


def test_format_argument_overrides_detection(tokenizer, tmp_path):
    row = {
        "input": "Q",
        "output": "A",
        "score": 1,
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
    }
    path = write_lines(tmp_path / "a.jsonl", [row])
    (by_field,), (forced,) = (read_rollouts(path, tokenizer, format=f) for f in (None, "messages"))
    assert tokenizer.decode(by_field.token_ids) == "QA"
    assert tokenizer.decode(forced.token_ids).endswith("assistant\na")
