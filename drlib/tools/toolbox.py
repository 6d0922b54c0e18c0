"""What an agent can call: search and pages of a world or the web, files, `python`, a calculator.

Schemas and output shapes follow Tongyi DeepResearch (inference/prompt.py of its repository): a
list of queries, numbered `[title](link)` results, visits with a goal, code whose printed output
alone is seen. A call never raises: bad arguments, unknown tools and faults of the infrastructure
come back as a `ToolResult` whose `text` is the observation. `env_fault` marks the last kind, so
that a broken sandbox is never the policy's failure. Only a bug in a tool's own code is raised.

Each query, page or file of a call is an operation. The world and the sandbox are in this process
and are asked directly; a tool with `backends` or a policy goes through `Dependable`, and the world
comes last. Calls of many rollouts run at the same time on a thread pool (`submit`), and results
are cached by tool, canonical arguments and world version: tools are pure functions of those.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from drlib.sandbox import Sandbox
from drlib.tools.backends import ANSWERS, PAGE, Backend, Source, ToolFault
from drlib.tools.calculator import calculate
from drlib.tools.definitions import TOOLS
from drlib.tools.dependable import (
    PASSING, Dependable, Disk, Memory, Outcome, ReliabilityPolicy)  # fmt: skip
from drlib.trajectory import ToolResult
from drlib.worlds import World

NO_RESULTS = "No results."
UNAVAILABLE = "Error: this tool is unavailable now."
SEPARATOR = "\n=======\n"
SEARCHES = ("search", "google_scholar")
OPERAND = {"search": "query", "google_scholar": "query", "visit": "url", "parse_file": "file",
           "python": "code", "calculator": "expression"}  # fmt: skip
LEAD = {"visit": "The useful information in {} for user goal {} as follows:\n",
        "parse_file": "The content of {}:\n"}  # fmt: skip
MISSING = {"visit": "Error: {} could not be accessed.",
           "parse_file": "Error: {} could not be read."}  # fmt: skip
FIELDS = ("title", "snippet", "date", "source")  # of a hit, beside its url
THREADS = 8  # calls that run at the same time


class Toolbox(AbstractContextManager):
    """The tools of one world, shared by all rollouts; safe from many threads.

    Args:
        world: what `search` and `visit` read.
        sandbox: where `python` runs; None leaves the tool out.
        results: hits that a query returns, 1 to 100 (Tongyi: 10; the tour's small policy reads 2).
        closed_book: every tool answers "No results.": what a policy knows without looking.
        backends: ordered sources by tool (see `backends.py`); world or sandbox come after them.
        policies: how hard to try, by tool.
        cache: file that keeps what backends answered, files that came with a question excepted:
            equal names of two questions are not the same file.
        clock: `monotonic()` and `sleep(seconds)`.

    Raises:
        ValueError: backends or policies for a tool that is not there, or `results` out of range.
    """

    def __init__(
        self, world: World | None, sandbox: Sandbox | None = None, *, results: int = 10,
        closed_book: bool = False, calculator: bool = False, threads: int = THREADS,
        backends: Mapping[str, Sequence[Backend]] | None = None,
        policies: Mapping[str, ReliabilityPolicy] | None = None,
        cache: str | Path | None = None, clock: Any = time,
    ):  # fmt: skip
        if type(results) is not int or not 1 <= results <= 100:
            raise ValueError(f"results is {results!r}: give a whole number from 1 to 100")
        self.world, self.sandbox, self.results = world, sandbox, results
        self.closed_book, self._clock = closed_book, clock
        self._here: dict[str, Callable[[Mapping, World], Any]] = {}  # sources in this process
        if world is not None:
            self._here |= {"search": _search, "visit": _visit}
        if sandbox is not None:
            self._here["python"] = lambda arguments, _: _python(sandbox, **arguments)
        if calculator:
            self._here["calculator"] = lambda arguments, _: calculate(**arguments)
        backends, policies, disk = backends or {}, policies or {}, Disk(cache) if cache else None
        self.tools = {t.name: t for t in TOOLS if t.name in self._here or t.name in backends}
        for name in {**backends, **policies}:
            if name not in self.tools:
                raise ValueError(f"no tool {name!r} here; tools: {', '.join(self.tools)}")
        self.dependable = {
            name: Dependable(name, backends.get(name, ()), policies.get(name, ReliabilityPolicy()),
                             check=partial(_checked, name), clock=clock,
                             disk=None if name == "parse_file" else disk)
            for name in {**backends, **policies}
        }  # fmt: skip
        self._cache = Memory(text=lambda made: made.text)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="drlib-tool")

    @property
    def schemas(self) -> list[dict]:
        """JSON schemas of the tools that are there, for the chat template's `tools`."""
        return [tool.schema for tool in self.tools.values()]

    def call(self, name: str, arguments: Mapping, *, world: World | None = None) -> ToolResult:
        """Run one tool to its observation. `world` replaces this toolbox's world for the call."""
        started = self._clock.monotonic()
        world = self.world if world is None else world
        version = "" if world is None else world.version
        try:
            key = json.dumps([name, arguments, version], sort_keys=True, ensure_ascii=False)
            arguments.keys()
        except (TypeError, ValueError, RecursionError, AttributeError):
            return _refused(name, {}, "the arguments are no JSON object.", "arguments")
        result, shared = self._cache.get(
            key, lambda: self._run(name, arguments, world),
            lambda made: not (made.env_fault or made.degraded or made.error in PASSING),
        )  # fmt: skip
        mine = ToolResult.__new__(ToolResult)  # `replace`, but fast: nobody may change the cache's
        mine.__dict__ = {**vars(result), "arguments": dict(arguments),
                         "cache_hit": not result.env_fault if shared else result.cache_hit,
                         "latency_s": self._clock.monotonic() - started}  # fmt: skip
        return mine

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
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is None:
            known = ", ".join(self.tools)
            return _refused(name, arguments, f"no tool {name!r}; tools: {known}.", "unknown")
        if wrong := tool.misfit(arguments):
            return _refused(name, arguments, wrong, "arguments")
        operands = arguments[tool.parameters[0].name]
        operands = operands if isinstance(operands, list) else [operands]
        until = math.inf
        if name in self.dependable:
            until = self._clock.monotonic() + self.dependable[name].policy.deadline_s
        done = [self._operate(name, operand, world, until) for operand in operands]
        goal = arguments.get("goal")
        parts = [_observation(name, o, goal, outcome) for o, outcome in zip(operands, done)]
        (text, error), whole = parts[0], done[0]
        if len(done) > 1:
            text, whole = SEPARATOR.join([text for text, _ in parts]), _together(done)
            errors = [e for _, e in parts]
            broken = [e for e, o in zip(errors, done) if o.env_fault or not o.answered]
            error = broken[0] if broken else "" if "" in errors else errors[0]
        return ToolResult(
            name, arguments, text, not error, error, 0.0, whole.attempts, whole.source,
            whole.cache_hit, whole.degraded, whole.env_fault,
        )  # fmt: skip

    def _operate(self, tool: str, operand: str, world: World | None, until: float) -> Outcome:
        """One query, page, file or program, over at `until`."""
        source = world.name if tool in ("search", "visit") and world is not None else ""
        if self.closed_book:
            return Outcome(None, source, error="not_found")
        arguments, here = {OPERAND[tool]: operand}, self._here.get(tool)
        if tool in SEARCHES:
            arguments["k"] = self.results
        try:
            if tool in self.dependable:
                last = here and Source(source or tool, lambda a, _: here(a, world))
                version = "" if world is None else world.version
                outcome = self.dependable[tool].call(arguments, version, last, until)
                late = tool in LEAD and self._clock.monotonic() >= until
                if late and outcome.error == "skipped":  # the pages before took all the time,
                    return outcome._replace(error="unreachable", env_fault=False)  # as was chosen
                return outcome
            value = here(arguments, world)
        except ToolFault as fault:
            broken = fault.kind not in (*ANSWERS, *PAGE)
            return Outcome(None, source, degraded=broken, env_fault=broken, error=fault.kind)
        if tool == "python":
            return Outcome(value, value["isolation"], env_fault=value["env_fault"])
        return Outcome(value, source or tool)


def _together(done: Sequence[Outcome]) -> Outcome:
    """The operations of a call as one; tries: one, if there was any, and those after a first."""
    tries = [o.attempts for o in done]
    sources = ",".join(dict.fromkeys([o.source for o in done if o.source]))
    return Outcome(None, sources, any(tries) + sum([n - 1 for n in tries if n]),
                   all(o.cache_hit for o in done), any(o.degraded for o in done),
                   any(o.env_fault for o in done))  # fmt: skip


def ledger(results: Iterable[ToolResult]) -> dict[str, Any]:
    """What a trajectory's calls took: counts, tries (not of cached ones), seconds, and sources."""
    results = list(results)
    return {
        "calls": len(results), "errors": sum(not r.ok for r in results),
        "env_faults": sum(r.env_fault for r in results),
        "attempts": sum(r.attempts for r in results if not r.cache_hit),
        "cache_hits": sum(r.cache_hit for r in results),
        "degraded": sum(r.degraded for r in results),
        "latency_s": sum(r.latency_s for r in results),
        "sources": dict(Counter(r.source for r in results)),
    }  # fmt: skip


def _search(arguments: Mapping, world: World) -> list[dict]:
    return [{"title": hit.title, "url": hit.url, "snippet": hit.snippet}
            for hit in world.search(arguments["query"], arguments["k"])]  # fmt: skip


def _visit(arguments: Mapping, world: World) -> dict:
    try:
        page = world.page(arguments["url"])
    except KeyError:
        raise ToolFault("not_found", arguments["url"]) from None
    return {"url": page.url, "title": page.title, "text": page.text}


def _python(sandbox: Sandbox, code: str) -> dict:
    try:
        run = sandbox.run(code)
    except ValueError:  # more characters than a call may have
        text = "Error: the program is too long."
        return {"text": text, "status": "too_large", "isolation": "", "env_fault": False}
    except (RuntimeError, OSError) as error:  # closed, or no right to the service
        warnings.warn(f"tool python: {type(error).__name__}: {error}", stacklevel=2)
        raise ToolFault("forbidden", str(error)) from None
    return {"text": run.text, "status": run.status, "isolation": run.isolation,
            "env_fault": run.env_fault}  # fmt: skip


def _checked(tool: str, value: Any) -> Any:
    """A backend's value in the form that `_observation` reads; raises ToolFault."""
    if tool in SEARCHES and isinstance(value, list):
        if all(isinstance(hit, dict) and isinstance(hit.get("url"), str) and
               all(isinstance(hit.get(f) or "", str) for f in FIELDS) for hit in value):
            return [_hit(hit) for hit in value]
    elif tool not in SEARCHES and isinstance(value, dict):
        if isinstance(value.get("text"), str) and isinstance(value.get("status", ""), str):
            if value.get("env_fault"):
                raise ToolFault("server", value["text"])
            return value
    raise ToolFault("malformed", f"{tool}: {str(value)[:80]}")


def _hit(hit: Mapping[str, Any]) -> dict[str, str]:
    """A hit as the world's are: date and source become part of the snippet."""
    date = f"Date published: {hit['date']}\n" if hit.get("date") else ""
    source = f"Source: {hit['source']}\n" if hit.get("source") else ""
    return {"title": hit.get("title") or hit["url"], "url": hit["url"],
            "snippet": date + source + (hit.get("snippet") or "")}  # fmt: skip


def _observation(tool: str, operand: str, goal: str | None, outcome: Outcome) -> tuple[str, str]:
    """What the policy reads of one operation, and the kind of failure, "" for none."""
    value = outcome.value
    if not outcome.answered:
        return UNAVAILABLE, outcome.error
    if not value:
        return MISSING.get(tool, NO_RESULTS).format(operand), "empty"
    if tool in SEARCHES:
        return "\n".join([f"{i}. [{hit['title']}]({hit['url']})\n{hit['snippet']}"
                          for i, hit in enumerate(value, 1)]), ""  # fmt: skip
    status = value.get("status", "ok")
    lead = LEAD[tool].format(operand, goal) if tool in LEAD else ""
    return lead + value["text"], "" if status == "ok" else status


def _refused(tool: str, arguments: Mapping, text: str, error: str) -> ToolResult:
    return ToolResult(str(tool), dict(arguments), f"Error: {text}", False, error)
