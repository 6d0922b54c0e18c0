"""ReSum: ReAct until the context is nearly full; then a summary replaces the history.

The policy continues from the question and the summary (arXiv 2509.13313). K summaries make K + 1
contexts, each trained as an episode with the trajectory's reward (ReSum-GRPO). The summariser is a
setting, because it decides what is remembered: a function of the conversation, which may call
another model, or the policy itself in a last turn of the old context. If it fails or returns
nothing, the history is kept and the rollout continues as ReAct.
"""

import re
import warnings
from collections.abc import Callable, Sequence

from drlib.agents.agent import AGENTS
from drlib.agents.context import Context
from drlib.agents.react import ReAct
from drlib.chat.prompts import RESUME, SUMMARISE, extract_summary

Summarise = Callable[[str, Sequence[dict], str], str]
GO_ON = "Go on."
FULL = 0.9  # share of the context at which it is summarised
SHORT_WORD = 3  # letters of words that say nothing about relevance
MAX_FACTS = 8  # clauses kept of one observation
_HEADING = re.compile(r"^(\d+\. \[|The useful information in )")
_CLAUSE_END = re.compile(r"(?<=[.!?;])\s+|\n")
_SUBJECT = re.compile(r"^[^A-Z0-9]*")


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


def find_facts(question: str, messages: Sequence[dict], known: Sequence[str] = ()) -> list[str]:
    """Return the clauses of the observations that concern the question or the policy's turns.

    A clause is relevant if it shares a word of more than three letters with the question or with
    any of the turns, which say what was used. Each observation gives at most eight.

    Args:
        question: the question.
        messages: turns and observations.
        known: clauses to leave out.
    """
    said = [message["content"] for message in messages if message["role"] == "assistant"]
    wanted = _words(" ".join([question, *said]))
    found: list[str] = []
    for message in messages:
        if message["role"] != "tool":
            continue
        lines = [line for line in message["content"].splitlines() if not _HEADING.match(line)]
        clauses = [part.strip(" .;") for part in _CLAUSE_END.split("\n".join(lines))]
        new = [part for part in dict.fromkeys(clauses) if part and part not in (*found, *known)]
        shared = {part: len(wanted & _words(part)) for part in new}
        best = sorted(shared, key=lambda part: -shared[part])[:MAX_FACTS]
        found += [part for part in new if part in best and shared[part]]
    return found


def drop_superseded(facts: Sequence[str]) -> list[str]:
    """Return the facts without those whose subject a later one repeats, such as "next Oslo".

    The subject is the text before the first capital letter or digit; sentences have none.

    >>> drop_superseded(["next Oslo", "treasure Bergen", "next Narvik"])
    ['treasure Bergen', 'next Narvik']
    """
    last = {_SUBJECT.match(fact)[0] or fact: fact for fact in facts}
    return [fact for fact in dict.fromkeys(facts) if last[_SUBJECT.match(fact)[0] or fact] == fact]


def join_facts(facts: Sequence[str]) -> str:
    """Write facts as a summary: `territory Norway; currency Krone.`"""
    return "; ".join(facts) + "." if facts else ""


def split_facts(text: str) -> list[str]:
    """Return the facts of `join_facts`."""
    return [fact for fact in text.removesuffix(".").split("; ") if fact]


def extract_facts(question: str, messages: Sequence[dict], before: str) -> str:
    """Summarise by the relevant clauses of the observations, without superseded ones."""
    known = split_facts(before)
    return join_facts(drop_superseded([*known, *find_facts(question, messages, known)]))


def _words(text: str) -> set[str]:
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > SHORT_WORD}


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
