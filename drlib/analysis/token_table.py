"""Table of the sampled tokens of many trajectories in flat columns, the input of the analysis.

`token_statistics` builds it, with about 30 bytes per token (10 million tokens fit in memory).
Prompts and observations are excluded, because the policy did not sample them. The table has the
distance of each token to the preceding tool response, and the status of that response.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from drlib.analysis.rendering import is_right
from drlib.chat.segments import find_gaps
from drlib.trajectory import Segment, ToolResult, Trajectory, iter_trajectories
from drlib.validation import require

RESPONSE_STATUSES = ("none", "ok", "error", "empty")  # status of the preceding response


@dataclass(frozen=True)
class TokenTable:
    """The N sampled tokens of M trajectories, in order.

    Attributes:
        names: ids of the M trajectories.
        right_M: 1 right, 0 wrong, NaN not judged.
        row: index of the trajectory, int32 [N].
        position: index of the token in its trajectory, int32 [N].
        token_id: int32 [N].
        segment: `Segment`, uint8 [N].
        turn: uint16 [N].
        logprob: nats, float32 [N].
        entropy: nats, float32 [N]; NaN if not recorded.
        offset: sampled tokens before it in its turn, int32 [N].
        since: sampled tokens since the last tool response, int32 [N]; -1 before the first response
            and after a user message.
        status: status of that response, index into `RESPONSE_STATUSES`, uint8 [N].

    """

    names: list[str]
    right_M: np.ndarray
    row: np.ndarray
    position: np.ndarray
    token_id: np.ndarray
    segment: np.ndarray
    turn: np.ndarray
    logprob: np.ndarray
    entropy: np.ndarray
    offset: np.ndarray
    since: np.ndarray
    status: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def inside(self, *segments: Segment) -> np.ndarray:
        """Mark the tokens in one of the segments, or all tokens without arguments: bool [N]."""
        return np.isin(self.segment, segments) if segments else np.ones(len(self), bool)

    def starts(self) -> np.ndarray:
        """Return the first token index of each trajectory, and the end: int64[M + 1]."""
        return np.searchsorted(self.row, np.arange(len(self.names) + 1))

    def known(self, name: str) -> np.ndarray:
        """Return the column `entropy` or `logprob`; raise ValueError if a value is missing."""
        values = getattr(self, name)
        unknown = np.flatnonzero(~np.isfinite(values))
        if len(unknown):
            first = unknown[0]
            raise ValueError(
                f"{len(unknown)} of {len(self)} tokens have no {name} (first: trajectory "
                f"{self.names[self.row[first]]}, token {self.position[first]}): run the file "
                "through a model with rescoring.rescore"
            )
        return values


TrajectorySource = str | Path | Iterable[Trajectory]
_UNUSED_COLUMNS = ("routed_experts", "top_ids", "top_logprobs")  # large, and not part of the table


def token_statistics(source: TrajectorySource) -> TokenTable:
    """Build the token table of a trajectory file (streamed) or of trajectories.

    Raises:
        ValueError: no sampled tokens, a duplicate id, or a tool response without a tool result.

    """
    if isinstance(source, str | Path):
        source = iter_trajectories(source, without=_UNUSED_COLUMNS)
    names, right, parts = [], [], []
    for row, trajectory in enumerate(source):
        names.append(trajectory.id)
        right.append(judge_outcome(trajectory))
        parts.append(_build_columns(row, trajectory))
    require(
        any(len(part["row"]) for part in parts),
        f"{len(names)} trajectories without a sampled token; pass sampled rollouts",
    )
    name, times = Counter(names).most_common(1)[0]
    require(times == 1, f"the id {name!r} occurs {times} times; give each trajectory a unique id")
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return TokenTable(names=names, right_M=np.array(right), **columns)


def _build_columns(row: int, trajectory: Trajectory) -> dict[str, np.ndarray]:
    """Return the columns of one trajectory; `row` is its index in the table."""
    # the first token has no context, so it is not sampled from the policy
    at_N = np.flatnonzero(trajectory.generated[1:]) + 1
    # a turn begins where the token before was not sampled
    count_N = np.arange(len(at_N), dtype=np.int32)
    begins_N = np.diff(at_N, prepend=-2) > 1
    turn_start_N = np.maximum.accumulate(np.where(begins_N, count_N, 0))
    since_N, status_N = _after_responses(trajectory, at_N)
    entropies_T = trajectory.entropies
    if entropies_T is None:
        entropies_T = np.full(len(trajectory), np.nan, np.float32)
    return {
        "row": np.full(len(at_N), row, np.int32),
        "position": at_N.astype(np.int32),
        "token_id": trajectory.token_ids[at_N],
        "segment": trajectory.segments[at_N],
        "turn": trajectory.turns[at_N],
        "logprob": trajectory.logprobs[at_N],
        "entropy": entropies_T[at_N],
        "offset": (count_N - turn_start_N).astype(np.int32),
        "since": since_N,
        "status": status_N,
    }


def _after_responses(trajectory: Trajectory, at_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the columns `since` and `status` of the tokens at positions at_N."""
    count_N = np.arange(len(at_N), dtype=np.int32)
    since_N = np.full(len(at_N), -1, np.int32)
    status_N = np.zeros(len(at_N), np.uint8)
    statuses = iter([status for _, _, status in find_responses(trajectory)])
    for _, end, by_tool in _find_observations(trajectory):
        first = np.searchsorted(at_N, end)
        if by_tool:
            since_N[first:] = count_N[first:] - first
            status_N[first:] = RESPONSE_STATUSES.index(next(statuses))
        else:  # a user message: the tokens after it follow no tool response
            since_N[first:] = -1
            status_N[first:] = RESPONSE_STATUSES.index("none")
    return since_N, status_N


def judge_outcome(trajectory: Trajectory) -> float:
    """Return 1 for a right answer, 0 for a wrong one, NaN if not judged.

    A reward of at least 0.5 is right. Without a reward, the answer is compared with the right
    answer in the metadata.
    """
    if trajectory.reward is not None and not math.isnan(trajectory.reward):
        return float(trajectory.reward >= 0.5)
    if trajectory.metadata.get("right_answer") is None:
        return math.nan
    return float(is_right(trajectory))


def find_responses(trajectory: Trajectory) -> list[tuple[int, int, str]]:
    """Return (start, end, status) of each tool response that is followed by a sampled token.

    Tokens start..end-1 are the response with its template tokens, so empty responses count. User
    messages do not count. The status is one of `RESPONSE_STATUSES`.

    Raises:
        ValueError: more responses than tool results.

    """
    spans = [(start, end) for start, end, by_tool in _find_observations(trajectory) if by_tool]
    results = trajectory.tool_results
    require(
        len(spans) <= len(results),
        f"trajectory {trajectory.id}: {len(spans)} tool responses "
        f"for {len(results)} tool results; add one ToolResult per response",
    )
    return [(start, end, get_status(result)) for (start, end), result in zip(spans, results)]


def _find_observations(trajectory: Trajectory) -> list[tuple[int, int, bool]]:
    """Return (start, end, is_tool_response) of each run between sampled tokens."""
    runs = []
    for start, end in find_gaps(trajectory.generated):
        seen = {*trajectory.segments[start:end].tolist()}
        runs.append((start, end, Segment.TOOL_RESPONSE in seen or Segment.PROMPT not in seen))
    return runs


def get_status(result: ToolResult) -> str:
    """Return the status of a tool result: "ok", "error", or "empty" without content."""
    if result.ok:
        return "ok" if result.text.strip() else "empty"
    return "empty" if result.error == "empty" else "error"
