"""AgentScaler (arXiv 2509.13311): tool environments made by rule, and data with a provable end.

The paper, of which no code is released: every tool is a read or a write operator on the database of
its domain, API(f, a) = op(f)(a; D), so the right end of a task is a database state. Communities of
30,000 tools give a thousand domains; models write schemas, tools and tasks, and simulated users
talk to agents. What passes three filters trains an agent, loss on calls and replies alone.

Taken from it, in its order:

1. Tools are embedded by their parameters (hashed character trigrams) and joined where the cosine
   is above tau; Louvain's communities are the domains (`find_domains`). It never sees the six
   domains of `toy_apis`, and words that several of them use ("day", "city") tempt it to mix them.
2. A domain's schema is what its tools mention. Each tool becomes Python source over SQLite, kept in
   `Domain.sources` and compiled. The source is filled into a template
   of ours: no model wrote it.
3. A task (`sample_task`) is a directed walk from a seeded state, executed: the next tool takes a
   parameter that the last one returned. Its calls are the gold calls, the final state's hash the
   gold state. A scripted user's request names every argument, or the step that it comes from.
4. Messages of a hand (`play`) or a policy pass three filters (`filter_trajectories`) and can become
   SFT samples (`drlib.demonstrations.actions.episode_sample`).

Reduced: 60 toy tools; a walk uses each tool once, or reads would go in circles; an edge of the walk
is an equal name. Users of several turns: `drlib.demonstrations.agentscaler`. Missing: models that
write schemas and tools and re-check edges, values that look real, a judge of the last reply, and
the RL that the paper leaves to the future too.

Tools over a database: specified in a line, compiled to Python over SQLite, executed on a state.

A tool is one read or write operator on one table of its domain, so whatever it does is a change of
a database that can be compared with another. `drlib.demonstrations.agentscaler` makes domains,
tasks and data of them.

Users of several turns for AgentScaler's tasks (arXiv 2509.13311, simulated users; tau-bench).

A user knows what it wants and not which tools there are. It wants one thing after the other, now
and then leaves out what a call needs until it is asked for that, and goes on when it is answered.
So an agent must ask instead of guessing: a guess writes another row, and the final state tells.

    messages = converse(task, User(task, seed=0), policy)
    rejection(task, messages)      # "" where the state, or the calls of a reader, are the gold ones

A policy is a function of the messages so far. What it says to the user is an answer in our format,
which ends a turn and not the conversation. `hand` plays the gold calls and asks for what is
missing: data for fine-tuning (setting `sft.tool_use_users`).

Left out: a language model as the user, users that change their minds, that lie, or that use tools
of their own (tau2-bench).
"""

import hashlib
import json
import random
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from math import comb
from typing import NamedTuple

import networkx as nx
import numpy as np

from drlib.chat.tool_calls import Answer, ToolCall, parse, render_answer, render_call
from drlib.tools.definitions import Parameter, Tool

ROWS_A_TABLE = (3, 8)  # of a table in its initial state
READS = ("get", "find")


class Operator(NamedTuple):
    """Operation of a tool on its table: request wording, parameters, outputs, SQL. {key} is the
    table's key, {all} its columns, {first} and {last} two of these.
    """

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
        """Return the tool description shown to a policy; `.schema` is for the prompt."""
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


TAU = 0.6  # cosine above which two tools are joined; 0.48 to 0.68 give the six domains exactly
NGRAM = 8  # words, more than a call has without its values
MAX_REPEATS = 3  # of the same n-gram in one trajectory
WALKS_A_TASK = 200  # drawn until one is long enough and its writes show
_TURNS = re.compile("(u(ct)*a)+")  # see `_letter`
FILTERS = ("turns", "repetition", "observation", "state", "exact match")  # three of validity first


DOMAINS = """library: book title genre shelf, loan book_id reader day
shop: product label price stock, purchase product_id customer city
clinic: patient birthday allergy ward, visit patient_id doctor day
airline: flight airport gate day, booking flight_id passenger seat
school: course subject teacher level, enrolment course_id student grade
garage: vehicle plate fuel city, repair vehicle_id mechanic level"""


# ---------------------------------------------------------------------------------------- domains


def toy_apis() -> list[Api]:
    """60 tools: five operators on each of the two tables of six domains (`DOMAINS`)."""
    apis = []
    for line in DOMAINS.split("\n"):
        domain, tables = line.split(": ")
        for table, *columns in map(str.split, tables.split(", ")):
            names = {
                "key": f"{table}_id",
                "all": " ".join(columns),
                "first": columns[0],
                "last": columns[-1],
            }
            for op, operator in OPS.items():
                params = tuple(operator.params.format(**names).split())
                returns = tuple(operator.returns.format(**names).split())
                apis.append(Api(f"{op}_{table}", op, table, params, returns, domain))
    return apis


def embed_parameters(api: Api, size: int = 1024) -> np.ndarray:
    """float64[size], length 1: hashed character trigrams of its parameters' and outputs' names."""
    names = [f"<{name}>" for name in (*api.params, *api.returns)]
    grams = [name[i : i + 3] for name in names for i in range(len(name) - 2)]
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


# ------------------------------------------------------------------------------------------ tasks


class Step(NamedTuple):
    """One call requested by a user: a verb, a table, and the wording of each argument ("day-4", or
    "of step 2").
    """

    said: str
    table: str
    arguments: tuple[tuple[str, str], ...]

    def text(self, without: str = "") -> str:
        """Return the user's request; `without` names an argument to leave out."""
        told = [f"{spoken(name)} {word}" for name, word in self.arguments if name != without]
        return f"{self.said} {self.table}" + (f" with {', '.join(told)}" if told else "")


@dataclass(frozen=True)
class ToolTask:
    """A task: the goal, the seed of its initial state, and its reference calls with the hash of the
    final state.
    """

    domain: Domain
    seed: str
    steps: tuple[Step, ...]
    calls: tuple[ToolCall, ...]
    final_hash: str

    @property
    def request(self) -> str:
        """All of it at once."""
        return f"Please {'; then '.join(step.text() for step in self.steps)}."

    @property
    def writes(self) -> bool:
        return any(self.domain.apis[call.name].op not in READS for call in self.calls)

    def run(self, calls: Iterable[ToolCall]) -> tuple[list[tuple[bool, str]], str]:
        """(`Domain.call` of each of `calls` from the initial state on, hash of the final state)."""
        with closing(self.domain.open(self.seed)) as db:
            results = [self.domain.call(db, call.name, call.arguments) for call in calls]
            return results, self.domain.hash(db)


def sample_task(
    domain: Domain, seed: int, max_steps: int = 8, min_steps: int = 2, ops: Sequence[str] = (*OPS,)
) -> ToolTask:
    """A walk of `min_steps` to `max_steps` calls; where it writes, its final state is another.

    Its limit is drawn between the two, and a removal, which feeds nothing, stands only at the end:
    else two walks in three would end early, with one. ops: the operators it may use; `READS` for a
    read-only task. ValueError when `WALKS_A_TASK` walks give none.
    """
    for attempt in range(WALKS_A_TASK):
        rng = random.Random(f"scaler-{domain.name}-{seed}-{attempt}")
        state = f"{seed}-{attempt}"
        with closing(domain.open(state)) as db:
            steps, calls = _walk(domain, db, rng, rng.randint(min_steps, max_steps), ops)
            task = ToolTask(domain, state, tuple(steps), tuple(calls), domain.hash(db))
        _, untouched = task.run(())
        if len(calls) >= min_steps and task.writes == (untouched != task.final_hash):
            return task
    raise ValueError(
        f"domain {domain.name}: no walk of {min_steps} to {max_steps} calls; lower "
        "min_steps, or give tools whose outputs feed others"
    )


def _walk(
    domain: Domain,
    db: sqlite3.Connection,
    rng: random.Random,
    max_steps: int,
    ops: Sequence[str],
) -> tuple[list[Step], list[ToolCall]]:
    """(steps, calls): until `max_steps`, or no tool that is left can be fed and works."""
    apis = [api for api in domain.apis.values() if api.op in ops]
    calls: list[ToolCall] = []
    steps: list[Step] = []  # what the user says
    known: dict[str, tuple[str, str]] = {}  # returned so far: name -> value, how the user says it
    options = [*apis]
    while options and len(calls) < max_steps:
        api = options.pop(rng.randrange(len(options)))
        chosen = {name: _argument(name, api, db, known, rng) for name in api.params}
        arguments = {name: value for name, (value, _) in chosen.items()}
        worked, shown = domain.call(db, api.name, arguments)
        if not worked:  # say, a loan of a book that nobody has lent: another tool may do
            continue
        calls.append(ToolCall(api.name, arguments))
        said = tuple((name, word) for name, (_, word) in chosen.items())
        steps.append(Step(OPS[api.op].said, api.table, said))
        for name, value in json.loads(shown).items():
            known[name] = (value, f"of step {len(calls)}")
        used = [call.name for call in calls]
        is_last = len(calls) + 1 == max_steps
        options = [
            other
            for other in apis
            if other.name not in used
            and {*api.returns} & {*other.keys}
            and (other.returns or is_last)
        ]
    return steps, calls


def spoken(name: str) -> str:
    """An argument's name as a user says it."""
    return name.replace("_", " ")


def _argument(
    name: str,
    api: Api,
    db: sqlite3.Connection,
    known: Mapping[str, tuple[str, str]],
    rng: random.Random,
) -> tuple[str, str]:
    """(value, how the user says it): what an earlier step returned, else what is in the database,
    and for what is newly written anything."""
    table = name.removesuffix("_id") if name.endswith("_id") else api.table
    rows = db.execute(f"SELECT DISTINCT {name} FROM {table} ORDER BY 1").fetchall()
    is_key = name in api.keys
    fresh = str(rng.choice(rows)[0]) if is_key else made_up_value(name, rng)
    return known[name] if is_key and name in known else (fresh, fresh)


def play(task: ToolTask, calls: Sequence[ToolCall] | None = None) -> list[dict[str, str]]:
    """Messages (role, content) of a hand that makes `calls`, by default the gold ones."""
    messages = [{"role": "user", "content": task.request}]
    calls = task.calls if calls is None else calls
    results, _ = task.run(calls)
    for call, (_, shown) in zip(calls, results, strict=True):
        content = f"<think>Use {call.name}.</think>{render_call(call.name, call.arguments)}"
        messages += [{"role": "assistant", "content": content}, {"role": "tool", "content": shown}]
    last = "<think>All is done.</think>" + render_answer(f"Done. {messages[-1]['content']}")
    return [*messages, {"role": "assistant", "content": last}]


# ---------------------------------------------------------------------------------------- filters


def rejection(task: ToolTask, messages: Sequence[Mapping[str, str]]) -> str:
    """The first of `FILTERS` that a trajectory fails, "" when it is kept.

    validity: user, then calls and observations in turn, then an answer, behind which a user may go
    on (`User`; a turn that does not parse is no call); no `NGRAM` words more often
    than `MAX_REPEATS` in what the assistant wrote; the observations are those of a replay.
    state: the replay ends in the gold state. A read-only task's is its first: reads alone pass.
    exact match: of read-only tasks, whose state says nothing more: the calls that worked are the
    gold ones in order. Failed calls do not count, here as above: a trajectory with an error that
    ends right teaches recovery and is kept, as in the paper.
    """
    checks = zip(FILTERS, _checks(task, messages), strict=True)
    return next((name for name, failed in checks if failed), "")


def _checks(task: ToolTask, messages: Sequence[Mapping[str, str]]) -> Iterator[bool]:
    """Compute lazily whether each of `FILTERS` fails: a replay needs valid turns."""
    written = [m["content"] for m in messages if m["role"] == "assistant"]
    yield not _TURNS.fullmatch("".join(_letter(message) for message in messages))
    calls = [action for action in map(parse, written) if isinstance(action, ToolCall)]
    words = " ".join(written).split()
    grams = Counter(tuple(words[i : i + NGRAM]) for i in range(len(words) - NGRAM + 1))
    yield max(grams.values(), default=0) > MAX_REPEATS
    results, final_hash = task.run(calls)
    yield [shown for _, shown in results] != [m["content"] for m in messages if m["role"] == "tool"]
    yield final_hash != task.final_hash
    worked = tuple(call for call, (ok, _) in zip(calls, results, strict=True) if ok)
    yield not task.writes and worked != task.calls


def _letter(message: Mapping[str, str]) -> str:
    """u, t, or what an assistant's turn is: a call, an answer, neither."""
    if message["role"] != "assistant":
        return message["role"][:1]
    action = parse(message["content"])
    return "c" if isinstance(action, ToolCall) else "a" if isinstance(action, Answer) else "?"


def filter_trajectories(
    pairs: Iterable[tuple[ToolTask, Sequence[Mapping[str, str]]]],
) -> tuple[list[tuple[ToolTask, Sequence[Mapping[str, str]]]], dict[str, int]]:
    """(the pairs kept, report): {"given", "kept", and how many each of `FILTERS` rejected}."""
    pairs = list(pairs)
    reasons = [rejection(*pair) for pair in pairs]
    kept = [pair for pair, reason in zip(pairs, reasons, strict=True) if not reason]
    rejected = {name: reasons.count(name) for name in FILTERS}
    return kept, {"given": len(pairs), "kept": len(kept), **rejected}


def pass_hat_k(n: int, c: int, k: int) -> float:
    """pass^k: the chance that k of n trials, of which c were right, are all right.

    C(c, k) / C(n, k), unbiased for p**k (tau-bench, arXiv 2406.12045); average it over tasks.
    ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass^k needs 0 <= c <= n and 1 <= k <= n, got n={n}, c={c}, k={k}")
    return comb(c, k) / comb(n, k)


Message = dict[str, str]
Policy = Callable[[Sequence[Message]], str]
WITHHOLDS = 0.4  # of the steps with something to withhold
PATIENCE = 2  # answers that help with nothing, until it gives up
MAX_TURNS = 60
UNHELPFUL = "I have not told you everything that you need for that. Ask me for it."
THANKS = "STOP"
OPENINGS = ("Hello. Please {step}.", "Hi! Could you {step}?", "I would like you to {step}.")
NEXT_WISHES = ("Thanks. Now please {step}.", "Good. Next, {step}.", "Then {step}, please.")


class User:
    """A user by rule. seed: of what it withholds and of its words.

    step: the number of its last wish. missing: the name of the argument that it has not told, ""
    for none. gave_up: whether it left before all was done.
    """

    def __init__(self, task: ToolTask, seed: int, withholds: float = WITHHOLDS):
        self.task = task
        self.withholds = withholds
        self.missing = ""
        self.gave_up = False
        self._rng = random.Random(f"user-{task.domain.name}-{task.seed}-{seed}")
        self.step = 0
        self._unhelpful = 0

    def say(self, messages: Sequence[Message]) -> str | None:
        """The next wish once the last one was answered; of what is missing, its value when the
        answer asks for it by name."""
        if not messages:
            return self._wish(OPENINGS)
        if self.missing:
            return self._tell(messages[-1]["content"])
        self.step += 1
        return self._wish(NEXT_WISHES) if self.step < len(self.task.steps) else None

    def _wish(self, wordings: Sequence[str]) -> str:
        step = self.task.steps[self.step]
        told = [name for name, word in step.arguments if not word.startswith("of step")]
        if told and self._rng.random() < self.withholds:
            self.missing = self._rng.choice(told)
        return self._rng.choice(wordings).format(step=step.text(without=self.missing))

    def _tell(self, said: str) -> str | None:
        if spoken(self.missing) in said.casefold():
            value = dict(self.task.steps[self.step].arguments)[self.missing]
            told = f"The {spoken(self.missing)} is {value}."
            self.missing, self._unhelpful = "", 0
            return told
        self._unhelpful += 1
        self.gave_up = self._unhelpful > PATIENCE
        return None if self.gave_up else UNHELPFUL


def converse(
    task: ToolTask, user: User, policy: Policy, max_turns: int = MAX_TURNS
) -> list[Message]:
    """The messages of user, policy and tools until the user leaves, the policy says what is neither
    a call nor an answer, or has had `max_turns`. The tools work on the task's own state."""
    messages: list[Message] = [{"role": "user", "content": user.say(()) or ""}]
    with closing(task.domain.open(task.seed)) as db:
        for _ in range(max_turns):
            turn = policy(messages)
            messages.append({"role": "assistant", "content": turn})
            action = parse(turn)
            if isinstance(action, ToolCall):
                _, shown = task.domain.call(db, action.name, action.arguments)
                messages.append({"role": "tool", "content": shown})
                continue
            said = user.say(messages) if isinstance(action, Answer) else None
            if said is None:
                break
            messages.append({"role": "user", "content": said})
    return messages


def hand(task: ToolTask, user: User) -> Policy:
    """A hand that makes the gold calls, one for each wish, and asks for what it was not told."""

    def act(messages: Sequence[Message]) -> str:
        last = messages[-1]
        if last["role"] == "tool":
            return f"<think>That is done.</think>{render_answer('Done. ' + last['content'])}"
        if user.missing:
            name = spoken(user.missing)
            return f"<think>I was not told the {name}.</think>{render_answer(f'Which {name}?')}"
        call = task.calls[user.step]
        return f"<think>Use {call.name}.</think>{render_call(call.name, call.arguments)}"

    return act


def play_with_user(task: ToolTask, seed: int) -> list[Message]:
    """A whole conversation of the hand with a user by rule."""
    user = User(task, seed)
    return converse(task, user, hand(task, user))
