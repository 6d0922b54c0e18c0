"""The MoE policy: shape, initialisations, and atomic checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from drlib.models.moe import PolicyShape, build_policy, induction_init_, load_policy, save_policy
from tests.waiting import HANG_S

SMALL = PolicyShape(vocab_size=96, hidden=32, layers=2, heads=4, head_dim=8, expert_hidden=16)


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def make_tokenizer():
    vocab = {f"t{i}": i for i in range(96)}
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(vocab, unk_token="t0")), unk_token="t0"
    )


def test_default_shape_sizes():
    model = build_policy(PolicyShape(), seed=0, eos_id=2, pad_id=3)
    total = sum(p.numel() for p in model.parameters())
    per_expert = 3 * 128 * 64
    assert total == 1_217_792
    assert total - 4 * 6 * per_expert == 627_968  # two of eight experts are active
    config = model.config
    assert config.tie_word_embeddings and config.norm_topk_prob and not config.output_router_logits
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(type(layer.mlp).__name__ == "Qwen3MoeSparseMoeBlock" for layer in model.model.layers)
    assert config._experts_implementation == "grouped_mm"
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (None, 2, 3)
    assert model.dtype == torch.float32


@pytest.mark.parametrize("init", ["induction", "plain"])
def test_weights_depend_only_on_the_seed(init):
    torch.manual_seed(5)
    a = build_policy(SMALL, seed=3, init=init)
    after = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(1))  # torch's global RNG is unchanged
    assert torch.equal(flat(a), flat(build_policy(SMALL, seed=3, init=init)))
    assert not torch.equal(flat(a), flat(build_policy(SMALL, seed=4, init=init)))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"heads": 6, "kv_heads": 4}, "heads must be a multiple of kv_heads.*heads=6, kv_heads=4"),
        ({"experts": 2, "experts_per_token": 3}, "experts_per_token"),
        ({"layers": 0}, "layers must be positive"),
        ({"head_dim": 7}, "head_dim must be even"),
    ],
)
def test_invalid_shapes_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        PolicyShape(**arguments)


def test_unknown_init_and_too_few_layers_are_rejected():
    with pytest.raises(ValueError, match="unknown init 'random'"):
        build_policy(SMALL, seed=0, init="random")
    one = build_policy(PolicyShape(layers=1), seed=0, init="plain")
    with pytest.raises(ValueError, match="at least 2 layers"):
        induction_init_(one, torch.Generator().manual_seed(0))


# ---- the structured initialisation


def attention_maps(model, ids):
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(ids, output_attentions=True).attentions  # per layer [B, heads, T, T]


@pytest.mark.parametrize("kv_heads, head_dim", [(2, 16), (4, 16), (2, 32)])
def test_layer_0_attends_to_the_previous_token(kv_heads, head_dim):
    model = build_policy(PolicyShape(kv_heads=kv_heads, head_dim=head_dim), seed=0)
    ids = torch.randint(0, 2048, (2, 120), generator=torch.Generator().manual_seed(1))
    first = attention_maps(model, ids)[0]
    previous = first.diagonal(offset=-1, dim1=-2, dim2=-1)
    assert previous.mean() > 0.7
    assert (first.argmax(-1)[..., 1:] == torch.arange(119)).float().mean() > 0.99


def test_layer_1_attends_after_the_earlier_occurrence():
    model = build_policy(PolicyShape(), seed=0)
    half = torch.randint(0, 2048, (4, 60), generator=torch.Generator().manual_seed(2))
    second = attention_maps(model, half.repeat(1, 2))[1]
    target = second[:, :, 60:].diagonal(offset=1, dim1=-2, dim2=-1)  # query t sees t - 60 + 1
    assert target.mean() > 10 / 90  # chance is about one in ninety
    plain = build_policy(PolicyShape(), seed=0, init="plain")
    other = attention_maps(plain, half.repeat(1, 2))[1]
    assert other[:, :, 60:].diagonal(offset=1, dim1=-2, dim2=-1).mean() < 2 / 90


ADAM = ("embed_tokens.weight", "mlp.gate.weight")


def orthogonalise(gradient):
    """Apply Muon's Newton-Schulz iteration, batched over experts, as in the training recipe."""
    x = gradient / (gradient.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


def copy_loss(model, generator, rows=8, half=32):
    ids = torch.randint(0, model.config.vocab_size, (rows, half), generator=generator).repeat(1, 2)
    logits = model(ids).logits[:, half:-1]
    return F.cross_entropy(logits.flatten(0, 1), ids[:, half + 1 :].flatten())


@pytest.mark.parametrize("init, low, high", [("induction", 0.0, 1.0), ("plain", 5.5, 7.0)])
def test_only_induction_init_learns_copying_fast(init, low, high):
    """30 steps of 512 tokens: repeated sequences of 32 random tokens; ln V = 6.2 is chance."""
    model = build_policy(PolicyShape(vocab_size=512, layers=3), seed=0, init=init)
    generator = torch.Generator().manual_seed(7)
    named = dict(model.named_parameters())
    matrices = [p for n, p in named.items() if p.ndim > 1 and not n.endswith(ADAM)]
    muon_ids = {id(p) for p in matrices}
    adam = torch.optim.AdamW([p for p in model.parameters() if id(p) not in muon_ids], lr=3e-3)
    for _ in range(30):
        model.zero_grad()
        copy_loss(model, generator).backward()
        with torch.no_grad():
            for p in matrices:
                scale = max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
                p.sub_(orthogonalise(p.grad), alpha=0.02 * scale)
        adam.step()
    with torch.no_grad():
        loss = copy_loss(model, generator, rows=16).item()
    assert low < loss < high


# ---- checkpoints


@pytest.fixture(scope="module")
def model():
    return build_policy(SMALL, seed=8)


@pytest.fixture
def saved(model, tmp_path):
    return save_policy(model, make_tokenizer(), tmp_path / "policy")


def test_checkpoint_restores_model_and_tokenizer(model, saved):
    loaded, tokenizer = load_policy(saved)
    assert torch.equal(flat(loaded), flat(model))
    assert loaded.config._experts_implementation == "grouped_mm"
    assert tokenizer.convert_tokens_to_ids("t42") == 42
    assert [p.name for p in saved.parent.iterdir()] == ["policy"]  # no temporary folder remains


def test_transformers_loads_a_checkpoint(model, saved):
    loaded = AutoModelForCausalLM.from_pretrained(saved)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=1e-6)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_bf16_checkpoints_are_half_size_and_keep_the_model(model, saved, tmp_path):
    before = flat(model).clone()
    half = save_policy(model, None, tmp_path / "half", dtype=torch.bfloat16)
    assert torch.equal(flat(model), before) and model.dtype == torch.float32
    size = {p: (p / "model.safetensors").stat().st_size for p in (half, saved)}
    assert size[half] < 0.6 * size[saved]
    with safe_open(half / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "lm_head.weight" not in names  # tied: stored once
    assert "model.layers.0.mlp.experts.3.gate_proj.weight" in names  # the layout vLLM reads
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"
    loaded, tokenizer = load_policy(half)
    assert tokenizer is None and loaded.dtype == torch.float32
    assert torch.equal(flat(loaded), before.bfloat16().float())


def test_saving_again_replaces_the_checkpoint(saved):
    other = build_policy(SMALL, seed=9)
    save_policy(other, None, saved)
    loaded, tokenizer = load_policy(saved)
    assert torch.equal(flat(loaded), flat(other)) and tokenizer is None
    assert [p.name for p in saved.parent.iterdir()] == ["policy"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_truncated_checkpoint_is_reported_as_damaged(saved, name):
    file = saved / name
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(ValueError, match=f"{saved} is damaged"):
        load_policy(saved)


def test_missing_folder_files_and_weights_are_reported(model, saved, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint folder at .*absent"):
        load_policy(tmp_path / "absent")
    (saved / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no model.safetensors: it is incomplete"):
        load_policy(saved)
    state = {k: v for k, v in model.state_dict().items() if "layers.1.mlp.gate" not in k}
    model.save_pretrained(saved, state_dict=state)
    with pytest.raises(ValueError, match="lacks weights, for example model.layers.1.mlp.gate"):
        load_policy(saved)


def test_full_disk_keeps_the_old_checkpoint(saved):
    """RLIMIT_FSIZE in a separate process, because the limit cannot be raised again."""
    code = f"""
        import resource, sys
        from drlib.models.moe import PolicyShape, build_policy, save_policy
        model = build_policy(PolicyShape(), seed=0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save_policy(model, None, {str(saved)!r})
        except OSError as error:
            print("OSError", error)
            sys.exit(7)
    """
    old = {p.name: p.read_bytes() for p in saved.iterdir()}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 7, done.stderr
    assert "File too large" in done.stdout or "could not write" in done.stdout
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == old
    assert [p.name for p in saved.parent.iterdir()] == ["policy"]


def test_uncreatable_folder_is_an_error(model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        save_policy(model, None, tmp_path / "file" / "policy")
    assert (tmp_path / "file").read_text() == "in the way"
