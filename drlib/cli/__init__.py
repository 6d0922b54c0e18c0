"""The `drlib` command: one module per subcommand, imported when it is called.

Help and misspelled commands therefore need neither torch nor transformers.
"""

import sys
from collections.abc import Sequence
from importlib import import_module

from drlib import __version__
from drlib.registry import suggest_name
from drlib.startup import freeze_imports

# command -> (help, example); the code is drlib/cli/COMMAND.py with `main(argv) -> exit status`
COMMANDS = {
    "run": ("run a notebook with other parameters", "drlib run tour --profile laptop"),
    "train": ("build a training stage and its inputs", "drlib train rl --profile ci --rl.lr 2e-4"),
    "evaluate": ("evaluate the policy of a stage", "drlib evaluate rl --profile ci"),
    "experiment": ("compare settings with a control over seeds", "drlib experiment list"),
    "plan": ("estimate memory and time of a run", "drlib plan --profile gpu8"),
    "doctor": ("find out why a reward stays flat", "drlib doctor runs/laptop/rl-0123456789"),
    "ask": ("research one question", 'drlib ask "What is the currency of Norway?"'),
    "dataset": ("synthesise questions", "drlib dataset --world folder:notes -n 200 --out DIR"),
    "questions": ("show the words for questions", "drlib questions preview folder:notes"),
    "convert": ("make a GGUF file a model", "drlib convert smol"),
    "craft": (
        "let a language model write questions",
        "drlib craft --world cldr -n 9 --url URL --model NAME --out DIR",
    ),
    "crawl": ("save a web site as a folder of Markdown", "drlib crawl https://example.org out"),
    "report": ("analyse rollouts of any model", "drlib report report.html rollouts.parquet"),
    "mcp": ("serve a world's tools to MCP clients", "drlib mcp folder:notes"),
    "sandbox": ("show or serve the Python sandbox", "drlib sandbox probe"),
    "rewards": ("judge rollouts over HTTP", "drlib rewards serve --port 8732"),
    "notebooks": ("refresh or check committed notebooks", "drlib notebooks check 03"),
}


WINDOWS = (
    "Windows lacks file locks and signals that stages need: run drlib in WSL 2 (wsl --install), "
    "where it is Linux"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status; 2 for an unknown one."""
    word, *arguments = [*(sys.argv[1:] if argv is None else argv)] or ["--help"]
    if word in ("-h", "--help"):
        print(_usage())
        return 0
    if word == "--version":
        print(f"drlib {__version__}")
        return 0
    if word not in COMMANDS:
        print(f"drlib: unknown command {word!r}: {suggest_name(word, COMMANDS)}", file=sys.stderr)
        return 2
    if sys.platform == "win32":
        print(f"drlib: {WINDOWS}", file=sys.stderr)
        return 1
    with freeze_imports():
        command = import_module(f"drlib.cli.{word}")
    return command.main(arguments) or 0


def _usage() -> str:
    rows = [f"  {word:11}{about:44}{example}" for word, (about, example) in COMMANDS.items()]
    head = ["usage: drlib COMMAND [ARGUMENTS...]", "       drlib --help | --version", ""]
    return "\n".join([*head, *rows, "", "`drlib COMMAND --help` lists the arguments of a command."])
