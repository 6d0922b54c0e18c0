"""Trajectories: validation, atomic writes, bit-identical round trips."""

from __future__ import annotations

import dataclasses
import resource
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from drlib.trajectory import (
    Segment,
    Termination,
    ToolResult,
    Trajectory,
    iter_trajectories,
    load_trajectories,
    save_trajectories,
)


def record(tokens=3, **changes) -> Trajectory:
    """Create a trajectory whose last token was sampled."""
    generated = np.arange(tokens) == tokens - 1
    fields = dict(
        id="t",
        task_id="q",
        group_id="g",
        world_version="w",
        policy_version=4,
        token_ids=np.arange(10, 10 + tokens, dtype=np.int32),
        generated=generated,
        logprobs=np.where(generated, -0.5, 0).astype(np.float32),
        entropies=None,
        segments=np.full(tokens, Segment.ANSWER, np.uint8),
        turns=np.zeros(tokens, np.uint16),
        versions=np.where(generated, 4, 0).astype(np.int32),
        routed_experts=None,
        tool_results=[],
        termination=Termination.ANSWERED,
        answer="Paris",
        reward=1.0,
        reward_parts={"match": 1.0},
        messages=[{"role": "user", "content": "?"}],
        metadata={},
    )
    return Trajectory(**{**fields, **changes})


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=5,
)
RESULTS = st.builds(
    ToolResult,
    tool=TEXT,
    arguments=st.dictionaries(TEXT, JSON, max_size=2),
    text=st.text(max_size=8),
    ok=st.booleans(),
    error=st.none() | TEXT,
    latency_s=st.floats(0, 9),
    attempts=st.integers(1, 4),
    source=TEXT,
    cache_hit=st.booleans(),
    degraded=st.booleans(),
    env_fault=st.booleans(),
)


@st.composite
def trajectories(draw):
    tokens = draw(st.integers(0, 6))
    generated = draw(hnp.arrays(bool, tokens))

    def numbers():
        values = draw(hnp.arrays(np.float32, tokens, elements=st.floats(width=32)))
        return np.where(generated, values, np.float32(0))

    def integers(dtype):
        return draw(hnp.arrays(dtype, tokens))

    def top_k(dtype, values):  # K = 2 per generated token
        return np.where(generated[:, None], values, -1 if dtype is np.int32 else 0).astype(dtype)

    top = (
        {}
        if draw(st.booleans())
        else {"top_ids": top_k(np.int32, [7, 8]), "top_logprobs": top_k(np.float32, [-0.1, -2.5])}
    )
    return record(
        tokens,
        **top,
        id=draw(TEXT),
        policy_version=draw(st.integers(0, 2**40)),
        token_ids=integers(np.int32),
        generated=generated,
        logprobs=numbers(),
        entropies=draw(st.sampled_from([None, numbers()])),
        segments=draw(hnp.arrays(np.uint8, tokens, elements=st.integers(0, 6))),
        turns=integers(np.uint16),
        versions=integers(np.int32),
        routed_experts=draw(st.none() | hnp.arrays(np.uint16, (tokens, 2, 2))),
        tool_results=draw(st.lists(RESULTS, max_size=2)),
        termination=draw(st.sampled_from(Termination)),
        answer=draw(st.none() | TEXT),
        reward=draw(st.none() | st.floats()),
        reward_parts=draw(st.dictionaries(TEXT, st.floats())),
        messages=draw(st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2)),
        metadata=draw(st.dictionaries(TEXT, JSON, max_size=2)),
    )


@settings(max_examples=50, deadline=None)
@given(records=st.lists(trajectories(), max_size=3))
def test_round_trip(records, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "t.parquet"
    save_trajectories(path, records)
    assert load_trajectories(path) == records


def test_rows_keep_their_order(tmp_path):
    records = [record(1 + i % 5, id=f"t{i}", reward=float(i)) for i in range(150)]
    save_trajectories(tmp_path / "t.parquet", records)
    assert load_trajectories(tmp_path / "t.parquet") == records
    table = pq.read_table(tmp_path / "t.parquet", columns=["id", "token_ids"])
    assert table.num_rows == 150 and table["token_ids"][3].as_py() == [10, 11, 12, 13]


def test_streaming_and_older_files(tmp_path):
    path = tmp_path / "t.parquet"
    written = []
    save_trajectories(path, (written.append(i) or record(id=f"t{i}") for i in range(150)))
    stream = iter_trajectories(path)
    assert len(written) == 150 and next(stream).id == "t0" and sum(1 for _ in stream) == 149
    old = pq.read_table(path).drop_columns(["top_ids", "top_logprobs", "top_shape"])
    pq.write_table(old, path)
    assert load_trajectories(path)[149] == record(id="t149")


def test_row_groups_are_small_and_columns_can_be_skipped(tmp_path):
    path, big = tmp_path / "t.parquet", np.zeros((100, 48, 3000), np.uint16)  # 29 MB
    records = [record(100, id=f"t{i}", routed_experts=big) for i in range(5)]
    save_trajectories(path, records)
    with pq.ParquetFile(path) as file:
        assert [file.metadata.row_group(i).num_rows for i in range(2)] == [3, 2]
    assert load_trajectories(path) == records
    for t, loaded in zip(records, iter_trajectories(path, without=["routed_experts"]), strict=True):
        assert loaded == dataclasses.replace(t, routed_experts=None)


def test_missing_input_is_not_reported_as_a_full_disk(tmp_path):
    with pytest.raises(FileNotFoundError, match="no trajectory file .*missing"):
        save_trajectories(tmp_path / "t.parquet", iter_trajectories(tmp_path / "missing"))
    assert list(tmp_path.iterdir()) == []


def test_equality_compares_every_field():
    base = record(
        entropies=np.zeros(3, np.float32),
        routed_experts=np.zeros((3, 2, 2), np.uint16),
        top_ids=np.zeros((3, 1), np.int32),
        top_logprobs=np.zeros((3, 1), np.float32),
        contexts=np.zeros(3, np.uint16),
    )
    assert base == dataclasses.replace(base, token_ids=base.token_ids.copy())
    for field in dataclasses.fields(base):
        value = getattr(base, field.name)
        if isinstance(value, np.ndarray):
            other = value.copy()
            # the last token was sampled, so any value is valid
            other[-1] = 1 - other[-1].astype(int)
        else:
            other = {str: "x", int: 9, float: 0.5, list: [1], dict: {"a": 1}}.get(type(value))
            other = Termination.LOOP if field.name == "termination" else other
        changed = dataclasses.replace(base)
        object.__setattr__(changed, field.name, other)
        assert changed != base, field.name


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"turns": np.zeros(2, np.uint16)}, ValueError, "turns has 2 entries for 3 tokens"),
        (
            {"token_ids": np.zeros(3)},
            TypeError,
            r"token_ids must be a numpy int32\[T\], got float64",
        ),
        ({"generated": [True] * 3}, TypeError, r"generated must be a numpy bool\[T\], got list"),
        ({"logprobs": None}, TypeError, "logprobs must be a numpy float32"),
        ({"segments": np.full(3, 7, np.uint8)}, ValueError, "segments contain 7"),
        ({"logprobs": np.ones(3, np.float32)}, ValueError, "logprobs is not 0 at a token"),
        ({"entropies": np.ones(3, np.float32)}, ValueError, "entropies is not 0 at a token"),
        ({"routed_experts": np.zeros(3, np.uint16)}, TypeError, r"uint16\[T, L, k\]"),
        ({"routed_experts": np.zeros((2, 1, 1), np.uint16)}, ValueError, "2 entries for 3 tokens"),
        ({"top_ids": np.zeros((3, 1), np.int32)}, ValueError, r"differ in shape: \(3, 1\), None"),
        (
            {"top_ids": np.zeros((3, 1), np.int32), "top_logprobs": np.ones((3, 1), np.float32)},
            ValueError,
            "top_logprobs is not 0 at a token",
        ),
        ({"termination": "answered"}, TypeError, "termination must be a Termination"),
    ],
)
def test_inconsistent_record_is_rejected(changes, error, message):
    with pytest.raises(error, match="trajectory t: .*" + message):
        record(**changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"metadata": {"x": object()}}, "metadata cannot be written .*not JSON serializable"),
        ({"answer": "\ud800"}, "answer cannot be written .*surrogates not allowed.*Unicode"),
    ],
)
def test_unwritable_field_raises_and_leaves_no_file(changes, message, tmp_path):
    with pytest.raises(ValueError, match=f"trajectory 't': {message}"):
        save_trajectories(tmp_path / "t.parquet", [record(**changes)])
    assert list(tmp_path.iterdir()) == []


def test_missing_damaged_and_foreign_files_are_rejected(tmp_path):
    path = tmp_path / "t.parquet"
    with pytest.raises(FileNotFoundError, match="no trajectory file .*t.parquet"):
        load_trajectories(path)
    save_trajectories(path, [record(400)])
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="t.parquet is truncated or damaged"):
            load_trajectories(path)
    pq.write_table(pa.table({"id": ["t"]}), path)
    with pytest.raises(ValueError, match="is not a trajectory file: it lacks task_id, "):
        load_trajectories(path)


@contextmanager
def file_size_limit(size: int):
    """Limit file sizes of this process to `size` bytes, which `write` reports like a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("limit", [0, 1000, 20_000])
def test_full_disk_keeps_the_old_file(limit, tmp_path):
    path = tmp_path / "t.parquet"
    save_trajectories(path, [record()])
    long = record(metadata={"x": [i * 7919 % 10007 for i in range(9000)]})
    with file_size_limit(limit), pytest.raises(OSError) as caught:
        save_trajectories(path, [long])
    assert f"cannot write trajectories to {path}" in str(caught.value)
    assert list(tmp_path.iterdir()) == [path] and load_trajectories(path) == [record()]


def test_missing_folder_error_names_the_file(tmp_path):
    with pytest.raises(OSError, match="cannot write trajectories to .*nowhere"):
        save_trajectories(tmp_path / "nowhere" / "t.parquet", [record()])
