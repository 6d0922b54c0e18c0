"""The examples in `--help` of every command and nested command are valid command lines.

Run: python -m pytest tests/test_cli_examples.py
"""

import argparse
import re
import shlex

import pytest

from drlib import cli
from drlib.config import parse_overrides

EXAMPLE = re.compile(r"^ +(drlib .+)$", re.M)


class Parsed(Exception):
    """Raised in place of running the command; `settings` are the arguments left to Config."""

    def __init__(self, settings):
        super().__init__()
        self.settings = settings


@pytest.fixture
def parse_only(monkeypatch):
    """Make every command stop when its arguments are parsed."""
    depth = 0  # a call inside another one parses a nested command

    def stop_after(method):
        def parse(parser, *arguments):
            nonlocal depth
            depth += 1
            try:
                result = method(parser, *arguments)
            finally:
                depth -= 1
            if depth == 0:
                raise Parsed(result[1] if isinstance(result, tuple) else [])
            return result

        return parse

    for name in ("parse_args", "parse_known_args"):
        method = getattr(argparse.ArgumentParser, name)
        monkeypatch.setattr(argparse.ArgumentParser, name, stop_after(method))


def show_help(capsys, *command):
    """Return the help text of a command."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    assert stopped.value.code == 0
    return capsys.readouterr().out


def check_example(example):
    """Fail unless the command's own parser accepts the example."""
    program, *arguments = shlex.split(example)
    assert program == "drlib"
    if arguments == ["train", "--list"]:  # handled before the parser
        return
    with pytest.raises(Parsed) as stopped:
        cli.main(arguments)
    parse_overrides(stopped.value.settings)  # such as --rl.lr


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_examples_in_the_overview_are_valid(word, parse_only):
    check_example(cli.COMMANDS[word][1])


@pytest.mark.parametrize("word", cli.COMMANDS)
def test_examples_of_every_command_are_valid(word, parse_only, monkeypatch, capsys):
    seen = []
    print_help = argparse.ArgumentParser.print_help
    monkeypatch.setattr(
        argparse.ArgumentParser,
        "print_help",
        lambda parser: seen.append(parser) or print_help(parser),
    )
    pages = {word: show_help(capsys, word)}
    for name in list_nested(seen[0]):
        pages[f"{word} {name}"] = show_help(capsys, word, name)
    for command, text in pages.items():
        examples = EXAMPLE.findall(text)
        assert any(f"{one} ".startswith(f"drlib {command} ") for one in examples), command
        for example in examples:
            check_example(example)


def list_nested(parser):
    """Return the names of the nested commands of a parser."""
    kinds = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return [name for action in kinds for name in action.choices]


def test_a_wrong_option_in_an_example_is_an_error(parse_only, capsys):
    for example in ("drlib report page.html rollouts.parquet --modle x", "drlib crawl --pages 3"):
        with pytest.raises(SystemExit):
            check_example(example)
    with pytest.raises(ValueError, match="did you mean 'rl.steps'"):
        check_example("drlib train rl --rl.stepz 3")
    capsys.readouterr()
