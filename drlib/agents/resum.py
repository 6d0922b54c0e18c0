"""ReSum: ReAct until the context is nearly full; then a summary replaces the history.

The policy continues from the question and the summary (arXiv 2509.13313). K summaries make K + 1
contexts, each trained as an episode with the trajectory's reward (ReSum-GRPO). The summariser is a
setting, because it decides what is remembered: a function of the conversation, which may call
another model, or the policy itself in a last turn of the old context. If it fails or returns
nothing, the history is kept and the rollout continues as ReAct.
"""

import warnings
from collections.abc import Callable, Sequence

from drlib.agents.agent import AGENTS
from drlib.agents.context import Context
from drlib.agents.react import ReAct
from drlib.chat.prompts import RESUME, SUMMARISE, extract_summary

Summarise = Callable[[str, Sequence[dict], str], str]
GO_ON = "Go on."
FULL = 0.9  # share of the context at which it is summarised


def join_thoughts(question: str, messages: Sequence[dict], before: str) -> str:
    """Summarise by concatenating the policy's thoughts.

    It keeps everything that the policy wrote and nothing else.
    """
    thoughts = [
        message["content"].partition("</think>")[0].removeprefix("<think>").strip()
        for message in messages
        if message["role"] == "assistant"
    ]
    return " ".join([before, *thoughts]).strip()


@AGENTS.register("resum")
class ReSum(ReAct):
    """ReAct with summaries; the last one is in `Trajectory.metadata["summary"]`.

    Args:
        summarise: (question, messages of the context, previous summary) -> summary; None for the
            policy itself.
        every: rounds after which to summarise in any case, None for never.
    """

    def __init__(
        self, *args, summarise: Summarise | None = join_thoughts, every: int | None = None, **kwargs
    ):
        super().__init__(*args, **kwargs)
        self.summarise = summarise
        self.every = every

    def next_context(self, state, context):
        """Return the context, or a new one that starts with a summary if one is due."""
        if not self.is_due(context):
            return context
        question = state.task.question
        before = state.notes.get("summary", "")
        if self.summarise is None:
            context.add_user(SUMMARISE)
            turn = yield context
            summary = extract_summary(turn.text)
            if not summary:
                context.add_user(GO_ON)
        else:
            summary = yield state.submit(self._summarise, question, context.messages, before)
        if not summary:
            return context
        state.notes["summary"] = summary
        return state.begin(RESUME.format(question=question, summary=summary))

    def is_due(self, context: Context) -> bool:
        """Return True if the context has little space for another round."""
        room = self.limits.context_tokens - self.limits.turn_tokens
        rounds = sum(message["role"] == "tool" for message in context.messages)
        return len(context) >= FULL * room or (self.every is not None and rounds >= self.every)

    def _summarise(self, question: str, messages: Sequence[dict], before: str) -> str:
        """Return the summary, "" if the summariser fails."""
        try:
            return self.summarise(question, messages, before)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            warnings.warn(f"no summary ({type(error).__name__}: {error})", stacklevel=2)
            return ""
