"""`smol-reader`: installation from an adapter, and its name in `drlib ask`.

Run: python -m pytest tests/test_models_smol_reader.py
"""

import pytest
import torch
from safetensors.torch import load_file, save_file

from drlib.app.research import AskError, AskOptions
from drlib.chat.prompts import BRIEF_PROMPT, load_trained_prompt
from drlib.chat.template import load_any_tokenizer
from drlib.config import find_model
from drlib.models.moe import load_model
from drlib.models.smol_reader import ADAPTER, SETTINGS, WEIGHTS, apply_adapter, install_reader
from drlib.training.adapters import add_adapters, save_adapter
from tests.template_examples import random_model


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.setenv("DRLIB_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def adapter(models, tmp_path):
    """Save a random `smol` and an adapter for it whose updates are not 0."""
    random_model(models / "smol", "llama")
    folder = save_adapter(add_adapters(load_model("smol").float(), 2, seed=0), tmp_path)
    rows = load_file(folder / WEIGHTS)
    save_file(
        {name: torch.ones_like(row) if "lora_B" in name else row for name, row in rows.items()},
        folder / WEIGHTS,
    )
    return folder


def test_installed_model_has_the_updates_and_the_prompt(models, adapter):
    folder = install_reader(adapter)
    assert str(folder) == find_model("smol-reader")
    expected = load_model("smol").float()
    apply_adapter(expected, adapter)
    found = load_model("smol-reader").float()
    for name, weight in expected.named_parameters():
        torch.testing.assert_close(
            dict(found.named_parameters())[name], weight, rtol=1e-2, atol=1e-2
        )
    layer = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(
        found.get_parameter(layer), load_model("smol").float().get_parameter(layer)
    )
    assert load_trained_prompt(folder) == BRIEF_PROMPT
    assert load_any_tokenizer("smol-reader").eos_token == load_any_tokenizer("smol").eos_token


def test_only_another_adapter_replaces_the_model(models, adapter):
    folder = install_reader(adapter)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    install_reader(adapter)
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    rows = load_file(adapter / WEIGHTS)
    save_file({name: 2 * row for name, row in rows.items()}, adapter / WEIGHTS)
    install_reader(adapter)
    assert (folder / "model.safetensors").stat().st_mtime_ns > before


def test_missing_models_name_the_command(models, adapter):
    with pytest.raises(ValueError, match="run `drlib convert smol` once"):
        find_model("smol-reader")
    for file in (models / "smol").iterdir():
        file.unlink()
    (models / "smol").rmdir()
    with pytest.raises(ValueError, match="run `drlib convert smol` once"):
        install_reader(adapter)


def test_committed_adapter_is_small_and_for_smol():
    assert sum(file.stat().st_size for file in (ADAPTER / WEIGHTS, ADAPTER / SETTINGS)) < 3e6
    rows = load_file(ADAPTER / WEIGHTS)
    assert len(rows) == 2 * 7 * 30 and all(row.isfinite().all() for row in rows.values())
    assert rows["base_model.model.model.layers.29.mlp.down_proj.lora_A.weight"].shape == (4, 1536)


def test_model_smol_without_a_server_is_the_reader():
    options = AskOptions(world="folder:notes", model="smol")
    assert (options.folder, options.model) == ("smol-reader", "")
    at_server = AskOptions(model="smol", endpoint="http://127.0.0.1:1/v1")
    assert (at_server.folder, at_server.model) == ("", "smol")
    with pytest.raises(AskError, match="--endpoint and --model must be given together"):
        AskOptions(model="other")
