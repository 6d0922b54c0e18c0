"""What an agent can call, and what keeps a call dependable."""

from drlib.tools.backends import ToolFault
from drlib.tools.definitions import TOOLS, trl_environment
from drlib.tools.dependable import Dependable, DiskCache, ReliabilityPolicy
from drlib.tools.faults import FaultInjector
from drlib.tools.fetch import PageReader
from drlib.tools.files import ParseFile
from drlib.tools.providers import Provider
from drlib.tools.toolbox import NO_RESULTS, Toolbox, ledger

__all__ = [
    "NO_RESULTS",
    "TOOLS",
    "Dependable",
    "DiskCache",
    "FaultInjector",
    "PageReader",
    "ParseFile",
    "Provider",
    "ReliabilityPolicy",
    "ToolFault",
    "Toolbox",
    "ledger",
    "trl_environment",
]
