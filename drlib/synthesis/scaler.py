"""AgentScaler: tool environments made by rule, and function-calling data with a provable end.

After arXiv 2509.13311, of which no code is released. Every tool is a read or a write operator on
the database of its domain, API(f, a) = op(f)(a; D), so the right end of a task is a database state.

1. Tools are embedded by their parameters (hashed character trigrams) and joined where the cosine
   is above tau; Louvain's communities are the domains (`find_domains`). It never sees the six
   domains of `toy_apis`, and words that several of them use ("day", "city") tempt it to mix them.
2. A domain's schema is what its tools mention. Each tool becomes Python source over SQLite, kept in
   `Domain.sources` and compiled. The source is filled into a template of ours: no model wrote it.
3. A task (`sample_task`) is a directed walk from a seeded state, executed: the next tool takes a
   parameter that the last one returned. Its calls are the gold calls, the final state's hash the
   gold state. A scripted user's request names every argument, or the step that it comes from.
4. Messages of a hand (`play`) or a policy pass three filters (`filter_trajectories`) and can become
   SFT samples (`drlib.synthesis.actions.episode_sample`: loss on calls and replies alone).

A walk uses each tool once, or reads would go in circles. Left out: models that write schemas, tools
and users and re-check edges (an edge of the walk is an equal name), users of several turns, values
that look real, a judge of the last reply, and the RL that the paper leaves to the future too.
"""

import hashlib
import json
import random
import sqlite3
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import comb

import networkx as nx
import numpy as np

from drlib.format import Answer, ToolCall, parse, render_answer, render_call
from drlib.tools.definitions import Parameter, Tool

TAU = 0.6  # cosine above which two tools are joined; 0.48 to 0.68 give the six domains exactly
NGRAM, MAX_REPEATS = 8, 3  # words, more than a call has without its values; how often at most
TRIES = 200  # walks drawn until one is long enough and its writes show
OPS = {  # operator -> how a user says it, parameters, outputs, statement
    "get": ("show", "{key}", "{key} {all}", "SELECT * FROM {table} WHERE {key} = ?"),
    "find": (
        "find the first",
        "{first}",
        "{key}",
        "SELECT * FROM {table} WHERE {first} = ? ORDER BY {key} LIMIT 1",
    ),
    "set": ("change", "{key} {last}", "{key}", "UPDATE {table} SET {last} = ?2 WHERE {key} = ?1"),
    "add": ("add", "{all}", "{key}", "INSERT INTO {table} ({inputs}) VALUES ({marks})"),
    "remove": ("remove", "{key}", "", "DELETE FROM {table} WHERE {key} = ?"),
}
READS = ("get", "find")
FILTERS = ("turns", "repetition", "observation", "state", "exact match")  # three of validity first
DOMAINS = """library: book title genre shelf, loan book_id reader day
shop: product label price stock, purchase product_id customer city
clinic: patient birthday allergy ward, visit patient_id doctor day
airline: flight airport gate day, booking flight_id passenger seat
school: course subject teacher level, enrolment course_id student grade
garage: vehicle plate fuel city, repair vehicle_id mechanic level"""


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
        description = f"{OPS[self.op][0].capitalize()} {self.table}."
        return Tool(self.name, description, tuple(Parameter(p, "A string.") for p in self.params))


def toy_apis() -> list[Api]:
    """60 tools: five operators on each of the two tables of six domains (`DOMAINS`)."""
    apis = []
    for domain, tables in (line.split(": ") for line in DOMAINS.split("\n")):
        for table, *columns in map(str.split, tables.split(", ")):
            names = {
                "key": f"{table}_id",
                "all": " ".join(columns),
                "first": columns[0],
                "last": columns[-1],
            }
            for op, (_, *shape, _) in OPS.items():
                params, returns = (tuple(part.format(**names).split()) for part in shape)
                apis.append(Api(f"{op}_{table}", op, table, params, returns, domain))
    return apis


def embed_parameters(api: Api, size: int = 1024) -> np.ndarray:
    """float64[size], length 1: hashed character trigrams of its parameters' and outputs' names."""
    grams = [f"<{n}>"[i : i + 3] for n in (*api.params, *api.returns) for i in range(len(n))]
    # crc32: hash() differs from process to process
    counts = np.bincount([zlib.crc32(gram.encode()) % size for gram in grams], minlength=size)
    return counts / np.linalg.norm(counts)


def tool_graph(apis: Sequence[Api], tau: float = TAU) -> nx.Graph:
    """Tools, as their places in `apis`; an edge, weighted with the cosine, where that is > tau."""
    vectors = np.stack([embed_parameters(api) for api in apis])
    cosines = vectors @ vectors.T
    return nx.from_numpy_array(np.triu(np.where(cosines > tau, cosines, 0), 1))


def find_domains(apis: Sequence[Api], tau: float = TAU, seed: int = 0) -> list[list[Api]]:
    """Louvain's communities of the tool graph, tools and communities in the order of `apis`."""
    found = nx.community.louvain_communities(tool_graph(apis, tau), seed=seed)
    return [[apis[i] for i in part] for part in sorted(map(sorted, found))]


def tool_source(api: Api) -> str:
    """Python source of one tool, a function of a connection and texts, filled into our template.

    Its one SQL statement does all or nothing; it raises LookupError where nothing matches and
    sqlite3.Error for a reference to what is not there. ValueError: an operator that is not in
    `OPS`, or a name that is no identifier (it would be code); words of SQL are none that work.
    """
    names = (api.name, api.table, *api.params, *api.returns)
    if api.op not in OPS or not all(name.isidentifier() for name in names):
        raise ValueError(f"tool {api.name!r}: names must be identifiers, op one of {[*OPS]}")
    inputs, marks = ", ".join(api.params), ", ".join("?" * len(api.params))
    fields = {"key": f"{api.table}_id", "first": api.params[0], "last": api.params[-1]}
    sql = OPS[api.op][-1].format(table=api.table, inputs=inputs, marks=marks, **fields)
    returning = "" if api.op in READS else " RETURNING *"
    record = ", ".join(f'"{name}": str(rows[0]["{name}"])' for name in api.returns)
    return f'''def {api.name}(db, {inputs}):
    """{api.tool.description}"""
    rows = db.execute("{sql}{returning}", [{inputs}]).fetchall()
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
        names = [(a.table, n) for a in self.apis.values() for n in (*a.params, *a.returns)]
        tables = dict.fromkeys(n.removesuffix("_id") for _, n in names if n.endswith("_id"))
        self.schema = {
            table: [*dict.fromkeys(n for t, n in names if table == t and n != f"{t}_id")]
            for table in tables
        }
        self.name = "+".join(self.schema)
        self.sources = {name: tool_source(api) for name, api in self.apis.items()}
        self._functions = {}
        for name, source in self.sources.items():
            exec(compile(source, name, "exec"), namespace := {})  # a fresh one each
            self._functions[name] = namespace[name]

    def open(self, seed: int | str) -> sqlite3.Connection:
        """The initial state of `seed`: three to eight rows in each table, drawn at random."""
        rng = random.Random(f"scaler-state-{self.name}-{seed}")
        size, db = rng.randint(3, 8), sqlite3.connect(":memory:", isolation_level=None)
        db.row_factory = sqlite3.Row
        for table, columns in self.schema.items():
            heads = [f"{table}_id INTEGER PRIMARY KEY", *columns]
            heads += [f"FOREIGN KEY ({c}) REFERENCES {c[:-3]}" for c in columns if c[-3:] == "_id"]
            db.execute(f"CREATE TABLE {table} ({', '.join(heads)})")
            rows = [[i + 1, *[_value(c, rng, size) for c in columns]] for i in range(size)]
            db.executemany(f"INSERT INTO {table} VALUES (?{', ?' * len(columns)})", rows)
        db.execute("PRAGMA foreign_keys = ON")  # now: tables came in any order
        return db

    def call(self, db: sqlite3.Connection, name: str, arguments: Mapping) -> tuple[bool, str]:
        """(whether it worked, the observation) of one call; a failed one changes nothing."""
        api = self.apis.get(name)
        try:
            if api is None or {*arguments} != {*api.params} or api.tool.misfit(arguments):
                raise LookupError(f"no tool {name} that takes {sorted(arguments)} as strings")
            return True, json.dumps(self._functions[name](db, **arguments))
        except (LookupError, UnicodeError, sqlite3.Error) as error:
            return False, f"Error: {error}."

    def hash(self, db: sqlite3.Connection) -> str:
        """SHA-256 of all rows: of what is there, not of how it came to be there."""
        rows = [db.execute(f"SELECT * FROM {t} ORDER BY 1").fetchall() for t in self.schema]
        return hashlib.sha256(json.dumps([[*map(tuple, r)] for r in rows]).encode()).hexdigest()


@dataclass(frozen=True)
class ToolTask:
    """A request, the seed of the state it starts from, and its gold: calls, final state's hash."""

    domain: Domain
    seed: str
    request: str
    calls: tuple[ToolCall, ...]
    final_hash: str

    @property
    def writes(self) -> bool:
        return any(self.domain.apis[call.name].op not in READS for call in self.calls)

    def run(self, calls: Iterable[ToolCall]) -> tuple[list[tuple[bool, str]], str]:
        """(`Domain.call` of each of `calls` from the initial state on, hash of the final state)."""
        with closing(self.domain.open(self.seed)) as db:
            return [self.domain.call(db, c.name, c.arguments) for c in calls], self.domain.hash(db)


def sample_task(
    domain: Domain, seed: int, max_steps: int = 8, min_steps: int = 2, ops: Sequence[str] = (*OPS,)
) -> ToolTask:
    """A walk of `min_steps` to `max_steps` calls; where it writes, its final state is another.

    Its limit is drawn between the two, and a removal, which feeds nothing, stands only at the end:
    else two walks in three would end early, with one. ops: the operators it may use; `READS` for a
    read-only task. ValueError when `TRIES` walks give none.
    """
    for attempt in range(TRIES):
        rng, state = random.Random(f"scaler-{domain.name}-{seed}-{attempt}"), f"{seed}-{attempt}"
        with closing(domain.open(state)) as db:
            request, calls = _walk(domain, db, rng, rng.randint(min_steps, max_steps), ops)
            task = ToolTask(domain, state, request, tuple(calls), domain.hash(db))
        if len(calls) >= min_steps and task.writes == (task.run(())[1] != task.final_hash):
            return task
    raise ValueError(
        f"domain {domain.name}: no walk of {min_steps} to {max_steps} calls; lower "
        "min_steps, or give tools whose outputs feed others"
    )


def _walk(domain: Domain, db: sqlite3.Connection, rng: random.Random, max_steps: int, ops) -> tuple:
    """(request, calls): until `max_steps`, or no tool that is left can be fed and works."""
    apis = [api for api in domain.apis.values() if api.op in ops]
    calls, steps, known, options = [], [], {}, [*apis]
    while options and len(calls) < max_steps:
        api = options.pop(rng.randrange(len(options)))
        chosen = {}  # parameter -> value, how the user says it
        for p in api.params:
            table = p.removesuffix("_id") if p.endswith("_id") else api.table
            rows = db.execute(f"SELECT DISTINCT {p} FROM {table} ORDER BY 1").fetchall()
            fresh = str(rng.choice(rows)[0]) if p in api.keys else _value(p, rng)
            chosen[p] = known[p] if p in known and p in api.keys else (fresh, fresh)
        arguments = {p: value for p, (value, _) in chosen.items()}
        worked, shown = domain.call(db, api.name, arguments)
        if not worked:  # say, a loan of a book that nobody has lent: another tool may do
            continue
        calls.append(ToolCall(api.name, arguments))
        said = (f"{p.replace('_', ' ')} {word}" for p, (_, word) in chosen.items())
        steps.append(f"{OPS[api.op][0]} {api.table} with {', '.join(said)}")
        known |= {p: (v, f"of step {len(calls)}") for p, v in json.loads(shown).items()}
        used, last = [call.name for call in calls], len(calls) + 1 == max_steps
        options = [
            b
            for b in apis
            if b.name not in used and {*api.returns} & {*b.keys} and (b.returns or last)
        ]
    return f"Please {'; then '.join(steps)}.", calls


def _value(column: str, rng: random.Random, size: int = 9) -> str:
    """ "day-4"; for a reference the number alone, which is a row's where `size` rows are."""
    return f"{'' if column.endswith('_id') else column + '-'}{rng.randint(1, size)}"


def play(task: ToolTask, calls: Sequence[ToolCall] | None = None) -> list[dict[str, str]]:
    """Messages (role, content) of a hand that makes `calls`, by default the gold ones."""
    messages = [{"role": "user", "content": task.request}]
    calls = task.calls if calls is None else calls
    for call, (_, shown) in zip(calls, task.run(calls)[0], strict=True):
        content = f"<think>Use {call.name}.</think>{render_call(call.name, call.arguments)}"
        messages += [{"role": "assistant", "content": content}, {"role": "tool", "content": shown}]
    last = "<think>All is done.</think>" + render_answer(f"Done. {messages[-1]['content']}")
    return [*messages, {"role": "assistant", "content": last}]


def rejection(task: ToolTask, messages: Sequence[Mapping[str, str]]) -> str:
    """The first of `FILTERS` that a trajectory fails, "" when it is kept.

    validity: user, then calls and observations in turn, then an answer (a turn that does not parse
    is no call); no `NGRAM` words more often than `MAX_REPEATS` in what the assistant wrote; the
    observations are those of a replay.
    state: the replay ends in the gold state. A read-only task's is its first: reads alone pass.
    exact match: of read-only tasks, whose state says nothing more: the calls that worked are the
    gold ones in order. Failed calls do not count, here as above: a trajectory with an error that
    ends right teaches recovery and is kept, as in the paper.
    """
    checks = zip(FILTERS, _checks(task, messages), strict=True)
    return next((name for name, failed in checks if failed), "")


def _checks(task: ToolTask, messages: Sequence[Mapping[str, str]]) -> Iterator[bool]:
    """Whether each of `FILTERS` fails, computed when asked for: a replay needs valid turns."""
    written = [m["content"] for m in messages if m["role"] == "assistant"]
    *calls, last = [parse(text) for text in written] or [None]
    turns = ["user", *["assistant", "tool"] * len(calls), "assistant"]
    kinds = isinstance(last, Answer) and all(isinstance(call, ToolCall) for call in calls)
    yield [m["role"] for m in messages] != turns or not kinds
    words = " ".join(written).split()
    grams = Counter(tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1))
    yield max(grams.values(), default=0) > MAX_REPEATS
    results, final_hash = task.run(calls)
    yield [shown for _, shown in results] != [m["content"] for m in messages if m["role"] == "tool"]
    yield final_hash != task.final_hash
    worked = tuple(call for call, (ok, _) in zip(calls, results, strict=True) if ok)
    yield not task.writes and worked != task.calls


def filter_trajectories(pairs: Iterable[tuple[ToolTask, Sequence[Mapping[str, str]]]]) -> tuple:
    """(the pairs kept, report): {"given", "kept", and how many each of `FILTERS` rejected}."""
    pairs = list(pairs)
    reasons = [rejection(*pair) for pair in pairs]
    kept = [pair for pair, reason in zip(pairs, reasons, strict=True) if not reason]
    return kept, {"given": len(pairs), "kept": len(kept), **{f: reasons.count(f) for f in FILTERS}}


def pass_hat_k(n: int, c: int, k: int) -> float:
    """pass^k: the chance that k of n trials, of which c were right, are all right.

    C(c, k) / C(n, k), unbiased for p**k (tau-bench, arXiv 2406.12045); average it over tasks.
    ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass^k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return comb(c, k) / comb(n, k)
