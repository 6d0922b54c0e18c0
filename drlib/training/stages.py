r"""The stage graph: inputs, settings, folder and builder of each stage.

    world -> untrained -> cpt \
          -> demonstrations -> sft -> rl, rl_random_reward, sft_continued -> evaluate_...

A stage's folder is `runs/<profile>/<stage>-<hash>`. The hash covers the settings declared for the
stage (`drlib.config`) and those of all its inputs: equal settings share a folder, and changed
settings use another. `register` adds a stage, also from a plugin.
"""

import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from drlib.config import (
    WORLD_SETTINGS,
    Config,
    absolute_paths,
    declared_for,
    format_setting,
    split_worlds,
)
from drlib.registry import Registry, plugin_names
from drlib.training.run_folder import RunFolder, RunFolderError
from drlib.worlds import fingerprint_world

STAGE_FORMAT = 5  # raise when a stage's code changes what it makes from the same settings
WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Stage:
    """Stage of the graph.

    Attributes:
        build: "module:function", called as build(config, run_dir, ranks, **arguments).
        inputs: stages that this one reads.
        reads: name under which its settings are declared; "": its own.
        fixed: settings that define this stage, such as the reward of the control.
        start: setting that names a policy folder to start from instead of `inputs`.
        steps: setting with the number of steps, for the progress bar.
        title, colour: used in tables and figures.
        trl: like `build`, for trainer.backend=trl; "": the same function.
    """

    name: str
    build: str
    inputs: tuple[str, ...] = ()
    reads: str = ""
    arguments: Mapping = field(default_factory=dict)
    fixed: Mapping = field(default_factory=dict)
    start: str = ""
    steps: str = ""
    parallel: bool = True
    title: str = ""
    colour: str = "0.5"
    trl: str = ""

    def builder(self, config: Config) -> Callable:
        """Return the build function; raise ValueError if it cannot be imported."""
        where = (
            self.trl if self.trl and config.unrestricted().trainer.backend == "trl" else self.build
        )
        module, _, name = where.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as fault:
            raise ValueError(f"stage {self.name!r} is built by {where}: {fault}") from fault


STAGES = Registry("stage")


def register(stage: Stage, *, replace: bool = False) -> Stage:
    """Add a stage to the graph.

    Args:
        replace: allow a name that exists, for example when a notebook cell is run again.

    Raises:
        ValueError: the name exists, or an input is unknown.
    """
    for name in stage.inputs:
        _ = STAGES[name]  # ValueError for one that is not there
    STAGES.register(stage.name, stage, replace=replace)
    return stage


register(Stage("world", "drlib.training.data:build_world", parallel=False))
register(
    Stage(
        "untrained",
        "drlib.training.pretrain:build_untrained",
        inputs=("world",),
        parallel=False,
        title="untrained",
    )
)
register(
    Stage(
        "demonstrations",
        "drlib.training.data:build_demonstrations",
        trl="drlib.training.model_demonstrations:demonstrate",
        inputs=("world",),
        parallel=False,
        title="the demonstrator",
    )
)
register(
    Stage(
        "cpt",
        "drlib.training.pretrain:pretrain",
        trl="drlib.training.sft_trl:pretrain",
        inputs=("untrained",),
        steps="pretrain.steps",
        title="after pre-training",
    )
)
register(
    Stage(
        "sft",
        "drlib.training.sft:sft",
        trl="drlib.training.sft_trl:sft",
        inputs=("cpt", "demonstrations"),
        steps="sft.steps",
        title="after SFT",
        colour="C2",
    )
)
register(
    Stage(
        "sft_continued",
        "drlib.training.sft:sft",
        trl="drlib.training.sft_trl:sft",
        inputs=("sft",),
        arguments={"name": "sft_continued"},
        steps="sft.continued_steps",
        title="SFT continued (RL's compute)",
        colour="C1",
    )
)
register(
    Stage(
        "rl",
        "drlib.training.grpo:grpo",
        trl="drlib.training.grpo_trl:grpo",
        inputs=("sft",),
        start="rl.start",
        steps="rl.steps",
        title="after RL",
        colour="C0",
    )
)
register(
    Stage(
        "rl_random_reward",
        "drlib.training.grpo:grpo",
        trl="drlib.training.grpo_trl:grpo",
        inputs=("sft",),
        reads="rl",
        fixed={"rl.reward.name": "random", "rl.reward.arguments": ""},
        start="rl.start",
        steps="rl.steps",
        title="RL, random reward",
        colour="0.45",
    )
)
for _of in ("untrained", "cpt", "sft", "sft_continued", "rl", "rl_random_reward", "closed_book"):
    register(
        Stage(
            f"evaluate_{_of}",
            "drlib.evaluation.evaluate:evaluate",
            inputs=("rl" if _of == "closed_book" else _of,),
            reads="evaluate",
            arguments={"of": _of},
            title="after RL, closed book" if _of == "closed_book" else "",
        )
    )


def stage_config(name: str, config: Config) -> Config:
    """Return all settings with those that define the stage."""
    return config.unrestricted().derive(**STAGES[name].fixed)


def list_inputs(name: str, config: Config) -> tuple[str, ...]:
    """Return the direct inputs of a stage.

    A policy given by its folder replaces the inputs except the world. The model as a teacher adds
    the initial model.
    """
    stage = STAGES[name]
    whole = config.unrestricted()
    if stage.start and whole.get(stage.start):
        return ("world",)
    if name == "demonstrations" and whole.demonstrations.teacher == "model":
        return (*stage.inputs, "untrained")
    return stage.inputs


def list_ancestors(name: str, config: Config) -> list[str]:
    """Return all stages that `name` depends on, in build order, and `name` itself."""
    found = [s for i in list_inputs(name, config) for s in list_ancestors(i, config)]
    return [*dict.fromkeys(found), name]


def restricted_config(name: str, config: Config) -> Config:
    """Return the settings that the stage may read: those covered by its hash."""
    covered = list_ancestors(name, config)
    return stage_config(name, config).restrict(STAGES[n].reads or n for n in covered)


def start_folder(name: str, config: Config) -> Path:
    """Return the policy folder given by the `start` setting of a stage.

    Relative paths start at the working directory; a committed policy is also found by its path in
    the checkout. Raises ValueError if the folder has no policy.
    """
    setting = STAGES[name].start
    given = config.unrestricted().get(setting)
    path = Path(absolute_paths({setting: given})[setting]).expanduser().absolute()
    if not (path / WEIGHTS).exists():
        raise ValueError(f"{setting}={given!r}: there is no policy in {path}")
    return path


def stage_settings(name: str, config: Config) -> dict:
    """Return all settings that the result of a stage depends on, with those of its inputs."""
    inputs = {i: stage_settings(i, config) for i in list_inputs(name, config)}
    stage = STAGES[name]
    whole = stage_config(name, config)
    own = {setting: whole.get(setting) for setting in declared_for(stage.reads or name)}
    if own.get(stage.start):
        own[stage.start] = _hash((start_folder(name, config) / WEIGHTS).read_bytes())
    if own.get("model.path"):
        own["model.path"] = whole.model_path
        own["model_files"] = _stamp(Path(whole.model_path))
    if name == "world":
        own["world.name"] = whole.world_name
        # A folder whose files change is another world.
        own |= _fingerprint_worlds(own["world.name"])
    for setting in WORLD_SETTINGS[1:]:
        if own.get(setting):
            own |= _fingerprint_worlds(own[setting])
    settings = {"stage": name, "format": STAGE_FORMAT, "own": own, "inputs": inputs}
    if config.unrestricted().plugins:
        settings["plugins"] = _plugins(config.unrestricted().plugins)
    return settings


def _fingerprint_worlds(name: str) -> dict[str, str]:
    """Return the fingerprints of all parts of a mixture of worlds."""
    found = {part: fingerprint_world(part) for part in split_worlds(name)}
    return {f"{part}_{key}": value for part, some in found.items() for key, value in some.items()}


def _plugins(names: str) -> dict[str, str]:
    """Return the hash of each plugin's file: a changed plugin changes the stage."""
    found = {}
    for name in plugin_names(names):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin:
            raise ValueError(f"plugins={names!r}: there is no module {name!r} to import")
        found[name] = _hash(Path(spec.origin).read_bytes())
    return found


def _stamp(folder: Path) -> list:
    """Return name, size and modification time of the weights in a folder, to detect replaced
    files.
    """
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    stats = [(file.name, file.stat()) for file in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def folder(name: str, config: Config, runs: Path) -> Path:
    """Return the path of the finished stage."""
    text = json.dumps(stage_settings(name, config), sort_keys=True)
    return runs / config.unrestricted().profile / f"{name}-{_hash(text.encode())[:10]}"


def missing_stages(name: str, config: Config, runs: Path) -> list[str]:
    """Return the stages that must be built for `name`, in order."""
    if RunFolder.is_complete(folder(name, config, runs)):
        return []
    missing = [s for i in list_inputs(name, config) for s in missing_stages(i, config, runs)]
    return [*dict.fromkeys(missing), name]


def require_input(name: str, which: str, config: Config, runs: Path) -> Path:
    """Return the folder of a finished input; raise RunFolderError if it is missing."""
    path = folder(which, config, runs)
    if not RunFolder.is_complete(path):
        raise RunFolderError(f"{name} needs the finished stage {which!r} ({path}): build it first")
    return path


def overrides(config: Config) -> list[str]:
    """Return command-line arguments for the settings that differ from the profile."""
    return [f"--{format_setting(name, value)}" for name, value in config.overrides().items()]


def arguments(name: str, config: Config, runs: Path) -> list[str]:
    """Return the arguments of `drlib.training.build`; `config` as overrides of its profile."""
    return [name, f"--profile={config.profile}", f"--runs={runs}", *overrides(config)]
