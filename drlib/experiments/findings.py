"""`drlib experiment run NAME`: a claim about learning, measured with its control.

`findings.yaml` lists the claims: two arms that differ in one setting. Both are trained from the
same seeds and answer the same held-out questions, so their difference is paired by seed and
question. The verdict is written to `figures/reference/findings/NAME.json`; docs/findings.md is made
from these files.

Not included: a correction for the number of claims. Of twenty without an effect, one would seem to
have some.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from drlib.config import ROOT, Config
from drlib.evaluation.results import Results
from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.verdicts import Statement, command_of, rounded
from drlib.files import write_atomic
from drlib.intervals import Interval
from drlib.training.launch import build_stage
from drlib.validation import require

CLAIMS = Path(__file__).with_name("findings.yaml")
FINDINGS = ROOT / "figures" / "reference" / "findings"
ARMS = ("setting", "control")


@dataclass(frozen=True)
class Claim(Statement):
    """One entry of `findings.yaml`, where the fields are described."""

    stage: str
    kind: str
    decoding: str
    setting: Mapping
    control: Mapping
    common: Mapping = field(default_factory=dict)

    def config(self, arm: str, profile: str, seed: int) -> Config:
        """Return the configuration of one arm."""
        return Config.load(profile, **{**self.common, **getattr(self, arm), "seed": seed})


def claims(table: Path = CLAIMS) -> dict[str, Claim]:
    """Return the claims by name; ValueError if one compares nothing or expects no direction."""
    found = {}
    for entry in yaml.safe_load(table.read_text(encoding="utf-8")):
        claim = Claim(**entry)
        same_names = claim.setting.keys() == claim.control.keys()
        require(same_names, f"{claim.name}: arms of other settings")
        require(claim.setting != claim.control, f"{claim.name}: both arms are the same")
        found[claim.name] = claim
    return found


def measure(
    name: str,
    profile: str,
    seeds: Sequence[int],
    runs: Path,
    out: Path = EXPERIMENTS,
    claims_folder: Path = FINDINGS,
    table: Path = CLAIMS,
) -> Path:
    """Train both arms if missing, compare them, and return the finding's file."""
    known = claims(table)
    require(name in known, f"unknown finding {name!r}: there are {sorted(known)}")
    claim = known[name]
    arms = {arm: [claim.config(arm, profile, seed) for seed in seeds] for arm in ARMS}
    for seed in range(len(seeds)):
        for configs in arms.values():
            build_stage("demonstrations", configs[seed], runs=runs)
            build_stage(f"evaluate_{claim.stage}", configs[seed], runs=runs)
    command = command_of(f"run {name}", profile, seeds)
    records = ExperimentRecords({"command": command, "stage": claim.stage, "seeds": list(seeds)})
    for arm, configs in arms.items():
        records.add_arm(arm, configs, claim.stage, runs, command)
    records.save(out / f"{name}.parquet")
    found = finding(claim, records)
    return write_atomic(claims_folder / f"{name}.json", json.dumps(found, indent=1) + "\n")


def finding(claim: Claim, records: ExperimentRecords) -> dict:
    """Return the judged claim; effects are shares, setting minus control."""
    on, off = (records.results[arm] for arm in ARMS)
    accuracy, effect = _compared(claim, claim.kind, claim.decoding, on, off)
    by_seed = _by_seed(claim, on, off)
    first = on.outcomes[claim.stage, on.seeds[0]]
    others = [
        (kind, decoding)
        for kind in sorted({outcome.kind for outcome in first})
        for decoding in ("sample", "greedy")
        if (kind, decoding) != (claim.kind, claim.decoding)
    ]
    return {
        **claim.judge(effect, by_seed),
        "accuracy": accuracy,
        "command": on.command,
        "commit": sorted({*on.made.get("recipe", []), *off.made.get("recipe", [])}),
        "n": sum(outcome.kind == claim.kind for outcome in first),
        "seeds": on.seeds,
        "by_seed": by_seed,
        "asked": {"stage": claim.stage, "kind": claim.kind, "decoding": claim.decoding},
        "setting": dict(claim.setting),
        "control": dict(claim.control),
        "common": dict(claim.common),
        "also": [_also(claim, kind, decoding, on, off) for kind, decoding in others],
    }


def _also(claim: Claim, kind: str, decoding: str, on: Results, off: Results) -> dict:
    """The same comparison on questions that the claim is not about."""
    accuracy, effect = _compared(claim, kind, decoding, on, off)
    return {"kind": kind, "decoding": decoding, "accuracy": accuracy, **rounded(effect)}


def _compared(
    claim: Claim, kind: str, decoding: str, on: Results, off: Results
) -> tuple[list[float], Interval]:
    """(the accuracies of the setting and of its control, their difference with its interval)."""
    shares = [arm.accuracy(claim.stage, kind, decoding)[0] for arm in (on, off)]
    effect = on.gain(claim.stage, claim.stage, kind, decoding, of=off)
    return [round(float(share), 5) for share in shares], effect


def _by_seed(claim: Claim, on: Results, off: Results) -> list[float]:
    """Return the paired difference of each seed."""
    stage, asked = claim.stage, (claim.kind, claim.decoding)
    gains = (
        on.only([seed]).gain(stage, stage, *asked, of=off.only([seed]))[0] for seed in on.seeds
    )
    return [round(float(gain), 5) for gain in gains]
