"""What an agent can call: `search` and `visit` over a world, `python` in the sandbox.

Schemas and output shapes follow Tongyi DeepResearch (inference/prompt.py of its repository): a
list of queries, numbered `[title](link)` results, visits with a goal, code whose printed output
alone is seen. A call never raises: bad arguments, unknown tools and faults of the infrastructure
come back as a `ToolResult` whose `text` is the observation. `env_fault` marks the last kind, so
that a broken sandbox is never the policy's failure.

Calls of many rollouts run at the same time on a thread pool (`submit`), and results are cached by
tool, canonical arguments and world version: both tools are pure functions of those.

Left out here: rate limits, retries, fail-over and live providers.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from drlib.sandbox import Sandbox
from drlib.trajectory import ToolResult
from drlib.worlds import World

_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}


def _schema(name: str, description: str, **properties: dict) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"name": name, "description": description, "parameters": parameters}


SCHEMAS = (
    _schema("search", "Search the world's pages. Give one or more queries.", query=_TEXTS),
    _schema("visit", "Read one or more pages found by search.", url=_TEXTS, goal=_TEXT),
    _schema("python", "Run a Python program; only what it prints is seen.", code=_TEXT),
)
NO_RESULTS = "No results."
SEPARATOR = "\n=======\n"
USEFUL = "The useful information in {url} for user goal {goal} as follows:\n"
CACHE_ENTRIES = 20_000
THREADS = 8  # calls that run at the same time


class BadArguments(ValueError):
    """The policy's arguments do not fit the schema; the text is the observation."""


class Toolbox(AbstractContextManager):
    """The tools of one world, shared by all rollouts; safe from many threads.

    Args:
        world: what `search` and `visit` read.
        sandbox: where `python` runs; None leaves the tool out.
        results: how many hits a query returns (Tongyi: 10; the tour's small policy reads 2).
        closed_book: every tool answers "No results.": what a policy knows without looking.
    """

    def __init__(
        self, world: World | None, sandbox: Sandbox | None = None, *, results: int = 10,
        closed_book: bool = False,
    ):  # fmt: skip
        self.world, self.sandbox, self.results = world, sandbox, results
        self.closed_book = closed_book
        self._tools: dict[str, Callable[[Mapping, World | None], ToolResult]] = {}
        if world is not None:
            self._tools |= {"search": self._search, "visit": self._visit}
        if sandbox is not None:
            self._tools["python"] = self._python
        self._cache: OrderedDict[str, ToolResult] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="drlib-tool")

    @property
    def schemas(self) -> list[dict]:
        """JSON schemas of the tools that are there, for the chat template's `tools`."""
        return [dict(s) for s in SCHEMAS if s["name"] in self._tools]

    def call(self, name: str, arguments: Mapping, *, world: World | None = None) -> ToolResult:
        """Run one tool to its observation. `world` replaces this toolbox's world for the call."""
        started = time.perf_counter()
        world = world or self.world
        version = world.version if world else ""
        key = json.dumps([name, arguments, version], sort_keys=True, ensure_ascii=False)
        with self._lock:
            found = self._cache.get(key)
        if found is not None:
            return replace(found, cache_hit=True, latency_s=time.perf_counter() - started)
        result = self._run(name, arguments, world)
        result.latency_s = time.perf_counter() - started
        if not result.env_fault:
            with self._lock:
                self._cache[key] = result
                while len(self._cache) > CACHE_ENTRIES:
                    self._cache.popitem(last=False)
        return result

    def submit(
        self, name: str, arguments: Mapping, *, world: World | None = None,
        then: Callable[[ToolResult], Any] = lambda result: result,
    ) -> Future:  # fmt: skip
        """`then(call(...))` on the thread pool; by default the result as it is."""
        return self._pool.submit(lambda: then(self.call(name, arguments, world=world)))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __exit__(self, *_exc) -> None:
        self.close()

    def _run(self, name: str, arguments: Mapping, world: World | None) -> ToolResult:
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools)
            return _result(name, arguments, f"Error: no tool {name!r}; tools: {known}.", "unknown")
        try:
            return tool(arguments, world)
        except BadArguments as wrong:
            return _result(name, arguments, f"Error: {wrong}", "arguments")

    def _search(self, arguments: Mapping, world: World) -> ToolResult:
        queries = _strings(arguments, "query")
        parts = []
        for query in queries:
            hits = [] if self.closed_book else world.search(query, self.results)
            lines = [f"{i}. [{h.title}]({h.url})\n{h.snippet}" for i, h in enumerate(hits, 1)]
            parts.append("\n".join(lines) or NO_RESULTS)
        error = "" if any(part != NO_RESULTS for part in parts) else "empty"
        return _result("search", arguments, SEPARATOR.join(parts), error, world.name)

    def _visit(self, arguments: Mapping, world: World) -> ToolResult:
        goal = arguments.get("goal")
        if not isinstance(goal, str):
            raise BadArguments("visit needs goal, a string.")
        parts, missing = [], 0
        for url in _strings(arguments, "url"):
            try:
                if self.closed_book:
                    raise KeyError(url)
                parts.append(USEFUL.format(url=url, goal=goal) + world.page(url).text)
            except KeyError:
                missing += 1
                parts.append(f"Error: {url} could not be accessed.")
        error = "empty" if missing == len(parts) else ""
        return _result("visit", arguments, SEPARATOR.join(parts), error, world.name)

    def _python(self, arguments: Mapping, _world: World | None) -> ToolResult:
        code = arguments.get("code")
        if not isinstance(code, str):
            raise BadArguments("python needs code, a string.")
        if self.closed_book:
            return _result("python", arguments, NO_RESULTS, "empty")
        run = self.sandbox.run(code)
        error = "" if run.ok else run.status
        return _result("python", arguments, run.text, error, run.isolation, run.env_fault)


def _strings(arguments: Mapping, key: str) -> list[str]:
    value = arguments.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise BadArguments(f"{key} must be a list of strings.")
    return value


def _result(
    tool: str, arguments: Mapping, text: str, error: str = "", source: str = "",
    env_fault: bool = False,
) -> ToolResult:  # fmt: skip
    return ToolResult(
        tool, dict(arguments), text, not error, error, source=source, env_fault=env_fault
    )
