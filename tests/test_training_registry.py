"""The stage registry: folder names, readable settings and the train command.

Run: python -m pytest tests/test_training_registry.py
"""

import copy
import json
import subprocess
import sys

import pytest

from drlib.cli import train
from drlib.config import FIELDS, Config, declared_for
from drlib.training import build, stages
from drlib.training.run_folder import RunFolder
from tests.loop_examples import build_stages, build_world, settings

# settings that change no result, or are hashed by their content
FREE = {
    "profile",
    "processes",
    "plugins",
    "engine.url",
    "engine.router",
    "engine.max_mismatch",
    "engine.memory_share",
    "trainer.report_to",
}


def test_settings_declare_known_stages_and_have_help():
    readers = set().union(*(stage.readers for stage in stages.STAGES.values()))
    for name, field in FIELDS.items():
        assert field.metadata["help"]
        assert bool(field.metadata["stages"]) != (name in FREE), name
        assert {*field.metadata["stages"]} <= readers, name


NAMES = ["rl", "rl_random_reward", "sft", "evaluate_rl", "cpt", "distill", "merge"]


@pytest.mark.parametrize("name", NAMES)
def test_stage_folder_depends_on_readable_settings(tmp_path, name):
    # from a policy folder, because the settings of an input would change the hash too
    given = {"distill": {"distill.start": "figures/reference/tour/policy_rl"}}
    config = Config.load("laptop", **given.get(name, {}))
    usual = stages.folder(name, config, tmp_path)
    readable = stages.restricted_config(name, config)
    for setting, field in FIELDS.items():
        changed = stages.folder(
            name, config.derive(**{setting: another_value(setting, field)}), tmp_path
        )
        try:
            readable.get(setting)
        except AttributeError as fault:
            assert "Declare the stage in drlib/config.py" in str(fault)
            assert changed.name == usual.name, setting
        else:
            fixed = setting in stages.STAGES[name].fixed
            free = setting in FREE - {"plugins"}
            assert (changed.name == usual.name) == (fixed or free), setting


# Another allowed value of settings that another_value() cannot derive from the default.
OTHERS = {
    "profile": "ci",
    "plugins": "this",
    "rl.start": "figures/reference/tour/policy_sft",
    "demonstrations.policy": "figures/reference/tour/policy_sft",
    "rl.off_policy.rollouts": "figures/reference/tour/rl_sampled.parquet",
    "distill.start": "figures/reference/tour/policy_sft",
    "distill.teachers": "python=figures/reference/tour/policy_sft",
    "distill.loss": "full",
    "merge.policies": "figures/reference/tour/policy_sft",
    "merge.base": "figures/reference/tour/policy_sft",
    "merge.method": "ties",
    "merge.weights": "1,2",
    "evaluation.world": "cldr",
    "evaluation.documents": "cldr",
    "evaluation.agent": "heavy:n=2",
    "demonstrations.documents": "cldr",
    "rl.curriculum.documents": "cldr",
    "demonstrations.environments": "database",
    "rl.curriculum.environments": "database",
    "evaluation.environments": "database",
    "model.init": "plain",
    "rl.filter.overlong": "keep",
    "rl.advantage.estimator": "group_mean",
    "rl.loss.clip": "none",
    "rl.loss.level": "sequence",
    "rl.loss.aggregate": "sequence",
    "rl.loss.correction": "mask",
    "rl.filter.hallucination": "exclude",
    "rl.sampling.resample": "sort",
    "rl.off_policy.engine_dtype": "bfloat16",
    "rl.reward.name": "random",
    "rl.off_policy.routing_replay": "r2",
    "rl.asynchronous.stale": "drop",
    "rl.callbacks.emergency_stop": False,
    "rl.reward.labels": "wrong",
    "rl.reward.arguments": '{"seed": 1}',
    "rl.curriculum.weighting": "none",
    "rl.curriculum.mixture": "exact",
    "rl.curriculum.stages": "three",
    "rl.loss.entropy_tokens": "random",
    "rl.loss.entropy_scope": "micro",
    "rl.loss.denominator": "all",
    "rl.loss.correction_level": "sequence",
    "rl.loss.kl_estimator": "k1",
    "world.name": "cldr",
    "pretrain.first_order_questions": "memory",
    "pretrain.higher_order_alternatives": "read",
    "sft.filter": "none",
    "sft.loss_on": "all",
    "questions.source": "engine",
    "questions.wording": "sentences",
    "questions.skills": "memory",
    "rl.agent": "iterresearch",
    "rl.advantage.baseline": "samples",
    "rl.advantage.context_weight": "shared",
    "demonstrations.teacher": "solver",
    "world.endpoint": "http://localhost:1/v1",
    "world.reader": "another",
    "model.path": "another",
    "trainer.backend": "trl",
    "model.dtype": "bfloat16",
    "model.tool_format": "template",
    "engine.name": "hf",
    "engine.router": "sticky",
    "engine.url": "http://localhost:1/v1",
    "trainer.report_to": "tensorboard",
}


def another_value(name, field):
    """Return another allowed value of a setting."""
    if name in OTHERS:
        return OTHERS[name]
    if isinstance(field.default, bool):
        return not field.default
    return field.default + 1 if isinstance(field.default, int) else field.default / 2 + 0.0123


def test_reading_an_undeclared_setting_is_an_error(tmp_path, monkeypatch):
    """The toy stage reads rl.lr without declaring it, so its folder name would not change."""
    monkeypatch.setitem(sys.modules, "toy_stage", sys.modules[__name__])
    monkeypatch.setattr(stages, "STAGES", copy.copy(stages.STAGES))
    stages.register(stages.Stage("toy", "toy_stage:read_undeclared_setting", ("world",)))
    build_world(tmp_path)
    with pytest.raises(AttributeError, match="'rl.lr', which is declared for .'rl',."):
        build.build("toy", settings(), tmp_path)
    assert not RunFolder.is_complete(stages.folder("toy", settings(), tmp_path))


def read_undeclared_setting(config, run_dir, ranks):
    RunFolder(run_dir, stages.stage_settings("toy", config), ranks).finish({"lr": config.rl.lr})


def test_registration_is_validated(monkeypatch):
    monkeypatch.setattr(stages, "STAGES", copy.copy(stages.STAGES))
    with pytest.raises(ValueError, match="stage 'sft' is already registered"):
        stages.register(stages.Stage("sft", "x:y"))
    with pytest.raises(ValueError, match="unknown stage 'nothing'"):
        stages.register(stages.Stage("toy", "x:y", ("nothing",)))
    with pytest.raises(ValueError, match="'toy' is built by no_such_module:y"):
        _ = stages.register(stages.Stage("toy", "no_such_module:y")).builder(settings())
    with pytest.raises(ValueError, match="stage 'toy' is already registered"):
        stages.register(stages.Stage("toy", "y:z"))
    assert stages.register(stages.Stage("toy", "y:z"), replace=True) is stages.STAGES["toy"]


def test_rl_folder_depends_on_the_seed(tmp_path):
    one, two = (stages.folder("rl", settings(seed=seed), tmp_path) for seed in (0, 1))
    assert one != two


def test_restricted_config_can_be_unrestricted():
    config = settings(rl__lr=0.5)
    restricted = stages.restricted_config("world", config)
    assert restricted.world.name == "tour" and restricted.unrestricted() == config
    with pytest.raises(AttributeError, match="rl.lr"):
        _ = restricted.rl.lr
    assert restricted.derive(rl__lr=0.25).rl.lr == 0.25
    others = {"questions.source", "questions.wording", "questions.skills"}
    others |= {"demonstrations.environments"}  # its words are in the tokenizer
    world = {name for name in FIELDS if name.startswith("world.")}
    assert {*declared_for("world")} == world | others


# ---------------------------------------------------------------- the command


def command(*arguments):
    """Return the result of the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "drlib.cli", "train", *arguments], capture_output=True, text=True
    )


@pytest.fixture
def call(capsys):
    """Return the command as a function: it calls the same code in this process."""

    def run(*arguments):
        status = train.main([*arguments])
        return subprocess.CompletedProcess(arguments, status, *capsys.readouterr())

    return run


def test_command_builds_missing_stages_once(tmp_path, call):
    """Three of five stages exist, so only the other two are built."""
    few = {"sft.steps": 2, "pretrain.steps": 2, "demonstrations.count": 20}
    few |= {"model.hidden": 32, "model.layers": 2, "processes": 1}
    config = Config.load("ci", **few)
    names = ["world", "untrained", "cpt", "demonstrations", "sft"]
    assert stages.missing_stages("sft", config, tmp_path) == names
    build_stages(("world", "untrained", "demonstrations"), config, tmp_path)
    small = [*(f"--{name}={value}" for name, value in few.items()), "--profile=ci"]
    first = command("sft", f"--runs={tmp_path}", *small)
    assert first.returncode == 0, first.stderr
    built = [line.split()[1] for line in first.stdout.splitlines() if line.startswith("==")]
    assert built == ["cpt:", "sft:"]
    assert "== sft: 2 steps, 1 process" in first.stdout
    path = first.stdout.splitlines()[-1]
    manifest = json.loads((tmp_path / "ci" / path.rpartition("/")[2] / "manifest.json").read_text())
    assert manifest["settings"]["own"]["sft.steps"] == 2
    again = call("sft", f"--runs={tmp_path}", *small)
    assert again.returncode == 0 and "nothing was built" in again.stdout
    assert "==" not in again.stdout


def test_unknown_names_are_reported(tmp_path, call):
    typo = call("rl", f"--runs={tmp_path}", "--rl.stepz=3")
    assert typo.returncode == 1 and "did you mean 'rl.steps'" in typo.stderr
    profile = call("rl", f"--runs={tmp_path}", "--profile=labtop")
    assert profile.returncode == 1 and "did you mean 'laptop'" in profile.stderr
    stage = call("midtraining", f"--runs={tmp_path}")
    assert stage.returncode == 1 and "unknown stage 'midtraining'" in stage.stderr
    plugin = call("rl", f"--runs={tmp_path}", "--plugins=no_such_module")
    assert plugin.returncode == 1 and "no module 'no_such_module'" in plugin.stderr
    clip = call("rl", f"--runs={tmp_path}", "--rl.loss.clip=soft")
    assert clip.returncode == 1 and "'rl.loss.clip' must be one of" in clip.stderr


def test_settings_are_listed_with_value_help_and_stage(call):
    output = call("sft", "--profile=ci", "--settings").stdout
    assert "sft.steps=8 " in output and "optimizer steps (sft)" in output
    assert "rl.lr" not in output and "evaluation.seed" not in output
    listed = call("--list").stdout
    assert "sft " in listed and "<- cpt, demonstrations" in listed
    names = {*FIELDS}
    assert {line.partition("=")[0] for line in output.splitlines()} <= names
