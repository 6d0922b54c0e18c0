"""How a condition nests when it is said: what `drlib.synthesis.sentences` asks of a query before it
chooses words."""

from drlib.synthesis.queries import Count, Extreme, Or, Proj, Query, Range, Var
from drlib.worlds.graph import inverse

YEAR_RANKS = ("earliest", "latest")
RANKS = ("smallest", "largest")


def ranks_of(label: str) -> tuple[str, str]:
    """The words for the smallest and the largest of what is compared."""
    return YEAR_RANKS if "year" in label.split() else RANKS


def span(low: int, high: int, one: str) -> str:
    """The whole numbers low..high in words; `one` stands before a single number."""
    if low == high:
        return f"{one} {low}"
    if 1000 <= low <= 2100 and low % 10 == 0 and high == low + 9:
        return f"in the {low}s"
    return f"between {low} and {high}"


def shared_with(query: Proj) -> Query | None:
    """Y, where `query` asks for what has a value in common with Y; else None."""
    of = query.of
    if isinstance(of, Proj) and query.relation == inverse(of.relation):
        return of.of if query.relation.endswith(" of") else None
    return None


def goes_back(query: Proj) -> bool:
    """Whether `query` asks for what is a value of the same thing as another is."""
    return isinstance(query.of, Proj) and query.of.relation == inverse(query.relation)


def is_name(query: Query) -> bool:
    return isinstance(query, Or) and all(isinstance(part, str) for part in query.parts)


def clauses(query: Query) -> int:
    """How many clauses the condition `query` opens inside one another when said in full."""
    if isinstance(query, str | Var) or is_name(query):
        return 0
    if isinstance(query, Range):
        return 1
    if isinstance(query, Proj):
        shared = shared_with(query)
        return 1 + clauses(query.of if shared is None else shared)
    return 9  # said in a step


def fits(query: Query, room: int) -> bool:
    """Whether a noun phrase of at most `room` clauses says it."""
    if isinstance(query, Count | Extreme):
        return room > 0 and isinstance(query.of, Proj) and clauses(query.of) == 1
    return isinstance(query, Proj) and clauses(query) <= room
