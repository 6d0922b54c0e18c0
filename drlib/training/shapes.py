"""The sizes of a model before any of its weights is loaded.

The configuration alone says them: transformers builds the model of it on torch's meta device, where
a parameter has a shape and no memory, and they are counted there. A folder and a hub's id that is
in the local cache are read from the disk. Nothing is fetched: of the models that the profiles and
the README name, the few numbers of their public configurations are here.

Left out: models whose text part is not a plain decoder (vision towers are not counted).
"""

import json
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig

from drlib.config import ROOT, Config
from drlib.models.moe import policy_config
from drlib.training.memory import Shape
from drlib.training.pretrain import shape_of_policy
from drlib.validation import require

_QWEN3 = {"model_type": "qwen3", "vocab_size": 151_936, "head_dim": 128}
_QWEN3 |= {"num_key_value_heads": 8, "max_position_embeddings": 40_960}
_SPARSE = _QWEN3 | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")  # one of them


def _dense(hidden: int, inner: int, layers: int, heads: int, tied: bool) -> dict:
    return _QWEN3 | {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }


KNOWN: dict[str, dict] = {
    "Qwen/Qwen3-0.6B": _dense(1024, 3072, 28, 16, True),
    "Qwen/Qwen3-1.7B": _dense(2048, 6144, 28, 16, True),
    "Qwen/Qwen3-4B": _dense(2560, 9728, 36, 32, True),
    "Qwen/Qwen3-8B": _dense(4096, 12_288, 36, 32, False),
    "Qwen/Qwen3-30B-A3B": _SPARSE,
    "Qwen/Qwen3-30B-A3B-Thinking-2507": _SPARSE | {"max_position_embeddings": 262_144},
}


def shape_of(config: Config) -> Shape:
    """The sizes of the model that these settings train. ValueError: nobody here knows them."""
    if config.model.path == "":
        return shape_from(policy_config(shape_of_policy(config)))
    return shape_from(_configuration(config.model.path))


def shape_from(configuration: PreTrainedConfig) -> Shape:
    """The sizes of a transformers configuration, parameters counted on the meta device."""
    text = configuration.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text)
    chosen = getattr(text, "num_experts_per_tok", None) or 0
    experts = (getattr(text, "num_experts", None) or 0) if chosen else 0
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    total = sum(sizes.values())
    of_experts = sum(n for name, n in sizes.items() if ".experts." in name)
    idle = of_experts * (experts - chosen) // experts if experts else 0
    by_layer: dict[str, int] = {}
    for name, n in sizes.items():
        if ".layers." in name:
            layer = name.split(".layers.")[1].split(".")[0]
            by_layer[layer] = by_layer.get(layer, 0) + n
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return Shape(
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=head_dim,
        inner=text.intermediate_size,
        vocabulary=text.vocab_size,
        positions=text.max_position_embeddings,
        tied=bool(text.tie_word_embeddings),
        query_norm=any("q_norm" in name for name in sizes),
        experts=experts,
        chosen=chosen if experts else 0,
        expert_inner=text.moe_intermediate_size if experts else 0,
        sparse_layers=sum(name.endswith("experts.down_proj") for name in sizes),
        parameters=total,
        active=total - idle,
        layer_parameters=max(by_layer.values()),
    )


def folder_of(model: str) -> Path | None:
    """The folder that a `model` setting names (from the repository unless absolute), if any."""
    path = ROOT / Path(model).expanduser()
    return path if path.is_dir() else None


def _configuration(model: str) -> PreTrainedConfig:
    where = folder_of(model)
    if where is not None:
        require((where / "config.json").is_file(), f"model {model!r}: {where} has no config.json")
    try:
        return AutoConfig.from_pretrained(where or model, local_files_only=True)
    except (OSError, ValueError) as error:
        if model in KNOWN:
            known = dict(KNOWN[model])
            return AutoConfig.for_model(known.pop("model_type"), **known)
        if where is not None:
            raise ValueError(
                f"model {model!r}: its config.json cannot be read ({error})"
            ) from error
        raise ValueError(
            f"model {model!r}: no such folder, it is not in the local cache, and its sizes are not "
            f"known here: download it first, or name a folder or one of {', '.join(KNOWN)}"
        ) from error


def folder_faults(model: str) -> list[str]:
    """What is missing in a model's folder, a line each; nothing for a hub's id."""
    where = folder_of(model)
    if where is None:
        return []
    faults = [f"model {model!r}: {fault}" for fault in _weight_faults(where)]
    missing = f"model {model!r}: no tokenizer in {where}: copy the tokenizer's files there"
    # transformers would make an empty tokenizer for a model of a known type
    if not any((where / name).is_file() for name in VOCABULARIES):
        return [*faults, missing]
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=True)
    except (OSError, ValueError, KeyError, AttributeError) as error:
        return [*faults, f"{missing} ({error})"]
    if not tokenizer.chat_template:
        faults.append(
            f"model {model!r}: its tokenizer has no chat template: a base model cannot be spoken "
            "to; take an instruct model, or add a chat_template.jinja"
        )
    return faults


def _weight_faults(where: Path) -> list[str]:
    index = where / "model.safetensors.index.json"
    if not index.is_file():
        whole = (where / "model.safetensors").is_file()
        return [] if whole else [f"no model.safetensors (or its index) in {where}"]
    try:
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError):
        return [f"{index} cannot be read"]
    missing = sorted(name for name in named if not (where / name).is_file())
    return [f"{len(missing)} of its files are missing, such as {missing[0]}"] if missing else []
