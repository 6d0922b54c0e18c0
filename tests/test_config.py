"""Configuration: nested settings, profiles, recipes, overrides and restricted views.

Run: python -m pytest tests/test_config.py
"""

import dataclasses

import pytest
import yaml

from drlib.config import (
    FIELDS,
    ROOT,
    Config,
    declared_for,
    flatten_settings,
    load_from_arguments,
    parse_overrides,
    profile_names,
    read_settings,
    runs_folder,
)
from drlib.training import stages
from drlib.training.stages import overrides


def test_every_profile_loads_and_sets_only_known_settings():
    for profile in profile_names():
        config = Config.load(profile)
        assert config.profile == profile
        for name, value in read_settings("profiles", profile).items():
            assert config.get(name) == value
    assert Config.load("ci").rl.steps < Config.load("laptop").rl.steps


@pytest.mark.parametrize("recipe", profile_names("recipes"))
def test_every_recipe_is_valid_short_and_cited(recipe):
    from drlib.training.grpo import check_rl_settings

    text = (ROOT / "drlib" / "recipes" / f"{recipe}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# ") and len(text.splitlines()) <= 20
    config = Config.load("laptop", recipe)
    for name, value in flatten_settings(yaml.safe_load(text)).items():
        assert config.get(name) == value
    check_rl_settings(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl.stepz": 3}, "unknown setting 'rl.stepz': did you mean 'rl.steps'"),
        ({"clip": "none"}, "did you mean 'rl.loss.clip'"),
        ({"rl.steps": "3"}, "'rl.steps' must be int, got str"),
        ({"rl.steps": 3.5}, "must be int"),
        ({"rl.steps": True}, "must be int, got bool"),
        ({"rl.steps": -1}, "negative"),
        ({"rl.curriculum.python_share": 1.5}, "share in 0..1"),
        ({"model.init": "zeros"}, "one of"),
        ({"rl.loss.clip": "soft"}, "'rl.loss.clip' must be one of"),
        ({"rl.lr": "fast"}, "'rl.lr' must be float"),
    ],
)
def test_invalid_values_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        Config.load("ci", **changes)


def test_unknown_profiles_and_recipes_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'laptop'"):
        Config.load("latop")
    with pytest.raises(ValueError, match="unknown recipe 'dappo': did you mean 'dapo'"):
        Config.load("ci", "dappo")


def test_precedence_of_overrides_recipe_and_profile():
    assert Config.load("ci").rl.loss.clip == "ppo"
    assert Config.load("ci", "cispo").rl.loss.clip == "cispo"
    config = Config.load("ci", "cispo", rl__loss__clip="none", **{"rl.lr": "2e-4"})
    assert (config.rl.loss.clip, config.rl.lr, config.rl.steps) == ("none", 2e-4, 3)
    assert config.rl.minibatches == 2  # from the recipe


def test_derive_changes_only_the_given_settings():
    config = Config.load("ci")
    changed = config.derive(rl__lr=1, sft__steps=9)
    assert changed.rl.lr == 1.0 and type(changed.rl.lr) is float
    differing = {n for n in FIELDS if changed.get(n) != config.get(n)}
    assert differing == {"rl.lr", "sft.steps"}
    assert dataclasses.replace(config) == config and config.overrides() == {}
    assert changed.overrides() == {"rl.lr": 1.0, "sft.steps": 9}


def test_configuration_round_trips_through_arguments():
    """A stage gets its settings as arguments: every type must come back unchanged."""
    config = Config.load(
        "ci",
        "rstar2",
        rl__lr=2e-7,
        trainer__fsdp=True,
        world__name="folder:/my notes",
        plugins="a.b",
    )
    config = config.derive(plugins="")
    assert load_from_arguments("ci", "", overrides(config)) == config


def test_paths_of_the_command_line_start_at_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    given = ["--world.name", "folder:notes/../a", "--model.path=model", "--rl.start", "model"]
    config = load_from_arguments("ci", "", given)
    assert config.world.name == config.world_name == f"folder:{tmp_path}/a"
    assert config.model.path == config.rl.start == str(tmp_path / "model")
    # a hub id, a world without a path, and the committed policy of the profile
    config = load_from_arguments("ci", "", ["--model.path", "acme/model", "--world.name=cldr"])
    assert (config.model.path, config.model_path) == ("acme/model", "acme/model")
    assert config.world.name == "cldr" and config.rl.start == Config.load("ci").rl.start
    assert stages.start_folder("rl", config) == ROOT / config.rl.start
    # in Python, settings keep their text and the stage depends on the folder
    here = Config.load("ci", world__name="zim:a.zim")
    assert here.world.name == "zim:a.zim" and here.world_name == f"zim:{tmp_path}/a.zim"
    absolute = here.derive(world__name=here.world_name)
    assert stages.folder("world", here, tmp_path) == stages.folder("world", absolute, tmp_path)
    monkeypatch.chdir(tmp_path / "model")
    assert stages.folder("world", here, tmp_path) != stages.folder("world", absolute, tmp_path)


def test_runs_are_kept_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert runs_folder() == tmp_path / "runs"
    for inside in (ROOT, ROOT / "notebooks"):  # notebooks and commands share one folder
        monkeypatch.chdir(inside)
        assert runs_folder() == ROOT / "runs"


def test_command_line_parses_typed_values():
    parsed = parse_overrides(["--rl.lr", "2e-4", "--rl.loss.clip=cispo", "--trainer.fsdp", "true"])
    assert parsed == {"rl.lr": 2e-4, "rl.loss.clip": "cispo", "trainer.fsdp": True}
    with pytest.raises(ValueError, match="did you mean 'rl.steps'"):
        parse_overrides(["--rl.stepz", "3"])
    with pytest.raises(ValueError, match=r"rl\.steps"):
        parse_overrides(["--rl.steps", "many"])


def test_restricted_view_reads_only_declared_settings():
    config = Config.load("ci")
    view = config.restrict(["cpt"])
    for name in FIELDS:
        stages = FIELDS[name].metadata["stages"]
        if not stages or name in declared_for("cpt"):
            assert view.get(name) == config.get(name)
        else:
            with pytest.raises(AttributeError, match="Declare the stage in drlib/config.py"):
                view.get(name)
    assert view.unrestricted() == config and view.derive(rl__lr=0.5).rl.lr == 0.5
