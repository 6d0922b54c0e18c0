"""`drlib questions preview WORLD`: the words that questions about documents use, as YAML.

The output lists the kinds of things, and the columns and keys, with a sample question of each. Save
it in the folder as drlib.yaml and edit it: `drlib dataset` then uses these words. null removes a
noun, or leaves a column out.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence

import yaml

from drlib.cli.examples import add_examples
from drlib.questions.chain_wording import ChainWriter
from drlib.questions.document_questions import is_answer
from drlib.questions.families import make_writer
from drlib.questions.queries import Proj
from drlib.worlds import load_world
from drlib.worlds.folder import WORDS_FILE
from drlib.worlds.graph import VALUE, inverse
from drlib.worlds.triples import RESERVED_RELATIONS

SHOWN = 3  # names of a kind
TRIES = 20  # facts tried for a sample question


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 1 with the cause on stderr."""
    parser = argparse.ArgumentParser(prog="drlib questions", description=__doc__)
    add_examples(parser, "drlib questions preview folder:notes")
    parser.add_argument("action", choices=["preview"], help="print the words as YAML")
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
