"""Negative controls of the sandbox's walls: with one brick taken out, the attack succeeds.

What is taken out of which file is data (`bricks.py`). Without these, an attack that could never
have worked would pass for a wall that holds.
"""

import dataclasses
from pathlib import Path

import pytest

from tests.bricks import BRICKS, take_out, win
from tests.sandbox_targets import nothing_left, skip_without


@pytest.mark.parametrize("name", BRICKS)
def test_without_this_brick_the_attack_succeeds(name):
    skip_without(BRICKS[name].level)
    with nothing_left():
        found = win(BRICKS[name])
    assert found["won"], found


def test_a_brick_that_is_not_there_is_noticed(tmp_path):
    brick = dataclasses.replace(BRICKS["Landlock"], old="nothing like this")
    with pytest.raises(AssertionError, match="0 times, not once"):
        take_out(brick, tmp_path)


def test_the_attack_fails_while_the_brick_is_there():
    """The control of the control: the same run on an unchanged copy."""
    brick = BRICKS["Landlock"]
    skip_without(brick.level)
    whole = dataclasses.replace(brick, new=brick.old)
    with nothing_left():
        assert win(whole, rounds=3) == {"won": 0, "rounds": 3, "how": ""}


def test_the_copy_has_all_files_of_the_package(tmp_path):
    take_out(BRICKS["Landlock"], tmp_path)
    source = Path(__file__).parents[1] / "drlib" / "sandbox"
    names = {path.name for path in source.iterdir() if path.is_file()}
    assert {path.name for path in (tmp_path / "drlib" / "sandbox").iterdir()} == names
