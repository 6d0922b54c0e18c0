"""Agents by one line of text, as settings and commands name them.

    react
    resum:summarise=policy,every=5
    heavy:n=8,merge=vote,researcher=react
    iterresearch+resum:summarise=policy

The registered name, a colon, and keyword arguments of its class: numbers, `none`, words. Some words
name objects: `summarise=policy`, `summarise=thoughts` and `summarise=facts` (ReSum, AgentFold),
`generate=policy` and `generate=reader` (s3), and a researcher's name (Heavy, BrowseConf). Agents
joined by + share the tasks in turn.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import yaml

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.resum import extract_facts, join_thoughts
from drlib.agents.rollout_state import Limits
from drlib.agents.s3 import answer_from_facts
from drlib.chat.template import ChatIds
from drlib.models.engine import Engine
from drlib.registry import suggest_name
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Trajectory

# option values that a text cannot hold otherwise
WORDS: dict[str, dict[str, Any]] = {
    "summarise": {"policy": None, "thoughts": join_thoughts, "facts": extract_facts},
    "generate": {"policy": None, "reader": answer_from_facts},
}


class AgentMixture:
    """Agents of one engine that share the tasks: each takes every `len(agents)`-th task."""

    def __init__(self, agents: Sequence[Agent]):
        self.agents = list(agents)
        self.engine = agents[0].engine
        self.toolbox = agents[0].toolbox

    def run(
        self, tasks: Sequence[Task], *, samples: int = 1, keys=None, **arguments
    ) -> list[Trajectory]:
        """Run all tasks as `Agent.run`; the trajectories are in the order of the tasks."""
        keys = list(range(len(tasks))) if keys is None else list(keys)
        by_task = {}
        for number, agent in enumerate(self.agents):
            indices = range(number, len(tasks), len(self.agents))
            trajectories = agent.run(
                [tasks[i] for i in indices],
                samples=samples,
                keys=[keys[i] for i in indices],
                **arguments,
            )
            by_task |= {
                i: trajectories[n * samples : (n + 1) * samples] for n, i in enumerate(indices)
            }
        return [trajectory for i in range(len(tasks)) for trajectory in by_task[i]]


def create_agent(
    spec: str,
    engine: Engine,
    toolbox: Toolbox,
    chat: ChatIds | None = None,
    limits: Limits | None = None,
    system: str | None = None,
) -> Agent | AgentMixture:
    """Create the agent described by `spec`.

    Args:
        spec: such as "heavy:n=8,merge=vote".
        engine, toolbox, chat, limits, system: arguments of `Agent`.

    Raises:
        ValueError: unknown agent or option.
    """
    arguments = (engine, toolbox, chat, limits, system)
    agents = [_create_agent(part, arguments) for part in spec.split("+")]
    return agents[0] if len(agents) == 1 else AgentMixture(agents)


def _create_agent(spec: str, arguments: tuple) -> Agent:
    name, _, rest = spec.partition(":")
    kind = AGENTS[name]
    options = {}
    for pair in rest.split(",") if rest else ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"agent {spec!r}: {pair!r} is not key=value")
        options[key] = _parse_value(spec, key, value, arguments)
    known = _option_names(kind)
    for key in options:
        if key not in known:
            raise ValueError(f"agent {name!r} has no option {key!r}: {suggest_name(key, known)}")
    return kind(*arguments, **options)


def _parse_value(spec: str, key: str, value: str, arguments: tuple) -> Any:
    if key in WORDS:
        if value not in WORDS[key]:
            raise ValueError(f"agent {spec!r}: {key} must be one of {tuple(WORDS[key])}")
        return WORDS[key][value]
    if key == "researcher":
        return _create_agent(value, arguments)
    return None if value == "none" else yaml.safe_load(value)


def _option_names(kind: type[Agent]) -> list[str]:
    """Return the keyword-only arguments of an agent's class."""
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
