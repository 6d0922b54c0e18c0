"""What an agent may use of one task, and what it has used: its contexts, its calls, its limits."""

import json
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from drlib.agents.contexts import Context, IdContext, MessageContext
from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import Answer, FormatError, ToolCall
from drlib.models.engine import Completion
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import Termination, ToolResult
from drlib.worlds import World


@dataclass(frozen=True)
class Limits:
    """What one attempt may use; None is no limit.

    calls: of tools, format errors counted; over it, TURNS. turn_tokens, context_tokens: of a turn
    and of a context; over them, LENGTH. turns: of the policy, in all contexts; over it, TURNS.
    tokens: sampled in all turns, and cost: what they and what was read cost, in the currency of the
    engine's prices; over them, LENGTH. seconds: from the first turn on; WALL_CLOCK.
    repeats: how often the same call may follow itself; LOOP. force_answer: whether the policy gets
    a last turn when one of these is reached, though not where a context is full.
    """

    calls: int = 6
    turn_tokens: int = 72
    context_tokens: int = 448
    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    repeats: int | None = None
    force_answer: bool = False


@dataclass(frozen=True)
class Turn:
    """What the policy said: its text and the first action in it."""

    text: str
    action: ToolCall | Answer | FormatError


_BESIDE = ThreadPoolExecutor(8, thread_name_prefix="drlib-agent")


class Stopped(Exception):
    """Ends an attempt without an answer; agents need not catch it."""

    def __init__(self, why: Termination):
        super().__init__(why)
        self.why = why


@dataclass
class Attempt:
    """One task while an agent works at it: what it may use, and what it has used."""

    task: Task
    limits: Limits
    toolbox: Toolbox
    world: World | None
    chat: ChatIds | None
    system: str | None
    name: str
    key: int
    contexts: list[Context] = field(default_factory=list)
    results: list[ToolResult] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)  # of the agent, for `Trajectory.metadata`
    answer: str | None = None
    termination: Termination = Termination.LENGTH
    turns: int = 0
    tokens: int = 0  # sampled
    read: int = 0  # tokens of all prompts, where a server counts them
    cost: float = 0.0
    started: float = field(default_factory=time.monotonic)

    def begin(self, question: str | None = None) -> Context:
        """A new context, which knows nothing of those before; by default of the task's question."""
        question = self.task.question if question is None else question
        if self.chat is None:
            context = MessageContext(question, self.system)
        else:
            context = IdContext(self.chat, question, self.system)
        self.contexts.append(context)
        return context

    def keep(self, context: Context) -> Context:
        """The context, in the record too."""
        if context not in self.contexts:
            self.contexts.append(context)
        return context

    def later(self, work: Callable, *arguments) -> Future:
        """A future of `work(*arguments)`, beside whatever else runs."""
        return _BESIDE.submit(work, *arguments)

    def count(self, done: Completion) -> None:
        """A turn of the policy."""
        self.turns += 1
        self.tokens += done.size
        self.read += done.prompt_tokens
        self.cost += done.cost

    def usage(self) -> dict[str, dict]:
        """What a server counted, for the record; of token ids the record itself tells."""
        if self.chat is not None:
            return {}
        seconds = round(time.monotonic() - self.started, 3)
        counts = {"turns": self.turns, "read_tokens": self.read, "said_tokens": self.tokens}
        return {"usage": counts | {"cost": self.cost, "seconds": seconds}}

    def act(self, action: ToolCall | FormatError) -> Future:
        """A future of what the environment says to the action; a format error is a failed call.
        Stopped: calls have run out, or this one was made too often."""
        if len(self.results) >= self.limits.calls:
            raise Stopped(Termination.TURNS)
        if isinstance(action, ToolCall):
            self._require_progress(action)
            return self.toolbox.submit(action.name, action.arguments, world=self.world)
        refused: Future = Future()
        refused.set_result(ToolResult("format", {}, f"Error: {action.reason}", False, "format"))
        return refused

    def _require_progress(self, action: ToolCall) -> None:
        """LOOP when the last `repeats` calls were this one."""
        most = self.limits.repeats
        if most is None or len(self.results) < most:
            return
        before = {(r.tool, json.dumps(r.arguments, sort_keys=True)) for r in self.results[-most:]}
        if before == {(action.name, json.dumps(action.arguments, sort_keys=True))}:
            raise Stopped(Termination.LOOP)

    def require_budget(self) -> None:
        """Stopped: no further turn may be asked for."""
        limits = self.limits
        over = {
            Termination.TURNS: limits.turns is not None and self.turns >= limits.turns,
            Termination.LENGTH: (limits.tokens is not None and self.tokens >= limits.tokens)
            or (limits.cost is not None and self.cost >= limits.cost),
            Termination.WALL_CLOCK: limits.seconds is not None
            and time.monotonic() - self.started >= limits.seconds,
        }
        for why, reached in over.items():
            if reached:
                raise Stopped(why)


Steps = Generator[Context | Future, Any, str | None]
