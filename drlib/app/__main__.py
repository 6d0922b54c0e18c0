"""`python -m drlib.app "question"`: a deep-research run in the terminal.

By default the tour's small policy in the tour's world; with `--endpoint URL --model NAME` any model
behind an OpenAI-compatible server (its key from the environment, DRLIB_API_KEY); with
`--folder DIR` a model on this disk.
"""

import argparse
import sys
from pathlib import Path

from rich.console import Console

from drlib.agents import AGENTS
from drlib.app.options import AskError, Setup
from drlib.app.research import Asker, ask, report_of
from drlib.app.terminal import Trace, show
from drlib.files import write_whole


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0 with an answer; 1, and one line on stderr, without; 130 after Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.question is None) != args.serve:
        parser.error("give a question, or --serve")
    console = Console(highlight=False, soft_wrap=True)
    before = _written(args.save)
    try:
        setup = Setup(
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
            return _serve(setup, args.host, args.port)
        done = ask(args.question, setup, None if args.quiet else Trace(console), args.save)
    except (AskError, ValueError) as error:
        print(f"drlib.app: {error}{_saved(args.save, before)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"drlib.app: interrupted{_saved(args.save, before)}", file=sys.stderr)
        return 130
    if args.report is not None:
        write_whole(args.report, report_of(args.question, done))
    if args.quiet:
        print(done.answer)
    else:
        show(console, done)
    return 0


def _serve(setup: Setup, host: str, port: int) -> int:
    from drlib.app.server import serve  # FastAPI is no base dependency

    with Asker(setup) as asker:
        serve(asker, host, port)
    return 0


def _written(path: Path | None) -> int | None:
    """When the file was written; None where there is none."""
    return path.stat().st_mtime_ns if path and path.exists() else None


def _saved(path: Path | None, before: int | None) -> str:
    """Where the work so far lies, if this run has saved any."""
    return f"; what was done is in {path}" if _written(path) != before else ""


def _parser() -> argparse.ArgumentParser:
    known = Setup()
    parser = argparse.ArgumentParser(prog="python -m drlib.app", description="research a question")
    parser.add_argument("question", nargs="?")
    parser.add_argument("--serve", action="store_true", help="behind a page in a browser")
    parser.add_argument("--host", default="127.0.0.1", help="of --serve; others need a token")
    parser.add_argument("--port", type=int, default=8765, help="of --serve; 0 for any")
    parser.add_argument("--agent", default=known.agent, help=", ".join(AGENTS))
    parser.add_argument("--plugins", default="", help="modules that register your own agents")
    parser.add_argument("--world", default=known.world, help="such as cldr or folder:notes")
    parser.add_argument("--start", default="", help="a page's title or URL, for the webwalker")
    parser.add_argument(
        "--search", default="", metavar="NAME[=URL]", help="live, such as serper or searxng=URL"
    )
    parser.add_argument("--endpoint", default="", metavar="URL", help="http://localhost:8000/v1")
    parser.add_argument("--model", default="", help="of the endpoint")
    parser.add_argument("--folder", default="", help="of a model on this disk")
    parser.add_argument("--engine", default=known.engine, help="that runs it: hf or vllm")
    parser.add_argument(
        "--native-tools", action="store_true", help="tools by the server's or the model's own means"
    )
    parser.add_argument("--runs", type=int, default=known.runs, help="of Heavy mode")
    parser.add_argument("--temperature", type=float, default=known.temperature)
    parser.add_argument("--calls", type=int, default=known.calls, help="of tools, at most")
    parser.add_argument("--turn-tokens", type=int, default=known.turn_tokens)
    parser.add_argument("--context-tokens", type=int, default=known.context_tokens)
    parser.add_argument("--seconds", type=float, default=known.seconds)
    parser.add_argument(
        "--prices",
        type=float,
        nargs=2,
        default=known.prices,
        metavar=("READ", "SAID"),
        help="of a million tokens",
    )
    parser.add_argument("--save", type=Path, help="the trajectory, a Parquet file for the viewer")
    parser.add_argument("--report", type=Path, help="the answer with its sources, in Markdown")
    parser.add_argument("--quiet", action="store_true", help="the answer alone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
