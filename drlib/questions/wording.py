"""Structured wording: a query as one short English sentence with brackets, in several templates.

Nested conditions are bracketed wherever they could attach to the wrong noun, so no condition is
lost and different queries have different texts. Small policies learn this wording; `sentences` is
the natural-language wording.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from drlib.questions.queries import (
    And,
    Anything,
    Count,
    Diff,
    Exists,
    Extreme,
    Or,
    Proj,
    Query,
    Range,
    Var,
    bind,
    evaluate_query,
)
from drlib.worlds.graph import VALUE, Graph

FRAMES = (  # a question for one thing, a question for a number
    ("Which {kind} is the one {which}?", "How many {kinds} {which} are there?"),
    ("Find the {kind} {which}.", "Count the {kinds} {which}."),
    ("What is the name of the {kind} {which}?", "What is the number of {kinds} {which}?"),
    ("There is exactly one {kind} {which}. Name it.", "Give the number of {kinds} {which}."),
    ("I am looking for {a_kind} {which}. Which one is it?", "How many are the {kinds} {which}?"),
)
TEMPLATES = len(FRAMES)
STYLES = (  # R(x); the things whose R is x; the things whose R is something that ...
    ("that is {a} of {x}", "that has the {r} {x}", "that has {a} {x}"),
    ("that {x} has as {r}", "with the {r} {x}", "with {a} {x}"),  # of one thing or of many
)
RANKS = ("smallest", "largest")


def render_question(
    query: Query, graph: Graph, template: int = 0, names: Mapping[Query, str] | None = None
) -> str:
    """Return `query` as an English question.

    Args:
        query: the query.
        graph: the facts, for the nouns.
        template: number of the template, taken modulo `TEMPLATES`.
        names: texts for constants or unions of constants.
    """
    template %= TEMPLATES
    for_a_thing, for_a_number = FRAMES[template]
    if isinstance(query, Count):
        style, frame, described = STYLES[1], for_a_number, query.of
    else:
        style, frame, described = STYLES[template % len(STYLES)], for_a_thing, query
    writer = _Writer(graph, style, names or {})
    kind = writer.kind(query)
    return frame.format(
        kind=kind,
        kinds=to_simple_plural(kind),
        a_kind=add_simple_article(kind),
        which=writer.which(described),
    )


class _Writer(NamedTuple):
    """Writer of one question; `among` are the variables with what they are chosen among."""

    graph: Graph
    style: tuple[str, str, str]
    names: Mapping[Query, str]
    among: tuple[tuple[str, Query], ...] = ()  # variables and what they are chosen among

    def kind(self, query: Query) -> str:
        """Return the noun for the answers of `query`: their kind, else the relation, else
        "thing".
        """
        for name, among in reversed(self.among):
            query = bind(query, name, among)
        while isinstance(query, Exists):
            query = bind(query.of, query.name, query.among)
        inner = query.of if isinstance(query, Count | Extreme) else query
        nodes = [self.graph.nodes.get(title) for title in evaluate_query(inner, self.graph)]
        kinds = {node.kind if node else VALUE for node in nodes}
        if kinds == {VALUE} and isinstance(inner, Proj):
            return inner.relation.removesuffix(" of")
        return kinds.pop() if len(kinds) == 1 else "thing"

    def which(self, query: Query, alone: bool = True) -> str:
        """Return `query` as a clause; `alone` is False if there are other clauses."""
        match query:
            case Proj():
                return self.projection(query, alone)
            case And(parts):
                return " and ".join(map(self.part, parts))
            case Or(parts):
                return " or ".join(map(self.part, parts))
            case Diff(left, right):
                return f"{self.part(left)}, except any {self.part(right)}"
            case Range(relation, low, high):
                return f"with {add_simple_article(relation)} {format_vague_range(low, high)}"
            case Extreme(relation, of, most):
                ranks = ("earliest", "latest") if relation.endswith("year") else RANKS
                which = self.which(of) if alone else f"({self.which(of)})"
                return f"with the {ranks[most]} {relation} of any {self.kind(of)} {which}"
            case Exists(name, among, of):
                chosen = f"{add_simple_article(self.kind(among))} {self.part(among, alone=True)}"
                if not name:  # it only has to be there
                    return f"that, as there is {chosen}, is one {self.part(of)}"
                inside = self._replace(among=(*self.among, (name, among)))
                return f"that, for {chosen} (call it {name}), is one {inside.part(of)}"
            case Anything():
                return "that is anything"
        return f"that is {self.named(query)}"

    def projection(self, query: Proj, alone: bool) -> str:
        """Return the clause of a projection."""
        relation = query.relation.removesuffix(" of")
        is_backwards = query.relation.endswith(" of")
        of_values, with_value, with_some = self.style
        text = self.named(query.of)
        if text:
            form = with_value if is_backwards else of_values
        elif is_backwards:
            form = with_some
            text = self.part(query.of, alone=True, brackets=not alone)
        else:
            form = of_values
            goes_on = self.style is STYLES[1]  # after the description: "... has as currency"
            clause = self.part(query.of, alone=True, brackets=not alone or goes_on)
            text = f"{add_simple_article(self.kind(query.of))} {clause}"
        return form.format(r=relation, a=add_simple_article(relation), x=text)

    def part(self, query: Query, alone: bool = False, brackets: bool = False) -> str:
        """Return a clause beside or inside others, in brackets if it could be misread."""
        text = self.which(query, alone)
        return f"({text})" if brackets or isinstance(query, And | Or | Diff) else text

    def named(self, query: Query) -> str:
        """Return the text of what is named or counted; empty for a description."""
        if isinstance(query, Or):
            texts = [self.named(part) for part in query.parts]
            union = " or ".join(texts) if all(texts) else ""
            return self.names.get(query) or union
        if isinstance(query, Count):
            return f"(the number of {to_simple_plural(self.kind(query))} {self.which(query.of)})"
        if isinstance(query, Var):
            return query.name
        return self.names.get(query, query) if isinstance(query, str) else ""


def add_simple_article(noun: str) -> str:
    """Return `noun` with "a" or "an", by its first letter."""
    before = "an" if noun[:1].lower() in tuple("aeiou") else "a"
    return f"{before} {noun}"


def to_simple_plural(noun: str) -> str:
    """Return the plural by suffix rules: `territory` -> `territories`, `class` -> `classes`."""
    noun = re.sub("(?<![aeiou])y$", "ie", noun)
    return noun + ("es" if noun.endswith(("s", "x", "ch", "sh")) else "s")


def format_vague_range(low: int, high: int) -> str:
    """Return the whole numbers low..high in words; thirds of a decade as in WebSailor."""
    parts = {(0, 9): "", (0, 3): "early ", (4, 6): "mid ", (7, 9): "late "}
    decade = low // 10 * 10
    part = parts.get((low - decade, high - decade))
    if part is not None and 1000 <= low <= 2100:
        return f"in the {part}{decade}s"
    if low == 0:
        return f"of less than {high + 1}"
    return f"of {low}" if low == high else f"between {low} and {high}"


def mentions(text: str, name: str) -> bool:
    """Return True if `text` contains `name` as whole words or numbers (5 is not in 1.5 or -5),
    in any case.
    """
    before = r"(?<!\w)(?!(?<=\d[.,])\d|(?<=\W-)\d|(?<=^-)\d)"
    after = r"(?!\w|(?<=\d)[.,]\d)"
    return bool(re.search(before + re.escape(name) + after, text, re.IGNORECASE))
