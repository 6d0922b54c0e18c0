"""How a policy is driven: an agent a file, all of them generators that say whose turn it is."""

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.answering import answer_file
from drlib.agents.attempt import Attempt, Limits, Steps
from drlib.agents.context import ManagedReAct
from drlib.agents.heavy import Heavy
from drlib.agents.iterresearch import IterResearch
from drlib.agents.naming import agent_named
from drlib.agents.react import ReAct
from drlib.agents.resum import ReSum
from drlib.agents.s3 import S3
from drlib.agents.webwalker import WebWalker
from drlib.agents.webwatcher import WebWatcher
from drlib.agents.webweaver import WebWeaver

__all__ = [
    "AGENTS",
    "S3",
    "Agent",
    "Attempt",
    "Heavy",
    "IterResearch",
    "Limits",
    "ManagedReAct",
    "ReAct",
    "ReSum",
    "Steps",
    "WebWalker",
    "WebWatcher",
    "WebWeaver",
    "agent_named",
    "answer_file",
]
