"""WebShaper (arXiv 2507.15061, section 3): a question formalised as triples, and its released file.

The paper: information seeking is set algebra on knowledge projections R(V), the things that stand
in relation R to some member of V; a task is nested intersections of unions of them. Questions are
grown from seeds by layer-wise expansion, which keeps the answer and avoids redundant constants and
shortcuts, and the formal task is what is validated and then worded.

Taken from it: the algebra (`drlib.questions.queries`), the expansion with both baselines
(`drlib.questions.expansion`), the two faults (`drlib.questions.checks`), and, here, the released
format. Each row of `webshaper.500.jsonl` has a list of triples: ["V@X", "currency", "C@Euro"] says
that the currency of the variable X is the constant Euro; "?" is what is asked. Rows that share a
variable are an intersection; they may close a cycle, describe a constant, or leave a variable open
(`drlib.questions.joins` makes a query of all of these). By its proposition 1, R(A) and R(B) unite
to R(A and B): a union is one merged constant, here "C@German & C@French", so that "Bosnia &
Herzegovina" stays a name. As many relations as ends, ["V@X", "born in & lives in", "C@Oslo & V@Y"],
are as many triples.

Of the 500 released formalisations 405 are of triples throughout and say something of "?";
`from_triples` reads them and `to_triples` writes them again. In the others words hold variables, a
verb has no object, or three things. `read_loosely` takes such a row for a predicate: what stands
alone is an argument, so is a variable within words, and the other words are the predicate's name;
it reads 499 (`figures/reference/data/webshaper.json`). Reduced: the expander is a search over a
graph, not a model with tools on the web. Missing: differences, ranges, extremes and counts, which
the format cannot say.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TypeGuard, cast

from drlib.questions.joins import UNNAMED, Condition, End, join_conditions
from drlib.questions.queries import And, Anything, Exists, Or, Proj, Query, Var, walk
from drlib.worlds.graph import inverse

TARGET = "?"
VARIABLE = "V@"
CONSTANT = "C@"
JOIN = " & "
SLOT = "_"  # where a variable stood in the words of a predicate
_VARIABLE = re.compile(rf"{VARIABLE}[\w-]+")
_END = re.compile(rf"\?|{_VARIABLE.pattern}|{CONSTANT}.*", re.DOTALL)
_IN_WORDS = re.compile(rf"{_VARIABLE.pattern}|(?<!\w)\?(?!\w)")
Triple = list[str]  # head, relation, tail


# --------------------------------------------------------------------------------------- writing


def to_triples(query: Query) -> list[Triple]:
    """The rows of `query`, outermost first; ValueError names a node that the format cannot say.

    `from_triples` gives a query of the same answers back, and of a tree the same query, with nested
    intersections flat and unions of projections written as projections of unions.
    """
    named = {part.name for part in walk(query) if isinstance(part, Exists | Var)}
    return [*_iter_triples(TARGET, query, (f"X{i}" for i in count(1) if f"X{i}" not in named))]


def _iter_triples(head: str, part: Query, names: Iterator[str]) -> Iterator[Triple]:
    """The rows that say `part` of `head`; `names` are those of new variables."""
    if isinstance(part, And):
        for one in part.parts:
            yield from _iter_triples(head, one, names)
        return
    if isinstance(part, Exists):
        yield from _iter_triples(head, part.of, names)
        yield from _iter_choice_triples(part, names)
        return
    if isinstance(part, Anything) or (isinstance(part, Var) and _write_end(part) == head):
        return
    part = _merge_union(part)
    if not isinstance(part, Proj) or JOIN in part.relation:
        raise _make_unsayable_error(part)
    tail, described = _write_operand(part.of, names)
    yield [head, inverse(part.relation), tail]
    if described:
        yield from _iter_triples(tail, described, names)


def _iter_choice_triples(chosen: Exists, names: Iterator[str]) -> Iterator[Triple]:
    """The rows about what an Exists chooses among."""
    if chosen.name != UNNAMED:
        yield from _iter_triples(_write_end(Var(chosen.name)), chosen.among, names)
        return
    thing, described = _write_operand(chosen.among, names)
    yield from _iter_triples(thing, described, names) if described else ()


def _write_operand(part: Query, names: Iterator[str]) -> tuple[str, Query | None]:
    """How the operand of a projection is written, and what more has to be said of it."""
    if _is_named(part):
        return _write_end(part), None
    if isinstance(part, And):
        alone = [one for one in part.parts if _is_named(one)]
        rest = tuple(one for one in part.parts if not _is_named(one))
        if len(alone) == 1 and rest:
            return _write_end(alone[0]), And(rest)
    return f"{VARIABLE}{next(names)}", part


def _is_named(part: Query) -> TypeGuard[End]:
    """A title, a variable, or a union of them."""
    members = part.parts if isinstance(part, Or) else (part,)
    return all(isinstance(member, str | Var) for member in members)


def _write_end(end: End) -> str:
    if isinstance(end, Or):
        return JOIN.join(_write_end(cast(End, part)) for part in end.parts)
    if isinstance(end, Var):
        return end.name if end.name == TARGET else VARIABLE + end.name
    if len(_split_ends(end)) > 1:
        raise _make_unsayable_error(end)
    return CONSTANT + end


def _make_unsayable_error(part: Query) -> ValueError:
    return ValueError(
        f"WebShaper's triples cannot say {part!r:.80}: use intersections of "
        "projections, and unions of constants"
    )


def _merge_union(part: Query) -> Query:
    """A union of projections of one relation as the projection of a union (proposition 1)."""
    if not isinstance(part, Or) or not all(isinstance(one, Proj) for one in part.parts):
        return part
    relations = {one.relation for one in part.parts}
    if len(relations) > 1:
        return part
    return Proj(relations.pop(), Or(tuple(one.of for one in part.parts)))


# --------------------------------------------------------------------------------------- reading


def from_triples(rows: Sequence[Triple]) -> Query:
    """The query of a list of triples, each of which may be written in either direction.

    ValueError names the first row that is no triple, and a list that says nothing of "?".
    """
    _, rest = split_rows(rows)
    for bad in rest:
        raise ValueError(
            f"row {rows.index(bad)} is no triple: {bad}; see split_rows and read_loosely"
        )
    return join_conditions([each for row in rows for each in _read_conditions(row)], Var(TARGET))


def read_loosely(rows: Sequence[Sequence[str]]) -> Query:
    """The query of a list of which some rows are no triples, as in the released file.

    Such a row is a predicate. Its arguments are the texts that stand alone and the variables within
    others; its name is the other words. Of one argument it is a relation to anything, of more than
    two a thing of its own that has them all. ValueError: a row without any argument, or nothing
    is said of "?".
    """
    numbers = count(1)
    conditions = [
        each
        for row in rows
        for each in (_read_conditions(row) if _is_triple(row) else _read_predicate(row, numbers))
    ]
    return join_conditions(conditions, Var(TARGET))


def _read_predicate(row: Sequence[str], numbers: Iterator[int]) -> list[Condition]:
    """The conditions of a row that is no triple; `numbers` are those of new variables."""
    is_texts = isinstance(row, list | tuple) and all(isinstance(text, str) for text in row)
    arguments: list[End] = []
    words: list[str] = []
    for text in row if is_texts else ():
        if _is_end(text):
            arguments.append(_parse_end(text))
            words.append(SLOT)
            continue
        arguments += [_parse_end(name) for name in _IN_WORDS.findall(text)]
        words.append(_IN_WORDS.sub(SLOT, text))
    if is_texts and len(row) == 3 and len(arguments) == 1 and row[2] and _is_end(row[0]):
        return [Condition(arguments[0], row[1], row[2])]  # a constant without its C@
    name = " ".join(word for word in words if word)
    if not arguments:
        raise ValueError(f"this row names nothing that could be looked for: {row}")
    if len(arguments) == 1:
        return [Condition(arguments[0], name, Var(f"any{next(numbers)}"))]
    if len(arguments) == 2:
        return [Condition(arguments[0], name, arguments[1])]
    event = Var(f"event{next(numbers)}")
    return [Condition(event, f"{name}: {at}", each) for at, each in enumerate(arguments, 1)]


def _read_conditions(row: Sequence[str]) -> list[Condition]:
    """A triple as a condition; one of as many relations as ends as so many."""
    head, relation, tail = row
    relations, ends = relation.split(JOIN), _split_ends(tail)
    if len(relations) != len(ends):
        return [Condition(_parse_end(head), relation, _parse_end(tail))]
    return [
        Condition(_parse_end(head), name, _parse_end(end)) for name, end in zip(relations, ends)
    ]


def _parse_end(text: str) -> End:
    """A title, a variable, or a union of them."""
    members = [
        member.removeprefix(CONSTANT)
        if member.startswith(CONSTANT)
        else Var(member.removeprefix(VARIABLE))
        for member in _split_ends(text)
    ]
    return Or(tuple(members)) if len(members) > 1 else members[0]


def split_rows(rows: Sequence[Triple]) -> tuple[list[Triple], list[Triple]]:
    """(the triples, the rest in its order). A triple is three texts, and its ends are "?", a V@
    variable or a C@ constant."""
    triples = [row for row in rows if _is_triple(row)]
    return triples, [row for row in rows if not _is_triple(row)]


def _is_triple(row: object) -> bool:
    if not isinstance(row, list | tuple) or [type(text) for text in row] != [str] * 3:
        return False
    return _is_end(row[0]) and _is_end(row[2])


def _is_end(text: str) -> bool:
    return all(_END.fullmatch(end) for end in _split_ends(text))


def _split_ends(text: str) -> list[str]:
    return re.split(f"{JOIN}(?={VARIABLE}|{CONSTANT})", text)
