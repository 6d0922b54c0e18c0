"""Examples in the docstrings of pure modules.

Run: python -m pytest tests/test_doctests.py
"""

import doctest
import importlib

import pytest

MODULES = (
    "drlib.agents.heavy",
    "drlib.chat.tool_calls",
    "drlib.models.router_bias",
    "drlib.rewards.functions",
    "drlib.rl.advantages",
    "drlib.rl.curriculum",
    "drlib.rl.divergences",
    "drlib.rl.losses",
    "drlib.rl.resampling",
    "drlib.rl.stability",
    "drlib.rl.staleness",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_of_a_module(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0
