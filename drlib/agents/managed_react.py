"""ReAct with a managed context, as GLM-5 does it (arXiv 2602.15763, section 4.2 on search agents).

Old observations fill a context and are hardly read again. `keep_recent` folds all but the last k of
them into one line; `discard_above` throws the whole history away when the context is longer than
that, and begins again from the question; both together are GLM-5's hierarchical management. A
context that has been changed is another context: what the policy said in the one before is read in
it, and trained on there.
"""

from drlib.agents.agent import AGENTS
from drlib.agents.react import ReAct

OMITTED = "Tool result is omitted to save tokens."


@AGENTS.register("managed")
class ManagedReAct(ReAct):
    """keep_recent: observations that stay, None for all. discard_above: tokens, None for no end.
    note: what stands in the place of an observation that does not stay."""

    def __init__(
        self,
        *how,
        keep_recent: int | None = 5,
        discard_above: int | None = None,
        note: str = OMITTED,
        **more,
    ):
        super().__init__(*how, **more)
        self.keep_recent = keep_recent
        self.discard_above = discard_above
        self.note = note

    def next_context(self, at, context):
        """The context with its old observations folded, or one that begins again."""
        yield from ()
        if self.keep_recent is not None:
            context = at.keep(context.folded(self.keep_recent, self.note))
        too_long = self.discard_above is not None and len(context) > self.discard_above
        return at.begin() if too_long else context
