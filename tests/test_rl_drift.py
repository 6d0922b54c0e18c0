"""Page-Hinkley and PSI by hand, by definition, and on seeded noise with shifts."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.rl.stability import (
    Alarm,
    DriftDetector,
    HistogramShift,
    PageHinkley,
    psi,
    rollout_signals,
)
from drlib.trajectory import Segment, Termination, ToolResult, Trajectory


def decisions(monitor, inputs):
    return [monitor.update(value) for value in inputs]


def page_hinkley_by_definition(values, delta, threshold, warmup):
    """Compute Page-Hinkley by definition over the values since the last alarm."""
    out, since = [], 0
    for t in range(1, len(values) + 1):
        stretch = values[since:t]
        alarm = None
        if len(stretch) > warmup:
            tests = {}
            for name, sign in (("up", 1), ("down", -1)):
                gaps = [
                    sign * (x - sum(stretch[: i + 1]) / (i + 1)) - delta
                    for i, x in enumerate(stretch)
                ]
                m = np.cumsum([0.0, *gaps])
                tests[name] = m[-1] - m.min()
            largest = max(tests, key=tests.get)
            alarm = largest if tests[largest] > threshold else None
        since = t if alarm else since
        out.append(alarm)
    return out


@pytest.mark.parametrize("seed", range(5))
def test_page_hinkley_matches_its_definition(seed):
    rng = np.random.default_rng(seed)
    values = np.concatenate([rng.normal(m, 1, 40) for m in (0, 2, -1, -1, 3)]).tolist()
    monitor = PageHinkley(delta=0.3, threshold=4.0, warmup=5)
    assert decisions(monitor, values) == (
        expected := page_hinkley_by_definition(values, 0.3, 4.0, 5)
    )
    assert {"up", "down"} <= set(expected)


def test_page_hinkley_by_hand():
    monitor = PageHinkley(delta=0.1, threshold=1.0, warmup=1)
    # means 0, 0.5, 2/3: sums 0, 0.5 - 0.1 = 0.4, 0.4 + 1/3 - 0.1 = 0.6333; then 0.75: 0.7833
    decisions(monitor, [0, 1, 1, 1])
    assert monitor.state["up"] == pytest.approx(0.4 + 1 / 3 - 0.1 + 0.25 - 0.1)
    assert monitor.state["down"] == 0.0


def error_rates(rng, n, share, rollouts=64):
    return (rng.binomial(rollouts, share, n) / rollouts).tolist()


def test_page_hinkley_false_alarms_and_delay():
    settings = {"delta": 0.05, "threshold": 0.5}
    false, delays = 0, []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        false += sum(map(bool, decisions(PageHinkley(**settings), error_rates(rng, 200, 0.3))))
        monitor = PageHinkley(**settings)
        false += sum(map(bool, decisions(monitor, error_rates(rng, 50, 0.05))))
        after = decisions(monitor, error_rates(rng, 20, 0.35))
        assert "up" in after
        delays.append(after.index("up") + 1)
    assert false <= 1  # in 5,000 steps
    assert max(delays) <= 8  # threshold / (shift - delta) is 2


def test_psi_by_hand():
    expected = 0.1 * math.log(0.6 / 0.5) - 0.1 * math.log(0.4 / 0.5)
    assert psi([50, 50], [60, 40], smoothing=0) == pytest.approx(expected)
    assert expected == pytest.approx(0.040547, abs=1e-6)
    assert psi([5, 5], [500, 500], smoothing=0) == 0
    # (0, 3) and (3, 0) with a half each: shares 1/8 and 7/8
    assert psi([0, 3], [3, 0]) == pytest.approx(1.5 * math.log(7))
    with pytest.raises(ValueError, match="empty"):
        psi([0, 3], [3, 0], smoothing=0)
    with pytest.raises(ValueError, match="same bins"):
        psi([1, 2, 3], [1, 2])


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8))
@settings(max_examples=50)
def test_psi_is_symmetric_and_not_negative(counts):
    a, b = zip(*counts)
    assert psi(a, b) == pytest.approx(psi(b, a)) and psi(a, b) >= 0
    assert psi(a, a) == 0


def test_psi_of_equal_distributions():
    rng = np.random.default_rng(0)
    draws = [
        psi(rng.multinomial(200, [0.2] * 5), rng.multinomial(200, [0.2] * 5), 0)
        for _ in range(2000)
    ]
    assert np.mean(draws) == pytest.approx(4 * 2 / 200, rel=0.1)


def test_shape_change_with_equal_mean_alarms_once():
    rng = np.random.default_rng(3)
    before, after = rng.normal(0, 1, 600).tolist(), rng.normal(0, 3, 400).tolist()
    monitor = HistogramShift(above=0.25)
    assert decisions(monitor, [before[i : i + 50] for i in range(0, 600, 50)]) == [None] * 12
    assert monitor.state["psi"] < 0.2
    found = decisions(monitor, [after[i : i + 50] for i in range(0, 400, 50)])
    assert found == [None, None, None, "shape", None, None, None, None]  # once
    means = PageHinkley(delta=0.25, threshold=4.0)  # the same data as means of 50
    assert not any(decisions(means, [np.mean(before[i : i + 50]) for i in range(0, 600, 50)]))


def test_histogram_false_alarms_at_the_default_window():
    rng = np.random.default_rng(1)
    alarms = dict.fromkeys((64, 200), 0)
    for window in alarms:
        for _ in range(150):
            monitor = HistogramShift(above=0.25, window=window)
            alarms[window] += bool(monitor.update(rng.gamma(2.0, size=2 * window).tolist()))
    assert alarms[200] <= 1 and 3 <= alarms[64] <= 30


MOSTLY_ONE, MOSTLY_ZERO = [0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0]
CHANGES = [([5.0], [4.0]), ([5.0], [6.0]), (MOSTLY_ONE, MOSTLY_ZERO)]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_histogram_bins_for_constants_and_binary_values(old, new):
    monitor = HistogramShift(above=0.25, window=20)
    assert monitor.update(old * (40 // len(old))) is None
    assert monitor.state["psi"] == 0
    assert monitor.update(new * (20 // len(new))) == "shape"


def test_detector_reports_signal_kind_and_environment():
    monitors = {"errors/search": PageHinkley(0.05, 0.5), "chars": HistogramShift(0.25)}
    detector = DriftDetector(monitors)
    quiet = [
        detector.update(
            {"errors/search": 0.05, "chars": [10.0] * 20, "reward": 0.5}, {"world": "a"}
        )
        for _ in range(20)
    ]
    assert quiet == [[]] * 20
    loud = [
        detector.update(
            {"errors/search": 0.4, "chars": [50.0] * 20, "reward": None}, {"world": "b"}
        )
        for _ in range(10)
    ]
    assert loud[0] == [Alarm(21, "world", "changed")]
    # 0.35 less the mean's own move and delta: below 0.3 a step, so the second passes 0.5; the
    # second window of 200 is full at step 20, the third at step 30
    assert loud[1] == [Alarm(22, "errors/search", "up")]
    assert [alarm for step in loud[2:] for alarm in step] == [Alarm(30, "chars", "shape")]
    averages = detector.state["averages"]
    assert averages["reward"] == pytest.approx(0.5)
    assert averages["errors/search"] == pytest.approx(0.4 - 0.35 * 0.9**10)
    with pytest.raises(ValueError, match=r"lack \['chars'\]"):
        detector.update({"errors/search": 0.0})


def make_tool_result(tool="search", ok=True, fault=False, text="four", latency=0.5, cached=False):
    return ToolResult(
        tool=tool,
        arguments={},
        text=text,
        ok=ok,
        error=None if ok else "x",
        latency_s=latency,
        attempts=1,
        source="s",
        cache_hit=cached,
        degraded=False,
        env_fault=fault,
    )


def make_rollout(calls, termination=Termination.ANSWERED, answer="x", reward=0.0):
    one = np.ones(1)
    return Trajectory(
        id="t",
        task_id="q",
        group_id="g",
        world_version="w",
        policy_version=0,
        token_ids=one.astype(np.int32),
        generated=one.astype(bool),
        logprobs=-one.astype(np.float32),
        entropies=None,
        segments=np.full(1, Segment.ANSWER, dtype=np.uint8),
        turns=one.astype(np.uint16),
        versions=one.astype(np.int32),
        routed_experts=None,
        tool_results=calls,
        termination=termination,
        answer=answer,
        reward=reward,
        reward_parts={},
        messages=[],
        metadata={},
    )


def test_rollout_signals_by_hand():
    rollouts = [
        make_rollout(
            [make_tool_result(cached=True), make_tool_result(ok=False, latency=1.5)], reward=1.0
        ),
        make_rollout([make_tool_result("format", ok=False, text="no")], answer=None),
        make_rollout(
            [make_tool_result(ok=False, fault=True, latency=4.0)], answer=None, reward=None
        ),
    ]
    signals = rollout_signals(rollouts, ["search", "python"])
    assert signals["reward"] == 0.5 and signals["unanswered"] == 0.5
    assert signals["format_errors"] == 0.5 and signals["faults"] == pytest.approx(1 / 3)
    assert signals["observation_chars"] == [4.0] * 3
    assert signals["errors/search"] == pytest.approx(2 / 3)
    assert signals["latency_s/search"] == 2.0
    assert signals["cache_hits/search"] == pytest.approx(1 / 3)
    assert signals["errors/python"] is signals["latency_s/python"] is None
    assert rollout_signals([])["reward"] is None
