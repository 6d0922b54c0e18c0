"""What a training step needs of a device's memory, part by part, from numbers alone.

Nothing is loaded and nothing is measured here: a `Shape` has the sizes of the model, a `Load` what
the step does with it, and every part is a sum that a test compares with what torch allocates.

- **Weights, gradients, optimiser.** What is trained is float32 (`drlib.training.model_setup`: whole
  models are loaded so, and PEFT makes adapters so whatever the base is), and so are its gradient
  and AdamW's two states. Under LoRA the base is held in `dtype`.
- **Activations** are what the backward pass keeps of each layer of transformers 5.17 (sdpa
  attention: queries, keys, values, outputs and one number a head and token). A full bfloat16 run
  on one process is one of float32 weights under autocast: the residual stream and the experts stay
  float32 there, and a copy of each linear map's weights is made. FSDP2 casts the weights itself.
  With gradient checkpointing activations are the inputs of all layers, and one layer made again.
- **Padded rows** take a mask, and sdpa turns it into numbers: [rows, T, T] in each layer.
- **LoRA on experts** (routers have none). PEFT adds the adapters' product to the 3-D weight before
  it multiplies, so each layer keeps a copy of all its experts for the backward pass.
- **The head.** Usual: logits, their float32 copy, log-softmax and its gradient, each [T, V].
  Frugal (`drlib.models.chunked_logprobs`): tiles.

Left out: fragmentation, attention other than sdpa, quantised weights, tensor and expert
parallelism.
"""

import dataclasses
from dataclasses import dataclass

from drlib.models.chunked_logprobs import TILES
from drlib.validation import require

FLOAT32 = 4  # bytes
ITEMSIZE = {"float32": 4, "bfloat16": 2}
STATES = 2  # of AdamW
RESERVED = 2**30  # bytes of a CUDA context and of cuBLAS: assumed, not measured
ENGINE_WORK = 2**30  # bytes of an engine beside weights and cache (CUDA graphs): assumed
SERVER_SHARE = 0.9  # of its device that vLLM takes if nothing else is there: its own default


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder: what memory and time depend on.

    inner: width of a dense layer's MLP. chosen: experts of a token. sparse_layers: those with
    experts. query_norm: whether queries and keys are normalised (Qwen3). positions: the longest
    context. parameters, active: of all, and those that a token meets; layer_parameters: of the
    largest layer; the head's matrix is counted once where it is tied to the embedding's.
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
        """Parameters of LoRA of `rank` on all linear maps of all layers, experts included; not on
        routers, embeddings and head."""
        dense = (self.layers - self.sparse_layers) * self.mlp_adapters(rank)
        sparse = self.sparse_layers * self.expert_adapters(rank)
        return self.layers * self.attention_adapters(rank) + dense + sparse

    def attention_adapters(self, rank: int) -> int:
        """Of one layer's four projections."""
        return rank * 2 * (2 * self.hidden + self.query_width + self.key_width)

    def mlp_adapters(self, rank: int) -> int:
        """Of one dense layer's gate, up and down."""
        return rank * 3 * (self.hidden + self.inner)

    def expert_adapters(self, rank: int) -> int:
        """Of one layer's experts. PEFT doubles the rank of gate and up, one matrix."""
        gate_up, down = self.hidden + 2 * self.expert_inner, self.expert_inner + self.hidden
        return rank * self.experts * (2 * gate_up + down)

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of keys and values of one token in all layers."""
        return 2 * self.layers * self.key_width * itemsize


@dataclass(frozen=True)
class Load:
    """What one process does with a model: a micro-batch of `rows` x `tokens`.

    dtype: in which it is computed. padded: whether rows have different lengths, which takes a mask.
    frugal: which head. reference: whether a frozen copy is held for a KL term.
    """

    dtype: str = "bfloat16"
    rows: int = 1
    tokens: int = 4096
    lora_rank: int = 0
    checkpointing: bool = False
    processes: int = 1
    fsdp: bool = False
    frugal: bool = True
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
        """Whether float32 weights are computed in bfloat16: each linear map casts what it gets."""
        return self.full and not self.fsdp and self.dtype == "bfloat16"

    @property
    def residual(self) -> int:
        """Bytes of a number in the residual stream, and in the experts."""
        return FLOAT32 if self.autocast else self.itemsize


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one training device.

    parts: by name, those of `state_bytes`, then "activations", "working", "logits", and "engine"
    and "reserved" where they are there. shared: with checkpointing, a layer that is made again uses
    the memory that the head has left. logits_usual and logits_frugal, activations_kept (without
    checkpointing) and activations_checkpointed: both sides of two choices, whichever was taken.
    """

    parts: dict[str, int]
    shared: int
    logits_usual: int
    logits_frugal: int
    activations_kept: int
    activations_checkpointed: int

    @property
    def total(self) -> int:
        return sum(self.parts.values()) - self.shared

    @property
    def largest(self) -> str:
        return max(self.parts, key=self.parts.get)


def trained_parameters(shape: Shape, load: Load) -> int:
    """How many parameters an optimiser step moves."""
    return shape.parameters if load.full else shape.adapters(load.lora_rank)


def memory_plan(shape: Shape, load: Load, engine: int = 0, reserved: int = 0) -> MemoryPlan:
    """The parts of `load`; engine: bytes of an engine on the same device (`engine_bytes`)."""
    kept = activation_bytes(shape, dataclasses.replace(load, checkpointing=False))
    checkpointed = activation_bytes(shape, dataclasses.replace(load, checkpointing=True))
    usual, frugal = (head_bytes(shape, dataclasses.replace(load, frugal=f)) for f in (False, True))
    parts = state_bytes(shape, load) | {
        "activations": checkpointed if load.checkpointing else kept,
        "working": working_bytes(shape, load),
        "logits": frugal if load.frugal else usual,
    }
    parts |= {name: n for name, n in (("engine", engine), ("reserved", reserved)) if n}
    shared = 0
    if load.checkpointing:
        shared = min(parts["logits"], max(kept for _, kept, _ in _layers(shape, load)))
    return MemoryPlan(parts, shared, usual, frugal, kept, checkpointed)


def state_bytes(shape: Shape, load: Load) -> dict[str, int]:
    """Weights, a reference, gradients, optimiser states, and what processes exchange."""
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
    """Whole copies beside the shards.

    FSDP2: two layers (the next one is fetched ahead) and the head are there as a whole, with the
    gradients of one of them. DistributedDataParallel: buckets, as large as the gradients. The local
    line: the sum over its shards, beside the gradient of the one at hand.
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
    """What the decoder keeps for the backward pass of one micro-batch, the head left out."""
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
    """(how many, bytes kept of the micro-batch, bytes of weights that autocast has cast) of the
    dense layers and of those with experts."""
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
    """Of a token: the input in float32, one over its size, and for trained weights the quotient in
    the input's own `itemsize`."""
    return FLOAT32 * (width + rows) + (itemsize * width if load.full else 0)


def _input(width: int, maps: int, load: Load, kept_anyway: bool = False) -> int:
    """Of a token: what `maps` linear maps keep of the input that they share.

    Autocast casts a float32 input for each map by itself, and so does PEFT to the dtype of its
    adapters and back. The adapters' inner values come with it. A frozen map keeps nothing.
    """
    inner = maps * load.itemsize * load.lora_rank
    if not load.full and load.dtype == "bfloat16" and not load.fsdp:
        return maps * load.itemsize * width + inner
    copies = maps if load.autocast else 1
    return (0 if kept_anyway else copies * load.itemsize * width) + inner


def _attention(shape: Shape, load: Load) -> int:
    """Of a token, from the layer's input to the sum after the output projection."""
    b, wide, narrow = load.itemsize, shape.query_width, shape.key_width
    kept = _norm(shape.hidden, 1, load, load.residual) + _input(shape.hidden, 3, load)
    if shape.query_norm:
        kept += _norm(wide, shape.heads, load, b) + _norm(narrow, shape.kv_heads, load, b)
    keys = wide if load.padded else narrow  # with a mask they are repeated for each query head
    kept += b * (2 * wide + 2 * keys) + FLOAT32 * shape.heads
    return kept + _input(wide, 1, load, kept_anyway=True)


def _mlp(shape: Shape, load: Load) -> int:
    """Of a token: gate, its activation, up, their product, and the inputs."""
    kept = _norm(shape.hidden, 1, load, load.residual) + _input(shape.hidden, 2, load)
    return kept + 3 * load.itemsize * shape.inner + _input(shape.inner, 1, load)


def _experts(shape: Shape, load: Load) -> int:
    """Of a micro-batch: router, sorted inputs and outputs of the chosen experts (grouped_mm)."""
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
    """Gradients of activations within the layer that the backward pass is in, and a mask."""
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
    """What the head holds at once, from the last hidden states to the loss's gradient."""
    tokens, b, v = load.rows * load.tokens, load.itemsize, shape.vocabulary
    hidden = tokens * shape.hidden * b
    if load.full:  # its gradient before it is added to that of the micro-batches before
        hidden += v * shape.hidden * FLOAT32
    if load.autocast:
        hidden += v * shape.hidden * b  # the matrix, cast
    if not load.frugal:
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
    """How many contexts of `context` tokens fit into a KV budget of bytes; 0 for none."""
    return max(budget, 0) // (shape.kv_bytes(itemsize) * context)
