"""Admission policies: hand-computed decisions, and invariants of every schedule.

Run: python -m pytest tests/test_models_admission.py
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.models.admission import ADMISSIONS, Admission, Aimd, Elastic, Reserve, Static

POLICIES = sorted(ADMISSIONS)


def tokens(*values):
    return np.array(values, np.int64)


def test_reserve_divides_the_budget_by_the_maximum_length():
    policy = Reserve(1000, 300)
    waiting_M = tokens(*[5] * 9)
    assert policy.admit(tokens(), waiting_M) == 3
    assert policy.admit(tokens(10), waiting_M) == 2
    assert policy.admit(tokens(10, 20, 299), waiting_M) == 0
    assert policy.admit(tokens(10), waiting_M[:1]) == 1


def test_elastic_reserves_half_the_maximum_or_the_actual_length():
    policy = Elastic(1000, 200)  # 900 usable, 100 per rollout
    waiting_M = tokens(*[5] * 20)
    assert policy.admit(tokens(), waiting_M) == 9
    assert policy.admit(tokens(150, 160), waiting_M) == 5  # 310 held, 590 left
    assert policy.admit(tokens(150), tokens(5, 190, 5)) == 3  # an evicted rollout counts in full
    assert policy.admit(tokens(160, 199, 199, 199), tokens(190)) == 0


def test_static_starts_everything_when_nothing_runs():
    policy = Static(100, 60)
    assert policy.admit(tokens(), tokens(*[10] * 20)) == 10
    assert policy.admit(tokens(3), tokens(10)) == 0


def test_static_evicts_the_shorter_half_until_the_step_fits():
    policy = Static(100, 60)
    assert policy.evict(tokens(19, 29, 29, 19), tokens(20, 30, 30, 20)).tolist() == []
    found = policy.evict(tokens(49, 10, 20, 30), tokens(50, 11, 21, 31))
    assert sorted(found.tolist()) == [1, 2]
    assert (policy.overflows, policy.evictions, policy.wasted) == (1, 2, 30)
    # two halves of 1, 2, 58 and 59 tokens: without one of the long rollouts
    found = policy.evict(tokens(1, 57, 2, 58), tokens(1, 58, 2, 59))
    assert sorted(found.tolist()) == [0, 1, 2]


@pytest.mark.parametrize("policy_class", [Elastic, Aimd])
def test_the_fewest_short_rollouts_are_evicted(policy_class):
    policy = policy_class(100, 60)
    found = policy.evict(tokens(40, 6, 15, 48), tokens(41, 7, 16, 49))  # 113 > 100
    assert sorted(found.tolist()) == [1, 2]  # 90 are left: the budget without its headroom
    assert (policy.overflows, policy.evictions, policy.wasted) == (1, 2, 21)


def test_aimd_window():
    policy = Aimd(1000, 300)
    waiting_M = tokens(*[1] * 50)
    assert policy.window == 3 and policy.admit(tokens(), waiting_M) == 3
    policy.evict(tokens(10, 10), tokens(11, 11))
    assert policy.window == 3  # not full: no reason to grow
    for _ in range(50):
        policy.evict(tokens(10, 10, 10), tokens(11, 11, 11))
    assert policy.window == pytest.approx(4.0)
    assert policy.admit(tokens(11, 11, 11), waiting_M) == int(policy.window) - 3
    policy.evict(tokens(*[299] * 4), tokens(*[300] * 4))
    assert policy.window == pytest.approx(2.0)
    assert policy.admit(tokens(300, 300), waiting_M) == 0
    for _ in range(9):
        policy.evict(tokens(*[299] * 4), tokens(*[300] * 4))
    assert policy.window == 1.0  # never below one rollout


@pytest.mark.parametrize("name", POLICIES)
def test_one_rollout_always_starts_and_one_always_stays(name):
    policy = ADMISSIONS[name](100, 100)
    assert policy.admit(tokens(), tokens(100, 100)) == 1  # above the headroom
    assert policy.admit(tokens(), tokens()) == 0
    assert len(policy.evict(tokens(99, 99), tokens(100, 100))) == 1


@pytest.mark.parametrize("name", POLICIES)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_schedules_keep_the_budget_and_finish_every_rollout_once(name, data):
    """Contexts grow by single tokens, and by whole tool results after random waits."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    limit = data.draw(st.integers(2, 40))
    budget = data.draw(st.integers(limit, 5 * limit))
    rng = np.random.default_rng(seed)
    lengths_N = rng.integers(1, limit + 1, 12)
    policy = ADMISSIONS[name](budget, limit)
    held_N, waiting, running, finished = np.zeros(12, int), list(range(12)), [], []
    for _ in range(20_000):
        growth = rng.choice([0, 1, 1, 1, limit // 2], len(running))
        cached_N = held_N[running]
        needed_N = np.minimum(cached_N + growth, lengths_N[running])
        evicted = policy.evict(cached_N, needed_N)
        evicted_now = [running[i] for i in evicted]
        assert len(evicted) < max(len(running), 1) and len(set(evicted_now)) == len(evicted)
        needed = dict(zip(running, needed_N.tolist()))
        running = [n for n in running if n not in evicted_now]
        waiting = sorted(waiting + evicted_now)
        stay_N = np.array([needed[n] for n in running], np.int64)
        waiting_M = np.minimum(held_N[waiting] + 1, lengths_N[waiting])
        count = policy.admit(stay_N, waiting_M)
        assert 0 <= count <= len(waiting) and (count or running or not waiting)
        for n in waiting[:count]:
            needed[n] = min(held_N[n] + 1, lengths_N[n])
        running, waiting = running + waiting[:count], waiting[count:]
        for n in running:
            held_N[n] = needed[n]
        policy.record(int(held_N[running].sum()))
        done = [n for n in running if held_N[n] >= lengths_N[n]]
        finished += done
        running = [n for n in running if n not in done]
        if not running and not waiting:
            break
    assert sorted(finished) == list(range(12))
    assert name != "reserve" or policy.evictions == policy.overflows == policy.wasted == 0
    assert 0 < policy.peak <= budget


def test_a_policy_that_exceeds_the_budget_is_reported():
    class Keeps(Admission):
        def select(self, needed_N):
            return needed_N[:0]

    policy = Keeps(100, 60)
    assert len(policy.evict(tokens(60, 40), tokens(60, 41))) == 0
    policy.record(100)
    with pytest.raises(RuntimeError, match="101 cached tokens exceed kv_budget=100: Keeps.select"):
        policy.record(101)
    assert policy.peak == 100


@pytest.mark.parametrize("name", POLICIES)
def test_a_budget_below_the_longest_rollout_is_rejected(name):
    with pytest.raises(ValueError, match="kv_budget=99 must be at least the context of 100 tokens"):
        ADMISSIONS[name](99, 100)


def test_a_policy_of_ones_own_needs_one_method():
    class Two(Admission):
        """At most two rollouts."""

        def admit(self, needed_N, waiting_M):
            return min(super().admit(needed_N, waiting_M), 2 - len(needed_N))

    policy = Two(1000, 100)
    assert policy.admit(tokens(), tokens(1, 1, 1)) == 2
    assert policy.admit(tokens(1), tokens(1, 1, 1)) == 1
