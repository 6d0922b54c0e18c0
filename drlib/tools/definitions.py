"""Tool definitions: name, description and parameters.

The five tools of Tongyi DeepResearch (`python` is its PythonInterpreter) and a calculator. A
definition yields the schema in prompts (short: parameters have no description), the function format
of OpenAI's API, and the methods of a class for TRL's `environment_factory`. TRL reads signature and
docstring of a method and derives `Tool.function`, which therefore omits `minItems`.

`TOOLS` (drlib.tools) contains them by name. A function with type hints and a docstring becomes a
tool when it is registered (`drlib.tools.function_tool`); every toolbox created later offers it.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

ANY_GOAL = "the question"  # goal of a visit that gives none
MAX_OPERATIONS = 10  # queries, pages or files per call; not part of the schemas


REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """An argument: a string, a non-empty list of strings (`many`), or of type `kind`.

    Args:
        kind: JSON schema without the description.
        hint: type hint that belongs to `kind`.
        default: value of an optional argument.
    """

    name: str
    description: str
    many: bool = False
    kind: dict | None = None
    hint: Any = None
    default: Any = REQUIRED

    @property
    def type(self) -> Any:
        """The Python type."""
        if self.hint is not None:
            return self.hint
        return list[str] if self.many else str

    @property
    def json_type(self) -> dict:
        """The JSON schema type."""
        if self.kind is not None:
            return self.kind
        text = {"type": "string"}
        return {"type": "array", "items": text} if self.many else text


@dataclass(frozen=True)
class Tool:
    """Definition of a tool as the policy sees it, and its code if it needs no world or sandbox.

    Args:
        name: as it is called.
        description: one sentence, part of the prompt.
        parameters: all are required.
        run: called with the arguments by name, each a string or a list of strings; returns the
            observation. It must be deterministic (results are cached) and describe wrong arguments
            in its text. Failures not caused by the policy, such as a server that is down, raise
            `drlib.tools.ToolFault`. None: the `Toolbox` implements the tool.

    Example:
        >>> text = Parameter("text", "A text.")
        >>> shout = Tool("shout", "Repeat in capitals.", (text,), run=str.upper)
        >>> shout.schema["parameters"]["required"]
        ['text']
    """

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    run: Callable[..., str] | None = None

    @property
    def schema(self) -> dict:
        """JSON schema for the chat template's `tools`."""
        properties = {}
        for parameter in self.parameters:
            least = {"minItems": 1} if parameter.many else {}
            properties[parameter.name] = parameter.json_type | least
        return self._with(properties)

    @property
    def function(self) -> dict:
        """The tool in OpenAI's function format, with described parameters."""
        properties = {}
        for parameter in self.parameters:
            description = {"description": parameter.description}
            properties[parameter.name] = parameter.json_type | description
        return {"type": "function", "function": self._with(properties)}

    def _with(self, properties: dict[str, dict]) -> dict:
        required = [each.name for each in self.parameters if each.default is REQUIRED]
        parameters = {"type": "object", "properties": properties, "required": required}
        return {"name": self.name, "description": self.description, "parameters": parameters}

    def operands(self, arguments: Mapping[str, Any]) -> list:
        """Return the operations of a call: the entries of its first argument.

        A tool with its own code gets all arguments at once.
        """
        if self.run is not None:
            return [{p.name: arguments[p.name] for p in self.parameters}]
        first = arguments[self.parameters[0].name]
        return first if isinstance(first, list) else [first]

    def answer(self, arguments: Mapping[str, Any], _world: Any = None) -> dict[str, str]:
        """Run the tool's own code; return {"text"}.

        Raises:
            TypeError: it returned no text.
        """
        text = self.run(**arguments)
        if not isinstance(text, str):
            raise TypeError(
                f"tool {self.name}: run returned {type(text).__name__} instead of a string"
            )
        return {"text": text}

    def coerce(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with unambiguous values converted to the declared types.

        Numbers become text, and text and lists of one each other. A missing goal is added.
        """
        converted = dict(arguments)
        for parameter in self.parameters:
            name = parameter.name
            if name == "goal":
                converted.setdefault(name, ANY_GOAL)
            value = converted.get(name)
            if not parameter.many and isinstance(value, list) and len(value) == 1:
                value = value[0]
            if parameter.many and isinstance(value, str | int | float):
                value = [value]
            if isinstance(value, list):
                converted[name] = [_as_text(entry) for entry in value]
            elif value is not None:
                converted[name] = _as_text(value)
        return converted

    def argument_error(self, arguments: Mapping[str, Any]) -> str:
        """Return the first error in a call's arguments; "" if they are valid."""
        for parameter in reversed(self.parameters):
            name = parameter.name
            value = arguments.get(name)
            if not parameter.many and not isinstance(value, str):
                return f"{self.name} needs {name}, a string."
            if parameter.many and not _is_list_of_texts(value):
                return f"{name} must be a list of strings."
            if parameter.many and len(value) > MAX_OPERATIONS:
                return f"{name} may have {MAX_OPERATIONS} entries at most."
        return ""


def _as_text(value: Any) -> Any:
    """Return a number as text; other values unchanged."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _is_list_of_texts(value: Any) -> bool:
    """Return True for a non-empty list of strings."""
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(entry, str) for entry in value)


_QUERY = Parameter("query", "What to search for, one query an entry.", many=True)
BUILT_IN = (
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


# of a planner, whose agent executes it (drlib.agents.planner_worker); in no toolbox
DELEGATE = Tool(
    "delegate",
    "Give a sub-question to a worker, who researches it with tools and returns a short answer.",
    (Parameter("question", "The sub-question, which can be understood alone."),),
)


def trl_environment(toolbox: Any, worlds: Mapping[str, Any] | None = None) -> type:
    """Create a class for TRL's `environment_factory`: the tools of a `Toolbox` as methods.

    An instance collects the `ToolResult`s of its rollout in `results`; reward functions receive the
    instances as `environments`.

    Args:
        toolbox: the tools.
        worlds: other worlds by version, selected by a row's `world`; an unknown one raises
            ValueError.
    """
    own_version = getattr(toolbox.world, "version", "")
    # A row without a world uses the toolbox's.
    known = {own_version: toolbox.world, "": None, **(worlds or {})}

    class Environment:
        def __init__(self):
            self.reset()

        def reset(self, world: str = "", **_row: Any) -> None:
            if world not in known:
                names = ", ".join(name for name in known if name)
                raise ValueError(f"unknown world {world!r} in a row: add it to worlds ({names})")
            self.results = []
            self.world = known[world]

    def run(self, name: str, arguments: dict) -> str:
        result = toolbox.call(name, arguments, world=self.world)
        self.results.append(result)
        return result.text

    for tool in toolbox.tools.values():
        setattr(Environment, tool.name, tool_method(tool, run))
    return Environment


def tool_method(tool: Tool, run: Callable[[Any, str, dict], str]) -> Callable:
    """Create a method that calls the tool, with the signature and docstring that TRL reads.

    Args:
        run: called with (instance, name of the tool, arguments), returns the observation.
    """

    def method(self, **arguments):
        return run(self, tool.name, arguments)

    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    parameters += [
        inspect.Parameter(
            p.name, inspect.Parameter.KEYWORD_ONLY, annotation=p.type, default=p.default
        )
        for p in tool.parameters
    ]
    lines = [f"    {p.name}: {p.description}" for p in tool.parameters]
    method.__name__ = tool.name
    method.__annotations__ = {p.name: p.type for p in tool.parameters}
    method.__dict__["__signature__"] = inspect.Signature(parameters)
    method.__doc__ = "\n".join([tool.description, "", "Args:", *lines])
    return method
