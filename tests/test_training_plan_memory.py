"""The planner's memory estimates, part by part, against torch's allocations on small models.

Saved tensors are counted by their storages. The peak of a backward pass is measured by tracking
every storage from creation to release. Both are exact, so most parts agree to 0.1%.

Run: python -m pytest tests/test_training_plan_memory.py
"""

import dataclasses
import weakref

import pytest
import torch
import torch.distributed as dist
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from transformers.loss.loss_utils import ForCausalLMLoss
from trl import SFTConfig, SFTTrainer

from drlib.models.chunked_logprobs import token_logprobs
from drlib.training.memory_model import (
    Load,
    Shape,
    activation_bytes,
    count_shape,
    head_bytes,
    memory_plan,
    state_bytes,
    working_bytes,
)
from drlib.training.model_setup import build_lora_config
from tests.stage_processes import run_ranks

RANK, TOKENS = 4, 128
SIZES = {
    "vocab_size": 320,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 200,
    "max_position_embeddings": 512,
}
KINDS = {
    "qwen3": SIZES,
    "llama": SIZES | {"tie_word_embeddings": True},
    "qwen3_moe": SIZES
    | {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 40,
        "norm_topk_prob": True,
    },
}
# (dtype of the weights, LoRA rank, autocast, options of Load)
MODES = {
    "float32": (torch.float32, 0, False, {"dtype": "float32"}),
    "autocast": (torch.float32, 0, True, {}),
    "bfloat16, as FSDP2 casts it": (torch.bfloat16, 0, False, {"fsdp": True}),
    "LoRA float32": (torch.float32, RANK, False, {"dtype": "float32", "lora_rank": RANK}),
    "LoRA bfloat16": (torch.bfloat16, RANK, True, {"lora_rank": RANK}),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_mode = pytest.mark.parametrize("mode", MODES)


def configuration(kind):
    return AutoConfig.for_model(kind, **KINDS[kind])


def build_model(kind, dtype=torch.float32, rank=0):
    """Return (trained module, the causal model inside it)."""
    model = AutoModelForCausalLM.from_config(configuration(kind), dtype=dtype)
    if rank == 0:
        return model.train(), model
    wrapped = get_peft_model(model, build_lora_config(model, rank))
    wrapped.enable_input_require_grads()
    return wrapped.train(), model


def batch(rows, padded=False, tokens=TOKENS):
    ids = torch.randint(0, SIZES["vocab_size"], (rows, tokens))
    positions = torch.arange(tokens)[None].expand(rows, -1).contiguous()
    inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    if padded:
        inputs["attention_mask"] = torch.ones_like(ids)
        inputs["attention_mask"][0, :40] = 0
    return inputs


def kept_bytes(whole, model, inputs, autocast):
    """Return the bytes that the decoder saves for its backward pass, without parameters."""
    seen, held = {p.untyped_storage()._cdata: 0 for p in whole.parameters()}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen[storage._cdata] = storage.nbytes()
            held.append(tensor)  # keeps its address from being reused
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        model.model(**inputs)
    return sum(seen.values())


class StorageWatch(TorchDispatchMode):
    """Record the peak of the bytes of storages created inside the context."""

    def __init__(self, *tensors):
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in tensors}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._see(tensor.untyped_storage())
        return out

    def _see(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key, size):
        self.known.discard(key)
        self.now -= size


@each_kind
@each_mode
def test_activation_bytes_match_saved_tensors(kind, mode):
    dtype, rank, autocast, load_options = MODES[mode]
    whole, model = build_model(kind, dtype, rank)
    load = Load(rows=2, tokens=TOKENS, **load_options)
    planned = activation_bytes(count_shape(configuration(kind)), load)
    assert planned == pytest.approx(kept_bytes(whole, model, batch(2), autocast), rel=0.001)


@each_mode
def test_padded_rows_save_a_float_mask_per_layer(mode):
    dtype, rank, autocast, load_options = MODES[mode]
    whole, model = build_model("qwen3", dtype, rank)
    load = Load(rows=2, tokens=TOKENS, padded=True, **load_options)
    planned = activation_bytes(count_shape(configuration("qwen3")), load)
    assert planned == pytest.approx(kept_bytes(whole, model, batch(2, True), autocast), rel=0.001)


def test_unpadded_row_saves_no_float_mask():
    """A micro-batch of one row in `drlib.training.trl` has a mask of ones."""
    whole, model = build_model("qwen3")
    ids = torch.randint(0, SIZES["vocab_size"], (1, TOKENS))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    planned = activation_bytes(
        count_shape(configuration("qwen3")), Load(dtype="float32", rows=1, tokens=TOKENS)
    )
    assert planned == pytest.approx(kept_bytes(whole, model, inputs, False), rel=0.001)


def test_unpadded_activations_grow_linearly():
    shape = count_shape(configuration("qwen3"))
    once, twice, padded = (
        activation_bytes(shape, Load(tokens=tokens, fsdp=True, padded=mask))
        for tokens, mask in ((TOKENS, False), (2 * TOKENS, False), (2 * TOKENS, True))
    )
    assert twice == 2 * once and padded > twice


@each_kind
@each_mode
@pytest.mark.parametrize("checkpointing", (False, True))
def test_backward_peak_is_activations_plus_working_memory(kind, mode, checkpointing):
    dtype, rank, autocast, load_options = MODES[mode]
    whole, model = build_model(kind, dtype, rank)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trained = [p for p in whole.parameters() if p.requires_grad]
    for parameter in trained:  # as in the second and later micro-batches
        parameter.grad = torch.zeros_like(parameter)
    with StorageWatch(*whole.parameters(), *(p.grad for p in trained)) as watch:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            total = model.model(**batch(2)).last_hidden_state.sum()
        total.backward()
    shape, load = count_shape(configuration(kind)), Load(rows=2, tokens=TOKENS, **load_options)
    load = Load(**vars(load) | {"checkpointing": checkpointing})
    planned = activation_bytes(shape, load) + working_bytes(shape, load)
    assert planned == pytest.approx(watch.peak, rel=0.1)


@each_mode
def test_checkpointing_saves_only_layer_inputs(mode):
    dtype, rank, autocast, load_options = MODES[mode]
    whole, model = build_model("qwen3", dtype, rank)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with (
        StorageWatch(*whole.parameters()) as watch,
        torch.autocast("cpu", torch.bfloat16, autocast),
    ):
        out = model.model(**batch(2))
    assert out.last_hidden_state.requires_grad
    shape, load = count_shape(configuration("qwen3")), Load(rows=2, tokens=TOKENS, **load_options)
    kept = activation_bytes(shape, load)
    deeper = dataclasses.replace(shape, layers=4)
    layer = activation_bytes(deeper, load) - kept
    again = dataclasses.replace(load, checkpointing=True)
    # the plan without the recomputed layer, plus the last hidden states
    left = activation_bytes(shape, again) - layer + 2 * TOKENS * 96 * load.residual
    assert left == pytest.approx(watch.now, rel=0.1)


def measure_sharded():
    """Print the bytes of this rank's shards after a step, with and without adapters."""
    dist.init_process_group("gloo")
    for rank in (0, RANK):
        whole, model = build_model("qwen3", torch.bfloat16 if rank else torch.float32, rank)
        how = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}
        how["mesh"] = dist.device_mesh.init_device_mesh("cpu", (2,))
        for module in (*model.model.layers, whole):
            fully_shard(module, **how)
        optimizer = torch.optim.AdamW([p for p in whole.parameters() if p.requires_grad])
        inputs = batch(1)
        with torch.autocast("cpu", torch.bfloat16):
            loss = whole(**inputs, labels=inputs["input_ids"]).loss
        loss.backward()
        optimizer.step()
        print(rank, *measured(whole, optimizer).values(), flush=True)
    dist.destroy_process_group()


def test_fsdp2_memory_matches_the_plan():
    done = run_ranks(measure_sharded, ["measure_sharded"], 2)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line.split() for line in done.stdout.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["0", str(RANK)], done.stderr[-2000:]
    shape = count_shape(configuration("qwen3"))
    for rank, *found in rows:
        load = Load(lora_rank=int(rank), fsdp=True, processes=2)
        planned = state_bytes(shape, load)
        names = ("weights", "gradients", "optimiser")
        assert [planned[name] for name in names] == pytest.approx(list(map(int, found)), rel=1e-3)


@pytest.mark.parametrize("trained", (True, False))
@pytest.mark.parametrize("dtype", ("float32", "bfloat16"))
@pytest.mark.parametrize("chunked", (True, False))
def test_head_memory(dtype, trained, chunked):
    vocabulary, hidden, tokens = 20_000, 64, 600
    kind = getattr(torch, dtype)
    weight_VH = torch.randn(vocabulary, hidden, dtype=kind, requires_grad=trained)
    hidden_NH = torch.randn(tokens, hidden, dtype=kind, requires_grad=True)
    ids_N = torch.randint(0, vocabulary, (tokens,))
    if trained:
        weight_VH.grad = torch.zeros_like(weight_VH)
    with StorageWatch(weight_VH, *([weight_VH.grad] if trained else [])) as watch:
        states_NH = hidden_NH * 1.0  # as the output of a lower layer
        if chunked:
            loss = token_logprobs(states_NH, weight_VH, ids_N)[0].sum()
        else:
            logits_NV = states_NH @ weight_VH.t()
            loss = ForCausalLMLoss(logits_NV[None], ids_N[None], vocabulary)
        loss.backward()
    shape = Shape(hidden, 1, 1, 1, 1, 1, vocabulary, 1, False, False, 0, 0, 0, 0, 0, 0, 0)
    rank = 0 if trained else RANK
    load = Load(
        dtype, 1, tokens, lora_rank=rank, chunked=chunked, fsdp=True, processes=2, trainer="local"
    )
    planned = head_bytes(shape, load)
    if trained:  # the plan adds both, which never coexist: an upper bound
        planned -= vocabulary * hidden * 4
        assert 0.9 * watch.peak < planned + vocabulary * hidden * 4 < 1.3 * watch.peak
    else:
        assert planned == pytest.approx(watch.peak, rel=0.1)


@each_kind
@pytest.mark.parametrize("mode", ("float32", "LoRA float32", "LoRA bfloat16"))
def test_state_bytes_match_torch(kind, mode):
    dtype, rank, autocast, load_options = MODES[mode]
    whole, model = build_model(kind, dtype, rank)
    optimizer = torch.optim.AdamW([p for p in whole.parameters() if p.requires_grad])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(**batch(1), labels=batch(1)["input_ids"]).loss.backward()
    optimizer.step()
    found = measured(whole, optimizer)
    planned = state_bytes(count_shape(configuration(kind)), Load(**load_options))
    assert {name: planned[name] for name in found} == pytest.approx(found, rel=1e-3)
    assert planned["exchange"] == planned["reference"] == 0


def measured(whole, optimizer):
    """Return the bytes that a trainer stores between a backward pass and the next step."""
    moved = [p for p in whole.parameters() if p.grad is not None]
    states = [t for p in moved for name, t in optimizer.state[p].items() if name != "step"]
    return {
        "weights": sum(local_shard(p).nbytes for p in whole.parameters()),
        "gradients": sum(local_shard(p.grad).nbytes for p in moved),
        "optimiser": sum(local_shard(t).nbytes for t in states),
    }


def local_shard(tensor):
    """Return the local shard of a DTensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class MemoryRecorder(TrainerCallback):
    """Record TRL's memory before its second step."""

    def on_pre_optimizer_step(self, args, state, control, model=None, optimizer=None, **_):
        if state.global_step == 1:
            self.found = measured(model, getattr(optimizer, "optimizer", optimizer))


@pytest.mark.parametrize("mode", ("autocast", "LoRA bfloat16"))
def test_trl_memory_matches_the_plan(mode, tmp_path):
    dtype, rank, _, load_options = MODES[mode]
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(320)}, unk_token="t0"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t1", pad_token="t2")
    rows = torch.randint(3, 320, (4, 16)).tolist()
    peft = LoraConfig(r=rank, target_modules="all-linear") if rank else None
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_config(configuration("qwen3"), dtype=dtype),
        args=SFTConfig(str(tmp_path), max_steps=2, bf16=True, use_cpu=True, report_to=[]),
        train_dataset=Dataset.from_dict({"input_ids": rows, "labels": rows}),
        processing_class=tokenizer,
        peft_config=peft,
    )
    recorder = MemoryRecorder()
    trainer.add_callback(recorder)
    trainer.train()
    planned = state_bytes(count_shape(configuration("qwen3")), Load(**load_options))
    assert {name: planned[name] for name in recorder.found} == pytest.approx(
        recorder.found, rel=1e-3
    )


def test_state_bytes_with_sharding_and_ddp():
    shape = count_shape(configuration("qwen3"))
    one, sharded, copied = (
        state_bytes(shape, Load(processes=n, fsdp=fsdp))
        for n, fsdp in ((1, False), (4, True), (4, False))
    )
    for name in ("weights", "gradients", "optimiser"):
        assert sharded[name] == one[name] // 4 and copied[name] == one[name]
    assert copied["exchange"] == one["gradients"] and one["exchange"] == 0
    layer, head = shape.layer_parameters, 320 * 96
    assert sharded["exchange"] == 2 * (3 * layer + 4 * head)  # bfloat16; embedding and head


def test_recomputed_layer_reuses_head_memory():
    shape = count_shape(configuration("qwen3"))
    load = Load(tokens=TOKENS, checkpointing=True, fsdp=True, chunked=False)
    plan, kept = memory_plan(shape, load), dataclasses.replace(load, checkpointing=False)
    assert plan.parts["activations"] < activation_bytes(shape, kept)
    layer = (activation_bytes(shape, kept) - TOKENS * (96 * 6 + 4 + 4 * 16 + 8)) // 3
    assert plan.shared == min(plan.parts["logits"], layer)
    assert plan.total == sum(plan.parts.values()) - plan.shared


def test_adapter_parameters_match_peft():
    for kind in KINDS:
        whole, _ = build_model(kind, rank=RANK)
        trainable = sum(p.numel() for p in whole.parameters() if p.requires_grad)
        assert count_shape(configuration(kind)).trained_parameters(RANK) == trainable
