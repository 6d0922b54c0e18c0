"""SQLite engine for queries, an independent check of `queries.evaluate_query`."""

import json
import sqlite3
from typing import Any

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
    list_subqueries,
    rebuild,
)
from drlib.worlds.graph import Graph


class SqlEngine:
    """A graph's facts in SQLite; a query becomes one SELECT.

    Inverses, sets and numbers are computed by SQLite. Only the binding of variables is shared with
    `evaluate_query`.
    """

    def __init__(self, graph: Graph):
        self._rows = sqlite3.connect(":memory:")
        self._rows.execute(
            "CREATE TABLE edges (relation, head, tail, number INTEGER, "
            "PRIMARY KEY (relation, head, tail)) WITHOUT ROWID"
        )
        self._rows.execute("CREATE TABLE nodes (title)")
        self._rows.executemany("INSERT INTO nodes VALUES (?)", [(title,) for title in graph.nodes])
        for subject, relation, value in graph.facts:
            self._add(relation, subject, value)
            self._add(f"{relation} of", value, subject)

    def _add(self, relation: str, head: str, tail: str) -> None:
        """Insert one edge."""
        digits = tail.removeprefix("-")
        whole = digits.isascii() and digits.isdigit() and len(digits) <= 18
        row = (relation, head, tail, int(tail) if whole else None)
        self._rows.execute("INSERT INTO edges VALUES (?, ?, ?, ?)", row)

    def answers(self, query: Query) -> frozenset[str]:
        """Return the answers of `query`.

        Raises:
            TypeError: it is no query.
            ValueError: SQLite's limits on nesting, parts or 64-bit numbers are exceeded, or a
                variable has no `Exists`.
        """
        values: list = []
        try:
            sql = _to_sql(self._replace_choices(query), values)
            return frozenset(title for (title,) in self._rows.execute(sql, values))
        except (sqlite3.Error, OverflowError, RecursionError) as error:
            raise ValueError(
                f"SQLite cannot answer this query ({error}): it takes about 8 levels, 500 parts "
                "side by side and 64-bit integers; use `evaluate_query`"
            ) from error

    def _replace_choices(self, query: Query) -> Any:
        """Return `query` with each Exists replaced by its answers."""
        if not isinstance(query, Exists):
            return rebuild(query, self._replace_choices)
        found: set[str] = set()
        for title in self.answers(query.among):
            found |= self.answers(bind(query.of, query.name, title))
        return frozenset(found)


def _to_sql(query: Query | frozenset[str], values: list) -> str:
    """Return `query` as a SELECT of one column and append its parameters to `values`."""
    edges = "SELECT DISTINCT {} FROM edges WHERE relation = ? AND "
    if isinstance(query, str):
        values.append(query)
        return "SELECT ?"
    if isinstance(query, frozenset):
        values.append(json.dumps(sorted(query)))
        return "SELECT value FROM json_each(?)"
    if isinstance(query, Anything):
        return "SELECT title FROM nodes"
    if isinstance(query, Var):
        raise ValueError(f"the variable {query.name!r} has no enclosing Exists")
    if isinstance(query, And | Or | Diff):
        word = {And: " INTERSECT ", Or: " UNION ", Diff: " EXCEPT "}[type(query)]
        return word.join(
            f"SELECT * FROM ({_to_sql(part, values)})" for part in list_subqueries(query)
        )
    if isinstance(query, Count):
        return f"SELECT CAST(count(*) AS TEXT) FROM ({_to_sql(query.of, values)})"
    if isinstance(query, Proj):
        values.append(query.relation)
        return edges.format("tail") + f"head IN ({_to_sql(query.of, values)})"
    if isinstance(query, Range):
        values += [query.relation, query.low, query.high]
        return edges.format("head") + "number BETWEEN ? AND ?"
    if not isinstance(query, Extreme):
        raise TypeError(f"not a query: {query!r}")
    values.append(query.relation)
    found = edges.format("head, number") + f"head IN ({_to_sql(query.of, values)})"
    best = "max" if query.most else "min"
    return (
        f"WITH found AS ({found} AND number IS NOT NULL) "
        f"SELECT head FROM found WHERE number = (SELECT {best}(number) FROM found)"
    )
