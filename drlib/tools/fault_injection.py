"""Seeded fault injection for notebooks and tests: errors, delays, drift, malformed replies.

`FaultInjector` wraps a backend or a whole world. The fault of the n-th call of an operation depends
on (seed, backend, arguments, n) only, so a run is reproducible with any number of threads unless
two rollouts make equal calls: then the first to arrive gets the first fault.
"""

import copy
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from drlib.tools.backends import Backend, FunctionBackend, ToolFault, digest, uniform
from drlib.worlds import World

RAISED = {
    "401": "auth",
    "403": "forbidden",
    "404": "not_found",
    "429": "rate_limited",
    "500": "server",
    "502": "server",
    "503": "server",
    "cut": "connection",
    "timeout": "timeout",
    "malformed": "malformed",
}
FAULT_NAMES = (*RAISED, "latency", "drift")


class FaultInjector:
    """A seeded source of faults.

    `injected` counts the faults so far, and under "" the calls without one.

    Args:
        rates: fault (one of `FAULT_NAMES`) -> probability per call.
        script: faults of an operation's first, second, ... call ("" for none), by a value of its
            arguments ("Norway") or "*" for any; `rates` apply after the end of a script.
        seed: equal seeds give equal faults.
        latency_s: duration of a "latency" fault.
        retry_after_s: `Retry-After` of a "429" fault.
        clock: has `sleep(seconds)`, like the module `time`.

    Raises:
        ValueError: an unknown fault, or rates that are no probabilities.
    """

    def __init__(
        self,
        rates: Mapping[str, float] | None = None,
        script: Mapping[str, Sequence[str]] | None = None,
        *,
        seed: int = 0,
        latency_s: float = 1.0,
        retry_after_s: float | None = None,
        clock: Any = time,
    ):
        self.rates = dict(rates or {})
        self.script = dict(script or {})
        self.seed = seed
        self.latency_s = latency_s
        self.retry_after_s = retry_after_s
        self.injected: Counter[str] = Counter()
        self._clock = clock
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()  # number of calls by operation
        named = {*self.rates, *(fault for faults in self.script.values() for fault in faults)}
        unknown = named - {*FAULT_NAMES, ""}
        if unknown:
            raise ValueError(f"unknown fault {min(unknown)!r}; use {', '.join(FAULT_NAMES)}")
        if min(self.rates.values(), default=0) < 0 or sum(self.rates.values()) > 1:
            raise ValueError(f"rates {self.rates}: must be probabilities with a sum of at most 1")

    def backend(self, backend: Backend) -> Backend:
        """Return `backend` with faults, under the same name."""

        def faulty(arguments: Mapping[str, Any], timeout_s: float) -> Any:
            work = partial(backend, arguments, timeout_s)
            return self._apply(backend.name, arguments, timeout_s, work)

        return FunctionBackend(backend.name, faulty)

    def world(self, world: World) -> World:
        """Return `world` with faults in `search` and `page`; graph, version and name are kept."""

        def search(query: str, k: int = 10) -> Any:
            arguments = {"query": query, "k": k}
            return self._apply(world.name, arguments, math.inf, lambda: world.search(query, k))

        def page(url: str) -> Any:
            return self._apply(world.name, {"url": url}, math.inf, lambda: world.page(url))

        faulty = copy.copy(world)
        vars(faulty).update(search=search, page=page)
        return faulty

    def _apply(
        self, name: str, arguments: Mapping[str, Any], timeout_s: float, work: Callable[[], Any]
    ) -> Any:
        """Return `work()` with the next fault of this operation."""
        fault = self._next_fault(name, arguments)
        if fault == "timeout" and timeout_s < math.inf:
            self._clock.sleep(timeout_s)
        elif fault == "latency":
            self._clock.sleep(min(self.latency_s, timeout_s))
            fault = "timeout" if self.latency_s >= timeout_s else ""
        if fault in RAISED:
            wait = self.retry_after_s if fault == "429" else None
            raise ToolFault(RAISED[fault], f"injected {fault}", wait)
        value = work()
        return apply_drift(value) if fault == "drift" else value

    def _next_fault(self, name: str, arguments: Mapping[str, Any]) -> str:
        key = digest(name, arguments)
        with self._lock:
            number = self._calls[key]
            self._calls[key] += 1
            fault = self._pick_fault(key, number, arguments)
            self.injected[fault] += 1
            return fault

    def _pick_fault(self, key: str, number: int, arguments: Mapping[str, Any]) -> str:
        """Return the fault of this operation's call `number` (from 0); "" for none."""
        named = [self.script[value] for value in arguments.values() if value in self.script]
        scripted = named[0] if named else self.script.get("*", ())
        if number < len(scripted):
            return scripted[number]
        draw = uniform(self.seed, key, number)
        for fault, rate in self.rates.items():
            draw -= rate
            if draw < 0:
                return fault
        return ""


def apply_drift(value: Any) -> Any:
    """Return the value as after a change of the world: reversed hits, halved texts."""
    if isinstance(value, list):
        return [apply_drift(hit) for hit in reversed(value)]
    fields = value if isinstance(value, dict) else vars(value)
    halved = {name: _first_half(fields[name]) for name in ("snippet", "text") if name in fields}
    return {**value, **halved} if isinstance(value, dict) else replace(value, **halved)


def _first_half(text: str) -> str:
    words = text.split(" ")
    return " ".join(words[: (len(words) + 1) // 2])
