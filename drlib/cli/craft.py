"""`drlib craft --world folder:notes -n 200 --url URL --model NAME --out DIR`: questions and
AgentFounder's rows from the memory of a world, written by a language model and checked.

    questions.jsonl  each wish: style, thing, question, answer, the statements that it follows from
                     with their sources, and why it is out ("" for kept)
    rows.jsonl       each row of pre-training: kind, text, parts (role and text; "own" is what is to
                     be learned), entity_ids, source_ids, judge ("kept", or why not)
    README.md        how many came to what end
    replies.jsonl    what the model said
    readings.jsonl   what another model said that answered the questions again and judged the plans
                     (--reader); without one the writer does, in calls of its own

What each check is: `drlib.questions.crafting` and `drlib.demonstrations.model_teacher`. No reply is
asked for twice: an interrupted command goes on, and a larger budget goes on too. `--attempts` takes
finished attempts (JSON lines of question, answer, prediction and messages, as Tongyi's evaluation
writes them) and widens their decisions.

Left out: training on the rows (`pretrain.first_order_share` and `pretrain.higher_order_share` mix
in those that are made by rule).
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from drlib.cli.dataset import KEY, REPLIES
from drlib.demonstrations.agentfounder import KEPT, CptRow, higher_order
from drlib.demonstrations.model_teacher import ModelTeacher
from drlib.endpoint import ChatEndpoint, EndpointError
from drlib.files import read_json_lines, write_atomic
from drlib.questions.crafting import WISHES, CraftedQuestion, count_outcomes, craft
from drlib.questions.entity_memory import EntityMemory, build_world_memory
from drlib.questions.replies import Replies
from drlib.task import is_accepted
from drlib.validation import require
from drlib.worlds import load_world

QUESTIONS, ROWS, CARD = "questions.jsonl", "rows.jsonl", "README.md"
READINGS = "readings.jsonl"
FEWEST_STATEMENTS = 3  # about a thing that is asked about
NOT_WIDENED = "not widened"
_TAGS = ("<tool_response>", "</tool_response>")


def main(argv: list[str] | None = None) -> int:
    """The exit status: 0; 1, and one line on stderr, where no question came of it or an argument is
    wrong; 130 after Ctrl-C."""
    args = _parser().parse_args(argv)
    try:
        require(args.n >= 1 and args.plans >= 1, "-n and --plans start at 1")
        require(args.reader or not args.reader_url, "--reader-url needs --reader: which model?")
        args.out.mkdir(parents=True, exist_ok=True)
        memory = build_world_memory(load_world(args.world))
        writer = _replies(args.url, args.model, args.out / REPLIES, args)
        reader = writer
        if args.reader:
            reader = _replies(args.reader_url or args.url, args.reader, args.out / READINGS, args)
        crafted = craft(memory, _wishes(memory, args), writer, reader, seed=args.seed)
        rows = _rows(memory, crafted, writer, reader, args)
        _write(crafted, rows, args)
    except (ValueError, OSError, EndpointError) as fault:
        print(f"drlib craft: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("drlib craft: interrupted; the same command goes on", file=sys.stderr)
        return 130
    print(args.out / CARD)
    if any(not one.reason for one in crafted):
        return 0
    ends = Counter(one.reason for one in crafted)
    print(f"drlib craft: no question was kept: {dict(ends.most_common(3))}", file=sys.stderr)
    return 1


def _replies(url: str, model: str, path: Path, args: argparse.Namespace) -> Replies:
    """Return the replies of `model`, stored in `path`."""
    endpoint = ChatEndpoint(url, model, api_key=os.environ.get(KEY, ""))
    return Replies(endpoint, path, calls=args.calls, options={"temperature": args.temperature})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="drlib craft", description="questions and rows of pre-training, by a language model"
    )
    parser.add_argument("--world", required=True, help="such as cldr, pydocs or folder:notes")
    parser.add_argument("-n", type=int, required=True, help="questions that are wished for")
    parser.add_argument("--url", required=True, help="of an OpenAI-compatible server, with its /v1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--reader", metavar="MODEL", help="another that answers again and judges")
    parser.add_argument("--reader-url", metavar="URL", help="where it is served; default: --url")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--styles", default=",".join(WISHES), help="some of %(default)s")
    parser.add_argument("--plans", type=int, default=2, help="of each question (K)")
    parser.add_argument("--attempts", type=Path, metavar="FILE", help="finished ones, to widen")
    parser.add_argument("--alternatives", type=int, default=2, help="to each of their steps (N)")
    parser.add_argument("--calls", type=int, default=1000, help="requests at most, of each model")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def _wishes(memory: EntityMemory, args: argparse.Namespace) -> list[tuple[str, str]]:
    """(thing, style): all styles about a thing of which enough is known, then about another.
    ValueError: there is no such thing."""
    styles = [style for style in args.styles.split(",") if style]
    require(styles, "--styles names none")
    known = [
        one for one in memory.entities if len(memory.list_statements(one)) >= FEWEST_STATEMENTS
    ]
    require(
        known,
        f"--world {args.world} says {FEWEST_STATEMENTS} things of nothing: it needs facts, such as "
        "tables or front matter",
    )
    order = random.Random(f"wishes-{args.seed}").sample(known, len(known))
    return [(entity, style) for entity in order for style in styles][: args.n]


def _rows(
    memory: EntityMemory,
    crafted: Sequence[CraftedQuestion],
    writer: Replies,
    reader: Replies,
    args: argparse.Namespace,
) -> list[CptRow]:
    """First-order rows of the questions that were kept, higher-order ones of the attempts."""
    teacher = ModelTeacher(writer, reader, names=memory.entities)

    def first_order(one: CraftedQuestion) -> list[CptRow]:
        task = one.task(args.world)
        known = [statement.text for statement in one.known]
        sources = sorted({source for statement in one.known for source in statement.sources})
        plans = teacher.plans(task, known, sources, args.plans)
        return [*plans, teacher.reasoning(task, known, sources)]

    asked = [one for one in crafted if not one.reason and one.style != "report"]
    made = [row for rows in writer.each(first_order, asked) for row in rows]
    if args.attempts is None:
        return made

    def widened(numbered: tuple[int, dict]) -> CptRow:
        number, attempt = numbered
        source = f"{args.attempts.name}:{number}"
        return _widened(attempt, source, teacher, args)

    return made + writer.each(widened, enumerate(read_json_lines(args.attempts), 1))


def _widened(attempt: dict, source: str, teacher: ModelTeacher, args: argparse.Namespace) -> CptRow:
    """A finished attempt with its decisions; one of which nothing came has the reason in `judge`.

    ValueError: it is no attempt.
    """
    try:
        said = [one for one in attempt["messages"] if one["role"] != "system"]
        turns = [{"role": one["role"], "content": _bare(one["content"])} for one in said]
        correct = is_accepted(attempt["prediction"], [attempt["answer"]])
        asked = (("user", turns[0]["content"]),)
    except (LookupError, TypeError, AttributeError) as error:
        needed = "a line has question, answer, prediction and messages"
        raise ValueError(f"{source} is no attempt ({error!r}): {needed}") from None
    rng = random.Random(f"has-{args.seed}-{source}")
    try:
        return higher_order(turns, correct, source, teacher, args.alternatives, rng)
    except ValueError as fault:
        return CptRow("has", asked, (), (source,), f"{NOT_WIDENED}: {fault}")


def _bare(text: str) -> str:
    """A message without the tags around a tool's response: rows have their own."""
    for tag in _TAGS:
        text = text.replace(tag, "")
    return text.strip("\n")


def _write(
    crafted: Sequence[CraftedQuestion], rows: Sequence[CptRow], args: argparse.Namespace
) -> None:
    """All files but the replies, each whole."""
    questions = [
        one._asdict() | {"known": [known._asdict() for known in one.known]} for one in crafted
    ]
    write_atomic(args.out / QUESTIONS, _lines(questions))
    write_atomic(args.out / ROWS, _lines(row._asdict() | {"text": row.text} for row in rows))
    write_atomic(args.out / CARD, _card(crafted, rows, args))


def _lines(rows: Iterable[dict]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _card(
    crafted: Sequence[CraftedQuestion], rows: Sequence[CptRow], args: argparse.Namespace
) -> str:
    """Write the description of the folder's content."""
    table = [
        f"| {style} | {end} | {number} |"
        for style, ends in count_outcomes(crafted).items()
        for end, number in ends.items()
    ]
    judged = Counter((row.kind, row.judge if row.judge == KEPT else _short(row)) for row in rows)
    ends = [f"| {kind} | {end} | {number} |" for (kind, end), number in sorted(judged.items())]
    return "\n".join(
        [
            f"# Questions and rows from {args.world}",
            "",
            f"Written by {args.model}, read and judged by {args.reader or 'the same'}, and checked "
            f"(`drlib craft`, seed {args.seed}).",
            "",
            "| style | end | wishes |",
            "|---|---|---|",
            *table,
            "",
            "| kind of row | end | rows |",
            "|---|---|---|",
            *ends,
            "",
        ]
    )


def _short(row: CptRow) -> str:
    """The reason against a row without its particulars."""
    return row.judge.partition(":")[0]


if __name__ == "__main__":
    sys.exit(main())
