"""`drlib ask "question"`: research one question in the terminal, or serve a web page.

The default is the tour's policy and world. `--endpoint URL --model NAME` selects a model on an
OpenAI-compatible server (API key: DRLIB_API_KEY). `--folder DIR` selects a local model folder, and
`--model smol` without a server a small model that reads documents (after `drlib convert smol`).
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from drlib.app.research import (
    AskError,
    AskOptions,
    AskSession,
    ask,
    describe_prompt,
    render_report,
)
from drlib.app.terminal import Trace, show
from drlib.cli.agent_options import add_agent_options, apply_preset, read_options
from drlib.cli.examples import add_examples
from drlib.files import write_atomic
from drlib.validation import require


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0 with an answer, 1 without (cause on stderr), 130 after Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.question is None) != args.serve:
        parser.error("give either a question or --serve")
    args = apply_preset(parser, argv)
    console = Console(highlight=False, soft_wrap=True)
    before = _modified_ns(args.save)
    try:
        options = read_options(args)
        if note := describe_prompt(options):
            print(f"drlib ask: {note}", file=sys.stderr)
        if args.serve:
            return _serve(options, args)
        result = ask(args.question, options, None if args.quiet else Trace(console), args.save)
    except (AskError, ValueError) as error:
        print(f"drlib ask: {error}{_saved_note(args.save, before)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"drlib ask: interrupted{_saved_note(args.save, before)}", file=sys.stderr)
        return 130
    if args.report is not None:
        write_atomic(args.report, render_report(args.question, result))
    if args.quiet:
        print(result.answer)
    else:
        show(console, result)
    return 0


def _serve(options: AskOptions, args: argparse.Namespace) -> int:
    from drlib.app.history import History
    from drlib.app.server import serve  # FastAPI is not a base dependency

    is_remote = bool(options.endpoint) and not options.folder
    require(
        args.parallel == 1 or (args.parallel > 1 and is_remote),
        f"--parallel={args.parallel} needs --endpoint: a local model answers one at a time",
    )
    with AskSession(options) as session, ExitStack() as stack:
        history = History(args.history)
        stack.callback(history.close)
        serve(session, args.host, args.port, parallel=args.parallel, history=history)
    return 0


def _modified_ns(path: Path | None) -> int | None:
    """Return the file's modification time in nanoseconds, None if it does not exist."""
    return path.stat().st_mtime_ns if path and path.exists() else None


def _saved_note(path: Path | None, before: int | None) -> str:
    """Return a note with the path of the partial trajectory, or "" if none was saved."""
    return f"; the trajectory so far is in {path}" if _modified_ns(path) != before else ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drlib ask", description=__doc__)
    add_examples(
        parser,
        'drlib ask "What is the currency of Norway?"',
        'drlib ask "Who maintains it?" --world folder:notes --model smol',
        'drlib ask "Who maintains it?" --world folder:notes --endpoint http://localhost:8000/v1 '
        "--model NAME",
        'drlib ask "Who maintains it?" --preset tongyi --endpoint http://localhost:8000/v1 '
        "--model NAME --system-prompt prompt.py:SYSTEM_PROMPT",
        "drlib ask --serve --port 8765",
    )
    add = parser.add_argument
    add("question", nargs="?", help="question; omit it with --serve")
    add("--serve", action="store_true", help="serve a web page instead of answering one question")
    add(
        "--host",
        default="127.0.0.1",
        help="--serve: address; a public one requires DRLIB_ASK_TOKEN",
    )
    add("--port", type=int, default=8765, help="--serve: port; 0: any free port")
    add("--parallel", type=int, default=1, help="--serve: questions at the same time (1)")
    add("--history", type=Path, help="--serve: keep questions in this SQLite file, else in memory")
    add_agent_options(parser)
    add("--save", type=Path, help="write the trajectory to this Parquet file")
    add("--report", type=Path, help="write answer and sources to this Markdown file")
    add("--quiet", action="store_true", help="print the answer only")
    return parser
