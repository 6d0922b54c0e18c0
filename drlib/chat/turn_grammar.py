"""Grammar and JSON schema of a turn, for structured output (`drlib ask --constrained`).

The grammar describes what `drlib.chat.tool_calls.parse` accepts: an optional thought, then one call
of an offered tool with its arguments, or one answer. It is written in the Lark dialect of
llguidance, which vLLM's structured outputs accept too. The schema describes the same turn as a JSON
object, for servers with `response_format`.

Texts are bounded in the grammar, because a small model may repeat itself until the end of the
context. Texts outside of JSON have no "<", and strings have no "</": they could spell a tag, or
contain a token that ends the turn.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any

TEXT_CHARACTERS = 500  # of a thought and of an answer
STRING_CHARACTERS = 1000  # of a string in a call
ITEMS = 5  # of a list in a call
# one space after separators, as `render_call` and the examples in prompts write them
_JSON_STYLE = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
_BRANCHES = ("anyOf", "oneOf", "allOf", "prefixItems")


def build_turn_grammar(
    tools: Sequence[dict],
    *,
    tag_tokens: Collection[str] = (),
    is_open: bool = False,
    text_characters: int = TEXT_CHARACTERS,
    string_characters: int = STRING_CHARACTERS,
) -> str:
    """Build the Lark grammar of a turn.

    Args:
        tools: schemas (`Tool.schema`); without any, a turn is an answer.
        tag_tokens: tags that are single tokens of the tokenizer. Others are text.
        is_open: the chat template opens the thought, so a turn starts inside of it.
        text_characters, string_characters: maximum length of thoughts and answers, and of the
            strings in calls.
    """

    def tag(name: str) -> str:
        return name if name in tag_tokens else json.dumps(name)

    def pair(name: str, body: str) -> str:
        return f"{tag(f'<{name}>')} {body} {tag(f'</{name}>')}"

    thought = f"TEXT {tag('</think>')} NL" if is_open else f"({pair('think', 'TEXT')} NL)?"
    actions = ["call", "answer"] if tools else ["answer"]
    # no "<" even before a space: the lexer reads one byte ahead, and could then not end the text
    rest = f"[^<]{{0,{text_characters - 1}}}"
    rules = [
        "%llguidance {}",  # other Lark parsers, with other rules for JSON, reject this line
        f"start: {thought} ({' | '.join(actions)})",
        f"answer: {pair('answer', 'WORDS')}",
        rf"TEXT: /{rest}/",
        rf"WORDS: /[^<\s]{rest}/",
        r"NL: /\n{0,2}/",
    ]
    if tools:
        calls = [_call_schema(tool, string_characters) for tool in tools]
        body = {"x-guidance": _JSON_STYLE, "anyOf": calls}
        rules += [f"call: {pair('tool_call', 'NL body NL')}", f"body: %json {json.dumps(body)}"]
    return "\n".join(rules) + "\n"


def build_turn_schema(tools: Sequence[dict]) -> dict[str, Any]:
    """Build the JSON schema of a turn: {"thought", "action"}, the action a call or an answer."""
    answer = {
        "type": "object",
        "properties": {"answer": {"type": "string"}},
        "required": ["answer"],
        "additionalProperties": False,
    }
    actions = [*(_call_schema(tool) for tool in tools), answer]
    return {
        "type": "object",
        "properties": {"thought": {"type": "string"}, "action": {"anyOf": actions}},
        "required": ["thought", "action"],
        "additionalProperties": False,
    }


def _call_schema(tool: dict, longest: int | None = None) -> dict[str, Any]:
    """Return the schema of a call of one tool; with `longest`, its texts and lists are bounded."""
    arguments = _closed(tool["parameters"], longest)
    return {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": [tool["name"]]}, "arguments": arguments},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _closed(schema: Any, longest: int | None) -> Any:
    """Return a schema without undeclared properties; with `longest`, bounded."""
    if not isinstance(schema, dict):
        return schema
    closed = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(closed.get(name), dict):
            closed[name] = {key: _closed(part, longest) for key, part in closed[name].items()}
    for name in _BRANCHES:
        if isinstance(closed.get(name), list):
            closed[name] = [_closed(part, longest) for part in closed[name]]
    if "items" in closed:
        closed["items"] = _closed(closed["items"], longest)
    if "properties" in closed:
        closed.setdefault("additionalProperties", False)
    if longest is None:
        return closed
    is_free = not {"enum", "const", "pattern", "format"} & closed.keys()
    if closed.get("type") == "string" and is_free:
        least = closed.pop("minLength", 0)
        most = max(least, min(longest, closed.pop("maxLength", longest)))
        closed["pattern"] = f"^([^<]|<[^/]){{{least},{most}}}$"
    if closed.get("type") == "array":
        closed["maxItems"] = max(
            min(ITEMS, closed.get("maxItems", ITEMS)), closed.get("minItems", 0)
        )
    return closed
