"""s3: a searcher that only gathers, before a generator that only answers and never learns.

The searcher begins with what a search for the question itself brings, marks what matters in each
block of results, asks further queries, and stops. What it kept goes to a frozen generator, any
function of question and documents, so a searcher can be trained for a model that cannot be. Its
worth is the *gain beyond RAG*: whether the generator is right with these documents, less whether it
is right with the question's own results alone. Both of its answers stand in the record. Source: s3
(arXiv 2505.14146), where a block of which nothing is marked is kept whole.

Inside a group of GRPO the second term is the same for all and cancels; it tells which questions are
worth training on (those that plain RAG fails), and is the reward's sign where a group is alike.

Left out: the reward that the authors' code gives in the place of the gain.
"""

import re
from collections.abc import Callable, Sequence

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.rollout_state import RolloutState, Steps
from drlib.chat.prompts import GATHER
from drlib.chat.tool_calls import Answer, ToolCall
from drlib.questions.lookups import answer_from, facts_of
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
    """`Trajectory.metadata`: "queries", "documents" (addresses, as they were kept), "rag_answer"
    (the generator's, from the question's own results; None without an own generator).

    Args:
        generate: (question, documents) -> answer, None where it has none; None for the policy
            itself, in a context of its own.
        rounds: queries beyond the first, at most. keep: results that a turn may mark.
    """

    def __init__(
        self, *how, generate: Generate | None = None, rounds: int = 3, keep: int = 3, **more
    ):
        super().__init__(*how, **more)
        require(rounds >= 1 and keep >= 1, f"rounds={rounds} and keep={keep} start at 1")
        self.generate = generate
        self.rounds = rounds
        self.keep = keep

    def run_task(self, at: RolloutState) -> Steps:
        question = at.task.question
        at.notes |= {"queries": [], "documents": [], "rag_answer": None}
        result = yield at.act(_search(question))
        block = extract_pages(result)
        if self.generate is not None:
            at.notes["rag_answer"] = yield at.submit(self.generate, question, block)
        context = at.begin(
            GATHER.format(question=question, information=result.text, keep=self.keep)
        )
        kept: list[ShownPage] = []
        while True:
            turn = yield context
            kept += self._marked(turn.text, block)
            query = _QUERY.search(turn.text)
            if query is None:
                break
            at.notes["queries"].append(query[1].strip())
            result = yield at.act(_search(query[1].strip()))
            block = extract_pages(result)
            if len(at.notes["queries"]) == self.rounds:
                kept += block  # nobody is asked about the last block
                break
            context.observe(result.text)
        documents = list(dict.fromkeys(kept))
        at.notes["documents"] = [page.url for page in documents]
        if self.generate is not None:
            return (yield at.submit(self.generate, question, documents))
        turn = yield at.begin(GENERATE.format(question=question, documents=_told(documents)))
        return turn.action.text if isinstance(turn.action, Answer) else None

    def _marked(self, said: str, block: Sequence[ShownPage]) -> list[ShownPage]:
        """The results of the block that a turn marks; all of them where it marks none."""
        marks = _MARKED.search(said)
        if marks is None:
            return list(block)
        numbers = dict.fromkeys(int(number) for number in re.findall(r"\d{1,3}", marks[1]))
        return [block[n - 1] for n in numbers if 1 <= n <= len(block)][: self.keep]


def answer_from_facts(question: str, documents: Sequence[ShownPage]) -> str | None:
    """A frozen generator for chains of look-ups: it reads facts, and never guesses."""
    return answer_from(question, {page.title: facts_of(page.text) for page in documents})


def _search(query: str) -> ToolCall:
    return ToolCall("search", {"query": [query]})


def _told(documents: Sequence[ShownPage]) -> str:
    return "\n".join(f"{page.title}: {page.text}" for page in documents) or NONE
