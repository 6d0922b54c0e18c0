"""TransformersEngine gives the same turns as LocalEngine, token by token.

Run: python -m pytest tests/test_models_transformers_engine.py
"""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from drlib.models.engine import NewContext, SamplingParams
from drlib.models.local_engine import LocalEngine
from drlib.models.moe import default_device, save_policy
from drlib.models.transformers_engine import TransformersEngine
from tests.engine_examples import V, small_model
from tests.test_models_local_engine import Recorder, compare_with_trainer, make_prompts
from tests.test_models_local_engine_contexts import ROUNDS, ContextRecorder, repeat_context

model = small_model
HOW = {"sampled": {}, "greedy": {"temperature": 0}, "nucleus": {"temperature": 0.7, "top_p": 0.9}}


def run_engine(engine, prompts, params, environment=Recorder, **how):
    recorder = environment(prompts)
    engine.converse(prompts, params, recorder, **how)
    return recorder


def assert_same_turns(model, how):
    """Compare both engines with each other, and sampled turns with the model's forward pass."""
    prompts = make_prompts(20)
    params = SamplingParams(max_tokens=15, stop_ids=(1, 2, 3), seed=5, **HOW[how])
    local = run_engine(LocalEngine(model, slots=8, max_context=200), prompts, params)
    hf = run_engine(TransformersEngine(model, batch=7, max_context=200), prompts, params)
    assert (hf.ids, hf.reasons) == (local.ids, local.reasons)
    for name in ("logp", "entropy"):
        a, b = (np.array(sum(getattr(r, name), []), float) for r in (hf, local))
        assert np.nanmax(np.abs(a - b)) < 1e-4
    if how == "sampled":
        for recorder in (hf, local):
            logp_error, entropy_error = compare_with_trainer(model, recorder)
            assert len(logp_error) > 200 and max(logp_error.max(), entropy_error.max()) < 1e-4


@pytest.mark.parametrize("how", HOW)
def test_turns_match_the_local_engine(model, how):
    assert_same_turns(model, how)


def test_new_and_narrow_contexts_match_the_local_engine(model):
    prompts = make_prompts(6)
    params = SamplingParams(max_tokens=12, seed=4, stop_sequences=((9, 9), (3,)))
    local, hf = (
        LocalEngine(model, slots=4, max_context=200),
        TransformersEngine(model, max_context=200),
    )
    replaced = [run_engine(engine, prompts, params, ContextRecorder).ids for engine in (local, hf)]
    assert replaced[0] == replaced[1] and len(replaced[0]) == 6 * ROUNDS
    narrow = [run_engine(engine, prompts, params, context=44) for engine in (local, hf)]
    assert narrow[0].ids == narrow[1].ids and narrow[0].reasons == narrow[1].reasons
    assert any("context" in reasons for reasons in narrow[0].reasons)
    assert repeat_context(model, hf) == repeat_context(model)


def test_turns_are_independent_of_tools_and_batches(model):
    prompts = make_prompts(10, seed=7)
    params = SamplingParams(max_tokens=8, seed=1)
    base = run_engine(TransformersEngine(model), prompts, params)
    assert run_engine(TransformersEngine(model, batch=1), prompts, params).ids == base.ids
    with ThreadPoolExecutor(3) as pool:
        parked = run_engine(
            TransformersEngine(model), prompts, params, lambda p: Recorder(p, pool=pool)
        )
    assert parked.ids == base.ids and parked.done == [3] * 10
    last = TransformersEngine(model).generate(prompts[7:], params, keys=[7, 8, 9])
    assert [c.token_ids for c in last] == [
        c.token_ids for c in TransformersEngine(model).generate(prompts, params)[7:]
    ]


def test_update_weights_copies_the_model(model, tmp_path):
    save_policy(model, None, tmp_path / "policy")
    engine = TransformersEngine(tmp_path / "policy", max_context=100)
    prompts, params = make_prompts(4), SamplingParams(max_tokens=10, seed=2)
    before = [c.token_ids for c in engine.generate(prompts, params)]
    assert before == [c.token_ids for c in TransformersEngine(model).generate(prompts, params)]
    save_policy(model, None, tmp_path / "other")
    other = TransformersEngine(tmp_path / "other").model
    with torch.no_grad():
        for weight in other.parameters():
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
            weight.add_(0.1 * noise.to(weight.device))
    engine.update_weights(other)
    after = [c.token_ids for c in engine.generate(prompts, params)]
    assert engine.version == 1 and after != before
    assert after == [c.token_ids for c in TransformersEngine(other).generate(prompts, params)]


def test_generation_config_of_other_models_is_ignored(tmp_path):
    """A dense Llama whose generation settings would end turns and penalise repetitions."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.4,
    )
    llama = LlamaForCausalLM(config).eval().to(default_device())  # where a folder's is, too
    prompts, params = make_prompts(6, high=20), SamplingParams(max_tokens=12, seed=3)
    plain = [(c.token_ids, c.logprobs) for c in TransformersEngine(llama).generate(prompts, params)]
    stops = list(range(V // 2))
    llama.generation_config = GenerationConfig(
        repetition_penalty=9.0, eos_token_id=stops, pad_token_id=1, do_sample=True, top_k=3
    )
    llama.save_pretrained(tmp_path)
    llama.train()
    engine = TransformersEngine(tmp_path)
    assert [(c.token_ids, c.logprobs) for c in engine.generate(prompts, params)] == plain
    assert TransformersEngine(llama).generate(prompts, params)[0].token_ids == plain[0][0]
    assert llama.training and llama.generation_config.top_k == 3
    for prompt, (turn, logprobs) in zip(prompts, plain):
        ids = torch.tensor([[*prompt, *turn]])
        with torch.no_grad():
            logp_TV = llama.eval()(ids.to(llama.device)).logits[0].log_softmax(-1).cpu()
        expected = logp_TV[len(prompt) - 1 : -1].gather(1, torch.tensor(turn)[:, None])[:, 0]
        assert torch.tensor(logprobs) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("prompts", "how", "words"),
    [
        ([[]], {}, "at least one"),
        ([[1] * 60], {"context": 50}, "fewer than the context of 50"),
        ([[1, 999]], {}, "outside the vocabulary"),
        ([[1]], {"context": 500}, "max_context"),
        ([[1]], {"keys": [1, 2]}, "2 keys"),
    ],
)
def test_invalid_input_is_rejected(model, prompts, how, words):
    with pytest.raises(ValueError, match=words):
        TransformersEngine(model, max_context=200).converse(prompts, SamplingParams(), print, **how)


def test_environment_error_keeps_the_engine_usable(model):
    engine = TransformersEngine(model, batch=2, max_context=100)

    def broken(i, completion):
        raise RuntimeError("the environment broke")

    with pytest.raises(RuntimeError, match="the environment broke"):
        engine.converse(make_prompts(6), SamplingParams(max_tokens=3), broken)
    assert len(engine.generate(make_prompts(3), SamplingParams(max_tokens=3))) == 3
    with pytest.raises(ValueError, match="reply to request 0"):
        engine.converse([[1]], SamplingParams(max_tokens=3), lambda i, done: [V])
    with pytest.raises(ValueError, match="must return None"):
        engine.converse([[1]], SamplingParams(max_tokens=3), lambda i, done: NewContext([1] * 200))


@pytest.mark.parametrize("kind", [TransformersEngine, LocalEngine])
def test_the_end_of_a_full_context_may_take_time(model, kind):
    engine = kind(model, max_context=200)
    ended, pool = [], ThreadPoolExecutor(2)

    def end(number):
        time.sleep(0.05)
        ended.append(number)

    def respond(i, done):
        return pool.submit(end, i) if done.finish_reason == "context" else [1] * 400

    with pool:
        engine.converse(make_prompts(6), SamplingParams(max_tokens=3), respond)
        assert sorted(ended) == [*range(6)]  # the engine has waited for all
    assert len(engine.generate(make_prompts(2), SamplingParams(max_tokens=3))) == 2


def test_folder_without_a_model_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="no causal language model"):
        TransformersEngine(tmp_path)
