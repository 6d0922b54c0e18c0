"""Front matter of a text file: YAML, TOML or JSON before the text.

Much real front matter is not valid: `title: Rome: a guide`, `author: @ada`, tabs, a missing quote.
Such a block is read entry by entry, and an entry that is not valid alone is taken literally.
"""

import json
import re
import tomllib

import yaml

FRONT = re.compile(r"(---|\+\+\+)[ \t]*\n(.{0,20000}?)\n(?:\1|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
MARKDOWN = (".md", ".mdx")  # with TOML and JSON, too
KEY = r"""(?:"([^"\n]{1,60})"|'([^'\n]{1,60})'|(\w[^\n"'\[\]{}:=]{0,60}?))"""
ENTRIES = {sign: re.compile(rf"{KEY}[ \t]*{sign}(?!//)[ \t]*(.*)") for sign in ":="}
NO_ENTRY = tuple(" \t-#]}")  # first characters of other lines


def read_front_matter(text: str, suffix: str) -> tuple[dict, str, str]:
    """Parse the front matter of a file of type `suffix`.

    Returns:
        its entries with all values as text, lists or dictionaries; lines that are in no entry are
        the entry ""; its source; and the text after it
    """
    if suffix in MARKDOWN and text.startswith("{"):
        return _read_json(text)
    front = FRONT.match(text)
    if not front or (front[1] == "+++" and suffix not in MARKDOWN):
        return {}, "", text
    load, sign = (_load_yaml, ":") if front[1] == "---" else (_load_toml, "=")
    try:
        found = load(front[2])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        found = _read_entries(front[2], load, sign)
    return (found, front[2], text[front.end() :]) if found else ({}, "", text)


def _load_yaml(text: str) -> object:
    try:
        return yaml.load(text, yaml.BaseLoader)  # keeps all values as text
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _load_toml(text: str) -> object:
    try:
        return _as_text(tomllib.loads(text, parse_float=str))
    except RecursionError as error:
        raise ValueError(str(error)) from None


def _as_text(value: object) -> object:
    """Replace the numbers, dates and booleans in a parsed value by text."""
    if isinstance(value, dict):
        return {key: _as_text(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_as_text(inner) for inner in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read_json(text: str) -> tuple[dict, str, str]:
    try:
        found, end = json.JSONDecoder(parse_float=str, parse_int=str).raw_decode(text)
    except (ValueError, RecursionError):
        return {}, "", text
    if not found or not re.match(r"[ \t]*(?:\n|\Z)", text[end:]):
        return {}, "", text
    return {key: _as_text(value) for key, value in found.items()}, text[:end], text[end:]


def _read_entries(text: str, load, sign: str) -> dict:
    """Parse each entry by itself; return {} for text that is rather prose between two rules."""
    entries: list[list[str]] = []
    strays = 0
    for line in text.split("\n"):
        if ENTRIES[sign].match(line):
            entries.append([line])
        elif entries:
            entries[-1].append(line)
            strays += bool(line) and not line.startswith(NO_ENTRY)
        elif not line.startswith("#"):
            return {}
    if strays > len(entries):
        return {}
    found: dict = {}
    rest: list[str] = []
    for first, *lines in entries:
        *keys, words = ENTRIES[sign].match(first).groups()
        try:
            valid = load("\n".join([first, *(line.expandtabs(2) for line in lines)]))
        except ValueError:
            valid = None
        if isinstance(valid, dict):
            found.update(valid)
            continue
        value, left = _literal(words, [line.strip() for line in lines if line.strip()])
        found["".join(filter(None, keys)).strip()] = value
        rest += left
    return found | ({"": "\n".join(rest)} if rest else {})


def _literal(words: str, lines: list[str]) -> tuple[str | list[str], list[str]]:
    """Return the value of an entry as it is written, and the lines that are not part of it."""
    if lines and not words and all(line.startswith("-") for line in lines):
        return [_unquote(line[1:]) for line in lines], []
    if words.startswith("["):
        inner = " ".join([words, *lines]).strip("[] ")
        return [_unquote(one) for one in inner.split(",") if one.strip()], []
    return _unquote(words), lines


def _unquote(words: str) -> str:
    """Remove the quotes around a value, or a quote that is never closed."""
    words = words.strip()
    mark = words[:1]
    if mark in ("'", '"') and (words.count(mark) == 1 or (len(words) > 1 and words[-1] == mark)):
        return words.strip(mark)
    return words
