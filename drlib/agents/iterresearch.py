"""IterResearch: every round begins anew from a report that the policy keeps.

A round reads the question, the report, the last action and what came of it; it says a thought, the
report as it stands now, and the next action. Nothing else of the rounds before comes back, so a
round is as long after two hundred as after two, where ReAct's context grows with each; and what the
report does not say is forgotten. Sources: Tongyi DeepResearch (arXiv 2510.24701, section 2.1) and
WebResearcher (2509.13309, section 3).
"""

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.rollout_state import RolloutState, Steps
from drlib.chat.tool_calls import Answer, extract_report, render_call, render_workspace


@AGENTS.register("iterresearch")
class IterResearch(Agent):
    """A context a round; the last report stands in `Trajectory.metadata["report"]`."""

    def run_task(self, at: RolloutState) -> Steps:
        at.notes["report"] = ""
        action, observation = "", ""
        while True:
            state = render_workspace(at.task.question, at.notes["report"], action, observation)
            turn = yield at.begin(state)
            at.notes["report"] = extract_report(turn.text) or at.notes["report"]
            if isinstance(turn.action, Answer):
                return turn.action.text
            result = yield at.act(turn.action)
            call = result.tool != "format"
            action = render_call(result.tool, result.arguments) if call else ""
            observation = result.text
