"""Tools of an agent, with caching, limits, retries and fail-over."""

from drlib.tools.backends import ToolFault
from drlib.tools.definitions import trl_environment
from drlib.tools.fault_injection import FaultInjector
from drlib.tools.fetch import PageReader
from drlib.tools.function_tool import TOOLS
from drlib.tools.mcp import from_mcp
from drlib.tools.parse_file import ParseFile
from drlib.tools.providers import Provider
from drlib.tools.reliability import DiskCache, ReliabilityPolicy, ReliableOperation
from drlib.tools.toolbox import NO_RESULTS, Toolbox, summarize_calls

__all__ = [
    "NO_RESULTS",
    "TOOLS",
    "DiskCache",
    "FaultInjector",
    "PageReader",
    "ParseFile",
    "Provider",
    "ReliabilityPolicy",
    "ReliableOperation",
    "ToolFault",
    "Toolbox",
    "from_mcp",
    "summarize_calls",
    "trl_environment",
]
