"""How a setting is declared: its default, what it means, and the stages that read it.

Below `drlib.config`, which has the settings themselves, and `drlib.rl_settings`, which has those of
reinforcement learning.
"""

import dataclasses
from typing import Any


def setting(default: Any, meaning: str, *stages: str, choices: str = "") -> Any:
    """A field of Config.

    Args:
        meaning: what it is, with its unit.
        stages: who reads it, as `Stage.reads` in `drlib.training.stages`; none for what changes no
            result (how many processes, say).
        choices: the registry that knows the values, "module:NAME"; where the type is a Literal, it
            says them itself.
    """
    told = {"meaning": meaning, "stages": stages, "choices": choices}
    return dataclasses.field(default=default, metadata=told)
