"""What an agent can call, and what keeps a call dependable."""

from drlib.tools.backends import ToolFault
from drlib.tools.definitions import TOOLS, trl_environment
from drlib.tools.fault_injection import FaultInjector
from drlib.tools.fetch import PageReader
from drlib.tools.parse_file import ParseFile
from drlib.tools.providers import Provider
from drlib.tools.reliability import Dependable, DiskCache, ReliabilityPolicy
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
