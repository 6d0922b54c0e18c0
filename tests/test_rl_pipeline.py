"""The selective filtering pipeline: decision table, groups and report."""

import dataclasses

import numpy as np
import pytest
from rl_examples import a_format_error, a_tool_result, a_trajectory, changed

from drlib.rl.filtering import Evidence, FilterConfig, Pipeline, classify, filter_rollouts
from drlib.trajectory import Termination

LENGTH, TURNS = Termination.LENGTH, Termination.TURNS


def make_hallucinated(reward):
    """Return a rollout whose policy also wrote the user turn."""
    text = "<tool_call>{}</tool_call><|im_start|>user\nfound it"
    return changed(a_trajectory(reward=reward), messages=[{"role": "assistant", "content": text}])


FAILED = dataclasses.replace(a_tool_result(), ok=False)
# rollout, settings of the pipeline, evidence -> label, weight, in baseline, reasons
PIPELINE = [
    (a_trajectory(reward=1.0), {}, None, "high", 1, True, ()),
    (a_trajectory(reward=0.0), {}, None, "high", 1, True, ()),
    (a_trajectory(LENGTH, None, 1.0), {}, None, "high", 1, True, ()),
    (a_trajectory(LENGTH, None), {}, None, "drop", 0, True, ("overlong",)),
    (a_trajectory(Termination.WALL_CLOCK, None), {}, None, "drop", 0, True, ("overlong",)),
    (a_trajectory(TURNS, None), {}, None, "low", 0.5, True, ("no_answer",)),
    (a_trajectory(Termination.FORMAT, None), {}, None, "low", 0.5, True, ("format", "no_answer")),
    (a_trajectory(faults=1, reward=1.0), {}, None, "drop", 0, False, ("env_fault",)),
    (a_trajectory(reward=None), {}, None, "drop", 0, False, ("unjudged",)),
    (make_hallucinated(1.0), {}, None, "drop", 0, True, ("hallucination",)),
    (make_hallucinated(0.0), {}, None, "low", 0.5, True, ("hallucination",)),
    (
        changed(a_trajectory(reward=1.0), tool_results=[a_format_error()]),
        {},
        None,
        "low",
        0.5,
        True,
        ("format",),
    ),
    (
        changed(a_trajectory(reward=1.0), tool_results=[a_format_error()]),
        {"max_format_errors": 1},
        None,
        "high",
        1,
        True,
        (),
    ),
    (
        changed(a_trajectory(reward=1.0), tool_results=[FAILED, a_tool_result()]),
        {"max_tool_errors": 0.4},
        None,
        "low",
        0.5,
        True,
        ("tool_errors",),
    ),
    (
        changed(a_trajectory(reward=1.0), tool_results=[FAILED, a_tool_result()]),
        {"max_tool_errors": 0.5},
        None,
        "high",
        1,
        True,
        (),
    ),
    (a_trajectory(reward=0.3), {"ambiguous_from": 0.2}, None, "low", 0.5, True, ("ambiguous",)),
    (
        changed(a_trajectory(), versions=np.array([0, 3, 3, 4, 4], np.int32)),
        {},
        None,
        "drop",
        0,
        True,
        ("mixed_versions",),
    ),
    (
        changed(a_trajectory(), versions=np.array([0, 3, 3, 3, 3], np.int32)),
        {},
        None,
        "high",
        1,
        True,
        (),
    ),
    (
        a_trajectory(),
        {"max_log_ratio": 0.1},
        Evidence(log_ratio=-0.2),
        "drop",
        0,
        True,
        ("log_ratio",),
    ),
    (
        a_trajectory(),
        {"max_log_ratio": 0.1},
        Evidence(log_ratio=float("nan")),
        "drop",
        0,
        True,
        ("log_ratio",),
    ),
    (a_trajectory(), {"max_log_ratio": 0.1}, Evidence(log_ratio=0.1), "high", 1, True, ()),
    (
        a_trajectory(reward=1.0),
        {"two_judges": True},
        Evidence(second_reward=0.0),
        "drop",
        0,
        True,
        ("judges_disagree",),
    ),
    (
        a_trajectory(TURNS, None),
        {"validation": "replay"},
        Evidence(replayed=True),
        "low",
        0.5,
        True,
        ("no_answer",),
    ),
    (
        a_trajectory(TURNS, None),
        {"validation": "replay"},
        Evidence(replayed=False),
        "drop",
        0,
        True,
        ("no_answer", "replay_failed"),
    ),
    (a_trajectory(), {"validation": "replay"}, None, "high", 1, True, ()),
]


@pytest.mark.parametrize(
    ("trajectory", "settings", "evidence", "label", "weight", "in_baseline", "reasons"), PIPELINE
)
def test_pipeline_decision_table(
    trajectory, settings, evidence, label, weight, in_baseline, reasons
):
    config = FilterConfig(pipeline=Pipeline(low_weight=0.5, **settings))
    verdict = classify(trajectory, config, evidence)
    assert dataclasses.astuple(verdict) == (label, weight, in_baseline, reasons)
    apart = classify(trajectory, dataclasses.replace(config, baseline="kept"), evidence)
    assert apart.in_baseline == (in_baseline and weight > 0) and apart.reasons == reasons


@pytest.mark.parametrize(
    "check",
    [
        {"max_log_ratio": 0.1},
        {"two_judges": True},
        {"validation": "replay"},
    ],
)
def test_missing_evidence_is_rejected(check):
    with pytest.raises(ValueError, match="trajectory r-0: .* needs Evidence"):
        classify(a_trajectory(TURNS, None), FilterConfig(pipeline=Pipeline(**check)))
    with pytest.raises(ValueError, match="1 pieces of evidence for 2"):
        filter_rollouts([a_trajectory()] * 2, FilterConfig(), [None])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low_weight": 0.0}, "low_weight"),
        ({"validation": "judge"}, "validation must be"),
        ({"max_alike": 0}, "max_alike"),
        ({"max_tool_errors": -0.1}, "max_tool_errors"),
        ({"max_log_ratio": float("nan")}, "max_log_ratio"),
        ({"ambiguous_from": float("nan")}, "ambiguous_from"),
    ],
)
def test_invalid_pipeline_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        Pipeline(**settings)
    with pytest.raises(TypeError, match="pipeline must be a Pipeline"):
        FilterConfig(pipeline=True)


def make_search_rollout(query, name, **settings):
    result = dataclasses.replace(a_tool_result(), arguments={"query": query})
    return changed(a_trajectory(name=name, **settings), tool_results=[result])


def test_duplicate_rollouts_are_capped_in_any_order():
    same = [make_search_rollout(["x"], f"r-{i}", reward=1.0) for i in range(4)]
    group = [
        *same,
        make_search_rollout(["y"], "r-4", reward=1.0),
        make_search_rollout(["x"], "r-5", reward=0.0),
    ]
    config = FilterConfig(pipeline=Pipeline(max_alike=2))
    weights_N, in_baseline_N, report = filter_rollouts(group, config)
    assert weights_N.tolist() == [1, 1, 0, 0, 1, 1] and in_baseline_N.all()
    assert report["labels"] == {"drop": 2, "high": 4} and report["reasons"] == {"duplicate": 2}
    assert filter_rollouts(group[::-1], config)[0].tolist() == weights_N.tolist()[::-1]


def test_clean_duplicates_are_preferred_within_a_group():
    dirty = changed(a_trajectory(name="a", reward=1.0), termination=Termination.FORMAT)
    group = [dirty, *[a_trajectory(name=name, reward=1.0) for name in "bc"]]
    group[2] = changed(group[2], group_id="g-1")
    config = FilterConfig(pipeline=Pipeline(max_alike=1))
    assert filter_rollouts(group, config)[0].tolist() == [0, 1, 1]


def test_rollouts_from_another_world_are_dropped():
    group = [a_trajectory(reward=float(i == 0), name=f"r-{i}") for i in range(3)]
    group[0] = changed(group[0], world_version="w2")
    weights_N, in_baseline_N, report = filter_rollouts(group, FilterConfig(pipeline=Pipeline()))
    assert weights_N.tolist() == [0, 1, 1] and in_baseline_N.tolist() == [False, True, True]
    assert report["reasons"] == {"mixed_worlds": 1}


def test_pipeline_report_counts_by_label_and_reason():
    group = [trajectory for trajectory, settings, *_ in PIPELINE[:11]]
    group.append(changed(a_trajectory(reward=1.0), group_id="g-1"))
    _, _, report = filter_rollouts(group, FilterConfig(pipeline=Pipeline()))
    assert report["reasons_by_label"] == {
        "drop": {"env_fault": 1, "hallucination": 1, "overlong": 2, "unjudged": 1},
        "high": {"clean": 4},
        "low": {"format": 1, "hallucination": 1, "no_answer": 2},
    }
    assert report["excluded_tokens"] == 20 / 48
    assert report["reward_mean"] == 4 / 10  # judged: all but the fault and the unjudged
    assert report["reward_mean_in_loss"] == 3 / 7
    assert filter_rollouts(group[::-1], FilterConfig(pipeline=Pipeline()))[2] == report
