"""The names of the base version (b660ec0) and of the present one, behind equal functions."""

import json
import re
from importlib import import_module
from pathlib import Path

MIGRATION = Path(__file__).resolve().parents[2] / "docs" / "MIGRATION.md"


def dotted_names() -> dict[str, str]:
    """Return flat setting name -> dotted name, from the table in docs/MIGRATION.md."""
    table = MIGRATION.read_text(encoding="utf-8").partition("## Settings")[2]
    return dict(re.findall(r"^\| `(\w+)` \| `([\w.]+)` \|$", table, re.M))


class Old:
    """Names of the base version."""

    modules = {"parser": "drlib.format", "questions": "drlib.synthesis", "chat": "drlib.chat"}

    @staticmethod
    def stage_command(stage: str, settings: dict) -> list[str]:
        """Return the arguments of the command that builds a stage."""
        pairs = [f"--set={name}={value}" for name, value in settings.items()]
        return ["-m", "drlib.training", stage, *pairs]


class New:
    """Names of the present version."""

    modules = {
        "parser": "drlib.chat.tool_calls",
        "questions": "drlib.questions.question_engine",
        "chat": "drlib.chat.template",
    }

    @staticmethod
    def stage_command(stage: str, settings: dict) -> list[str]:
        """Return the arguments of the command that builds a stage."""
        names = dotted_names() | {name: name for name in ("seed", "processes", "plugins")}
        pairs = [f"--{names[name]}={value}" for name, value in settings.items()]
        return ["-m", "drlib.cli", "train", stage, *pairs]


ADAPTERS = {"old": Old, "new": New}


def load(adapter, part: str):
    """Import the module of a part in this version."""
    return import_module(adapter.modules[part])


def as_text(value) -> str:
    """Return a value as text that both versions share: without class names and new fields."""
    if hasattr(value, "__dict__"):
        value = {name: part for name, part in vars(value).items() if name != "answer_type"}
    return json.dumps(value, sort_keys=True, default=str)
