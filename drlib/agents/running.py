"""One attempt while it runs: the engine's callback on one side, the agent's generator on the other.

Whenever the policy has spoken, or a future has its result, the generator goes on until it waits
again. Limits are looked at here, so they hold for every agent; and here the record is written.
"""

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import numpy as np

from drlib.agents.attempt import Attempt, Steps, Stopped, Turn
from drlib.agents.contexts import Context
from drlib.chat.tool_calls import Answer, parse
from drlib.models.engine import Completion, Fresh
from drlib.trajectory import NO_RECORD, Termination, ToolResult, Trajectory

LAST_CALL = "The limit is reached. Give the answer that what you know supports best."


# what happened ("turn", "result" or "end"), the attempt, and the turn's text, the `ToolResult` or
# the `Trajectory`
Watch = Callable[[str, Attempt, Any], None]


class Work:
    """One attempt while it runs: goes on with the agent until it waits for somebody."""

    def __init__(self, steps: Steps, at: Attempt, version: int, watch: Watch | None):
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
        return reply.prompt if isinstance(reply, Fresh) else reply

    def respond(self, done: Completion) -> list | Fresh | Future | None:
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

    def _go(self, value) -> list | Fresh | Future | None:
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
        except Stopped as stopped:
            return self._stop(stopped.why)

    def _take(self, result) -> list | Fresh | Future | None:
        """The result of a future."""
        if isinstance(result, ToolResult):
            self.at.results.append(result)
            self._tell("result", result)
            if result.env_fault:
                # for the reader; the policy is not asked about it
                self.context.messages.append({"role": "tool", "content": result.text})
                return self._end(Termination.ENV_FAULT)
        return self._go(result)

    def _speak(self, context: Context) -> list | Fresh:
        """The context's new ids, or all of another one's."""
        same = context is self.context
        self.context = context
        ids = context.feed(whole=not same)
        return ids if same else Fresh(list(ids))

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


def _segments(at: Attempt, parts: list[tuple[list[int], Completion | None]]) -> np.ndarray:
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
