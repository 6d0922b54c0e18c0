"""ReSum: ReAct until the context is nearly full; then a summary takes the place of the history.

The policy goes on from the question and the summary as if it had just begun (arXiv 2509.13313).
K summaries make K + 1 contexts, each an episode of its own to train on, all with the trajectory's
reward (ReSum-GRPO). Who summarises is a setting, since it decides what is remembered: any function
of the conversation, which may ask another model, or the policy itself, in a last turn of the
context that is left. A summariser that fails or says nothing costs the summary only: the history
stays, and the attempt goes on as ReAct.

Left out: a trained summariser.
"""

import warnings
from collections.abc import Callable, Sequence

from drlib.agents.agent import AGENTS
from drlib.agents.context import Context
from drlib.agents.react import ReAct
from drlib.chat.prompts import RESUME, SUMMARISE, extract_summary

Summarise = Callable[[str, Sequence[dict], str], str]
GO_ON = "Go on."
FULL = 0.9  # of a context that is summarised


def join_thoughts(question: str, messages: Sequence[dict], before: str) -> str:
    """The thoughts of the policy, one after the other: a summariser that loses nothing that the
    policy has said, and all that it has not."""
    thoughts = [
        message["content"].partition("</think>")[0].removeprefix("<think>").strip()
        for message in messages
        if message["role"] == "assistant"
    ]
    return " ".join([before, *thoughts]).strip()


@AGENTS.register("resum")
class ReSum(ReAct):
    """ReAct whose context is summarised; the last summary stands in `Trajectory.metadata`.

    summarise: (question, messages of the context, summary before) -> summary; None for the policy
    itself. every: rounds after which it is summarised however short it is, None for never.
    """

    def __init__(
        self, *how, summarise: Summarise | None = join_thoughts, every: int | None = None, **more
    ):
        super().__init__(*how, **more)
        self.summarise = summarise
        self.every = every

    def next_context(self, at, context):
        """The context, or where a summary is due and comes, one that begins with it."""
        if not self.is_due(context):
            return context
        question = at.task.question
        before = at.notes.get("summary", "")
        if self.summarise is None:
            context.ask(SUMMARISE)
            turn = yield context
            summary = extract_summary(turn.text)
            if not summary:
                context.ask(GO_ON)
        else:
            summary = yield at.submit(self._summary, question, context.messages, before)
        if not summary:
            return context
        at.notes["summary"] = summary
        return at.begin(RESUME.format(question=question, summary=summary))

    def is_due(self, context: Context) -> bool:
        """Whether there is hardly room for another round."""
        room = self.limits.context_tokens - self.limits.turn_tokens
        rounds = sum(message["role"] == "tool" for message in context.messages)
        return len(context) >= FULL * room or (self.every is not None and rounds >= self.every)

    def _summary(self, question: str, messages: Sequence[dict], before: str) -> str:
        """What the summariser says, "" where it fails."""
        try:
            return self.summarise(question, messages, before)
        except Exception as error:  # noqa: BLE001 - somebody else's code, which may fail in any way
            warnings.warn(f"no summary ({type(error).__name__}: {error})", stacklevel=2)
            return ""
