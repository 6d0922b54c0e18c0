"""Faults on demand, for notebooks and tests: errors, delays, drift, replies that make no sense.

`Faults` wraps a backend or a whole world. The fault of an operation's n-th call depends on (seed,
backend, arguments, n) alone, so a run can be repeated whatever the threads do, as long as no two
rollouts make equal calls: of those the first to come gets the first fault.
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

from drlib.tools.backends import Backend, Source, ToolFault, digest, uniform
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
FAULTS = (*RAISED, "latency", "drift")


class Faults:
    """A seeded source of faults. ValueError: an unknown one, or rates that are no probabilities.

    rates: fault (one of `FAULTS`) -> probability a call.
    script: the faults of an operation's first, second, ... call, "" for none, by a value of its
        arguments ("Norway") or "*" for any; after the script's end `rates` hold.
    latency_s: how long "latency" holds a call up. retry_after_s: what "429" asks for.
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
        self.rates, self.script, self.seed = dict(rates or {}), dict(script or {}), seed
        self.latency_s, self.retry_after_s, self._clock = latency_s, retry_after_s, clock
        self.injected, self._calls, self._lock = Counter(), Counter(), threading.Lock()
        named = {*self.rates, *(fault for faults in self.script.values() for fault in faults)}
        if unknown := named - {*FAULTS, ""}:
            raise ValueError(f"unknown fault {min(unknown)!r}; use {', '.join(FAULTS)}")
        if min(self.rates.values(), default=0) < 0 or sum(self.rates.values()) > 1:
            raise ValueError(f"rates {self.rates}: give probabilities with a sum of at most 1")

    def backend(self, backend: Backend) -> Backend:
        """`backend` with faults, under its own name."""
        name = backend.name
        return Source(name, lambda a, limit_s: self._apply(name, a, limit_s, backend, a, limit_s))

    def world(self, world: World) -> World:
        """`world` with faults in `search` and `page`; graph, version and name are its own."""
        faulty, apply = copy.copy(world), partial(self._apply, world.name)
        faulty.search = lambda query, k=10: apply(
            {"query": query, "k": k}, math.inf, world.search, query, k
        )
        faulty.page = lambda url: apply({"url": url}, math.inf, world.page, url)
        return faulty

    def _apply(
        self, name: str, arguments: Mapping[str, Any], timeout_s: float, call: Callable, *given: Any
    ) -> Any:
        key = digest(name, arguments)
        with self._lock:
            n = self._calls[key]
            self._calls[key] += 1
            fault = self._due(key, n, arguments)
            self.injected[fault] += 1
        hang = fault == "timeout" and timeout_s < math.inf
        if hang or fault == "latency":
            self._clock.sleep(timeout_s if hang else min(self.latency_s, timeout_s))
            fault = "timeout" if hang or self.latency_s >= timeout_s else ""
        if fault in RAISED:
            wait = self.retry_after_s if fault == "429" else None
            raise ToolFault(RAISED[fault], f"injected {fault}", wait)
        value = call(*given)
        return drifted(value) if fault == "drift" else value

    def _due(self, key: str, n: int, arguments: Mapping[str, Any]) -> str:
        named = [self.script[v] for v in arguments.values() if v in self.script]
        scripted = named[0] if named else self.script.get("*", ())
        if n < len(scripted):
            return scripted[n]
        draw = uniform(self.seed, key, n)
        for fault, rate in self.rates.items():
            if (draw := draw - rate) < 0:
                return fault
        return ""


def drifted(value: Any) -> Any:
    """The value after the world changed: hits in another order, the second half of texts lost."""
    if isinstance(value, list):
        return [drifted(hit) for hit in reversed(value)]
    fields = value if isinstance(value, dict) else vars(value)
    words = {name: fields[name].split(" ") for name in ("snippet", "text") if name in fields}
    halved = {name: " ".join(some[: (len(some) + 1) // 2]) for name, some in words.items()}
    return {**value, **halved} if isinstance(value, dict) else replace(value, **halved)
