"""Simulators of rollout scheduling: admission by cache, routing to replicas, partial rollouts.

Time is counted in units of a decode step of an empty batch. The policies are those of
`drlib.models.admission` and `drlib.models.replica_routing`; nothing is sampled, so a simulation
takes seconds.

    PYTHONPATH=. python tests/benchmarks/make_scheduling.py
"""

import heapq
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from drlib.models.admission import ADMISSIONS, Admission
from drlib.models.replica_routing import ROUTERS
from drlib.validation import require, require_one_of

STEP_COST, ROLLOUT_COST = 1.0, 0.01  # of a decode step, and of each rollout in its batch


def draw_lengths(count: int, limit: int, seed: int, shortest: float = 0.12) -> np.ndarray:
    """Draw lengths in tokens, uniform in [shortest * limit, limit]: [count].

    With the default the mean is 0.56 of the limit.
    """
    lengths_N = np.random.default_rng(seed).uniform(shortest * limit, limit, count)
    return np.maximum(lengths_N.astype(int), 1)


# ---------------------------------------------------------------- admission


@dataclass(frozen=True)
class Span:
    """Time between the start and the end of a rollout on an engine; `evicted` if it lost its cache
    at the end and has to start again."""

    engine: int
    rollout: int
    start: float
    end: float
    evicted: bool


@dataclass
class Schedule:
    """Result of `simulate_admission`.

    Attributes:
        makespan: end of the last rollout.
        overflows, evictions, wasted, peak: see `drlib.models.admission.Admission`; sums over
            engines, and the maximum for `peak`.
        cache_use: mean share of all budgets that holds tokens.
        busy: mean share of the time in which engines compute.
        finished_N: end of each rollout.
        spans: of all rollouts.
    """

    makespan: float
    overflows: int
    evictions: int
    wasted: int
    peak: int
    cache_use: float
    busy: float
    finished_N: np.ndarray = field(repr=False)
    spans: list[Span] = field(repr=False)


@dataclass
class _Rollout:
    number: int
    length: int
    turn_ends: dict[int, float]  # tokens at the end of a turn -> time of the tool call
    tokens: int = 0
    ready: float = 0.0  # end of the tool call
    start: float = 0.0


class _EngineLane:
    """Simulated engine: decodes one token per step for every rollout that waits for no tool."""

    def __init__(self, number: int, admission: Admission, slots: int, read_cost: float | None):
        self.number, self.admission, self.slots = number, admission, slots
        self.read_cost = read_cost
        self.clock = self.busy = self.cache_time = 0.0
        self.running: list[_Rollout] = []
        self.spans: list[Span] = []

    def step(self, queue: deque[_Rollout]) -> list[_Rollout]:
        """Evict, admit and decode once; return the rollouts that finished."""
        now = self.clock
        cached_N, needed_N = self._tokens()
        for index in sorted(self.admission.evict(cached_N, needed_N).tolist(), reverse=True):
            rollout = self.running.pop(index)
            self._close(rollout, evicted=True)
            if self.read_cost is None:
                rollout.tokens = 0
            queue.appendleft(rollout)
        _, needed_N = self._tokens()
        first = itertools.islice(queue, self.slots - len(self.running))
        waiting_M = np.array([rollout.tokens + 1 for rollout in first], np.int64)
        cost = 0.0
        for _ in range(self.admission.admit(needed_N, waiting_M)):
            rollout = queue.popleft()
            rollout.start = now
            cost += (self.read_cost or 0.0) * rollout.tokens
            self.running.append(rollout)
        batch = [rollout for rollout in self.running if rollout.ready <= now]
        if not batch:  # all wait for tools, or there is no work until another engine evicts
            ready = (rollout.ready for rollout in self.running)
            self._advance(min(ready, default=np.inf) - now, busy=False)
            return []
        self._advance(cost + STEP_COST + ROLLOUT_COST * len(batch), busy=True)
        for rollout in batch:
            rollout.tokens += 1
            if rollout.tokens in rollout.turn_ends:
                rollout.ready = self.clock + rollout.turn_ends[rollout.tokens]
        self.admission.record(sum(rollout.tokens for rollout in self.running))
        finished = [rollout for rollout in batch if rollout.tokens == rollout.length]
        for rollout in finished:
            self.running.remove(rollout)
            self._close(rollout, evicted=False)
        return finished

    def _tokens(self) -> tuple[np.ndarray, np.ndarray]:
        cached_N = np.array([rollout.tokens for rollout in self.running], np.int64)
        decodes_N = np.array([rollout.ready <= self.clock for rollout in self.running], np.int64)
        return cached_N, cached_N + decodes_N

    def _advance(self, time: float, busy: bool) -> None:
        if self.running:
            self.cache_time += time * sum(rollout.tokens for rollout in self.running)
        self.busy += time if busy else 0.0
        self.clock += time

    def _close(self, rollout: _Rollout, evicted: bool) -> None:
        span = Span(self.number, rollout.number, rollout.start, self.clock, evicted)
        self.spans.append(span)


def simulate_admission(
    lengths_N: Sequence[int],
    policy: str,
    budget: int,
    limit: int,
    *,
    engines: int = 4,
    read_cost: float | None = None,
    turns: int = 1,
    tool_time: float = 0.0,
    seed: int = 0,
) -> Schedule:
    """Simulate rollouts on engines with a shared queue; each engine runs at most an equal share.

    A step takes 1 + 0.01 * batch. A rollout that waits for a tool keeps its cache.

    Args:
        lengths_N: tokens of each rollout.
        policy: name in `drlib.models.admission.ADMISSIONS`.
        budget: tokens of an engine's cache.
        limit: maximum length that the policy must expect.
        engines: number of engines.
        read_cost: time per token to read the context of an evicted rollout again; None: its tokens
            are generated again, one by one.
        turns: equal turns of a rollout.
        tool_time: mean time of the tool call between turns, exponential.
        seed: of the tool times, which do not depend on the schedule.

    Raises:
        ValueError: a length outside [1, limit], or a budget below the limit.
    """
    lengths_N = np.asarray(lengths_N)
    valid = len(lengths_N) > 0 and 1 <= lengths_N.min() <= lengths_N.max() <= limit
    require(valid, f"lengths must be in [1, limit={limit}], and at least one")
    rng, queue = np.random.default_rng(seed), deque[_Rollout]()
    for number, length in enumerate(lengths_N.tolist()):
        ends = [length * turn // turns for turn in range(1, turns)]
        queue.append(_Rollout(number, length, dict(zip(ends, rng.exponential(tool_time, turns)))))
    slots = -(-len(lengths_N) // engines)
    lanes = [
        _EngineLane(n, ADMISSIONS[policy](budget, limit), slots, read_cost) for n in range(engines)
    ]
    finished_N = np.full(len(lengths_N), np.nan)
    while np.isnan(finished_N).any():
        lane = min(lanes, key=lambda lane: lane.clock)
        now, waiting = lane.clock, len(queue)
        for rollout in lane.step(queue):
            finished_N[rollout.number] = lane.clock
        if len(queue) > waiting:  # engines without work take the evicted rollouts
            for idle in lanes:
                idle.clock = now if np.isinf(idle.clock) else idle.clock
    makespan = float(finished_N.max())
    counts = [lane.admission for lane in lanes]
    return Schedule(
        makespan,
        sum(count.overflows for count in counts),
        sum(count.evictions for count in counts),
        sum(count.wasted for count in counts),
        max(count.peak for count in counts),
        sum(lane.cache_time for lane in lanes) / (makespan * engines * budget),
        sum(lane.busy for lane in lanes) / (makespan * engines),
        finished_N,
        [span for lane in lanes for span in lane.spans],
    )


# ---------------------------------------------------------------- routing


@dataclass(frozen=True)
class Routing:
    """Result of `simulate_routing`.

    Attributes:
        prefill: tokens read by all replicas.
        imbalance: time that the busiest replica computes, divided by the mean.
        makespan: end of the last turn.
        moves: turns on another replica than the rollout's turn before.
    """

    prefill: int
    imbalance: float
    makespan: float
    moves: int


def simulate_routing(
    group_sizes: Sequence[int],
    router: str,
    *,
    by_group: bool = False,
    replicas: int = 8,
    turns: int = 20,
    turn_tokens: int = 100,
    prompt_tokens: int = 0,
    read_cost: float = 0.01,
    decode_time: float = 10.0,
    tool_time: float = 100.0,
    seed: int = 0,
) -> Routing:
    """Simulate the turns of rollouts on replicas with a prefix cache that evicts nothing.

    A turn adds `turn_tokens` to the context. Its replica reads the tokens that it has not cached
    and decodes; it serves one turn at a time, first come, first served. Then a tool is called. All
    rollouts start at once; those of a group have the same prompt.

    Args:
        group_sizes: rollouts of each group.
        router: name in `drlib.models.replica_routing.ROUTERS`.
        by_group: give the router the id of the group instead of the rollout's.
        replicas: number of replicas.
        turns: turns of a rollout.
        turn_tokens: new tokens per turn.
        prompt_tokens: before the first turn.
        read_cost: time per token read.
        decode_time: time to decode a turn.
        tool_time: mean time of a tool call, exponential.
        seed: of the tool times.
    """
    rng = np.random.default_rng(seed)
    chooser = ROUTERS[router]([f"replica-{n}" for n in range(replicas)])
    free_R, busy_R, loads_R = np.zeros(replicas), np.zeros(replicas), np.zeros(replicas, int)
    cached: list[dict[int, int]] = [{} for _ in range(replicas)]  # rollout -> tokens
    prompts: list[set[int]] = [set() for _ in range(replicas)]  # groups whose prompt is cached
    last: dict[int, int] = {}
    prefill = moves = 0
    # (time, order, rollout, turn, replica that finishes it; -1 for a request)
    group_N = np.repeat(np.arange(len(group_sizes)), group_sizes).tolist()
    events = [(0.0, n, n, 0, -1) for n in range(len(group_N))]
    order = itertools.count(len(events))
    while events:
        now, _, rollout, turn, replica = heapq.heappop(events)
        if replica >= 0:  # the turn ends
            loads_R[replica] -= 1
            if turn + 1 < turns:
                ready = now + rng.exponential(tool_time)
                heapq.heappush(events, (ready, next(order), rollout, turn + 1, -1))
            continue
        group = group_N[rollout]
        # ids that rollouts share in the prompt of their group only
        ids = [-1 - group] * prompt_tokens + [rollout] * (turn + 1) * turn_tokens
        key = f"group-{group}" if by_group else f"rollout-{rollout}"
        replica = chooser.choose(key, ids, loads_R.tolist())
        shared = prompt_tokens if group in prompts[replica] else 0
        unread = len(ids) - max(cached[replica].get(rollout, 0), shared)
        cached[replica][rollout] = len(ids)
        prompts[replica].add(group)
        prefill, moves = prefill + unread, moves + (last.get(rollout, replica) != replica)
        last[rollout] = replica
        time = read_cost * unread + decode_time
        free_R[replica] = max(now, free_R[replica]) + time
        busy_R[replica] += time
        loads_R[replica] += 1
        heapq.heappush(events, (free_R[replica], next(order), rollout, turn, replica))
    return Routing(prefill, float(busy_R.max() / busy_R.mean()), float(free_R.max()), moves)


# ---------------------------------------------------------------- partial rollouts


@dataclass(frozen=True)
class PartialSteps:
    """Result of `simulate_partial`; S steps.

    Attributes:
        time_S: duration of each step.
        length_S: mean length of the rollouts that it trains.
        age_S: mean number of earlier steps in which they were sampled: their oldest tokens are
            that many updates old.
        discarded: tokens of rollouts that were stopped and never trained.
        drawn: mean length of all rollouts that were started.
    """

    time_S: np.ndarray
    length_S: np.ndarray
    age_S: np.ndarray
    discarded: int
    drawn: float


def simulate_partial(
    mode: Literal["wait", "drop", "resume"],
    *,
    batch: int = 64,
    oversample: float = 2.0,
    steps: int = 40,
    limit: int = 768,
    shortest: float = 0.12,
    seed: int = 0,
) -> PartialSteps:
    """Simulate training steps that end when `batch` rollouts are complete.

    Args:
        mode: "wait" starts `batch` rollouts and waits for all of them. The others start
            `oversample * batch` and interrupt the longest: "drop" discards them, "resume" goes on
            with them in the next step, before new rollouts start.
        batch: rollouts per step.
        oversample: rollouts in progress per rollout of the batch, at least 1.
        steps: training steps.
        limit, shortest: of the lengths, see `draw_lengths`.
        seed: of the lengths.
    """
    require_one_of(mode, ("wait", "drop", "resume"), "mode")
    require(oversample >= 1, f"oversample={oversample} must be at least 1")
    slots = batch if mode == "wait" else round(oversample * batch)
    lengths_N = draw_lengths(slots * steps, limit, seed, shortest)
    started, discarded, rows = 0, 0, []
    length_P = left_P = begun_P = np.zeros(0, int)  # rollouts in progress
    for step in range(steps):
        new_K = lengths_N[started : started + slots - len(left_P)]
        started += len(new_K)
        length_P, left_P = np.append(length_P, new_K), np.append(left_P, new_K)
        begun_P = np.append(begun_P, np.full(len(new_K), step))
        order = np.argsort(left_P, kind="stable")
        done, rest = order[:batch], order[batch:]
        tokens = left_P[done[-1]]  # decoded by the rollouts that are not done
        work = np.minimum(left_P, tokens).sum()
        rows.append(
            (
                STEP_COST * tokens + ROLLOUT_COST * work,
                length_P[done].mean(),
                (step - begun_P[done]).mean(),
            )
        )
        if mode == "drop":
            discarded += int(tokens * len(rest))
            rest = rest[:0]
        length_P, left_P, begun_P = length_P[rest], left_P[rest] - tokens, begun_P[rest]
    time_S, length_S, age_S = np.array(rows).T
    return PartialSteps(time_S, length_S, age_S, discarded, float(lengths_N[:started].mean()))
