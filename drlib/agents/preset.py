"""Presets of published agents: tools, tool-call form, sampling, limits and prompts by name.

A preset is a file of `drlib/presets`. It holds the facts that a model was trained with, and tool
descriptions in our own words. The exact system prompt is read from the user's copy of the published
repository (`read_prompt`); without it, a prompt of the same structure in our own words is built.
"""

import ast
import datetime
import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from drlib.chat.prompts import research_prompt
from drlib.models.api_engine import MessageFormat
from drlib.registry import suggest_name
from drlib.validation import require


@dataclass(frozen=True)
class PublishedPrompt:
    """The system prompt in a published repository.

    Attributes:
        constant: its name in the Python file.
        origin: the file and its repository.
        sha256: of the text in UTF-8.
    """

    constant: str
    origin: str
    sha256: str


@dataclass(frozen=True)
class Preset:
    """A published agent.

    Attributes:
        options: defaults of `AskOptions`.
        limits: further arguments of `Limits`.
        request: parameters of every request, such as "stop".
        native: tools are passed in the server's format; its chat template has the system prompt.
        messages: form of its messages.
        tools: {"name", "description", "parameters", "required"} of each tool, and "runs": the tool
            of the toolbox, if that has another name.
        results: hits per search.
        prompt: the published system prompt; None if the chat template contains it.
    """

    name: str
    options: Mapping[str, Any]
    limits: Mapping[str, Any]
    request: Mapping[str, Any]
    native: bool
    messages: MessageFormat
    tools: tuple[Mapping[str, Any], ...]
    results: int | None = None
    prompt: PublishedPrompt | None = None

    def list_functions(self, available: Collection[str]) -> list[dict[str, Any]]:
        """Return the tools that a toolbox has, in OpenAI's function format.

        Args:
            available: names of the toolbox's tools.
        """
        return [
            _function(tool) for tool in self.tools if tool.get("runs", tool["name"]) in available
        ]

    def build_prompt(
        self, text: str, available: Collection[str], today: datetime.date | None = None
    ) -> str | None:
        """Build the system prompt; None if the server's chat template contains it.

        Args:
            text: the published prompt; empty: one of the same structure in our own words.
            available: names of the toolbox's tools.
            today: the date at the end of the prompt.
        """
        if self.prompt is None:
            return text or None
        today = today or datetime.date.today()
        if text:
            return text + today.isoformat()
        return research_prompt(self.list_functions(available), today)

    def describe_prompt(self, text: str, question: str = "") -> str:
        """Return a line about prompts that the model was not trained with; "" without any.

        Args:
            text: system prompt given by the user, "" without one.
            question: template of the question given by the user, "" without one.
        """
        if self.prompt is None:
            is_own = self.messages.question != "{question}" and not question
            return is_own * (
                f"{self.name}: the text around the question is not the trained one; give that with "
                "--question-prompt FILE"
            )
        if not text:
            return (
                f"{self.name}: the system prompt is not the trained one; give that with "
                f"--system-prompt FILE.py:{self.prompt.constant} ({self.prompt.origin})"
            )
        found = hashlib.sha256(text.encode()).hexdigest()
        return (found != self.prompt.sha256) * (
            f"{self.name}: the system prompt differs from that of {self.prompt.origin}: SHA-256 "
            f"{found[:12]} instead of {self.prompt.sha256[:12]}"
        )


def _function(tool: Mapping[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": tool["parameters"],
        "required": tool["required"],
    }
    described = {"name": tool["name"], "description": tool["description"], "parameters": schema}
    return {"type": "function", "function": described}


def list_presets() -> list[str]:
    """Return the names of the presets."""
    folder = resources.files("drlib") / "presets"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir())


def load_preset(name: str) -> Preset:
    """Load a preset.

    Raises:
        ValueError: there is no such preset.
    """
    known = list_presets()
    require(name in known, f"no preset {name!r}: {suggest_name(name, known)}")
    text = (resources.files("drlib") / "presets" / f"{name}.yaml").read_text(encoding="utf-8")
    values = yaml.safe_load(text)
    prompt = values.pop("prompt", None)
    return Preset(
        name,
        messages=MessageFormat(**values.pop("messages")),
        tools=tuple(values.pop("tools")),
        prompt=PublishedPrompt(**prompt) if prompt else None,
        **values,
    )


def read_prompt(source: str) -> str:
    """Read a prompt from a text file, or from a constant of a Python file, which is not executed.

    Args:
        source: "FILE" or "FILE.py:CONSTANT".

    Raises:
        ValueError: no such file or constant, or the constant is not a literal text.
    """
    path, _, constant = source.rpartition(":") if ".py:" in source else (source, "", "")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"prompt {path}: {error}") from error
    if not path.endswith(".py"):
        return text
    constants = _read_constants(path, text)
    require(
        constant in constants,
        f"{path} has no text constant {constant!r}: give FILE.py:CONSTANT with one of "
        f"{', '.join(constants) or 'none'}",
    )
    return constants[constant]


def _read_constants(path: str, text: str) -> dict[str, str]:
    """Return the literal texts that a Python file assigns to names at its top level."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} is no Python file: {error}") from error
    found = {}
    for statement in statements:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                try:
                    literal = ast.literal_eval(value)
                except ValueError:  # a call or a formatted text
                    continue
                if isinstance(literal, str):
                    found[name] = literal
    return found
