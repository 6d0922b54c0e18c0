"""Tools over a database: specified in a line, compiled to Python over SQLite, executed on a state.

A tool is one read or write operator on one table of its domain, so whatever it does is a change of
a database that can be compared with another. `drlib.synthesis.families.agentscaler` makes domains,
tasks and data of them.
"""

import hashlib
import json
import random
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from drlib.tools.definitions import Parameter, Tool

ROWS_A_TABLE = (3, 8)  # of a table in its initial state
READS = ("get", "find")


class Operator(NamedTuple):
    """What a tool does to its table: how a user says it, parameters, outputs, SQL. {key} is the
    table's key, {all} its columns, {first} and {last} two of these."""

    said: str
    params: str
    returns: str
    sql: str


OPS = {
    "get": Operator("show", "{key}", "{key} {all}", "SELECT * FROM {table} WHERE {key} = ?"),
    "find": Operator(
        "find the first",
        "{first}",
        "{key}",
        "SELECT * FROM {table} WHERE {first} = ? ORDER BY {key} LIMIT 1",
    ),
    "set": Operator(
        "change", "{key} {last}", "{key}", "UPDATE {table} SET {last} = ? WHERE {key} = ?"
    ),
    "add": Operator("add", "{all}", "{key}", "INSERT INTO {table} ({inputs}) VALUES ({marks})"),
    "remove": Operator("remove", "{key}", "", "DELETE FROM {table} WHERE {key} = ?"),
}


@dataclass(frozen=True)
class Api:
    """A tool as its documentation has it: one operator of `OPS` on one table.

    params, returns: names; "x_id" is the key of table x. get takes the key, find one column (and
    returns the first match), set the key and a column, add all columns, remove the key. domain: the
    hidden truth, for scoring alone.
    """

    name: str
    op: str
    table: str
    params: tuple[str, ...]
    returns: tuple[str, ...]
    domain: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Parameters that name what is in the database: what another tool's output can feed."""
        return tuple(p for p in self.params if self.op in READS or p.endswith("_id"))

    @property
    def tool(self) -> Tool:
        """What a policy is told; `.schema` is for the prompt."""
        description = f"{OPS[self.op].said.capitalize()} {self.table}."
        return Tool(self.name, description, tuple(Parameter(p, "A string.") for p in self.params))


def tool_source(api: Api) -> str:
    """Python source of one tool, a function of a connection and texts, filled into our template.

    Its one SQL statement does all or nothing; it raises LookupError where nothing matches and
    sqlite3.Error for a reference to what is not there. ValueError: an operator that is not in
    `OPS`, or a name that is no identifier (it would be code); words of SQL are none that work.
    """
    names = (api.name, api.table, *api.params, *api.returns)
    if api.op not in OPS or not all(name.isidentifier() for name in names):
        raise ValueError(f"tool {api.name!r}: names must be identifiers, op one of {[*OPS]}")
    inputs = ", ".join(api.params)
    # the change of a row names its key last
    bound = inputs if api.op != "set" else ", ".join(reversed(api.params))
    sql = OPS[api.op].sql.format(
        table=api.table,
        inputs=inputs,
        marks=", ".join("?" * len(api.params)),
        key=f"{api.table}_id",
        first=api.params[0],
        last=api.params[-1],
    )
    returning = "" if api.op in READS else " RETURNING *"
    record = ", ".join(f'"{name}": str(rows[0]["{name}"])' for name in api.returns)
    return f'''def {api.name}(db, {inputs}):
    """{api.tool.description}"""
    rows = db.execute("{sql}{returning}", [{bound}]).fetchall()
    if not rows:
        raise LookupError("no such {api.table}")
    return {{{record}}}
'''


class Domain:
    """Tools and the database under them: `schema` (table -> columns), `sources` (tool -> Python).

    A state is a SQLite connection from `open`, in memory: close it.
    """

    def __init__(self, apis: Iterable[Api]):
        self.apis = {api.name: api for api in apis}
        self.schema = _schema(self.apis.values())
        self.name = "+".join(self.schema)
        self.sources = {name: tool_source(api) for name, api in self.apis.items()}
        self._functions = {}
        for name, source in self.sources.items():
            namespace: dict = {}  # a fresh one each
            exec(compile(source, name, "exec"), namespace)
            self._functions[name] = namespace[name]

    def open(self, seed: int | str) -> sqlite3.Connection:
        """The initial state of `seed`: three to eight rows in each table, drawn at random."""
        rng = random.Random(f"scaler-state-{self.name}-{seed}")
        size = rng.randint(*ROWS_A_TABLE)
        db = sqlite3.connect(":memory:", isolation_level=None)
        db.row_factory = sqlite3.Row
        for table, columns in self.schema.items():
            references = [c.removesuffix("_id") for c in columns if c.endswith("_id")]
            heads = [f"{table}_id INTEGER PRIMARY KEY", *columns]
            heads += [f"FOREIGN KEY ({other}_id) REFERENCES {other}" for other in references]
            db.execute(f"CREATE TABLE {table} ({', '.join(heads)})")
            rows = [[i + 1, *[made_up_value(c, rng, size) for c in columns]] for i in range(size)]
            db.executemany(f"INSERT INTO {table} VALUES (?{', ?' * len(columns)})", rows)
        db.execute("PRAGMA foreign_keys = ON")  # now: tables came in any order
        return db

    def call(self, db: sqlite3.Connection, name: str, arguments: Mapping) -> tuple[bool, str]:
        """(whether it worked, the observation) of one call; a failed one changes nothing."""
        api = self.apis.get(name)
        try:
            if api is None or {*arguments} != {*api.params} or api.tool.argument_error(arguments):
                raise LookupError(f"no tool {name} that takes {sorted(arguments)} as strings")
            return True, json.dumps(self._functions[name](db, **arguments))
        except (LookupError, UnicodeError, sqlite3.Error) as error:
            return False, f"Error: {error}."

    def hash(self, db: sqlite3.Connection) -> str:
        """SHA-256 of all rows: of what is there, not of how it came to be there."""
        tables = [db.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall() for name in self.schema]
        rows = [[tuple(row) for row in table] for table in tables]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _schema(apis: Iterable[Api]) -> dict[str, list[str]]:
    """Table -> its columns but the key: all names that its tools mention."""
    mentioned = [(api.table, name) for api in apis for name in (*api.params, *api.returns)]
    keys = [name for _, name in mentioned if name.endswith("_id")]
    schema = {}
    for table in dict.fromkeys(key.removesuffix("_id") for key in keys):
        own = (name for owner, name in mentioned if owner == table and name != f"{table}_id")
        schema[table] = [*dict.fromkeys(own)]
    return schema


def made_up_value(column: str, rng: random.Random, size: int = 9) -> str:
    """ "day-4"; for a reference the number alone, which is a row's where `size` rows are."""
    number = rng.randint(1, size)
    return str(number) if column.endswith("_id") else f"{column}-{number}"
