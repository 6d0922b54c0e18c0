"""WebShaper's released formalisation: a question as triples, read from and written for its file.

Each row of `webshaper.500.jsonl` has one (arXiv 2507.15061, section 3): ["V@X", "currency",
"C@Euro"] says that the currency of the variable X is the constant Euro; "?" is what is asked. Rows
that share a variable are an intersection. By its proposition 1, R(A) and R(B) unite to R(A and B):
a union is one merged constant, here "C@German & C@French", so that "Bosnia & Herzegovina" stays a
name. As many relations as ends, ["V@X", "born in & lives in", "C@Oslo & V@Y"], are as many triples.

`split_rows` keeps apart the rows that are no triples: 75 of the 6,080 released ones. Left out:
differences, ranges, extremes and counts, which the format cannot say, and what the algebra cannot:
released rows that close a cycle or describe a constant. Both are errors that say where.
"""

import re
from collections.abc import Sequence
from itertools import count

from drlib.synthesis.queries import And, Or, Proj, Query, constants
from drlib.worlds.graph import inverse

TARGET, VARIABLE, CONSTANT, JOIN = "?", "V@", "C@", " & "
Row = list[str]


def to_triples(query: Query) -> list[Row]:
    """The rows of `query`, outermost first; ValueError names a node that the format cannot say.

    `from_triples` gives the query back, with nested intersections flat and unions of projections
    written as projections of unions.
    """
    rows, numbers = [], count(1)

    def write(head: str, part: Query) -> None:
        if isinstance(part, And):
            for one in part.parts:
                write(head, one)
            return
        if isinstance(part, Or) and all(isinstance(p, Proj) for p in part.parts):  # proposition 1
            relations, of = {p.relation for p in part.parts}, Or(tuple(p.of for p in part.parts))
            part = Proj(relations.pop(), of) if len(relations) == 1 else part
        if (
            not isinstance(part, Proj)
            or JOIN in part.relation
            or any(len(_ends(name)) > 1 for name in constants(part))
        ):
            raise ValueError(
                f"WebShaper's triples cannot say {part!r:.80}: use intersections of "
                "projections, and unions of constants"
            )
        names = part.of.parts if isinstance(part.of, Or) else (part.of,)
        named = all(isinstance(name, str) for name in names)
        tail = JOIN.join(CONSTANT + n for n in names) if named else f"{VARIABLE}X{next(numbers)}"
        rows.append([head, inverse(part.relation), tail])
        if not named:
            write(tail, part.of)

    write(TARGET, query)
    return rows


def from_triples(rows: Sequence[Row]) -> Query:
    """The query of a list of triples, each of which may be written in either direction.

    ValueError names the first row that is no triple, a variable at which the rows close a cycle or
    of which nothing is said, or a row that is not connected to "?", as one of two constants.
    """
    for bad in split_rows(rows)[1]:
        raise ValueError(f"row {rows.index(bad)} is no triple: {bad}; see split_rows")
    rows, used = [one for row in rows for one in _single(row)], set()

    def read(name: str) -> Query:
        if name.startswith(CONSTANT):
            names = [end.removeprefix(CONSTANT) for end in _ends(name)]
            return Or(tuple(names)) if len(names) > 1 else names[0]
        if name in used:
            raise ValueError(f"the rows close a cycle at {name}")
        used.add(name)
        parts = []
        for i, (head, relation, tail) in enumerate(rows):
            if i not in used and name in (head, tail):
                used.add(i)
                forth = name == head
                of = read(tail if forth else head)
                parts.append(Proj(inverse(relation) if forth else relation, of))
        if not parts:
            raise ValueError(f"nothing is said of {name}: a row is missing")
        return And(tuple(parts)) if len(parts) > 1 else parts[0]

    query = read(TARGET)
    for i, row in enumerate(rows):
        if i not in used:
            raise ValueError(f"this row is not connected to {TARGET!r}: {row}")
    return query


def split_rows(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """(the triples, the rest in its order). A triple is three texts, and its ends are "?", a V@
    variable or a C@ constant."""
    end = re.compile(r"\?|[VC]@.*", re.DOTALL)
    good = [
        isinstance(row, list | tuple)
        and [type(text) for text in row] == [str] * 3
        and all(end.fullmatch(text) for text in row[::2])
        for row in rows
    ]
    return tuple([row for row, ok in zip(rows, good) if ok is side] for side in (True, False))


def _ends(text: str) -> list[str]:
    return re.split(f"{JOIN}(?={VARIABLE}|{CONSTANT})", text)


def _single(row: Row) -> list[Row]:
    """The triples of a row of as many relations as ends; else the row alone."""
    head, relation, tail = row
    pairs = relation.split(JOIN), _ends(tail)
    return [[head, *pair] for pair in zip(*pairs)] if len(pairs[0]) == len(pairs[1]) else [row]
