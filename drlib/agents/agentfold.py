"""AgentFold: after each step, the step before it is folded into a summary (arXiv 2510.24699).

The policy reads the question, a summary of the folded steps, and its last turn with the
observation in full. Folding has two levels. *Granular condensation* turns one step into a short
block. *Deep consolidation* merges a span of blocks into one, and drops what later steps superseded.

Reduced: in the paper, the policy writes both in the turn of its next action, and decides on the
span. Here blocks are extracted by a rule (`drlib.agents.resum.find_facts`), and a span is merged
when there are more than `span` blocks, by the same rule or by the policy in a turn of its own.
"""

from drlib.agents.agent import AGENTS
from drlib.agents.context import Context
from drlib.agents.react import ReAct
from drlib.agents.resum import Summarise, extract_facts, find_facts, join_facts, split_facts
from drlib.chat.prompts import RESUME, SUMMARISE, extract_summary
from drlib.validation import require


@AGENTS.register("agentfold")
class AgentFold(ReAct):
    """ReAct that folds all but its last step; one context per turn.

    `Trajectory.metadata["folds"]` has the blocks at the end, as [first step, last step, text], and
    "consolidations" the number of merged spans.

    Args:
        span: blocks above which all but the last are merged.
        summarise: summary of a span, None for the policy itself. As in ReSum a function of
            (question, messages, previous summary): it gets no messages, and the blocks as the
            previous summary.

    Raises:
        ValueError: span below 2.
    """

    def __init__(self, *args, span: int = 4, summarise: Summarise | None = extract_facts, **kwargs):
        super().__init__(*args, **kwargs)
        require(span >= 2, f"span={span} must be at least 2")
        self.span = span
        self.summarise = summarise

    def begin(self, state):
        """Return the first context, without folded steps."""
        state.notes |= {"folds": [], "consolidations": 0}
        return super().begin(state)

    def next_context(self, state, context):
        """Return a context with the folded steps, and the last one in full."""
        steps = _split_steps(context.messages)
        folds = state.notes["folds"]
        if len(steps) < 2:  # there is nothing before the last step
            return context
        # the turn that follows a step says what was used of it
        self._condense(state, [*steps[-2], steps[-1][0]])
        if len(folds) > self.span:
            state.notes["consolidations"] += 1
            if self.summarise is None:
                return (yield from self._ask_policy(state, context, steps[-1]))
            *span, last = folds
            before = join_facts(_known(span))
            summary = yield state.submit(self.summarise, state.task.question, [], before)
            folds[:] = [[span[0][0], span[-1][1], summary], last]
        return state.add_context(context.resume(self._opening(state), 1))

    def _condense(self, state, step: list[dict]) -> None:
        """Add a block with the new facts of a step."""
        folds = state.notes["folds"]
        number = folds[-1][1] + 1 if folds else 1
        facts = find_facts(state.task.question, step, _known(folds))
        folds.append([number, number, join_facts(facts)])

    def _ask_policy(self, state, context: Context, last: list[dict]):
        """Request a summary of all steps, and return a context that starts with it."""
        folds = state.notes["folds"]
        context.add_user(SUMMARISE)
        turn = yield context
        summary = extract_summary(turn.text)
        self._condense(state, last)
        if summary:
            folds[:] = [[1, folds[-1][1], summary]]
        return state.begin(self._opening(state))

    def _opening(self, state) -> str:
        """Return the question with the folded steps."""
        question = state.task.question
        summary = " ".join(text for *_, text in state.notes["folds"] if text)
        return RESUME.format(question=question, summary=summary) if summary else question


def _known(folds: list) -> list[str]:
    return [fact for *_, text in folds for fact in split_facts(text)]


def _split_steps(messages: list[dict]) -> list[list[dict]]:
    """Return the policy's turns, each with the observations that follow it."""
    steps: list[list[dict]] = []
    for message in messages:
        if message["role"] == "assistant":
            steps.append([message])
        elif steps:
            steps[-1].append(message)
    return steps
