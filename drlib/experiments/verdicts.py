"""What somebody says of a setting against its control, and how it is judged by what was measured.

Findings and sweeps share it: a sentence, its source, what is expected, and the verdict that the
interval of the paired difference gives. It is apart from what trains, so that a file of claims is
read, and refused, without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from drlib.intervals import Interval
from drlib.validation import require

SAME = 0.1  # within ten points either way two arms are the same
EXPECTED = ("higher", "lower", "same")


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
        is_known = self.expected in EXPECTED
        require(is_known, f"{self.name}: expected: {self.expected!r}: give higher, lower or same")

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


def rounded(effect: Interval) -> dict:
    """An effect and its interval, as a finding's file has them."""
    estimate, *interval = (round(float(end), 5) for end in effect)
    return {"effect": estimate, "interval": interval}


def command_of(action: str, profile: str, seeds: Sequence[int]) -> str:
    """What a person types to have it made again."""
    return f"python -m drlib.experiments {action} --profile {profile} --seeds {' '.join(map(str, seeds))}"
