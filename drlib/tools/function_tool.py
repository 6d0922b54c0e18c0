"""Tools from functions: type hints and a Google-style docstring give the JSON schema.

    >>> from drlib.tools.function_tool import FunctionTool
    >>> def repeat(text: str, times: int = 2) -> str:
    ...     '''Repeat a text.
    ...
    ...     Args:
    ...         text: What to repeat.
    ...         times: How often.
    ...     '''
    ...     return text * times
    >>> tool = FunctionTool.from_function("repeat", repeat)
    >>> tool.schema["parameters"]["required"]
    ['text']
    >>> tool.answer({"text": "ab", "times": "3"})
    {'text': 'ababab'}

transformers derives the schema, as it does for TRL's tools. pydantic checks arguments, and converts
them where that is unambiguous: "3" to 3, 17500 to "17500", a text to a list of one.
"""

import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints, is_typeddict

from drlib.registry import Registry
from drlib.tools.definitions import BUILT_IN, REQUIRED, Parameter, Tool

if TYPE_CHECKING:
    from pydantic import TypeAdapter

JSON_TYPES = (str, int, float, bool, list, dict, tuple, type(None), Any, ...)
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # of OpenAI's format


@dataclass(frozen=True)
class FunctionTool(Tool):
    """A tool made from a function; see `from_function`."""

    adapters: "Mapping[str, TypeAdapter]" = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def from_function(cls, name: str, function: Callable) -> "FunctionTool":
        """Create the tool `name`.

        Args:
            function: every argument has a type hint and an entry in the docstring; a default makes
                it optional. It returns a text, or a value that is written as JSON.

        Raises:
            ValueError: a hint or a description is missing, or a type has no JSON schema.
        """
        from drlib.chat.function_schema import function_schema  # lazy: imports transformers

        _require_plain(name, function)
        try:
            hints = get_type_hints(function)
            schema = function_schema(function)
        except (ValueError, NameError) as error:
            raise ValueError(f"tool {name!r}: {error}") from error
        properties = schema["parameters"].get("properties", {})
        adapters, parameters = {}, []
        for argument in inspect.signature(function).parameters.values():
            hint = hints[argument.name]
            _require_json(name, argument.name, hint)
            adapters[argument.name] = _adapter(hint)
            described = dict(properties[argument.name])
            description = described.pop("description")
            default = REQUIRED if argument.default is argument.empty else argument.default
            parameters.append(
                Parameter(argument.name, description, kind=described, hint=hint, default=default)
            )
        return cls(name, schema["description"], tuple(parameters), function, adapters)

    def operands(self, arguments: Mapping[str, Any]) -> list:
        """Return the converted arguments as one operation."""
        return [self._convert(arguments)]

    def answer(self, arguments: Mapping[str, Any], _world: Any = None) -> dict[str, str]:
        """Run the function; return {"text"}.

        Raises:
            TypeError: it returned None, or a value that is no JSON.
        """
        value = self.run(**self._convert(arguments))
        if isinstance(value, str):
            return {"text": value}
        try:
            if value is None:
                raise TypeError("None")
            return {"text": json.dumps(value, ensure_ascii=False)}
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"tool {self.name} returned {type(value).__name__}: return a text or JSON values"
            ) from error

    def coerce(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged; `operands` converts them."""
        return dict(arguments)

    def argument_error(self, arguments: Mapping[str, Any]) -> str:
        """Return the first error in a call's arguments; "" if they are valid."""
        try:
            self._convert(arguments)
        except ValueError as error:
            return str(error)
        return ""

    def _convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with their types and defaults; ValueError if that is impossible."""
        converted = {}
        for parameter in self.parameters:
            name = parameter.name
            if name in arguments:
                converted[name] = self._convert_one(name, arguments[name])
            elif parameter.default is REQUIRED:
                raise ValueError(f"{self.name} needs {name}.")
            else:
                converted[name] = parameter.default
        return converted

    def _convert_one(self, name: str, value: Any) -> Any:
        from pydantic import ValidationError

        adapter = self.adapters[name]
        others = value if isinstance(value, list) and len(value) == 1 else [[value]]
        try:
            return adapter.validate_python(value)
        except ValidationError as error:
            for other in others:  # a list of one for its entry, and the reverse
                try:
                    return adapter.validate_python(other)
                except ValidationError:
                    pass
            message = error.errors(include_url=False)[0]["msg"]
            raise ValueError(f"{name}: {message[0].lower()}{message[1:]}.") from error


def _require_plain(name: str, function: Callable) -> None:
    """Raise ValueError unless all arguments of the function can be passed by name."""
    if inspect.iscoroutinefunction(function):
        raise ValueError(f"tool {name!r} is an async function: write a function that waits")
    for argument in inspect.signature(function).parameters.values():
        if argument.kind not in (argument.POSITIONAL_OR_KEYWORD, argument.KEYWORD_ONLY):
            raise ValueError(f"tool {name!r}: {argument} cannot be passed by name")


def _require_json(tool: str, argument: str, hint: Any) -> None:
    """Raise ValueError unless all parts of a type hint are JSON types."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return
    if origin is None and hint not in JSON_TYPES and not is_typeddict(hint):
        shown = getattr(hint, "__name__", hint)
        raise ValueError(
            f"tool {tool!r}: {argument} has the type {shown}, which is no JSON type: use str, int, "
            "float, bool, list, dict or Literal"
        )
    for part in parts:
        _require_json(tool, argument, part)


def _adapter(hint: Any) -> "TypeAdapter":
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter  # lazy: a tenth of a second

    try:
        return TypeAdapter(hint, config=ConfigDict(coerce_numbers_to_str=True))
    except PydanticUserError:  # models and typed dictionaries have their own configuration
        return TypeAdapter(hint)


class ToolRegistry(Registry):
    """Tools by name; a function is converted to a `FunctionTool`."""

    def __setitem__(self, name: str, thing: Any) -> None:
        """Add a tool.

        Raises:
            ValueError: a name that servers reject, or a function without hints or descriptions.
            TypeError: neither a tool nor a function.
        """
        if isinstance(name, str) and name and not NAME.fullmatch(name):
            raise ValueError(
                f"tool {name!r}: servers accept 1 to 64 letters, digits, underscores and hyphens"
            )
        if inspect.isfunction(thing) or inspect.ismethod(thing):
            thing = FunctionTool.from_function(name, thing)
        if not isinstance(thing, Tool):
            raise TypeError(
                f"tool {name!r} must be a function with type hints and a docstring, or a "
                f"drlib.tools.definitions.Tool, not {type(thing).__name__}"
            )
        if thing.name != name:
            raise ValueError(f"tool {name!r} is registered under another name: {thing.name!r}")
        super().__setitem__(name, thing)


TOOLS = ToolRegistry("tool")
for _tool in BUILT_IN:
    TOOLS.register(_tool.name, _tool)
