"""Tool use over databases (AgentScaler, arXiv 2509.13311): the final state is the verification.

`database:easy` (one or two calls), `database:medium` (two to four), `database:hard` (three to
eight); "" is easy. A task is a user's request in one of six domains, for example a library, with
the domain's tools over a fresh database. A request that writes is solved if the database ends in
the same state as after the reference calls; one that only reads, if the successful calls are the
reference calls.

Options follow the tier, as in `database:easy:user,confirm` (tau-bench, arXiv 2406.12045):

- user: the user states one wish after the other and omits arguments until `ask` asks for them.
- confirm: the user must agree (`confirm`) to each change of the data before it is made. A change
  without it fails the task, whatever the final state.
"""

import json
import random
import re
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from drlib.chat.tool_calls import ToolCall
from drlib.demonstrations.agentscaler import (
    OPS,
    READS,
    THANKS,
    Domain,
    ToolTask,
    User,
    find_domains,
    sample_task,
    spoken,
    toy_apis,
)
from drlib.environments.environment import (
    Environment,
    Episode,
    Observation,
    Solution,
    choose_tier,
)
from drlib.task import Task
from drlib.tools.definitions import Parameter, Tool
from drlib.validation import require

CALLS = {"easy": (1, 2), "medium": (2, 4), "hard": (3, 8)}  # fewest and most reference calls
ASK = Tool("ask", "Talk to the user.", (Parameter("message", "What to say or to ask."),))
CONFIRM = Tool(
    "confirm",
    "Ask the user to agree to one change.",
    (Parameter("change", "The change with all its values."),),
)
RULES = {  # option -> sentence of the question
    "user": f"Ask me with {ASK.name} until I say {THANKS}.",
    "confirm": f"Use {CONFIRM.name} before each change.",
}
VALUE = re.compile(r"[a-z_]+-\d+|\d+")  # of an argument


@cache
def _domains() -> tuple[Domain, ...]:
    return tuple(Domain(apis) for apis in find_domains(toy_apis()))


@cache
def _sample(domain: int, seed: int, tier: str) -> ToolTask:
    fewest, most = CALLS[tier]
    return sample_task(_domains()[domain], seed, most, fewest)


class DatabaseEnvironment(Environment):
    """Requests to one of six domains.

    Args:
        arguments: "TIER" or "TIER:OPTION,OPTION"; the tier is "easy", "medium" or "hard", "" is
            easy. The options are "user" and "confirm".

    Raises:
        ValueError: another tier or option.
    """

    def __init__(self, arguments: str):
        tier, _, options = arguments.partition(":")
        self.tier, _ = choose_tier("database", tier, CALLS)
        self.options = tuple(filter(None, options.split(",")))
        require(
            {*self.options} <= {*RULES},
            f"database:{arguments}: the options are {', '.join(RULES)}",
        )
        self.name = f"database:{arguments}" if arguments else "database"

    def draw(self, rng: random.Random) -> Task:
        """Draw a domain and a walk over its tools; with "confirm", one that changes the data."""
        while True:
            data = {"domain": rng.randrange(len(_domains())), "seed": rng.getrandbits(31)}
            reference = _sample(data["domain"], data["seed"], self.tier)
            if reference.writes or "confirm" not in self.options:
                break
        request = reference.request
        if "user" in self.options:
            request = User(reference, data["seed"]).say(()) or ""
        question = " ".join([request, *(RULES[option] for option in self.options)])
        name = f"database-{data['domain']}-{data['seed']}"
        return Task(name, question, "", self.name, self.name, environment=json.dumps(data))

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return the tools of the task's domain, and those of the options."""
        own = [api.tool for api in self._reference(task).domain.apis.values()]
        talk = {"user": ASK, "confirm": CONFIRM}
        return own + [talk[option] for option in self.options]

    def reset(self, task: Task) -> Episode:
        """Open the domain's database in its initial state."""
        return _Database(self._reference(task), self._user(task), "confirm" in self.options)

    def solve(self, task: Task) -> Solution:
        """Make the reference calls; ask for what the user omits and confirm changes."""
        reference, user = self._reference(task), self._user(task)
        for call in reference.calls:
            if user is not None and user.missing:
                name = spoken(user.missing)
                message = f"Which {name}?"
                yield f"I was not told the {name}.", ToolCall(ASK.name, {"message": message})
                user.say([{"content": message}])
            if "confirm" in self.options and _is_change(reference, call):
                change = _describe(reference, call)
                yield "This changes the data.", ToolCall(CONFIRM.name, {"change": change})
            yield f"Use {call.name}.", call
            if user is not None:
                yield "That is done.", ToolCall(ASK.name, {"message": "Done."})
                user.say([{"content": "Done."}])
        return "All is done.", "Done."

    def _reference(self, task: Task) -> ToolTask:
        data = json.loads(task.environment)
        return _sample(data["domain"], data["seed"], self.tier)

    def _user(self, task: Task) -> User | None:
        """Return the user after the opening, which is the question."""
        if "user" not in self.options:
            return None
        user = User(self._reference(task), json.loads(task.environment)["seed"])
        user.say(())
        return user


def _is_change(reference: ToolTask, call: ToolCall) -> bool:
    return reference.domain.apis[call.name].op not in READS


def _describe(reference: ToolTask, call: ToolCall) -> str:
    """Return a call in words: "remove loan with loan id 4"."""
    api = reference.domain.apis[call.name]
    values = [f"{spoken(name)} {value}" for name, value in call.arguments.items()]
    return f"{OPS[api.op].said} {api.table} with {', '.join(values)}"


def _is_description(text: str, reference: ToolTask, call: ToolCall) -> bool:
    """Return True if a text describes this call alone: its verb, table and exactly its values."""
    api = reference.domain.apis[call.name]
    words = re.findall("[a-z]+", text.casefold())
    verbs = [op for op, operator in OPS.items() if operator.said.split()[0] in words]
    values = sorted(VALUE.findall(text.casefold()))
    return verbs == [api.op] and api.table in words and values == sorted(call.arguments.values())


class _Database(Episode):
    """A database; `made` are the successful calls, `agreed` the confirmed changes to come."""

    def __init__(self, reference: ToolTask, user: User | None, must_confirm: bool):
        self.reference = reference
        self.user = user
        self.must_confirm = must_confirm
        self.made: list[ToolCall] = []
        self.agreed: list[ToolCall] = []
        self.has_unconfirmed = False
        self.has_left = False
        self.state: sqlite3.Connection = reference.domain.open(reference.seed)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        if name == ASK.name:
            return Observation(self._reply(arguments["message"]))
        if name == CONFIRM.name:
            return Observation(self._agree(arguments["change"]))
        ok, text = self.reference.domain.call(self.state, name, arguments)
        if ok:
            call = ToolCall(name, dict(arguments))
            self.made.append(call)
            if self.must_confirm and _is_change(self.reference, call):
                if call in self.agreed:
                    self.agreed.remove(call)  # for one call
                else:
                    self.has_unconfirmed = True
        return Observation(text, ok)

    def verify(self, answer: str | None) -> float:
        """1 if the rollout ended with an answer, every change was confirmed where necessary, and
        state or calls are those of the reference.
        """
        if answer is None or self.has_unconfirmed:
            return 0.0
        if self.reference.writes:
            return float(self.reference.domain.hash(self.state) == self.reference.final_hash)
        return float(tuple(self.made) == self.reference.calls)

    def _reply(self, message: str) -> str:
        """Return the user's next wish or the argument that the message asks for."""
        said = None
        if self.user is not None and not self.has_left:
            said = self.user.say([{"content": message}])
        self.has_left = said is None
        return THANKS if said is None else said

    def _agree(self, change: str) -> str:
        """Return the user's agreement if the change is one of the wishes so far."""
        last = len(self.reference.calls) if self.user is None else self.user.step + 1
        for call in self.reference.calls[:last]:
            if _is_change(self.reference, call) and _is_description(change, self.reference, call):
                self.agreed.append(call)
                return "Yes."
        return "No, I did not ask for that."

    def close(self) -> None:
        self.state.close()
