"""Conversion of a list of conditions on several variables to one query.

Conditions ("X borders ?", "X has the currency Y") form a graph of variables. A tree becomes nested
projections. In a cycle, a greedily chosen feedback vertex set of variables is bound by `Exists`:

    Exists("Y", Anything(), And((Proj("currency of", Var("Y")),
                                 Proj("borders", Proj("currency of", Var("Y"))))))
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from drlib.questions.queries import (
    And,
    Anything,
    Exists,
    Or,
    Proj,
    Query,
    Range,
    Var,
    bind,
    canonicalise,
    rebuild,
)
from drlib.worlds.graph import inverse

End = Var | str | Or  # a variable, a title, or a union of both
UNNAMED = ""  # of an Exists that only tests whether something exists


class Condition(NamedTuple):
    """A fact pattern: `relation` leads from `head` to `tail`."""

    head: End
    relation: str
    tail: End


def join_conditions(conditions: Sequence[Condition], target: Var) -> Query:
    """Return the query for the values of `target` under which all conditions can hold.

    Raises:
        ValueError: no condition names the target.
    """
    if not any(target in _iter_variables(condition) for condition in conditions):
        raise ValueError(f"no condition names {target.name}: add a row with it")
    return _Join(conditions, target).build_query()


def _iter_variables(condition: Condition) -> Iterator[Var]:
    """Yield the variables at both ends of a condition."""
    for end in (condition.head, condition.tail):
        members = end.parts if isinstance(end, Or) else (end,)
        yield from (member for member in members if isinstance(member, Var))


class _Join:
    """Builder of one query; it uses each condition once."""

    def __init__(self, conditions: Sequence[Condition], target: Var):
        self.target = target
        self.unused = dict.fromkeys(conditions)  # in order, without repetitions
        self.shared = _find_shared(self.unused, target)
        self.descriptions: dict[
            str, list[Condition]
        ] = {}  # title -> the first condition of each component that describes it

    def build_query(self) -> Query:
        """Return the query for the target."""
        of_shared, of_nothing = self._split_pieces()
        guards = self._attach_descriptions(of_nothing)
        query = self.target if self.target in self.shared else self.describe_variable(self.target)
        among, more = self._describe_shared(of_shared)
        for piece in [*guards, *more]:
            query = Exists(UNNAMED, self.root_piece(piece), query)
        for variable in reversed(self.shared):
            query = Exists(variable.name, _intersect(among[variable]), query)
        return query

    def _split_pieces(self) -> tuple[list[list[Condition]], list[list[Condition]]]:
        """Return the components without the target: those of shared variables, and the others."""
        of_shared: list[list[Condition]] = []
        of_nothing: list[list[Condition]] = []
        for piece in _split_connected(self.unused, self.shared):
            named = {variable for condition in piece for variable in _iter_variables(condition)}
            if named & {*self.shared}:
                if self.target not in named or self.target in self.shared:
                    of_shared.append(piece)
            elif self.target not in named:
                of_nothing.append(piece)
        return of_shared, of_nothing

    def _describe_shared(
        self, pieces: list[list[Condition]]
    ) -> tuple[dict[Var, list[Query]], list[list[Condition]]]:
        """Return what each shared variable is chosen among, and the remaining components.

        A component is assigned to the last of its variables, when the others are already bound.
        """
        among: dict[Var, list[Query]] = {variable: [] for variable in self.shared}
        more = []
        for piece in pieces:
            named = [(v, each) for each in piece for v in _iter_variables(each) if v in among]
            last = max((variable for variable, _ in named), key=self.shared.index)
            saying = [condition for variable, condition in named if variable == last]
            if len(saying) == 1 and last in (saying[0].head, saying[0].tail):
                among[last].append(self.use_condition(saying[0], last))
            else:
                more.append(piece)
        return among, more

    def _attach_descriptions(self, pieces: list[list[Condition]]) -> list[list[Condition]]:
        """Assign components to titles that occur elsewhere; return those without such a title."""
        inside = {each for piece in pieces for each in piece}
        met = {*_iter_titles(each for each in self.unused if each not in inside)}
        waiting = pieces
        while True:
            left = []
            for piece in waiting:
                first = next((c for c in piece if met & {*_iter_titles([c])}), None)
                if first is None:
                    left.append(piece)
                    continue
                title = next(title for title in _iter_titles([first]) if title in met)
                self.descriptions.setdefault(title, []).append(first)
                met |= {*_iter_titles(piece)}
            if len(left) == len(waiting):
                return left
            waiting = left

    def root_piece(self, piece: list[Condition]) -> Query:
        """Return a component as a query of one of its things; it is empty where it does not
        hold.
        """
        variables = [v for each in piece for v in _iter_variables(each) if v not in self.shared]
        if variables:
            return self.describe_variable(variables[0])
        (condition,) = piece
        head = condition.head
        described = self.build_operand(head) if isinstance(head, str) else head
        parts = described.parts if isinstance(described, And) else (described,)
        return And((*parts, self.use_condition(condition, head)))

    def describe_variable(self, thing: Var) -> Query:
        """Return all conditions on a variable and on what only it leads to."""
        of_it = [each for each in self.unused if thing in (each.head, each.tail)]
        return _intersect(
            [self.use_condition(each, thing) for each in of_it if each in self.unused]
        )

    def use_condition(self, condition: Condition, thing: End) -> Query:
        """Return a condition as a query of `thing`, one of its ends, and mark it as used."""
        self.unused.pop(condition)
        if thing == condition.head:
            return Proj(inverse(condition.relation), self.build_operand(condition.tail))
        return Proj(condition.relation, self.build_operand(condition.head))

    def build_operand(self, end: End) -> Query:
        """Return the query for the other end of a condition."""
        if isinstance(end, Var):
            return end if end in self.shared else self.describe_variable(end)
        if isinstance(end, Or):
            return end
        parts = [
            self.use_condition(condition, end)
            for condition in self.descriptions.pop(end, ())
            if condition in self.unused
        ]
        return And((end, *parts)) if parts else end


def _intersect(parts: Sequence[Query]) -> Query:
    """Return the intersection of the parts; Anything if there are none."""
    if not parts:
        return Anything()
    return And(tuple(parts)) if len(parts) > 1 else parts[0]


def _iter_titles(conditions: Iterable[Condition]) -> Iterator[str]:
    """Yield the ends that are titles."""
    for condition in conditions:
        yield from (end for end in condition[::2] if isinstance(end, str))


def _find_shared(conditions: Iterable[Condition], target: Var) -> list[Var]:
    """Return the variables that must be bound.

    These are the variables in unions and, of the remaining graph without its dead ends, repeatedly
    the one with the most conditions until no cycle is left.
    """
    import networkx as nx  # slow to import, and few queries are cyclic

    conditions = list(conditions)
    mentions = Counter(v for condition in conditions for v in _iter_variables(condition))
    graph = nx.MultiGraph()
    found: list[Var] = []
    for condition in conditions:
        if isinstance(condition.head, Var) and isinstance(condition.tail, Var):
            graph.add_edge(condition.head, condition.tail)
        elif isinstance(condition.head, Or) or isinstance(condition.tail, Or):
            unions = [end for end in condition[::2] if isinstance(end, Or)]
            found += [v for union in unions for v in union.parts if isinstance(v, Var)]
    found = list(dict.fromkeys(found))
    graph.remove_nodes_from(found)
    while True:
        while ends := [node for node, degree in graph.degree() if degree < 2]:
            graph.remove_nodes_from(ends)
        if not graph:
            return found
        choice = max(graph, key=lambda v: (v != target, graph.degree(v), mentions[v]))
        found.append(choice)
        graph.remove_node(choice)


def _split_connected(
    conditions: Iterable[Condition], shared: Sequence[Var]
) -> list[list[Condition]]:
    """Return the components of conditions connected by variables that are not `shared`."""
    import networkx as nx

    graph = nx.Graph()
    conditions = list(conditions)
    for at, condition in enumerate(conditions):
        graph.add_node(at)
        graph.add_edges_from((at, v) for v in _iter_variables(condition) if v not in shared)
    groups = nx.connected_components(graph)
    places = [sorted(node for node in group if isinstance(node, int)) for group in groups]
    return [[conditions[at] for at in some] for some in sorted(places)]


def normalise_query(query: Query) -> Query:
    """Return the canonical query with ranges of one number as numbers and variables renumbered."""

    def one(part: Query) -> Query:
        """Rewrite the ranges of one number inside a part."""
        if isinstance(part, Range) and part.low == part.high:
            return Proj(f"{part.relation} of", str(part.low))
        return rebuild(part, one)

    return canonicalise(_number_choices(one(query), 1))


def _number_choices(query: Query, number: int) -> Query:
    """Rename the leading choices to X1, X2, and so on."""
    if not isinstance(query, Exists):
        return query
    name = f"X{number}"
    rest = bind(query.of, query.name, Var(name))
    return Exists(name, query.among, _number_choices(rest, number + 1))
