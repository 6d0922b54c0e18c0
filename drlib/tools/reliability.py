"""Caching, rate limits, retries, circuit breaking and fail-over for tool calls.

`ReliableOperation` calls the ordered backends of one operation and returns an `OperationOutcome`;
it never raises a fault. "not_found" and "refused" are answers: they are not retried, do not count
at the circuit breaker and are no environment fault; only a source in this process is still called.
If an earlier backend was down, however, an empty answer of the next one is an environment fault,
because the first might have had the value. Faults of one page do not count at the breaker; other
backends are called.

Tongyi DeepResearch's report requires deterministic calls: the back-off depends on (seed, key,
attempt) only. Effects of thread order are not part of an outcome (waiting for the rate limit) or
can be disabled (the breaker). Not implemented: stopping a backend that exceeds its time limit
(threads cannot be stopped), expiry of cached values (the world's version is part of the key), a
rate shared by several processes.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
import threading
import time
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from drlib.tools.backends import ANSWERS, PAGE_FAULTS, Backend, ToolFault, digest, uniform

WINDOW_S = 1.000001  # slightly above 1 s, so that rounding keeps the distance
# Statuses of a program stopped by time or from outside: not cached.
TRANSIENT_STATUSES = ("timeout", "killed")


@dataclass(frozen=True)
class ReliabilityPolicy:
    """Limits on retries, time and rate of an operation.

    A source in this process (world, sandbox) has no rate limit and no breaker, and is called once
    even after the deadline.

    Raises:
        ValueError: a number is out of range.
    """

    attempts: int = 3  # attempts per backend
    timeout_s: float = 15.0  # per attempt
    deadline_s: float = 60.0  # per call, including all operations and waits
    backoff_s: float = 0.5  # before the second attempt; doubles; half of it is jitter
    backoff_max_s: float = 8.0
    rate: int = 0  # calls per backend in any window of one second; 0: no limit
    breaker_failures: int = 5  # consecutive failures that open a backend's breaker; 0: never
    breaker_open_s: float = 30.0  # then one trial call is allowed
    critical: bool = True  # a final failure is an environment fault
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("timeout_s", "deadline_s", "backoff_s", "backoff_max_s", "breaker_open_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0 seconds")
        if self.attempts < 1 or self.rate < 0 or self.breaker_failures < 0:
            raise ValueError("attempts must be at least 1, rate and breaker_failures at least 0")


class OperationOutcome(NamedTuple):
    """Result of an operation; equal calls share it, so `value` must not be changed."""

    value: Any  # None if no source had one
    source: str = ""  # the backend that answered
    attempts: int = 1  # over all backends; for a cached outcome, of the original call
    cache_hit: bool = False
    degraded: bool = False  # the first backend did not answer
    env_fault: bool = False
    error: str = ""  # kind of an answer without value, or of the last fault

    @property
    def has_answer(self) -> bool:
        """True if a source answered, even if it has no value."""
        return not self.error or self.error in (*ANSWERS, *PAGE_FAULTS)

    @property
    def is_cacheable(self) -> bool:
        """True if later calls may reuse it: no backend was down and no time limit applied."""
        status = self.value.get("status") if isinstance(self.value, dict) else ""
        sound = self.has_answer and not self.degraded and not self.env_fault
        return sound and status not in TRANSIENT_STATUSES


class ReliableOperation:
    """One operation with ordered `backends`; safe for many threads.

    Args:
        tool: name of the tool, part of the cache key.
        backends: called in order until one has a value.
        policy: limits.
        check: converts a backend's value to the expected form, or raises ToolFault("malformed"). If
            it returns a dict with a true "env_fault", the outcome is an environment fault and not
            cached.
        disk: caches values of the first backend.
        memory: cache of recent outcomes, may be shared between operations.
        clock: has `monotonic()` and `sleep(seconds)`, like the module `time`.
    """

    def __init__(
        self,
        tool: str,
        backends: Sequence[Backend],
        policy: ReliabilityPolicy = ReliabilityPolicy(),
        *,
        check: Callable[[Any], Any] = lambda value: value,
        disk: DiskCache | None = None,
        memory: MemoryCache | None = None,
        clock: Any = time,
    ):
        self.tool = tool
        self.policy = policy
        self._check = check
        self._disk = disk
        self._memory = memory or MemoryCache()
        self._clock = clock
        self._backends = [_GuardedBackend(backend, policy, clock) for backend in backends]

    def call(
        self,
        arguments: Mapping[str, Any],
        version: str = "",
        local: Backend | None = None,
        until: float = math.inf,
    ) -> OperationOutcome:
        """Return the outcome for `arguments` in world `version`; equal calls share one.

        Args:
            arguments: JSON types.
            version: version of the world, part of the cache key.
            local: a source in this process, called after all backends.
            until: the clock's time of an earlier deadline than the policy's.
        """
        key = digest(self.tool, arguments, version)

        def make() -> OperationOutcome:
            stored = self._disk.get(key) if self._disk else None
            if stored:
                value, source = stored
                return OperationOutcome(value, source, cache_hit=True)
            made = self._ask(key, arguments, local, until)
            if self._disk and made.is_cacheable and not made.error:
                self._disk.put(key, [made.value, made.source])
            return made

        outcome, shared = self._memory.get(key, make, lambda made: made.is_cacheable)
        if not shared:
            return outcome
        # A result shared with concurrent calls is a hit, unless it was a failure.
        return outcome._replace(cache_hit=outcome.has_answer and not outcome.env_fault)

    def _ask(
        self, key: str, arguments: Mapping, local: Backend | None, until: float
    ) -> OperationOutcome:
        """Call one backend after the other until one has a value."""
        until = min(until, self._clock.monotonic() + self.policy.deadline_s)
        guarded_backends = list(self._backends)
        if local is not None:
            free = replace(self.policy, rate=0, breaker_failures=0)
            guarded_backends.append(_GuardedBackend(local, free, self._clock))
        attempts = 0  # attempts over all backends
        error = "skipped"  # kind of the last fault
        # True if an earlier source failed and might have had the value
        is_down = not guarded_backends
        empty_outcome = None  # outcome of the first source without a value
        for place, guarded in enumerate(guarded_backends):
            if empty_outcome is not None and guarded.backend is not local:
                continue
            value, fault, attempts = self._try(guarded, key, arguments, until, attempts, local)
            name = guarded.backend.name
            degraded = place > 0
            if fault is None:
                has_env_fault = isinstance(value, dict) and bool(value.get("env_fault"))
                env_fault = self.policy.critical and (has_env_fault or (is_down and not value))
                return OperationOutcome(value, name, attempts, False, degraded, env_fault)
            error = fault.kind
            if error in ANSWERS and empty_outcome is None:
                env_fault = self.policy.critical and is_down
                empty_outcome = OperationOutcome(None, name, 0, False, degraded, env_fault, error)
            is_down = is_down or error not in (*ANSWERS, *PAGE_FAULTS)
        if empty_outcome is not None:
            return empty_outcome._replace(attempts=attempts)
        env_fault = self.policy.critical and is_down
        return OperationOutcome(None, "", attempts, False, True, env_fault, error)

    def _try(
        self,
        guarded: _GuardedBackend,
        key: str,
        arguments: Mapping,
        until: float,
        attempts: int,
        local: Backend | None,
    ) -> tuple[Any, ToolFault | None, int]:
        """Call one backend as often as the policy allows.

        Returns:
            Its value; the last fault or None; attempts over all backends, `attempts` included.
        """
        # Written out: tenacity needs more lines for the count of attempts and the deadline, and
        # makes a call of a local backend three times as slow (45 instead of 15 microseconds).
        turn_until = math.inf if guarded.backend is local else until
        for retry in range(self.policy.attempts):
            try:
                return guarded.ask(arguments, turn_until, self._check), None, attempts + 1
            except ToolFault as caught:
                fault = caught
            if fault.kind != "skipped":
                attempts += 1
            wait = self._backoff(key, attempts, retry, fault)
            too_late = self._clock.monotonic() + wait >= until
            is_final = not fault.transient or guarded.open_until is not None
            if is_final or too_late or retry + 1 == self.policy.attempts:
                break
            self._clock.sleep(wait)
        return None, fault, attempts

    def _backoff(self, key: str, attempt: int, retry: int, fault: ToolFault) -> float:
        """Return the seconds before the next attempt."""
        step = min(self.policy.backoff_s * 2**retry, self.policy.backoff_max_s)
        wait = step * (0.5 + uniform(self.policy.seed, key, attempt) / 2)
        return max(wait, fault.retry_after_s or 0.0)


class _GuardedBackend:
    """One backend with its rate limit and circuit breaker."""

    def __init__(self, backend: Backend, policy: ReliabilityPolicy, clock: Any) -> None:
        self.backend = backend
        # while the breaker is open; then a trial call is allowed
        self.open_until: float | None = None
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._starts: deque[float] = deque(maxlen=policy.rate)  # start times of the last calls
        self._failures = 0  # consecutive
        self._trial_running = False  # True while the trial call is running

    def ask(self, arguments: Mapping[str, Any], until: float, check: Callable) -> Any:
        """Return the backend's checked value when the rate allows; update the breaker."""
        trial = self._admit(until)
        failed = True
        try:
            left = until - self._clock.monotonic()
            value = check(self.backend(arguments, min(self._policy.timeout_s, left)))
            failed = False
            return value
        except ToolFault as fault:  # "forbidden" and similar faults: the service responds
            failed = fault.transient and fault.kind not in PAGE_FAULTS or fault.kind == "auth"
            raise
        finally:
            self._record(trial, failed)

    def _record(self, trial: bool, failed: bool) -> None:
        """Update the breaker with the result of a call."""
        with self._lock:
            if not trial and self.open_until is not None:
                return  # only the trial call counts while the breaker is open
            self._trial_running = False
            if not failed:
                self._failures = 0
                self.open_until = None
                return
            self._failures += 1
            if trial or self._failures == self._policy.breaker_failures:
                self.open_until = self._clock.monotonic() + self._policy.breaker_open_s

    def _admit(self, until: float) -> bool:
        """Wait for the rate limit; return True for the trial call of an open breaker."""
        rate = self._policy.rate
        while True:
            with self._lock:
                now = self._clock.monotonic()
                trial = self.open_until is not None
                if trial and (self._trial_running or now < self.open_until):
                    raise ToolFault("skipped", f"the breaker of {self.backend.name} is open")
                full = rate > 0 and len(self._starts) == rate and now - self._starts[0] < 1.0
                turn = self._starts[0] + WINDOW_S if full else now
                if turn >= until:
                    raise ToolFault("skipped", f"{self.backend.name}: no turn before the deadline")
                if not full:
                    self._starts.append(now)
                    self._trial_running = trial
                    return trial
            self._clock.sleep(turn - now)


class _Entry:
    """A cache entry: one thread computes the value while others wait for the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None
        self.size = 0  # bytes


class MemoryCache:
    """Cache of recently used values; safe for many threads.

    One thread computes a value, equal calls wait for it. At most `entries` values and `size` bytes
    of their text and keys are kept.
    """

    def __init__(self, entries: int = 20_000, size: int = 256 << 20) -> None:
        self._entries = entries
        self._size = size
        self._bytes = 0  # bytes over all entries
        self._lock = threading.Lock()
        self._values: OrderedDict[str, _Entry] = OrderedDict()  # most recently used last

    def get(self, key: str, make: Callable[[], Any], keep: Callable[[Any], bool]) -> tuple:
        """Return the value of `key`, and whether it was cached.

        A value computed by `make` is cached if `keep(value)` is true.
        """
        with self._lock:
            entry = self._values.setdefault(key, _Entry())
            self._values.move_to_end(key)
            self._evict()
        with entry.lock:
            if entry.value is not None:
                return entry.value, True
            entry.value = make()
            stays = keep(entry.value)
            size = sys.getsizeof(repr(entry.value)) + sys.getsizeof(key) if stays else 0
            with self._lock:
                if self._values.get(key) is not entry:
                    pass  # evicted in the meantime
                elif stays:
                    entry.size = size
                    self._bytes += size
                    self._evict()
                else:
                    del self._values[key]
            return entry.value, False

    def _evict(self) -> None:
        while len(self._values) > self._entries or self._bytes > self._size:
            _, oldest = self._values.popitem(last=False)
            self._bytes -= oldest.size


class DiskCache:
    """JSON values by key in a SQLite file, for many threads and processes.

    Each row has a digest, so a changed byte, which SQLite does not detect, counts as a miss. An
    unusable file gives a warning and is left unchanged.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Any:
        """Return the value, or None."""
        row = self._run("SELECT body, digest FROM calls WHERE key = ?", key)
        if row is None:
            return None
        body, stamp = row
        text = str(body)
        return json.loads(text) if stamp == digest(key, text) else None

    def put(self, key: str, value: Any) -> None:
        """Store a JSON value."""
        body = json.dumps(value)
        self._run("REPLACE INTO calls VALUES (?, ?, ?)", key, body, digest(key, body))

    def _run(self, sql: str, *values: str) -> tuple | None:
        try:
            with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous=OFF")  # faster; a power cut may damage the file
                db.execute("CREATE TABLE IF NOT EXISTS calls(key TEXT PRIMARY KEY, body, digest)")
                return db.execute(sql, values).fetchone()
        except sqlite3.Error as why:
            remedy = "continuing without it; delete the file if it is damaged"
            warnings.warn(f"tool cache {self._path}: {why}; {remedy}", stacklevel=4)
            return None
