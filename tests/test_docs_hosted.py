"""Files for dev containers, Binder and Colab name what exists: versions, extras, targets, pins."""

import json
import re
import shlex
import subprocess
import tomllib

import pytest

from drlib.config import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = re.search(r"^VERSION := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
CONSTRAINTS = ROOT / "constraints.txt"


def check_install(words, folder):
    """Check the options of `pip install`, whose constraints are relative to a folder."""
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert {*options} == {"-c", "-e"}
    assert (folder / options["-c"]).resolve() == CONSTRAINTS
    extra = re.fullmatch(r"\.\[(\w+)\]", options["-e"])[1]
    assert extra in PROJECT["optional-dependencies"]


def test_dev_container():
    folder = ROOT / ".devcontainer"
    content = json.loads((folder / "devcontainer.json").read_text())
    image = (folder / content["build"]["dockerfile"]).read_text()
    assert re.search(r"^FROM python:(\d+\.\d+)-", image, re.MULTILINE)[1] == VERSION
    settings = content["customizations"]["vscode"]["settings"]
    assert settings["python.defaultInterpreterPath"].endswith("/.venv/bin/python")
    command = shlex.split(content["postCreateCommand"])
    assert command[0] == "make"
    subprocess.run([*command, "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def test_binder():
    folder = ROOT / ".binder"
    assert (folder / "runtime.txt").read_text() == f"python-{VERSION}\n"
    lines = (folder / "requirements.txt").read_text().splitlines()
    words = [word for line in lines if not line.startswith("#") for word in line.split()]
    check_install(words, folder)


def test_colab():
    page = (ROOT / "docs/platforms.md").read_text()
    found = re.search(r"^%pip install -q (.*)$", page, re.MULTILINE)
    check_install(shlex.split(found[1]), ROOT)


@pytest.mark.parametrize("words", [["-c", "constraints.txt", "-e", ".[labs]"], ["-c", "c.txt"]])
def test_wrong_options_are_found(words):
    with pytest.raises(AssertionError):
        check_install(words, ROOT)
