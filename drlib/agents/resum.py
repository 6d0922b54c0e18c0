"""ReSum: ReAct until the context is nearly full; then a summary takes the place of the history.

The policy goes on from the question and the summary as if it had just begun (arXiv 2509.13313).
K summaries make K + 1 contexts, each an episode of its own to train on, all with the trajectory's
reward (ReSum-GRPO). Who summarises is a setting, since it decides what is remembered: any function
of the conversation, or the policy itself. A summariser that fails or says nothing costs the summary
only: the history stays, and the attempt goes on as ReAct.
"""

import warnings
from collections.abc import Callable, Sequence

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.attempt import Attempt, Steps
from drlib.agents.contexts import Context
from drlib.format import Answer

Summarise = Callable[[str, Sequence[dict], str], str]
RESUME = "{question}\nSummary of the work so far: {summary}"
SUMMARY = (
    "Stop here and sum up what is known so far that helps to answer the question: facts with their "
    "sources, and what is still open. Write it inside <report></report>."
)
FULL = 0.9  # of a context that is summarised


def own_words(question: str, messages: Sequence[dict], before: str) -> str:
    """The thoughts of the policy, one after the other: a summariser that loses nothing that the
    policy has said, and all that it has not."""
    thoughts = [
        message["content"].partition("</think>")[0].removeprefix("<think>").strip()
        for message in messages
        if message["role"] == "assistant"
    ]
    return " ".join([before, *thoughts]).strip()


@AGENTS.register("resum")
class ReSum(Agent):
    """ReAct whose context is summarised.

    summarise: (question, messages of the context, summary before) -> summary. every: rounds after
    which it is summarised however short it is, None for never.
    """

    def __init__(self, *how, summarise: Summarise = own_words, every: int | None = None, **more):
        super().__init__(*how, **more)
        self.summarise = summarise
        self.every = every

    def attempt(self, at: Attempt) -> Steps:
        summary = ""
        rounds = 0
        context = at.begin()
        while True:
            turn = yield context
            if isinstance(turn.action, Answer):
                return turn.action.text
            result = yield at.act(turn.action)
            context.observe(result.text)
            rounds += 1
            if self.is_due(context, rounds):
                new = yield at.later(self._summary, at.task.question, context.messages, summary)
                if new:
                    summary, rounds = new, 0
                    context = at.begin(RESUME.format(question=at.task.question, summary=summary))

    def is_due(self, context: Context, rounds: int) -> bool:
        """Whether there is hardly room for another round."""
        room = self.limits.context_tokens - self.limits.turn_tokens
        return len(context) >= FULL * room or (self.every is not None and rounds >= self.every)

    def _summary(self, question: str, messages: Sequence[dict], before: str) -> str:
        """What the summariser says, "" where it fails."""
        try:
            return self.summarise(question, messages, before)
        except Exception as error:  # noqa: BLE001 - somebody else's code, which may fail in any way
            warnings.warn(f"no summary ({type(error).__name__}: {error})", stacklevel=2)
            return ""
