"""The tools, each defined once: name, description, parameters.

The five tools of Tongyi DeepResearch (`python` is its PythonInterpreter) and a calculator. From a
definition come the schema that stands in prompts (short: no text a parameter), the function format
of OpenAI's API, and the methods of a class for TRL's `environment_factory`. TRL reads a method's
signature and docstring; what it derives is `Tool.function`, which therefore leaves out `minItems`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
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
        return self._schema({p.name: _TEXTS if p.many else _TEXT for p in self.parameters})

    @property
    def function(self) -> dict:
        """The tool in OpenAI's function format, parameters described."""
        kinds = (_TEXT, {"type": "array", "items": _TEXT})
        described = {p.name: {**kinds[p.many], "description": p.description}
                     for p in self.parameters}  # fmt: skip
        return {"type": "function", "function": self._schema(described)}

    def _schema(self, properties: dict) -> dict:
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    def misfit(self, arguments: Mapping[str, Any]) -> str:
        """What is wrong with a call's arguments, "" for nothing."""
        for parameter in reversed(self.parameters):
            name, value = parameter.name, arguments.get(parameter.name)
            if not parameter.many and not isinstance(value, str):
                return f"{self.name} needs {name}, a string."
            strings = isinstance(value, list) and value and all([isinstance(v, str) for v in value])
            if parameter.many and not strings:
                return f"{name} must be a list of strings."
            if parameter.many and len(value) > MAX_OPERATIONS:
                return f"{name} may have {MAX_OPERATIONS} entries at most."
        return ""


MAX_OPERATIONS = 10  # queries, pages or files of one call; not in the schemas of past runs
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT, "minItems": 1}
_QUERY = Parameter("query", "What to search for, one query an entry.", many=True)
TOOLS = (
    Tool("search", "Search the world's pages. Give one or more queries.", (_QUERY,)),
    Tool("visit", "Read one or more pages found by search.",
         (Parameter("url", "Addresses of the pages.", many=True),
          Parameter("goal", "What to find on the pages."))),
    Tool("python", "Run a Python program; only what it prints is seen.",
         (Parameter("code", "The program."),)),
    Tool("google_scholar", "Search scholarly articles. Give one or more queries.", (_QUERY,)),
    Tool("parse_file", "Read one or more of the files that came with the question.",
         (Parameter("files", "Names of the files.", many=True),)),
    Tool("calculator", "Compute an arithmetic expression exactly.",
         (Parameter("expression", "Numbers, + - * / // % **, parentheses, and abs, ceil, floor, "
                    "max, min, round, sqrt."),)),
)  # fmt: skip
SCHEMAS = tuple(tool.schema for tool in TOOLS)


def environment(toolbox: Any, worlds: Mapping[str, Any] | None = None) -> type:
    """A class for TRL's `environment_factory`: the tools of a `Toolbox` as methods.

    An instance keeps the `ToolResult`s of its rollout in `results`; reward functions get the
    instances as `environments`. `worlds`: other worlds by version, chosen by a row's `world`; one
    that is not there is a ValueError.
    """
    own = {toolbox.world.version: toolbox.world} if toolbox.world is not None else {}
    known = {"": None, **own, **(worlds or {})}

    class Environment:
        def __init__(self):
            self.reset()

        def reset(self, world: str = "", **_row: Any) -> None:
            if world not in known:
                names = ", ".join(filter(None, known))
                raise ValueError(f"unknown world {world!r} in a row: put it into worlds ({names})")
            self.results, self.world = [], known[world]

        def _call(self, name: str, arguments: dict) -> str:
            self.results.append(toolbox.call(name, arguments, world=self.world))
            return self.results[-1].text

    for tool in toolbox.tools.values():
        setattr(Environment, tool.name, _method(tool))
    return Environment


def _method(tool: Tool):
    def method(self, **arguments):
        return self._call(tool.name, arguments)

    kind = inspect.Parameter.KEYWORD_ONLY
    types = {p.name: list[str] if p.many else str for p in tool.parameters}
    named = [inspect.Parameter(name, kind, annotation=type_) for name, type_ in types.items()]
    receiver = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    method.__name__, method.__annotations__ = tool.name, types
    method.__signature__ = inspect.Signature([receiver, *named])
    lines = [f"    {p.name}: {p.description}" for p in tool.parameters]
    method.__doc__ = "\n".join([tool.description, "", "Args:", *lines])
    return method
