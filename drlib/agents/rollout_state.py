"""What an agent may use of one task, and what it has used: its contexts, its calls, its limits."""

import json
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drlib.agents.context import Context, IdContext, MessageContext
from drlib.chat.template import ChatIds
from drlib.chat.tool_calls import Answer, FormatError, ToolCall, parse
from drlib.models.engine import Completion, NewContext
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.trajectory import NO_RECORD, Termination, ToolResult, Trajectory
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


class RolloutStopped(Exception):
    """Ends an attempt without an answer; agents need not catch it."""

    def __init__(self, why: Termination):
        super().__init__(why)
        self.why = why


@dataclass
class RolloutState:
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

    def submit(self, work: Callable, *arguments) -> Future:
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
        RolloutStopped: calls have run out, or this one was made too often."""
        if len(self.results) >= self.limits.calls:
            raise RolloutStopped(Termination.TURNS)
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
            raise RolloutStopped(Termination.LOOP)

    def require_budget(self) -> None:
        """RolloutStopped: no further turn may be asked for."""
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
                raise RolloutStopped(why)


Steps = Generator[Context | Future, Any, str | None]


LAST_CALL = "The limit is reached. Give the answer that what you know supports best."


# what happened ("turn", "result" or "end"), the attempt, and the turn's text, the `ToolResult` or
# the `Trajectory`
Watch = Callable[[str, RolloutState, Any], None]


class Work:
    """One attempt while it runs: goes on with the agent until it waits for somebody."""

    def __init__(self, steps: Steps, at: RolloutState, version: int, watch: Watch | None):
        self.steps = steps
        self.at = at
        self.version = version  # of the policy
        self.context: Context | None = None  # that the engine reads
        self.forced: Termination | None = None  # why the turn that is asked for is the last one
        self.watch = watch
        self.record: Trajectory | None = None  # once the attempt is over

    def open(self) -> list | None:
        """The first prompt; None where the attempt has ended without one."""
        reply = self._go(None)
        while isinstance(reply, Future):
            reply = reply.result()
        return reply.prompt if isinstance(reply, NewContext) else reply

    def respond(self, done: Completion) -> list | NewContext | Future | None:
        """What the engine does after a turn: go on behind these ids, begin anew with others, wait,
        or nothing more."""
        if done.finish_reason == "context" and not done.size:
            # what was to be read did not fit, and was not
            return self._end(Termination.LENGTH)
        if done.finish_reason == "fault":
            self.at.notes["fault"] = done.fault
            return self._end(Termination.ENV_FAULT)
        text = self.context.said(done)
        self.at.count(done)
        self._tell("turn", text)
        turn = Turn(text, parse(text))
        if self.forced is not None:
            answered = done.finish_reason == "stop" and isinstance(turn.action, Answer)
            self.at.answer = turn.action.text if answered else None
            return self._end(Termination.ANSWERED if answered else self.forced)
        if done.finish_reason != "stop":
            return self._end(Termination.LENGTH)
        return self._go(turn)

    def _go(self, value) -> list | NewContext | Future | None:
        """Hand `value` to the agent, and do what it asks for."""
        try:
            asked = self.steps.send(value)
            if isinstance(asked, Future):
                return _then(asked, self._take)
            self.at.require_budget()
            return self._speak(asked)
        except StopIteration as finished:
            self.at.answer = finished.value
            answered = finished.value is not None
            return self._end(Termination.ANSWERED if answered else Termination.TURNS)
        except RolloutStopped as stopped:
            return self._stop(stopped.why)

    def _take(self, result) -> list | NewContext | Future | None:
        """The result of a future."""
        if isinstance(result, ToolResult):
            self.at.results.append(result)
            self._tell("result", result)
            if result.env_fault:
                # for the reader; the policy is not asked about it
                self.context.messages.append({"role": "tool", "content": result.text})
                return self._end(Termination.ENV_FAULT)
        return self._go(result)

    def _speak(self, context: Context) -> list | NewContext:
        """The context's new ids, or all of another one's."""
        same = context is self.context
        self.context = context
        ids = context.feed(whole=not same)
        return ids if same else NewContext(list(ids))

    def _stop(self, why: Termination) -> list | None:
        """A limit is reached: the end, or one last turn to answer in."""
        self.steps.close()
        if self.context is None or not self.at.limits.force_answer:
            return self._end(why)
        self.forced = why
        self.at.notes["forced"] = str(why)
        self.context.ask(LAST_CALL)
        return self._speak(self.context)

    def interrupt(self) -> None:
        """End an attempt that still runs; its record says so."""
        if self.record is None:
            self.at.notes["interrupted"] = True
            self._end(Termination.WALL_CLOCK)

    def _end(self, why: Termination) -> None:
        with suppress(ValueError):  # it is at work in another thread, and ends with this turn
            self.steps.close()
        self.at.termination = why
        self.record = self._trajectory()
        self._tell("end", self.record)

    def _tell(self, what: str, value) -> None:
        if self.watch is not None:
            self.watch(what, self.at, value)

    def _trajectory(self) -> Trajectory:
        """The record: all contexts that the policy has spoken in, one behind the other."""
        at = self.at
        spoken = [context.spoken() for context in at.contexts]
        spoken = [parts for parts in spoken if len(parts) > 1] or spoken[:1]
        version = self.version
        ids = [
            np.concatenate([[], *(ids for ids, _ in parts)]).astype(np.int32) for parts in spoken
        ]
        segments = [_segments(at, parts) for parts in spoken if parts]
        numbers = np.repeat(np.arange(len(ids)), np.array([len(some) for some in ids], int))
        columns = _columns([part for parts in spoken for part in parts])
        return Trajectory(
            id=at.name,
            task_id=at.task.id,
            group_id=at.name.rsplit("-", 1)[0],
            world_version=at.task.world,
            policy_version=version,
            segments=np.concatenate([[], *segments]).astype(np.uint8),
            versions=np.where(columns["generated"], version, 0).astype(np.int32),
            routed_experts=_routes(spoken),
            tool_results=at.results,
            termination=at.termination,
            answer=at.answer,
            reward=None,
            reward_parts={},
            messages=[message for context in at.contexts for message in context.messages],
            metadata={"question": at.task.question, "right_answer": at.task.answer}
            | at.usage()
            | at.notes,
            contexts=numbers.astype(np.uint16) if len(ids) > 1 else None,
            **columns,
        )


def _segments(at: RolloutState, parts: list[tuple[list[int], Completion | None]]) -> np.ndarray:
    """The `Segment` of each token of a context."""
    columns = _columns(parts)
    return at.chat.segments(columns["token_ids"], columns["generated"])


def _columns(parts: list[tuple[list[int], Completion | None]]) -> dict[str, np.ndarray]:
    """Token columns of parts that follow each other."""
    pieces = [ids for ids, _ in parts]
    completions = [done for _, done in parts]
    ids = np.concatenate([[], *pieces]).astype(np.int32)
    lengths = [len(piece) for piece in pieces]
    sampled = np.array([done is not None for done in completions], bool)
    generated = np.repeat(sampled, lengths)
    columns = {
        "token_ids": ids,
        "generated": generated,
        "turns": np.repeat(np.cumsum(sampled) - sampled, lengths).astype(np.uint16),
    }
    for name in ("logprobs", "entropies"):
        columns[name] = np.zeros(len(ids), np.float32)
        columns[name][generated] = [x for done in completions if done for x in getattr(done, name)]
    return columns


def _routes(spoken: list[list[tuple[list[int], Completion | None]]]) -> np.ndarray | None:
    """Experts [T, L, k] of the tokens of contexts that follow each other, NO_RECORD for tokens that
    nothing has read (the last one of each context); None of an engine that reports none."""
    reports = [done.routed_experts for parts in spoken for _, done in parts if done is not None]
    known = [routes_TLK for routes_TLK in reports if routes_TLK is not None]
    if not known:
        return None
    found = []
    for parts in spoken:
        end = sum(len(ids) for ids, _ in parts)
        routes_TLK = np.full((end, *known[0].shape[1:]), NO_RECORD, np.uint16)
        # backwards: of a context that was read anew, what the turn was drawn from counts
        for ids, done in reversed(parts):
            if done is not None and done.routed_experts is not None:
                read = end - 1
                routes_TLK[read - len(done.routed_experts) : read] = done.routed_experts
            end -= len(ids)
        found.append(routes_TLK)
    return np.concatenate(found)


def _then(future: Future, go_on) -> Future:
    """A future of `go_on(result)`, in the thread that brings the result."""
    after: Future = Future()

    def finish(done: Future) -> None:
        try:
            after.set_result(go_on(done.result()))
        except BaseException as error:  # noqa: BLE001 - raised where `after` is waited for
            after.set_exception(error)

    future.add_done_callback(finish)
    return after


COUNTS = ("sampled", "processed", "longest", "contexts", "calls")


def count_costs(trajectory: Trajectory) -> dict[str, int]:
    """Tokens sampled; tokens processed (all that stood in its contexts, each once; of a server, as
    it counted prompts and turns); the longest context in tokens (0 of a server's); contexts;
    calls. Of Heavy with its researchers'."""
    usage = trajectory.metadata.get("usage", {})
    lengths = [len(trajectory)]
    if trajectory.contexts is not None:
        lengths = np.bincount(trajectory.contexts).tolist()
    said = usage.get("said_tokens", 0)
    own = {
        "sampled": int(trajectory.generated.sum()) or said,
        "processed": len(trajectory) or usage.get("read_tokens", 0) + said,
        "longest": max(lengths),
        "contexts": len(lengths),
        "calls": len(trajectory.tool_results),
    }
    runs = trajectory.metadata.get("runs")
    if runs is None:
        return own
    if runs["merge"] == "vote":  # nobody merged: the trajectory is one of the runs
        own = dict.fromkeys(COUNTS, 0)
    summed = {name: own[name] + sum(part[name] for part in runs["costs"]) for name in COUNTS}
    longest = max(own["longest"], *(part["longest"] for part in runs["costs"]))
    return summed | {"longest": longest}
