"""Extension points: `register.reward("name")(factory)` and similar calls for other kinds.

A registered name can be selected by a setting. Stages run in subprocesses, so put registrations
into a module and name it in the setting `plugins`.

    >>> from drlib import register
    >>> @register.advantage("reward_minus_half")
    ... def reward_minus_half(rewards_N, groups_N, valid_N=None):
    ...     return rewards_N - 0.5
    >>> from drlib import Config
    >>> Config.load("ci", rl__advantage__estimator="reward_minus_half").rl.advantage.estimator
    'reward_minus_half'
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

# kind -> registry, and the documentation of its entries
REGISTRIES = {
    "reward": "drlib.rewards.functions:REWARDS",
    "judge": "drlib.rewards.judges:JUDGES",
    "world": "drlib.worlds:WORLDS",
    "tool": "drlib.tools:TOOLS",
    "environment": "drlib.environments:ENVIRONMENTS",
    "agent": "drlib.agents:AGENTS",
    "engine": "drlib.training.model_setup:ENGINES",
    "admission": "drlib.models.admission:ADMISSIONS",
    "clip": "drlib.rl.clips:CLIPS",
    "advantage": "drlib.rl.advantages:ADVANTAGES",
    "callback": "drlib.training.callbacks:CALLBACKS",
    "stage": "drlib.training.stages:STAGES",
}


class _Register:
    """Access to the `register` method of every registry, by kind."""

    def __getattr__(self, kind: str) -> Callable[..., Any]:
        if kind not in REGISTRIES:
            raise AttributeError(f"no registry of {kind!r}; available: {', '.join(REGISTRIES)}")
        module, _, name = REGISTRIES[kind].partition(":")
        return getattr(import_module(module), name).register

    def __dir__(self) -> list[str]:
        return sorted(REGISTRIES)


register = _Register()
