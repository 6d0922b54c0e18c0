r"""The stage graph: inputs, settings, folder and builder of each stage.

    world -> untrained -> cpt \
          -> demonstrations -> sft -> rl, rl_random_reward, sft_continued -> evaluate_...
                                      rl -> distill -> evaluate_distill
    policies of finished runs -> merge -> evaluate_merge

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
    FIELDS,
    POLICY_SETTINGS,
    STORED_ROLLOUTS,
    WORLD_SETTINGS,
    Config,
    absolute_paths,
    declared_for,
    format_setting,
    list_rollout_files,
    split_policies,
    split_worlds,
)
from drlib.environments.environment import fingerprint_environments
from drlib.registry import Registry, plugin_names
from drlib.training.run_folder import RunFolder, RunFolderError
from drlib.worlds import fingerprint_world

STAGE_FORMAT = 5  # raise when a stage's code changes what it makes from the same settings
WEIGHTS = "model.safetensors"
# The contents of their folders count, not only the names.
ENVIRONMENT_SETTINGS = (
    "demonstrations.environments",
    "rl.curriculum.environments",
    "evaluation.environments",
)
# Settings of `rl` that distillation does not use: its loss has no reward, advantage or group.
UNUSED_IN_DISTILLATION = (
    "rl.start",
    "rl.steps",
    "rl.questions",
    "rl.lr",
    "rl.minibatches",
    "rl.loss.",
    "rl.advantage.",
    "rl.filter.",
    "rl.sampling.",
    "rl.off_policy.",
    "rl.asynchronous.",
    "rl.reward.",
    "rl.callbacks.",
)


@dataclass(frozen=True)
class Stage:
    """Stage of the graph.

    Attributes:
        build: "module:function", called as build(config, run_dir, ranks, **arguments).
        inputs: stages that this one reads.
        reads: name of a stage whose declared settings it reads in addition to its own.
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

    @property
    def readers(self) -> set[str]:
        """Names under which its settings are declared."""
        return {self.name, self.reads or self.name}

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
        "drlib.training.model_demonstrations:demonstrate",
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
register(
    Stage(
        "distill",
        "drlib.training.distill:distill",
        inputs=("rl",),
        reads="rl",
        fixed={
            "rl.group": 1,
            **{
                name: member.default
                for name, member in FIELDS.items()
                if name.startswith(UNUSED_IN_DISTILLATION) and name != "rl.loss.chunked_logprobs"
            },
        },
        start="distill.start",
        steps="distill.steps",
        title="after distillation",
        colour="C4",
    )
)
register(
    Stage(
        "merge",
        "drlib.training.merge:merge",
        inputs=("world",),
        parallel=False,
        title="merged",
        colour="C5",
    )
)
EVALUATED = (
    "untrained",
    "cpt",
    "sft",
    "sft_continued",
    "rl",
    "rl_random_reward",
    "distill",
    "merge",
    "closed_book",
)
for _of in EVALUATED:
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
    given = whole.demonstrations.policy
    if name == "demonstrations" and whole.demonstrations.teacher == "model" and not given:
        return (*stage.inputs, "untrained")
    return stage.inputs


def list_ancestors(name: str, config: Config) -> list[str]:
    """Return all stages that `name` depends on, in build order, and `name` itself."""
    found = [s for i in list_inputs(name, config) for s in list_ancestors(i, config)]
    return [*dict.fromkeys(found), name]


def restricted_config(name: str, config: Config) -> Config:
    """Return the settings that the stage may read: those covered by its hash."""
    covered = list_ancestors(name, config)
    return stage_config(name, config).restrict(set().union(*(STAGES[n].readers for n in covered)))


def start_folder(name: str, config: Config) -> Path:
    """Return the policy folder given by the `start` setting of a stage.

    Raises ValueError if there is none, or the folder has no policy.
    """
    setting = STAGES[name].start
    for _, folder in policy_folders(setting, config):
        return folder
    raise ValueError(f"{setting} is empty: pass a policy folder")


def policy_folders(setting: str, config: Config) -> list[tuple[str, Path]]:
    """Return (name, folder) of the policies in a setting such as "python=A,search=B".

    Relative paths start at the working directory; a committed policy is also found by its path in
    the checkout. Raises ValueError if a folder has no policy.
    """
    found = []
    for name, given in split_policies(config.unrestricted().get(setting)):
        path = Path(absolute_paths({setting: given})[setting]).expanduser().absolute()
        if not (path / WEIGHTS).exists():
            raise ValueError(
                f"{setting}={given!r}: there is no policy in {path}; pass the folder `policy` of a "
                "finished stage"
            )
        found.append((name, path))
    return found


def stage_settings(name: str, config: Config) -> dict:
    """Return all settings that the result of a stage depends on, with those of its inputs."""
    inputs = {i: stage_settings(i, config) for i in list_inputs(name, config)}
    stage = STAGES[name]
    whole = stage_config(name, config)
    own = {name: whole.get(name) for reader in stage.readers for name in declared_for(reader)}
    for setting in POLICY_SETTINGS:
        if own.get(setting):  # the weights count, not their path
            own[setting] = _hash_policies(setting, whole)
    if own.get(STORED_ROLLOUTS):  # the contents count, not their path
        files = list_rollout_files(own[STORED_ROLLOUTS])
        own[STORED_ROLLOUTS] = [_hash(file.read_bytes()) for file in files]
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
    for setting in ENVIRONMENT_SETTINGS:
        if own.get(setting) and (files := fingerprint_environments(own[setting])):
            own[f"{setting}_files"] = files
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


def _hash_policies(setting: str, config: Config) -> str:
    """Return the hash of a policy's weights, or of each policy's with its name."""
    found = [(n, _hash((f / WEIGHTS).read_bytes())) for n, f in policy_folders(setting, config)]
    return ",".join(f"{name}={value}" if name else value for name, value in found)


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
