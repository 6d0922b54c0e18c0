"""Examples at the end of a command's help."""

import argparse


def add_examples(parser: argparse.ArgumentParser, *commands: str) -> None:
    """Show `commands` below the help, and keep the line breaks of the description.

    tests/test_cli_examples.py parses every command.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    title = "example" if len(commands) == 1 else "examples"
    parser.epilog = "\n  ".join([f"{title}:", *commands])
