"""State of one rollout: limits, contexts, tool calls, usage, and the loop that runs the agent.

`RolloutState` is the agent's interface. `RolloutRunner` connects the engine's callback to the
agent's generator: after each turn or future it advances the generator to its next request, enforces
the limits, and finally writes the trajectory.
"""

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
from drlib.chat.tool_calls import Answer, FormatError, ToolCall, parse, parse_native
from drlib.models.engine import Completion, NewContext
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.tools.episode_toolbox import EpisodeToolbox, Verification
from drlib.trajectory import NO_RECORD, Segment, Termination, ToolResult, Trajectory
from drlib.worlds import World


@dataclass(frozen=True)
class Limits:
    """Limits of one rollout; None is no limit.

    Args:
        calls: tool calls, format errors included; then TURNS.
        turn_tokens: tokens per turn; then LENGTH.
        context_tokens: tokens per context; then LENGTH.
        answer_at_tokens: tokens of a context from which no further turn is requested; then LENGTH.
            Below `context_tokens`, it leaves room for the last turn of `force_answer`.
        turns: policy turns in all contexts; then TURNS.
        tokens: sampled tokens in all turns; then LENGTH.
        cost: in the currency of the engine's prices; then LENGTH.
        seconds: from the request of the first turn, or from its end with an engine that does not
            report the time of a turn; then WALL_CLOCK. Waiting for a free engine does not count.
        repeats: consecutive repetitions of one call; then LOOP.
        format_errors: consecutive turns that could not be parsed; then FORMAT.
        format_help: text that follows the first format error in a row, with the expected form.
        force_answer: request a last turn with the answer when a limit is reached, unless a context
            is full or the turns were unreadable.
    """

    calls: int = 6
    turn_tokens: int = 72
    context_tokens: int = 448
    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None
    seconds: float | None = None
    repeats: int | None = None
    format_errors: int | None = None
    format_help: str = ""
    force_answer: bool = False
    answer_at_tokens: int | None = None


@dataclass(frozen=True)
class Turn:
    """The policy's turn: its text and the first action in it; `others`: parallel native calls.

    is_cut: it reached a token limit, in a context other than `RolloutState.lead`.
    """

    text: str
    action: ToolCall | Answer | FormatError
    others: tuple[ToolCall | Answer | FormatError, ...] = ()
    is_cut: bool = False


_BACKGROUND = ThreadPoolExecutor(8, thread_name_prefix="drlib-agent")


class RolloutStopped(Exception):
    """Ends a rollout without an answer; agents need not catch it."""

    def __init__(self, reason: Termination):
        super().__init__(reason)
        self.reason = reason


@dataclass
class RolloutState:
    """State of a running rollout: resources the agent may use, and their usage so far."""

    task: Task
    limits: Limits
    toolbox: Toolbox | EpisodeToolbox
    world: World | None
    chat: ChatIds | None
    system: str | None
    has_native_tools: bool
    name: str
    key: int
    contexts: list[Context] = field(default_factory=list)
    # the context that answers, if others work for it: the rollout ends at its token limits only,
    # and the forced answer is requested in it; None: the last one
    lead: Context | None = None
    results: list[ToolResult] = field(default_factory=list)
    notes: dict[str, Any] = field(
        default_factory=dict
    )  # written by the agent, for `Trajectory.metadata`
    answer: str | None = None
    termination: Termination = Termination.LENGTH
    turns: int = 0
    tokens: int = 0  # sampled
    prompt_tokens: int = 0  # as counted by a server
    cost: float = 0.0
    started: float | None = None  # monotonic time of the first turn

    def begin(self, question: str | None = None, system: str | None = None) -> Context:
        """Start a new, empty context; by default with the task's question and system prompt."""
        question = self.task.question if question is None else question
        system = self.system if system is None else system
        if self.chat is None:
            context = MessageContext(question, system)
        else:
            context = IdContext(self.chat, question, system)
        self.contexts.append(context)
        return context

    def add_context(self, context: Context) -> Context:
        """Add a context to the record and return it."""
        if context not in self.contexts:
            self.contexts.append(context)
        return context

    def submit(self, work: Callable, *arguments) -> Future:
        """Run `work(*arguments)` in a background thread and return its future."""
        return _BACKGROUND.submit(work, *arguments)

    def count(self, completion: Completion) -> None:
        """Count the usage of a policy turn."""
        if self.started is None:
            self.started = time.monotonic() - completion.seconds
        self.turns += 1
        self.tokens += completion.size
        self.prompt_tokens += completion.prompt_tokens
        self.cost += completion.cost

    @property
    def seconds(self) -> float:
        """Time since the first turn, 0 before."""
        return 0.0 if self.started is None else time.monotonic() - self.started

    def usage(self) -> dict[str, dict]:
        """Return the server's token counts for the record, {} for engines that read ids."""
        if self.chat is not None:
            return {}
        counts = {
            "turns": self.turns,
            "read_tokens": self.prompt_tokens,
            "said_tokens": self.tokens,
        }
        return {"usage": counts | {"cost": self.cost, "seconds": round(self.seconds, 3)}}

    def act(self, action: ToolCall | FormatError) -> Future:
        """Execute the action and return a future of its `ToolResult`.

        A format error is a failed call.

        Raises:
            RolloutStopped: the limit of calls, repetitions or format errors is reached.
        """
        self.require_call(action)
        if isinstance(action, ToolCall):
            return self.toolbox.submit(action.name, action.arguments, world=self.world)
        text = f"Error: {action.reason}"
        is_first = not self.results or self.results[-1].tool != "format"
        if is_first and self.limits.format_help:
            text += f"\n{self.limits.format_help}"
        rejected: Future = Future()
        rejected.set_result(ToolResult("format", {}, text, False, "format"))
        return rejected

    def require_call(self, action: ToolCall | FormatError) -> None:
        """Raise RolloutStopped as `act`, which includes it; for calls that an agent executes."""
        if len(self.results) >= self.limits.calls:
            raise RolloutStopped(Termination.TURNS)
        if isinstance(action, ToolCall):
            self._require_progress(action)
        else:
            self._require_format()

    def _require_format(self) -> None:
        """Stop with FORMAT if the last turns, with this one, could not be parsed."""
        most = self.limits.format_errors
        if most is None or len(self.results) < most - 1:
            return
        if all(result.tool == "format" for result in self.results[len(self.results) - most + 1 :]):
            raise RolloutStopped(Termination.FORMAT)

    def _require_progress(self, action: ToolCall) -> None:
        """Stop with LOOP if the last `repeats` calls equal this one."""
        repeats = self.limits.repeats
        if repeats is None or len(self.results) < repeats:
            return
        before = {
            (r.tool, json.dumps(r.arguments, sort_keys=True)) for r in self.results[-repeats:]
        }
        if before == {(action.name, json.dumps(action.arguments, sort_keys=True))}:
            raise RolloutStopped(Termination.LOOP)

    def require_budget(self, context: Context) -> None:
        """Raise RolloutStopped if no further turn in the context is allowed."""
        limits = self.limits
        longest = limits.answer_at_tokens
        over = {
            Termination.TURNS: limits.turns is not None and self.turns >= limits.turns,
            Termination.LENGTH: (limits.tokens is not None and self.tokens >= limits.tokens)
            or (limits.cost is not None and self.cost >= limits.cost)
            or (longest is not None and len(context) >= longest),
            Termination.WALL_CLOCK: limits.seconds is not None and self.seconds >= limits.seconds,
        }
        for reason, reached in over.items():
            if reached:
                raise RolloutStopped(reason)


Steps = Generator[Context | Future, Any, str | None]


LAST_CALL = "The limit is reached. Give the answer that what you know supports best."


# callback(event, state, value): "turn" with its text, "result" with the `ToolResult`, or "end" with
# the `Trajectory`
Watch = Callable[[str, RolloutState, Any], None]


class RolloutRunner:
    """Advances an agent's generator until it waits for the engine or a future."""

    def __init__(self, steps: Steps, state: RolloutState, version: int, watch: Watch | None):
        self.steps = steps
        self.state = state
        self.version = version  # version of the policy
        self.context: Context | None = None  # last one sent to the engine
        self.forced: Termination | None = None  # reason of the forced last turn
        self.watch = watch
        self.record: Trajectory | None = None  # set when the rollout has ended

    def open(self) -> list | None:
        """Return the first prompt; None if the rollout has ended without one."""
        reply = self._advance(None)
        while isinstance(reply, Future):
            reply = reply.result()
        return reply.prompt if isinstance(reply, NewContext) else reply

    def respond(self, completion: Completion) -> list | NewContext | Future | None:
        """Process a policy turn and return the reply for the engine.

        Ids to append, a new context, a future of one of these, or None at the end.
        """
        is_lead = self.state.lead in (None, self.context)
        if completion.finish_reason == "context" and not completion.size and is_lead:
            # the reply did not fit and was not read
            return self._end(Termination.LENGTH)
        if completion.finish_reason == "fault":
            self.state.notes["fault"] = completion.fault
            return self._end(Termination.ENV_FAULT)
        text = self.context.add_turn(completion)
        self.state.count(completion)
        self._notify("turn", text)
        actions = parse_native(text) if self.state.has_native_tools else [parse(text)]
        is_cut = completion.finish_reason != "stop"
        turn = Turn(text, actions[0], tuple(actions[1:]), is_cut)
        if self.forced is not None:
            answered = not is_cut and isinstance(turn.action, Answer)
            self.state.answer = turn.action.text if answered else None
            return self._end(Termination.ANSWERED if answered else self.forced)
        if is_cut and is_lead:
            return self._end(Termination.LENGTH)
        return self._advance(turn)

    def _advance(self, value) -> list | NewContext | Future | None:
        """Send `value` to the agent and execute its next request."""
        try:
            request = self.steps.send(value)
            if isinstance(request, Future):
                return _then(request, self._accept_result)
            self.state.require_budget(request)
            return self._request_turn(request)
        except StopIteration as finished:
            self.state.answer = finished.value
            answered = finished.value is not None
            return self._end(Termination.ANSWERED if answered else Termination.TURNS)
        except RolloutStopped as stopped:
            return self._stop(stopped.reason)

    def _accept_result(self, result) -> list | NewContext | Future | None:
        """Process the result of a future."""
        if isinstance(result, ToolResult):
            self.state.results.append(result)
            self._notify("result", result)
            if result.env_fault:
                # recorded for analysis; the policy does not read it
                self.context.messages.append({"role": "tool", "content": result.text})
                return self._end(Termination.ENV_FAULT)
        return self._advance(result)

    def _request_turn(self, context: Context) -> list | NewContext:
        """Return the context's unread ids, or all ids of another context."""
        same = context is self.context
        self.context = context
        ids = context.take_unread(whole=not same)
        return ids if same else NewContext(list(ids))

    def _stop(self, reason: Termination) -> list | NewContext | Future | None:
        """Stop at a limit, or request one last turn with the answer."""
        self.steps.close()
        is_unreadable = reason is Termination.FORMAT  # the last turn would be, too
        if self.context is None or is_unreadable or not self.state.limits.force_answer:
            return self._end(reason)
        self.forced = reason
        self.state.notes["forced"] = str(reason)
        context = self.state.lead or self.context
        context.add_user(LAST_CALL)
        return self._request_turn(context)

    def interrupt(self) -> None:
        """End a running rollout; its record is marked as interrupted."""
        if self.record is None:
            self.state.notes["interrupted"] = True
            self._end(Termination.WALL_CLOCK)

    def _end(self, reason: Termination) -> Future | None:
        """Verify the end, write the record and return None, the engine's signal to stop."""
        with suppress(ValueError):  # the generator is running in another thread
            self.steps.close()
        self.state.termination = reason
        toolbox = self.state.toolbox
        if not isinstance(toolbox, EpisodeToolbox):
            self._write()
            return None
        if reason is Termination.ENV_FAULT or self.state.notes.get("interrupted"):
            toolbox.close()
            self._write()
            return None
        return _then(toolbox.submit_verification(self.state.answer), self._accept_verification)

    def _accept_verification(self, verification: Verification) -> None:
        """Record the score of the task's environment, or its fault."""
        if self.record is not None:  # interrupted meanwhile
            return
        if verification.score is None:
            self.state.notes["fault"] = verification.fault
            self.state.termination = Termination.ENV_FAULT
        else:
            self.state.notes["verification"] = {"score": verification.score}
        self._write()

    def _write(self) -> None:
        """Write the record."""
        self.record = self._trajectory()
        self._notify("end", self.record)

    def _notify(self, event: str, value) -> None:
        if self.watch is not None:
            self.watch(event, self.state, value)

    def _trajectory(self) -> Trajectory:
        """Build the record: all contexts with a policy turn, concatenated."""
        state = self.state
        recorded = [context.recorded_parts() for context in state.contexts]
        recorded = [parts for parts in recorded if len(parts) > 1] or recorded[:1]
        version = self.version
        ids = [
            np.concatenate([[], *(ids for ids, _ in parts)]).astype(np.int32) for parts in recorded
        ]
        segments = [_segments(state, parts) for parts in recorded if parts]
        numbers = np.repeat(
            np.arange(len(ids)), np.array([len(context_ids) for context_ids in ids], int)
        )
        columns = _columns([part for parts in recorded for part in parts], version)
        return Trajectory(
            id=state.name,
            task_id=state.task.id,
            group_id=state.name.rsplit("-", 1)[0],
            world_version=state.task.world,
            policy_version=version,
            segments=np.concatenate([[], *segments]).astype(np.uint8),
            routed_experts=_routes(recorded),
            tool_results=state.results,
            termination=state.termination,
            answer=state.answer,
            reward=None,
            reward_parts={},
            messages=[message for context in state.contexts for message in context.messages],
            metadata={"question": state.task.question, "right_answer": state.task.answer}
            | state.usage()
            | state.notes,
            contexts=numbers.astype(np.uint16) if len(ids) > 1 else None,
            **columns,
        )


def _segments(state: RolloutState, parts: list[tuple[list[int], Completion | None]]) -> np.ndarray:
    """Return the `Segment` of each token of a context."""
    columns = _columns(parts, 0)
    segments = state.chat.segments(columns["token_ids"], columns["generated"])
    if getattr(state.chat, "example", ()):  # its turns are part of the prompt
        prompt = segments[: len(parts[0][0])]
        prompt[prompt != Segment.TEMPLATE] = Segment.PROMPT
    return segments


def _columns(
    parts: list[tuple[list[int], Completion | None]], version: int
) -> dict[str, np.ndarray]:
    """Return the token columns of consecutive parts.

    Args:
        version: of the policy, for completions that do not report it.
    """
    pieces = [ids for ids, _ in parts]
    completions = [completion for _, completion in parts]
    ids = np.concatenate([[], *pieces]).astype(np.int32)
    lengths = [len(piece) for piece in pieces]
    sampled = np.array([completion is not None for completion in completions], bool)
    generated = np.repeat(sampled, lengths)
    columns = {
        "token_ids": ids,
        "generated": generated,
        "turns": np.repeat(np.cumsum(sampled) - sampled, lengths).astype(np.uint16),
    }
    for name in ("logprobs", "entropies"):
        columns[name] = np.zeros(len(ids), np.float32)
        columns[name][generated] = [
            x for completion in completions if completion for x in getattr(completion, name)
        ]
    columns["versions"] = np.zeros(len(ids), np.int32)
    columns["versions"][generated] = [
        x
        for completion in completions
        if completion
        for x in completion.versions or [version] * len(completion.token_ids)
    ]
    return columns


def _routes(recorded: list[list[tuple[list[int], Completion | None]]]) -> np.ndarray | None:
    """Return the experts [T, L, k] of the tokens of consecutive contexts.

    NO_RECORD for unread tokens (the last of each context); None if the engine reports no routes.
    """
    reports = [
        completion.routed_experts
        for parts in recorded
        for _, completion in parts
        if completion is not None
    ]
    known = [routes_TLK for routes_TLK in reports if routes_TLK is not None]
    if not known:
        return None
    routes = []
    for parts in recorded:
        end = sum(len(ids) for ids, _ in parts)
        routes_TLK = np.full((end, *known[0].shape[1:]), NO_RECORD, np.uint16)
        # backwards: if a context was read again, use the routes that the turn was sampled with
        for ids, completion in reversed(parts):
            if completion is not None and completion.routed_experts is not None:
                read = end - 1
                routes_TLK[read - len(completion.routed_experts) : read] = completion.routed_experts
            end -= len(ids)
        routes.append(routes_TLK)
    return np.concatenate(routes)


def _then(future: Future, function) -> Future:
    """Return a future of `function(result)`, run in the thread that sets the result.

    If the function returns a future, its result is the result.
    """
    after: Future = Future()

    def finish(finished: Future) -> None:
        try:
            value = function(finished.result())
            if isinstance(value, Future):
                _then(value, after.set_result).add_done_callback(_raise_in(after))
            else:
                after.set_result(value)
        except BaseException as error:  # noqa: BLE001 - raised by after.result()
            after.set_exception(error)

    future.add_done_callback(finish)
    return after


def _raise_in(after: Future) -> Callable[[Future], None]:
    """Return a callback that passes an exception of its future on to `after`."""

    def check(finished: Future) -> None:
        error = finished.exception()
        if error is not None:
            after.set_exception(error)

    return check


COUNTS = ("sampled", "processed", "longest", "contexts", "calls")


def count_costs(trajectory: Trajectory) -> dict[str, int]:
    """Count the resources of a trajectory: tokens, contexts and calls.

    Returns:
        "sampled": sampled tokens; "processed": all tokens of its contexts, each counted once (of a
        server: prompt and completion tokens as it counted them); "longest": tokens of the longest
        context (0 for a server); "contexts"; "calls". Heavy's researchers are included. Calls in
        the prefix of a branch (ParallelMuse) belong to the rollout that made them.
    """
    usage = trajectory.metadata.get("usage", {})
    lengths = [len(trajectory)]
    if trajectory.contexts is not None:
        lengths = np.bincount(trajectory.contexts).tolist()
    said_tokens = usage.get("said_tokens", 0)
    own = {
        "sampled": int(trajectory.generated.sum()) or said_tokens,
        "processed": len(trajectory) or usage.get("read_tokens", 0) + said_tokens,
        "longest": max(lengths),
        "contexts": len(lengths),
        "calls": len(trajectory.tool_results)
        - trajectory.metadata.get("prefix", {}).get("calls", 0),
    }
    runs = trajectory.metadata.get("runs")
    if runs is None:
        return own
    if runs["merge"] in ("vote", "confidence"):  # the trajectory is one of the runs
        own = dict.fromkeys(COUNTS, 0)
    summed = {name: own[name] + sum(part[name] for part in runs["costs"]) for name in COUNTS}
    longest = max(own["longest"], *(part["longest"] for part in runs["costs"]))
    return summed | {"longest": longest}
