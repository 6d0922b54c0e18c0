"""`smol-reader`: smol with the committed LoRA adapter, which reads documents.

The adapter was trained by the profile `smol-reader`: it searches, opens a page, quotes the sentence
that has the answer, and answers. The merged model is a Hugging Face folder in the cache of models.
"""

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from drlib.chat.prompts import BRIEF_PROMPT, save_trained_prompt
from drlib.chat.template import load_any_tokenizer
from drlib.config import ROOT, SMOL, SMOL_READER, find_model, models_folder
from drlib.models.moe import load_model, save_policy

ADAPTER = ROOT / "figures" / "reference" / "smol" / "reader"
WEIGHTS, SETTINGS, NOTE = "adapter_model.safetensors", "adapter_config.json", "conversion.json"
PREFIX = "base_model.model."  # of the names in an adapter's file


def install_reader(adapter: Path = ADAPTER) -> Path:
    """Merge the adapter into `smol`, save the result in the cache and return its folder.

    A folder with the same adapter is kept.

    Raises:
        ValueError: `smol` is not converted, or the adapter does not fit.
        OSError: the disk is full.
    """
    target = models_folder() / SMOL_READER
    digest = hashlib.sha256((adapter / WEIGHTS).read_bytes()).hexdigest()
    note = target / NOTE
    if note.is_file() and json.loads(note.read_text(encoding="utf-8"))["sha256"] == digest:
        return target
    model = load_model(find_model(SMOL)).to("cpu")
    apply_adapter(model, adapter)
    save_policy(model, load_any_tokenizer(SMOL), target, torch.bfloat16)
    save_trained_prompt(target, BRIEF_PROMPT)
    note.write_text(json.dumps({"sha256": digest}), encoding="utf-8")
    return target


@torch.no_grad()
def apply_adapter(model, folder: Path) -> None:
    """Add the updates of a LoRA adapter in PEFT's format to the weights of `model`.

    W := W + alpha / r B A. Source: Hu et al., LoRA (arXiv 2106.09685), section 4.1.

    Raises:
        ValueError: the adapter is of another kind or names a weight that the model lacks.
    """
    settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    plain = settings["peft_type"] == "LORA" and not (
        settings.get("use_dora") or settings.get("use_rslora") or settings.get("rank_pattern")
    )
    if not plain:
        raise ValueError(f"{folder} is no plain LoRA adapter: merge it with PEFT")
    scale = settings["lora_alpha"] / settings["r"]
    rows = load_file(folder / WEIGHTS)
    weights = dict(model.named_parameters())
    for name, a_RI in rows.items():
        if not name.endswith(".lora_A.weight"):
            continue
        layer = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        weight = weights.get(f"{layer}.weight")
        b_OR = rows[name.replace("lora_A", "lora_B")]
        if weight is None or weight.shape != (len(b_OR), a_RI.shape[1]):
            raise ValueError(f"{folder} has an update of {layer}, which does not fit the model")
        weight += scale * (b_OR.float() @ a_RI.float()).to(weight.dtype)
