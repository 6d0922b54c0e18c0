"""`Trajectory`, the record that every stage reads and writes, and its Parquet format.

A trajectory stores the sampled token ids, with one array entry per token, so the generated tokens
are exactly the trained ones (token in, token out). Text (`messages`) is for readers and is never
tokenised again. Arrays are validated on creation: a mask that is one token short fails there
instead of causing a slightly wrong gradient.

File format: one row per trajectory. Token columns are Parquet lists, which any Parquet reader can
plot. Nested values (`messages`, `tool_results`, `metadata`, `reward_parts`) are JSON text, in which
tuples become lists. Files are written atomically.

Not implemented: appending (the rollouts of a step are one file), compression settings, sharding.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from drlib.files import atomic_path

NO_RECORD = 2**16 - 1  # value of `Trajectory.routed_experts` without a record


class Termination(StrEnum):
    """Reason why a rollout ended."""

    ANSWERED = "answered"
    LENGTH = "length"  # token limit of a turn or of the context
    TURNS = "turns"  # limit on calls
    WALL_CLOCK = "wall_clock"
    FORMAT = "format"  # too many malformed turns
    LOOP = "loop"  # repeated turns
    ENV_FAULT = "env_fault"  # the environment failed, not the policy


class Segment(IntEnum):
    """Role of a token."""

    PROMPT = 0
    THINK = 1
    TOOL_CALL = 2
    TOOL_RESPONSE = 3
    ANSWER = 4
    REPORT = 5
    TEMPLATE = 6  # ChatML tokens, role names and tags


@dataclass
class ToolResult:
    """One tool call and its result.

    Args:
        tool: name of the tool.
        arguments: as the policy wrote them.
        text: observation as the policy reads it.
        ok: True if the call succeeded.
        error: kind of failure; "" or None for none.
        latency_s: seconds over all attempts.
        attempts: 1 without a retry.
        source: what answered (a world's name, an isolation level of the sandbox, a service).
        cache_hit: True if the result was cached.
        degraded: True if a fallback answered.
        env_fault: True if the environment failed, not the policy.
    """

    tool: str
    arguments: dict[str, Any]
    text: str
    ok: bool
    error: str | None
    latency_s: float = 0.0
    attempts: int = 1
    source: str = ""
    cache_hit: bool = False
    degraded: bool = False
    env_fault: bool = False


_ARRAYS = {  # name -> dtype and axes
    "token_ids": (np.int32, "T"),
    "generated": (np.bool_, "T"),
    "logprobs": (np.float32, "T"),
    "entropies": (np.float32, "T"),
    "segments": (np.uint8, "T"),
    "turns": (np.uint16, "T"),
    "versions": (np.int32, "T"),
    "routed_experts": (np.uint16, "T", "L", "k"),
    "contexts": (np.uint16, "T"),
    "top_ids": (np.int32, "T", "K"),
    "top_logprobs": (np.float32, "T", "K"),
}
_OPTIONAL = ("entropies", "routed_experts", "contexts", "top_ids", "top_logprobs")


@dataclass(eq=False)
class Trajectory:
    """One rollout of T tokens.

    Args:
        id: unique.
        task_id: id of the question.
        group_id: shared by the rollouts of a question whose rewards are compared.
        world_version: version of the world.
        policy_version: version of the policy at the start.
        token_ids: int32[T]; prompt, sampled tokens and observations in order.
        generated: bool[T]; sampled by the policy and therefore trained.
        logprobs: float32[T]; nats, of the policy that sampled the token at its sampling
            temperature; 0 where `generated` is False, NaN where unknown.
        entropies: float32[T] or None; as `logprobs`.
        segments: uint8[T]; `Segment` values.
        turns: uint16[T]; number of assistant turns before the token.
        versions: int32[T]; policy version that sampled the token.
        routed_experts: uint16[T, L, k] or None; L layers, k experts per token, NO_RECORD where no
            forward pass has read the token (the last one of a context that an engine reported).
        tool_results: calls in order.
        termination: reason why the rollout ended.
        answer: final answer, or None.
        reward: None until it is judged.
        reward_parts: terms of the reward by name.
        messages: the conversation as text.
        metadata: JSON values.
        top_ids: int32[T, K] or None; the K most probable tokens at the position of token t, best
            first; -1 where nothing was sampled or fewer are known.
        top_logprobs: float32[T, K] or None; 0 where nothing was sampled, -inf where fewer are
            known. If K is less than the vocabulary they bound an entropy but do not determine it.
        contexts: uint16[T] or None; number of the token's context, if the agent used several; the
            policy saw only the tokens of one context.

    Raises:
        TypeError: an array has the wrong type; the message names it.
        ValueError: an array has the wrong length, or a log-probability or entropy where nothing was
            generated.
    """

    id: str
    task_id: str
    group_id: str
    world_version: str
    policy_version: int
    token_ids: np.ndarray
    generated: np.ndarray
    logprobs: np.ndarray
    entropies: np.ndarray | None
    segments: np.ndarray
    turns: np.ndarray
    versions: np.ndarray
    routed_experts: np.ndarray | None
    tool_results: list[ToolResult]
    termination: Termination
    answer: str | None
    reward: float | None
    reward_parts: dict[str, float]
    messages: list[dict[str, Any]]
    metadata: dict[str, Any]
    top_ids: np.ndarray | None = None
    top_logprobs: np.ndarray | None = None
    contexts: np.ndarray | None = None

    def __post_init__(self):
        at = f"trajectory {self.id}: "
        for name, (dtype, *axes) in _ARRAYS.items():
            array = getattr(self, name)
            if array is None and name in _OPTIONAL:
                continue
            is_array = isinstance(array, np.ndarray)
            if not is_array or array.dtype != dtype or array.ndim != len(axes):
                want = f"a numpy {np.dtype(dtype)}[{', '.join(axes)}]"
                got = f"{array.dtype}{list(array.shape)}" if is_array else type(array).__name__
                raise TypeError(f"{at}{name} must be {want}, got {got}")
            if len(array) != len(self):
                raise ValueError(
                    f"{at}{name} has {len(array)} entries for {len(self)} tokens: pass one each"
                )
            if name.endswith(("logprobs", "entropies")) and array[~self.generated].any():
                raise ValueError(f"{at}{name} is not 0 at a token that was not generated")
        top = [None if x is None else x.shape for x in (self.top_ids, self.top_logprobs)]
        if top[0] != top[1]:
            raise ValueError(f"{at}top_ids and top_logprobs differ in shape: {top[0]}, {top[1]}")
        if len(self) and self.segments.max() > max(Segment):
            raise ValueError(f"{at}segments contain {self.segments.max()}, which is no Segment")
        if not isinstance(self.termination, Termination):
            raise TypeError(f"{at}termination must be a Termination, not {self.termination!r}")

    def __len__(self) -> int:
        """Return T, the number of tokens."""
        return len(self.token_ids)

    def __eq__(self, other: object) -> bool:
        """Return True for bit-identical contents; NaN equals NaN."""
        if not isinstance(other, Trajectory):
            return NotImplemented
        return all(map(_same, vars(self).values(), vars(other).values()))


def with_reward(trajectory: Trajectory, reward: float | None, parts: dict) -> Trajectory:
    """Return a copy with another reward."""
    return dataclasses.replace(trajectory, reward=reward, reward_parts=parts)


def select_tokens(trajectory: Trajectory, kept_T: np.ndarray, **changes) -> Trajectory:
    """Return a copy with the tokens where `kept_T` (bool[T]) holds; `changes` set other fields."""
    columns = {name: getattr(trajectory, name) for name in _ARRAYS}
    kept = {name: None if column is None else column[kept_T] for name, column in columns.items()}
    return dataclasses.replace(trajectory, **{**kept, **changes})


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    # NaN differs from itself, but its repr is equal
    return type(a) is type(b) and (a == b or repr(a) == repr(b))


# ---------------------------------------------------------------- Parquet

_TEXT = ("id", "task_id", "group_id", "world_version", "termination", "answer")
_JSON = ("tool_results", "reward_parts", "messages", "metadata")
_SHAPES = {"routed_experts": "routed_shape", "top_ids": "top_shape", "top_logprobs": "top_shape"}
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _TEXT),
        *((name, pa.string()) for name in _JSON),
        ("policy_version", pa.int64()),
        ("reward", pa.float64()),
        *((name, pa.list_(pa.from_numpy_dtype(dtype))) for name, (dtype, *_) in _ARRAYS.items()),
        *((name, pa.list_(pa.int64())) for name in ("routed_shape", "top_shape")),
    ]
)
_LATER_COLUMNS = (
    "contexts",
    "top_ids",
    "top_logprobs",
    "top_shape",
)  # missing in files of earlier versions
_ROWS, _BYTES = 64, 64 * 2**20  # limits of a row group, which has at least one trajectory


def save_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Write trajectories to a Parquet file, one row each, atomically.

    Rows are written as they arrive: an iterator needs no more memory than a row group.

    Args:
        path: file to write; its folder must exist.
        trajectories: any iterable.

    Raises:
        OSError: the disk is full or the folder is missing; no partial file remains.
        ValueError: a field cannot be written; the message names the trajectory and the field.
    """
    path, rows = Path(path), map(_to_row, trajectories)
    try:
        with atomic_path(path) as partial, open(partial, "wb") as file:
            with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
                for batch in _row_groups(rows):
                    writer.write_table(pa.Table.from_pylist(batch, schema=_SCHEMA))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno is None:  # raised by the source of the trajectories
            raise
        raise OSError(
            error.errno,
            f"cannot write trajectories to {path}: {error}; no file was "
            "written: free space or use another folder, then save again",
        ) from error


def _row_groups(rows: Iterable[dict]) -> Iterator[list[dict]]:
    """Yield rows in row groups, which a reader loads as a whole."""
    group, size = [], 0
    for row in rows:
        group.append(row)
        size += sum(value.nbytes for value in row.values() if isinstance(value, np.ndarray))
        if len(group) == _ROWS or size >= _BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _to_row(trajectory: Trajectory) -> dict[str, Any]:
    row = dict(vars(trajectory))
    row["termination"] = str(trajectory.termination)
    row["tool_results"] = [dataclasses.asdict(r) for r in trajectory.tool_results]
    for name in (*_JSON, *_TEXT):
        try:
            if name in _JSON:
                row[name] = json.dumps(row[name])
            (row[name] or "").encode("utf-8")
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"trajectory {trajectory.id!r}: {name} cannot be written ({error}); use only "
                "valid Unicode text, numbers, None, lists and dicts"
            ) from error
    for name, shape in _SHAPES.items():
        array = row[name]
        row[shape] = None if array is None else list(array.shape)
        row[name] = None if array is None else array.ravel()
    return row


def iter_trajectories(path: str | Path, *, without: Sequence[str] = ()) -> Iterator[Trajectory]:
    """Yield the trajectories of a file in order, bit-identical to the saved ones.

    Args:
        path: file of `save_trajectories`.
        without: optional arrays that are not read (and are None), such as "routed_experts".

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is truncated, damaged or of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no trajectory file {path}; run the stage that writes it")
    try:
        with pq.ParquetFile(path) as file:
            there = set(file.schema_arrow.names)
            missing = [name for name in _SCHEMA.names if name not in {*there, *_LATER_COLUMNS}]
            if missing:
                raise ValueError(f"{path} is not a trajectory file: it lacks {', '.join(missing)}")
            skip = {*without, *(_SHAPES[name] for name in without)}
            columns = [name for name in _SCHEMA.names if name in there - skip]
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(_ROWS, row_groups=[group], columns=columns):
                    yield from _from_batch(batch, without)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{path} is truncated or damaged ({error}); delete it and run its stage again"
        ) from error


def load_trajectories(path: str | Path) -> list[Trajectory]:
    """Return all trajectories of a file of `save_trajectories`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is truncated, damaged or of another kind.
    """
    return list(iter_trajectories(path))


def _from_batch(batch: pa.RecordBatch, without: Sequence[str]) -> Iterator[Trajectory]:
    lists = [field.name for field in batch.schema if pa.types.is_list(field.type)]
    for i, row in enumerate(batch.drop_columns(lists).to_pylist()):
        row |= dict.fromkeys(without)
        for name in lists:
            values = batch.column(name)[i].values
            row[name] = None if values is None else values.to_numpy(zero_copy_only=False).copy()
        shapes = {shape: row.pop(shape, None) for shape in {*_SHAPES.values()}}
        for name, shape in _SHAPES.items():
            if shapes[shape] is not None:
                row[name] = row[name].reshape(shapes[shape])
        for name in _JSON:
            row[name] = json.loads(row[name])
        row["tool_results"] = [ToolResult(**result) for result in row["tool_results"]]
        row["termination"] = Termination(row["termination"])
        yield Trajectory(**row)
