"""What keeps a tool call dependable: cache, rate limit, retries, circuit breaker, fail-over.

`Dependable` asks the ordered backends of one operation and returns an `OperationOutcome`, never a
fault. "not_found" and "refused" are answers: no retry, no count at the breaker, no fault of the
environment; only a source in this process is still asked. If a source before was down, though, the
answer or an empty value of the next is the environment's fault: the first might have known. Faults
of one page move no breaker either; other backends are asked.

Tongyi DeepResearch's report asks for deterministic calls: back-off depends on (seed, key, attempt)
alone. What depends on which thread comes first is not in an outcome (waiting for a turn) or can be
switched off (the breaker). Left out: stopping a backend that overruns its time limit (a thread
cannot be stopped), expiry of cached values (the world's version is in the key), one rate for
several processes.
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

WINDOW_S = 1.000001  # a second and a hair, so that rounded sums keep the distance
PASSING = ("timeout", "killed")  # how a program ended by the clock or from outside: never kept


@dataclass(frozen=True)
class ReliabilityPolicy:
    """How hard to try. ValueError for a number that makes no sense.

    A source in this process (world, sandbox) has no rate and no breaker, and is asked once even
    when the deadline is over.
    """

    attempts: int = 3  # tries a backend
    timeout_s: float = 15.0  # of one try
    deadline_s: float = 60.0  # of a call, all its operations and waits included
    backoff_s: float = 0.5  # before the second try; doubles; half of it is jitter
    backoff_max_s: float = 8.0
    rate: int = 0  # calls that a backend gets in any window of one second; 0: no limit
    breaker_failures: int = 5  # failures in a row that open a backend's breaker; 0: never
    breaker_open_s: float = 30.0  # then one call may try it
    critical: bool = True  # an operation that failed for good is a fault of the environment
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("timeout_s", "deadline_s", "backoff_s", "backoff_max_s", "breaker_open_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}: give seconds above 0")
        if self.attempts < 1 or self.rate < 0 or self.breaker_failures < 0:
            raise ValueError("attempts must be at least 1, rate and breaker_failures at least 0")


class OperationOutcome(NamedTuple):
    """What came of an operation; equal calls share it, so its value is not to be changed."""

    value: Any  # None when nobody had one
    source: str = ""  # the backend that answered
    attempts: int = 1  # tries over all backends; of a cached outcome those it once took
    cache_hit: bool = False
    degraded: bool = False  # another than the first backend answered, or none
    env_fault: bool = False
    error: str = ""  # the kind of the answer without a value, or of the last fault

    @property
    def answered(self) -> bool:
        """Whether the world spoke, if only to say that there is nothing."""
        return not self.error or self.error in (*ANSWERS, *PAGE_FAULTS)

    @property
    def lasting(self) -> bool:
        """Whether a later call may be given it: nothing was down, and no clock had a say."""
        status = self.value.get("status") if isinstance(self.value, dict) else ""
        sound = self.answered and not self.degraded and not self.env_fault
        return sound and status not in PASSING


class Dependable:
    """One operation behind ordered `backends`; safe from many threads.

    Args:
        tool: part of the cache key.
        check: gives a backend's value in the form expected, or raises ToolFault("malformed"). A
            dict with a true "env_fault" that it lets pass makes the outcome one, not to be kept.
        disk: keeps what the first backend answers.
        memory: what was used last; one of its own by default, several may share one.
        clock: has `monotonic()` and `sleep(seconds)`, as the module `time`.
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
        self._guards = [_Guard(backend, policy, clock) for backend in backends]

    def call(
        self,
        arguments: Mapping[str, Any],
        version: str = "",
        last: Backend | None = None,
        until: float = math.inf,
    ) -> OperationOutcome:
        """The outcome for `arguments` in world `version`, never a fault; equal calls share one.

        Args:
            last: a source in this process, asked after all backends.
            until: the clock's time when it must be over, if that is before the policy's deadline.
        """
        key = digest(self.tool, arguments, version)

        def make() -> OperationOutcome:
            stored = self._disk.get(key) if self._disk else None
            if stored:
                value, source = stored
                return OperationOutcome(value, source, cache_hit=True)
            made = self._ask(key, arguments, last, until)
            if self._disk and made.lasting and not made.error:
                self._disk.put(key, [made.value, made.source])
            return made

        outcome, shared = self._memory.get(key, make, lambda made: made.lasting)
        if not shared:
            return outcome
        # What others waited for as well is a hit, unless it was a failure.
        return outcome._replace(cache_hit=outcome.answered and not outcome.env_fault)

    def _ask(
        self, key: str, arguments: Mapping, last: Backend | None, until: float
    ) -> OperationOutcome:
        """Ask one backend after the other, until one has a value."""
        until = min(until, self._clock.monotonic() + self.policy.deadline_s)
        guards = list(self._guards)
        if last is not None:
            free = replace(self.policy, rate=0, breaker_failures=0)
            guards.append(_Guard(last, free, self._clock))
        attempts = 0  # tries over all backends
        error = "skipped"  # the kind of the last fault
        down = not guards  # whether a source before this one did not work, and might have known
        nothing = None  # the outcome of the first source that said: there is nothing
        for place, guard in enumerate(guards):
            if nothing is not None and guard.backend is not last:
                continue
            value, fault, attempts = self._try(guard, key, arguments, until, attempts, last)
            name = guard.backend.name
            degraded = place > 0
            if fault is None:
                spoilt = isinstance(value, dict) and bool(value.get("env_fault"))
                env_fault = self.policy.critical and (spoilt or (down and not value))
                return OperationOutcome(value, name, attempts, False, degraded, env_fault)
            error = fault.kind
            if error in ANSWERS and nothing is None:
                env_fault = self.policy.critical and down
                nothing = OperationOutcome(None, name, 0, False, degraded, env_fault, error)
            down = down or error not in (*ANSWERS, *PAGE_FAULTS)
        if nothing is not None:
            return nothing._replace(attempts=attempts)
        env_fault = self.policy.critical and down
        return OperationOutcome(None, "", attempts, False, True, env_fault, error)

    def _try(
        self,
        guard: _Guard,
        key: str,
        arguments: Mapping,
        until: float,
        attempts: int,
        last: Backend | None,
    ) -> tuple[Any, ToolFault | None, int]:
        """Ask one backend as often as the policy says: (its value, the last fault or None, the
        tries over all backends, which were `attempts` before)."""
        turn_until = math.inf if guard.backend is last else until
        for retry in range(self.policy.attempts):
            try:
                return guard.ask(arguments, turn_until, self._check), None, attempts + 1
            except ToolFault as caught:
                fault = caught
            if fault.kind != "skipped":
                attempts += 1
            wait = self._backoff(key, attempts, retry, fault)
            too_late = self._clock.monotonic() + wait >= until
            hopeless = not fault.transient or guard.open_until is not None
            if hopeless or too_late or retry + 1 == self.policy.attempts:
                break
            self._clock.sleep(wait)
        return None, fault, attempts

    def _backoff(self, key: str, attempt: int, retry: int, fault: ToolFault) -> float:
        """Seconds before the next try."""
        step = min(self.policy.backoff_s * 2**retry, self.policy.backoff_max_s)
        wait = step * (0.5 + uniform(self.policy.seed, key, attempt) / 2)
        return max(wait, fault.retry_after_s or 0.0)


class _Guard:
    """The door of one backend: its turns under the rate limit and its circuit breaker."""

    def __init__(self, backend: Backend, policy: ReliabilityPolicy, clock: Any) -> None:
        self.backend = backend
        self.open_until: float | None = None  # while the breaker is open; then one call may try
        self._policy = policy
        self._clock = clock
        self._lock = threading.Lock()
        self._starts: deque[float] = deque(maxlen=policy.rate)  # of the calls let in last
        self._failures = 0  # in a row
        self._trying = False  # whether the one call that may try is under way

    def ask(self, arguments: Mapping[str, Any], until: float, check: Callable) -> Any:
        """The backend's value, checked, when it is our turn; what came of it moves the breaker."""
        trial = self._admit(until)
        failed = True
        try:
            left = until - self._clock.monotonic()
            value = check(self.backend(arguments, min(self._policy.timeout_s, left)))
            failed = False
            return value
        except ToolFault as fault:  # "forbidden" and the like: somebody is there and answers
            failed = fault.transient and fault.kind not in PAGE_FAULTS or fault.kind == "auth"
            raise
        finally:
            self._note(trial, failed)

    def _note(self, trial: bool, failed: bool) -> None:
        """Move the breaker by what came of a call."""
        with self._lock:
            if not trial and self.open_until is not None:
                return  # only the trial call has a say
            self._trying = False
            if not failed:
                self._failures = 0
                self.open_until = None
                return
            self._failures += 1
            if trial or self._failures == self._policy.breaker_failures:
                self.open_until = self._clock.monotonic() + self._policy.breaker_open_s

    def _admit(self, until: float) -> bool:
        """Wait for a turn; returns whether this is the trial call of an open breaker."""
        rate = self._policy.rate
        while True:
            with self._lock:
                now = self._clock.monotonic()
                trial = self.open_until is not None
                if trial and (self._trying or now < self.open_until):
                    raise ToolFault("skipped", f"the breaker of {self.backend.name} is open")
                full = rate > 0 and len(self._starts) == rate and now - self._starts[0] < 1.0
                turn = self._starts[0] + WINDOW_S if full else now
                if turn >= until:
                    raise ToolFault("skipped", f"{self.backend.name}: no turn before the deadline")
                if not full:
                    self._starts.append(now)
                    self._trying = trial
                    return trial
            self._clock.sleep(turn - now)


class _Entry:
    """A place of the memory: one thread makes the value while the others wait for the lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: Any = None
        self.size = 0  # bytes


class MemoryCache:
    """The values used last, at most `entries` and `size` bytes of their text and keys in all; equal
    calls share one's value. Safe from many threads: one makes a value, the others wait for it."""

    def __init__(self, entries: int = 20_000, size: int = 256 << 20) -> None:
        self._entries = entries
        self._size = size
        self._held = 0  # bytes of all entries
        self._lock = threading.Lock()
        self._values: OrderedDict[str, _Entry] = OrderedDict()  # the one used last at the end

    def get(self, key: str, make: Callable[[], Any], keep: Callable[[Any], bool]) -> tuple:
        """The value of `key`, and whether it was there; what `make` gives stays if `keep(it)`."""
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
                    pass  # somebody has put it out meanwhile
                elif stays:
                    entry.size = size
                    self._held += size
                    self._evict()
                else:
                    del self._values[key]
            return entry.value, False

    def _evict(self) -> None:
        while len(self._values) > self._entries or self._held > self._size:
            _, oldest = self._values.popitem(last=False)
            self._held -= oldest.size


class DiskCache:
    """JSON values by key in a SQLite file, for many threads and processes.

    Rows carry a digest: one with a changed byte, which SQLite does not see, is as good as absent.
    A file that cannot be used is named in a warning and left as it is.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Any:
        """The value, or None."""
        row = self._run("SELECT body, digest FROM calls WHERE key = ?", key)
        if row is None:
            return None
        body, stamp = row
        text = str(body)
        return json.loads(text) if stamp == digest(key, text) else None

    def put(self, key: str, value: Any) -> None:
        body = json.dumps(value)
        self._run("REPLACE INTO calls VALUES (?, ?, ?)", key, body, digest(key, body))

    def _run(self, sql: str, *values: str) -> tuple | None:
        try:
            with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as db:
                db.execute("PRAGMA synchronous=OFF")  # a power cut may damage the file
                db.execute("CREATE TABLE IF NOT EXISTS calls(key TEXT PRIMARY KEY, body, digest)")
                return db.execute(sql, values).fetchone()
        except sqlite3.Error as why:
            remedy = "delete the file if it is damaged; calls go on without it"
            warnings.warn(f"tool cache {self._path}: {why}; {remedy}", stacklevel=4)
