"""ReAct: think, call a tool, read, repeat, answer. The agent of every rollout and evaluation.

A turn is sampled up to the close of its first action; the environment writes the end of turn. In
the tool format of a server or template, a turn may have several calls, which are executed in order,
and a turn without a call is the answer.
No reward judges tokens after an answer, so a policy gradient would let them grow (observed: rows of
`</answer>`, which then broke the actions themselves). A format error is an observation (Tongyi
DeepResearch answers invalid JSON with a text) and counts as a failed call.
"""

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.context import Context
from drlib.agents.rollout_state import RolloutState, Steps
from drlib.chat.tool_calls import Answer


@AGENTS.register("react")
class ReAct(Agent):
    """Agent with a single context; variants override `begin` and `next_context`."""

    def run_task(self, state: RolloutState) -> Steps:
        context = self.begin(state)
        while True:
            turn = yield context
            if isinstance(turn.action, Answer):
                return turn.action.text
            for action in (turn.action, *turn.others):
                result = yield state.act(action)
                context.observe(result.text, is_trusted=result.tool == "format")
            context = yield from self.next_context(state, context)

    def begin(self, state: RolloutState) -> Context:
        """Return the first context."""
        return state.begin()

    def next_context(
        self, state: RolloutState, context: Context
    ) -> Generator[Context | Future, Any, Context]:
        """Return the context of the next turn, this or another one.

        A generator like `run_task`, because a subclass may need a turn or a future first.
        """
        yield from ()
        return context
