"""Where generated code runs: warm, single-use, isolated by the kernel.

`layers` puts limits, credentials, Landlock and seccomp in place; `trials` tries them; `zygote` is
the warm template and `child` one call inside it; `pool` is what the rest of drlib uses.
"""

from drlib.sandbox.pool import (
    Layer,
    Probe,
    Sandbox,
    SandboxResult,
    SandboxUnavailable,
    probe,
)

__all__ = ["Layer", "Probe", "Sandbox", "SandboxResult", "SandboxUnavailable", "probe"]
