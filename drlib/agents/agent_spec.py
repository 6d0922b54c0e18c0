"""An agent by one line of text, as settings and commands name it.

    react
    resum:summarise=policy,every=5
    heavy:n=8,merge=vote,researcher=react
    iterresearch+resum:summarise=policy

Before the colon stands the registered name, behind it are keyword arguments of its class: numbers,
`none`, words. Some of them are words for what a line cannot hold: `summarise=policy` and
`summarise=thoughts` (ReSum's), `generate=policy` and `generate=reader` (s3's), a researcher's name
(Heavy's). Agents joined by + share the tasks, one each in turn.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import yaml

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.resum import join_thoughts
from drlib.agents.rollout_state import Limits
from drlib.agents.s3 import answer_from_facts
from drlib.chat.template import ChatIds
from drlib.models.engine import Engine
from drlib.registry import suggest_name
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Trajectory

WORDS = {
    "summarise": {"policy": None, "thoughts": join_thoughts},
    "generate": {"policy": None, "reader": answer_from_facts},
}


class Several:
    """Agents of one engine that share the tasks: each takes every `len(agents)`-th of a run."""

    def __init__(self, agents: Sequence[Agent]):
        self.agents = list(agents)
        self.engine = agents[0].engine
        self.toolbox = agents[0].toolbox

    def run(self, tasks: Sequence[Task], *, samples: int = 1, keys=None, **how) -> list[Trajectory]:
        """As `Agent.run`, the trajectories in the order of the tasks."""
        keys = list(range(len(tasks))) if keys is None else list(keys)
        of_task = {}
        for number, agent in enumerate(self.agents):
            mine = range(number, len(tasks), len(self.agents))
            asked = [tasks[i] for i in mine]
            done = agent.run(asked, samples=samples, keys=[keys[i] for i in mine], **how)
            of_task |= {i: done[at * samples : (at + 1) * samples] for at, i in enumerate(mine)}
        return [trajectory for i in range(len(tasks)) for trajectory in of_task[i]]


def create_agent(
    line: str,
    engine: Engine,
    toolbox: Toolbox,
    chat: ChatIds | None = None,
    limits: Limits | None = None,
    system: str | None = None,
) -> Agent | Several:
    """The agent of `line`; ValueError for a name or an argument that there is not."""
    how = (engine, toolbox, chat, limits, system)
    agents = [_one(part, how) for part in line.split("+")]
    return agents[0] if len(agents) == 1 else Several(agents)


def _one(line: str, how: tuple) -> Agent:
    name, _, rest = line.partition(":")
    kind = AGENTS[name]
    options = {}
    for pair in rest.split(",") if rest else ():
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"agent {line!r}: {pair!r} is not key=value")
        options[key] = _value(line, key, value, how)
    known = _options_of(kind)
    for key in options:
        if key not in known:
            raise ValueError(f"agent {name!r} has no option {key!r}: {suggest_name(key, known)}")
    return kind(*how, **options)


def _value(line: str, key: str, value: str, how: tuple) -> Any:
    if key in WORDS:
        if value not in WORDS[key]:
            raise ValueError(f"agent {line!r}: {key} is one of {tuple(WORDS[key])}")
        return WORDS[key][value]
    if key == "researcher":
        return _one(value, how)
    return None if value == "none" else yaml.safe_load(value)


def _options_of(kind: type[Agent]) -> list[str]:
    """The keyword arguments of an agent's class that a line can give."""
    parameters = inspect.signature(kind).parameters.values()
    return [p.name for p in parameters if p.kind == p.KEYWORD_ONLY]
