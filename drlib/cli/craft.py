"""`drlib craft`: questions and AgentFounder pre-training rows, written and checked by a model.

A language model behind an OpenAI-compatible server (API key: DRLIB_API_KEY) writes from the world's
statements. `drlib.questions.crafting` and `drlib.demonstrations.model_teacher` contain the checks.
Run an interrupted command again to resume; cached replies are not requested again.

    questions.jsonl  requested questions with style, entity, answer, the statements that support the
                     answer and their sources; `reason` is empty if the question was kept
    rows.jsonl       pre-training rows: kind, text, parts (role and text; "own" parts are trained
                     on), entity_ids, source_ids, judge ("kept", or the reason for rejection)
    README.md        number of questions and rows by outcome
    replies.jsonl    replies of the writer
    readings.jsonl   replies of the reader, which answers the questions and judges the plans
                     (--reader); without a reader the writer does this in separate requests

`--attempts` reads finished rollouts in the format of Tongyi's evaluation (JSON lines of question,
answer, prediction and messages) and writes higher-order rows with alternatives to their decisions.
Training on the rows is not part of this command.
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from drlib.cli.dataset import API_KEY, REPLIES
from drlib.cli.examples import add_examples
from drlib.demonstrations.agentfounder import KEPT, CptRow, higher_order
from drlib.demonstrations.model_teacher import ModelTeacher
from drlib.endpoint import ChatEndpoint, EndpointError, parse_names
from drlib.files import read_json_lines, write_atomic
from drlib.questions.crafting import WISHES, CraftedQuestion, count_outcomes, craft
from drlib.questions.entity_memory import EntityMemory, build_world_memory
from drlib.questions.replies import Replies
from drlib.task import is_accepted
from drlib.validation import require
from drlib.worlds import load_world

QUESTIONS, ROWS, CARD = "questions.jsonl", "rows.jsonl", "README.md"
READINGS = "readings.jsonl"
MIN_STATEMENTS = 3  # statements about an entity that questions are written about
NO_ALTERNATIVES = "no alternatives"
_TAGS = ("<tool_response>", "</tool_response>")


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 with questions; 1 without, or for a wrong argument, with the cause on stderr; 130 after
        Ctrl-C.
    """
    args = _parser().parse_args(argv)
    try:
        require(args.n >= 1 and args.plans >= 1, "-n and --plans must be at least 1")
        require(args.reader or not args.reader_url, "--reader-url requires --reader MODEL")
        args.out.mkdir(parents=True, exist_ok=True)
        memory = build_world_memory(load_world(args.world))
        writer = _open_replies(args.url, args.model, args.out / REPLIES, args)
        reader = writer
        if args.reader:
            url = args.reader_url or args.url
            reader = _open_replies(url, args.reader, args.out / READINGS, args)
        requests = _select_requests(memory, args)
        crafted = craft(memory, requests, writer, reader, seed=args.seed)
        rows = _write_rows(memory, crafted, writer, reader, args)
        _save(crafted, rows, args)
    except (ValueError, OSError, EndpointError) as error:
        print(f"drlib craft: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("drlib craft: interrupted: run the same command again to resume", file=sys.stderr)
        return 130
    print(args.out / CARD)
    if any(not question.reason for question in crafted):
        return 0
    reasons = Counter(question.reason for question in crafted)
    print(f"drlib craft: no question was kept: {dict(reasons.most_common(3))}", file=sys.stderr)
    return 1


def _open_replies(url: str, model: str, path: Path, args: argparse.Namespace) -> Replies:
    """Return the cached replies of `model`, stored in `path`."""
    key = os.environ.get(API_KEY, "")
    endpoint = ChatEndpoint(url, model, api_key=key, omit=parse_names(args.omit))
    return Replies(endpoint, path, calls=args.calls, options={"temperature": args.temperature})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="drlib craft", description=__doc__)
    server = "--url http://localhost:8000/v1 --model NAME"
    add_examples(
        parser,
        f"drlib craft --world folder:notes -n 200 {server} --out crafted",
        f"drlib craft --world cldr -n 20 --styles fact,numeric {server} --out crafted",
    )
    parser.add_argument("--world", required=True, help="world, such as cldr or folder:notes")
    parser.add_argument("-n", type=int, required=True, help="number of questions to request")
    parser.add_argument("--url", required=True, help="OpenAI-compatible server, including /v1")
    parser.add_argument("--model", required=True, help="model that writes")
    parser.add_argument("--reader", metavar="MODEL", help="model that answers and judges")
    parser.add_argument("--reader-url", metavar="URL", help="server of --reader; default: --url")
    parser.add_argument(
        "--omit",
        default="",
        metavar="NAMES",
        help="comma-separated request parameters that the servers reject, e.g. temperature",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="output folder")
    parser.add_argument("--styles", default=",".join(WISHES), help="question styles (%(default)s)")
    parser.add_argument("--plans", type=int, default=2, help="plans per question (2)")
    parser.add_argument("--attempts", type=Path, metavar="FILE", help="finished rollouts")
    parser.add_argument(
        "--alternatives", type=int, default=2, help="alternatives per step of --attempts (2)"
    )
    parser.add_argument(
        "--calls", type=int, default=1000, help="maximum number of requests per model (1000)"
    )
    parser.add_argument("--temperature", type=float, default=0.7, help="sampling temperature (0.7)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random draws (0)")
    return parser


def _select_requests(memory: EntityMemory, args: argparse.Namespace) -> list[tuple[str, str]]:
    """Return `args.n` pairs (entity, style), with all styles of an entity before the next entity.

    Raises:
        ValueError: no style is given, or no entity has enough statements.
    """
    styles = [style for style in args.styles.split(",") if style]
    require(len(styles) > 0, "--styles is empty")
    known = [
        entity
        for entity in memory.entities
        if len(memory.list_statements(entity)) >= MIN_STATEMENTS
    ]
    require(
        len(known) > 0,
        f"no entity of --world {args.world} has {MIN_STATEMENTS} statements: choose a world with "
        "facts, such as a folder with tables or front matter",
    )
    order = random.Random(f"wishes-{args.seed}").sample(known, len(known))
    return [(entity, style) for entity in order for style in styles][: args.n]


def _write_rows(
    memory: EntityMemory,
    crafted: Sequence[CraftedQuestion],
    writer: Replies,
    reader: Replies,
    args: argparse.Namespace,
) -> list[CptRow]:
    """Write first-order rows of the kept questions and higher-order rows of the attempts."""
    teacher = ModelTeacher(writer, reader, names=memory.entities)

    def write_first_order(question: CraftedQuestion) -> list[CptRow]:
        """Write the rows of one question."""
        task = question.task(args.world)
        known = [statement.text for statement in question.known]
        sources = sorted({source for statement in question.known for source in statement.sources})
        plans = teacher.plans(task, known, sources, args.plans)
        return [*plans, teacher.reasoning(task, known, sources)]

    # a report has no single answer to plan for
    questions = [one for one in crafted if not one.reason and one.style != "report"]
    first_order = [row for rows in writer.each(write_first_order, questions) for row in rows]
    if args.attempts is None:
        return first_order

    def write_higher_order(numbered: tuple[int, dict]) -> CptRow:
        """Write the row of one attempt."""
        number, attempt = numbered
        source = f"{args.attempts.name}:{number}"
        return _convert_attempt(attempt, source, teacher, args)

    numbered = enumerate(read_json_lines(args.attempts), 1)
    return first_order + writer.each(write_higher_order, numbered)


def _convert_attempt(
    attempt: dict, source: str, teacher: ModelTeacher, args: argparse.Namespace
) -> CptRow:
    """Return a higher-order row; without alternatives it is empty, with the reason in `judge`.

    Raises:
        ValueError: `attempt` lacks a field.
    """
    try:
        messages = [message for message in attempt["messages"] if message["role"] != "system"]
        turns = [
            {"role": message["role"], "content": _strip_tags(message["content"])}
            for message in messages
        ]
        correct = is_accepted(attempt["prediction"], [attempt["answer"]])
        question = (("user", turns[0]["content"]),)
    except (LookupError, TypeError, AttributeError) as error:
        fields = "question, answer, prediction and messages"
        raise ValueError(f"{source} is no attempt ({error!r}): it needs {fields}") from None
    rng = random.Random(f"has-{args.seed}-{source}")
    try:
        return higher_order(turns, correct, source, teacher, args.alternatives, rng)
    except ValueError as error:
        return CptRow("has", question, (), (source,), f"{NO_ALTERNATIVES}: {error}")


def _strip_tags(text: str) -> str:
    """Remove the tags around a tool response, because rows add their own."""
    for tag in _TAGS:
        text = text.replace(tag, "")
    return text.strip("\n")


def _save(
    crafted: Sequence[CraftedQuestion], rows: Sequence[CptRow], args: argparse.Namespace
) -> None:
    """Write every file except the replies, each atomically."""
    questions = [
        one._asdict() | {"known": [known._asdict() for known in one.known]} for one in crafted
    ]
    write_atomic(args.out / QUESTIONS, _to_json_lines(questions))
    rows_with_text = (row._asdict() | {"text": row.text} for row in rows)
    write_atomic(args.out / ROWS, _to_json_lines(rows_with_text))
    write_atomic(args.out / CARD, _card(crafted, rows, args))


def _to_json_lines(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _card(
    crafted: Sequence[CraftedQuestion], rows: Sequence[CptRow], args: argparse.Namespace
) -> str:
    """Return the description of the output folder as Markdown."""
    question_lines = [
        f"| {style} | {outcome} | {number} |"
        for style, outcomes in count_outcomes(crafted).items()
        for outcome, number in outcomes.items()
    ]
    counts = Counter((row.kind, _outcome(row)) for row in rows)
    row_lines = [
        f"| {kind} | {outcome} | {number} |" for (kind, outcome), number in sorted(counts.items())
    ]
    return "\n".join(
        [
            f"# Questions and rows from {args.world}",
            "",
            f"Written by {args.model}, read and judged by {args.reader or 'the same model'}, and "
            f"checked (`drlib craft`, seed {args.seed}).",
            "",
            "| style | outcome | questions |",
            "|---|---|---|",
            *question_lines,
            "",
            "| kind of row | outcome | rows |",
            "|---|---|---|",
            *row_lines,
            "",
        ]
    )


def _outcome(row: CptRow) -> str:
    """Return "kept", or the reason for rejection without its details."""
    return KEPT if row.judge == KEPT else row.judge.partition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
