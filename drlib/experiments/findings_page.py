"""What was found about learning, drawn from committed files: README's table and docs/findings.md.

A claim is a finding (`drlib experiment run NAME`: two arms) or an arm of a sweep
(`drlib experiment run NAME`: several arms against a control). Nothing is computed here.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from drlib.experiments.findings import FINDINGS
from drlib.experiments.plan import REFERENCE_SWEEPS
from drlib.notebook.display import ROOT

FINDINGS_PAGE = ROOT / "docs" / "findings.md"
EFFECTS = REFERENCE_SWEEPS / "effects.png"
HEADS = (
    "claim",
    "source",
    "% right: setting, control",
    "effect, points [95%]",
    "outcome",
    "made by",
)
OPENING = """# Findings

What the sources say helps, measured here. The arms of a comparison differ in the settings that are
named, and in nothing else: the same seeds, the same cold start, as many steps, the same held-out
questions; intervals are over seeds and questions, and differences are paired. *Reproduced* and
*refuted* where the interval leaves zero out, *open* where it does not, which at this size says
little about larger ones. No correction is made for the number of claims: of twenty without any
effect one would seem to have some.

This page is drawn from the files in figures/reference by `drlib experiment pages`.
"""
IN_ONE = """Every arm of every sweep less its control, in points of the first question that the
sweep asks (held-out search, sampled). In colour where the interval leaves zero out."""


def findings_block(folder: Path = FINDINGS, sweeps: Path = REFERENCE_SWEEPS) -> str:
    """The committed claims as a Markdown table."""
    lines = [f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    for sweep in reference_sweeps(sweeps):
        found += _claims_of(sweep)
    for claim in found:
        on, off = (f"{100 * share:.1f}" for share in claim["accuracy"])
        low, high = (f"{100 * end:+.1f}" for end in claim["interval"])
        asked = claim["asked"]
        cells = [
            claim["claim"],
            claim["source"],
            f"{on}, {off} ({asked['kind']}, {asked['decoding']}, n={claim['n']}, "
            f"{len(claim['seeds'])} seeds)",
            f"{100 * claim['effect']:+.1f} [{low}, {high}]",
            f"**{claim['outcome']}**",
            f"`{claim['command']}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _claims_of(sweep: Mapping) -> Iterator[dict]:
    """A sweep's arms that claim something and have been compared, as a finding's file says it."""
    arms = {arm["arm"]: arm for arm in sweep["arms"]}
    control = arms[sweep["control"]]
    for arm in sweep["arms"]:
        claim = arm.get("claim")
        if not claim or "effect" not in claim:
            continue
        first = arm["asked"][0]
        yield {
            **claim,
            "accuracy": [first["accuracy"], control["asked"][0]["accuracy"]],
            "asked": {"kind": first["kind"], "decoding": first["decoding"]},
            "n": first["n"],
            "seeds": first["difference"]["seeds"],
            "command": sweep["command"],
        }


def reference_sweeps(sweeps: Path = REFERENCE_SWEEPS) -> list[dict]:
    """The summaries of the committed sweeps, by their names."""
    return [_read(path) for path in sorted(sweeps.glob("*/sweep.json"))]


def findings_page(folder: Path = FINDINGS, sweeps: Path = REFERENCE_SWEEPS) -> str:
    """docs/findings.md: all claims, all sweeps in one figure, each with its table and its own."""
    effects = f"![effects](../{EFFECTS.relative_to(ROOT).as_posix()})"
    parts = [OPENING, "## Claims", findings_block(folder, sweeps), "## All sweeps", IN_ONE, effects]
    for path in sorted(sweeps.glob("*/table.md")):
        name = path.parent.name
        table = re.sub("^# ", "## Sweep: ", path.read_text(encoding="utf-8")).strip()
        parts += [table, f"![{name}](../{path.parent.relative_to(ROOT).as_posix()}/figure.png)"]
    return "\n\n".join(part.strip() for part in parts) + "\n"
