"""s3: a searcher that only gathers documents, and a frozen generator that only answers.

The searcher starts with the results of a search for the question itself, marks relevant results of
each block, sends further queries, and stops. The marked documents go to a frozen generator, a
function of question and documents, so a searcher can be trained for a model that cannot be. Its
reward is the *gain beyond RAG*: correctness with these documents minus correctness with the
question's own results. Both answers are recorded. Source: s3 (arXiv 2505.14146); an unmarked block
is kept whole.

Within a GRPO group the second term is constant and cancels; it selects the questions worth training
on (those that plain RAG fails).
"""

import re
from collections.abc import Callable, Sequence

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.rollout_state import RolloutState, Steps
from drlib.chat.prompts import GATHER
from drlib.chat.tool_calls import Answer, ToolCall
from drlib.questions.search_plan import answer_chain, split_facts
from drlib.tools.toolbox import ShownPage, extract_pages
from drlib.validation import require

GENERATE = """{question}

Answer from these documents:
{documents}"""
NONE = "none"

_QUERY = re.compile("<query>(.*?)</query>", re.DOTALL)
_MARKED = re.compile(r"<important_info>(.*?)</important_info>", re.DOTALL)

Generate = Callable[[str, Sequence[ShownPage]], str | None]


@AGENTS.register("s3")
class S3(Agent):
    """Searcher with an optional frozen generator.

    `Trajectory.metadata`: "queries", "documents" (addresses, in order), "rag_answer" (the
    generator's answer from the question's own results; None without a generator).

    Args:
        generate: (question, documents) -> answer or None; None for the policy itself, in a context
            of its own.
        rounds: maximum number of queries after the first.
        keep: maximum number of results marked per turn.

    Raises:
        ValueError: rounds or keep below 1.
    """

    def __init__(
        self, *args, generate: Generate | None = None, rounds: int = 3, keep: int = 3, **kwargs
    ):
        super().__init__(*args, **kwargs)
        require(rounds >= 1 and keep >= 1, f"rounds={rounds} and keep={keep} must be at least 1")
        self.generate = generate
        self.rounds = rounds
        self.keep = keep

    def run_task(self, state: RolloutState) -> Steps:
        question = state.task.question
        state.notes |= {"queries": [], "documents": [], "rag_answer": None}
        result = yield state.act(_search(question))
        block = extract_pages(result)
        if self.generate is not None:
            state.notes["rag_answer"] = yield state.submit(self.generate, question, block)
        context = state.begin(
            GATHER.format(question=question, information=result.text, keep=self.keep)
        )
        kept: list[ShownPage] = []
        while True:
            turn = yield context
            kept += self._select_marked(turn.text, block)
            query = _QUERY.search(turn.text)
            if query is None:
                break
            state.notes["queries"].append(query[1].strip())
            result = yield state.act(_search(query[1].strip()))
            block = extract_pages(result)
            if len(state.notes["queries"]) == self.rounds:
                kept += block  # the last block is not marked
                break
            context.observe(result.text)
        documents = list(dict.fromkeys(kept))
        state.notes["documents"] = [page.url for page in documents]
        if self.generate is not None:
            return (yield state.submit(self.generate, question, documents))
        turn = yield state.begin(
            GENERATE.format(question=question, documents=_format_documents(documents))
        )
        return turn.action.text if isinstance(turn.action, Answer) else None

    def _select_marked(self, text: str, block: Sequence[ShownPage]) -> list[ShownPage]:
        """Return the results marked by a turn; all without marks."""
        marks = _MARKED.search(text)
        if marks is None:
            return list(block)
        numbers = dict.fromkeys(int(number) for number in re.findall(r"\d{1,3}", marks[1]))
        return [block[n - 1] for n in numbers if 1 <= n <= len(block)][: self.keep]


def answer_from_facts(question: str, documents: Sequence[ShownPage]) -> str | None:
    """Frozen generator for multi-hop questions: it reads facts and never guesses."""
    return answer_chain(question, {page.title: split_facts(page.text) for page in documents})


def _search(query: str) -> ToolCall:
    return ToolCall("search", {"query": [query]})


def _format_documents(documents: Sequence[ShownPage]) -> str:
    return "\n".join(f"{page.title}: {page.text}" for page in documents) or NONE
