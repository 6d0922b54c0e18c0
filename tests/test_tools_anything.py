"""Random names, arguments and replies always give a typed result.

Run: python -m pytest tests/test_tools_anything.py
"""

import json
import math
import random
from dataclasses import asdict

import pytest

from drlib.sandbox import Sandbox
from drlib.tools import TOOLS, ReliabilityPolicy, Toolbox
from drlib.tools.backends import FunctionBackend
from drlib.trajectory import ToolResult
from drlib.worlds import load_world
from tests.tool_examples import FakeClock


@pytest.fixture(scope="module")
def cldr():
    return load_world("tour")


def random_value(rng, depth=0):
    """Return a random value, mostly JSON."""
    kind = rng.randrange(12 if depth < 3 else 8)
    text = "".join(
        chr(rng.choice([rng.randrange(128), rng.randrange(0xD7FF), 0xD800]))
        for _ in range(rng.randrange(20))
    )
    if kind < 4:
        return text
    if kind < 8:
        return rng.choice(
            [
                None,
                True,
                rng.randrange(-(10**20), 10**20),
                rng.random(),
                math.nan,
                math.inf,
                rng.randbytes(9),
                {1, 2},
                object(),
            ]
        )
    if kind < 10:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    keys = ["query", "url", "goal", "code", "files", "expression", text, 3, b"x", None]
    return {rng.choice(keys): random_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def random_arguments(rng, name):
    """Return arguments of the right form with random contents."""
    texts = [str(random_value(rng, 3)) for _ in range(rng.randrange(1, 3))]
    tool = next(tool for tool in TOOLS.values() if tool.name == name)
    return {p.name: texts if p.many else texts[0] for p in tool.parameters}


def test_random_calls_return_typed_results(cldr):
    rng = random.Random(0)
    echo = FunctionBackend("echo", lambda arguments, timeout_s: {"text": arguments["file"]})
    papers = FunctionBackend("papers", lambda arguments, timeout_s: random_value(rng))
    with (
        Sandbox(workers=1) as sandbox,
        Toolbox(
            cldr,
            sandbox,
            calculator=True,
            clock=FakeClock(),
            backends={"parse_file": [echo], "google_scholar": [papers]},
            policies={"google_scholar": ReliabilityPolicy(attempts=1)},
        ) as toolbox,
    ):
        errors = set()
        for n in range(10_000):
            name = rng.choice(
                [tool.name for tool in TOOLS.values() if tool.name != "python" or n % 8 == 0]
            )
            right = rng.random() < 0.5
            arguments = random_arguments(rng, name) if right else random_value(rng)
            name = random_value(rng) if rng.random() < 0.05 else name
            result = toolbox.call(name, arguments)
            assert isinstance(result, ToolResult) and isinstance(result.text, str)
            assert isinstance(result.error, str) and result.ok is (not result.error)
            json.dumps(asdict(result))
            assert not result.env_fault or name == "google_scholar"
            errors.add(result.error)
    assert errors >= {"", "arguments", "unknown", "empty", "malformed", "error"}
