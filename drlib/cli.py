"""The `drlib` command: one door to the programs of the rooms.

    drlib run 00 -f notebooks/params/laptop.yaml     a notebook         python -m drlib.lab run
    drlib train rl --profile ci --rl.loss.clip=cispo  a stage            python -m drlib.training
    drlib evaluate rl --profile ci                   its evaluation     python -m drlib.training
    drlib plan --profile gpu8                        what it needs      python -m drlib.training
    drlib sweep clips                                settings x seeds  python -m drlib.lab sweep
    drlib dataset --world cldr -n 100 --out DIR      questions          python -m drlib.lab.dataset
    drlib craft --world cldr -n 100 --url U ...      with a model       python -m drlib.lab.craft
    drlib ask "What is the currency of Norway?"      one question       python -m drlib.app
    drlib crawl URL FOLDER                           a site as a world  python -m drlib.tools.crawl
    drlib report REPORT.html rollouts.jsonl          trajectory files   python -m drlib.analysis
    drlib sandbox probe                              generated code     python -m drlib.sandbox

Each word hands its arguments to the room's own `main`, which is imported then and not before: help
and misspelled words need no torch. `drlib WORD --help` is the help of the room.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from drlib import __version__
from drlib.registry import suggest_name
from drlib.startup import freeze_imports


class Command(NamedTuple):
    """What stands behind a word: a module with `main(argv)`, and words that it wants first."""

    module: str
    help: str
    before: tuple[str, ...] = ()


COMMANDS = {
    "run": Command("drlib.lab.__main__", "execute a notebook with other parameters", ("run",)),
    "train": Command("drlib.training.__main__", "build a stage and what it needs"),
    "evaluate": Command("drlib.training.__main__", "ask a stage's policy the held-out questions"),
    "plan": Command("drlib.training.plan", "what a run needs of memory, time and disk"),
    "sweep": Command("drlib.lab.__main__", "several settings against a control", ("sweep",)),
    "dataset": Command("drlib.lab.dataset", "questions about a world, as a data set"),
    "craft": Command("drlib.lab.craft", "questions and pre-training rows, by a language model"),
    "ask": Command("drlib.app.__main__", "research one question, in the terminal"),
    "crawl": Command("drlib.tools.crawl", "a web site as a folder of Markdown, which is a world"),
    "report": Command("drlib.analysis.__main__", "one page about trajectories of any model"),
    "sandbox": Command("drlib.sandbox.__main__", "what this machine can isolate; serve calls"),
}
EVALUATE = "evaluate_"  # what the stages that evaluate others are called


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status of the room's program; 2, and one line on stderr, for an unknown word."""
    word, *arguments = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if word in ("-h", "--help"):
        print(_usage())
        return 0
    if word == "--version":
        print(f"drlib {__version__}")
        return 0
    try:
        if word not in COMMANDS:
            raise ValueError(f"unknown command {word!r}: {suggest_name(word, COMMANDS)}")
        if word == "evaluate":
            arguments = _of_evaluation(arguments)
    except ValueError as fault:
        print(f"drlib: {fault}", file=sys.stderr)
        return 2
    command = COMMANDS[word]
    with freeze_imports():
        program = import_module(command.module)
    return program.main([*command.before, *arguments]) or 0


def _usage() -> str:
    """The words with a line each."""
    rows = [f"  {word:10}{command.help}" for word, command in COMMANDS.items()]
    head = ["usage: drlib COMMAND [ARGUMENTS...]", "       drlib --help | --version", ""]
    return "\n".join([*head, *rows, "", "drlib COMMAND --help says which arguments it takes."])


def _of_evaluation(arguments: list[str]) -> list[str]:
    """The arguments with the evaluated stage's name, which comes first, made the evaluation's."""
    if arguments[:1] in (["-h"], ["--help"]):
        return arguments
    if not arguments or arguments[0].startswith("-"):
        raise ValueError("evaluate wants the name of a stage first, as in: drlib evaluate rl")
    stage, *rest = arguments
    return [EVALUATE + stage.removeprefix(EVALUATE), *rest]


if __name__ == "__main__":
    sys.exit(main())
