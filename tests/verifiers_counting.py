"""A taskset of verifiers for tests/test_environments_verifiers.py."""

import verifiers.v1 as vf

__all__ = ["CountingTaskset"]


class Total(vf.State):
    """State shared by tools and rewards."""

    value: int = 0


class Goal(vf.TaskData):
    """A number to reach."""

    goal: int


class Adding(vf.Toolset[vf.ToolsetConfig, Total]):
    """One tool."""

    async def setup_task(self, task):
        self.goal = task.goal

    @vf.tool
    def add(self, amount: int) -> str:
        """Add to the total."""
        if amount == 13:
            raise RuntimeError("unlucky")
        self.state.value += amount
        return f"{self.state.value} of {self.goal}"


class CountingTask(vf.Task[Goal, Total, vf.TaskConfig]):
    """Reach the goal, then say so."""

    @classmethod
    def toolsets(cls, config):
        return [Adding(vf.ToolsetConfig())]

    @vf.reward
    async def reached(self, task, trace) -> float:
        if trace.state.value == 666:
            raise OSError("the judge is down")
        return float(trace.state.value == task.goal)

    @vf.reward(weight=0.5)
    async def said(self, trace) -> float:
        calls = [call for m in trace.assistant_messages for call in m.tool_calls or []]
        return float(trace.last_reply == "done" and len(calls) == len(trace.tool_messages))


class CountingConfig(vf.TasksetConfig):
    """Settings."""

    size: int = 40


class CountingTaskset(vf.Taskset[CountingTask, CountingConfig]):
    """Tasks with goals 1, 2, ..."""

    def load(self):
        for goal in range(1, self.config.size + 1):
            yield CountingTask(Goal(prompt=f"Count to {goal}.", goal=goal), self.config.task)
