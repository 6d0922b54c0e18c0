"""WebShaper (arXiv 2507.15061, section 3): a question formalised as triples, and its released file.

The paper: information seeking is set algebra on knowledge projections R(V), the things that stand
in relation R to some member of V; a task is nested intersections of unions of them. Questions are
grown from seeds by layer-wise expansion, which keeps the answer and avoids redundant constants and
shortcuts, and the formal task is what is validated and then worded.

Taken from it: the algebra (`drlib.synthesis.queries`), the expansion with both baselines
(`drlib.synthesis.expansion`), the two faults (`drlib.synthesis.checks`), and, here, the released
format. Each row of `webshaper.500.jsonl` has a list of triples: ["V@X", "currency", "C@Euro"] says
that the currency of the variable X is the constant Euro; "?" is what is asked. Rows that share a
variable are an intersection. By its proposition 1, R(A) and R(B) unite to R(A and B): a union is
one merged constant, here "C@German & C@French", so that "Bosnia & Herzegovina" stays a name. As
many relations as ends, ["V@X", "born in & lives in", "C@Oslo & V@Y"], are as many triples.

`split_rows` keeps apart the rows that are no triples: 75 of the 6,080 released ones. Reduced: the
expander is a search over a graph, not a model with tools on the web. Missing: differences, ranges,
extremes and counts, which the format cannot say, and what the algebra cannot: released rows that
close a cycle or describe a constant. Both are errors that say where.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import count

from drlib.synthesis.queries import And, Or, Proj, Query, constants
from drlib.worlds.graph import inverse

TARGET = "?"
VARIABLE = "V@"
CONSTANT = "C@"
JOIN = " & "
_END = re.compile(r"\?|[VC]@.*", re.DOTALL)
Triple = list[str]  # head, relation, tail


def to_triples(query: Query) -> list[Triple]:
    """The rows of `query`, outermost first; ValueError names a node that the format cannot say.

    `from_triples` gives the query back, with nested intersections flat and unions of projections
    written as projections of unions.
    """
    return [*_triples_of(TARGET, query, count(1))]


def _triples_of(head: str, part: Query, numbers: Iterator[int]) -> Iterator[Triple]:
    """The rows that say `part` of `head`; `numbers` are those of new variables."""
    if isinstance(part, And):
        for one in part.parts:
            yield from _triples_of(head, one, numbers)
        return
    part = _merged(part)
    sayable = isinstance(part, Proj) and JOIN not in part.relation
    if not sayable or any(len(_ends(name)) > 1 for name in constants(part)):
        raise ValueError(
            f"WebShaper's triples cannot say {part!r:.80}: use intersections of "
            "projections, and unions of constants"
        )
    names = part.of.parts if isinstance(part.of, Or) else (part.of,)
    relation = inverse(part.relation)
    if all(isinstance(name, str) for name in names):
        yield [head, relation, JOIN.join(CONSTANT + name for name in names)]
    else:
        variable = f"{VARIABLE}X{next(numbers)}"
        yield [head, relation, variable]
        yield from _triples_of(variable, part.of, numbers)


def _merged(part: Query) -> Query:
    """A union of projections of one relation as the projection of a union (proposition 1)."""
    if not isinstance(part, Or) or not all(isinstance(one, Proj) for one in part.parts):
        return part
    relations = {one.relation for one in part.parts}
    if len(relations) > 1:
        return part
    return Proj(relations.pop(), Or(tuple(one.of for one in part.parts)))


def from_triples(rows: Sequence[Triple]) -> Query:
    """The query of a list of triples, each of which may be written in either direction.

    ValueError names the first row that is no triple, a variable at which the rows close a cycle or
    of which nothing is said, or a row that is not connected to "?", as one of two constants.
    """
    _, rest = split_rows(rows)
    for bad in rest:
        raise ValueError(f"row {rows.index(bad)} is no triple: {bad}; see split_rows")
    triples = [one for row in rows for one in _single(row)]
    used: set[int | str] = set()  # places of the triples, and variables, that were read
    query = _query_of(TARGET, triples, used)
    for i, row in enumerate(triples):
        if i not in used:
            raise ValueError(f"this row is not connected to {TARGET!r}: {row}")
    return query


def _query_of(name: str, triples: list[Triple], used: set[int | str]) -> Query:
    """What the triples that are not `used` yet say of `name`; they are used now."""
    if name.startswith(CONSTANT):
        names = [end.removeprefix(CONSTANT) for end in _ends(name)]
        return Or(tuple(names)) if len(names) > 1 else names[0]
    if name in used:
        raise ValueError(f"the rows close a cycle at {name}")
    used.add(name)
    parts = []
    for i, (head, relation, tail) in enumerate(triples):
        if i in used or name not in (head, tail):
            continue
        used.add(i)
        if name == head:
            parts.append(Proj(inverse(relation), _query_of(tail, triples, used)))
        else:
            parts.append(Proj(relation, _query_of(head, triples, used)))
    if not parts:
        raise ValueError(f"nothing is said of {name}: a row is missing")
    return And(tuple(parts)) if len(parts) > 1 else parts[0]


def split_rows(rows: Sequence[Triple]) -> tuple[list[Triple], list[Triple]]:
    """(the triples, the rest in its order). A triple is three texts, and its ends are "?", a V@
    variable or a C@ constant."""
    triples = [row for row in rows if _is_triple(row)]
    return triples, [row for row in rows if not _is_triple(row)]


def _is_triple(row: object) -> bool:
    if not isinstance(row, list | tuple) or [type(text) for text in row] != [str] * 3:
        return False
    return all(_END.fullmatch(end) for end in (row[0], row[2]))


def _ends(text: str) -> list[str]:
    return re.split(f"{JOIN}(?={VARIABLE}|{CONSTANT})", text)


def _single(row: Triple) -> list[Triple]:
    """The triples of a row of as many relations as ends; else the row alone."""
    head, relation, tail = row
    relations, ends = relation.split(JOIN), _ends(tail)
    if len(relations) != len(ends):
        return [row]
    return [[head, *pair] for pair in zip(relations, ends)]
