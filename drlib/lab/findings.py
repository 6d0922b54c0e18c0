"""`python -m drlib.lab finding NAME`: a claim about learning, measured with its control.

The claims are in `findings.yaml`, beside this file: two arms that differ in one setting. Both are
trained from the same seeds and asked the same held-out questions, so their difference is paired by
seed and question, and its interval is over both. What came out is written to
`figures/reference/findings/NAME.json`, reproduced or refuted, and the rows to the folder NAME; the
README's table is made from these files.

Left out: a correction for the number of claims. Of twenty without any effect one would seem to have
some.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from drlib.checks import require
from drlib.config import Config
from drlib.evals.metrics import Interval
from drlib.evals.results import Results, gather
from drlib.files import write_json_lines, write_whole
from drlib.lab.display import ROOT
from drlib.lab.launching import ensure
from drlib.training import stages
from drlib.training.run import read_metrics

CLAIMS = Path(__file__).with_name("findings.yaml")
FINDINGS = ROOT / "figures" / "reference" / "findings"
THIN = 10  # supervised curves keep every tenth step
ARMS = ("setting", "control")
SAME = 0.1  # within ten points either way two arms are the same


@dataclass(frozen=True)
class Statement:
    """What somebody says of a setting against its control, before anything is measured.

    expected: "higher", "lower" or "same"; ValueError for anything else.
    """

    name: str
    claim: str
    source: str
    expected: str

    def __post_init__(self):
        is_known = self.expected in ("higher", "lower", "same")
        require(is_known, f"{self.name}: expected: {self.expected!r}")

    def judged(self, effect: Interval) -> dict:
        """The statement beside what was measured: (estimate, low, high), shares."""
        _, low, high = effect
        return {
            "claim": self.claim,
            "source": self.source,
            "expected": self.expected,
            "outcome": outcome_of(self.expected, low, high),
            **rounded(effect),
        }


def rounded(effect: Interval) -> dict:
    """An effect and its interval, as a finding's file has them."""
    estimate, *interval = (round(float(end), 5) for end in effect)
    return {"effect": estimate, "interval": interval}


def command_of(action: str, profile: str, seeds: Sequence[int]) -> str:
    """What a person types to have it made again."""
    return f"python -m drlib.lab {action} --profile {profile} --seeds {' '.join(map(str, seeds))}"


@dataclass(frozen=True)
class Claim(Statement):
    """An entry of `findings.yaml`: its fields are told there."""

    stage: str
    kind: str
    decoding: str
    setting: Mapping
    control: Mapping
    common: Mapping = field(default_factory=dict)

    def config(self, arm: str, profile: str, seed: int) -> Config:
        """The settings of one arm."""
        return Config.load(profile, **{**self.common, **getattr(self, arm), "seed": seed})


def claims(table: Path = CLAIMS) -> dict[str, Claim]:
    """By name. ValueError: an entry compares nothing, or expects neither higher nor lower."""
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
    out: Path = FINDINGS,
    table: Path = CLAIMS,
) -> Path:
    """Train both arms where they are missing, compare, write; returns the finding's file."""
    known = claims(table)
    require(name in known, f"unknown finding {name!r}: there are {sorted(known)}")
    claim = known[name]
    arms = {arm: [claim.config(arm, profile, seed) for seed in seeds] for arm in ARMS}
    for seed in range(len(seeds)):
        for configs in arms.values():
            ensure("demonstrations", configs[seed], runs=runs)
            ensure(f"evaluate_{claim.stage}", configs[seed], runs=runs)
    command = command_of(f"finding {name}", profile, seeds)
    for arm, configs in arms.items():
        gather(configs, runs, [claim.stage], command).save(out / name / arm)
        for config in configs:
            copy_curve(claim.stage, config, runs, out / name / arm)
            copy_rollouts(claim.stage, config, runs, out / name / arm)
    found = finding(claim, out / name)
    return write_whole(out / f"{name}.json", json.dumps(found, indent=1) + "\n")


def copy_curve(stage: str, config: Config, runs: Path, out: Path) -> None:
    """The metrics of a stage's steps, rounded, as `seedN_STAGE.jsonl`, where it has steps."""
    if not stages.STAGES[stage].steps:
        return
    rows = read_metrics(stages.folder(stage, config, runs))
    if not stage.startswith("rl"):
        rows = [row for row in rows if row["step"] % THIN == 0 or row["step"] == 1]
    rounded = [
        {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in row.items()}
        for row in rows
    ]
    write_json_lines(out / f"seed{config.seed}_{stage}.jsonl", rounded)


def copy_rollouts(stage: str, config: Config, runs: Path, out: Path) -> None:
    """The greedy rollouts that an evaluation keeps, as `seedN_greedy.parquet`: a finding is a
    number, and what the policies did can be read there."""
    kept = stages.folder(f"evaluate_{stage}", config, runs) / "greedy.parquet"
    shutil.copyfile(kept, out / f"seed{config.seed}_greedy.parquet")


def finding(claim: Claim, rows: Path) -> dict:
    """What the rows of both arms say of the claim; effects are shares, the setting's less its
    control's."""
    on, off = (Results.load(rows / arm) for arm in ARMS)
    accuracy, effect = _compared(claim, claim.kind, claim.decoding, on, off)
    first = on.outcomes[claim.stage, on.seeds[0]]
    others = [
        (kind, decoding)
        for kind in sorted({outcome.kind for outcome in first})
        for decoding in ("sample", "greedy")
        if (kind, decoding) != (claim.kind, claim.decoding)
    ]
    return {
        **claim.judged(effect),
        "accuracy": accuracy,
        "command": on.command,
        "n": sum(outcome.kind == claim.kind for outcome in first),
        "seeds": on.seeds,
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


def outcome_of(expected: str, low: float, high: float) -> str:
    """`reproduced` or `refuted` where the interval excludes zero, else `open`.

    Arms that are expected to be the same are so where the whole interval lies within `SAME`.
    """
    if expected == "same" and max(-low, high) <= SAME:
        return "reproduced"
    if low <= 0 <= high:
        return "open"
    as_expected = {"higher": low > 0, "lower": high < 0, "same": False}[expected]
    return "reproduced" if as_expected else "refuted"


def findings_block(folder: Path = FINDINGS) -> str:
    """The committed findings as a Markdown table."""
    lines = [
        "| claim | source | % right: setting, control | effect, points [95%] | outcome | made by |",
        "|" + "---|" * 6,
    ]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        on, off = (f"{100 * share:.1f}" for share in found["accuracy"])
        low, high = (f"{100 * end:+.1f}" for end in found["interval"])
        asked = found["asked"]
        cells = [
            found["claim"],
            found["source"],
            f"{on}, {off} ({asked['kind']}, {asked['decoding']}, n={found['n']}, "
            f"{len(found['seeds'])} seeds)",
            f"{100 * found['effect']:+.1f} [{low}, {high}]",
            f"**{found['outcome']}**",
            f"`{found['command']}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
