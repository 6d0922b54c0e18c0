"""The snippets of docs/coming_from.md run in order, and its settings and names exist.

Run: python -m pytest tests/test_docs_coming_from.py
"""

import re
import subprocess
import sys

from drlib.config import FIELDS, ROOT

PAGE = (ROOT / "docs" / "coming_from.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.S)


def test_snippets_run_and_print():
    done = subprocess.run(
        [sys.executable, "-"], input="\n".join(SNIPPETS), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "1. [Oslo](cldr:Oslo)",
        "territory Norway.",
        "True",
        "['word', 'letter']",
        "3",
    ]


def test_settings_of_the_page_exist():
    sections = {name.partition(".")[0] for name in FIELDS if "." in name}
    named = set(re.findall(r"`(?:--)?([a-z_]+\.[a-z_.]+)", PAGE))
    settings = {name for name in named if name.partition(".")[0] in sections}
    assert len(settings) > 12 and settings <= {*FIELDS}
