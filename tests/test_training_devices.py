"""Devices of models that generate in their own process: `default_device`.

No machine of the tests has a GPU; torch's meta device, where tensors have a shape and no memory,
stands for one.

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
def elsewhere(monkeypatch):
    for module in (moe, model_setup):
        monkeypatch.setattr(module, "default_device", lambda: torch.device("meta"))


@pytest.mark.parametrize("engine", ["hf", "local"])
def test_an_engine_computes_where_the_process_does(elsewhere, engine):
    model = model_setup.load_model(TOUR_SFT, torch.float32)
    assert model.device.type == "cpu"
    config = Config.load("laptop", trainer__backend="trl", engine__name=engine)
    with model_setup.create_engine(model, TOUR_SFT, config) as made:
        assert model.device.type == "meta", "it is the model that is trained, not a copy"
        there = made.model.device if engine == "hf" else made._decoder.cache.device
        assert there.type == "meta"


def test_a_folder_s_model_too(elsewhere):
    assert moe.load_model(TOUR_SFT).device.type == "meta"
    assert TransformersEngine(TOUR_SFT).model.device.type == "meta"


def test_the_device_is_the_gpu_where_there_is_one(monkeypatch):
    for found, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=found: found)
        assert moe.default_device().type == kind
