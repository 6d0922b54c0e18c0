"""Log-probabilities of single messages, and rewards beside a request and its response.

Run: python -m pytest tests/test_analysis_message_logprobs.py
"""

import json
import warnings

import numpy as np
import pytest

from drlib.analysis.inputs import read_rollouts
from drlib.analysis.reading_notes import ReadingNotes
from tests.template_examples import tokenizer_of


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = tokenizer_of("qwen3", ["capital Oslo Norway currency"])
    tokenizer.save_pretrained(folder)
    return tokenizer, str(folder)


def content(tokenizer, text, *more, tops=0):
    """Return the `content` list of a server: token n has -n/10, `more` are its last tokens."""
    texts = [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]
    return [
        {
            "token": token,
            "logprob": -(n + 1) / 10,
            "bytes": None,
            "top_logprobs": [
                {"token": token, "logprob": -(n + 1) / 10, "bytes": None},
                {"token": "x", "logprob": -5.0, "bytes": None},
            ][:tops],
        }
        for n, token in enumerate([*texts, *more])
    ]


def read(tmp_path, row, folder):
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    notes = ReadingNotes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (trajectory,) = read_rollouts(tmp_path / "rows.jsonl", folder, notes=notes)
    return trajectory, notes


def chat(*replies):
    """Return a chat with one tool result between the replies."""
    messages = [{"role": "user", "content": "capital of Norway"}]
    for reply in replies:
        messages += [{"role": "assistant", **reply}, {"role": "tool", "content": "fine"}]
    return {"messages": messages[:-1], "reward": 0.5}


def known(trajectory):
    return [round(float(value), 4) for value in trajectory.logprobs[trajectory.generated]]


@pytest.mark.parametrize("shape", ["object", "list"])
def test_messages_have_their_own_log_probabilities(tmp_path, model, shape):
    tokenizer, folder = model
    texts = ("Oslo is it", "Krone")
    logs = [content(tokenizer, text) for text in texts]
    if shape == "object":
        logs = [{"content": one, "refusal": None} for one in logs]
    row = chat(*({"content": t, "logprobs": one} for t, one in zip(texts, logs)))
    trajectory, notes = read(tmp_path, row, folder)
    sizes = [len(tokenizer.encode(text)) for text in texts]
    assert known(trajectory) == [-(n + 1) / 10 for size in sizes for n in range(size)]
    assert trajectory.reward == 0.5 and not notes.repaired and not notes.fields


@pytest.mark.parametrize(
    ("reply", "more"),
    [
        ({"content": "Oslo", "reasoning_content": "hm"}, ()),
        ({"content": "Oslo"}, ("<|im_end|>",)),
        ({"content": "<think>hm</think>Oslo"}, ()),
    ],
)
def test_tokens_outside_of_the_content_have_none(tmp_path, model, reply, more):
    tokenizer, folder = model
    logs = content(tokenizer, "Oslo", *more)
    trajectory, notes = read(tmp_path, chat(reply | {"logprobs": {"content": logs}}), folder)
    size = len(tokenizer.encode("Oslo"))
    values = known(trajectory)
    assert values[-size:] == [-(n + 1) / 10 for n in range(size)]
    assert np.isnan(values[:-size]).all() and not notes.repaired
    text = tokenizer.decode(trajectory.token_ids[trajectory.generated])
    has_thought = len(reply) > 1 or "hm" in reply["content"]
    assert text == ("<think>hm</think>Oslo" if has_thought else "Oslo")


def test_alternatives_are_read(tmp_path, model):
    tokenizer, folder = model
    logs = {"content": content(tokenizer, "Oslo", tops=2)}
    trajectory, _ = read(tmp_path, chat({"content": "Oslo", "logprobs": logs}), folder)
    sampled = trajectory.token_ids[trajectory.generated]
    assert trajectory.top_ids[trajectory.generated][:, 0].tolist() == sampled.tolist()


@pytest.mark.parametrize("logs", ["other text", "numbers", "not a list", "empty"])
def test_unclear_log_probabilities_are_counted(tmp_path, model, logs):
    tokenizer, folder = model
    made = {
        "other text": {"content": content(tokenizer, "Bergen")},
        "numbers": [-0.1, -0.2],
        "not a list": "yes",
        "empty": {"content": [{"token": "", "logprob": -0.1}]},
    }[logs]
    row = chat({"content": "Oslo", "logprobs": made})
    trajectory, notes = read(tmp_path, row, folder)
    assert np.isnan(known(trajectory)).all()
    assert notes.repaired["turns without log-probabilities, as their tokens are unclear"] == 1


@pytest.mark.parametrize(
    ("beside", "reward"),
    [({"reward": 1.0}, 1.0), ({"score": 0.25}, 0.25), ({"reward": None}, None), ({}, None)],
)
def test_reward_beside_request_and_response(tmp_path, model, beside, reward):
    tokenizer, folder = model
    message = {"role": "assistant", "content": "<answer>Oslo</answer>"}
    choice = {"message": message, "finish_reason": "stop"}
    row = {
        "request": {"messages": [{"role": "user", "content": "capital of Norway"}]},
        "response": {"choices": [choice], "id": "r1"},
        "answer": "Oslo",
        **beside,
    }
    trajectory, notes = read(tmp_path, row, folder)
    assert trajectory.reward == reward and trajectory.answer == "Oslo"
    assert trajectory.metadata["right_answer"] == "Oslo" and not notes.fields


def test_unknown_fields_beside_a_response_are_counted(tmp_path, model):
    _, folder = model
    choice = {"message": {"role": "assistant", "content": "Oslo"}}
    request = {"messages": [{"role": "user", "content": "capital"}]}
    row = {"request": request, "response": {"choices": [choice]}, "judge": {"verdict": "right"}}
    _, notes = read(tmp_path, row, folder)
    assert notes.fields == {"judge": 1}
