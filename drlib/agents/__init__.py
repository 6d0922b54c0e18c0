"""How a policy is driven: an agent a file, all of them generators that say whose turn it is."""

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.agent_spec import create_agent
from drlib.agents.batch_answers import answer_file
from drlib.agents.heavy import Heavy
from drlib.agents.iterresearch import IterResearch
from drlib.agents.managed_react import ManagedReAct
from drlib.agents.react import ReAct
from drlib.agents.resum import ReSum
from drlib.agents.rollout_state import Limits, RolloutState, Steps
from drlib.agents.s3 import S3
from drlib.agents.webwalker import WebWalker
from drlib.agents.webwatcher import WebWatcher
from drlib.agents.webweaver import WebWeaver

__all__ = [
    "AGENTS",
    "S3",
    "Agent",
    "Heavy",
    "IterResearch",
    "Limits",
    "ManagedReAct",
    "ReAct",
    "ReSum",
    "RolloutState",
    "Steps",
    "WebWalker",
    "WebWatcher",
    "WebWeaver",
    "answer_file",
    "create_agent",
]
