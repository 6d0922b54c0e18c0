"""IterResearch: every round starts a new context with a report kept by the policy.

A round reads the question, the report, the last action and its result. It writes a thought, the
updated report, and the next action. Earlier rounds are discarded, so a round after two hundred is
as short as after two, where ReAct's context grows; anything missing in the report is lost. Sources:
Tongyi DeepResearch (arXiv 2510.24701, section 2.1) and WebResearcher (2509.13309, section 3).
"""

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.rollout_state import RolloutState, Steps
from drlib.chat.tool_calls import Answer, extract_report, render_call, render_workspace


@AGENTS.register("iterresearch")
class IterResearch(Agent):
    """One context per round; `Trajectory.metadata["report"]` is the last report."""

    def run_task(self, state: RolloutState) -> Steps:
        state.notes["report"] = ""
        action, observation = "", ""
        while True:
            workspace = render_workspace(
                state.task.question, state.notes["report"], action, observation
            )
            turn = yield state.begin(workspace)
            state.notes["report"] = extract_report(turn.text) or state.notes["report"]
            if isinstance(turn.action, Answer):
                return turn.action.text
            result = yield state.act(turn.action)
            is_call = result.tool != "format"
            action = render_call(result.tool, result.arguments) if is_call else ""
            observation = result.text
