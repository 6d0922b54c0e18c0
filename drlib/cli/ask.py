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

from drlib.agents import AGENTS
from drlib.agents.preset import list_presets
from drlib.app.research import (
    AskError,
    AskOptions,
    AskSession,
    ask,
    describe_prompt,
    preset_options,
    render_report,
)
from drlib.app.terminal import Trace, show
from drlib.cli.examples import add_examples
from drlib.files import write_atomic
from drlib.task import Task
from drlib.validation import require


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 0 with an answer, 1 without (cause on stderr), 130 after Ctrl-C."""
    parser = _parser()
    args = parser.parse_args(argv)
    if (args.question is not None) + args.serve + (args.questions is not None) != 1:
        parser.error("give either a question, --questions or --serve")
    if (args.questions is None) != (args.answers is None):
        parser.error("--questions and --answers must be given together")
    if args.questions and (args.save or args.report):
        parser.error("--save and --report are for one question: --answers has the messages of all")
    if args.preset:  # its values are the defaults of the other options
        try:
            parser.set_defaults(**preset_options(args.preset))
        except AskError as error:
            parser.error(str(error))
        args = parser.parse_args(argv)
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
            omit=args.omit,
            preset=args.preset,
            few_shot=args.few_shot,
            constrained=args.constrained,
            system_prompt=args.system_prompt,
            question_prompt=args.question_prompt,
        )
        if note := describe_prompt(options):
            print(f"drlib ask: {note}", file=sys.stderr)
        if args.serve:
            return _serve(options, args)
        if args.questions:
            return _answer_all(options, args)
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


def _answer_all(options: AskOptions, args: argparse.Namespace) -> int:
    from drlib.evaluation.benchmarks import load_benchmark

    items = load_benchmark("generic", args.questions)
    tasks = [
        Task(
            item.id, item.question, item.answers[0], "search", args.world, aliases=item.answers[1:]
        )
        for item in items
    ]
    with AskSession(options) as session:
        rows = session.answer_all(tasks, args.answers)
    answered = sum(row["prediction"] is not None for row in rows)
    print(f"{answered} of {len(rows)} questions answered: drlib evaluate answers {args.answers}")
    return 0


def _modified_ns(path: Path | None) -> int | None:
    """Return the file's modification time in nanoseconds, None if it does not exist."""
    return path.stat().st_mtime_ns if path and path.exists() else None


def _saved_note(path: Path | None, before: int | None) -> str:
    """Return a note with the path of the partial trajectory, or "" if none was saved."""
    return f"; the trajectory so far is in {path}" if _modified_ns(path) != before else ""


def _parser() -> argparse.ArgumentParser:
    default = AskOptions()
    parser = argparse.ArgumentParser(prog="drlib ask", description=__doc__)
    add_examples(
        parser,
        'drlib ask "What is the currency of Norway?"',
        'drlib ask "Who maintains it?" --world folder:notes --model smol',
        'drlib ask "Who maintains it?" --world folder:notes --endpoint http://localhost:8000/v1 '
        "--model NAME",
        'drlib ask "Who maintains it?" --preset tongyi --endpoint http://localhost:8000/v1 '
        "--model NAME --system-prompt prompt.py:SYSTEM_PROMPT",
        "drlib ask --questions questions.jsonl --answers answers.jsonl --world folder:notes "
        "--model smol",
        "drlib ask --serve --port 8765",
    )
    add = parser.add_argument
    add("question", nargs="?", help="question; omit it with --serve")
    add(
        "--questions",
        type=Path,
        help="answer all questions of a file (rows with question and answer, such as JSON lines)",
    )
    add(
        "--answers",
        type=Path,
        help="--questions: JSON-lines file of answers; an interrupted run continues",
    )
    add("--serve", action="store_true", help="serve a web page instead of answering one question")
    add(
        "--host",
        default="127.0.0.1",
        help="--serve: address; a public one requires DRLIB_ASK_TOKEN",
    )
    add("--port", type=int, default=8765, help="--serve: port; 0: any free port")
    add("--parallel", type=int, default=1, help="--serve: questions at the same time (1)")
    add("--history", type=Path, help="--serve: keep questions in this SQLite file, else in memory")
    add("--agent", default=default.agent, help=f"research agent: {', '.join(AGENTS)}")
    add(
        "--preset",
        default="",
        metavar="NAME",
        help=f"published agent (tools, prompt, sampling, limits): {', '.join(list_presets())}",
    )
    add(
        "--system-prompt",
        default="",
        metavar="FILE[.py:CONSTANT]",
        help="--preset: the published system prompt, in a text file or a constant of a Python file",
    )
    add(
        "--question-prompt",
        default="",
        metavar="FILE",
        help="--preset: the published text of the first user message, with {question}",
    )
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
    add(
        "--model", default="", help="model name at the endpoint, or smol (after drlib convert smol)"
    )
    add(
        "--omit",
        default="",
        metavar="NAMES",
        help="comma-separated request parameters that the endpoint rejects, e.g. temperature,top_p",
    )
    add(
        "--folder",
        default="",
        help="local model folder, smol, smol-reader, or a GGUF file (drlib convert)",
    )
    add("--engine", default=default.engine, help="engine for --folder: hf or vllm")
    add("--native-tools", action="store_true", help="use the server's or template's tool format")
    add("--few-shot", action="store_true", help="put one worked example before the question")
    add(
        "--constrained",
        action="store_true",
        help="constrain every turn to a call or an answer (structured output)",
    )
    add("--runs", type=int, default=default.runs, help="researchers in Heavy mode")
    add("--temperature", type=float, default=default.temperature, help="sampling temperature")
    add("--calls", type=int, default=default.calls, help="maximum number of tool calls")
    add("--turn-tokens", type=int, default=default.turn_tokens, help="maximum tokens per turn")
    add(
        "--context-tokens",
        type=int,
        default=default.context_tokens,
        help="maximum tokens per rollout, prompt included",
    )
    add("--seconds", type=float, default=default.seconds, help="time limit")
    add(
        "--prices",
        type=float,
        nargs=2,
        default=default.prices,
        metavar=("PROMPT", "COMPLETION"),
        help="prices per million tokens",
    )
    add("--save", type=Path, help="write the trajectory to this Parquet file")
    add("--report", type=Path, help="write answer and sources to this Markdown file")
    add("--quiet", action="store_true", help="print the answer only")
    return parser
