"""Tool use over databases (AgentScaler, arXiv 2509.13311): the final state is the verification.

`database:easy` (one or two calls), `database:medium` (two to four), `database:hard` (three to
eight); "" is easy. A task is a user's request in one of six domains, for example a library, with
the domain's tools over a fresh database. A request that writes is solved if the database ends in
the same state as after the reference calls; one that only reads, if the successful calls are the
reference calls.
"""

import json
import random
import sqlite3
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from drlib.chat.tool_calls import ToolCall
from drlib.demonstrations.agentscaler import (
    Domain,
    ToolTask,
    find_domains,
    sample_task,
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
from drlib.tools.definitions import Tool

CALLS = {"easy": (1, 2), "medium": (2, 4), "hard": (3, 8)}  # fewest and most reference calls


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
        arguments: "easy", "medium" or "hard"; "" is easy.

    Raises:
        ValueError: another tier.
    """

    def __init__(self, arguments: str):
        self.tier, self.name = choose_tier("database", arguments, CALLS)

    def draw(self, rng: random.Random) -> Task:
        """Draw a domain and a walk over its tools."""
        data = {"domain": rng.randrange(len(_domains())), "seed": rng.getrandbits(31)}
        request = _sample(data["domain"], data["seed"], self.tier).request
        name = f"database-{data['domain']}-{data['seed']}"
        return Task(name, request, "", self.name, self.name, environment=json.dumps(data))

    def tools(self, task: Task) -> Sequence[Tool]:
        """Return the tools of the task's domain."""
        return [api.tool for api in self._reference(task).domain.apis.values()]

    def reset(self, task: Task) -> Episode:
        """Open the domain's database in its initial state."""
        return _Database(self._reference(task))

    def solve(self, task: Task) -> Solution:
        """Make the reference calls."""
        for call in self._reference(task).calls:
            yield f"Use {call.name}.", call
        return "All is done.", "Done."

    def _reference(self, task: Task) -> ToolTask:
        data = json.loads(task.environment)
        return _sample(data["domain"], data["seed"], self.tier)


class _Database(Episode):
    """A database; `made` are the successful calls."""

    def __init__(self, reference: ToolTask):
        self.reference = reference
        self.made: list[ToolCall] = []
        self.state: sqlite3.Connection = reference.domain.open(reference.seed)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        ok, text = self.reference.domain.call(self.state, name, arguments)
        if ok:
            self.made.append(ToolCall(name, dict(arguments)))
        return Observation(text, ok)

    def verify(self, answer: str | None) -> float:
        """1 if the rollout ended with an answer and state or calls are those of the reference."""
        if answer is None:
            return 0.0
        if self.reference.writes:
            return float(self.reference.domain.hash(self.state) == self.reference.final_hash)
        return float(tuple(self.made) == self.reference.calls)

    def close(self) -> None:
        self.state.close()
