"""Evolving rubrics: judged criteria on a real server, the buffer by hand, and training with it.

Run: python -m pytest tests/test_rewards_evolving_rubrics.py
"""

import json

import pytest

from drlib.endpoint import ChatEndpoint
from drlib.rewards.evolving_rubrics import (
    RULE_NAMES,
    RubricBuffer,
    RubricModel,
    measure_spreads,
)
from drlib.rewards.functions import check_reward, make_reward
from drlib.rewards.rubrics import ACTIVE
from drlib.training import rubric_buffer  # noqa: F401 - registers the callback
from drlib.training.callbacks import CALLBACKS
from drlib.training.rollouts import judge_rollout
from tests.loop_examples import cold_start, settings
from tests.scripted_server import Scripted
from tests.test_rewards_rubrics import TASK, rollout

start = cold_start


def scripted_judge(messages):
    """Judge the word of a criterion, and write two criteria."""
    text = messages[-1]["content"]
    if messages[0]["content"].startswith("You write"):
        return '["It names Norway.", "It names nothing."]'
    word = text.partition("It names ")[2].partition(".")[0]
    return "hm" if word == "noise" else json.dumps({"met": word in text.partition("\n\n")[2]})


def test_only_active_rules_are_rewarded():
    reward = make_reward("evolving_rubrics", active=["supported"])
    found = reward(rollout(results=()), TASK)
    assert found.parts == {
        "rubric/entity_1": 1.0,  # of the question: always rewarded
        "idle/searches": 0.0,
        "rubric/supported": 0.0,
        "idle/no_error": 1.0,
        "idle/no_repeat": 1.0,
    }
    assert found.value == 0.5
    assert make_reward("evolving_rubrics")(rollout(), TASK).value == 1.0
    check_reward("evolving_rubrics")
    failed = rollout()
    failed.tool_results[0].env_fault = True
    assert reward(failed, TASK).value is None


def test_written_criteria_are_judged_by_the_model():
    written = {TASK.id: {"written_1": "It names Norway.", "written_2": "It names Sweden."}}
    with Scripted(scripted_judge) as server:
        options = {"url": server.url, "model": server.model, "active": ["searches"]}
        reward = make_reward("evolving_rubrics", written=written, **options)
        found = reward(rollout(), TASK)
        assert (found.parts["rubric/written_1"], found.parts["rubric/written_2"]) == (1.0, 0.0)
        assert found.value == 0.75 and server.asked == 2  # and entity_1 and searches
        reward(rollout(), TASK)
        assert server.asked == 2, "verdicts on a rollout are kept"
        other = make_reward("evolving_rubrics", written={"u": written[TASK.id]}, **options)
        assert other(rollout(), TASK).value == 1.0, "criteria of another question"
        noise = {TASK.id: {"written_1": "It names noise."}}
        noisy = make_reward("evolving_rubrics", written=noise, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("time.sleep", lambda s: None)
            assert noisy(rollout(), TASK).value is None, "not judged, so excluded"
    with pytest.raises(ValueError, match="set url"):
        make_reward("evolving_rubrics", written=written)
    with pytest.raises(ValueError, match="must be given together"):
        make_reward("evolving_rubrics", url="http://127.0.0.1:1")


def test_model_without_a_service_gives_no_verdict():
    model = RubricModel(ChatEndpoint("http://127.0.0.1:9/v1", "m"), pause_s=0.0)
    assert model.judge("It names Norway.", rollout()) is None
    assert model.write("?", [rollout()]) == []


def test_spreads_by_hand():
    reward = make_reward("evolving_rubrics", active=["supported"])
    group = [judge_rollout(t, TASK, reward) for t in (rollout(), rollout("Bergen", thought="x"))]
    found = measure_spreads(group)
    assert found["rubric/entity_1"] == found["rubric/supported"] == 0.5
    assert found["idle/searches"] == found["idle/no_error"] == 0.0
    assert measure_spreads(group[:1]) == {}


def step(buffer, question="q", **spreads):
    return buffer.update([(question, {f"rubric/{name}": x for name, x in spreads.items()})])


def test_rules_are_dropped_and_return():
    buffer = RubricBuffer(window=3)
    for _ in range(2):
        step(buffer, searches=0.0, supported=0.1)
    assert buffer.active == [*RULE_NAMES]
    counts = step(buffer, searches=0.0, supported=0.0)
    assert buffer.active == ["supported", "no_error", "no_repeat"]
    assert counts == {"added": 0, "dropped": 1, "active": 3, "written": 0}
    # steps that did not score a criterion do not count
    for _ in range(5):
        step(buffer)
    assert "no_error" in buffer.active
    # an idle rule returns when it discriminates in any group of a step
    groups = [("q", {"idle/searches": 0.0}), ("u", {"idle/searches": 0.2})]
    assert buffer.update(groups)["added"] == 1 and "searches" in buffer.active
    for _ in range(9):
        step(buffer, **dict.fromkeys(RULE_NAMES, 0.0))
    assert len(buffer.active) == 1, "one criterion remains"


def test_written_criteria_must_discriminate():
    buffer = RubricBuffer(window=2)
    assert not buffer.add_written("q", "none", 0.0) and buffer.written == {}
    assert buffer.add_written("q", "a", 0.1) and not buffer.add_written("q", "a", 0.5)
    for n in range(ACTIVE):
        buffer.add_written("q", f"b{n}", 0.2 + n / 100)
    assert {*buffer.written["q"].values()} == {f"b{n}" for n in range(ACTIVE)}, "the best ones"
    assert buffer.add_written("u", "a", 0.1), "another question"
    (name,) = buffer.written["u"]
    step(buffer, "u", **{name: 0.0})
    assert "u" in buffer.written, "it has discriminated in one of the last two steps"
    step(buffer, "u", **{name: 0.0})
    assert "u" not in buffer.written and len(buffer.written["q"]) == ACTIVE
    assert {key.partition("/")[0] for key in buffer.spreads if "/" in key} == {"q"}
    state = json.loads(json.dumps(buffer.state_dict()))
    other = RubricBuffer(window=2)
    other.load_state_dict(state)
    assert other == buffer


def test_training_updates_the_buffer(start, tmp_path):
    """Rules that discriminate in a step are rewarded in the next one."""
    arguments = json.dumps({"window": 1})
    config = settings(
        **{"rl.reward.name": "evolving_rubrics", "rl.reward.arguments": arguments},
    )
    trainer = start.step(config, tmp_path / "run")
    buffer = trainer.callbacks.parts["rubric_buffer"].buffer
    buffer.active = ["supported"]
    row, rollouts = trainer.step(0)
    groups = {}
    for one in rollouts:
        assert {"idle/searches", "rubric/supported"} <= {*one.reward_parts}
        groups.setdefault(one.group_id, []).append(one)
    spreads = [measure_spreads(group) for group in groups.values()]
    alive = {
        name.partition("/")[2] for each in spreads for name, spread in each.items() if spread > 0
    }
    assert {*buffer.active} == alive & {*RULE_NAMES} and len(buffer.active) > 1
    assert row["rubrics/active"] == len(buffer.active)
    _, rollouts = trainer.step(1)
    assert {f"rubric/{name}" for name in alive & {*RULE_NAMES}} <= {*rollouts[0].reward_parts}
    resumed = start.step(config, tmp_path / "other")
    resumed.callbacks.load_state_dict(json.loads(json.dumps(trainer.callbacks.state_dict())))
    assert resumed.callbacks.parts["rubric_buffer"].buffer == buffer


def test_model_writes_criteria_during_training(start, tmp_path):
    """As a term of a gate; criteria that do not discriminate are not kept."""
    with Scripted(scripted_judge) as server:
        own = {"url": server.url, "model": server.model, "write": 8}
        arguments = {"weights": {"evolving_rubrics": 1}, "arguments": {"evolving_rubrics": own}}
        config = settings(
            **{"rl.reward.name": "gated", "rl.reward.arguments": json.dumps(arguments)}
        )
        trainer = start.step(config, tmp_path / "run")
        row, rollouts = trainer.step(0)
        assert server.asked > 8
    buffer = trainer.callbacks.parts["rubric_buffer"].buffer
    texts = {text for own in buffer.written.values() for text in own.values()}
    assert texts <= {"It names Norway.", "It names nothing."}
    assert row["rubrics/added"] == sum(map(len, buffer.written.values())) or not texts
    assert "rubric/searches" in rollouts[0].reward_parts


@pytest.mark.parametrize(
    "other",
    [{"rl.asynchronous.actors": 1}, {"rl.off_policy.rollouts": "rollouts.parquet"}],
)
def test_rollouts_from_elsewhere_are_refused(other):
    config = settings(**{"rl.reward.name": "evolving_rubrics", **other})
    with pytest.raises(ValueError, match=f"does not go with {next(iter(other))}"):
        CALLBACKS["rubric_buffer"](config, None)


def test_other_rewards_have_no_buffer(start, tmp_path):
    trainer = start.step(settings(), tmp_path / "run")
    assert "rubric_buffer" not in trainer.callbacks.parts
