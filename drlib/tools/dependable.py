"""What keeps a tool call dependable: cache, rate limit, retries, circuit breaker, fail-over.

`Dependable` asks the ordered backends of one operation and returns an `Outcome`, never a fault.
"not_found" and "refused" are answers: no retry, no count at the breaker, no fault of the
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

from drlib.tools.backends import ANSWERS, PAGE, Backend, ToolFault, digest, uniform

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


class Outcome(NamedTuple):
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
        return not self.error or self.error in (*ANSWERS, *PAGE)

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
        disk: Disk | None = None,
        memory: Memory | None = None,
        clock: Any = time,
    ):
        self.tool, self.policy, self._check, self._disk = tool, policy, check, disk
        self._clock, self._memory = clock, memory or Memory()
        self._guards = [_Guard(backend, policy, clock) for backend in backends]

    def call(
        self,
        arguments: Mapping[str, Any],
        version: str = "",
        last: Backend | None = None,
        until: float = math.inf,
    ) -> Outcome:
        """The outcome for `arguments` in world `version`, never a fault; equal calls share one.

        Args:
            last: a source in this process, asked after all backends.
            until: the clock's time when it must be over, if that is before the policy's deadline.
        """
        key = digest(self.tool, arguments, version)

        def make() -> Outcome:
            if row := self._disk and self._disk.get(key):
                return Outcome(*row, cache_hit=True)
            made = self._ask(key, arguments, last, until)
            if self._disk and made.lasting and not made.error:
                self._disk.put(key, [made.value, made.source])
            return made

        outcome, shared = self._memory.get(key, make, lambda made: made.lasting)
        hit = outcome.answered and not outcome.env_fault
        return outcome._replace(cache_hit=hit) if shared else outcome

    def _ask(self, key: str, arguments: Mapping, last: Backend | None, until: float) -> Outcome:
        until = min(until, self._clock.monotonic() + self.policy.deadline_s)
        free = replace(self.policy, rate=0, breaker_failures=0)
        guards = self._guards + ([_Guard(last, free, self._clock)] if last else [])
        attempts, error, answer, down = 0, "skipped", None, not guards
        for place, guard in enumerate(guards):
            here = guard.backend is last
            if answer and not here:
                continue
            for retry in range(self.policy.attempts):
                try:
                    value = guard.ask(arguments, math.inf if here else until, self._check)
                    broken = down and not value or _spoilt(value)
                    return Outcome(
                        value,
                        guard.backend.name,
                        attempts + 1,
                        False,
                        place > 0,
                        self.policy.critical and broken,
                    )
                except ToolFault as caught:
                    fault, error = caught, caught.kind
                attempts += error != "skipped"
                if error in ANSWERS and not answer:
                    answer = (guard.backend.name, place > 0, error, down)
                wait = self._backoff(key, attempts, retry, fault)
                too_late = self._clock.monotonic() + wait >= until
                hopeless = not fault.transient or guard.open_until is not None
                if hopeless or too_late or retry + 1 == self.policy.attempts:
                    break
                self._clock.sleep(wait)
            down = down or error not in (*ANSWERS, *PAGE)
        source, degraded, error, down = answer or ("", True, error, down)
        env_fault = down and self.policy.critical
        return Outcome(None, source, attempts, False, degraded, env_fault, error)

    def _backoff(self, key: str, attempt: int, retry: int, fault: ToolFault) -> float:
        step = min(self.policy.backoff_s * 2**retry, self.policy.backoff_max_s)
        wait = step * (0.5 + uniform(self.policy.seed, key, attempt) / 2)
        return max(wait, fault.retry_after_s or 0.0)


def _spoilt(value: Any) -> bool:
    return isinstance(value, dict) and bool(value.get("env_fault"))


class _Guard:
    """The door of one backend: its turns under the rate limit and its circuit breaker."""

    def __init__(self, backend: Backend, policy: ReliabilityPolicy, clock: Any) -> None:
        self.backend, self._policy, self._clock = backend, policy, clock
        self._lock, self._starts = threading.Lock(), deque(maxlen=policy.rate)
        self._failures, self.open_until, self._trying = 0, None, False

    def ask(self, arguments: Mapping[str, Any], until: float, check: Callable) -> Any:
        """The backend's value, checked, when it is our turn; what came of it moves the breaker."""
        trial, failed = self._admit(until), True
        try:
            left = until - self._clock.monotonic()
            value = check(self.backend(arguments, min(self._policy.timeout_s, left)))
            failed = False
            return value
        except ToolFault as fault:  # "forbidden" and the like: somebody is there and answers
            failed = fault.transient and fault.kind not in PAGE or fault.kind == "auth"
            raise
        finally:
            with self._lock:
                if trial or self.open_until is None:  # else only the trial call has a say
                    self._trying = False
                    self._failures = self._failures + 1 if failed else 0
                    if not failed:
                        self.open_until = None
                    elif trial or self._failures == self._policy.breaker_failures:
                        self.open_until = self._clock.monotonic() + self._policy.breaker_open_s

    def _admit(self, until: float) -> bool:
        """Wait for a turn; returns whether this is the trial call of an open breaker."""
        rate = self._policy.rate
        while True:
            with self._lock:
                now, trial = self._clock.monotonic(), self.open_until is not None
                if trial and (self._trying or now < self.open_until):
                    raise ToolFault("skipped", f"the breaker of {self.backend.name} is open")
                full = rate and len(self._starts) == rate and now - self._starts[0] < 1.0
                turn = self._starts[0] + WINDOW_S if full else now
                if turn >= until:
                    raise ToolFault("skipped", f"{self.backend.name}: no turn before the deadline")
                if not full:
                    self._starts.append(now)
                    self._trying = trial
                    return trial
            self._clock.sleep(turn - now)


class Memory:
    """The values used last, at most `entries` and `size` bytes of their text and keys in all; equal
    calls share one's value. Safe from many threads: one makes a value, the others wait for it."""

    def __init__(self, entries: int = 20_000, size: int = 256 << 20) -> None:
        self._entries, self._size, self._held = entries, size, 0
        self._lock = threading.Lock()
        self._values: OrderedDict[str, list] = OrderedDict()  # [lock of its maker, value, bytes]

    def get(self, key: str, make: Callable[[], Any], keep: Callable[[Any], bool]) -> tuple:
        """The value of `key`, and whether it was there; what `make` gives stays if `keep(it)`."""
        with self._lock:
            entry = self._values.setdefault(key, [threading.Lock(), None, 0])
            self._values.move_to_end(key)
            self._evict()
        with entry[0]:
            if entry[1] is not None:
                return entry[1], True
            entry[1] = made = make()
            size = sys.getsizeof(repr(made)) + sys.getsizeof(key) if keep(made) else 0
            with self._lock:
                if self._values.get(key) is entry:  # nobody has put it out meanwhile
                    entry[2] = size
                    self._held += size
                    self._evict() if size else self._values.pop(key)
            return made, False

    def _evict(self) -> None:
        while len(self._values) > self._entries or self._held > self._size:
            self._held -= self._values.popitem(last=False)[1][2]


class Disk:
    """JSON values by key in a SQLite file, for many threads and processes.

    Rows carry a digest: one with a changed byte, which SQLite does not see, is as good as absent.
    A file that cannot be used is named in a warning and left as it is.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def get(self, key: str) -> Any:
        """The value, or None."""
        body, check = self._run("SELECT body, digest FROM calls WHERE key = ?", key) or ("", "")
        return json.loads(str(body)) if check == digest(key, str(body)) else None

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
