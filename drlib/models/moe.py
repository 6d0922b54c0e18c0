"""The policy: a small Qwen3-MoE model; initialisation, saving and loading.

The model is transformers' `Qwen3MoeForCausalLM`, so a checkpoint is a plain Hugging Face folder
that transformers, TRL and vLLM load without drlib. (With expert biases it is a separate model type:
`drlib.models.router_bias`.)

A plainly initialised model of this size needs far more tokens than fifteen minutes on two cores
provide before it can copy a name out of a page. The default initialisation is therefore
*structured*: `induction_init_` writes the two-layer induction circuit (Olsson et al. 2022,
arXiv:2209.11895: previous-token heads feeding content-match heads) into the weights. That is not
training from scratch in the pure sense and must be stated with any such claim; `init="plain"` is
the comparison.
"""

import copy
import json
import math
import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)
from transformers.utils import logging as hf_logging

from drlib.config import find_model
from drlib.models.router_bias import RouterBiasConfig, RouterBiasForCausalLM

# Tuned on the random-token copy task (see the tests) with token frequencies of 1/rank, by the copy
# accuracy of *rare* tokens.
_STD = 0.2  # of a content coordinate of an embedding
_PREVIOUS_SHARPNESS = 30.0  # attention logit at offset -1
_MATCH_SHARPNESS = 12.0  # attention logit of an exact content match
_COPY_GAIN = 6.0  # copied token against the current one in the last residual
_NOISE = 0.01  # breaks the symmetry between heads that share a role
_SLOWEST_TURN = 1.0  # radians over the whole context below which a RoPE pair counts as slow


@dataclass(frozen=True)
class PolicyShape:
    """Sizes of the policy; the defaults give about 1.2 M parameters, half of them active."""

    vocab_size: int = 2048
    hidden: int = 128
    layers: int = 4
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 16
    experts: int = 8
    experts_per_token: int = 2
    expert_hidden: int = 64
    rope_theta: float = 1e6
    max_positions: int = 1024

    def __post_init__(self):
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"PolicyShape.{name} must be positive, got {value}")
        for violated, rule in (
            (self.heads % self.kv_heads, "heads must be a multiple of kv_heads"),
            (self.head_dim % 2, "head_dim must be even for RoPE"),
            (self.experts_per_token > self.experts, "experts_per_token exceeds experts"),
        ):
            if violated:
                raise ValueError(f"{rule}: {self}")


def policy_config(shape: PolicyShape, *, eos_id=None, pad_id=None) -> Qwen3MoeConfig:
    """Return the model configuration: every layer is sparse and embeddings are tied."""
    return Qwen3MoeConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": float(shape.rope_theta)},
        num_experts=shape.experts,
        num_experts_per_tok=shape.experts_per_token,
        moe_intermediate_size=shape.expert_hidden,
        norm_topk_prob=True,
        intermediate_size=shape.expert_hidden * shape.experts_per_token,
        tie_word_embeddings=True,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )


def build_policy(
    shape: PolicyShape, seed: int, init: str = "induction", *, eos_id=None, pad_id=None
) -> Qwen3MoeForCausalLM:
    """Build an fp32 policy; the same seed gives the same weights, and torch's RNG is unchanged.

    Args:
        shape: sizes.
        seed: of the weights.
        init: "induction" (structured, see `induction_init_`) or "plain" (normal, std .02).
        eos_id, pad_id: token ids.

    Raises:
        ValueError: unknown init.
    """
    if init not in ("induction", "plain"):
        raise ValueError(f"unknown init {init!r}: use 'induction' or 'plain'")
    config = policy_config(shape, eos_id=eos_id, pad_id=pad_id)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options = dict(dtype=torch.float32, experts_implementation="grouped_mm")
        model = Qwen3MoeForCausalLM._from_config(config, **options)
    if init == "induction":
        induction_init_(model, torch.Generator().manual_seed(seed))
    return model


@torch.no_grad()
def induction_init_(model: Qwen3MoeForCausalLM, generator: torch.Generator) -> None:
    """Write an induction circuit into the model's weights, in place.

    The circuit finds the last occurrence of the current token and copies the token after it. The
    residual stream is divided by coordinates: one constant, a *store* for the previous token, and
    the *content* of the token itself.

    - Layer 0: queries and keys read the constant only, through the fastest RoPE pairs, with a phase
      that makes every head peak at offset -1; values carry content into the store.
    - Layers 1 and up: queries read the content, keys the store, both through RoPE pairs too slow to
      encode the distance, so a head attends to the position *after* an earlier occurrence of the
      current token; values and output carry that position's content back, near-identity. Each layer
      copies another part of the content.
    - Experts and routers stay plain.
    """
    config = model.config
    if config.num_hidden_layers < 2:
        raise ValueError("an induction circuit needs at least 2 layers")
    dim, n_kv, n_copy = config.head_dim, config.num_key_value_heads, config.num_hidden_layers - 1
    half, width, group = dim // 2, n_kv * dim, config.num_attention_heads // n_kv
    # Residual coordinates: 0 is the constant, followed by the store and the content.
    n_store = min(width, config.hidden_size // 4)
    store, content = list(range(1, 1 + n_store)), list(range(1 + n_store, config.hidden_size))
    chunk = math.ceil(len(content) / n_copy)
    chunks = [content[i * chunk : (i + 1) * chunk] for i in range(n_copy)]
    # Content used for matching (`source`) must be unchanged until the last layer: copied last.
    source = (chunks[-1] + content)[:n_store]
    inv_freq = [config.rope_parameters["rope_theta"] ** (-i / half) for i in range(half)]
    slow = [i for i in range(half) if inv_freq[i] * config.max_position_embeddings < _SLOWEST_TURN]
    slow = slow or [half - 1]
    fast = [i for i in range(half) if i not in slow][:3] or [0]
    rows = [pair + part for pair in slow for part in (0, half)][:n_store]

    weight = model.model.embed_tokens.weight
    weight.normal_(0.0, _STD, generator=generator)
    weight[:, store] *= 0.1
    weight[:, 0] = 2 * _STD
    # Logits read content only: the store holds the previous token, which must not be predicted.
    model.model.norm.weight[store] = 0.1
    model.model.norm.weight[0] = 0.0
    for index, layer in enumerate(model.model.layers):
        q, k, v, o = (getattr(layer.self_attn, f"{name}_proj").weight for name in "qkvo")
        for weight in (q, k, v, o):
            weight.normal_(0.0, _NOISE, generator=generator)
        if index == 0:
            for pair in fast:
                # The query is rotated back by one position, so it matches the key at offset -1.
                q[pair::dim, 0] = math.cos(inv_freq[pair])
                q[pair + half :: dim, 0] = -math.sin(inv_freq[pair])
                k[pair::dim, 0] = 1.0
            carry = (layer.self_attn, source, store, _PREVIOUS_SHARPNESS, 2)
        else:
            for kv in range(n_kv):
                start = ((index - 1) * n_kv + kv) * 2 * len(slow)
                for offset, row in enumerate(rows):
                    at = (start + offset) % n_store
                    k[kv * dim + row, store[at]] = 1.0
                    q.view(n_kv, group, dim, -1)[kv, :, row, source[at]] = 1.0
            copied = chunks[index - 1] + [c for c in content if c not in chunks[index - 1]]
            copied = [c for c in copied if index == n_copy or c not in source][:width]
            carry = (layer.self_attn, copied, copied, _MATCH_SHARPNESS, _COPY_GAIN)
        _carry(*carry)


def _carry(attention, origins, targets, sharpness: float, gain: float) -> None:
    """Set heads of sharpness `sharpness` that carry coordinates `origins` into `targets`."""
    dim, group = attention.head_dim, attention.num_key_value_groups
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight.fill_(math.sqrt(sharpness / math.sqrt(dim)))
    out = attention.o_proj.weight.unflatten(1, (-1, group, dim))
    for slot, (origin, target) in enumerate(zip(origins, targets)):
        attention.v_proj.weight[slot, origin] = 1.0
        out[target, slot // dim, :, slot % dim] = _STD * gain / group


def save_policy(model, tokenizer, path, dtype: torch.dtype | None = None) -> Path:
    """Write a Hugging Face folder (safetensors) at `path` atomically.

    The folder is written under a temporary name and renamed when complete; an existing checkpoint
    is replaced only then.

    Args:
        model: any transformers model; unchanged.
        tokenizer: saved too, unless None.
        path: target folder.
        dtype: dtype of the saved weights (bf16 for release).

    Returns:
        The path.

    Raises:
        OSError: the disk is full.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(".partial", f".{path.name}.", path.parent) as scratch:
        new, old = Path(scratch, "new"), Path(f"{scratch}.old")
        try:
            with quiet_loading():
                (model if dtype is None else copy.deepcopy(model).to(dtype)).save_pretrained(new)
            if tokenizer is not None:
                tokenizer.save_pretrained(new)
        except SafetensorError as error:
            raise OSError(f"could not write the checkpoint {path}: {error}") from error
        if path.exists():
            os.rename(path, old)
        os.rename(new, path)
    shutil.rmtree(old, ignore_errors=True)
    return path


def load_policy(path) -> tuple[Qwen3MoeForCausalLM, object | None]:
    """Load (model in fp32, tokenizer) from a folder of `save_policy`; tokenizer None if not saved.

    Raises:
        FileNotFoundError: missing folder or file.
        ValueError: damaged or incomplete checkpoint; the message names the file.
    """
    path = Path(path)
    if not path.is_dir():
        raise FileNotFoundError(f"no checkpoint folder at {path}: train or copy one there")
    again = "delete it and build it again"
    for name in ("config.json", "model.safetensors"):
        if not (path / name).is_file():
            raise FileNotFoundError(f"checkpoint {path} has no {name}: it is incomplete; {again}")
    try:
        described, _ = Qwen3MoeConfig.get_config_dict(path, local_files_only=True)
        is_biased = described.get("model_type") == RouterBiasConfig.model_type
        architecture = RouterBiasForCausalLM if is_biased else Qwen3MoeForCausalLM
        with quiet_loading():
            model, report = architecture.from_pretrained(
                path,
                dtype=torch.float32,
                experts_implementation="grouped_mm",
                local_files_only=True,
                output_loading_info=True,
            )
    except (SafetensorError, OSError, json.JSONDecodeError, EOFError) as error:
        raise ValueError(
            f"checkpoint {path} is damaged (config.json or model.safetensors cannot "
            f"be read: {error}); {again}"
        ) from error
    missing = sorted(set(report["missing_keys"]) - {"lm_head.weight"})
    if missing:
        raise ValueError(f"checkpoint {path} lacks weights, for example {missing[0]}")
    saved = (path / "tokenizer_config.json").exists()
    return model, AutoTokenizer.from_pretrained(path, local_files_only=True) if saved else None


def load_model_config(path):
    """Return the text configuration of the model in a folder. ValueError: no model."""
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
    except (OSError, ValueError) as error:
        raise ValueError(f"no model at {path} ({error})") from error


def default_device() -> torch.device:
    """Return the GPU of this process, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model(path):
    """Load any local causal language model, in its own precision, on `default_device`.

    Args:
        path: Hugging Face folder, `smol`, or a converted GGUF file (`drlib convert`).

    Returns:
        The model in evaluation mode.

    Raises:
        ValueError: no causal language model at `path`.
    """
    path = find_model(str(path))
    try:
        with quiet_loading():
            model = AutoModelForCausalLM.from_pretrained(path, dtype="auto", local_files_only=True)
    except (SafetensorError, OSError, ValueError) as error:
        raise ValueError(f"no causal language model at {path} ({error})") from error
    return model.eval().to(default_device())


@contextmanager
def quiet_loading():
    """Hide transformers' progress bars; the global setting is restored."""
    shown = hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            hf_logging.enable_progress_bar()
