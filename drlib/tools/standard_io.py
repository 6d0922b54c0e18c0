"""The Python tool of rStar2-Agent: a program and its standard input.

The observation has the form that the model was trained on (rstar2_agent/tools of microsoft/rStar):
success or failure, the reason, both outputs and the time. As there, the value of an expression at
the end of the program is printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drlib.sandbox import Sandbox, SandboxResult
from drlib.tools.definitions import Parameter, Tool

NAME = "python_code_with_standard_io"
TIMEOUTS = ("timeout", "cpu_limit")


@dataclass(frozen=True)
class StandardIOTool(Tool):
    """Runs `code` with `input` in a sandbox; a call without `input` has an empty one."""

    sandbox: Sandbox | None = None

    @classmethod
    def from_sandbox(cls, sandbox: Sandbox) -> "StandardIOTool":
        """Create the tool over a sandbox."""
        parameters = (Parameter("code", "The program."), Parameter("input", "Its standard input."))
        description = "Run a Python program with the given standard input."
        return cls(NAME, description, parameters, lambda code, input: "", sandbox)

    def coerce(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with unambiguous values converted, and with an input."""
        return super().coerce({"input": "", **arguments})

    def answer(self, arguments: Mapping[str, Any], _world: Any = None) -> dict[str, Any]:
        """Run the program; return its observation and status."""
        try:
            result = self.sandbox.run(arguments["code"], arguments["input"], echo=True)
        except ValueError:  # exceeds the length limit
            return {"text": "Tool call failure\nreason: the program is too long", "status": "error"}
        return {
            "text": render_result(result),
            "status": result.status,
            "isolation": result.isolation,
            "env_fault": result.env_fault,
        }


def render_result(result: SandboxResult) -> str:
    """Return the observation of a result."""
    lines = ["Tool call success"]
    if not result.ok:
        reason = "worker_timeout" if result.status in TIMEOUTS else ""
        lines = ["Tool call failure", f"reason: {reason}"]
    lines += [f"stdout: {result.stdout}"] if result.stdout else []
    lines += [f"stderr: {result.stderr}"] if result.stderr else []
    return "\n".join([*lines, f"execution time: {result.duration_s:.2f}s"])
