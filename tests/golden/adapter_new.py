"""Names of the current version used by the probes."""

from drlib.chat.tool_calls import parse as parse  # noqa: F401
