"""LocalEngine with environments that replace the context.

Run: python -m pytest tests/test_models_local_engine_contexts.py
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from drlib.models.engine import NewContext, SamplingParams
from drlib.models.local_engine import LocalEngine
from tests.engine_examples import small_engine, small_model
from tests.test_models_local_engine import Recorder, compare_with_trainer, make_prompts

model = small_model
engine = small_engine
ROUNDS = 4  # contexts of a request


class ContextRecorder(Recorder):
    """Start a new context after every second turn; record each context as a separate request."""

    def __init__(self, prompts, pool=None):
        self.seeds = make_prompts(len(prompts) * ROUNDS, seed=9)
        contexts = [list(prompts[0])] * (len(prompts) * ROUNDS)
        for i, prompt in enumerate(prompts):
            contexts[i * ROUNDS] = list(prompt)
        super().__init__(contexts, turns=2, pool=pool)
        self.round = [0] * len(prompts)

    def __call__(self, i, completion):
        at = i * ROUNDS + self.round[i]
        reply = super().__call__(at, completion)
        if reply is not None:
            return reply
        if self.round[i] + 1 == ROUNDS:
            return None
        self.round[i] += 1
        at = i * ROUNDS + self.round[i]
        prompt = self.seeds[at]
        self.ids[at] = list(prompt)
        self.logp[at] = [None] * len(prompt)
        self.entropy[at] = [None] * len(prompt)
        new_context = NewContext(prompt)
        return new_context if self.pool is None else self.pool.submit(lambda: new_context)


@pytest.mark.parametrize("slots", [3, 48])
@pytest.mark.parametrize("waits", [False, True])
def test_logprobs_of_every_context_match_the_trainer(model, slots, waits):
    prompts = make_prompts(10)
    with ThreadPoolExecutor(4) as pool:
        recorder = ContextRecorder(prompts, pool if waits else None)
        LocalEngine(model, slots=slots, max_context=200).converse(
            prompts, SamplingParams(max_tokens=12, seed=4), recorder
        )
    assert recorder.done == [2] * (10 * ROUNDS)
    logp_error, entropy_error = compare_with_trainer(model, recorder)
    assert len(logp_error) > 500 and logp_error.max() < 2e-4 and entropy_error.max() < 2e-4


def test_contexts_with_an_equal_prompt_are_independent(model):
    """Equal prompts are fed once and copied; the continuations differ."""
    recorder = ContextRecorder([[7, 8, 9, 10]] * 10)
    LocalEngine(model, slots=4, max_context=200).converse(
        [[7, 8, 9, 10]] * 10, SamplingParams(max_tokens=12, seed=4), recorder
    )
    logp_error, _ = compare_with_trainer(model, recorder)
    assert len(logp_error) > 500 and logp_error.max() < 2e-4


def test_samples_do_not_depend_on_other_new_contexts(model):
    def run(prompts, slots, keys):
        recorder = ContextRecorder(prompts)
        LocalEngine(model, slots=slots, max_context=200).converse(
            prompts, SamplingParams(max_tokens=12, seed=4), recorder, keys=keys
        )
        return recorder.ids

    prompts = make_prompts(10)
    everything = run(prompts, 48, range(10))
    assert run(prompts, 2, range(10)) == everything
    assert run(prompts[:1], 1, [0]) == everything[:ROUNDS]


def repeat_context(model, engine=None, **how):
    """Return the turns of one context that is started three times."""
    completions = []

    def again(i, completion):
        completions.append(tuple(completion.token_ids))
        return NewContext([5, 6, 7]) if len(completions) < 3 else None

    params = SamplingParams(max_tokens=30, seed=1, **how)
    engine = engine or LocalEngine(model, slots=1, max_context=100)
    engine.converse([[5, 6, 7]], params, again)
    return completions


def test_repeated_context_has_new_random_numbers(model):
    assert len(set(repeat_context(model))) == 3
    assert len(set(repeat_context(model, temperature=0))) == 1


def test_total_tokens_may_exceed_one_context(model):
    completions = []

    def again(i, completion):
        completions.append(completion)
        return NewContext([1, 2]) if len(completions) < 9 else None

    LocalEngine(model, slots=2, max_context=24).converse(
        [[1, 2]], SamplingParams(max_tokens=20, seed=3), again
    )
    assert sum(len(done.token_ids) for done in completions) > 100
    assert all(np.isfinite(done.logprobs).all() for done in completions)


@pytest.mark.parametrize("ids", [[], [1] * 60, [9999]])
def test_invalid_new_contexts(engine, ids):
    reasons = []

    def respond(i, completion):
        reasons.append(completion.finish_reason)
        return NewContext(ids) if len(reasons) == 1 else None

    if ids == [9999]:
        with pytest.raises(ValueError, match="reply to request 0"):
            engine.converse([[1]], SamplingParams(max_tokens=3), respond, context=50)
    else:
        engine.converse([[1]], SamplingParams(max_tokens=3), respond, context=50)
        assert reasons == ["length", "context"]
