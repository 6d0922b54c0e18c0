"""`drlib experiment run strategies`: compare agents of the same policies on the same questions.

`strategies.yaml` lists the policies to train, the agents with their questions and limits
(`drlib.experiments.agent_comparison.Trial`), and claims about two trials. The outcomes of every
trial and seed are a ledger in `figures/reference/agents/strategies/seedN.json`. A claim is the
paired difference of two of them with its interval over seeds and questions, in
`figures/reference/findings/NAME.json`.

Not included: a correction for the number of claims.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import yaml

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import ROOT, Config
from drlib.experiments.agent_comparison import (
    Ledger,
    Trial,
    at_equal_tokens,
    attempt,
    load_ledgers,
    save_ledgers,
)
from drlib.experiments.findings import FINDINGS
from drlib.experiments.records import copy_curve
from drlib.experiments.verdicts import SEEDS, decide, smallest_detectable
from drlib.files import write_atomic
from drlib.intervals import difference_interval
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy, save_policy
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.data import WORLD_FILE
from drlib.training.launch import build_stage
from drlib.validation import require
from drlib.worlds import SmallWorld

PLAN = Path(__file__).with_name("strategies.yaml")
LEDGERS = ROOT / "figures" / "reference" / "agents" / "strategies"
ARMS = ("setting", "control")


@dataclass(frozen=True)
class Claim:
    """A claim about two trials. measure: of the setting and of the control, see `measured_Q`."""

    name: str
    claim: str
    source: str
    expected: str
    setting: str
    control: str
    measure: tuple[str, str] = ("sample", "sample")


@dataclass(frozen=True)
class Plan:
    """Content of a strategies file.

    policies: name -> settings beyond the profile's. trials: name -> (policy, trial). question_seed:
    seed of all questions. kept: the policy whose weights after RL are kept, of the first seed.
    """

    policies: Mapping[str, Mapping]
    trials: Mapping[str, tuple[str, Trial]]
    claims: Mapping[str, Claim]
    question_seed: int
    kept: str = ""

    @staticmethod
    def load(path: Path = PLAN) -> "Plan":
        """Load a plan; ValueError if a trial's policy or a claim's trial is missing."""
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))
        trials = {}
        for row in rows["trials"]:
            policy = row.pop("policy")
            require(policy in rows["policies"], f"trial {row['name']}: no policy {policy!r}")
            trials[row["name"]] = policy, Trial(**row)
        claims = {}
        for row in rows["claims"]:
            claim = Claim(**row | {"measure": tuple(row.get("measure", ("sample", "sample")))})
            for name in (claim.setting, claim.control):
                require(name in trials, f"claim {claim.name}: no trial {name!r}")
            same = trials[claim.setting][1].questions == trials[claim.control][1].questions
            require(same, f"claim {claim.name}: its trials ask different questions")
            claims[claim.name] = claim
        seed = rows["question_seed"]
        return Plan(rows["policies"], trials, claims, seed, rows.get("kept", ""))

    def config(self, policy: str, profile: str, seed: int) -> Config:
        """Return the configuration of a policy."""
        return Config.load(profile, **{**self.policies[policy], "seed": seed})


def measure(
    profile: str,
    seeds: Sequence[int],
    runs: Path,
    out: Path = LEDGERS,
    findings: Path = FINDINGS,
    plan: Plan | None = None,
) -> list[Path]:
    """Train missing policies, run the trials, write ledgers and findings; return all files.

    Trials run concurrently, in as many processes as a stage has. Existing ledgers of the same
    trial, policies and questions are reused.
    """
    plan = plan or Plan.load()
    command = f"drlib experiment run strategies --profile {profile} --seeds "
    command += " ".join(map(str, seeds))
    made = []
    head = {
        "command": command,
        "profile": profile,
        "policies": dict(plan.policies),
        "question_seed": plan.question_seed,
    }
    for seed in seeds:
        path = out / f"seed{seed}.json"
        found = _there(path, head)
        missing = []
        for policy, trial in plan.trials.values():
            if trial in found:
                continue
            config = plan.config(policy, profile, seed)
            build_stage(trial.stage, config, runs=runs)
            missing.append((trial, config, runs, plan.question_seed))
            if trial.stage == "rl":
                copy_curve("rl", config, runs, out / policy)
        if missing:
            with ProcessPoolExecutor(config.processes, get_context("spawn")) as pool:
                new = pool.map(_tried, *zip(*missing))
                found |= {ledger.trial: ledger for ledger in new}
        ledgers = [found[trial] for _, trial in plan.trials.values()]
        made.append(save_ledgers(path, head, ledgers))
    if plan.kept:
        config = plan.config(plan.kept, profile, seeds[0])
        model, tokenizer = load_policy(stages.folder("rl", config, runs) / "policy")
        save_policy(model, tokenizer, out.with_name("policy"), dtype=torch.bfloat16)
    for claim in plan.claims.values():
        found = finding(claim, out, seeds)
        path = findings / f"{claim.name}.json"
        made.append(write_atomic(path, json.dumps(found, indent=1) + "\n"))
    return made


def _there(path: Path, head: Mapping) -> dict[Trial, Ledger]:
    """Return the ledgers in a file if it belongs to the same policies and questions."""
    if not path.exists():
        return {}
    before, ledgers = load_ledgers(path)
    names = ("profile", "policies", "question_seed")
    same = all(before[name] == json.loads(json.dumps(head[name])) for name in names)
    return {ledger.trial: ledger for ledger in ledgers} if same else {}


def _tried(trial: Trial, config: Config, runs: Path, question_seed: int) -> Ledger:
    """Run one trial with one policy in this process."""
    folder = stages.require_input("a trial", trial.stage, config, runs) / "policy"
    model, _ = load_policy(folder)
    chat = ChatIds(load_tokenizer(folder))
    world = stages.require_input("a trial", "world", config, runs) / WORLD_FILE
    world = SmallWorld.load(world)
    torch.set_num_threads(1)  # small matrices: threads would only wait for each other
    with (
        Sandbox() as sandbox,
        Toolbox(world, sandbox, results=config.rollout.search_results) as tools,
    ):
        limit = trial.context_tokens
        engine = LocalEngine(model.eval(), max_context=limit, lockstep=True)
        return attempt(trial, engine, tools, chat, world, question_seed, config.seed)


def read_ledgers(
    folder: Path = LEDGERS, seeds: Sequence[int] | None = None
) -> tuple[dict, dict[str, list[Ledger]]]:
    """Return (head, trial name -> ledgers, one per seed); ValueError without any."""
    paths = sorted(folder.glob("seed*.json"))
    if seeds is not None:
        paths = [folder / f"seed{seed}.json" for seed in seeds]
    require(bool(paths), f"no ledgers in {folder}: drlib experiment run strategies makes them")
    by_trial: dict[str, list[Ledger]] = {}
    for path in paths:
        head, ledgers = load_ledgers(path)
        for ledger in ledgers:
            by_trial.setdefault(ledger.trial.name, []).append(ledger)
    return head, by_trial


def measured_Q(ledger: Ledger, what: str, other: Ledger) -> np.ndarray:
    """Return each question's score.

    "sample" is the share of right samples, "vote:N" the majority of N, "vote:equal" the majority of
    as many as cost the tokens of one rollout of `other`, "pass:N" any of N.
    """
    name, _, n = what.partition(":")
    if name == "sample":
        return ledger.accuracy_Q()
    require(name in ("vote", "pass") and bool(n), f"no measure {what!r}")
    samples = at_equal_tokens(ledger, other) if n == "equal" else int(n)
    return ledger.voted_Q(samples) if name == "vote" else ledger.passed_Q(samples)


def finding(claim: Claim, folder: Path, seeds: Sequence[int]) -> dict:
    """Judge the claim from the ledgers; effects are shares, setting minus control."""
    head, by_trial = read_ledgers(folder, seeds)
    pairs = list(zip(by_trial[claim.setting], by_trial[claim.control], strict=True))
    on_SQ = np.array([measured_Q(on, claim.measure[0], off) for on, off in pairs])
    off_SQ = np.array([measured_Q(off, claim.measure[1], on) for on, off in pairs])
    require(
        all(on.tasks == off.tasks == pairs[0][0].tasks for on, off in pairs),
        f"claim {claim.name}: its trials asked different questions",
    )
    effect, *interval = difference_interval(on_SQ - off_SQ)
    by_seed = [round(float(each), 5) for each in (on_SQ - off_SQ).mean(1)]
    trials = [pairs[0][arm].trial for arm in (0, 1)]
    return {
        "claim": claim.claim,
        "source": claim.source,
        "expected": claim.expected,
        "outcome": decide(claim.expected, *interval, len(seeds)),
        "pilot": len(seeds) < SEEDS,
        "smallest_detectable": smallest_detectable(by_seed),
        "by_seed": by_seed,
        "command": head["command"],
        "commit": [head["commit"]] if head.get("commit") else [],
        "n": on_SQ.shape[1],
        "seeds": list(seeds),
        "asked": {
            "stage": trials[0].stage,
            "kind": trials[0].questions,
            "decoding": " against ".join(dict.fromkeys(claim.measure)),
        },
        **{
            arm: {"trial": trial.name, "agent": trial.agent, "measure": what}
            for arm, trial, what in zip(ARMS, trials, claim.measure)
        },
        "accuracy": [round(float(scores.mean()), 5) for scores in (on_SQ, off_SQ)],
        "effect": round(float(effect), 5),
        "interval": [round(float(end), 5) for end in interval],
        "tokens_sampled": [
            round(float(np.mean([pair[arm].mean("sampled") for pair in pairs])), 1)
            for arm in (0, 1)
        ],
    }
