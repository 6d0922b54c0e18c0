"""What an agent can call, and what keeps a call dependable."""

from drlib.tools.toolbox import NO_RESULTS, SCHEMAS, Toolbox

__all__ = ["NO_RESULTS", "SCHEMAS", "Toolbox"]
