"""Simulators of rollout scheduling: invariants, closed forms and the reference workload.

Run: python -m pytest tests/test_analysis_scheduling.py
"""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.analysis.scheduling import (
    draw_lengths,
    simulate_admission,
    simulate_partial,
    simulate_routing,
)
from drlib.analysis.scheduling_plots import plot_partial, plot_routing, plot_schedules
from drlib.config import ROOT
from drlib.models.admission import ADMISSIONS

POLICIES = sorted(ADMISSIONS)
LIMIT = 768  # of the reference workload, see docs/scheduling.md


def test_lengths_have_the_mean_of_the_reference_workload():
    lengths_N = draw_lengths(20_000, LIMIT, seed=1)
    assert lengths_N.mean() / LIMIT == pytest.approx(0.56, abs=0.01)
    assert lengths_N.min() >= 0.12 * LIMIT - 1 and lengths_N.max() <= LIMIT


# ---------------------------------------------------------------- admission


def test_one_rollout_alone_takes_one_step_per_token():
    for name in POLICIES:
        found = simulate_admission([100], name, 100, 100, engines=1)
        assert found.makespan == pytest.approx(101) and found.peak == 100
        assert found.cache_use == pytest.approx(sum(range(100)) / 100**2)
        assert found.busy == pytest.approx(1)


def test_reserve_runs_in_waves_of_the_divided_budget():
    """Four rollouts of 50 tokens, two at a time: 2 * 50 steps of 1.02."""
    found = simulate_admission([50] * 4, "reserve", 129, 64, engines=1)
    assert found.makespan == pytest.approx(102) and found.peak == 100
    assert [span.start for span in found.spans] == pytest.approx([0, 0, 51, 51])


def test_static_regenerates_or_reads_again():
    """Two rollouts of 60 tokens and a budget of 100: an overflow at 50 evicts one of them."""
    found = simulate_admission([60, 60], "static", 100, 60, engines=1)
    assert (found.overflows, found.evictions, found.wasted) == (1, 1, 50)
    assert found.makespan == pytest.approx(50 * 1.02 + 10 * 1.01 + 60 * 1.01)
    again = simulate_admission([60, 60], "static", 100, 60, engines=1, read_cost=0.1)
    assert again.makespan == pytest.approx(50 * 1.02 + 10 * 1.01 + 5 + 10 * 1.01)


def test_a_tool_keeps_its_cache_and_takes_no_step():
    """Two turns of 10 tokens; the wait is the only draw."""
    wait = np.random.default_rng(3).exponential(40.0, 2)[0]
    found = simulate_admission([20], "reserve", 20, 20, engines=1, turns=2, tool_time=40.0, seed=3)
    assert found.makespan == pytest.approx(20 * 1.01 + wait)
    assert found.busy == pytest.approx(20 * 1.01 / found.makespan)
    total = 1.01 * (sum(range(20))) + 10 * wait
    assert found.cache_use == pytest.approx(total / (20 * found.makespan))


@pytest.mark.parametrize("read_cost", [None, 0.01])
@pytest.mark.parametrize("name", POLICIES)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=24),
    factor=st.integers(10, 40),
    engines=st.integers(1, 3),
    turns=st.integers(1, 3),
)
@settings(max_examples=25, deadline=None)
def test_invariants(name, read_cost, lengths, factor, engines, turns):
    budget = 6 * factor
    found = simulate_admission(
        lengths, name, budget, 60, engines=engines, read_cost=read_cost, turns=turns, tool_time=9.0
    )
    ends = [span.rollout for span in found.spans if not span.evicted]
    assert sorted(ends) == list(range(len(lengths)))  # each exactly once
    assert sum(span.evicted for span in found.spans) == found.evictions
    assert found.peak <= budget and 0 <= found.cache_use <= 1 and 0 < found.busy <= 1 + 1e-9
    if name == "reserve":
        assert found.overflows == found.evictions == found.wasted == 0
    for number in range(len(lengths)):  # the pieces of a rollout do not overlap
        spans = sorted((s.start, s.end) for s in found.spans if s.rollout == number)
        assert all(a[1] <= b[0] + 1e-9 for a, b in zip(spans, spans[1:]))
        assert spans[-1][1] == pytest.approx(found.finished_N[number])


@pytest.mark.parametrize("budget, slack, seeds", [(6000, 0, 1), (10_000, 0, 1), (16_000, 0.05, 3)])
def test_order_of_the_reference_workload(budget, slack, seeds):
    """At 16,000 tokens static and elastic lie within a few percent: means of three seeds."""
    time = {
        name: np.mean(
            [
                simulate_admission(draw_lengths(256, LIMIT, s), name, budget, LIMIT).makespan
                for s in range(seeds)
            ]
        )
        for name in POLICIES
    }
    assert time["elastic"] < time["static"] < (1 + slack) * time["reserve"]
    assert time["aimd"] < time["reserve"]


@pytest.mark.parametrize("lengths", [[], [0, 5], [5, 61]])
def test_impossible_lengths(lengths):
    with pytest.raises(ValueError, match=r"lengths must be in \[1, limit=60\]"):
        simulate_admission(lengths, "reserve", 100, 60)


# ---------------------------------------------------------------- routing


def test_prefill_of_the_reference_workload():
    """200 rollouts, 20 turns of 100 tokens, 8 replicas.

    With random routing the last turn on the same replica was a geometric number of turns ago, so
    turn t reads 100 * E[min(gap, t)] = 800 * (1 - (7/8)^t) tokens.
    """
    for router in ("hash", "sticky"):
        found = simulate_routing([1] * 200, router)
        assert (found.prefill, found.moves) == (400_000, 0)
    expected = 200 * sum(800 * (1 - (7 / 8) ** t) for t in range(1, 21))
    random = simulate_routing([1] * 200, "random")
    assert random.prefill == pytest.approx(expected, rel=0.03)
    assert random.moves == pytest.approx(200 * 19 * 7 / 8, rel=0.05)


def test_one_turn_takes_the_time_to_read_and_decode():
    found = simulate_routing([1], "hash", turns=1, read_cost=0.02, decode_time=7.0)
    assert found.makespan == pytest.approx(100 * 0.02 + 7) and found.imbalance == pytest.approx(8)
    # both on one replica, one after the other; the second reads no prompt
    how = dict(turns=1, replicas=1, prompt_tokens=50, read_cost=0.02, decode_time=7.0)
    assert simulate_routing([2], "hash", **how).makespan == pytest.approx(250 * 0.02 + 14)


def test_hashing_is_unbalanced_under_skew():
    """A group of 88 among 14 of 8 rollouts."""
    skewed, prompt = [88, *[8] * 14], dict(prompt_tokens=1000)
    work, prompts = 200 * 2000, 15 * 1000
    hashed = simulate_routing(skewed, "hash", by_group=True, **prompt)
    assert hashed.prefill == work + prompts and hashed.moves == 0
    # the replica of the large group has at least 44% of the turns instead of an eighth
    assert hashed.imbalance > 0.44 * 8 * 0.9
    aware = simulate_routing(skewed, "cache_aware", **prompt)
    assert aware.imbalance < 1.2 and aware.makespan < 0.5 * hashed.makespan
    by_rollout = simulate_routing(skewed, "hash", **prompt)
    assert aware.imbalance < by_rollout.imbalance < hashed.imbalance
    assert work + prompts < aware.prefill < by_rollout.prefill
    sticky = simulate_routing(skewed, "sticky", **prompt)
    assert sticky.moves == 0 and sticky.imbalance < 1.1


# ---------------------------------------------------------------- partial rollouts


def test_waiting_trains_every_rollout_and_takes_the_longest():
    found = simulate_partial("wait", batch=16, steps=5, seed=2)
    lengths_SB = draw_lengths(80, LIMIT, seed=2).reshape(5, 16)
    assert found.length_S == pytest.approx(lengths_SB.mean(axis=1))
    assert found.time_S == pytest.approx(lengths_SB.max(axis=1) + 0.01 * lengths_SB.sum(axis=1))
    assert found.age_S.max() == found.discarded == 0


def test_dropping_trains_the_shorter_half_for_ever():
    found = simulate_partial("drop", batch=64, steps=30)
    # mean of the lower half of a uniform distribution on [0.12, 1]
    assert found.length_S.mean() == pytest.approx(0.34 * LIMIT, rel=0.03)
    assert found.drawn == pytest.approx(0.56 * LIMIT, rel=0.02)
    assert found.discarded == pytest.approx(30 * 64 * 0.56 * LIMIT, rel=0.05)


def test_resuming_is_biased_at_first_only():
    """No token is lost, so the mean length of the trained rollouts approaches that of all."""
    found = simulate_partial("resume", batch=64, steps=40)
    assert found.length_S[0] == pytest.approx(0.34 * LIMIT, rel=0.1)
    assert found.length_S[10:].mean() == pytest.approx(0.56 * LIMIT, rel=0.02)
    assert found.discarded == 0
    # Little's law: 128 in progress, 64 leave per step, so a rollout stays two steps
    assert found.age_S[10:].mean() == pytest.approx(1, abs=0.03)
    assert found.time_S.sum() < 0.7 * simulate_partial("wait", batch=64, steps=40).time_S.sum()


def test_without_oversampling_nothing_is_interrupted():
    wait, resume = (simulate_partial(mode, oversample=1.0) for mode in ("wait", "resume"))
    assert np.array_equal(wait.time_S, resume.time_S)
    with pytest.raises(ValueError, match="oversample=0.5"):
        simulate_partial("drop", oversample=0.5)


# ---------------------------------------------------------------- results and figures


def test_committed_results():
    """The file that docs/scheduling.md quotes; see tests/benchmarks/make_scheduling.py."""
    folder = ROOT / "figures" / "reference" / "scheduling"
    result = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    rows = {(row["load"], row["router"]): row for row in result["routing"]}
    found = vars(simulate_routing([8] * 25, "cache_aware", prompt_tokens=1000))
    assert found == {name: rows["uniform", "cache_aware"][name] for name in found}
    for budget in (6_000, 10_000, 16_000):  # the order of the reference
        time = {
            row["policy"]: row["makespan"]
            for row in result["admission"]
            if row["budget"] == budget and row["read_cost"] is None and "turns" not in row
        }
        assert time["elastic"] < time["static"] < time["reserve"]
        if budget == 6_000:
            for name, reference in result["reference"].items():
                assert name == "prefill" or time[name] == pytest.approx(
                    reference["makespan"], rel=0.1
                )
    assert all(row["same_samples"] and row["peak"] <= row["budget"] for row in result["live"])
    assert {p.stem for p in folder.glob("*.png")} == {"admission", "routing", "partial"}


def test_figures():
    lengths_N = draw_lengths(24, 60, 0)
    schedules = {name: simulate_admission(lengths_N, name, 200, 60) for name in POLICIES}
    figure = plot_schedules(schedules, engine=1)
    for ax, schedule in zip(figure.axes, schedules.values()):
        spans = [span for span in schedule.spans if span.engine == 1]
        bars = [(bar.get_x(), bar.get_width(), round(bar.get_y())) for bar in ax.patches]
        assert sum(width for _, width, _ in bars) == pytest.approx(
            sum(span.end - span.start for span in spans)
        )
        for lane in {lane for _, _, lane in bars}:  # rollouts of a lane follow each other
            inside = sorted((x, x + width) for x, width, at in bars if at == lane)
            assert all(a[1] <= b[0] + 1e-6 for a, b in zip(inside, inside[1:]))
    loads = {
        name: {r: simulate_routing([3] * 3, r, turns=3) for r in ("random", "hash")}
        for name in "ab"
    }
    assert len(plot_routing(loads).axes[0].patches) == 4
    steps = {mode: simulate_partial(mode, steps=8) for mode in ("wait", "drop", "resume")}
    (length_ax, _) = plot_partial(steps).axes
    drawn = {line.get_label(): line.get_ydata() for line in length_ax.lines}
    assert drawn["drop"] == pytest.approx(
        100 * (steps["drop"].length_S / (0.56 * LIMIT) - 1), abs=4
    )
    plt.close("all")
