"""Input validation of LocalEngine."""

import pytest

from drlib.models.local_engine import LocalEngine, SamplingParams
from tests.engine_examples import V, small_engine, small_model

model = small_model
engine = small_engine


@pytest.mark.parametrize(
    "prompts, message",
    [
        ([[1], []], "prompt 1 has 0 tokens: give at least one"),
        ([[1] * 200], "prompt 0 has 200 tokens.*context of 200, or raise max_context"),
        ([[1, V]], f"prompt 0 holds id {V}, outside the vocabulary of {V}"),
        ([[-1]], "prompt 0 holds id -1"),
    ],
)
def test_invalid_prompts_are_rejected(engine, prompts, message):
    with pytest.raises(ValueError, match=message):
        engine.generate(prompts, SamplingParams())


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": -1}, "seed"),
        ({"stop_sequences": ((),)}, "stop sequence"),
    ],
)
def test_invalid_sampling_params_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**arguments)


def test_invalid_engine_arguments_are_rejected(model, engine):
    with pytest.raises(ValueError, match="max_position_embeddings.* build a longer model"):
        LocalEngine(model, max_context=1000)
    with pytest.raises(ValueError, match="slots"):
        LocalEngine(model, slots=0)
    with pytest.raises(ValueError, match="2 keys for 1 prompts"):
        engine.generate([[1]], SamplingParams(), keys=[1, 2])
    with pytest.raises(ValueError, match="context=500"):
        engine.converse([[1]], SamplingParams(), lambda i, c: None, context=500)
    with pytest.raises(ValueError, match="stop_ids holds id 4000"):
        engine.generate([[1]], SamplingParams(stop_ids=(4000,)))


def test_no_prompts_return_nothing(engine):
    assert engine.generate([], SamplingParams()) == []
