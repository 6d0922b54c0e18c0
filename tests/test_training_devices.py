"""Devices of models that generate in the trainer's process: `default_device`.

The tests run without a GPU. Torch's meta device, whose tensors have no memory, replaces it.

Run: python -m pytest tests/test_training_devices.py
"""

import pytest
import torch

from drlib.config import ROOT, Config
from drlib.models import moe
from drlib.models.transformers_engine import TransformersEngine
from drlib.training import model_setup

TOUR_SFT = str(ROOT / "figures/reference/tour/policy_sft")


@pytest.fixture
def meta_device(monkeypatch):
    for module in (moe, model_setup):
        monkeypatch.setattr(module, "default_device", lambda: torch.device("meta"))


@pytest.mark.parametrize("engine", ["hf", "local"])
def test_engine_uses_the_default_device(meta_device, engine):
    model = model_setup.load_model(TOUR_SFT, torch.float32)
    assert model.device.type == "cpu"
    config = Config.load("laptop", trainer__backend="trl", engine__name=engine)
    with model_setup.create_engine(model, TOUR_SFT, config) as engine_instance:
        assert model.device.type == "meta", "it is the model that is trained, not a copy"
        device = (
            engine_instance.model.device
            if engine == "hf"
            else engine_instance._decoder.cache.device
        )
        assert device.type == "meta"


@pytest.mark.parametrize("engine", ["hf", "local"])
def test_engine_of_the_local_trainer_stays_on_the_cpu(meta_device, engine):
    """The local learner packs its batches on the CPU and shares the model with the engine."""
    model = model_setup.load_model(TOUR_SFT, torch.float32)
    config = Config.load("laptop", engine__name=engine)
    with model_setup.create_engine(model, TOUR_SFT, config):
        assert model.device.type == "cpu"


def test_model_from_a_folder_uses_the_default_device(meta_device):
    assert moe.load_model(TOUR_SFT).device.type == "meta"
    assert TransformersEngine(TOUR_SFT).model.device.type == "meta"


def test_default_device_is_the_gpu_if_available(monkeypatch):
    for has_gpu, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert moe.default_device().type == kind
