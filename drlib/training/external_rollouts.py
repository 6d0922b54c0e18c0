"""Judged rollouts of an agent that is a function, for a training loop of one's own.

`drlib train rl --rl.agent NAME` trains a registered `ExternalAgent` with every setting of the stage
`rl` (docs/external_agents.md); this function is for scripts.
"""

from collections.abc import Callable, Sequence
from typing import Any

from drlib.agents.external import ExternalAgent, RolloutAccess
from drlib.agents.rollout_state import Limits
from drlib.models.engine import Engine
from drlib.rewards.functions import Reward
from drlib.task import Task
from drlib.tools import Toolbox
from drlib.training.rollouts import judge_rollouts
from drlib.trajectory import Trajectory


class _FunctionAgent(ExternalAgent):
    """An external agent given as a function."""

    function: Callable[[RolloutAccess], str | None]

    def work(self, access: RolloutAccess) -> str | None:
        return self.function(access)


def collect_external(
    agent: Callable[[RolloutAccess], str | None],
    tasks: Sequence[Task],
    engine: Engine,
    chat: Any,
    reward: Reward,
    *,
    samples: int = 1,
    limits: Limits | None = None,
    toolbox: Toolbox | None = None,
    lists_tools: bool = True,
    **options: Any,
) -> list[Trajectory]:
    """Run a black-box agent on tasks and judge its rollouts.

    Args:
        agent: gets the task and the base URL of the policy, and returns the answer. It runs in a
            thread per rollout.
        engine: generates token ids.
        chat: `ChatIds` or `TemplateIds` of the policy.
        reward: such as `make_reward("exact_match")`.
        samples: rollouts per task, a group.
        toolbox: tools for `RolloutAccess.call_tool`; None: the agent has its own.
        lists_tools: see `ExternalAgent`.
        options: of `Agent.run`, such as temperature, seed and keys.

    Returns:
        The rollouts, all of the first task first, as `prepare_batch` takes them. Those that ended
        by a fault of the agent or of a tool have the reward None.

    Raises:
        AgentFailed: the agent raised an exception in every rollout.
    """
    runner = _FunctionAgent(engine, toolbox or Toolbox(None), chat, limits)
    runner.function, runner.lists_tools = agent, lists_tools
    rollouts = runner.run(tasks, samples=samples, **options)
    return judge_rollouts(rollouts, [task for task in tasks for _ in range(samples)], reward)
