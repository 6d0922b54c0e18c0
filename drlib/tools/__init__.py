"""What an agent can call, and what keeps a call dependable."""

from drlib.tools.backends import ToolFault
from drlib.tools.definitions import SCHEMAS, TOOLS, environment
from drlib.tools.dependable import Dependable, Disk, ReliabilityPolicy
from drlib.tools.faults import Faults
from drlib.tools.fetch import PageReader
from drlib.tools.files import ParseFile
from drlib.tools.providers import Provider
from drlib.tools.toolbox import NO_RESULTS, Toolbox, ledger

__all__ = [
    "Dependable",
    "Disk",
    "Faults",
    "NO_RESULTS",
    "PageReader",
    "ParseFile",
    "Provider",
    "ReliabilityPolicy",
    "SCHEMAS",
    "TOOLS",
    "ToolFault",
    "Toolbox",
    "environment",
    "ledger",
]
