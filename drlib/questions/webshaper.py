"""WebShaper (arXiv 2507.15061, section 3): conversion of queries to and from its triples.

A row ["V@X", "currency", "C@Euro"] states that the currency of variable X is the constant Euro; "?"
is the target. Rows may form cycles, describe constants or leave variables open (`joins`). A union
is one merged constant, "C@German & C@French" (proposition 1 of the paper). `from_triples` reads
strict rows; `read_loosely` also reads released rows with variables inside words, missing objects
or more than three texts. Differences, ranges, extremes and counts cannot be expressed.
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
    """Return the rows of `query`, outermost first.

    `from_triples` restores a query with the same answers.

    Raises:
        ValueError: a node cannot be expressed.
    """
    named = {part.name for part in walk(query) if isinstance(part, Exists | Var)}
    return [*_iter_triples(TARGET, query, (f"X{i}" for i in count(1) if f"X{i}" not in named))]


def _iter_triples(head: str, part: Query, names: Iterator[str]) -> Iterator[Triple]:
    """Yield the rows that state `part` of `head`; `names` yields new variables."""
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
    """Yield the rows about what an Exists chooses among."""
    if chosen.name != UNNAMED:
        yield from _iter_triples(_write_end(Var(chosen.name)), chosen.among, names)
        return
    thing, described = _write_operand(chosen.among, names)
    yield from _iter_triples(thing, described, names) if described else ()


def _write_operand(part: Query, names: Iterator[str]) -> tuple[str, Query | None]:
    """Return the text of a projection's operand and the rest of its description."""
    if _is_named(part):
        return _write_end(part), None
    if isinstance(part, And):
        alone = [one for one in part.parts if _is_named(one)]
        rest = tuple(one for one in part.parts if not _is_named(one))
        if len(alone) == 1 and rest:
            return _write_end(alone[0]), And(rest)
    return f"{VARIABLE}{next(names)}", part


def _is_named(part: Query) -> TypeGuard[End]:
    """Return True for a title, a variable or a union of them."""
    members = part.parts if isinstance(part, Or) else (part,)
    return all(isinstance(member, str | Var) for member in members)


def _write_end(end: End) -> str:
    """Return the text of an end."""
    if isinstance(end, Or):
        return JOIN.join(_write_end(cast(End, part)) for part in end.parts)
    if isinstance(end, Var):
        return end.name if end.name == TARGET else VARIABLE + end.name
    if len(_split_ends(end)) > 1:
        raise _make_unsayable_error(end)
    return CONSTANT + end


def _make_unsayable_error(part: Query) -> ValueError:
    """Return the error for a node that triples cannot express."""
    return ValueError(
        f"WebShaper's triples cannot express {part!r:.80}: use intersections of "
        "projections, and unions of constants"
    )


def _merge_union(part: Query) -> Query:
    """Return a union of projections of one relation as the projection of a union."""
    if not isinstance(part, Or) or not all(isinstance(one, Proj) for one in part.parts):
        return part
    relations = {one.relation for one in part.parts}
    if len(relations) > 1:
        return part
    return Proj(relations.pop(), Or(tuple(one.of for one in part.parts)))


# --------------------------------------------------------------------------------------- reading


def from_triples(rows: Sequence[Triple]) -> Query:
    """Return the query of triples, each in either direction.

    Raises:
        ValueError: a row is no triple, or no row mentions "?".
    """
    _, rest = split_rows(rows)
    for bad in rest:
        raise ValueError(
            f"row {rows.index(bad)} is no triple: {bad}; see split_rows and read_loosely"
        )
    return join_conditions([each for row in rows for each in _read_conditions(row)], Var(TARGET))


def read_loosely(rows: Sequence[Sequence[str]]) -> Query:
    """Return the query of rows of which some are no triples, as in the released file.

    Such a row is a predicate: ends and variables inside words are its arguments, the other words
    its name. One argument is related to anything; more than two become an event with all of them.

    Raises:
        ValueError: a row has no argument, or no row mentions "?".
    """
    numbers = count(1)
    conditions = [
        each
        for row in rows
        for each in (_read_conditions(row) if _is_triple(row) else _read_predicate(row, numbers))
    ]
    return join_conditions(conditions, Var(TARGET))


def _read_predicate(row: Sequence[str], numbers: Iterator[int]) -> list[Condition]:
    """Return the conditions of a row that is no triple; `numbers` names new variables."""
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
        raise ValueError(f"the row has no argument (a V@, C@ or ? end): {row}")
    if len(arguments) == 1:
        return [Condition(arguments[0], name, Var(f"any{next(numbers)}"))]
    if len(arguments) == 2:
        return [Condition(arguments[0], name, arguments[1])]
    event = Var(f"event{next(numbers)}")
    return [Condition(event, f"{name}: {at}", each) for at, each in enumerate(arguments, 1)]


def _read_conditions(row: Sequence[str]) -> list[Condition]:
    """Return the conditions of a triple, one per relation if relations and ends correspond."""
    head, relation, tail = row
    relations, ends = relation.split(JOIN), _split_ends(tail)
    if len(relations) != len(ends):
        return [Condition(_parse_end(head), relation, _parse_end(tail))]
    return [
        Condition(_parse_end(head), name, _parse_end(end)) for name, end in zip(relations, ends)
    ]


def _parse_end(text: str) -> End:
    """Return the title, variable or union of a text."""
    members = [
        member.removeprefix(CONSTANT)
        if member.startswith(CONSTANT)
        else Var(member.removeprefix(VARIABLE))
        for member in _split_ends(text)
    ]
    return Or(tuple(members)) if len(members) > 1 else members[0]


def split_rows(rows: Sequence[Triple]) -> tuple[list[Triple], list[Triple]]:
    """Return (triples, other rows). The ends of a triple are "?", V@ variables or C@ constants."""
    triples = [row for row in rows if _is_triple(row)]
    return triples, [row for row in rows if not _is_triple(row)]


def _is_triple(row: object) -> bool:
    """Return True if the row is a triple."""
    if not isinstance(row, list | tuple) or [type(text) for text in row] != [str] * 3:
        return False
    return _is_end(row[0]) and _is_end(row[2])


def _is_end(text: str) -> bool:
    """Return True if the text is an end or a union of ends."""
    return all(_END.fullmatch(end) for end in _split_ends(text))


def _split_ends(text: str) -> list[str]:
    """Split a union into its ends."""
    return re.split(f"{JOIN}(?={VARIABLE}|{CONSTANT})", text)
