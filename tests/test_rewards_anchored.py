"""Anchors: comparison by an outcome model and by a model on a real server, by hand.

Run: python -m pytest tests/test_rewards_anchored.py
"""

import json
import math
from dataclasses import replace

import pytest

from drlib.rewards.anchored import read_anchors
from drlib.rewards.functions import make_reward
from drlib.trajectory import Segment
from tests.scripted_server import Scripted
from tests.test_rewards_outcome_model import TASK, Scores, answered

QUESTION = {"question": TASK.question, "answer": "Oslo, since 1814"}


@pytest.fixture
def anchors(tmp_path):
    path = tmp_path / "anchors.jsonl"
    path.write_text(json.dumps(QUESTION) + "\n")
    return str(path)


def test_outcome_model_compares_with_the_anchor(monkeypatch, anchors):
    monkeypatch.setattr("drlib.rewards.anchored.load_scorer", lambda path: Scores())
    think, answer = Segment.THINK, Segment.ANSWER
    reward = make_reward("anchored", anchors=anchors, path="x")
    values = []
    for tokens in ([200], [40], [40, 41], [40, 41, 42]):  # anchors with a score of 0, 1, 2, 3
        monkeypatch.setattr("drlib.chat.template.ChatIds.plain", lambda self, text, t=tokens: t)
        values.append(reward(answered(think, answer, answer, think), TASK).value)
    # the rollout's answer has a score of 2
    assert values == pytest.approx([1 / (1 + math.exp(s - 2)) for s in range(4)])
    assert values[2] == 0.5 and values == sorted(values, reverse=True), "a better anchor wins"
    assert reward(replace(answered(think, answer), answer=None), TASK).value == 0.0
    failed = answered(think, answer)
    failed.tool_results[0].env_fault = True
    assert reward(failed, TASK).value is None


def test_language_model_compares_in_both_orders(anchors):
    def prefer_first(messages):
        return '{"better": "A"}'

    def prefer_oslo_since(messages):
        first = messages[-1]["content"].partition("Answer B:")[0]
        return json.dumps({"better": "A" if "since 1814" in first else "B"})

    think, answer = Segment.THINK, Segment.ANSWER
    run = replace(answered(think, answer), answer="Oslo")
    for say, value in ((prefer_first, 0.5), (prefer_oslo_since, 0.0), (lambda m: "hm", None)):
        with Scripted(say) as server:
            options = {"anchors": anchors, "url": server.url, "model": server.model}
            reward = make_reward("anchored", **options)
            assert reward(run, TASK).value == value
            better = replace(run, answer="Oslo, since 1814, which is long")
            if say is prefer_oslo_since:
                tie = reward(better, TASK).value
                assert tie == 0.5, "both contain it: the first place wins both times"


def test_questions_without_an_anchor_have_the_default_reward(anchors):
    with Scripted(lambda messages: '{"better": "A"}') as server:
        options = {"anchors": anchors, "url": server.url, "model": server.model}
        reward = make_reward("anchored", **options)
        other = replace(TASK, question="What else?", answer="Oslo")
        run = replace(answered(Segment.ANSWER), answer="Oslo")
        assert reward(run, other).value == 1.0 and server.asked == 0
        weighted = {"default": "format_and_answer", "arguments": {"weight": 0.5}}
        found = make_reward("anchored", **options, **weighted)(run, other)
        assert {"format", "exact_match"} <= {*found.parts}


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("", "has no anchors"),
        ('{"question": "q"}', "line 1: give a question and an answer"),
        ('{"question": "q", "answer": " "}', "line 1: give a question and an answer"),
        ('{"question": "q", "answer": "a"}\n{"question": "Q", "answer": "b"}', "a second anchor"),
    ],
)
def test_bad_files_are_named(tmp_path, lines, words):
    path = tmp_path / "anchors.jsonl"
    path.write_text(lines)
    with pytest.raises(ValueError, match=words):
        read_anchors(path)
    with pytest.raises(ValueError, match="no file of anchors"):
        read_anchors(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="an outcome model .path. or a server"):
        make_reward("anchored", anchors=str(path))
