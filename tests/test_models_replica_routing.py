"""Routers: a rollout keeps its replica, few keys move, caches and loads are respected.

Run: python -m pytest tests/test_models_replica_routing.py
"""

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.models.replica_routing import ROUTERS, CacheAware, ConsistentHash, StickyLeastLoaded

KEYS = [f"task-{n}/{sample}" for n in range(250) for sample in range(8)]


def names(count):
    return [f"http://host-{n}:8000/v1" for n in range(count)]


def idle(count):
    return [0] * count


def hashed(replicas):
    router = ConsistentHash(replicas)
    return [replicas[router.choose(key, [], idle(len(replicas)))] for key in KEYS]


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_a_joining_replica_takes_about_its_share_and_no_other_key_moves(count):
    before, after = hashed(names(count)), hashed(names(count + 1))
    moved = [new for old, new in zip(before, after) if old != new]
    assert set(moved) == {names(count + 1)[-1]}
    assert 0.5 / (count + 1) < len(moved) / len(KEYS) < 1.5 / (count + 1)


def test_a_leaving_replica_moves_only_its_own_keys():
    replicas = names(6)
    before, after = hashed(replicas), hashed(replicas[:2] + replicas[3:])
    assert all((old == replicas[2]) == (old != new) for old, new in zip(before, after))


def test_the_hash_does_not_depend_on_order_or_process():
    replicas = names(5)
    assert hashed(replicas) == hashed(replicas[::-1])
    code = (
        "from tests.test_models_replica_routing import hashed, names;"
        "import zlib; print(zlib.crc32(repr(hashed(names(5))).encode()))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
        ).stdout
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    assert len(seen) == 1


def test_hash_shares_of_the_replicas():
    counts = Counter(hashed(names(8)))
    assert len(counts) == 8 and max(counts.values()) < 1.4 * len(KEYS) / 8


@pytest.mark.parametrize("name", ["hash", "sticky"])
@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_a_rollout_stays_on_its_replica_under_any_load(name, loads):
    router = ROUTERS[name](names(4))
    for rollout in range(5):
        assert len({router.choose(rollout, [1] * n, load) for n, load in enumerate(loads)}) == 1


def test_sticky_starts_on_the_least_loaded_replica():
    router = StickyLeastLoaded(names(3))
    assert router.choose("a", [], [5, 2, 3]) == 1
    assert router.choose("a", [], [0, 9, 0]) == 1
    # equal loads: the replica with the fewest rollouts
    assert [router.choose(n, [], idle(3)) for n in range(5)] == [0, 2, 0, 1, 2]


def cache_aware(count=3, **options):
    return CacheAware(names(count), block=4, **options)


def test_the_longest_cached_prefix_wins():
    router = cache_aware()
    prompt = list(range(8))
    assert router.choose("a", prompt, [1, 0, 1]) == 1
    assert router.choose("b", [99] * 8, [1, 1, 0]) == 2
    assert router.choose("c", prompt + [7] * 8, [0, 1, 1]) == 1  # another rollout of the group
    assert router.choose("d", prompt[:4] + [99] * 4, [0, 1, 1]) == 1  # one block is enough
    # equal blocks in another order are no prefix
    assert router.choose("e", prompt[4:] + prompt[:4], [0, 1, 1]) == 0
    assert router.choose("f", prompt[:3], [1, 1, 0]) == 2  # less than a block


def test_a_replica_above_the_load_bound_takes_no_request():
    router = cache_aware(bound=1.5, slack=2.0)
    prompt = list(range(8))
    assert router.choose("a", prompt, [0, 0, 0]) == 0
    assert router.choose("a", prompt, [5, 1, 0]) == 0  # 5 <= 1.5 * 2 + 2
    assert router.choose("a", prompt, [6, 1, 0]) == 2  # 6 > 1.5 * 7 / 3 + 2
    assert router.choose("a", prompt, [2, 0, 1]) == 2  # both have the prefix: the lower load


def test_old_blocks_are_forgotten():
    router = cache_aware(capacity=3)
    first, second = [1] * 8, [2] * 8
    assert router.choose("a", first, [0, 1, 1]) == 0
    assert router.choose("b", second, [0, 1, 1]) == 0  # two more blocks: the oldest one is dropped
    assert router.choose("a", first, [1, 0, 1]) == 1
    assert router.choose("b", second, [1, 0, 1]) == 0


@pytest.mark.parametrize("name", sorted(ROUTERS))
def test_replicas_need_distinct_names(name):
    for replicas in ([], ["a", "a"]):
        with pytest.raises(ValueError, match="give at least one name, each once"):
            ROUTERS[name](replicas)


def test_impossible_bounds():
    with pytest.raises(ValueError, match="bound=0.9 must be >= 1"):
        cache_aware(bound=0.9)
    with pytest.raises(ValueError, match="block and capacity"):
        cache_aware(capacity=0)
