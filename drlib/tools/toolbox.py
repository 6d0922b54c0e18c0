"""What an agent can call: search and pages of a world or the web, files, `python`, a calculator.

Schemas and output shapes follow Tongyi DeepResearch (inference/prompt.py of its repository). Bad
arguments, unknown tools and faults of the infrastructure come back as a `ToolResult` whose `text`
is the observation. `env_fault` marks the last kind, so that a broken sandbox is never the policy's
failure. Only a bug in a tool's own code is raised.

Each query, page, file or program of a call is an operation of the tool's `Dependable`: backends in
order, then the world or the sandbox of this process; cached by tool, arguments and world version:
tools are pure functions of those. Calls of many rollouts run at the same time on a thread pool
(`submit`).
"""

import json
import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from drlib.sandbox import Sandbox
from drlib.tools.backends import Backend, FunctionBackend, ToolFault
from drlib.tools.calculator import calculate
from drlib.tools.definitions import TOOLS, Tool
from drlib.tools.pictures import Album
from drlib.tools.reliability import (
    Dependable,
    DiskCache,
    MemoryCache,
    OperationOutcome,
    ReliabilityPolicy,
)
from drlib.trajectory import ToolResult
from drlib.worlds import World

NO_RESULTS = "No results."
UNAVAILABLE = "Error: this tool is unavailable now."
SEPARATOR = "\n=======\n"
SEAM = re.compile("^(?========$)", re.MULTILINE)  # in a page, it would fake another's response
SEARCHES = ("search", "google_scholar")
OPERAND = {
    "search": "query",
    "google_scholar": "query",
    "visit": "url",
    "parse_file": "file",
    "python": "code",
    "calculator": "expression",
}
LEAD = {
    "visit": "The useful information in {} for user goal {} as follows:\n",
    "parse_file": "The content of {}:\n",
}
MISSING = {
    "visit": "Error: {} could not be accessed.",
    "parse_file": "Error: {} could not be read.",
}
HIT = re.compile(r"^\d+\. \[(?P<title>.+?)\]\((?P<url>.+?)\)\n(?P<text>.*)$", re.MULTILINE)
READS_TEXTS = (*SEARCHES, *LEAD)  # tools whose texts others have written
CALL_THREADS = 8  # calls that run at the same time
ONCE = ReliabilityPolicy(attempts=1)  # of a tool that is in this process alone


class Toolbox(AbstractContextManager):
    """The tools of one world, shared by all rollouts; safe from many threads.

    Args:
        world: what `search` and `visit` read; None leaves them out.
        sandbox: where `python` runs; None leaves it out.
        calculator: whether that tool is there.
        pictures: what `image_search`, `crop` and `read` look at; None leaves them out.
        results: hits that a query returns, 1 to 100 (Tongyi: 10; the tour's small policy reads 2).
        closed_book: every tool answers "No results.": what a policy knows without looking.
        backends: ordered sources by tool (see `backends.py`); world or sandbox come after them.
        policies: how hard to try, by tool.
        cache: file that keeps what backends answered, files that came with a question excepted:
            equal names of two questions are not the same file.
        clock: has `monotonic()` and `sleep(seconds)`, as the module `time`.

    Raises:
        ValueError: backends or policies for a tool that is not there, or `results` out of range.
    """

    def __init__(
        self,
        world: World | None,
        sandbox: Sandbox | None = None,
        *,
        results: int = 10,
        closed_book: bool = False,
        calculator: bool = False,
        pictures: Album | None = None,
        backends: Mapping[str, Sequence[Backend]] | None = None,
        policies: Mapping[str, ReliabilityPolicy] | None = None,
        cache: str | Path | None = None,
        clock: Any = time,
    ):
        if type(results) is not int or not 1 <= results <= 100:
            raise ValueError(f"results is {results!r}: give a whole number from 1 to 100")
        self.world = world
        self.pictures = pictures
        self.results = results
        self.closed_book = closed_book
        self._clock = clock
        backends = backends or {}
        policies = policies or {}
        self._here = _sources_here(world, sandbox, calculator)
        known = _with_pictures(pictures)
        self._here |= {name: tool.answer for name, tool in known.items() if tool.run is not None}
        there = {*self._here, *backends}
        self.tools = {name: tool for name, tool in known.items() if name in there}
        for name in {**backends, **policies}:
            if name not in self.tools:
                raise ValueError(f"no tool {name!r} here; tools: {', '.join(self.tools)}")
        # All tools share one memory and one file.
        memory = MemoryCache()
        disk = DiskCache(cache) if cache else None
        self._dependable: dict[str, Dependable] = {}
        for name in self.tools:
            usual = ReliabilityPolicy() if name in backends else ONCE
            alone = name not in backends and name not in policies
            kept = name in backends and name != "parse_file"
            self._dependable[name] = Dependable(
                name,
                backends.get(name, ()),
                policies.get(name, usual),
                check=partial(_checked, name, alone),
                disk=disk if kept else None,
                memory=memory,
                clock=clock,
            )
        self._pool = ThreadPoolExecutor(CALL_THREADS, thread_name_prefix="drlib-tool")

    @property
    def schemas(self) -> list[dict]:
        """JSON schemas of the tools that are there, for the chat template's `tools`."""
        return [tool.schema for tool in self.tools.values()]

    def call(self, name: str, arguments: Mapping, *, world: World | None = None) -> ToolResult:
        """Run one tool to its observation. `world` replaces this toolbox's world for the call."""
        started = self._clock.monotonic()
        result = self._run(name, arguments, self.world if world is None else world)
        result.latency_s = self._clock.monotonic() - started
        return result

    def submit(
        self,
        name: str,
        arguments: Mapping,
        *,
        world: World | None = None,
        then: Callable[[ToolResult], Any] = lambda result: result,
    ) -> Future:
        """`then(call(...))` on the thread pool; by default the result as it is."""
        return self._pool.submit(lambda: then(self.call(name, arguments, world=world)))

    def close(self) -> None:
        """End the thread pool; calls that have not begun are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __exit__(self, *_exc) -> None:
        self.close()

    def _run(self, name: str, arguments: Mapping, world: World | None) -> ToolResult:
        """Check the call, run its operations one after the other, and join what they gave."""
        if not _is_json_object(arguments):
            return _refused(name, {}, "the arguments are no JSON object.", "arguments")
        tool = self.tools.get(name) if isinstance(name, str) else None
        if tool is None:
            known = ", ".join(self.tools)
            return _refused(name, arguments, f"no tool {name!r}; tools: {known}.", "unknown")
        wrong = tool.misfit(arguments)
        if wrong:
            return _refused(name, arguments, wrong, "arguments")

        # What is to be looked up, read or run: one of it, or several.
        operands = tool.operands(arguments)
        until = self._clock.monotonic() + self._dependable[name].policy.deadline_s
        outcomes = [self._operate(name, operand, world, until) for operand in operands]

        goal = arguments.get("goal")
        texts, errors = [], []
        for operand, outcome in zip(operands, outcomes):
            text, error = _observation(name, operand, outcome, goal)
            texts.append(SEAM.sub(" ", text) if name in READS_TEXTS else text)
            errors.append(error)
        error = _error_of_all(errors, outcomes)
        return ToolResult(
            name,
            dict(arguments),
            SEPARATOR.join(texts),
            ok=not error,
            error=error,
            attempts=_attempts_of_all(outcomes),
            source=",".join(dict.fromkeys(o.source for o in outcomes if o.source)),
            cache_hit=all(o.cache_hit for o in outcomes),
            degraded=any(o.degraded for o in outcomes),
            env_fault=any(o.env_fault for o in outcomes),
        )

    def _operate(
        self, tool: str, operand: str | dict, world: World | None, until: float
    ) -> OperationOutcome:
        """One query, page, file or program, or one call of a registered tool, over at `until`."""
        reads_world = tool in ("search", "visit") and world is not None
        source = world.name if reads_world else tool
        if self.closed_book:
            return OperationOutcome(None, source, error="not_found")
        arguments: dict[str, Any] = {OPERAND[tool]: operand} if tool in OPERAND else dict(operand)
        if tool in SEARCHES:
            arguments["k"] = self.results
        last = None
        if tool in self._here:
            run = self._here[tool]
            last = FunctionBackend(source, lambda given, _: run(given, world))
        version = "" if world is None else world.version
        outcome = self._dependable[tool].call(arguments, version, last, until)
        if tool in LEAD and outcome.error == "skipped" and self._clock.monotonic() >= until:
            # the pages before took all the time, as was chosen
            return outcome._replace(error="unreachable", env_fault=False)
        if outcome.source == "python" and outcome.value:
            return outcome._replace(source=outcome.value.get("isolation", source))
        return outcome


def ledger(results: Iterable[ToolResult]) -> dict[str, Any]:
    """What a trajectory's calls took: counts, tries (not of cached ones), seconds, and sources."""
    results = list(results)
    return {
        "calls": len(results),
        "errors": sum(not r.ok for r in results),
        "env_faults": sum(r.env_fault for r in results),
        "attempts": sum(r.attempts for r in results if not r.cache_hit),
        "cache_hits": sum(r.cache_hit for r in results),
        "degraded": sum(r.degraded for r in results),
        "latency_s": sum(r.latency_s for r in results),
        "sources": dict(Counter(r.source for r in results)),
    }


@dataclass(frozen=True)
class ShownPage:
    """A page, or the part of it, that stood in a result; `url` is the title of a page visited."""

    title: str
    url: str
    text: str


def extract_pages(result: ToolResult) -> list[ShownPage]:
    """The hits of a search and the pages of a visit; none where the call failed."""
    if not result.ok:
        return []
    shown = [ShownPage(hit["title"], hit["url"], hit["text"]) for hit in HIT.finditer(result.text)]
    urls = result.arguments.get("url", ()) if result.tool == "visit" else ()
    urls = [urls] if isinstance(urls, str) else urls
    return shown + [ShownPage(url, url, result.text) for url in urls]


def _sources_here(
    world: World | None, sandbox: Sandbox | None, calculator: bool
) -> dict[str, Callable[[Mapping, World | None], Any]]:
    """The tools that this process can answer by itself, by name: a function of an operation's
    arguments and of the call's world."""
    here: dict[str, Callable[[Mapping, World | None], Any]] = {}
    if world is not None:
        here["search"] = _search
        here["visit"] = _visit
    if sandbox is not None:
        here["python"] = lambda arguments, _world: _python(sandbox, arguments["code"])
    if calculator:
        here["calculator"] = lambda arguments, _world: calculate(arguments["expression"])
    return here


def _with_pictures(pictures: Album | None) -> dict[str, Tool]:
    """All tools that there may be, by name: the registered ones and those of the pictures."""
    own = {} if pictures is None else {tool.name: tool for tool in pictures.tools}
    taken = own.keys() & TOOLS.keys()
    if taken:
        raise ValueError(f"pictures bring tools of the names {sorted(taken)}, which are registered")
    return {**TOOLS, **own}


def _is_json_object(arguments: Any) -> bool:
    try:
        json.dumps({**arguments})
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _error_of_all(errors: list[str], outcomes: list[OperationOutcome]) -> str:
    """Of a call: the first fault of the infrastructure; "" where an operation went well; otherwise
    how the first one failed."""
    for error, outcome in zip(errors, outcomes):
        if outcome.env_fault or not outcome.answered:
            return error
    return "" if "" in errors else errors[0]


def _attempts_of_all(outcomes: list[OperationOutcome]) -> int:
    """1 for the call, and each try after the first of an operation; 0 where nobody was asked."""
    tries = [outcome.attempts for outcome in outcomes if outcome.attempts]
    if not tries:
        return 0
    return 1 + sum(number - 1 for number in tries)


def _search(arguments: Mapping, world: World) -> list[dict]:
    return [vars(hit) for hit in world.search(arguments["query"], arguments["k"])]


def _visit(arguments: Mapping, world: World) -> dict:
    try:
        return vars(world.page(arguments["url"]))
    except KeyError:
        raise ToolFault("not_found", arguments["url"]) from None


def _python(sandbox: Sandbox, code: str) -> dict:
    try:
        run = sandbox.run(code)
    except ValueError:  # more characters than a call may have
        text = "Error: the program is too long."
        return {"text": text, "status": "too_large", "isolation": "", "env_fault": False}
    except (RuntimeError, OSError) as error:  # closed, or no right to the service
        warnings.warn(f"tool python: {type(error).__name__}: {error}", stacklevel=2)
        raise ToolFault("forbidden", str(error)) from None
    return {
        "text": run.text,
        "status": run.status,
        "isolation": run.isolation,
        "env_fault": run.env_fault,
    }


def _checked(tool: str, alone: bool, value: Any) -> Any:
    """A backend's value in the form that `_observation` reads; raises ToolFault. Where our sandbox
    is `alone`, nobody else can be asked: what it says of its own faults is the observation."""
    match value:
        case list() if tool in SEARCHES:
            return [_as_world_s(hit) for hit in value]
        case {"text": str(text)} if tool not in SEARCHES:
            if value.get("env_fault") and not alone:
                raise ToolFault("server", text)
            if isinstance(value.get("status", ""), str):
                return value
    raise ToolFault("malformed", f"{tool}: {str(value)[:80]}")


def _as_world_s(hit: Any) -> dict[str, str]:
    """A hit as the world's are: date and source become part of the snippet."""
    fields = {}
    if isinstance(hit, dict) and isinstance(hit.get("url"), str):
        fields = {name: hit.get(name) or "" for name in ("title", "snippet", "date", "source")}
    if not fields or not all(isinstance(field, str) for field in fields.values()):
        raise ToolFault("malformed", f"a hit: {str(hit)[:80]}")
    snippet = fields["snippet"]
    if fields["source"]:
        snippet = f"Source: {fields['source']}\n{snippet}"
    if fields["date"]:
        snippet = f"Date published: {fields['date']}\n{snippet}"
    return {"title": fields["title"] or hit["url"], "url": hit["url"], "snippet": snippet}


def _observation(
    tool: str, operand: str, outcome: OperationOutcome, goal: str | None
) -> tuple[str, str]:
    """What the policy reads of one operation, and the kind of failure, "" for none."""
    value = outcome.value
    if not outcome.answered:
        return UNAVAILABLE, outcome.error
    if not value:
        return MISSING.get(tool, NO_RESULTS).format(operand), "empty"
    if tool in SEARCHES:
        lines = [
            f"{number}. [{hit['title']}]({hit['url']})\n{hit['snippet']}"
            for number, hit in enumerate(value, 1)
        ]
        return "\n".join(lines), ""
    status = value.get("status", "ok")
    lead = LEAD.get(tool, "").format(operand, goal)
    return lead + value["text"], "" if status == "ok" else status


def _refused(tool: str, arguments: Mapping, text: str, error: str) -> ToolResult:
    return ToolResult(str(tool), dict(arguments), f"Error: {text}", False, error)
