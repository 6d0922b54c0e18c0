"""What an agent can call, and what keeps a call dependable."""

from drlib.tools.backends import Backend, ToolFault
from drlib.tools.definitions import SCHEMAS, TOOLS, environment
from drlib.tools.dependable import Dependable, Disk, Outcome, ReliabilityPolicy
from drlib.tools.faults import Faults
from drlib.tools.fetch import PageReader
from drlib.tools.files import ParseFile
from drlib.tools.providers import Provider
from drlib.tools.toolbox import NO_RESULTS, Toolbox, ledger

__all__ = [
    "Backend", "Dependable", "Disk", "Faults", "NO_RESULTS", "Outcome", "ReliabilityPolicy",
    "PageReader", "ParseFile", "Provider", "SCHEMAS", "TOOLS", "Toolbox", "ToolFault",
    "environment", "ledger",
]  # fmt: skip
