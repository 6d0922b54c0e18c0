"""ReAct with a managed context, as in GLM-5 (arXiv 2602.15763, section 4.2 on search agents).

Old observations fill a context and are rarely used again. `keep_recent` replaces all but the last k
of them by one line; `discard_above` restarts from the question when the context is longer than
that; both together are GLM-5's hierarchical management. A changed context is a new context: earlier
turns are read in it, not sampled.
"""

from drlib.agents.agent import AGENTS
from drlib.agents.react import ReAct

OMITTED = "Tool result is omitted to save tokens."


@AGENTS.register("managed")
class ManagedReAct(ReAct):
    """ReAct that folds or discards its history.

    Args:
        keep_recent: observations to keep, None for all.
        discard_above: tokens of a context above which it is discarded, None for never.
        note: replacement of an old observation.
    """

    def __init__(
        self,
        *args,
        keep_recent: int | None = 5,
        discard_above: int | None = None,
        note: str = OMITTED,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        self.keep_recent = keep_recent
        self.discard_above = discard_above
        self.note = note

    def next_context(self, state, context):
        """Return the context with old observations folded, or a new one."""
        yield from ()
        if self.keep_recent is not None:
            context = state.add_context(context.fold(self.keep_recent, self.note))
        too_long = self.discard_above is not None and len(context) > self.discard_above
        return state.begin() if too_long else context
