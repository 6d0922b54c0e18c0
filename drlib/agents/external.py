"""Agents written with any framework, trained on the exact tokens that the policy sampled.

`ExternalAgent` runs such an agent as a black box: the agent gets the base URL of an
OpenAI-compatible server (`drlib.agents.gateway`), and its requests become the turns of a rollout.
Everything else is as for drlib's own agents: limits, batching over rollouts, versions of weights,
trajectories.

A chat client sends the history as text, which may tokenise to other ids than those that were
sampled, and usually without the thoughts. Therefore requests are matched with the recorded
contexts, and the recorded ids are used (token in, token out; the gateway of GLM-5, arXiv
2602.15763, section 4.1):

    append    the messages continue a recorded context: its ids, then those of the new messages
    branch    they continue a shorter part of one: a new context with the same first turns
    new       they share no turn with any context: the first request, or one after a summary

Earlier turns in a new context keep their recorded ids, also if parts of the history were left out.
They are trained only in the context in which they were sampled.
"""

import json
import threading
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from drlib.agents.agent import Agent
from drlib.agents.context import IdContext
from drlib.agents.request_queue import AgentEnd, PendingRequest, RolloutQueue
from drlib.agents.rollout_state import RolloutState, RolloutStopped, Steps
from drlib.chat.chat_requests import (
    ChatMessage,
    ChatRequest,
    RequestError,
    build_reply,
    parse_message,
)
from drlib.chat.model_template import TemplateIds
from drlib.chat.prompts import TOOLS
from drlib.chat.tool_calls import ToolCall
from drlib.models.engine import Completion
from drlib.task import Task
from drlib.trajectory import Termination, ToolResult, Trajectory
from drlib.validation import require

TOO_LONG = "context_length_exceeded"  # the code with which OpenAI refuses such a request
KINDS = ("append", "branch", "new")


class AgentFailed(RuntimeError):
    """All rollouts of an external agent ended with an exception of the agent."""


@dataclass(frozen=True)
class RolloutAccess:
    """Access of an external agent to its rollout.

    Attributes:
        task: the task; its `question` is what the agent works on.
        base_url, api_key: of the rollout, for an OpenAI client.
    """

    task: Task
    base_url: str
    api_key: str
    _state: RolloutState
    _executed: list[ToolResult]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool of the rollout's toolbox in its world; return the observation.

        Agents may use tools of their own instead. These count as successful calls, because chat
        messages do not report failures.

        Raises:
            EnvironmentFault: the tool failed because of its environment; the rollout is excluded.
        """
        state = self._state
        result = state.toolbox.submit(name, arguments, world=state.world).result()
        self._executed.append(result)
        if result.env_fault:
            raise EnvironmentFault(result.text)
        return result.text


class EnvironmentFault(RuntimeError):
    """A tool of an external agent failed because of its environment, not of the policy."""


class ExternalAgent(Agent):
    """Runs a black-box agent; a subclass implements `work`.

    Every rollout has a thread of its own. An exception of `work` is an environment fault: the
    rollout is excluded from training, never scored.

    Args:
        port: of the server on loopback; 0: any free one.
        silence_s: seconds without a request or an end after which a rollout is a fault.

    Raises:
        ValueError: the engine reads messages, or `limits.force_answer` is on.

    Attributes:
        lists_tools: put the schemas of a request's `tools` into the prompt. False: the policy knows
            its tools by training (model.tool_format=brief). The tiny policy always does.
    """

    lists_tools = True

    def __init__(self, *args, port: int = 0, silence_s: float = 600.0, **kwargs):
        super().__init__(*args, **kwargs)
        require(self.engine.reads == "ids", "an external agent needs an engine that reads ids")
        require(not self.limits.force_answer, "an external agent asks for its last turn itself")
        self.port, self.silence_s = port, silence_s
        self._gateway: Any = None
        self._running: dict[str, tuple[RolloutQueue, list[ToolResult]]] = {}  # by rollout
        self._chats: dict[str, Any] = {}  # by JSON of the tools

    @abstractmethod
    def work(self, access: RolloutAccess) -> str | None:
        """Work on `access.task` and return the answer, None without one."""

    def run(self, tasks: Sequence[Task], **options) -> list[Trajectory]:
        """Run the agent as `Agent.run`, with a server that lives as long as the call.

        Raises:
            AgentFailed: the agent raised an exception in every rollout.
        """
        from drlib.agents.gateway import Gateway  # lazy: needs the extra `cluster`

        require(self._gateway is None, "this agent is running already: create another one")
        try:
            with Gateway(self.port) as self._gateway:
                found = super().run(tasks, **options)
        finally:
            self._gateway, self._running = None, {}
        faults = [trajectory.metadata.get("agent_fault") for trajectory in found]
        if found and all(faults):
            raise AgentFailed(f"the agent failed in all {len(found)} rollouts; first: {faults[0]}")
        return found

    def _create_state(self, *args) -> RolloutState:
        """Create the state of a rollout and start its agent."""
        state = super()._create_state(*args)
        # No context ends the rollout: the agent reads cut turns and decides.
        state.lead = IdContext(self.chat, "")
        queue, executed = self._gateway.open(state.name), []
        self._running[state.name] = queue, executed
        url = self._gateway.url(state.name)
        access = RolloutAccess(state.task, url, state.name, state, executed)
        threading.Thread(target=self._work, args=(access, queue), daemon=True).start()
        return state

    def _work(self, access: RolloutAccess, queue: RolloutQueue) -> None:
        """Run the agent in its thread."""
        try:
            answer = self.work(access)
            if not isinstance(answer, str | None):
                raise TypeError(f"work returned {type(answer).__name__}, not a text or None")
            queue.finish(AgentEnd(answer))
        except BaseException as fault:  # noqa: BLE001 - the agent is code of others
            queue.finish(AgentEnd(fault=fault))

    def run_task(self, state: RolloutState) -> Steps:
        queue, executed = self._running[state.name]
        recorder = ContextRecorder(self, state, executed)
        try:
            while True:
                event = yield self._next_event(queue, state)
                if isinstance(event, AgentEnd):
                    return recorder.end(event)
                try:
                    context = recorder.place(event.request)
                except RequestError as error:
                    event.refuse(error)
                    continue
                turn = yield context
                event.answer(recorder.record(context, event, turn.text))
        finally:
            # first, because a lost reply is not repeated from here on
            queue.close(RequestError("the rollout has ended", code="rollout_ended"))
            recorder.finish()

    def _next_event(self, queue: RolloutQueue, state: RolloutState) -> Future:
        """Return a future of the next request or end; a silent agent ends by a fault."""
        limit = self.limits.seconds
        left = self.silence_s if limit is None else max(0.0, limit - state.seconds)
        seconds = min(left, self.silence_s)
        end: BaseException = RolloutStopped(Termination.WALL_CLOCK)
        if seconds == self.silence_s:
            end = TimeoutError(f"no request and no end in {seconds:g} s")
        timer = threading.Timer(seconds, queue.finish, [AgentEnd(fault=end)])
        timer.daemon = True
        timer.start()
        event = queue.next()
        event.add_done_callback(lambda _: timer.cancel())
        return event

    def chat_for(self, tools: Sequence[dict]) -> tuple[Any, str]:
        """Return the chat template for a request's tools, and text for its system message."""
        chat = self.chat
        if not (self.lists_tools and isinstance(chat, TemplateIds)):
            return chat, ""
        if not chat.has_native_tools:
            lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
            return chat, TOOLS.format(tools=lines) if tools else ""
        key = json.dumps(tools, sort_keys=True)
        if key not in self._chats:
            schemas = [{"type": "function", "function": tool} for tool in tools]
            try:
                self._chats[key] = chat.with_tools(schemas)
            except ValueError as error:
                raise RequestError(str(error), param="tools") from error
        return self._chats[key], ""


class RequestContext(IdContext):
    """A context that grows by requests.

    Attributes:
        log: messages that it has read, and the policy's last turn as the agent got it.
        tools: of its requests.
        turns: ids and text of each assistant's turn in `log`.
        turn_limit: tokens of the next turn; None: no limit of its own.
        is_open: False after a turn that was cut for `turn_limit`: the engine has read more of it.
    """

    def __init__(self, chat, question: str, system: str | None, tools: tuple[dict, ...]):
        super().__init__(chat, question, system)
        self.log: list[ChatMessage] = []
        self.tools = tools
        self.turns: list[tuple[list[int], str]] = []
        self.turn_limit: int | None = None
        self.is_open = True

    def add_turn(self, completion: Completion) -> str:
        """Append the policy's turn, cut to `turn_limit`, and return its text.

        The first tokens of a longer sample are distributed as a sample with that limit.
        """
        limit, size = self.turn_limit, len(completion.token_ids)
        if limit is not None and size > limit:
            self.is_open = False
            routes = completion.routed_experts
            completion = replace(
                completion,
                token_ids=completion.token_ids[:limit],
                logprobs=completion.logprobs[:limit],
                entropies=completion.entropies[:limit],
                versions=completion.versions[:limit],
                finish_reason="length",
                routed_experts=None if routes is None else routes[: len(routes) - (size - limit)],
            )
        text = super().add_turn(completion)
        self.turns.append((completion.token_ids, text))
        return text

    def add_known_turn(self, ids: list[int], text: str) -> None:
        """Append a turn that was sampled in another context."""
        self.messages.append({"role": "assistant", "content": text})
        self.parts.append(([*ids], None))
        self.turns.append((ids, text))

    def add_unknown_turn(self, text: str) -> None:
        """Append a turn that was not sampled by the policy."""
        self.add_known_turn(self._chat.encode(text), text)

    def forget_turn(self, ids: list[int]) -> None:
        """Mark a turn as not sampled, so that it is not trained."""
        self.parts = [(i, None) if i is ids else (i, done) for i, done in self.parts]


class ContextRecorder:
    """Places the requests of one rollout in contexts and keeps what was sampled."""

    def __init__(self, agent: ExternalAgent, state: RolloutState, executed: list[ToolResult]):
        self._agent, self._state, self._executed = agent, state, executed
        self._contexts: list[RequestContext] = []
        # sampled turns by the message that the agent got, with and without the ids of its calls
        self._known: dict[tuple[ChatMessage, tuple[str, ...]], tuple[list[int], str]] = {}
        self._sent: list[tuple[PendingRequest, RequestContext, list[int]]] = []  # with their turns
        self._read_calls: set[str] = set()  # ids of calls whose results were read
        self._moved = 0  # results of `call_tool` that are recorded
        self._unread: list[ToolResult] = []  # recorded ones that no message has contained
        self._kinds = Counter(dict.fromkeys(KINDS, 0))
        self._unknown_turns = 0
        self._ignored: dict[str, Any] = {}
        self._is_full = False  # the last request was refused as too long

    def place(self, request: ChatRequest) -> RequestContext:
        """Return the context of a request, with all of its messages.

        Raises:
            RequestError: the request does not fit into the context.
            RolloutStopped: it contains more tool calls than the limits allow.
        """
        kind, context, turns = self._find(request)
        saved = [*context.parts], [*context.messages], [*context.turns]
        unknown = self._extend(context, request.messages[len(context.log) :], turns)
        size, limit = len(context), self._state.limits.context_tokens
        self._is_full = size >= limit
        if self._is_full:
            context.parts, context.messages, context.turns = saved
            message = f"the messages have {size} tokens, and the context of {limit} leaves no space"
            raise RequestError(message, code=TOO_LONG, param="messages")
        self._record_executed()
        self._read_results(request.messages)
        if kind != "append":
            self._contexts.append(context)
            self._state.add_context(context)
        context.log, context.turn_limit = [*request.messages], request.max_tokens
        self._kinds[kind] += 1
        self._unknown_turns += unknown
        self._ignored |= request.ignored
        return context

    def _find(self, request: ChatRequest) -> tuple[str, RequestContext, list]:
        """Return the kind of a request, the context that it continues or a new one, and the turns
        of the recorded context whose beginning the new one shares.
        """
        messages = [*request.messages]
        same = [context for context in self._contexts if context.tools == request.tools]
        continued = [c for c in same if c.is_open and messages[: len(c.log)] == c.log]
        if continued:
            return "append", max(continued, key=lambda c: _compare(c.log, messages)), []
        closest = max(same, key=lambda c: _compare(c.log, messages), default=None)
        turns = closest.turns[: _compare(closest.log, messages)[0]] if closest else []
        chat, listed = self._agent.chat_for(request.tools)
        own = [messages[0].text] if messages[0].role == "system" else []
        system = "\n\n".join([*own, *([listed] if listed else [])]) or None
        context = RequestContext(chat, messages[len(own)].text, system, request.tools)
        context.log = messages[: len(own) + 1]
        return "branch" if turns else "new", context, turns

    def _extend(
        self, context: RequestContext, messages: Sequence[ChatMessage], turns: Sequence
    ) -> int:
        """Append messages; return the number of assistant's turns that the policy did not sample.

        Args:
            turns: ids and text of the first of the assistant's turns.
        """
        unknown, shared = 0, iter(turns)
        for message in messages:
            if message.role == "user":
                context.add_user(message.text)
                continue
            if message.role == "tool":
                context.observe(message.text)
                continue
            turn = next(shared, None) or self._find_turn(message)
            if turn is not None:
                context.add_known_turn(*turn)
            else:
                context.add_unknown_turn(message.render())
                unknown += 1
        return unknown

    def _find_turn(self, message: ChatMessage) -> tuple[list[int], str] | None:
        """Return the sampled turn that the agent sends back, rather the one with these call ids."""
        exact = self._known.get((message, message.call_ids))
        return self._known.get((message, ())) if exact is None else exact

    def _record_executed(self, is_limited: bool = True) -> None:
        """Record the results of `RolloutAccess.call_tool`, in order."""
        for result in self._executed[self._moved :]:
            if is_limited:
                self._state.require_call(ToolCall(result.tool, result.arguments))
            self._moved += 1
            self._state.results.append(result)
            self._unread.append(result)

    def _read_results(self, messages: Sequence[ChatMessage]) -> None:
        """Record the results of the agent's own tools in messages that were not read before."""
        calls: dict[str, tuple[str, str]] = {}
        for message in messages:
            if message.role == "assistant":
                calls |= zip(message.call_ids, message.calls)
            if message.role != "tool" or message.call_ids[0] in self._read_calls:
                continue
            self._read_calls.add(message.call_ids[0])
            name, arguments = calls[message.call_ids[0]]
            known = [r for r in self._unread if (r.tool, r.text) == (name, message.text)]
            if known:
                self._unread.remove(known[0])
                continue
            call = ToolCall(name, json.loads(arguments))
            self._state.require_call(call)
            result = ToolResult(name, call.arguments, message.text, True, None, source="agent")
            self._state.results.append(result)

    def record(self, context: RequestContext, event: PendingRequest, text: str) -> dict:
        """Record the turn that a request got; return its reply."""
        ids, completion = context.parts[-1]
        tokens = len(context) - len(ids), len(ids)
        name = f"{self._state.name}-{self._state.turns}"
        reply = build_reply(text, event.request, completion.finish_reason, tokens, name)
        message = parse_message(reply["choices"][0]["message"])
        self._known[message, message.call_ids] = self._known[message, ()] = ids, text
        context.log.append(message)
        self._sent.append((event, context, ids))
        return reply

    def end(self, event: AgentEnd) -> str | None:
        """Return the agent's answer.

        Raises:
            RolloutStopped: the agent ended otherwise.
        """
        notes, fault = self._state.notes, event.fault
        broken = next((result for result in self._executed if result.env_fault), None)
        if broken is not None:  # also if the agent went on
            notes["fault"] = broken.text
            raise RolloutStopped(Termination.ENV_FAULT)
        if isinstance(fault, RolloutStopped):
            raise fault
        if self._is_full and event.answer is None:
            raise RolloutStopped(Termination.LENGTH)
        if fault is None and not self._sent:
            fault = RuntimeError("the agent ended without a request to its base URL")
        if fault is not None:
            notes["fault"] = notes["agent_fault"] = f"{type(fault).__name__}: {fault}"
            raise RolloutStopped(Termination.ENV_FAULT)
        return event.answer

    def finish(self) -> None:
        """Exclude turns that the agent never got, and write notes into the record."""
        self._record_executed(is_limited=False)
        lost = [(context, ids) for event, context, ids in self._sent if event.is_lost]
        for context, ids in lost:
            context.forget_turn(ids)
        notes: dict[str, Any] = dict(self._kinds)
        notes |= {"lost": len(lost), "unknown_turns": self._unknown_turns, "ignored": self._ignored}
        self._state.notes["requests"] = notes


def _compare(log: Sequence[ChatMessage], messages: Sequence[ChatMessage]) -> tuple[int, int]:
    """Return the number of assistant's turns in the common beginning of two histories, and of those
    with the same ids of calls: equal turns may have been sampled with different thoughts.
    """
    turns = exact = 0
    for mine, other in zip(log, messages):
        if mine != other:
            break
        turns += mine.role == "assistant"
        exact += mine.role == "assistant" and mine.call_ids == other.call_ids
    return turns, exact
