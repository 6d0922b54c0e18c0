"""Admission of rollouts to an engine by the budget of its KV cache.

A rollout that runs holds its context in the cache: prompt, sampled tokens and tool results, also
while a tool runs. Its final length is unknown when it starts. A policy decides how many waiting
rollouts start (`admit`), and which lose their cache when the next step would not fit (`evict`). An
evicted rollout waits again, and its tokens are recomputed.

The same objects schedule `drlib.models.local_engine.LocalEngine` and the simulator
`drlib.analysis.scheduling`. Static launch and the division of the cache by the maximum length are
those of rStar2-Agent (arXiv 2508.20722, section 3.2); AIMD is TCP's congestion control.
"""

import numpy as np

from drlib.registry import Registry
from drlib.validation import require

ADMISSIONS: Registry = Registry("admission")


class Admission:
    """Base of the policies; its own methods evict the shortest rollouts on overflow.

    Args:
        budget: tokens of the cache.
        limit: maximum tokens of a rollout.

    Attributes:
        peak: largest number of tokens held after a step, see `record`.
        overflows: steps that did not fit.
        evictions: rollouts that lost their cache, with repetitions.
        wasted: tokens that they lost.

    Raises:
        ValueError: the longest rollout does not fit.
    """

    headroom = 0.0  # share of the budget that admission leaves free

    def __init__(self, budget: int, limit: int):
        fits = 1 <= limit <= budget
        require(fits, f"kv_budget={budget} must be at least the context of {limit} tokens")
        self.budget, self.limit = budget, limit
        self.peak = self.overflows = self.evictions = self.wasted = 0

    def reserve(self, tokens_N: np.ndarray) -> np.ndarray:
        """Return the tokens set aside for rollouts that need `tokens_N`."""
        return tokens_N

    def admit(self, needed_N: np.ndarray, waiting_M: np.ndarray) -> int:
        """Return the number of waiting rollouts that start now, first come, first served.

        At least one starts if none holds cache, so the schedule cannot stop.

        Args:
            needed_N: tokens that each running rollout holds after its next step.
            waiting_M: the same of the waiting rollouts.
        """
        free = self._usable - self.reserve(needed_N).sum()
        count = int((np.cumsum(self.reserve(waiting_M)) <= free).sum())
        return max(count, min(1, len(waiting_M))) if len(needed_N) == 0 else count

    def evict(self, cached_N: np.ndarray, needed_N: np.ndarray) -> np.ndarray:
        """Return the indices of the rollouts to evict before the next step.

        Call it once before each step: AIMD counts the calls.

        Args:
            cached_N: tokens that each running rollout holds now.
            needed_N: tokens that it holds after the step.
        """
        evicted = np.zeros(0, np.int64)
        if needed_N.sum() > self.budget:
            evicted = self.select(needed_N)
            self.overflows += 1
            self.evictions += len(evicted)
            self.wasted += int(cached_N[evicted].sum())
        return evicted

    def record(self, held: int) -> None:
        """Record the tokens in the cache after a step.

        Raises:
            RuntimeError: more than the budget, so `admit` or `select` is wrong.
        """
        if held > self.budget:
            name = type(self).__name__
            raise RuntimeError(
                f"{held} cached tokens exceed kv_budget={self.budget}: {name}.select must evict "
                "until the step fits"
            )
        self.peak = max(self.peak, held)

    def select(self, needed_N: np.ndarray) -> np.ndarray:
        """Return the shortest rollouts whose eviction restores the headroom; one always stays."""
        order = np.argsort(needed_N, kind="stable")
        left = needed_N.sum() - np.cumsum(needed_N[order])
        return order[: min(1 + int((left > self._usable).sum()), len(order) - 1)]

    @property
    def _usable(self) -> float:
        return (1 - self.headroom) * self.budget


@ADMISSIONS.register("static")
class Static(Admission):
    """Start everything that fits at once; an overflow evicts half of the rollouts that run.

    Evicted and remaining rollouts start together when the last running one has finished.
    """

    def admit(self, needed_N: np.ndarray, waiting_M: np.ndarray) -> int:
        return 0 if len(needed_N) else super().admit(needed_N, waiting_M)

    def select(self, needed_N: np.ndarray) -> np.ndarray:
        """Return the shorter half, and halves of the rest until it fits."""
        order = np.argsort(needed_N, kind="stable")
        count = 0
        while needed_N[order[count:]].sum() > self.budget:
            count += (len(order) - count) // 2
        return order[:count]


@ADMISSIONS.register("reserve")
class Reserve(Admission):
    """Reserve the maximum length: floor(budget / limit) rollouts run, and none is ever evicted."""

    def reserve(self, tokens_N: np.ndarray) -> np.ndarray:
        return np.full(len(tokens_N), self.limit)


@ADMISSIONS.register("elastic")
class Elastic(Admission):
    """Reserve `expected_share` of the maximum length, or the actual length if it is larger."""

    headroom = 0.1
    expected_share = 0.5

    def reserve(self, tokens_N: np.ndarray) -> np.ndarray:
        return np.maximum(tokens_N, self.expected_share * self.limit)


@ADMISSIONS.register("aimd")
class Aimd(Admission):
    """Additive increase, multiplicative decrease of the number of rollouts that may run.

    The window starts at floor(budget / limit), grows by `increase` in each step without overflow
    while it is full, and shrinks by the factor `decrease` on overflow. It assumes nothing about
    lengths.
    """

    headroom = 0.1
    increase = 0.02
    decrease = 0.5

    def __init__(self, budget: int, limit: int):
        super().__init__(budget, limit)
        self.window = float(budget // limit)

    def admit(self, needed_N: np.ndarray, waiting_M: np.ndarray) -> int:
        count = super().admit(needed_N, waiting_M)
        return max(min(count, int(self.window) - len(needed_N)), 0)

    def evict(self, cached_N: np.ndarray, needed_N: np.ndarray) -> np.ndarray:
        evicted = super().evict(cached_N, needed_N)
        if len(evicted):
            self.window = max(1.0, self.decrease * self.window)
        elif len(needed_N) >= int(self.window):
            self.window += self.increase
        return evicted
