"""Memory of a training step on one device, computed from a model's configuration.

Nothing is loaded. A `Shape` has the sizes of a model, a `Load` what a step does with it. Tests
compare every part with torch's allocations, for transformers 5.17 with sdpa attention.

- Trained weights, their gradients and AdamW's two states are float32. With LoRA, the base model is
  kept in model.dtype.
- A full bfloat16 run on one process computes float32 weights under autocast: the residual stream
  and the experts stay float32, and weights of linear layers are copied. FSDP2 casts the weights.
- With gradient checkpointing, activations are the inputs of all layers and one recomputed layer.
- Padded rows need a mask, which sdpa converts to numbers: [rows, T, T] in each layer.
- PEFT adds the product of LoRA adapters to the experts' 3-D weights, so each layer keeps a copy.
- The usual output head needs logits, their float32 copy, log-softmax and its gradient, [T, V] each;
  chunked log-probabilities (`drlib.models.chunked_logprobs`) need tiles.

Not modelled: fragmentation, other attention, quantised weights, tensor and expert parallelism,
vision towers.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from drlib.config import ROOT, Config
from drlib.models.chunked_logprobs import TILES
from drlib.models.moe import policy_config
from drlib.training.pretrain import policy_shape
from drlib.validation import require

FLOAT32 = 4  # bytes
ITEMSIZE = {"float32": 4, "bfloat16": 2}
STATES = 2  # of AdamW
RESERVED = 2**30  # bytes of a CUDA context and cuBLAS: assumed, not measured
ENGINE_WORK = 2**30  # bytes of an engine besides weights and cache (CUDA graphs): assumed
SERVER_SHARE = 0.9  # share of its device that vLLM uses by default


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder that determine memory and time.

    Attributes:
        inner: width of a dense layer's MLP.
        positions: longest context.
        query_norm: queries and keys are normalised (Qwen3).
        chosen: experts per token.
        sparse_layers: layers with experts.
        parameters, active: all, and those used for one token; tied matrices count once.
        layer_parameters: of the largest layer.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    positions: int
    tied: bool
    query_norm: bool
    experts: int
    chosen: int
    expert_inner: int
    sparse_layers: int
    parameters: int
    active: int
    layer_parameters: int

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_width(self) -> int:
        return self.kv_heads * self.head_dim

    def adapters(self, rank: int) -> int:
        """Return the LoRA parameters of all linear layers and experts, without routers and head."""
        dense = (self.layers - self.sparse_layers) * self.mlp_adapters(rank)
        sparse = self.sparse_layers * self.expert_adapters(rank)
        return self.layers * self.attention_adapters(rank) + dense + sparse

    def attention_adapters(self, rank: int) -> int:
        """Return the LoRA parameters of one attention layer."""
        return rank * 2 * (2 * self.hidden + self.query_width + self.key_width)

    def mlp_adapters(self, rank: int) -> int:
        """Return the LoRA parameters of one dense MLP."""
        return rank * 3 * (self.hidden + self.inner)

    def expert_adapters(self, rank: int) -> int:
        """Return the LoRA parameters of one layer's experts; PEFT doubles gate and up."""
        gate_up, down = self.hidden + 2 * self.expert_inner, self.expert_inner + self.hidden
        return rank * self.experts * (2 * gate_up + down)

    def kv_bytes(self, itemsize: int) -> int:
        """Return the bytes of keys and values of one token in all layers."""
        return 2 * self.layers * self.key_width * itemsize


@dataclass(frozen=True)
class Load:
    """Work of one process: a micro-batch of `rows` x `tokens`.

    Attributes:
        dtype: of the computation.
        padded: rows differ in length, which needs a mask.
        chunked: chunked log-probabilities instead of logits.
        reference: a frozen copy is kept for the KL term.
    """

    dtype: str = "bfloat16"
    rows: int = 1
    tokens: int = 4096
    lora_rank: int = 0
    checkpointing: bool = False
    processes: int = 1
    fsdp: bool = False
    chunked: bool = True
    padded: bool = False
    reference: bool = False
    trainer: str = "trl"

    def __post_init__(self):
        require(self.dtype in ITEMSIZE, f"dtype {self.dtype!r} is not planned: {[*ITEMSIZE]}")
        for name in ("rows", "tokens", "processes"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, got {value}")

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def full(self) -> bool:
        return self.lora_rank == 0

    @property
    def autocast(self) -> bool:
        """True if float32 weights are computed in bfloat16: every linear layer casts its input."""
        return self.full and not self.fsdp and self.dtype == "bfloat16"

    @property
    def residual(self) -> int:
        """Bytes of a number in the residual stream and in the experts."""
        return FLOAT32 if self.autocast else self.itemsize


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one training device.

    Attributes:
        parts: those of `state_bytes`, "activations", "working", "logits", "engine", "reserved".
        shared: with checkpointing, a recomputed layer reuses the memory of the head.
        logits_full, logits_chunked, activations_kept, activations_checkpointed: both alternatives
            of two choices.
    """

    parts: dict[str, int]
    shared: int
    logits_full: int
    logits_chunked: int
    activations_kept: int
    activations_checkpointed: int

    @property
    def total(self) -> int:
        return sum(self.parts.values()) - self.shared

    @property
    def largest(self) -> str:
        return max(self.parts, key=self.parts.get)


# ---------------------------------------------------------------- sizes of models

# Public configurations of the models that profiles and README name
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


def load_shape(config: Config) -> Shape:
    """Return the sizes of the model that these settings train.

    Nothing is downloaded: the configuration comes from a folder, the local cache, or `KNOWN`.

    Raises:
        ValueError: the model's configuration is not available.
    """
    if config.model.path == "":
        return count_shape(policy_config(policy_shape(config)))
    return count_shape(_load_configuration(config.model.path))


def count_shape(configuration: PreTrainedConfig) -> Shape:
    """Return the sizes of a transformers configuration; parameters are counted on meta."""
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


def find_folder(model: str) -> Path | None:
    """Return the folder that model.path names (relative to the repository), or None."""
    path = ROOT / Path(model).expanduser()
    return path if path.is_dir() else None


def _load_configuration(model: str) -> PreTrainedConfig:
    folder = find_folder(model)
    try:
        return AutoConfig.from_pretrained(folder or model, local_files_only=True)
    except (OSError, ValueError) as error:
        if model in KNOWN:
            known = dict(KNOWN[model])
            return AutoConfig.for_model(known.pop("model_type"), **known)
        if folder is not None:
            raise ValueError(f"model {model!r}: cannot read config.json in {folder}") from error
        raise ValueError(
            f"model {model!r}: not a folder, not in the local cache, and not one of the known "
            f"models: download it first, or name a folder or one of {', '.join(KNOWN)}"
        ) from error


# ---------------------------------------------------------------- memory


def trained_parameters(shape: Shape, load: Load) -> int:
    """Return the number of parameters that the optimizer updates."""
    return shape.parameters if load.full else shape.adapters(load.lora_rank)


def memory_plan(shape: Shape, load: Load, engine: int = 0, reserved: int = 0) -> MemoryPlan:
    """Compute the parts; engine: bytes of an engine on the same device."""
    kept = activation_bytes(shape, dataclasses.replace(load, checkpointing=False))
    checkpointed = activation_bytes(shape, dataclasses.replace(load, checkpointing=True))
    full, chunked = (head_bytes(shape, dataclasses.replace(load, chunked=f)) for f in (False, True))
    parts = state_bytes(shape, load) | {
        "activations": checkpointed if load.checkpointing else kept,
        "working": working_bytes(shape, load),
        "logits": chunked if load.chunked else full,
    }
    parts |= {name: n for name, n in (("engine", engine), ("reserved", reserved)) if n}
    shared = 0
    if load.checkpointing:
        shared = min(parts["logits"], max(kept for _, kept, _ in _layers(shape, load)))
    return MemoryPlan(parts, shared, full, chunked, kept, checkpointed)


def state_bytes(shape: Shape, load: Load) -> dict[str, int]:
    """Compute weights, reference, gradients, optimizer states, and buffers between processes."""
    gradients = trained_parameters(shape, load) * FLOAT32
    # adapters are as large as their gradients
    base = gradients if load.full else shape.parameters * load.itemsize
    shards = load.processes if load.fsdp else 1
    return {
        "weights": (base + (0 if load.full else gradients)) // shards,
        "reference": base // shards if load.reference and load.full else 0,
        "gradients": gradients // shards,
        "optimiser": STATES * gradients // shards,
        "exchange": _exchange_bytes(shape, load, gradients),
    }


def _exchange_bytes(shape: Shape, load: Load, gradients: int) -> int:
    """Compute buffers between processes.

    FSDP2: two gathered layers (one is prefetched) and the head, with the gradients of one.
    DistributedDataParallel: buckets as large as the gradients. Local loop: the sum over shards.
    """
    if load.trainer == "local":
        return gradients
    if load.processes == 1:
        return 0
    if not load.fsdp:
        return gradients
    head = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    trained = trained_parameters(shape, load) / shape.parameters
    gathered = 2 * shape.layer_parameters + head
    return int(load.itemsize * (gathered + trained * (shape.layer_parameters + head)))


def activation_bytes(shape: Shape, load: Load) -> int:
    """Compute the activations that the decoder keeps for the backward pass, without the head."""
    tokens, layers = load.rows * load.tokens, _layers(shape, load)
    ids = 8 if load.full else 0  # trained embeddings keep them
    cosines = 2 * shape.head_dim * load.residual
    rest = tokens * (_norm(shape.hidden, 1, load, load.residual) + cosines + ids)
    if not load.checkpointing:
        return rest + sum(count * (kept + cast) for count, kept, cast in layers)
    inputs = shape.layers * tokens * load.residual * shape.hidden
    # autocast forgets the weights that it has cast only when the forward pass ends
    at_the_end = sum(count * cast for count, _, cast in layers)
    return rest + inputs + max(at_the_end, *(kept + cast for _, kept, cast in layers))


def _layers(shape: Shape, load: Load) -> list[tuple[int, int, int]]:
    """Return (count, kept bytes, bytes of cast weights) of dense and of sparse layers."""
    tokens = load.rows * load.tokens
    every = tokens * _attention(shape, load)
    every += load.rows * load.tokens**2 * load.itemsize if load.padded else 0
    maps = 2 * shape.hidden * (shape.query_width + shape.key_width)
    dense, sparse = maps + 3 * shape.hidden * shape.inner, maps + shape.hidden * shape.experts
    cast = load.itemsize if load.autocast else 0
    if not load.full and load.dtype == "bfloat16" and not load.fsdp:  # only adapters are float32
        cast, rank = load.itemsize, load.lora_rank
        sparse = shape.attention_adapters(rank)
        dense = sparse + shape.mlp_adapters(rank)
    kinds = (
        (shape.layers - shape.sparse_layers, every + tokens * _mlp(shape, load), cast * dense),
        (shape.sparse_layers, every + _experts(shape, load), cast * sparse),
    )
    return [kind for kind in kinds if kind[0]]


def _norm(width: int, rows: int, load: Load, itemsize: int) -> int:
    """Bytes per token of an RMS norm: float32 input, reciprocal sizes, quotient if trained."""
    return FLOAT32 * (width + rows) + (itemsize * width if load.full else 0)


def _input(width: int, maps: int, load: Load, kept_anyway: bool = False) -> int:
    """Bytes per token that `maps` linear layers keep of their shared input.

    Autocast casts a float32 input for each layer separately, and so does PEFT to the dtype of its
    adapters. Adapters add their inner values. A frozen layer keeps nothing.
    """
    inner = maps * load.itemsize * load.lora_rank
    if not load.full and load.dtype == "bfloat16" and not load.fsdp:
        return maps * load.itemsize * width + inner
    copies = maps if load.autocast else 1
    return (0 if kept_anyway else copies * load.itemsize * width) + inner


def _attention(shape: Shape, load: Load) -> int:
    """Bytes per token from the layer's input to the sum after the output projection."""
    b, wide, narrow = load.itemsize, shape.query_width, shape.key_width
    kept = _norm(shape.hidden, 1, load, load.residual) + _input(shape.hidden, 3, load)
    if shape.query_norm:
        kept += _norm(wide, shape.heads, load, b) + _norm(narrow, shape.kv_heads, load, b)
    keys = wide if load.padded else narrow  # with a mask they are repeated for each query head
    kept += b * (2 * wide + 2 * keys) + FLOAT32 * shape.heads
    return kept + _input(wide, 1, load, kept_anyway=True)


def _mlp(shape: Shape, load: Load) -> int:
    """Bytes per token of gate, its activation, up, their product, and the inputs."""
    kept = _norm(shape.hidden, 1, load, load.residual) + _input(shape.hidden, 2, load)
    return kept + 3 * load.itemsize * shape.inner + _input(shape.inner, 1, load)


def _experts(shape: Shape, load: Load) -> int:
    """Bytes per micro-batch: router, sorted inputs and outputs of experts (grouped_mm)."""
    b, k = load.itemsize, shape.chosen
    router = FLOAT32 * (shape.experts + k + 1) + 8 * k
    order = 3 * 8 * k + k + b * k  # three index lists, a mask, the weights
    chosen = k * load.residual * (2 * shape.hidden + 4 * shape.expert_inner)
    own = b * shape.hidden if load.full else 0  # the router's input, where it is trained
    kept = _norm(shape.hidden, 1, load, load.residual) + own + router + order + chosen
    merged = 0
    if not load.full:
        merged = shape.experts * 3 * shape.expert_inner * shape.hidden * b
        if b != FLOAT32:  # with copies of the adapters in the base's dtype
            merged += shape.expert_adapters(load.lora_rank) * b
    return load.rows * load.tokens * kept + merged


def working_bytes(shape: Shape, load: Load) -> int:
    """Compute gradients of activations in the current layer of the backward pass, and a mask."""
    tokens = load.rows * load.tokens
    mask = tokens * load.tokens if load.padded else 0  # a byte an entry, for all layers
    # PEFT's second path through each linear map doubles them, in float32
    dense = tokens * shape.inner * (load.itemsize if load.full else 2 * FLOAT32)
    sparse = tokens * shape.chosen * (shape.hidden + 2 * shape.expert_inner)
    if not load.full:  # the gradient of the weights that the adapters were added to
        sparse += 2 * shape.experts * shape.expert_inner * shape.hidden
    of_layers = [dense] if shape.sparse_layers < shape.layers else []
    of_layers += [sparse * load.residual] if shape.sparse_layers else []
    return mask + max(of_layers)


def head_bytes(shape: Shape, load: Load) -> int:
    """Compute the peak of the head, from the last hidden states to the gradient of the loss."""
    tokens, b, v = load.rows * load.tokens, load.itemsize, shape.vocabulary
    hidden = tokens * shape.hidden * b
    if load.full:  # its gradient before it is added to that of the micro-batches before
        hidden += v * shape.hidden * FLOAT32
    if load.autocast:
        hidden += v * shape.hidden * b  # the matrix, cast
    if not load.chunked:
        return tokens * v * (b + 3 * FLOAT32) + hidden
    rows, columns = TILES["cpu" if load.trainer == "local" else "cuda"]
    # buffers of each shape: a whole tile, and what is left over at the edges
    wide, high = _whole_and_rest(v, columns), _whole_and_rest(tokens, rows)
    tiles = wide * high * (b + 2 * FLOAT32)  # logits, and two float32 buffers
    numbers = tokens * 8 * 4 * (1 + -(-v // columns))  # float64: of each row, and of each tile
    by_hidden = tokens * shape.hidden * FLOAT32  # the gradient of the hidden states
    return hidden + tiles + numbers + by_hidden


def _whole_and_rest(length: int, size: int) -> int:
    return length if length <= size else size + length % size


def rollouts_at_once(shape: Shape, itemsize: int, budget: int, context: int) -> int:
    """Return how many contexts of `context` tokens fit into `budget` bytes of KV cache."""
    return max(budget, 0) // (shape.kv_bytes(itemsize) * context)
