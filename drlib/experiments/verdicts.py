"""Claims about a setting against its control, and the verdict that the measured effect allows.

Outcomes: reproduced, refuted, no effect, open. A difference counts if the interval of the effect
excludes zero; "no effect" if two one-sided tests exclude effects as large as the margin, which is
tested first. Both tests and their errors are those of a design (`drlib.experiments.designs`).
Without one, it is a single look at all seeds of the plan, at least `SEEDS`: that gives 80% power at
the margin for the usual standard deviation of a paired difference between seeds (7 points).

Before the first look a result is a pilot: its outcome is open, whatever the interval. Seeds count
if the plan named them and the design in a commit before the runs (`registration`). A claim is
decided at the first look with a verdict; later seeds do not change it.

`corrected_outcomes` corrects for the number of claims.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from drlib.config import ROOT
from drlib.experiments.designs import SEEDS, Design, read_design
from drlib.intervals import Interval, difference_interval, interval_parts, t_quantile
from drlib.training.run_folder import git
from drlib.validation import require

FINDINGS = ROOT / "figures" / "reference" / "findings"  # one file per judged claim
MARGIN = 0.05  # equivalence margin without a design: five points
EXPECTED = ("higher", "lower", "same")
Ends = Sequence[float]  # low and high end of an interval


@dataclass(frozen=True)
class Statement:
    """A claim about a setting against its control, written before the measurement.

    Attributes:
        expected: "higher", "lower" or "same".

    Raises:
        ValueError: another value of `expected`.
    """

    name: str
    claim: str
    source: str
    expected: str

    def __post_init__(self):
        require(
            self.expected in EXPECTED,
            f"{self.name}: expected={self.expected!r} must be higher, lower or same",
        )

    def judge(
        self,
        differences_SQ: np.ndarray,
        registered: str,
        design: Design | None = None,
        ready: int | None = None,
    ) -> dict:
        """Return the claim with its effect, interval, verdict and detectable effect.

        Args:
            differences_SQ: setting minus control, [S seeds, Q questions], shares.
            registered: the commit that registered the seeds before the runs; empty: none, a pilot.
            design: None for a single look at all seeds, if there are enough.
            ready: number of leading rows that are the plan's first seeds without a gap, which looks
                may use; default: all.
        """
        seeds = len(differences_SQ) if ready is None else ready
        if design is None and seeds >= SEEDS:
            design = Design(looks=(seeds,))
        looks = [look for look in design.looks if look <= seeds] if design and registered else []
        parts, at_look = {}, {}
        outcome, shown_SQ, confidence = "open", differences_SQ, 0.95
        for look in looks:
            shown_SQ, confidence = differences_SQ[:look], design.confidence(look)
            parts[look] = interval_parts(shown_SQ)
            within = difference_interval(shown_SQ, design.confidence(look, "equivalence"))
            interval = difference_interval(shown_SQ, confidence)
            outcome = decide(self.expected, interval[1:], within[1:], design.margin)
            p_difference, p_equivalence = (float(f"{p:.3g}") for p in design.p_values(parts))
            at_look = {
                "look": look,
                "final": outcome != "open" or look == design.looks[-1],
                "equivalence_interval": rounded(within)["interval"],
                "p_difference": p_difference,
                "p_equivalence": p_equivalence,
                "design": design.as_dict(),
            }
            if outcome != "open":
                break
        by_seed = [round(float(each), 5) for each in shown_SQ.mean(axis=1)]
        power = design.power if at_look else 0.8
        return {
            "claim": self.claim,
            "source": self.source,
            "expected": self.expected,
            "outcome": outcome,
            "pilot": not looks,
            "registered": registered,
            **rounded(difference_interval(shown_SQ, confidence)),
            "smallest_detectable": smallest_detectable(by_seed, power, confidence),
            **at_look,
        }


def decide(expected: str, interval: Ends, within: Ends, margin: float = MARGIN) -> str:
    """Return the verdict: reproduced, refuted, no effect or open.

    Args:
        interval: of the effect; it decides about a difference.
        within: the interval of the two one-sided tests; it decides about the margin.

    >>> decide("higher", (0.01, 0.09), (0.02, 0.08)), decide("lower", (0.01, 0.09), (0.02, 0.08))
    ('reproduced', 'refuted')
    >>> decide("higher", (-0.04, 0.06), (-0.03, 0.05)), decide("same", (-0.04, 0.06), (-0.03, 0.05))
    ('no effect', 'reproduced')
    """
    (low, high), (inner_low, inner_high) = interval, within
    if max(-inner_low, inner_high) <= margin:
        return "reproduced" if expected == "same" else "no effect"
    if low <= 0 <= high:
        return "open"
    as_expected = {"higher": low > 0, "lower": high < 0, "same": False}[expected]
    return "reproduced" if as_expected else "refuted"


def corrected_outcomes(findings: Mapping[str, Mapping], planned: Iterable[str]) -> dict[str, str]:
    """Return the verdicts that remain after a correction for the number of claims, by name.

    Holm's procedure (1979), once for the tests of a difference and once for those of the margin:
    in each family the probability of any false verdict is at most alpha. Holm holds for dependent
    tests (claims share cold starts and questions). The families are apart because a claim has two
    hypotheses; which of both is rejected is known only after the runs. A verdict whose own test
    does not remain significant is open.

    Args:
        findings: judged claims; pilots and rankings are not in the result.
        planned: names of all claims with a design. Those not judged yet count with p = 1, so that
            the number of claims does not depend on the results.
    """
    judged = {name: one for name, one in findings.items() if "p_difference" in one}
    total = len({*judged, *planned})
    corrected = dict.fromkeys(judged, "open")
    for test in ("p_difference", "p_equivalence"):
        largest = 0.0
        for place, name in enumerate(sorted(judged, key=lambda name: judged[name][test])):
            one = judged[name]
            largest = max(largest, min(1.0, (total - place) * one[test]))
            if _test_of(one) == test and largest <= one["design"]["alpha"]:
                corrected[name] = one["outcome"]
    return corrected


def _test_of(finding: Mapping) -> str:
    """Return the test that gave the verdict; empty for an open claim."""
    if finding["outcome"] == "open":
        return ""
    is_same = finding["outcome"] == "reproduced" and finding["expected"] == "same"
    return "p_equivalence" if is_same or finding["outcome"] == "no effect" else "p_difference"


def smallest_detectable(
    by_seed: Sequence[float], power: float = 0.8, confidence: float = 0.95
) -> float | None:
    """Return the smallest effect that this design detects with the given power.

    (t(0.975) + t(power)) s / sqrt(n) at 95%, s the standard deviation of the paired differences
    between n seeds; None below two seeds.
    """
    n = len(by_seed)
    if n < 2:
        return None
    mean = sum(by_seed) / n
    deviation = math.sqrt(sum((each - mean) ** 2 for each in by_seed) / (n - 1))
    quantiles = t_quantile(n - 1, (1 + confidence) / 2) + t_quantile(n - 1, power)
    return round(quantiles * deviation / math.sqrt(n), 5)


def registration(file: Path, seeds: Sequence[int], codes: Iterable[str]) -> str:
    """Return the commit that registered the seeds of an experiment before it ran; empty if none.

    This is the first commit from which on the plan has its present seeds and design. It counts if
    the plan names exactly these seeds (with a design: begins with them), has no uncommitted
    changes, and every run was made by this or a later commit.

    Args:
        codes: commits that made the runs, as in `Results.made`.
    """
    path = str(file.resolve())
    now = _registered_part(file.read_text(encoding="utf-8"))
    named, design = now
    if list(seeds) != (named[: len(seeds)] if design else named):
        return ""
    if git("status", "--porcelain", "--", path):
        return ""
    within = git("ls-files", "--full-name", "--", path)
    commit = ""
    for older in git("log", "--format=%H", "--", path).split():
        if _registered_part(git("show", f"{older}:{within}")) != now:
            break
        commit = older
    runs = [code.removesuffix("-dirty") for code in codes]
    before = [git("merge-base", commit, code) == commit for code in runs if commit]
    return commit if before and all(before) else ""


def _registered_part(text: str) -> tuple[list[int], dict | None]:
    """Return the seeds and the design of the text of a plan; no seeds if it cannot be read."""
    try:
        plan = yaml.safe_load(text)
        design = read_design(plan["design"]) if "design" in plan else None
        seeds = seeds_of_design(plan, design) if design else plan.get("seeds", [])
    except (yaml.YAMLError, ValueError, TypeError, AttributeError):
        return [], None
    return list(seeds), design.as_dict() if design else None


def seeds_of_design(plan: Mapping, design: Design) -> list[int]:
    """Return the seeds of a plan with a design: those it lists, or the first ones from 0."""
    return plan.get("seeds", [*range(design.looks[-1])])


def rounded(effect: Interval) -> dict:
    """Return an effect and its interval as they are stored."""
    estimate, *interval = (round(float(end), 5) for end in effect)
    return {"effect": estimate, "interval": interval}


def command_of(action: str, profile: str, seeds: Sequence[int] = ()) -> str:
    """Return the command that repeats an experiment, with the plan's seeds if none are given."""
    given = f" --seeds {' '.join(map(str, seeds))}" if seeds else ""
    return f"drlib experiment {action} --profile {profile}{given}"
