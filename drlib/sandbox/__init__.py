"""Where generated code runs: warm, single-use, isolated by the kernel.

`pool` is what the rest of drlib uses. `layers` holds code in, `trials` and `probing` say what this
machine can isolate, `zygote` is the warm template and `child` one call inside it; `service`,
`client` and `ray` carry it to other processes and hosts.
"""

from drlib.sandbox.pool import Sandbox, Snapshot
from drlib.sandbox.probing import Layer, Probe, SandboxUnavailable, probe
from drlib.sandbox.result import SandboxResult

__all__ = ["Layer", "Probe", "Sandbox", "SandboxResult", "SandboxUnavailable", "Snapshot", "probe"]
