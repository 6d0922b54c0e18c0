"""`drlib questions preview WORLD`: the words that questions about documents use, as YAML.

The output lists the kinds of things, and the columns and keys, with a sample question of each. Save
it in the folder as drlib.yaml and edit it: `drlib dataset` then uses these words. null removes a
noun, or leaves a column out.

`drlib questions solvable FILE --out FILE` keeps the questions of `drlib dataset` that an agent
answers in at least one of five rollouts, as WebShaper does with its seed questions.
"""

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from drlib.cli.examples import add_examples
from drlib.files import read_json_lines, write_atomic
from drlib.questions.chain_wording import ChainWriter
from drlib.questions.document_questions import is_answer
from drlib.questions.families import make_writer
from drlib.questions.queries import Proj
from drlib.questions.question_set import row_to_task
from drlib.task import Task
from drlib.worlds import load_world
from drlib.worlds.folder import WORDS_FILE
from drlib.worlds.graph import VALUE, inverse
from drlib.worlds.triples import RESERVED_RELATIONS

SHOWN = 3  # names of a kind
TRIES = 20  # facts tried for a sample question


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    argv = [*sys.argv[1:]] if argv is None else [*argv]
    if argv[:1] == ["solvable"]:
        return _keep_solvable(argv[1:])
    parser = argparse.ArgumentParser(prog="drlib questions", description=__doc__)
    add_examples(
        parser,
        "drlib questions preview folder:notes",
        "drlib questions solvable questions/data/train.jsonl --world cldr "
        "--endpoint http://localhost:8000/v1 --model NAME --out seeds.jsonl",
    )
    parser.add_argument(
        "action", choices=["preview", "solvable"], help="print the words as YAML, or filter a file"
    )
    parser.add_argument("world", help="world, such as folder:notes")
    args = parser.parse_args(argv)
    try:
        world = load_world(args.world)
        if world.graph is None:
            raise ValueError(f"{args.world} has no facts: add tables, front matter or links")
        text = preview(make_writer(world), args.world)
    except (ValueError, OSError) as error:
        print(f"drlib questions: {error}", file=sys.stderr)
        return 1
    print(text, end="")
    return 0


def _keep_solvable(argv: list[str]) -> int:
    """Run `drlib questions solvable`."""
    from drlib.app.research import AskError, AskSession  # lazy: imports torch
    from drlib.cli.agent_options import add_agent_options, apply_preset, read_options

    parser = argparse.ArgumentParser(prog="drlib questions solvable", description=__doc__)
    parser.add_argument("file", type=Path, help="questions of drlib dataset, such as train.jsonl")
    parser.add_argument("--out", type=Path, required=True, help="kept questions, as JSON lines")
    parser.add_argument("--attempts", type=int, default=5, help="rollouts per question (5)")
    parser.add_argument("--least", type=int, default=1, help="right ones of them, at least (1)")
    add_agent_options(parser)
    parser.set_defaults(temperature=1.0)  # greedy rollouts would be equal
    args = apply_preset(parser, argv)
    try:
        rows = read_json_lines(args.file)
        tasks = [_read_task(row, i, args.file) for i, row in enumerate(rows)]
        with AskSession(read_options(args)) as session:
            rates = args.out.with_suffix(".rates.jsonl")
            kept, counts = session.keep_solvable(tasks, args.attempts, args.least, rates)
    except (ValueError, OSError, AskError) as error:
        print(f"drlib questions solvable: {error}", file=sys.stderr)
        return 1
    lines = [json.dumps(rows[int(t.id)] | {"with_tools": t.with_tools}) + "\n" for t in kept]
    write_atomic(args.out, "".join(lines))
    print(", ".join(f"{name}: {count}" for name, count in counts.items()))
    return 0


def _read_task(row: dict, number: int, file: Path) -> Task:
    """Return the task of a row; its id is the row's number."""
    try:
        return replace(row_to_task(row), id=str(number))
    except KeyError as error:
        raise ValueError(f"{file} is no file of drlib dataset: a row lacks {error}") from error


def preview(writer: ChainWriter, name: str) -> str:
    """Return the words of a world as YAML with sample questions as comments."""
    lines = [
        f"# Words for questions about {name}. Save as {WORDS_FILE} in the folder and edit:",
        "# null removes the noun of a kind, or leaves a column out.",
        "kinds:",
        *_list_kinds(writer),
        "relations:",
        *_list_relations(writer),
    ]
    return "\n".join(lines) + "\n"


def _list_kinds(writer: ChainWriter) -> Iterator[str]:
    """Yield a line for each kind of thing."""
    names: dict[str, list[str]] = {}
    nouns: dict[str, str] = {}
    for title, node in writer.graph.nodes.items():
        if node.kind in (VALUE, "section"):
            continue
        kind = writer.book.kind(title)
        names.setdefault(kind, []).append(writer.book.display(title))
        nouns[kind] = "person" if writer.is_person(title) else writer.kind(title)
    for kind, some in sorted(names.items()):
        more = f" and {len(some) - SHOWN} more" if len(some) > SHOWN else ""
        yield _line(kind, nouns[kind], f"{', '.join(some[:SHOWN])}{more}")


def _list_relations(writer: ChainWriter) -> Iterator[str]:
    """Yield a line for each column or key with a sample question."""
    graph = writer.graph
    for name in sorted(graph.adjacent):
        if name.endswith(" of") or name in RESERVED_RELATIONS:
            continue
        relation = writer.relations[name]
        sample = _find_sample(writer, name) if relation.form else ""
        comment = sample or ("no question" if relation.form else "no phrase for this name")
        yield _line(name, relation.words if relation.form else "", comment)


def _find_sample(writer: ChainWriter, relation: str) -> str:
    """Return a question about `relation` with its answer, or an empty string."""
    graph = writer.graph
    facts = [fact for fact in graph.facts if fact[1] == relation]
    random.Random(relation).shuffle(facts)
    for subject, _, value in facts[:TRIES]:
        for start, way, answer in ((subject, relation, value), (value, inverse(relation), subject)):
            is_one = graph.values(start, way) == {answer}
            is_asked = is_one and is_answer(answer, graph, writer.book)
            text = writer.write(Proj(way, start)) if is_asked else ""
            if text:
                return f"{text} -> {writer.book.display(answer)}"
    return ""


def _line(name: str, words: str, comment: str) -> str:
    """Return a YAML line with a comment."""
    pair = yaml.safe_dump({name: words or None}, allow_unicode=True, width=1000).strip()
    return f"  {pair}  # {' '.join(comment.split())}"
