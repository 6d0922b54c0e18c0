"""LoRA in the local trainer: gradients, merging, the saved adapter, all stages.

Run: python -m pytest tests/test_training_adapters.py
"""

import copy
import json

import pytest
import torch
from peft import PeftModel

from drlib.config import ROOT
from drlib.demonstrations.document_teacher import draw_document_questions
from drlib.evaluation.evaluate import document_tasks
from drlib.files import read_json_lines
from drlib.models.smol_reader import apply_adapter
from drlib.training import stages
from drlib.training.adapters import add_adapters, has_adapters, merge_adapters, save_adapter
from drlib.training.distributed import trained_parameters
from drlib.training.grpo import engine_weights
from drlib.training.model_setup import load_model
from drlib.training.optim import Optimizers
from drlib.training.packing import PackedBatch, score
from drlib.training.run_folder import read_metrics
from drlib.trajectory import load_trajectories
from tests.real_examples import assert_logprobs_of, built, max_difference, miniature_config, weights
from tests.template_examples import random_model
from tests.test_training_real_local import LOCAL

RANK = 3
FOLDERS = ROOT / "tests" / "first_hour" / "folders"


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(params=["llama", "qwen3"])
def base(request, workspace):
    where = workspace / f"{request.param} model"
    if not where.exists():
        random_model(where, request.param)
    return load_model(str(where), torch.float32)


def nll(model, seed=0):
    """Return the loss of random samples in the trainer's forward pass."""
    generator = torch.Generator().manual_seed(seed)
    samples = [torch.randint(5, 200, (n,), generator=generator).tolist() for n in (9, 14, 5)]
    batch = PackedBatch.pack(samples)
    return -score(model, batch, torch.ones(len(batch.ids_N), dtype=torch.bool)).logp_M.sum()


def set_b(model, seed=1):
    """Draw the matrices B, which start at 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))


def test_new_adapters_change_nothing_and_only_they_are_trained(base):
    before = nll(base).item()
    linear = [m for m in base.model.modules() if isinstance(m, torch.nn.Linear)]
    expected = sum(RANK * (m.in_features + m.out_features) for m in linear)
    model = add_adapters(base, RANK, seed=0)
    assert has_adapters(model) and nll(model).item() == pytest.approx(before)
    assert sum(p.numel() for p in trained_parameters(model)) == expected
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    nll(model).backward()
    Optimizers.adam(model, 0.1).step(1.0)
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], old) for name, old in frozen.items())
    assert nll(model).item() < before


def test_gradients_are_those_of_the_weight_times_the_other_matrix(base):
    """With W + s B A: dL/dB = s dL/dW A^T and dL/dA = s B^T dL/dW, s = alpha / r = 2."""
    model = add_adapters(base, RANK, seed=0)
    set_b(model)
    merged = merge_adapters(model)
    assert not has_adapters(merged) and nll(merged).item() == pytest.approx(nll(model).item())
    nll(model).backward()
    nll(merged).backward()
    layer, plain = model.model.layers[0].mlp.down_proj, merged.model.layers[0].mlp.down_proj
    a, b, d_w = layer.lora_A.default.weight, layer.lora_B.default.weight, plain.weight.grad
    torch.testing.assert_close(b.grad, 2 * d_w @ a.detach().T, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(a.grad, 2 * b.detach().T @ d_w, rtol=1e-3, atol=1e-5)


def test_first_matrices_depend_on_the_seed_only(base):
    one, same, other = (
        trained_parameters(add_adapters(copy.deepcopy(base), RANK, seed=s)) for s in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(one, same))
    assert any(not torch.equal(a, b) for a, b in zip(one, other))


def test_saved_adapter_is_read_by_peft_and_by_drlib(base, tmp_path):
    plain = copy.deepcopy(base)
    model = add_adapters(base, RANK, seed=0)
    set_b(model)
    folder = save_adapter(model, tmp_path)
    merged = dict(merge_adapters(model).named_parameters())
    by_peft = PeftModel.from_pretrained(copy.deepcopy(plain), str(folder)).merge_and_unload()
    apply_adapter(plain, folder)
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(weight, dict(by_peft.named_parameters())[name])
        torch.testing.assert_close(weight, merged[name], rtol=1e-2, atol=1e-3)  # bfloat16 file


def test_adapter_of_another_model_is_refused(base, tmp_path):
    folder = save_adapter(add_adapters(copy.deepcopy(base), RANK, seed=0), tmp_path)
    base.model.layers[0].mlp.down_proj = torch.nn.Linear(4, 4)
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.down_proj, which does not fit"):
        apply_adapter(base, folder)
    settings = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(settings | {"use_dora": True}))
    with pytest.raises(ValueError, match="no plain LoRA adapter"):
        apply_adapter(base, folder)


def test_engine_gets_merged_weights(base):
    model = add_adapters(base, RANK, seed=0)
    set_b(model)
    given = engine_weights(model, "float32")
    assert not has_adapters(given) and has_adapters(model)
    assert nll(given).item() == pytest.approx(nll(model).item())
    assert engine_weights(model, "bfloat16").dtype == torch.bfloat16


def test_experts_are_refused(workspace):
    where = workspace / "experts"
    random_model(where, "qwen3_moe")
    with pytest.raises(ValueError, match="trainer.backend=trl"):
        add_adapters(load_model(str(where), torch.float32), RANK, seed=0)


@pytest.fixture(scope="module")
def pipeline(workspace):
    """Build all stages with adapters; demonstrations and evaluation include documents."""
    changes = {
        "trainer.lora_rank": RANK,
        "demonstrations.documents": f"folder:{FOLDERS / 'company_wiki'}",
        "demonstrations.document_questions": 20,
        "rl.curriculum.documents": f"folder:{FOLDERS / 'company_wiki'}",
        "rl.curriculum.document_share": 1.0,
        "rl.curriculum.python_share": 0.0,
        "evaluation.documents": f"folder:{FOLDERS / 'articles'}+folder:{FOLDERS / 'plain_text'}",
    }
    config = miniature_config(workspace, "llama", **LOCAL | changes)
    built("evaluate_rl", config, workspace / "runs")
    return config, workspace / "runs"


def test_stages_train_adapters_and_save_whole_models(pipeline):
    config, runs = pipeline
    sft, rl = (stages.folder(name, config, runs) / "policy" for name in ("sft", "rl"))
    base, first, second = (weights(folder) for folder in (ROOT / config.model.path, sft, rl))
    assert max_difference(base, first) > 0 and max_difference(first, second) > 0
    for name, weight in first.items():
        rank = torch.linalg.matrix_rank(weight - base[name], atol=1e-5) if weight.ndim > 1 else 0
        assert rank <= RANK, name
        if "proj" not in name:
            assert torch.equal(weight, base[name])
    model = load_model(config.model.path, torch.float32)
    apply_adapter(model, sft / "adapter")
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight, first[name], rtol=1e-2, atol=1e-3)


def test_engine_follows_the_adapters(pipeline):
    config, runs = pipeline
    rl = stages.folder("rl", config, runs)
    rows = read_metrics(rl)
    assert all(row["grad_norm"] > 0 and row["logp_gap_max"] < 1e-4 for row in rows)
    first, *_ = load_trajectories(rl / "trajectories_0001.parquet")
    assert_logprobs_of(first, stages.folder("sft", config, runs) / "policy")


def test_documents_are_demonstrated_and_asked_about(pipeline):
    config, runs = pipeline
    folder = stages.folder("demonstrations", config, runs)
    rows = read_json_lines(folder / "episodes.jsonl")
    read = [row for row in rows if '"visit"' in str(row["messages"])]
    assert read and all(row["correct"] for row in read)
    counts = json.loads((folder / "manifest.json").read_text())["metrics"]
    assert counts["episodes"] + counts["unread"] == config.demonstrations.count + 20
    outcomes = read_json_lines(stages.folder("evaluate_rl", config, runs) / "outcomes.jsonl")
    for name in ("articles", "plain_text"):
        asked = [row["task"] for row in outcomes if row["kind"] == name]
        _, questions = draw_document_questions(
            f"folder:{FOLDERS / name}", 2, config.evaluation.seed
        )
        assert asked == [question.task.id for question in questions] and len(asked) == 2


def test_rl_asks_about_documents(pipeline):
    config, runs = pipeline
    rows = read_metrics(stages.folder("rl", config, runs))
    assert all("accuracy_documents" in row and "accuracy_real" not in row for row in rows)


def test_documents_that_were_trained_on_are_not_held_out(pipeline):
    config, runs = pipeline
    for name in ("demonstrations", "rl__curriculum"):
        trained = {f"{name}__documents": f"folder:{FOLDERS / 'articles'}"}
        with pytest.raises(ValueError, match="is also trained on"):
            document_tasks(config.derive(**trained))
