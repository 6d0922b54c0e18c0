"""Run generated Python code in warm, single-use processes isolated by the kernel.

`pool.Sandbox` queues calls for template processes (`template` is the caller's side,
`worker_process` the process, `child` one call in it). `layers` and `seccomp` isolate code,
`file_usage` and `cleanup` handle its files, `packages` lists importable packages. `trials` and
`selftest` test the isolation of this machine; `service`, `remote` and `ray_pool` run calls on other
hosts. `programs` runs shell commands on a set of files, with `program_process` for each command.
SECURITY.md lists the guarantees.
"""

from drlib.sandbox.pool import Sandbox
from drlib.sandbox.result import SandboxResult
from drlib.sandbox.selftest import Layer, Probe, SandboxUnavailable, probe

__all__ = ["Layer", "Probe", "Sandbox", "SandboxResult", "SandboxUnavailable", "probe"]
