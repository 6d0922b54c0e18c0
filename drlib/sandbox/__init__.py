"""Where generated code runs: warm, single-use, isolated by the kernel.

`pool` is what the rest of drlib uses; behind it are `workers` (queue and threads) and `template`
(the caller's side of one template process). In that process: `zygote` is the warm template, `child`
one call inside it, `sessions` and `holding` are states that are held; `confinement` is what they
all share, made once. `layers` and `seccomp` hold code in, `bounds` and `cleanup` look after what it
leaves, `notices` carries what processes ask each other, `packages` says what code may import.
`trials` and `selftest` test the isolation of this machine; `service`, `client` and `ray_pool` carry
calls to other processes and hosts. What all this promises: SECURITY.md.
"""

from drlib.sandbox.pool import Sandbox, Snapshot
from drlib.sandbox.result import SandboxResult
from drlib.sandbox.selftest import Layer, Probe, SandboxUnavailable, probe

__all__ = ["Layer", "Probe", "Sandbox", "SandboxResult", "SandboxUnavailable", "Snapshot", "probe"]
