"""LoRA adapters of the local trainer: in the model itself, so that its names stay the same.

PEFT replaces linear layers by layers with an adapter; `drlib.models.packed` and the optimizers need
no change. An engine gets a copy in which the adapters are merged, and a stage leaves both the whole
model and, in `ADAPTER`, the adapter in PEFT's format.

Source: Hu et al., LoRA (arXiv 2106.09685), section 4.1. Not supported: experts.
"""

import copy
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from drlib.models.dense_decoder import find_unsupported
from drlib.models.smol_reader import PREFIX, WEIGHTS
from drlib.training.model_setup import build_lora_config
from drlib.validation import require

ADAPTER = "adapter"  # folder in a policy


def add_adapters(model: PreTrainedModel, rank: int, seed: int) -> PreTrainedModel:
    """Add LoRA adapters to all linear layers of `model`; only they are trained from now on.

    Args:
        seed: of the initial matrices A; the matrices B start at 0, so the model is unchanged.

    Raises:
        ValueError: the model is not a dense one of `drlib.models.dense_decoder`.
    """
    from peft import inject_adapter_in_model

    fault = find_unsupported(model.config)
    require(not fault, f"trainer.lora_rank={rank} cannot train {fault}: set trainer.backend=trl")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = inject_adapter_in_model(build_lora_config(model, rank), model)
    for _, layer in _iter_adapted(model):  # autocast converts; PEFT would convert twice
        layer.cast_input_dtype_enabled = False
    return model


def has_adapters(model: nn.Module) -> bool:
    """Return True if `model` has adapters of `add_adapters`."""
    return bool(getattr(model, "peft_config", None))


def merge_adapters(model: nn.Module) -> nn.Module:
    """Return a copy of `model` without adapters and with their updates in its weights."""
    merged = copy.deepcopy(model)
    for name, layer in list(_iter_adapted(merged)):
        layer.merge()
        parent, _, child = name.rpartition(".")
        setattr(merged.get_submodule(parent), child, layer.get_base_layer())
    del merged.peft_config
    return merged.requires_grad_(True)


def save_adapter(model: nn.Module, folder: Path) -> Path:
    """Write the adapters of `model` to `folder`/`ADAPTER` in PEFT's format, as bfloat16."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    path = folder / ADAPTER
    path.mkdir()
    weights = get_peft_model_state_dict(model)
    rows = {
        f"{PREFIX}{name}": weight.detach().to(torch.bfloat16).contiguous()
        for name, weight in weights.items()
    }
    save_file(rows, path / WEIGHTS)
    model.peft_config["default"].save_pretrained(path)
    return path


def _iter_adapted(model: nn.Module):
    """Yield (name, layer) of the layers with adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in model.named_modules():
        if isinstance(module, BaseTunerLayer):
            yield name, module
