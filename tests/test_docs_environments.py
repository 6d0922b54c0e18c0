"""The examples of docs/environments.md print what the page shows.

Run: python -m pytest tests/test_docs_environments.py
"""

import os
import re
import subprocess
import sys

import pytest

from drlib.config import ROOT

PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```python\n([^`]*)^```\n\n```\n([^`]*)^```", PAGE, re.M)
HARBOR = re.search(r"^```python\n([^`]*save_harbor[^`]*)^```", PAGE, re.M)[1]


def run(code, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_examples_with_output_are_found():
    assert len(SHOWN) >= 2


@pytest.mark.parametrize(("code", "shown"), SHOWN)
def test_examples_print_what_the_page_shows(code, shown, tmp_path):
    assert run(code, tmp_path) == shown


def test_tasks_are_saved_and_loaded(tmp_path):
    assert run(HARBOR, tmp_path) == "20\n"
    assert len(list(tmp_path.glob("tasks/*/task.toml"))) == 20
