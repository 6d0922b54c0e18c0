"""How a policy is driven."""

from drlib.agents.react import Limits, ReAct

__all__ = ["Limits", "ReAct"]
