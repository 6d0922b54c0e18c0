"""Names of the base version used by the probes."""

from drlib.format import parse as parse  # noqa: F401
