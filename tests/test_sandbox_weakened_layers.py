"""Negative controls of the isolation layers: without one check, the attack succeeds.

The removed checks are listed in `weakened_layers.py`. Without these controls, an attack that can
never succeed would count as evidence of isolation.
"""

import dataclasses
from pathlib import Path

import pytest

from tests.sandbox_targets import nothing_left, skip_without
from tests.weakened_layers import WEAKENINGS, copy_weakened, run_attack


@pytest.mark.parametrize("name", WEAKENINGS)
def test_attack_succeeds_on_weakened_copy(name):
    skip_without(WEAKENINGS[name].level)
    with nothing_left():
        found = run_attack(WEAKENINGS[name])
    assert found["won"], found


def test_unknown_text_to_weaken_raises(tmp_path):
    weakening = dataclasses.replace(WEAKENINGS["Landlock"], old="nothing like this")
    with pytest.raises(AssertionError, match="0 times, not once"):
        copy_weakened(weakening, tmp_path)


def test_attack_fails_on_unchanged_copy():
    """Run the same attack on an unchanged copy of the package."""
    weakening = WEAKENINGS["Landlock"]
    skip_without(weakening.level)
    whole = dataclasses.replace(weakening, new=weakening.old)
    with nothing_left():
        assert run_attack(whole, rounds=3) == {"won": 0, "rounds": 3, "how": ""}


def test_the_copy_has_all_files_of_the_package(tmp_path):
    copy_weakened(WEAKENINGS["Landlock"], tmp_path)
    source = Path(__file__).parents[1] / "drlib" / "sandbox"
    names = {path.name for path in source.iterdir() if path.is_file()}
    assert {path.name for path in (tmp_path / "drlib" / "sandbox").iterdir()} == names
