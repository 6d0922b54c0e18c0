"""Agents: generators that drive a policy, one file per published method.

`agent` has the base class `Agent`, `rollout_state` the limits and the state of a rollout, `context`
what the policy reads, `agent_spec` agents by a line of text.
"""

from drlib.agents.agent import AGENTS, Agent
from drlib.agents.agent_spec import create_agent
from drlib.agents.agentfold import AgentFold
from drlib.agents.batch_answers import answer_file
from drlib.agents.browseconf import BrowseConf, calibrate_threshold
from drlib.agents.external import ExternalAgent
from drlib.agents.heavy import Heavy
from drlib.agents.iterresearch import IterResearch
from drlib.agents.managed_react import ManagedReAct
from drlib.agents.parallelmuse import ParallelMuse
from drlib.agents.planner_worker import PlannerWorker
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
    "AgentFold",
    "BrowseConf",
    "ExternalAgent",
    "Heavy",
    "IterResearch",
    "Limits",
    "ManagedReAct",
    "ParallelMuse",
    "PlannerWorker",
    "ReAct",
    "ReSum",
    "RolloutState",
    "Steps",
    "WebWalker",
    "WebWatcher",
    "WebWeaver",
    "answer_file",
    "calibrate_threshold",
    "create_agent",
]
