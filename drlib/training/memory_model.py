"""Memory of a training step on one device, computed from a model's configuration.

Nothing is loaded. A `Shape` has the sizes of a model, a `Load` the work of a step. Tests compare
every part with torch's allocations, for transformers 5.17 with sdpa attention.

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

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from drlib.models.chunked_logprobs import TILES

FLOAT32 = 4  # bytes
ITEMSIZE = {"float32": 4, "bfloat16": 2}
STATES = 2  # numbers that AdamW keeps of each parameter


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

    def layer_adapters(self, rank: int) -> tuple[int, int, int]:
        """Return the LoRA parameters of an attention layer, a dense MLP and a layer's experts.

        Routers have none. PEFT doubles those of the experts' gate and up.
        """
        attention = 2 * (2 * self.hidden + self.query_width + self.key_width)
        experts = self.experts * (3 * self.hidden + 5 * self.expert_inner)
        return rank * attention, rank * 3 * (self.hidden + self.inner), rank * experts

    def trained_parameters(self, rank: int) -> int:
        """Return the number of parameters that the optimizer updates; rank 0 trains all."""
        attention, mlp, experts = self.layer_adapters(rank)
        dense = self.layers - self.sparse_layers
        adapters = self.layers * attention + dense * mlp + self.sparse_layers * experts
        return adapters or self.parameters

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

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def full(self) -> bool:
        return self.lora_rank == 0

    @property
    def mixed(self) -> bool:
        """True if float32 weights or adapters meet bfloat16: linear layers cast their inputs."""
        return self.dtype == "bfloat16" and not self.fsdp

    @property
    def residual(self) -> int:
        """Bytes of a number in the residual stream and in the experts."""
        return FLOAT32 if self.mixed and self.full else self.itemsize


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one training device.

    Attributes:
        parts: those of `state_bytes`, "activations", "working", "logits", "engine", "reserved".
        shared: with checkpointing, a recomputed layer reuses the memory of the head.
    """

    parts: dict[str, int]
    shared: int

    @property
    def total(self) -> int:
        return sum(self.parts.values()) - self.shared


# ---------------------------------------------------------------- sizes of models

# Public configurations of the models that profiles and README name
_QWEN3 = {"vocab_size": 151_936, "head_dim": 128, "max_position_embeddings": 40_960}
_NAMES = "hidden_size intermediate_size num_hidden_layers num_attention_heads tie_word_embeddings"
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_EXPERTS |= {"norm_topk_prob": True, "num_key_value_heads": 4}


def _qwen3(*sizes: int, **more) -> dict:
    dense = {"model_type": "qwen3", "num_key_value_heads": 8}
    return dense | _QWEN3 | dict(zip(_NAMES.split(), sizes)) | more


_SPARSE = _qwen3(2048, 6144, 48, 32, False, model_type="qwen3_moe", **_EXPERTS)
KNOWN: dict[str, dict] = {
    "Qwen/Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, True),
    "Qwen/Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, True),
    "Qwen/Qwen3-4B": _qwen3(2560, 9728, 36, 32, True),
    "Qwen/Qwen3-8B": _qwen3(4096, 12_288, 36, 32, False),
    "Qwen/Qwen3-30B-A3B": _SPARSE,
    "Qwen/Qwen3-30B-A3B-Thinking-2507": _SPARSE | {"max_position_embeddings": 262_144},
}


def load_configuration(model: str) -> PreTrainedConfig:
    """Return a model's configuration from a folder, the local cache or `KNOWN`; no download.

    Raises:
        ValueError: it is in none of them.
    """
    folder = find_folder(model)
    try:
        return AutoConfig.from_pretrained(folder or model, local_files_only=True)
    except (OSError, ValueError) as error:
        if model in KNOWN:
            return AutoConfig.for_model(**KNOWN[model])
        if folder is not None:
            raise ValueError(f"model {model!r}: cannot read config.json in {folder}") from error
        raise ValueError(
            f"model {model!r}: not a folder, not in the local cache, and not one of the known "
            f"models: download it first, or name a folder or one of {', '.join(KNOWN)}"
        ) from error


def find_folder(model: str) -> Path | None:
    """Return the folder that model.path names, or None."""
    path = Path(model).expanduser()
    return path if path.is_dir() else None


def count_shape(configuration: PreTrainedConfig) -> Shape:
    """Return the sizes of a transformers configuration; parameters are counted on meta."""
    text = configuration.get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    by_layer: Counter[str] = Counter()
    for name, n in sizes.items():
        if ".layers." in name:
            by_layer[name.split(".layers.")[1].split(".")[0]] += n
    chosen = getattr(text, "num_experts_per_tok", None) or 0
    experts = (getattr(text, "num_experts", None) or 0) if chosen else 0
    of_experts = sum(n for name, n in sizes.items() if ".experts." in name)
    idle = of_experts * (experts - chosen) // experts if experts else 0
    return Shape(
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        heads=text.num_attention_heads,
        kv_heads=getattr(text, "num_key_value_heads", None) or text.num_attention_heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads,
        inner=text.intermediate_size,
        vocabulary=text.vocab_size,
        positions=text.max_position_embeddings,
        tied=bool(text.tie_word_embeddings),
        query_norm=any("q_norm" in name for name in sizes),
        experts=experts,
        chosen=chosen if experts else 0,
        expert_inner=text.moe_intermediate_size if experts else 0,
        sparse_layers=sum(name.endswith("experts.down_proj") for name in sizes),
        parameters=sum(sizes.values()),
        active=sum(sizes.values()) - idle,
        layer_parameters=max(by_layer.values()),
    )


# ---------------------------------------------------------------- memory


def memory_plan(shape: Shape, load: Load, engine: int = 0, reserved: int = 0) -> MemoryPlan:
    """Compute the parts; engine: bytes of an engine on the same device."""
    parts = state_bytes(shape, load) | {
        "activations": activation_bytes(shape, load),
        "working": working_bytes(shape, load),
        "logits": head_bytes(shape, load),
    }
    parts |= {name: n for name, n in (("engine", engine), ("reserved", reserved)) if n}
    layer = max(n for _, n, _ in _layers(shape, load))
    shared = min(parts["logits"], layer) if load.checkpointing else 0
    return MemoryPlan(parts, shared)


def state_bytes(shape: Shape, load: Load) -> dict[str, int]:
    """Compute weights, reference, gradients, optimizer states, and buffers between processes."""
    trained = shape.trained_parameters(load.lora_rank)
    gradients = trained * FLOAT32
    # trained parameters are as large as their gradients
    frozen = 0 if load.full else shape.parameters * load.itemsize
    shards = load.processes if load.fsdp else 1
    if load.trainer == "local" or (load.processes > 1 and not load.fsdp):
        exchange = gradients  # sum over the shards, or DistributedDataParallel's buckets
    elif load.processes == 1:
        exchange = 0
    else:  # FSDP2: two gathered layers (one is prefetched), the head, and gradients of one each
        layer = shape.layer_parameters
        head = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
        share = trained / shape.parameters
        exchange = int(load.itemsize * (2 * layer + head + share * (layer + head)))
    return {
        "weights": (frozen + gradients) // shards,
        "reference": gradients // shards if load.reference and load.full else 0,
        "gradients": gradients // shards,
        "optimiser": STATES * gradients // shards,
        "exchange": exchange,
    }


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
    """Return (number, kept bytes, bytes of cast weights) of dense and of sparse layers."""
    tokens, b, k, hidden = load.rows * load.tokens, load.itemsize, shape.chosen, shape.hidden
    wide, narrow = shape.query_width, shape.key_width
    norm = _norm(hidden, 1, load, load.residual)
    attention_lora, mlp_lora, experts_lora = shape.layer_adapters(load.lora_rank)

    # attention, from the layer's input to the sum after the output projection
    attention = norm + _input(hidden, 3, load) + _input(wide, 1, load, is_kept=True)
    if shape.query_norm:
        attention += _norm(wide, shape.heads, load, b) + _norm(narrow, shape.kv_heads, load, b)
    keys = wide if load.padded else narrow  # with a mask they are repeated for each query head
    attention += b * (2 * wide + 2 * keys) + FLOAT32 * shape.heads
    mask = load.rows * load.tokens**2 * b if load.padded else 0

    # dense MLP: gate, its activation, up, their product, and the inputs
    mlp = norm + _input(hidden, 2, load) + 3 * b * shape.inner + _input(shape.inner, 1, load)

    # experts (grouped_mm): router and its input, three index lists with a mask and the weights,
    # sorted inputs and outputs
    router = FLOAT32 * (shape.experts + k + 1) + 8 * k + (b * hidden if load.full else 0)
    order = 3 * 8 * k + k + b * k
    experts = norm + router + order + k * load.residual * (2 * hidden + 4 * shape.expert_inner)
    merged = 0
    if not load.full:
        merged = shape.experts * 3 * shape.expert_inner * hidden * b
        merged += experts_lora * b if b != FLOAT32 else 0  # adapters, cast to the base's dtype

    # weights that autocast copies: float32 weights, or adapters
    maps = 2 * hidden * (wide + narrow) if load.full else attention_lora
    dense = maps + (3 * hidden * shape.inner if load.full else mlp_lora)
    sparse = maps + (hidden * shape.experts if load.full else 0)
    cast = b if load.mixed else 0
    kinds = (
        (shape.layers - shape.sparse_layers, mask + tokens * (attention + mlp), cast * dense),
        (shape.sparse_layers, mask + tokens * (attention + experts) + merged, cast * sparse),
    )
    return [kind for kind in kinds if kind[0]]


def _norm(width: int, rows: int, load: Load, itemsize: int) -> int:
    """Bytes per token of an RMS norm: float32 input, reciprocal sizes, quotient if trained."""
    return FLOAT32 * (width + rows) + (itemsize * width if load.full else 0)


def _input(width: int, maps: int, load: Load, is_kept: bool = False) -> int:
    """Bytes per token that `maps` linear layers keep of their shared input, and inside adapters.

    Autocast casts a float32 input for each layer separately, and so does PEFT to the dtype of its
    adapters. Otherwise, an input that another operation keeps (`is_kept`) costs nothing.
    """
    copies = maps if load.mixed and not (is_kept and load.full) else int(not is_kept)
    return load.itemsize * (copies * width + maps * load.lora_rank)


def working_bytes(shape: Shape, load: Load) -> int:
    """Compute gradients of activations in the current layer of the backward pass, and a mask."""
    tokens = load.rows * load.tokens
    mask = tokens * load.tokens if load.padded else 0  # a byte an entry, for all layers
    # PEFT's second path through each linear map doubles them, in float32
    dense = tokens * shape.inner * (load.itemsize if load.full else 2 * FLOAT32)
    sparse = tokens * shape.chosen * (shape.hidden + 2 * shape.expert_inner)
    if not load.full:  # the gradient of the weights that the adapters were added to
        sparse += 2 * shape.experts * shape.expert_inner * shape.hidden
    has_dense = shape.sparse_layers < shape.layers
    return mask + max(dense * has_dense, sparse * load.residual)


def head_bytes(shape: Shape, load: Load) -> int:
    """Compute the peak of the head, from the last hidden states to the gradient of the loss."""
    tokens, b, v = load.rows * load.tokens, load.itemsize, shape.vocabulary
    hidden = tokens * shape.hidden * b
    if load.full:  # its gradient before it is added to that of the micro-batches before
        hidden += v * shape.hidden * (FLOAT32 + (b if load.mixed else 0))  # and autocast's copy
    if not load.chunked:
        return tokens * v * (b + 3 * FLOAT32) + hidden
    # buffers of each shape: a whole tile, and the rest at the edges
    tile = TILES["cpu" if load.trainer == "local" else "cuda"]
    high, wide = (n if n <= size else size + n % size for n, size in zip((tokens, v), tile))
    tiles = wide * high * (b + 2 * FLOAT32)  # logits, and two float32 buffers
    numbers = tokens * 8 * 4 * (1 + -(-v // tile[1]))  # float64: of each row, and of each tile
    by_hidden = tokens * shape.hidden * FLOAT32  # the gradient of the hidden states
    return hidden + tiles + numbers + by_hidden
