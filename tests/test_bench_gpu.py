"""The single-GPU benchmark, tiny and on a CPU: output files, counts and rejected arguments.

Not tested: the measurements themselves (the tests have no GPU) and the engine part with real vLLM.
Run the latter with: PYTHONPATH=. .venv-vllm/bin/python -m tests.benchmarks.bench_gpu --tiny
--parts engine --out FOLDER.

Run: python -m pytest tests/test_bench_gpu.py
"""

import json
import math
import sys
from dataclasses import asdict

import numpy as np
import pytest
import torch

from drlib.experiments.records import EXPERIMENTS, ExperimentRecords
from drlib.experiments.verdicts import FINDINGS
from drlib.files import read_json_lines
from drlib.training.memory_model import count_shape
from tests.benchmarks import bench_gpu
from tests.benchmarks.bench_gpu import ROOT, TINY, Sizes, Traffic, forward_flops, model_config

PROGRAM = "python -m tests.benchmarks.bench_gpu"
TYPED = ["--tiny", "--parts", "head", "train", "--layers", "2", "--out"]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return (output folder, its contents) of a run of two parts.

    Only the case `bytes` gets a process of its own: each one imports torch and transformers.
    """
    folder = tmp_path_factory.mktemp("gpu") / "results"
    apart = bench_gpu.apart

    def run_case(name, sizes, *more):
        if name == "bytes":
            return apart(name, sizes, *more)
        found = folder.with_name("found.json")
        bench_gpu.run_case(str(found), name, asdict(sizes), *more)
        return json.loads(found.read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_gpu, "apart", run_case)
        patch.setattr(sys, "argv", ["bench_gpu.py", *TYPED, str(folder)])
        bench_gpu.main()
    return folder, {part: json.loads((folder / f"{part}.json").read_text()) for part in TYPED[2:4]}


def one_line(monkeypatch, *arguments):
    """Return the error that ends the command."""
    monkeypatch.setattr(sys, "argv", ["bench_gpu.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as error:
        bench_gpu.main()
    assert "\n" not in error.value.code
    return error.value.code


def test_each_part_records_its_provenance(results):
    folder, parts = results
    assert {path.name for path in folder.iterdir()} == {
        "head.json",
        "train.json",
    }  # no partial files
    for content in parts.values():
        assert content["command"] == f"{PROGRAM} {' '.join(TYPED)} FOLDER"
        assert content["device"] == "cpu" and content["torch"] == torch.__version__
        assert content["transformers"] and "vllm" in content
        assert str(folder.parent) not in json.dumps(content)


def test_chunked_heads_use_less_memory(results):
    rows = {row["head"]: row for row in results[1]["head"]["rows"]}
    assert [*rows] == ["naive", "own_recompute", "own_fused"]
    logits_NV = TINY["scored"][0] * TINY["vocabulary"] * 2  # bytes
    for row in rows.values():
        assert row["failed"] is None and row["seconds"] > 0 and row["tokens"] == 256
        assert row["flops_share"] is None and row["bytes_share"] is None
        assert 5 * logits_NV < row["bytes"] < 100 * logits_NV
    for name in ("own_recompute", "own_fused"):
        assert rows[name]["peak_mb"] < rows["naive"]["peak_mb"]


def test_adapter_and_full_steps_are_timed(results):
    rows = results[1]["train"]["rows"]
    assert [(row["lora_rank"], row["tokens"]) for row in rows] == [(4, 128), (0, 128)]
    for row in rows:
        assert row["failed"] is None and row["tokens_s"] == pytest.approx(128 / row["seconds"])
        assert row["mfu"] is row["flops_share"] is row["peak_mb"] is None  # measured only on a GPU
        assert row["tokens_s"] > 0 and row["planned_mb"] > 0


def test_forward_flops_by_hand():
    """The miniature: H 64, 2 query heads and 1 key head of 32, 2 of 8 experts of 32, V 512."""
    attention = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 2 * 32
    experts = 2 * 3 * 64 * 32 + 8 * 64
    layers = 2 * (attention + experts + 2 * 64)
    weights = layers + 64 + 512 * 64  # including the last norm and the head, not the embeddings
    shape = count_shape(model_config(Sizes(layers=2, **TINY)))
    assert forward_flops(shape, 100) == 2 * weights + 2 * 2 * 64 * 100 == 192_384


def test_default_shape_is_qwen3_with_fewer_layers():
    shape = count_shape(model_config(Sizes()))
    assert (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim) == (2048, 32, 4, 128)
    assert (shape.experts, shape.chosen, shape.expert_inner) == (128, 8, 768)
    assert shape.vocabulary == 151_936 and shape.layers == 4 and not shape.tied


def test_traffic_bytes_by_hand():
    a, b, out = torch.ones(2, 3), torch.ones(3, 4), torch.empty(2, 4)
    index = torch.zeros(2, 1, dtype=torch.int64)
    for call, expected in (
        (lambda: a @ b, 24 + 48 + 32),
        (lambda: torch.mm(a, b, out=out), 24 + 48 + 32),
        (lambda: out.exp_(), 32 + 32),
        (lambda: a.t()[:1].expand(5, 2), 0),  # views
        (lambda: a.gather(1, index), 16 + 8),
        (lambda: a.scatter_add_(1, index, torch.ones(2, 1)), 8 + 16 + 8 + 8),  # ones are written
        (lambda: torch.empty(1000), 0),
    ):
        with Traffic() as traffic:
            call()
        assert traffic.bytes == expected


def test_out_of_memory_is_recorded_as_a_row(monkeypatch, tmp_path):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")

    monkeypatch.setitem(bench_gpu.CASES, "train", full)
    result = tmp_path / "found.json"
    bench_gpu.run_case(str(result), "train", TINY, 4, 128)
    found = json.loads(result.read_text())
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB."
    assert found == {"failed": error}
    monkeypatch.setattr(bench_gpu, "apart", lambda *_: found)
    assert [row["failed"] for row in bench_gpu.train_part(Sizes(**TINY))["rows"]] == [error, error]


def test_failing_part_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
    def breaks(_):
        raise RuntimeError("no kernel")

    parts = {"head": breaks, "engine": breaks, "train": lambda _: {"rows": [{"seconds": 1.0}]}}
    monkeypatch.setattr(bench_gpu, "PARTS", parts)
    error = one_line(monkeypatch, "--tiny", "--out", tmp_path)
    assert error == "not measured: head, engine (the reasons are above)"
    assert "engine: no kernel" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.json"]


def test_engine_part_is_skipped_without_vllm(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench_gpu.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["", "--tiny", "--parts", "engine", f"--out={tmp_path}"])
    bench_gpu.main()
    found = json.loads((tmp_path / "engine.json").read_text())
    assert found["engine"] is None and found["rows"] == []
    assert found["skipped"].startswith("vLLM is not installed: pip install")
    assert f"engine: skipped: {found['skipped']}" in capsys.readouterr().out
    assert found["command"] == f"{PROGRAM} --tiny --parts engine --out=FOLDER"


def test_invalid_arguments_give_a_one_line_error(monkeypatch, tmp_path):
    for arguments in (["--tiny"], ["--tiny", "--out", ROOT / "figures" / "reference" / "gpu"]):
        assert one_line(monkeypatch, *arguments) == (
            "--tiny needs --out FOLDER: figures/reference/gpu is for a GPU's numbers"
        )
    assert "--layers must be" in one_line(monkeypatch, "--tiny", "--out", tmp_path, "--layers", 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "sees no GPU" in one_line(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA GeForce 256")
    unknown = one_line(monkeypatch)
    assert "'NVIDIA GeForce 256'" in unknown and "--flops" in unknown and "--bandwidth" in unknown
    assert "go together" in one_line(monkeypatch, "--flops", "1e12")
    assert not [*tmp_path.iterdir()]


def test_peaks_come_from_the_vendor_or_arguments():
    assert bench_gpu.peaks_of("NVIDIA H100 80GB HBM3", None, None) == (989e12, 3.35e12)
    assert bench_gpu.peaks_of("NVIDIA GeForce 256", 1e12, 2e9) == (1e12, 2e9)
    assert bench_gpu.share(3e12, 2.0, 1e13) == 0.15
    assert bench_gpu.share(None, 2.0, 1e13) is bench_gpu.share(1.0, 2.0, None) is None


def test_committed_gpu_results_match_the_formula():
    """The committed step of Qwen3-1.7B's size has the FLOPs of the current formula."""
    found = json.loads((bench_gpu.OUT / "qwen3-1.7b/train.json").read_text())
    sizes = Sizes(**found["sizes"])
    assert found["device"] in bench_gpu.CARDS and sizes.model == "Qwen/Qwen3-1.7B"
    shape = count_shape(model_config(sizes))
    cases = [(rank, tokens) for rank in sizes.ranks for tokens in sizes.rows]
    assert [(row["lora_rank"], row["tokens"]) for row in found["rows"]] == cases
    for row in found["rows"]:
        assert row["forward_flops"] == forward_flops(shape, row["tokens"])
        assert row["tokens_s"] == row["tokens"] / row["seconds"]
        assert len(row["all_seconds"]) == 3 and 0 < row["mfu"] < row["flops_share"] < 0.5
        memory_ratio, bounds = row["peak_mb"] / row["planned_mb"], {32: (0.96, 1), 0: (0.86, 0.87)}
        least, most = bounds[row["lora_rank"]]
        assert least < memory_ratio < most


def test_only_half_precision_runs_failed():
    """Claims of docs/own_model.md and figures/reference/gpu about the committed files."""
    folder = bench_gpu.OUT / "cudnn"
    for seed in range(3):
        rows = read_json_lines(folder / f"bfloat16_seed{seed}.jsonl")
        failed_steps = [row["step"] for row in rows if math.isnan(row["grad_norm"])]
        assert failed_steps == [row["step"] for row in rows[failed_steps[0] - 1 :]], (
            "it never came back"
        )
        assert {row["accuracy"] for row in rows[failed_steps[0] :]} == {0} and failed_steps[0] <= 12
        float32_rows = read_json_lines(folder / f"float32_seed{seed}.jsonl")
        assert all(math.isfinite(row["grad_norm"]) for row in float32_rows)
        assert float32_rows[-1]["accuracy"] > float32_rows[0]["accuracy"] + 0.1
    for batch in json.loads((folder / "batches.json").read_text())["batches"]:
        found = batch["not_finite"]
        assert batch["tokens"] % 128 == 64 and "CudnnAttentionBackward" in batch["said"]
        assert found["math attention"] == found["memory-efficient attention"] == 0
        assert found["cuDNN attention"] == found["eager experts"] == found["as it came"] > 0


def test_half_precision_trains_without_cudnn_attention():
    """Claims of figures/reference/gpu about the repeated runs."""
    curves = ExperimentRecords.load(EXPERIMENTS / "precision.parquet").curves
    with_r3 = bench_gpu.OUT / "r3"
    for seed in range(3):
        for arm in ("float32", "bfloat16"):
            rows = curves[arm][seed]
            assert len(rows) == 25 and not [row for row in rows if "skipped" in row]
            assert all(0 < row["grad_norm"] < 2 for row in rows)
            first_steps, last_steps = (
                np.mean([row["accuracy"] for row in part]) for part in (rows[:3], rows[-3:])
            )
            assert last_steps > first_steps + 0.05
        replayed = read_json_lines(with_r3 / f"seed{seed}.jsonl")
        assert 9 <= len(replayed) <= 11
        kl, kl_r3 = (np.mean([row["mismatch/kl"] for row in found]) for found in (rows, replayed))
        assert 8 < kl / kl_r3 < 16
    found = json.loads((FINDINGS / "precision.json").read_text())
    assert max(map(abs, found["interval"])) == pytest.approx(0.2, abs=0.01)
