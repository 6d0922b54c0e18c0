"""The stage graph: what is made from what, under which name, and by which program.

    world -> demonstrations \\
          -> cpt ------------> sft -> rl, rl_random_reward, sft_continued -> evaluations

A stage's folder is `runs/<profile>/<stage>-<hash>`, where the hash covers the settings it uses and
those of everything before it: equal settings share a folder, and a changed setting never reuses a
stale one. The modules named in `STAGES` do the work, each a program that takes the same arguments.
"""

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from drlib.config import Config
from drlib.files import WriteError
from drlib.training.run import Interrupted, Ranks, RunFolder, RunFolderError

FORMAT = 4  # raise when a stage's code changes what it makes from the same settings


@dataclass(frozen=True)
class Stage:
    """`settings` are prefixes of the Config names that this stage reads itself."""

    module: str
    inputs: tuple[str, ...]
    settings: tuple[str, ...]
    steps: str = ""  # the setting that says how many steps its progress bar has
    parallel: bool = True


SHAPE = (
    "vocabulary",
    "hidden",
    "layers",
    "heads",
    "kv_heads",
    "head_dim",
    "experts",
    "expert_",
    "init",
)
LIMITS = ("search_results", "max_")
CPT = ("cpt_", "balance_coef", "checkpoint_every", "search_results")
SFT = ("sft_steps", "sft_batch", "sft_muon", "sft_adam", "sft_replay", "demonstration_filter")
RL = ("rl_", "balance_coef", "checkpoint_every", *LIMITS)
HERE = "drlib.training."
POOL = ("demonstrations", "seed", *LIMITS)

STAGES: dict[str, Stage] = {
    "world": Stage(HERE + "data", (), ("world", "vocabulary"), parallel=False),
    "untrained": Stage(HERE + "pretrain", ("world",), (*SHAPE, "seed"), parallel=False),
    "demonstrations": Stage(HERE + "data", ("world",), POOL, parallel=False),
    "cpt": Stage(HERE + "pretrain", ("untrained",), CPT, "cpt_steps"),
    "sft": Stage(HERE + "sft", ("cpt", "demonstrations"), SFT, "sft_steps"),
    "sft_continued": Stage(HERE + "sft", ("sft",), ("sft_continued_steps",), "sft_continued_steps"),
    "rl": Stage(HERE + "grpo", ("sft",), RL, "rl_steps"),
    "rl_random_reward": Stage(HERE + "grpo", ("sft",), RL, "rl_steps"),
}
EVALUATED = ("untrained", "cpt", "sft", "sft_continued", "rl", "rl_random_reward", "closed_book")
for _name in EVALUATED:
    _of = "rl" if _name == "closed_book" else _name
    STAGES[f"evaluate_{_name}"] = Stage("drlib.evals.evaluate", (_of,), ("eval_", *LIMITS))


def stage(name: str) -> Stage:
    if name not in STAGES:
        raise ValueError(f"unknown stage {name!r}: known are {', '.join(STAGES)}")
    return STAGES[name]


def config_of(name: str, config: Config) -> Config:
    """The control of RL is the same stage with another reward."""
    return config.derive(rl_reward="random") if name.endswith("rl_random_reward") else config


def settings_of(name: str, config: Config) -> dict:
    """Everything that the stage's result depends on, inputs included."""
    inputs = {i: settings_of(i, config) for i in stage(name).inputs}
    own = config_of(name, config).pick(*stage(name).settings)
    return {"stage": name, "format": FORMAT, "own": own, "inputs": inputs}


def folder(name: str, config: Config, runs: Path) -> Path:
    """Where the stage lies when it is complete."""
    text = json.dumps(settings_of(name, config), sort_keys=True).encode()
    return runs / config.profile / f"{name}-{hashlib.sha256(text).hexdigest()[:10]}"


def needed(name: str, config: Config, runs: Path) -> list[str]:
    """The stages that must still be built for `name`, in order."""
    if RunFolder.complete(folder(name, config, runs)):
        return []
    before = [s for i in stage(name).inputs for s in needed(i, config, runs)]
    return [*dict.fromkeys(before), name]


def input_folder(name: str, which: str, config: Config, runs: Path) -> Path:
    """A complete input of stage `name`; RunFolderError says what to build first."""
    path = folder(which, config, runs)
    if not RunFolder.complete(path):
        raise RunFolderError(f"{name} needs the finished stage {which!r} ({path}): build it first")
    return path


def overrides(config: Config) -> list[str]:
    """`--set` arguments for what differs from the profile (YAML, so that 5e-05 stays a number)."""
    base = dataclasses.asdict(Config.load(config.profile))
    changed = {k: v for k, v in dataclasses.asdict(config).items() if base[k] != v}
    return [f"--set={k}={yaml.safe_dump(v).splitlines()[0]}" for k, v in changed.items()]


def arguments(name: str, config: Config, runs: Path) -> list[str]:
    """Arguments for the stage's module; `config` travels as overrides of its profile."""
    return [name, f"--profile={config.profile}", f"--runs={runs}", *overrides(config)]


def main(builders: dict[str, Callable]) -> None:
    """The command line of every stage module; `builders`: name -> (config, run_dir, ranks)."""
    parser = argparse.ArgumentParser(description="build one stage of the recipe")
    parser.add_argument("stage", choices=sorted(builders))
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    args = parser.parse_args()
    try:
        changes = {k: yaml.safe_load(v) for k, _, v in (s.partition("=") for s in args.set)}
        config = Config.load(args.profile, **changes)
        ranks, path = Ranks(), folder(args.stage, config, args.runs)
        builders[args.stage](config_of(args.stage, config), path, ranks)
        if ranks.first:
            print(path)
    except (ValueError, WriteError, RunFolderError) as fault:
        sys.exit(f"error: {fault}")
    except Interrupted:
        print("interrupted: the same command goes on from the last checkpoint", file=sys.stderr)
        sys.exit(130)  # as shells have it after Ctrl-C
