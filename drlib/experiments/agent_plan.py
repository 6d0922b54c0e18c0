"""Plans that compare agents of the same policies on the same questions.

    name: strategies
    about: Agents and context strategies of two policies
    profile: laptop                  # default
    seeds: [0, 1, 2]                 # default
    question_seed: 830417            # seed of all questions
    kept: contexts                   # policy whose weights after RL are kept, of the first seed
    policies: {contexts: {rl.steps: 24}}
    trials:                          # `drlib.experiments.agent_comparison.Trial`, and its policy
      - {name: react, policy: contexts, agent: react, samples: 16}
      - {name: heavy 8, policy: contexts, agent: "heavy:n=8"}
    claims:                          # about two trials with the same questions
      - name: heavy_votes
        claim: Heavy gives higher accuracy than a majority vote at equal tokens
        source: Tongyi DeepResearch (arXiv 2510.24701), Heavy mode
        expected: higher
        setting: heavy 8
        control: react
        measure: [sample, "vote:equal"]  # of setting and control, see `measure`

A claim is the paired difference of two trials with its interval over seeds and questions. No
correction is made for the number of claims.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from drlib.chat.template import ChatIds, load_tokenizer
from drlib.config import ROOT, Config
from drlib.experiments.agent_comparison import (
    AgentRecords,
    Ledger,
    Trial,
    at_equal_tokens,
    run_trial,
)
from drlib.experiments.records import EXPERIMENTS, read_curve
from drlib.experiments.verdicts import FINDINGS, Statement, registration
from drlib.files import write_atomic
from drlib.intervals import share_interval
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import load_policy, save_policy
from drlib.sandbox import Sandbox
from drlib.tools import Toolbox
from drlib.training import stages
from drlib.training.data import WORLD_FILE
from drlib.training.launch import build_stage
from drlib.training.run_folder import read_manifest
from drlib.validation import require
from drlib.worlds import SmallWorld

KEPT_POLICY = ROOT / "figures" / "reference" / "agents" / "policy"
ARMS = ("setting", "control")
REQUIRED = ("name", "about", "question_seed", "policies", "trials", "claims")


@dataclass(frozen=True)
class AgentClaim(Statement):
    """A claim about two trials; `measures` are those of the setting and of the control."""

    setting: str
    control: str
    measures: tuple[str, str] = ("sample", "sample")


@dataclass(frozen=True)
class AgentPlan:
    """A checked plan; the module docstring describes the fields.

    policies: name -> settings beyond the profile's. trials: name -> (policy, trial).
    """

    name: str
    about: str
    file: Path
    profile: str
    seeds: Sequence[int]
    question_seed: int
    policies: Mapping[str, Mapping]
    trials: Mapping[str, tuple[str, Trial]]
    claims: Mapping[str, AgentClaim]
    kept: str = ""

    def config(self, policy: str, seed: int) -> Config:
        """Return the configuration of a policy."""
        return Config.load(self.profile, **{**self.policies[policy], "seed": seed})


def read_agent_plan(file: Path, rows: Mapping) -> AgentPlan:
    """Check the content of a plan; ValueError names a missing policy, trial or key."""
    for key in REQUIRED:
        require(key in rows, f"the plan lacks {key!r}: it needs {', '.join(REQUIRED)}")
    trials = {}
    for row in rows["trials"]:
        own = dict(row)
        policy = own.pop("policy")
        require(policy in rows["policies"], f"trial {row['name']}: no policy {policy!r}")
        trials[row["name"]] = policy, Trial(**own)
    claims = {}
    for row in rows["claims"]:
        own = dict(row)
        measures = tuple(own.pop("measure", ("sample", "sample")))
        claim = AgentClaim(**own, measures=measures)
        for name in (claim.setting, claim.control):
            require(name in trials, f"claim {claim.name}: no trial {name!r}")
        same = trials[claim.setting][1].questions == trials[claim.control][1].questions
        require(same, f"claim {claim.name}: its trials ask different questions")
        claims[claim.name] = claim
    return AgentPlan(
        rows["name"],
        rows["about"],
        file,
        rows.get("profile", "laptop"),
        rows.get("seeds", (0, 1, 2)),
        rows["question_seed"],
        rows["policies"],
        trials,
        claims,
        rows.get("kept", ""),
    )


def run_agents(plan: AgentPlan, runs: Path, out: Path, command: str) -> Path:
    """Train missing policies, run the trials, write records and findings; return the records.

    Trials run concurrently, in as many processes as a stage has. Existing ledgers of the same
    trial, policies and questions are reused. Findings are written to `FINDINGS` for the committed
    experiment, else to OUT/findings.
    """
    path = out / f"{plan.name}.parquet"
    head = {
        "command": command,
        "profile": plan.profile,
        "policies": dict(plan.policies),
        "trials": {name: asdict(trial) for name, (_, trial) in plan.trials.items()},
        "question_seed": plan.question_seed,
    }
    records = AgentRecords(head, _existing(path, plan, head))
    codes = set()
    for seed in plan.seeds:
        missing = {}
        for name, (policy, trial) in plan.trials.items():
            config = plan.config(policy, seed)
            if (name, seed) not in records.ledgers:
                build_stage(trial.stage, config, runs=runs)
                missing[name] = (trial, config, runs, plan.question_seed)
            folder = stages.folder(trial.stage, config, runs)
            codes.add(read_manifest(folder)["code"])
            if trial.stage == "rl":
                records.curves[policy, seed] = read_curve("rl", config, runs)
        if missing:
            workers = next(iter(missing.values()))[1].processes
            with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
                found = pool.map(_run_trial, *zip(*missing.values()))
                records.ledgers |= {(name, seed): one for name, one in zip(missing, found)}
        head["seeds"] = sorted({seed for _, seed in records.ledgers})
        head["commit"] = sorted(codes)
        head["registered"] = registration(plan.file, plan.seeds, codes)
        records.save(path)
    if plan.kept and out.resolve() == EXPERIMENTS:
        config = plan.config(plan.kept, plan.seeds[0])
        model, tokenizer = load_policy(stages.folder("rl", config, runs) / "policy")
        save_policy(model, tokenizer, KEPT_POLICY, dtype=torch.bfloat16)
    folder = FINDINGS if out.resolve() == EXPERIMENTS else out / "findings"
    for name, found in agent_findings(plan, records).items():
        write_atomic(folder / f"{name}.json", json.dumps(found, indent=1) + "\n")
    return path


def _existing(path: Path, plan: AgentPlan, head: Mapping) -> dict[tuple[str, int], Ledger]:
    """Return the ledgers in a file that belong to the same policies, questions and trials."""
    if not path.exists():
        return {}
    records = AgentRecords.load(path)
    names = ("profile", "policies", "question_seed")
    if any(records.head[name] != json.loads(json.dumps(head[name])) for name in names):
        return {}
    trials = {name: trial for name, (_, trial) in plan.trials.items()}
    return {
        (name, seed): ledger
        for (name, seed), ledger in records.ledgers.items()
        if trials.get(name) == ledger.trial and seed in plan.seeds
    }


def _run_trial(trial: Trial, config: Config, runs: Path, question_seed: int) -> Ledger:
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
        return run_trial(trial, engine, tools, chat, world, question_seed, config.seed)


def measure(ledger: Ledger, what: str, other: Ledger) -> np.ndarray:
    """Return each question's score, [Q].

    Args:
        what: "sample" is the share of right samples, "vote:N" the majority of N, "vote:equal" the
            majority of as many as cost the tokens of one rollout of `other`, "pass:N" any of N.
    """
    name, _, n = what.partition(":")
    if name == "sample":
        return ledger.accuracy_Q()
    require(name in ("vote", "pass") and bool(n), f"no measure {what!r}")
    samples = at_equal_tokens(ledger, other) if n == "equal" else int(n)
    return ledger.voted_Q(samples) if name == "vote" else ledger.passed_Q(samples)


def agent_findings(plan: AgentPlan, records: AgentRecords) -> dict[str, dict]:
    """Return the judged claims by name; effects are shares, setting minus control."""
    return {name: _finding(claim, records) for name, claim in plan.claims.items()}


def _finding(claim: AgentClaim, records: AgentRecords) -> dict:
    head, by_trial = records.head, records.by_trial()
    pairs = list(zip(by_trial[claim.setting], by_trial[claim.control], strict=True))
    on_SQ = np.array([measure(on, claim.measures[0], off) for on, off in pairs])
    off_SQ = np.array([measure(off, claim.measures[1], on) for on, off in pairs])
    require(
        all(on.tasks == off.tasks == pairs[0][0].tasks for on, off in pairs),
        f"claim {claim.name}: its trials asked different questions",
    )
    by_seed = [round(float(each), 5) for each in (on_SQ - off_SQ).mean(1)]
    trials = [pairs[0][arm].trial for arm in (0, 1)]
    return {
        **claim.judge(on_SQ - off_SQ, head["registered"]),
        "accuracy": [round(float(scores.mean()), 5) for scores in (on_SQ, off_SQ)],
        "command": head["command"],
        "commit": head["commit"],
        "n": on_SQ.shape[1],
        "seeds": head["seeds"],
        "by_seed": by_seed,
        "asked": {
            "stage": trials[0].stage,
            "kind": trials[0].questions,
            "decoding": " against ".join(dict.fromkeys(claim.measures)),
        },
        **{
            arm: {"trial": trial.name, "agent": trial.agent, "measure": what}
            for arm, trial, what in zip(ARMS, trials, claim.measures)
        },
        "tokens_sampled": [
            round(float(np.mean([pair[arm].mean("sampled") for pair in pairs])), 1)
            for arm in (0, 1)
        ],
    }


def agent_table(plan: AgentPlan, records: AgentRecords) -> str:
    """Return accuracy and cost of every trial and the claims as Markdown tables."""
    lines = [
        "| trial | agent | questions | % right [95%] | tokens sampled |",
        "|---|---|---|---|---|",
    ]
    for name, ledgers in records.by_trial().items():
        share, low, high = (
            100 * end for end in share_interval(np.array([one.accuracy_Q() for one in ledgers]))
        )
        tokens = np.mean([one.mean("sampled") for one in ledgers])
        trial = ledgers[0].trial
        lines.append(
            f"| {name} | `{trial.agent}` | {trial.questions} | {share:.1f} [{low:.1f}, {high:.1f}] "
            f"| {tokens:,.0f} |"
        )
    lines += ["", "| claim | effect, points [95%] | outcome |", "|---|---|---|"]
    for found in agent_findings(plan, records).values():
        effect, low, high = (f"{100 * x:+.1f}" for x in (found["effect"], *found["interval"]))
        outcome = f"{found['outcome']} (pilot)" if found["pilot"] else found["outcome"]
        lines.append(f"| {found['claim']} | {effect} [{low}, {high}] | {outcome} |")
    return "\n".join(lines)
