"""Options that select a research agent: `drlib ask` and `drlib evaluate BENCHMARK`."""

import argparse
from collections.abc import Sequence
from dataclasses import fields

from drlib.agents import AGENTS
from drlib.agents.preset import list_presets
from drlib.app.research import AskError, AskOptions, preset_options

OTHER_NAMES = {"native": "native_tools"}  # option of the command line, where it differs


def add_agent_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of agent, documents, model and limits."""
    default = AskOptions()
    add = parser.add_argument
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
    add(
        "--world",
        default=default.world,
        help="document collection, e.g. cldr or folder:notes; none: nothing",
    )
    add("--start", default="", help="title or URL of the first page, for the webwalker")
    add(
        "--search",
        default="",
        metavar="NAME[=URL]",
        help="live search provider, e.g. serper or searxng=URL, or the ranking of the world: "
        "fts5, bm25s, or hybrid (with word embeddings)",
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
    add("--runs", type=int, default=default.runs, help="runs of heavy, parallelmuse, browseconf")
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
    add("--files", default="", metavar="DIR", help="files that the agent can read (parse_file)")
    # set by drlib evaluate BENCHMARK and drlib evaluate tasks
    parser.set_defaults(file_names=(), environments="")


def apply_preset(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments; the values of --preset are the defaults of the other options."""
    args = parser.parse_args(argv)
    if not args.preset:
        return args
    try:
        parser.set_defaults(**preset_options(args.preset))
    except AskError as error:
        parser.error(str(error))
    return parser.parse_args(argv)


def read_options(args: argparse.Namespace) -> AskOptions:
    """Return the options of the agent.

    Raises:
        AskError: they are inconsistent.
    """
    names = [field.name for field in fields(AskOptions) if field.name != "api_key"]
    values = {name: getattr(args, OTHER_NAMES.get(name, name)) for name in names}
    return AskOptions(**values | {"prices": tuple(args.prices)})
