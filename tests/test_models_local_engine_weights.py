"""LocalEngine.offer_weights: new weights for running conversations, token by token."""

import copy
import threading

import numpy as np
import pytest
import torch

from drlib.models.local_engine import LocalEngine, SamplingParams
from tests.engine_examples import small_engine, small_model
from tests.test_models_local_engine import Recorder, make_prompts, trainer_logprobs

model = small_model
engine = small_engine


@pytest.fixture(scope="module")
def changed(model):
    """A copy of the model with visibly different weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.3)
    return other


class Offering(Recorder):
    """Environment that offers weights with the turn number `when`; records versions."""

    def __init__(self, prompts, engine, weights, when, **options):
        super().__init__(prompts, **options)
        self.engine, self.weights, self.when, self.seen = engine, weights, when, 0
        self.versions = [[None] * len(p) for p in prompts]

    def __call__(self, i, completion):
        self.seen += 1
        if self.seen == self.when:
            self.engine.offer_weights(self.weights, self.engine.version + 1)
        own = completion.versions or [0] * len(completion.token_ids)
        self.versions[i] += own
        reply = super().__call__(i, completion)
        self.versions[i] += [None] * (len(self.ids[i]) - len(self.versions[i]))
        return reply


PARAMS = SamplingParams(max_tokens=15, stop_ids=(1, 2, 3, 4), seed=5)


@pytest.mark.parametrize("slots", [3, 16])
def test_each_token_has_the_logprob_of_the_policy_of_its_version(model, changed, slots):
    prompts = make_prompts(10) * 2  # equal prompts share their first prefill
    engine = LocalEngine(model, slots=slots, max_context=200)
    recorder = Offering(prompts, engine, changed, when=20)
    engine.converse(prompts, PARAMS, recorder)
    assert engine.version == 1
    policies, errors, mixed = (model, changed), [], 0
    for ids, logps, versions in zip(recorder.ids, recorder.logp, recorder.versions):
        reference = [trainer_logprobs(policy, ids) for policy in policies]
        known = [(t, v) for t, v in enumerate(versions) if v is not None]
        assert [v for _, v in known] == sorted(v for _, v in known)  # never back to old weights
        mixed += len({v for _, v in known}) == 2
        errors += [abs(reference[v][t - 1][ids[t]].item() - logps[t]) for t, v in known]
    assert mixed >= 2  # rollouts that began under the old weights and ended under the new
    assert np.mean(errors) < 1e-6 and np.max(errors) < 1e-4


def test_equal_weights_change_no_sample(model):
    prompts = make_prompts(12, seed=7)
    base = Recorder(prompts)
    LocalEngine(model, slots=5, max_context=200).converse(prompts, PARAMS, base)
    engine = LocalEngine(model, slots=5, max_context=200)
    offered = Offering(prompts, engine, model, when=6)
    engine.converse(prompts, PARAMS, offered)
    assert offered.ids == base.ids


def test_weights_offered_between_calls_are_loaded_first(model, changed):
    prompt = make_prompts(1)
    new = LocalEngine(changed, slots=2, max_context=200).generate(prompt, PARAMS)
    engine = LocalEngine(model, slots=2, max_context=200)
    engine.offer_weights(model, 1)
    engine.offer_weights(changed, 2)  # replaces the first offer
    (completion,) = engine.generate(prompt, PARAMS)
    assert completion.token_ids == new[0].token_ids
    assert engine.version == 2 and completion.versions == []


def test_parked_rows_are_read_again(model, changed):
    """Weights that arrive while every tool runs apply to all later tokens."""
    from concurrent.futures import Future

    prompts = make_prompts(4, seed=2)
    engine = LocalEngine(model, slots=4, max_context=200)
    futures, versions = [], []

    def respond(i, completion):
        versions.append(set(completion.versions))
        if len(futures) == len(prompts):
            return None
        futures.append(Future())
        if len(futures) == len(prompts):  # all rows are parked
            threading.Timer(0.05, release).start()
        return futures[-1]

    def release():
        engine.offer_weights(changed, 7)
        for future in futures:
            future.set_result([5, 6, 7])

    engine.converse(prompts, SamplingParams(max_tokens=6, seed=1), respond)
    assert versions == [set()] * 4 + [{7}] * 4
