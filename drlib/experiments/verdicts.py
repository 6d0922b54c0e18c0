"""Claims about a setting against its control, and the verdict that the measured effect allows.

Outcomes: reproduced, refuted, no effect (the interval lies within the margin), open. Fewer seeds
than `SEEDS` are a pilot: the outcome is open, whatever the interval. `SEEDS` gives 80% power at the
margin for the usual standard deviation of a paired difference between seeds (7 points). Seeds count
if the plan named them in a commit before the runs (`registration`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from drlib.config import ROOT
from drlib.intervals import Interval, t_quantile
from drlib.training.run_folder import git
from drlib.validation import require

FINDINGS = ROOT / "figures" / "reference" / "findings"  # one file per judged claim
MARGIN = 0.05  # equivalence margin: five points
SEEDS = 20  # seeds needed for a verdict
EXPECTED = ("higher", "lower", "same")


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

    def judge(self, effect: Interval, by_seed: Sequence[float], registered: str) -> dict:
        """Return the claim with its effect, interval, verdict and detectable effect.

        Args:
            effect: (estimate, low, high), shares.
            by_seed: the paired difference of each seed, shares.
            registered: the commit that registered the seeds before the runs; empty: none, a pilot.
        """
        _, low, high = effect
        seeds = len(by_seed) if registered else 0
        return {
            "claim": self.claim,
            "source": self.source,
            "expected": self.expected,
            "outcome": decide(self.expected, low, high, seeds),
            "pilot": seeds < SEEDS,
            "registered": registered,
            **rounded(effect),
            "smallest_detectable": smallest_detectable(by_seed),
        }


def decide(expected: str, low: float, high: float, seeds: int) -> str:
    """Return the verdict of an interval: reproduced, refuted, no effect or open.

    >>> decide("higher", 0.01, 0.09, 20), decide("higher", 0.01, 0.09, 3)
    ('reproduced', 'open')
    >>> decide("higher", -0.03, 0.04, 20), decide("same", -0.03, 0.04, 20)
    ('no effect', 'reproduced')
    """
    if seeds < SEEDS:
        return "open"
    if max(-low, high) <= MARGIN:
        return "reproduced" if expected == "same" else "no effect"
    if low <= 0 <= high:
        return "open"
    as_expected = {"higher": low > 0, "lower": high < 0, "same": False}[expected]
    return "reproduced" if as_expected else "refuted"


def smallest_detectable(by_seed: Sequence[float], power: float = 0.8) -> float | None:
    """Return the smallest effect that this design detects with the given power.

    (t(0.975) + t(power)) s / sqrt(n), s the standard deviation of the paired differences between n
    seeds; None below two seeds.
    """
    n = len(by_seed)
    if n < 2:
        return None
    mean = sum(by_seed) / n
    deviation = math.sqrt(sum((each - mean) ** 2 for each in by_seed) / (n - 1))
    return round((t_quantile(n - 1) + t_quantile(n - 1, power)) * deviation / math.sqrt(n), 5)


def registration(file: Path, seeds: Sequence[int], codes: Iterable[str]) -> str:
    """Return the commit that registered the seeds of an experiment before it ran; empty if none.

    This is the last commit that changed the line `seeds` of the plan. It counts if the plan names
    exactly these seeds and every run was made by a later commit.

    Args:
        codes: commits that made the runs, as in `Results.made`.
    """
    plan = yaml.safe_load(file.read_text(encoding="utf-8"))
    if list(seeds) != plan.get("seeds"):
        return ""
    path = str(file.resolve())
    if git("status", "--porcelain", "--", path):
        return ""
    commit = git("log", "-1", "--format=%H", "-G^seeds:", "--", path)
    runs = [code.removesuffix("-dirty") for code in codes]
    before = [git("merge-base", commit, code) == commit for code in runs if commit]
    return commit if before and all(before) else ""


def rounded(effect: Interval) -> dict:
    """Return an effect and its interval as they are stored."""
    estimate, *interval = (round(float(end), 5) for end in effect)
    return {"effect": estimate, "interval": interval}


def command_of(action: str, profile: str, seeds: Sequence[int]) -> str:
    """Return the command that repeats an experiment."""
    return f"drlib experiment {action} --profile {profile} --seeds {' '.join(map(str, seeds))}"
