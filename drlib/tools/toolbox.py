"""The tools of an agent: search and pages of a world or the web, files, `python`, a calculator.

Schemas and output formats follow Tongyi DeepResearch (inference/prompt.py of its repository).
Invalid arguments, unknown tools and infrastructure faults are returned as a `ToolResult` whose
`text` is the observation. `env_fault` marks infrastructure faults, so that a broken sandbox is
never counted against the policy. Only a bug in a tool's own code is raised.

Each query, page, file or program of a call is one `ReliableOperation`: backends in order, then the
world or sandbox of this process. Results are cached by tool, arguments and world version, because
tools are pure functions of these. Calls of many rollouts run concurrently on a thread pool
(`submit`).
"""

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
from drlib.task import Task
from drlib.tools.backends import Backend, FunctionBackend, ToolFault
from drlib.tools.calculator import calculate
from drlib.tools.definitions import Tool
from drlib.tools.episode_toolbox import EpisodeToolbox, RejectedCall, find_tool
from drlib.tools.function_tool import TOOLS
from drlib.tools.pictures import Album
from drlib.tools.reliability import (
    DiskCache,
    MemoryCache,
    OperationOutcome,
    ReliabilityPolicy,
    ReliableOperation,
)
from drlib.trajectory import ToolResult
from drlib.worlds import World

NO_RESULTS = "No results."
UNAVAILABLE = "Error: this tool is unavailable now."
SEPARATOR = "\n=======\n"
# Inside a page it would imitate the separator of responses.
FAKE_SEPARATOR = re.compile("^(?========$)", re.MULTILINE)
SEARCHES = ("search", "google_scholar")
OPERAND = {
    "search": "query",
    "google_scholar": "query",
    "visit": "url",
    "parse_file": "file",
    "python": "code",
    "calculator": "expression",
}
PREFIXES = {
    "visit": "The useful information in {} for user goal {} as follows:\n",
    "parse_file": "The content of {}:\n",
}
MISSING = {
    "visit": "Error: {} could not be accessed.",
    "parse_file": "Error: {} could not be read.",
}
HIT = re.compile(r"^\d+\. \[(?P<title>.+?)\]\((?P<url>.+?)\)\n(?P<text>.*)$", re.MULTILINE)
FOREIGN_TEXT_TOOLS = (*SEARCHES, *PREFIXES)  # tools that return text from third parties
CALL_THREADS = 8  # concurrent calls
WAITING_THREADS = 256  # the same with `delay_s`, which needs no processor
SINGLE_ATTEMPT = ReliabilityPolicy(attempts=1)  # for tools of this process without backends


class Toolbox(AbstractContextManager):
    """The tools of one world, shared by all rollouts; safe for many threads.

    Args:
        world: source of `search` and `visit`; None omits them.
        sandbox: runs `python`; None omits it.
        results: hits per query, 1 to 100 (Tongyi: 10; the tour's small policy: 2).
        closed_book: every tool returns "No results.", to measure what a policy knows by itself.
        calculator: include that tool.
        coerce: convert unambiguous arguments of a wrong type (`Tool.coerce`), for models that were
            not trained on these tools. Otherwise they are errors that a policy learns to avoid.
        pictures: album of `image_search`, `crop` and `read`; None omits them.
        tools: tools of this toolbox alone, with their own code.
        backends: ordered sources by tool (see `backends.py`), called before world or sandbox.
        policies: limits by tool.
        cache: file for answers of backends. Files that came with a question are not cached, because
            two questions may use one name for different files.
        clock: has `monotonic()` and `sleep(seconds)`, like the module `time`.
        environments: by name, for tasks with tools and verification of their own
            (`drlib.environments`).
        delay_s: time that every call takes longer, to study the scheduling of slow tools.

    Raises:
        ValueError: backends or policies of a missing tool, or `results` out of range.

    Example:
        >>> from drlib.worlds import load_world
        >>> with Toolbox(load_world("tour"), results=1) as toolbox:
        ...     print(toolbox.call("search", {"query": ["Oslo"]}).text)
        1. [Oslo](cldr:Oslo)
        territory Norway.
    """

    def __init__(
        self,
        world: World | None,
        sandbox: Sandbox | None = None,
        *,
        results: int = 10,
        closed_book: bool = False,
        calculator: bool = False,
        coerce: bool = False,
        pictures: Album | None = None,
        tools: Sequence[Tool] = (),
        backends: Mapping[str, Sequence[Backend]] | None = None,
        policies: Mapping[str, ReliabilityPolicy] | None = None,
        cache: str | Path | None = None,
        clock: Any = time,
        environments: Mapping[str, Any] | None = None,
        delay_s: float = 0.0,
    ):
        if type(results) is not int or not 1 <= results <= 100:
            raise ValueError(f"results={results!r} must be an integer from 1 to 100")
        self.world = world
        self.pictures = pictures
        self.results = results
        self.closed_book = closed_book
        self.coerce = coerce
        self.environments = dict(environments or {})
        self._clock, self._delay_s = clock, delay_s
        backends = backends or {}
        policies = policies or {}
        self._local = _local_sources(world, sandbox, calculator)
        known = _with_own([*(pictures.tools if pictures else ()), *tools])
        self._local |= {name: tool.answer for name, tool in known.items() if tool.run is not None}
        available = {*self._local, *backends}
        self.tools = {name: tool for name, tool in known.items() if name in available}
        for name in {**backends, **policies}:
            if name not in self.tools:
                raise ValueError(
                    f"no tool {name!r} in this toolbox; tools: {', '.join(self.tools)}"
                )
        # All tools share one memory cache and one file.
        memory = MemoryCache()
        disk = DiskCache(cache) if cache else None
        self._operations: dict[str, ReliableOperation] = {}
        for name in self.tools:
            default_policy = ReliabilityPolicy() if name in backends else SINGLE_ATTEMPT
            is_only_source = name not in backends and name not in policies
            use_disk = name in backends and name != "parse_file"
            self._operations[name] = ReliableOperation(
                name,
                backends.get(name, ()),
                policies.get(name, default_policy),
                check=partial(_check_value, name, is_only_source),
                disk=disk if use_disk else None,
                memory=memory,
                clock=clock,
            )
        threads = WAITING_THREADS if delay_s > 0 else CALL_THREADS
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="drlib-tool")

    @property
    def schemas(self) -> list[dict]:
        """JSON schemas of the tools, for the chat template's `tools`."""
        return [tool.schema for tool in self.tools.values()]

    def call(self, name: str, arguments: Mapping, *, world: World | None = None) -> ToolResult:
        """Run a tool and return its observation.

        Args:
            name: name of the tool.
            arguments: as the policy wrote them; errors become an observation.
            world: replaces this toolbox's world for the call.
        """
        started = self._clock.monotonic()
        if self._delay_s > 0:
            self._clock.sleep(self._delay_s)
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
        """Run `then(call(...))` on the thread pool; by default `then` returns the result."""
        return self.submit_work(lambda: then(self.call(name, arguments, world=world)))

    def submit_work(self, work: Callable[[], Any]) -> Future:
        """Run a function on the thread pool."""
        return self._pool.submit(work)

    def open_episode(self, task: Task) -> EpisodeToolbox:
        """Return the tools of one rollout of a task with an environment; close them.

        Raises:
            ValueError: the toolbox does not have the task's environment.
        """
        environment = self.environments.get(task.kind)
        if environment is None:
            known = ", ".join(self.environments) or "none"
            raise ValueError(
                f"task {task.id} belongs to the environment {task.kind!r}, but the toolbox has "
                f"{known}: create it with environments=load_environments({task.kind!r})"
            )
        return EpisodeToolbox(self, environment, task)

    def close(self) -> None:
        """Stop the thread pool; queued calls are cancelled."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __exit__(self, *_exc) -> None:
        self.close()

    def _run(self, name: str, arguments: Mapping, world: World | None) -> ToolResult:
        """Validate the call, run its operations in order, and join their results."""
        try:
            tool, arguments = find_tool(name, arguments, self.tools, self.coerce)
        except RejectedCall as rejected:
            return rejected.result

        # One or several operations: queries, pages, files or programs.
        operands = tool.operands(arguments)
        until = self._clock.monotonic() + self._operations[name].policy.deadline_s
        outcomes = [self._operate(name, operand, world, until) for operand in operands]

        goal = arguments.get("goal")
        texts, errors = [], []
        for operand, outcome in zip(operands, outcomes):
            text, error = _observation(name, operand, outcome, goal)
            texts.append(FAKE_SEPARATOR.sub(" ", text) if name in FOREIGN_TEXT_TOOLS else text)
            errors.append(error)
        error = _combine_errors(errors, outcomes)
        return ToolResult(
            name,
            dict(arguments),
            SEPARATOR.join(texts),
            ok=not error,
            error=error,
            attempts=_count_attempts(outcomes),
            source=",".join(dict.fromkeys(o.source for o in outcomes if o.source)),
            cache_hit=all(o.cache_hit for o in outcomes),
            degraded=any(o.degraded for o in outcomes),
            env_fault=any(o.env_fault for o in outcomes),
        )

    def _operate(
        self, tool: str, operand: str | dict, world: World | None, until: float
    ) -> OperationOutcome:
        """Run one query, page, file or program, or one call of a registered tool."""
        reads_world = tool in ("search", "visit") and world is not None
        source = world.name if reads_world else tool
        if self.closed_book:
            return OperationOutcome(None, source, error="not_found")
        arguments: dict[str, Any] = (
            {OPERAND[tool]: operand} if isinstance(operand, str) else dict(operand)
        )
        if tool in SEARCHES:
            arguments["k"] = self.results
        local_backend = None
        if tool in self._local:
            run = self._local[tool]
            local_backend = FunctionBackend(source, lambda given, _: run(given, world))
        version = "" if world is None else world.version
        outcome = self._operations[tool].call(arguments, version, local_backend, until)
        if tool in PREFIXES and outcome.error == "skipped" and self._clock.monotonic() >= until:
            # earlier pages of this call used up the time: not an environment fault
            return outcome._replace(error="unreachable", env_fault=False)
        if outcome.source == "python" and outcome.value:
            return outcome._replace(source=outcome.value.get("isolation", source))
        return outcome


def summarize_calls(results: Iterable[ToolResult]) -> dict[str, Any]:
    """Summarise a trajectory's calls: counts, attempts (not of cached calls), seconds, sources."""
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
    """A page, or part of it, in a tool result; `url` of a visited page is its title."""

    title: str
    url: str
    text: str


def extract_pages(result: ToolResult) -> list[ShownPage]:
    """Parse the hits of a search or the pages of a visit; [] if the call failed."""
    if not result.ok:
        return []
    shown = [ShownPage(hit["title"], hit["url"], hit["text"]) for hit in HIT.finditer(result.text)]
    urls = result.arguments.get("url", ()) if result.tool == "visit" else ()
    urls = [urls] if isinstance(urls, str) else urls
    return shown + [ShownPage(url, url, result.text) for url in urls]


def _local_sources(
    world: World | None, sandbox: Sandbox | None, calculator: bool
) -> dict[str, Callable[[Mapping, World | None], Any]]:
    """Return the tools that this process implements, as functions of (arguments, world)."""
    local: dict[str, Callable[[Mapping, World | None], Any]] = {}
    if world is not None:
        local["search"] = _search
        local["visit"] = _visit
    if sandbox is not None:
        local["python"] = lambda arguments, _world: _python(sandbox, arguments["code"])
    if calculator:
        local["calculator"] = lambda arguments, _world: calculate(arguments["expression"])
    return local


def _with_own(tools: Sequence[Tool]) -> dict[str, Tool]:
    """Return the registered tools and a toolbox's own by name."""
    taken = {tool.name for tool in tools} & TOOLS.keys()
    if taken:
        raise ValueError(
            f"tool names {sorted(taken)} of this toolbox are already registered: rename yours"
        )
    return {**TOOLS, **{tool.name: tool for tool in tools}}


def _combine_errors(errors: list[str], outcomes: list[OperationOutcome]) -> str:
    """Return the error of a call.

    The first infrastructure fault; "" if an operation succeeded; else the first error.
    """
    for error, outcome in zip(errors, outcomes):
        if outcome.env_fault or not outcome.has_answer:
            return error
    return "" if "" in errors else errors[0]


def _count_attempts(outcomes: list[OperationOutcome]) -> int:
    """Return 1 plus all retries; 0 if no source was called."""
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
    except ValueError:  # the program exceeds the length limit
        text = "Error: the program is too long."
        return {"text": text, "status": "too_large", "isolation": "", "env_fault": False}
    except (RuntimeError, OSError) as error:  # closed, or access to the service denied
        warnings.warn(f"tool python: {type(error).__name__}: {error}", stacklevel=2)
        raise ToolFault("forbidden", str(error)) from None
    return {
        "text": run.text,
        "status": run.status,
        "isolation": run.isolation,
        "env_fault": run.env_fault,
    }


def _check_value(tool: str, is_only_source: bool, value: Any) -> Any:
    """Convert a backend's value to the form that `_observation` reads, or raise ToolFault.

    If our sandbox is the only source (`is_only_source`), its own fault text is the observation.
    """
    match value:
        case list() if tool in SEARCHES:
            return [_normalise_hit(hit) for hit in value]
        case {"text": str(text)} if tool not in SEARCHES:
            if value.get("env_fault") and not is_only_source:
                raise ToolFault("server", text)
            if isinstance(value.get("status", ""), str):
                return value
    raise ToolFault("malformed", f"{tool}: {str(value)[:80]}")


def _normalise_hit(hit: Any) -> dict[str, str]:
    """Convert a hit to the world's form: date and source become part of the snippet."""
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
    """Return the observation of one operation, and the kind of failure ("" for none)."""
    value = outcome.value
    if not outcome.has_answer:
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
    lead = PREFIXES.get(tool, "").format(operand, goal)
    return lead + value["text"], "" if status == "ok" else status
