"""Experiment plans: several settings of one stage against a named control, for several seeds.

    name: clips
    about: Which clip of the ratio learns most, at the same steps from the same cold start
    stage: rl                        # whose policies are compared
    profile: laptop                  # default
    seeds: [0, 1, 2]                 # default
    asked: [search sample]           # default; kind and decoding, the figure is of the first
    common: {rl.steps: 25}           # settings of all arms
    control: ppo                     # the arm that the others are compared with
    arms:
      ppo: {}
      cispo: {rl.loss.clip: cispo}
      none: {rl.loss.clip: none, claim: Without a clip it learns less, source: us, expected: lower}

Arms may start from policies that the experiment trains first, with the same seed:

    stage: distill
    policies:                        # runs of stage rl; each may name earlier ones
      first: {rl.start: figures/reference/tour/policy_sft, rl.curriculum.python_share: 0.0}
      last: {rl.start: "{first}", rl.curriculum.python_share: 1.0}
    common: {distill.start: "{last}"}
    control: last
    arms:
      last: {distill.teachers: "{last}", distill.steps: 0}
      both: {distill.teachers: "search={first},python={last}"}

An arm may carry a claim. A claim about the ranking of all arms compares the first two of `asked`
(`drlib.experiments.rank_agreement`):

    asked: [search sample, realistic sample]
    common: {evaluation.shift.fault_share: 0.1}
    ranking: {claim: The rankings agree, source: us, expected: higher}

A sequential design names the numbers of seeds at which the claims are tested
(`drlib.experiments.designs`). The seeds are then 0 to 19 here, or as many as `seeds` lists:

    design: {margin: 0.05, looks: [8, 14, 20], alpha: 0.05, power: 0.8}

A plan is checked before training: unknown names, a missing control, equal
arms, arms with different questions, and settings that exclude each other raise an error.

Not supported: grids. A plan lists its arms, because each costs a training run per seed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from drlib.config import ROOT, TOUR, Config, absolute_paths
from drlib.environments.environment import environment_names
from drlib.experiments.designs import Design, read_design
from drlib.experiments.verdicts import Statement, seeds_of_design
from drlib.registry import load_plugins, suggest_name
from drlib.training import stages
from drlib.validation import require

if TYPE_CHECKING:
    from drlib.experiments.agent_plan import AgentPlan

PLANS = Path(__file__).with_name("plans")  # shipped plans
REQUIRED = ("name", "about", "stage", "control", "arms")
KEYS = (*REQUIRED, "profile", "seeds", "design", "asked", "common", "policies", "ranking")
SAID = ("claim", "source", "expected")  # what an arm may carry beside its settings
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")  # of a plan and of an arm: a folder's too
REFERENCE = re.compile(r"\{([A-Za-z0-9][A-Za-z0-9_.+-]*)\}")  # to a policy, in a setting
ASKED = "search sample"


@dataclass(frozen=True)
class Arm:
    """Arm of an experiment: its settings, and its claim against the control, if any."""

    name: str
    settings: Mapping
    statement: Statement | None = None


@dataclass(frozen=True)
class ExperimentPlan:
    """A checked plan; the module docstring describes the fields.

    asked: (kind, decoding) of the held-out questions that are compared; claims and the figure are
    about the first. file: where the plan was read from. policies: settings of runs of stage `rl`
    that arms and later policies name as "{name}". ranking: claim about the ranking of the arms in
    the first two of `asked`. design: None for plans without one.
    """

    name: str
    about: str
    stage: str
    control: str
    file: Path
    arms: Mapping[str, Arm]
    profile: str = "laptop"
    seeds: Sequence[int] = (0, 1, 2)
    asked: Sequence[tuple[str, str]] = ()
    common: Mapping = field(default_factory=dict)
    policies: Mapping[str, Mapping] = field(default_factory=dict)
    ranking: Statement | None = None
    design: Design | None = None

    def config(self, arm: str, seed: int, runs: Path | None = None) -> Config:
        """Return the configuration of one run.

        Args:
            runs: folder of the policies that the arm names, which must be trained; None: a
                committed policy takes their places, to check the settings.
        """
        return self._load({**self.common, **self.arms[arm].settings}, seed, runs)

    def policy_config(self, name: str, seed: int, runs: Path | None = None) -> Config:
        """Return the configuration of the run of stage `rl` that trains a policy."""
        return self._load(self.policies[name], seed, runs)

    def policy_run(self, name: str, seed: int, runs: Path) -> Path:
        """Return the folder of this run."""
        return stages.folder("rl", self.policy_config(name, seed, runs), runs)

    def policies_of(self, arm: str) -> list[str]:
        """Return the policies that an arm needs, in the order of training."""
        needed = {*_references({**self.common, **self.arms[arm].settings})}
        for name in reversed([*self.policies]):
            if name in needed:
                needed |= {*_references(self.policies[name])}
        return [name for name in self.policies if name in needed]

    def _load(self, own: Mapping, seed: int, runs: Path | None) -> Config:
        """Load settings with the folders of the policies that they name."""

        def find_folder(match: re.Match) -> str:
            run = TOUR / "policy_sft" if runs is None else self.policy_run(match[1], seed, runs)
            return str(run if runs is None else run / "policy")

        settings = {
            key: REFERENCE.sub(find_folder, value) if isinstance(value, str) else value
            for key, value in own.items()
        } | {"seed": seed}
        if self.file.parent == PLANS and Path.cwd() != ROOT:
            settings = absolute_paths(settings, ROOT)  # a shipped plan names committed files
        return Config.load(self.profile, **settings)

    def runs(self) -> list[tuple[str, int]]:
        """Return (arm, seed) of all runs, seed by seed, so that an interrupted experiment can be
        compared.
        """
        return [(arm, seed) for seed in self.seeds for arm in self.arms]

    def finding_name(self, arm: str) -> str:
        """Return the name of an arm's finding: the plan's if only one arm has a claim, else
        PLAN_ARM.
        """
        claims = [one for one in self.arms.values() if one.statement]
        return self.name if len(claims) == 1 else f"{self.name}_{arm}"


def load_plan(
    file: str | Path, profile: str | None = None, seeds: Sequence[int] | None = None
) -> "ExperimentPlan | AgentPlan":
    """Load the plan in a file, or of a name in `drlib/experiments/plans`; ValueError if invalid.

    A plan with `trials` compares agents (`drlib.experiments.agent_plan`), any other compares
    settings.

    profile, seeds: replace those of the file.
    """
    path = _found(file)
    rows = _read(path)
    if "design" in rows:
        require("trials" not in rows, "design: plans with trials have none, remove it")
        rows |= _designed(rows)
    given: dict = {"profile": profile} if profile else {}
    given |= {"seeds": list(seeds)} if seeds else {}
    if "trials" in rows:
        from drlib.experiments.agent_plan import read_agent_plan  # lazily: it brings torch

        return read_agent_plan(path, rows | given)
    return _experiment_plan(path, rows | given)


def designed_plans(folder: Path = PLANS) -> list[ExperimentPlan]:
    """Return the plans in a folder that have a sequential design, by name."""
    # only these are checked, which takes a second for many plans
    paths = [path for path in sorted(folder.glob("*.yaml")) if "design" in _read(path)]
    plans = [load_plan(path) for path in paths]
    return [plan for plan in plans if isinstance(plan, ExperimentPlan)]


def _designed(rows: Mapping) -> dict:
    """Return the design of a plan and its seeds, as many as its last look."""
    design = read_design(rows["design"])
    _check_seeds(rows.get("seeds", [0]))
    seeds = seeds_of_design(rows, design)
    require(
        len(seeds) == design.looks[-1],
        f"seeds: the design needs {design.looks[-1]}, got {len(seeds)}: change one of both",
    )
    require("ranking" not in rows, "design: a claim about a ranking has none, remove one of both")
    return {"design": design, "seeds": seeds}


def _experiment_plan(path: Path, rows: dict) -> ExperimentPlan:
    _known(rows, KEYS, "key")
    for key in REQUIRED:
        require(key in rows, f"the plan lacks {key!r}: it needs {', '.join(REQUIRED)}")
    for key in ("name", "about", "stage", "control"):
        require(isinstance(rows[key], str), f"{key}: give a text, got {rows[key]!r}")
    _check_name("name", rows["name"])
    _check_seeds(rows.get("seeds", [0]))
    rows["arms"] = _arms(rows["arms"], rows["control"])
    rows["common"] = _settings("common", rows.get("common"))
    rows["policies"] = _policies(rows)
    asked = rows.get("asked", [ASKED])
    require(isinstance(asked, list) and bool(asked), f"asked: give a list such as [{ASKED}]")
    pairs = all(isinstance(each, str) and " " in each for each in asked)
    require(pairs, f"asked: give a kind and a decoding each, such as {ASKED!r}, got {asked!r}")
    rows["asked"] = [tuple(each.rpartition(" ")[::2]) for each in asked]
    if "ranking" in rows:
        rows["ranking"] = _ranking(rows)
    plan = ExperimentPlan(**rows, file=path)
    _check_stage(plan)
    _check_settings(plan)
    _check_asked(plan)
    return plan


def _found(file: str | Path) -> Path:
    shipped = {path.stem: path for path in PLANS.glob("*.yaml")}
    path = shipped.get(str(file), Path(file))
    hint = suggest_name(str(file), shipped)
    require(path.is_file(), f"no plan {str(file)!r}: give the path of a file, or a name: {hint}")
    return path


class _OnceLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys, as the first of two equal arms would be lost."""

    def construct_mapping(self, node, deep=False):
        named = (key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge")
        keys = [self.construct_object(key, deep=True) for key in named]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        require(twice is None, f"{twice!r} stands twice in the plan: rename or remove one")
        return super().construct_mapping(node, deep)


def _read(path: Path) -> dict:
    try:
        rows = yaml.load(path.read_text(encoding="utf-8"), _OnceLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise ValueError(f"{path} cannot be read as YAML: {' '.join(str(fault).split())}") from None
    require(isinstance(rows, dict), f"{path}: give `name: value` lines, got {type(rows).__name__}")
    return rows


def _known(given: Iterable, known: Iterable[str], what: str) -> None:
    unknown = next((key for key in given if key not in known), None)
    require(unknown is None, f"unknown {what} {unknown!r}: {suggest_name(str(unknown), known)}")


def _check_name(what: str, name) -> None:
    """Require a text: in YAML 1.1, unquoted off, no and 1 are not texts."""
    fits = isinstance(name, str) and NAME.fullmatch(name) is not None
    require(fits, f"{what} {name!r}: give a text of letters, digits and _.+- (quote off, no, 1)")


def _check_seeds(seeds) -> None:
    fits = isinstance(seeds, list) and all(type(seed) is int and seed >= 0 for seed in seeds)
    fits = fits and 0 < len(seeds) == len(set(seeds))
    require(fits, f"seeds: give different whole numbers from 0, such as [0, 1, 2], got {seeds!r}")


def _arms(given, control: str) -> dict[str, Arm]:
    """Return the arms by name; ValueError for fewer than two or a missing control."""
    many = isinstance(given, dict) and len(given) > 1
    require(many, "arms: give two and more, `name: {setting: value}`, the control among them")
    arms = {}
    for name, content in given.items():
        _check_name("arm", name)
        content = _settings(f"arm {name!r}", content)
        settings = {key: value for key, value in content.items() if key not in SAID}
        arms[name] = Arm(name, settings, _statement(name, content, name == control))
    require(control in arms, f"control {control!r} is no arm: {suggest_name(control, arms)}")
    return arms


def _settings(where: str, content) -> dict:
    """Return a mapping of settings; None counts as empty."""
    content = {} if content is None else content
    require(isinstance(content, dict), f"{where}: give {{setting: value}}, got {content!r}")
    for key, instead in (("seed", "seeds"), ("profile", "profile")):
        require(key not in content, f"{where}: {key} belongs at the top, as {instead}")
    return content


def _policies(rows: Mapping) -> dict[str, dict]:
    """Return the settings of the policies; ValueError for a reference to an unknown one."""
    found: dict[str, dict] = {}
    for name, content in _settings("policies", rows.get("policies")).items():
        _check_name("policy", name)
        found[name] = _settings(f"policy {name!r}", content)
        _known(_references(found[name]), [*found][:-1], f"policy in policy {name!r}:")
    _known(_references(rows["common"]), found, "policy in common:")
    for name, arm in rows["arms"].items():
        _known(_references(arm.settings), found, f"policy in arm {name!r}:")
    return found


def _references(settings: Mapping) -> list[str]:
    """Return the names of the policies in settings."""
    values = [value for value in settings.values() if isinstance(value, str)]
    return [name for value in values for name in REFERENCE.findall(value)]


def _statement(name: str, content: Mapping, is_control: bool) -> Statement | None:
    said = [content[key] for key in SAID if key in content]
    if not said:
        return None
    require(not is_control, f"arm {name!r} is the control: a claim is of an arm against it")
    texts = len(said) == len(SAID) and all(isinstance(text, str) and text for text in said)
    require(texts, f"arm {name!r}: a claim is three texts: {', '.join(SAID)}")
    return Statement(f"arm {name!r}", *said)


def _ranking(rows: Mapping) -> Statement:
    """Return the claim about the ranking; ValueError if the rankings cannot be compared."""
    content = _settings("ranking", rows["ranking"])
    _known(content, SAID, "key in ranking:")
    texts = all(isinstance(content.get(key), str) and content[key] for key in SAID)
    require(texts, f"ranking: a claim is three texts: {', '.join(SAID)}")
    kinds = {kind for kind, _ in rows["asked"][:2]}
    shared = len(rows["asked"]) > 1 and (len(kinds) == 1 or kinds == {"search", "realistic"})
    require(
        shared and len(rows["arms"]) > 2,
        "ranking: compares three arms and more by the first two of asked, which must have the same "
        "questions, such as [search sample, realistic sample]",
    )
    return Statement("ranking", *(content[key] for key in SAID))


def _check_stage(plan: ExperimentPlan) -> None:
    """Require a stage that is evaluated and trains its own policy."""
    asked = {name.removeprefix("evaluate_") for name in stages.STAGES}
    known = [
        name for name in stages.STAGES if name in asked and f"evaluate_{name}" in stages.STAGES
    ]
    _known([plan.stage], known, "stage")


def _check_settings(plan: ExperimentPlan) -> None:
    """Require known settings that differ between arms and keep the questions."""
    for name in plan.policies:
        plan.policy_config(name, plan.seeds[0])
    folders: dict[tuple, str] = {}
    for name, arm in plan.arms.items():
        config = _config(plan, name)
        _check_questions(name, arm.settings, config)
        folder = stages.folder(f"evaluate_{plan.stage}", config, Path())
        same = folders.setdefault((folder, *_references(arm.settings)), name)
        fault = f"arms {same!r} and {name!r} have equal settings for stage {plan.stage!r}"
        require(same == name, f"{fault}: they would be the same runs, remove one")
        _check_switches(plan, name, config)


def _config(plan: ExperimentPlan, arm: str) -> Config:
    """Load the configuration of the first seed; ValueError names the arm, or `common`."""
    for where, settings in (("common", plan.common), (f"arm {arm!r}", plan.arms[arm].settings)):
        try:
            load_plugins(settings.get("plugins", ""))
            plan._load(settings, plan.seeds[0], None)
        except ValueError as fault:
            raise ValueError(f"{where}: {fault}") from None
    return plan.config(arm, plan.seeds[0])


def _check_questions(name: str, settings: Mapping, config: Config) -> None:
    """Require the same questions in all arms, because differences are paired by question."""
    chooses = {
        "questions.source",
        "rollout.search_results",
    }  # what one search finds is no question of two
    if config.questions.source == "engine":
        chooses.add("rollout.max_calls")  # what cannot be found in so many is not asked
    for key in settings:
        fault = f"arm {name!r}: {key} chooses the held-out questions, which are the same for all"
        fits = key not in chooses and not key.startswith(("evaluation.", "world."))
        require(fits, f"{fault}: move it to common")


def _check_switches(plan: ExperimentPlan, name: str, config: Config) -> None:
    """Reject settings that RL training would refuse hours later."""
    ancestors = stages.list_ancestors(plan.stage, config)
    if not any("rl" in stages.STAGES[one].readers for one in ancestors):
        return
    from drlib.training.grpo import check_rl_settings  # lazily: it brings torch

    try:
        check_rl_settings(config)
    except ValueError as fault:
        raise ValueError(f"arm {name!r}: {fault}") from None


def _check_asked(plan: ExperimentPlan) -> None:
    """Require kinds of questions and decodings that the evaluation has."""
    config = plan.config(plan.control, plan.seeds[0])
    several = ("2 conditions", "3 conditions") if config.questions.source == "engine" else ()
    if config.evaluation.shift.is_active:
        several = (*several, "realistic")
    several = (*several, *environment_names(config.evaluation.environments))
    for kind, decoding in plan.asked:
        _known([kind], ("search", "python", *several), "kind of question in asked:")
        decodings = ("sample", "greedy", f"pass@{config.evaluation.samples}")
        _known([decoding], decodings, "decoding in asked:")


def what_ran(plan: ExperimentPlan) -> dict:
    """Return what the runs depend on besides seeds; stored results are matched by it."""
    arms = {name: {**plan.common, **arm.settings} for name, arm in plan.arms.items()}
    policies = {"policies": dict(plan.policies)} if plan.policies else {}
    return {"stage": plan.stage, "profile": plan.profile, "settings": arms, **policies}
