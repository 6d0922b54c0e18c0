"""The tools, each defined once: name, description, parameters.

The five tools of Tongyi DeepResearch (`python` is its PythonInterpreter) and a calculator. From a
definition come the schema that stands in prompts (short: no text a parameter), the function format
of OpenAI's API, and the methods of a class for TRL's `environment_factory`. TRL reads a method's
signature and docstring; what it derives is `Tool.function`, which therefore leaves out `minItems`.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Parameter:
    """A required argument: a string, or a list of at least one (`many`)."""

    name: str
    description: str
    many: bool = False


@dataclass(frozen=True)
class Tool:
    """What a policy is told about a tool."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]

    @property
    def schema(self) -> dict:
        """JSON schema for the chat template's `tools`."""
        return self._schema(lambda p: {"minItems": 1} if p.many else {})

    @property
    def function(self) -> dict:
        """The tool in OpenAI's function format, parameters described."""
        described = self._schema(lambda p: {"description": p.description})
        return {"type": "function", "function": described}

    def _schema(self, more: Callable[[Parameter], dict]) -> dict:
        kinds = ({"type": "string"}, {"type": "array", "items": {"type": "string"}})
        properties = {p.name: {**kinds[p.many], **more(p)} for p in self.parameters}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    def misfit(self, arguments: Mapping[str, Any]) -> str:
        """What is wrong with a call's arguments, "" for nothing."""
        for p in reversed(self.parameters):
            value = arguments.get(p.name)
            texts = isinstance(value, list) and value and all(isinstance(v, str) for v in value)
            if not p.many and not isinstance(value, str):
                return f"{self.name} needs {p.name}, a string."
            if p.many and not texts:
                return f"{p.name} must be a list of strings."
            if p.many and len(value) > MAX_OPERATIONS:
                return f"{p.name} may have {MAX_OPERATIONS} entries at most."
        return ""


MAX_OPERATIONS = 10  # queries, pages or files of one call; not in the schemas of past runs
_QUERY = Parameter("query", "What to search for, one query an entry.", many=True)
TOOLS = (
    Tool("search", "Search the world's pages. Give one or more queries.", (_QUERY,)),
    Tool(
        "visit",
        "Read one or more pages found by search.",
        (
            Parameter("url", "Addresses of the pages.", many=True),
            Parameter("goal", "What to find on the pages."),
        ),
    ),
    Tool(
        "python",
        "Run a Python program; only what it prints is seen.",
        (Parameter("code", "The program."),),
    ),
    Tool("google_scholar", "Search scholarly articles. Give one or more queries.", (_QUERY,)),
    Tool(
        "parse_file",
        "Read one or more of the files that came with the question.",
        (Parameter("files", "Names of the files.", many=True),),
    ),
    Tool(
        "calculator",
        "Compute an arithmetic expression exactly.",
        (
            Parameter(
                "expression",
                "Numbers, + - * / // % **, parentheses, and abs, ceil, floor, "
                "max, min, round, sqrt.",
            ),
        ),
    ),
)
SCHEMAS = tuple(tool.schema for tool in TOOLS)


def environment(toolbox: Any, worlds: Mapping[str, Any] | None = None) -> type:
    """A class for TRL's `environment_factory`: the tools of a `Toolbox` as methods.

    An instance keeps the `ToolResult`s of its rollout in `results`; reward functions get the
    instances as `environments`. `worlds`: other worlds by version, chosen by a row's `world`; one
    that is not there is a ValueError.
    """
    known = {getattr(toolbox.world, "version", ""): toolbox.world, "": None, **(worlds or {})}

    class Environment:
        def __init__(self):
            self.reset()

        def reset(self, world: str = "", **_row: Any) -> None:
            if world not in known:
                names = ", ".join(filter(None, known))
                raise ValueError(f"unknown world {world!r} in a row: put it into worlds ({names})")
            self.results, self.world = [], known[world]

    for tool in toolbox.tools.values():
        setattr(Environment, tool.name, _method(tool, toolbox))
    return Environment


def _method(tool: Tool, toolbox: Any):
    def method(self, **arguments):
        self.results.append(toolbox.call(tool.name, arguments, world=self.world))
        return self.results[-1].text

    of, types = inspect.Parameter, {p.name: list[str] if p.many else str for p in tool.parameters}
    named = [of(name, of.KEYWORD_ONLY, annotation=type_) for name, type_ in types.items()]
    method.__name__, method.__annotations__ = tool.name, types
    method.__signature__ = inspect.Signature([of("self", of.POSITIONAL_ONLY), *named])
    lines = [f"    {p.name}: {p.description}" for p in tool.parameters]
    method.__doc__ = "\n".join([tool.description, "", "Args:", *lines])
    return method
