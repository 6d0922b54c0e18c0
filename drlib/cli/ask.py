"""`drlib ask "question"`: research one question in the terminal, or serve a web page.

The default is the tour's policy in the tour's world. `--endpoint URL --model NAME` selects a model
behind an OpenAI-compatible server (key in DRLIB_API_KEY), `--folder DIR` a local model folder.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from drlib.agents import AGENTS
from drlib.app.research import AskError, AskOptions, AskSession, ask, render_report
from drlib.app.terminal import Trace, show
from drlib.files import write_atomic


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0 with an answer, 1 without (cause on stderr), 130 after Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.question is None) != args.serve:
        parser.error("give a question, or --serve")
    console = Console(highlight=False, soft_wrap=True)
    before = _modified_ns(args.save)
    try:
        options = AskOptions(
            agent=args.agent,
            plugins=args.plugins,
            world=args.world,
            start=args.start,
            search=args.search,
            endpoint=args.endpoint,
            model=args.model,
            folder=args.folder,
            engine=args.engine,
            native=args.native_tools,
            runs=args.runs,
            temperature=args.temperature,
            calls=args.calls,
            turn_tokens=args.turn_tokens,
            context_tokens=args.context_tokens,
            seconds=args.seconds,
            prices=tuple(args.prices),
        )
        if args.serve:
            return _serve(options, args.host, args.port)
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


def _serve(options: AskOptions, host: str, port: int) -> int:
    from drlib.app.server import serve  # FastAPI is not a base dependency

    with AskSession(options) as session:
        serve(session, host, port)
    return 0


def _modified_ns(path: Path | None) -> int | None:
    """Return the file's modification time in nanoseconds, None if it does not exist."""
    return path.stat().st_mtime_ns if path and path.exists() else None


def _saved_note(path: Path | None, before: int | None) -> str:
    """Return a note with the path of the partial trajectory, "" if this run saved none."""
    return f"; the trajectory so far is in {path}" if _modified_ns(path) != before else ""


def _parser() -> argparse.ArgumentParser:
    default = AskOptions()
    parser = argparse.ArgumentParser(prog="drlib ask", description=__doc__)
    add = parser.add_argument
    add("question", nargs="?")
    add("--serve", action="store_true", help="serve a web page instead of answering one question")
    add("--host", default="127.0.0.1", help="--serve: others than loopback need DRLIB_ASK_TOKEN")
    add("--port", type=int, default=8765, help="--serve: port, 0 for any free one")
    add("--agent", default=default.agent, help=", ".join(AGENTS))
    add("--plugins", default="", help="comma-separated modules that register agents or tools")
    add("--world", default=default.world, help="document collection, e.g. cldr or folder:notes")
    add("--start", default="", help="title or URL of the first page, for the webwalker")
    add(
        "--search",
        default="",
        metavar="NAME[=URL]",
        help="live search provider, e.g. serper or searxng=URL",
    )
    add("--endpoint", default="", metavar="URL", help="server, e.g. http://localhost:8000/v1")
    add("--model", default="", help="model name at the endpoint")
    add("--folder", default="", help="local model folder")
    add("--engine", default=default.engine, help="engine for --folder: hf or vllm")
    add("--native-tools", action="store_true", help="use the server's or template's tool format")
    add("--runs", type=int, default=default.runs, help="researchers in Heavy mode")
    add("--temperature", type=float, default=default.temperature)
    add("--calls", type=int, default=default.calls, help="maximum number of tool calls")
    add("--turn-tokens", type=int, default=default.turn_tokens, help="maximum tokens per turn")
    add("--context-tokens", type=int, default=default.context_tokens)
    add("--seconds", type=float, default=default.seconds, help="time limit")
    add(
        "--prices",
        type=float,
        nargs=2,
        default=default.prices,
        metavar=("PROMPT", "COMPLETION"),
        help="per million tokens",
    )
    add("--save", type=Path, help="write the trajectory to this Parquet file")
    add("--report", type=Path, help="write answer and sources to this Markdown file")
    add("--quiet", action="store_true", help="print the answer only")
    return parser
