"""ReAct: think, call a tool, read, repeat, answer. The agent of every rollout and evaluation.

A turn is sampled up to the close of its first action; the environment writes the end of turn.
Nothing judges what follows an answer, so a policy gradient would let it grow (seen here: rows of
`</answer>`, which then broke the actions themselves). A format error is an observation like any
other (Tongyi DeepResearch answers invalid JSON with a text) and counts as a failed call.
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
    """One context that holds everything, until the answer; relatives of it change `begin` and
    `go_on`."""

    def run_task(self, at: RolloutState) -> Steps:
        context = self.begin(at)
        while True:
            turn = yield context
            if isinstance(turn.action, Answer):
                return turn.action.text
            result = yield at.act(turn.action)
            context.observe(result.text)
            context = yield from self.next_context(at, context)

    def begin(self, at: RolloutState) -> Context:
        """What the first turn reads."""
        return at.begin()

    def next_context(
        self, at: RolloutState, context: Context
    ) -> Generator[Context | Future, Any, Context]:
        """What the next turn reads: this context or another one. A generator, like `attempt`, for a
        subclass may have to ask somebody first."""
        yield from ()
        return context
