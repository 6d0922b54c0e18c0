"""Routing of the requests of rollouts to replicas of an engine.

The turns of a rollout share their prefix. A replica that served the last turn has it in its cache
and reads the new tokens only; any other replica reads the whole context again. GLM-5 (arXiv
2602.15763) therefore sends a rollout to one rank by consistent hashing of its id.

A router has one method, `choose`. All routers are built from the names of the replicas.
"""

import bisect
import hashlib
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np

from drlib.registry import Registry
from drlib.validation import require

ROUTERS: Registry = Registry("router")
POINTS = 128  # of a replica on the ring; the shares of N replicas differ by about 1/sqrt(POINTS)


class Router(Protocol):
    """Interface of the routers."""

    def choose(self, rollout: Hashable, ids: Sequence[int], loads_N: Sequence[float]) -> int:
        """Return the index of a replica.

        Args:
            rollout: id of the rollout.
            ids: context of the request, as token ids.
            loads_N: load of each replica, such as the requests in flight.
        """
        ...


@ROUTERS.register("random")
class RandomReplica:
    """Any replica, for comparison."""

    def __init__(self, replicas: Sequence[str], seed: int = 0):
        self._count, self._random = _count(replicas), np.random.default_rng(seed)

    def choose(self, rollout: Hashable, ids: Sequence[int], loads_N: Sequence[float]) -> int:
        """Return the index of a replica; see `Router.choose`."""
        return int(self._random.integers(self._count))


@ROUTERS.register("hash")
class ConsistentHash:
    """The replica after the hash of the rollout id on a ring (Karger et al., 1997).

    It keeps no state, so all clients agree. A replica that joins takes about 1/N of the rollouts,
    and no other rollout moves. It is blind to loads.
    """

    def __init__(self, replicas: Sequence[str]):
        _count(replicas)
        points = [
            (_hash(f"{name}/{point}"), index)
            for index, name in enumerate(replicas)
            for point in range(POINTS)
        ]
        self._points, self._owners = zip(*sorted(points))

    def choose(self, rollout: Hashable, ids: Sequence[int], loads_N: Sequence[float]) -> int:
        """Return the index of the rollout's replica; see `Router.choose`."""
        at = bisect.bisect(self._points, _hash(str(rollout)))
        return self._owners[at % len(self._owners)]


@ROUTERS.register("sticky")
class StickyLeastLoaded:
    """The replica with the lowest load at the rollout's first request, and the same ever after."""

    def __init__(self, replicas: Sequence[str]):
        self._rollouts = [0] * _count(replicas)  # per replica; decides between equal loads
        self._chosen: dict[Hashable, int] = {}

    def choose(self, rollout: Hashable, ids: Sequence[int], loads_N: Sequence[float]) -> int:
        """Return the index of the rollout's replica; see `Router.choose`."""
        if rollout not in self._chosen:
            replica = min(range(len(loads_N)), key=lambda n: (loads_N[n], self._rollouts[n]))
            self._chosen[rollout] = replica
            self._rollouts[replica] += 1
        return self._chosen[rollout]


@ROUTERS.register("cache_aware")
class CacheAware:
    """The replica with the longest cached prefix, unless its load is too high.

    Contexts are compared in blocks of ids, as in the prefix caches of vLLM and SGLang, so rollouts
    also share the prompt of their group. The router keeps the blocks that it sent to each replica
    and forgets the oldest; the replica may have evicted more.

    Args:
        replicas: names.
        block: ids per block.
        capacity: blocks kept per replica.
        bound, slack: a replica takes requests while its load is at most bound * mean + slack;
            otherwise the replica with the lowest load does.
    """

    def __init__(
        self,
        replicas: Sequence[str],
        *,
        block: int = 16,
        capacity: int = 100_000,
        bound: float = 1.25,
        slack: float = 2.0,
    ):
        require(bound >= 1 and slack >= 0, f"bound={bound} must be >= 1 and slack={slack} >= 0")
        require(min(block, capacity) >= 1, "block and capacity must be at least 1")
        self._block, self._capacity, self._bound, self._slack = block, capacity, bound, slack
        # block hash -> None per replica, oldest first
        self._sent: list[OrderedDict] = [OrderedDict() for _ in range(_count(replicas))]

    def choose(self, rollout: Hashable, ids: Sequence[int], loads_N: Sequence[float]) -> int:
        """Return the index of a replica; see `Router.choose`."""
        blocks = self._hash_blocks(ids)
        most = self._bound * sum(loads_N) / len(loads_N) + self._slack
        permitted = [n for n, load in enumerate(loads_N) if load <= most]
        replica = min(permitted, key=lambda n: (-self._cached(n, blocks), loads_N[n]))
        sent = self._sent[replica]
        for block in blocks:
            sent[block] = None
            sent.move_to_end(block)
        while len(sent) > self._capacity:
            sent.popitem(last=False)
        return replica

    def _cached(self, replica: int, blocks: list[int]) -> int:
        """Return the number of leading blocks that the replica was sent."""
        sent = self._sent[replica]
        return next((n for n, block in enumerate(blocks) if block not in sent), len(blocks))

    def _hash_blocks(self, ids: Sequence[int]) -> list[int]:
        """Return one hash per full block, of the block and all ids before it."""
        hashes, value = [], 0
        for start in range(0, len(ids) - self._block + 1, self._block):
            value = hash((value, *ids[start : start + self._block]))
            hashes.append(value)
        return hashes


def _count(replicas: Sequence[str]) -> int:
    """Return the number of replicas; ValueError if there are none or names repeat."""
    unique = 0 < len(replicas) == len(set(replicas))
    require(unique, f"replicas={list(replicas)}: give at least one name, each once")
    return len(replicas)


def _hash(text: str) -> int:
    """Return 64 bits that do not change between processes, unlike `hash`."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
