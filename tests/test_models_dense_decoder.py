"""The local engine on dense models agrees with transformers, token by token.

Run: python -m pytest tests/test_models_dense_decoder.py
"""

import copy

import numpy as np
import pytest
import torch
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from drlib.models.dense_decoder import DenseDecoder, find_unsupported
from drlib.models.engine import SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.transformers_engine import TransformersEngine
from tests.engine_examples import V
from tests.test_models_local_engine import make_prompts
from tests.test_models_local_engine_contexts import repeat_context
from tests.test_models_transformers_engine import HOW, assert_same_turns, run_engine

SIZES = dict(
    vocab_size=V,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)
KINDS = {
    "llama": lambda **more: LlamaForCausalLM(LlamaConfig(**SIZES | more)),
    "qwen3": lambda **more: Qwen3ForCausalLM(Qwen3Config(**SIZES | {"head_dim": 16} | more)),
}


def build(kind: str, **more):
    """Return a random model with non-uniform distributions and norms that differ from 1."""
    torch.set_num_threads(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = KINDS[kind](**more).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.add_(torch.randn(weight.shape) * (0.3 if "norm" in name else 0.08))
    return model


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    return build(request.param)


@pytest.mark.parametrize("how", HOW)
def test_turns_match_transformers(model, how):
    assert_same_turns(model, how)


def test_context_is_kept_between_turns(model):
    hf = TransformersEngine(model, max_context=200)
    local = LocalEngine(model, slots=4, max_context=200)
    prompts = make_prompts(6)
    params = SamplingParams(max_tokens=12, seed=4, stop_sequences=((9, 9), (3,)))
    assert run_engine(hf, prompts, params).ids == run_engine(local, prompts, params).ids
    assert repeat_context(model, hf) == repeat_context(model, local)


def test_bfloat16_is_near_float32(model):
    exact = DenseDecoder(model, 4, 64, torch.float32)
    rounded = DenseDecoder(model, 4, 64, torch.bfloat16)
    chunks = [np.arange(5, 25), np.arange(40, 47)]
    with torch.inference_mode():
        first, second = (d.prefill([2, 0], [0, 0], chunks) for d in (exact, rounded))
        after = [
            d.decode(torch.tensor([7, 8, 9]), torch.tensor([7, 0, 20])) for d in (exact, rounded)
        ]
    for a, b in ((first, second), after):
        difference = (a.log_softmax(-1) - b.log_softmax(-1)).abs()
        assert 0 < difference.max() < 0.3 and difference.mean() < 0.03


def test_update_weights_replaces_every_matrix(model):
    engine = LocalEngine(model, slots=4, max_context=64)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) * 0.1)
    params = SamplingParams(max_tokens=10, seed=1)
    prompts = make_prompts(4)
    engine.update_weights(other)
    expected = run_engine(LocalEngine(other, slots=4, max_context=64), prompts, params)
    updated = run_engine(engine, prompts, params)
    assert updated.ids == expected.ids and updated.logp == expected.logp
    assert engine.version == 1


def test_other_shapes_and_routes_are_rejected(model):
    engine = LocalEngine(model, slots=2, max_context=64)
    kind = model.config.model_type
    with pytest.raises(ValueError, match="differs in num_hidden_layers"):
        engine.update_weights(build(kind, num_hidden_layers=2))
    with pytest.raises(ValueError, match="no experts"):
        LocalEngine(model, slots=2, max_context=64, routes=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"attention_bias": True}, "biases"),
        ({"hidden_act": "gelu"}, "activation gelu"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_type=linear",
        ),
    ],
)
def test_unsupported_models_are_named(change, words):
    assert words in find_unsupported(LlamaConfig(**SIZES | change))
    model = build("llama", **change)
    with pytest.raises(ValueError, match="set engine.name=hf"):
        LocalEngine(model, slots=2, max_context=64)
    assert find_unsupported(LlamaConfig(**SIZES)) == ""


def test_other_architectures_are_named():
    sizes = {k: v for k, v in SIZES.items() if k != "num_key_value_heads"}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(**sizes))
    with pytest.raises(ValueError, match="does not support a gpt_neox"):
        LocalEngine(model, slots=2, max_context=64)
