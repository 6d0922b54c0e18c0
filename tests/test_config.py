"""Settings: a typo never runs with a default.

Run: python -m pytest tests/test_config.py
"""

import pytest

from drlib.config import Config, profile_names


def test_profiles_differ_from_the_default_only_in_known_names():
    for profile in profile_names():
        assert Config.load(profile).profile == profile
    assert Config.load("ci").rl.steps < Config.load("laptop").rl.steps


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl_stepz": 3}, "did you mean 'rl.steps'"),
        ({"rl.steps": "3"}, "'rl.steps' must be int, got str"),
        ({"rl.steps": 3.5}, "must be int"),
        ({"rl.steps": True}, "must be int, got bool"),
        ({"rl.steps": -1}, "negative"),
        ({"rl.curriculum.python_share": 1.5}, "share in 0..1"),
        ({"model.init": "zeros"}, "one of"),
    ],
)
def test_wrong_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Config.load("ci", **changes)


def test_unknown_profile_names_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'laptop'"):
        Config.load("latop")


def test_whole_numbers_are_fine_where_a_fraction_is_asked():
    assert Config.load("ci", rl__lr=1).rl.lr == 1.0
