"""Planner and workers: one policy in two roles, each in contexts of its own.

The planner reads the question and has one tool, `delegate`: a sub-question for a worker. The worker
reads the sub-question only, has the tools of the toolbox, and works as ReAct. Its answer is the
planner's observation; what it searched and read stays in its own context. Sources: MATPO (arXiv
2510.04678), M-GRPO (2511.13288).

Every context is a training sample (`drlib.training.rollouts.split_contexts`), and
`Trajectory.metadata["roles"]` has the role of each. A worker that fails returns a message. A fault
of the environment ends the whole rollout.

Not supported: workers at the same time, workers of workers, tools in the server's own format.
"""

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.context import Context
from drlib.agents.rollout_state import RolloutState, RolloutStopped, Steps
from drlib.chat.prompts import FORMAT_HELP_PLANNER, NO_ANSWER, PLAN, RECAP, replace_tools
from drlib.chat.tool_calls import Answer, FormatError, ToolCall
from drlib.tools.definitions import DELEGATE
from drlib.tools.episode_toolbox import RejectedCall, find_tool
from drlib.trajectory import Termination, ToolResult
from drlib.validation import require

PLANNER, WORKER = "planner", "worker"
Work = Generator[Context | Future, Any, ToolResult]


@AGENTS.register("planner")
class PlannerWorker(Agent):
    """A planner that delegates sub-questions to workers, one at a time.

    `Limits.calls` counts the calls of all workers and the delegations.

    Args:
        worker_calls: tool calls of one worker, format errors included.
        recap: workers also read the whole question (MATPO); the tiny policy is trained without.

    Raises:
        ValueError: `worker_calls` below 1, or tools are called in the server's own format.
    """

    def __init__(self, *args, worker_calls: int = 6, recap: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        require(worker_calls >= 1, f"worker_calls={worker_calls} must be at least 1")
        require(
            not self.has_native_tools,
            "the planner and its workers have different tools, but native tools are the same for "
            "all requests: leave --native-tools out, or set model.tool_format=prompt",
        )
        self.worker_calls = worker_calls
        self.recap = recap

    def run_task(self, state: RolloutState) -> Steps:
        state.notes["roles"] = [PLANNER]
        context = state.begin(
            PLAN.format(question=state.task.question),
            replace_tools(state.system, [DELEGATE.schema]),
        )
        state.lead = context
        while True:
            turn = yield context
            if isinstance(turn.action, Answer):
                return turn.action.text
            state.require_call(turn.action)
            if isinstance(turn.action, FormatError):
                text = f"Error: {turn.action.reason}"
                text += f"\n{FORMAT_HELP_PLANNER}" if self.limits.format_help else ""
                result = ToolResult("format", {}, text, False, "format")
            else:
                result = yield from self._delegate(state, turn.action)
            yield _finished(result)  # for the record
            context.observe(result.text, is_trusted=result.tool == "format")

    def _delegate(self, state: RolloutState, call: ToolCall) -> Work:
        """Check the planner's call, let a worker answer it, and return the planner's result."""
        try:
            tools = {DELEGATE.name: DELEGATE}
            _, arguments = find_tool(call.name, call.arguments, tools, self.toolbox.coerce)
            if not arguments["question"].strip():
                raise RejectedCall(call.name, arguments, "question is empty.", "arguments")
        except RejectedCall as rejected:
            return rejected.result
        answer, failure = yield from self._work(state, arguments["question"])
        text = NO_ANSWER[failure] if failure else answer
        return ToolResult(DELEGATE.name, arguments, text, not failure, failure, source=WORKER)

    def _work(
        self, state: RolloutState, part: str
    ) -> Generator[Context | Future, Any, tuple[str, str]]:
        """Answer a sub-question in a new context.

        Returns:
            (answer, ""), or ("", key of `NO_ANSWER`) if the worker failed.
        """
        shown = RECAP.format(part=part, question=state.task.question) if self.recap else part
        context = state.begin(shown)
        calls = 0
        while True:
            if self._is_full(context):
                return "", "context"
            turn = yield context
            if not calls:
                state.notes["roles"].append(WORKER)
            if turn.is_cut:
                return "", "context" if self._is_full(context) or not turn.text else "length"
            if isinstance(turn.action, Answer):
                return turn.action.text, ""
            if calls == self.worker_calls:
                return "", "calls"
            calls += 1
            try:
                result = yield state.act(turn.action)
            except RolloutStopped as stopped:
                return "", "calls" if stopped.reason is Termination.TURNS else str(stopped.reason)
            context.observe(result.text, is_trusted=result.tool == "format")

    def _is_full(self, context: Context) -> bool:
        """Return True if an engine would not read the context."""
        most = self.limits.answer_at_tokens or self.limits.context_tokens
        return len(context) >= min(most, self.limits.context_tokens)


def _finished(result: ToolResult) -> Future:
    """Return a future that has this result."""
    future: Future = Future()
    future.set_result(result)
    return future
