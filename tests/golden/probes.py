"""Probe groups; each returns {value name: text}."""

import importlib
import json
import sys
from pathlib import Path

ODD = ["", "<think>", "<answer>a</answer>", "<tool_call>{}</tool_call>", "<tool_call>{\"name\": 1}",
       "<think>a</think>\n<answer></answer>", "\ud800", "plain text"]


def collect_texts(value):
    """Yield every string nested in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from collect_texts(item)


def probe_parser(adapter, data):
    """Parse recorded turns; error wording is excluded."""
    texts = list(ODD)
    for path in sorted(Path(data).rglob("*.jsonl")):
        for row in path.read_text(encoding="utf-8").splitlines()[:50]:
            texts += [text for text in collect_texts(json.loads(row)) if "<" in text]
    values = {}
    for index, text in enumerate(dict.fromkeys(texts)):
        result = adapter.parse(text)
        kind = type(result).__name__
        values[str(index)] = kind if kind == "FormatError" else repr(result)
    return values


GROUPS = {"parser": probe_parser}

if __name__ == "__main__":
    name, root, data, out, *groups = sys.argv[1:]
    import drlib
    assert Path(drlib.__file__).resolve().is_relative_to(Path(root).resolve()), drlib.__file__
    adapter = importlib.import_module(name)
    Path(out).write_text(json.dumps({g: GROUPS[g](adapter, data) for g in groups}))
