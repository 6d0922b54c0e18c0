"""Counts of what was left out, replaced or not understood while reading a file of rollouts."""

import warnings
from collections import Counter
from pathlib import Path

from drlib.validation import require


class EmptyRolloutError(ValueError):
    """A rollout has no sampled tokens, or its request failed; it is skipped with a count."""


class ReadingNotes:
    """Notes about one file, filled while it is read.

    Attributes:
        read: number of rollouts read.
        skipped: number of rollouts skipped, by reason.
        fields: number of times that a field was not understood, by name.
        repaired: number of values replaced, by kind.

    """

    def __init__(self) -> None:
        self.read = 0
        self.skipped: Counter[str] = Counter()
        self.fields: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self._first_skipped: dict[str, str] = {}
        self._observed = 0  # rollouts with an observation
        self._tags: Counter[str] = Counter()  # tags in sampled texts that look like observations

    def skip(self, reason: str, example: str) -> None:
        """Count a skipped rollout; the first example of a reason is kept."""
        self.skipped[reason] += 1
        self._first_skipped.setdefault(reason, example)

    def count_unknown(self, prefix: str, fields: dict, known: set[str]) -> None:
        """Count the non-empty fields of a dictionary that are not in `known`."""
        for name, value in fields.items():
            if name not in known and value not in (None, "", [], {}):
                self.fields[f"{prefix}{name}"] += 1

    def add_rollout(self, has_observation: bool, tags: set[str]) -> None:
        """Count a rollout, and the tags in its sampled text that look like observations."""
        self.read += 1
        self._observed += has_observation
        self._tags.update(tags)

    def describe(self) -> list[str]:
        """Return one sentence for each kind of note, [] if everything was read."""
        lines = []
        for reason, count in self.skipped.items():
            lines.append(f"{count} rollouts skipped: {reason} ({self._first_skipped[reason]})")
        if self.fields:
            lines.append(f"fields not understood and left out: {_format_counts(self.fields)}")
        if +self.repaired:
            lines.append(f"values replaced: {_format_counts(+self.repaired)}")
        if self._tags and not self._observed:
            lines.append(
                "no rollout has an observation, but sampled texts contain tags that look like one "
                f"({_format_counts(self._tags)}): if the environment wrote them, put them into "
                "messages with role tool, or into <tool_response> tags"
            )
        return lines

    def require_rollouts(self, path: Path) -> None:
        """Raise ValueError if the file has rows but no rollouts."""
        require(self.read > 0, f"{path} has no rollouts: {'; '.join(self.describe())}")

    def warn(self, path: Path) -> None:
        """Warn once about everything in `describe`."""
        lines = self.describe()
        if lines:
            warnings.warn(f"{path}: {'; '.join(lines)}", stacklevel=3)


def _format_counts(counts: Counter[str]) -> str:
    """Return "a (3), b (1)", the most frequent first."""
    return ", ".join(f"{name} ({count})" for name, count in counts.most_common())
