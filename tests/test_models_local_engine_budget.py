"""LocalEngine with a KV-cache budget: the same samples, and never more tokens than the budget.

Run: python -m pytest tests/test_models_local_engine_budget.py
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from drlib.models import local_engine
from drlib.models.admission import ADMISSIONS
from drlib.models.local_engine import LocalEngine, SamplingParams
from tests.engine_examples import small_engine, small_model
from tests.test_models_local_engine import Recorder, compare_with_trainer, make_prompts
from tests.test_models_local_engine_contexts import ContextRecorder
from tests.test_models_local_engine_weights import Offering, changed
from tests.test_models_routes import RouteRecorder

model, engine, changed_weights = small_model, small_engine, changed
CONTEXT, BUDGET = 160, 330  # two of the longest rollouts
PARAMS = SamplingParams(max_tokens=25, stop_ids=(1, 2, 3, 4), seed=5)
PROMPTS = make_prompts(8) * 2  # equal prompts are read once and copied
POLICIES = sorted(ADMISSIONS)


@pytest.fixture
def cached(monkeypatch):
    """Tokens in the cache after every prefill and decode step."""
    counts = []
    sample = local_engine._Run._sample

    def count(run, rows, logits_NV):
        result = sample(run, rows, logits_NV)
        counts.append(int(run.feed.sum()))
        assert (run.feed[run.state == local_engine._FREE] == 0).all()
        return result

    monkeypatch.setattr(local_engine._Run, "_sample", count)
    return counts


def run(model, recorder, prompts=PROMPTS, params=PARAMS, slots=16, **options):
    options = {"max_context": CONTEXT, "kv_budget": BUDGET} | options
    engine = LocalEngine(model, slots=slots, **options)
    engine.converse(prompts, params, recorder)
    return engine


@pytest.fixture(scope="module")
def unlimited(model):
    recorder = Recorder(PROMPTS, turns=4)
    assert run(model, recorder, kv_budget=None).admission is None
    return recorder


@pytest.mark.parametrize("slots", [5, 16])
@pytest.mark.parametrize("name", POLICIES)
def test_samples_do_not_depend_on_the_budget(model, unlimited, cached, name, slots):
    recorder = Recorder(PROMPTS, turns=4)
    admission = run(model, recorder, slots=slots, admission=name).admission
    assert recorder.ids == unlimited.ids and recorder.done == unlimited.done
    logp_error, _ = compare_with_trainer(model, recorder)
    assert logp_error.mean() < 1e-6 and logp_error.max() < 1e-4
    assert 0.5 * BUDGET < admission.peak <= BUDGET and max(cached) <= admission.peak
    assert (admission.evictions > 0) == (admission.wasted > 0) == (name != "reserve")


def test_without_a_budget_more_tokens_are_cached(model, cached):
    run(model, Recorder(PROMPTS, turns=4), kv_budget=None)
    assert max(cached) > 2 * BUDGET


@pytest.mark.parametrize("name", POLICIES)
def test_parked_rows_may_lose_their_cache(model, unlimited, cached, name):
    with ThreadPoolExecutor(3) as pool:
        recorder = Recorder(PROMPTS, turns=4, pool=pool)
        run(model, recorder, admission=name)
    assert recorder.ids == unlimited.ids and max(cached) <= BUDGET


@pytest.mark.parametrize("name", POLICIES)
def test_contexts_that_restart_keep_the_budget(model, cached, name):
    prompts = make_prompts(6)
    base, recorder = ContextRecorder(prompts), ContextRecorder(prompts)
    run(model, base, prompts, kv_budget=None)
    cached.clear()
    run(model, recorder, prompts, admission=name)
    assert recorder.ids == base.ids and max(cached) <= BUDGET
    assert compare_with_trainer(model, recorder)[0].max() < 2e-4


def test_a_tool_result_that_does_not_fit_evicts(model, cached):
    """Four rollouts of 30 tokens fit a budget of 200, but not their tool results of 60 tokens."""
    prompts = make_prompts(4, low=20, high=21)

    def respond_with(ids):
        def respond(i, completion):
            ids[i].append(completion.token_ids)
            return [7] * 60 if len(ids[i]) == 1 else None

        return respond

    params = SamplingParams(max_tokens=10, seed=3)
    plain, limited = [[] for _ in prompts], [[] for _ in prompts]
    run(model, respond_with(plain), prompts, params, kv_budget=None)
    cached.clear()
    engine = run(model, respond_with(limited), prompts, params, kv_budget=200, admission="static")
    assert limited == plain and max(cached) <= 200
    assert engine.admission.evictions >= 1


def test_lockstep_is_bit_identical_with_a_budget(model):
    found = []
    for delay in (0.0, 0.004):
        with ThreadPoolExecutor(4) as pool:
            recorder = Recorder(PROMPTS, turns=4, pool=pool)
            submit = pool.submit

            def slow(call, submit=submit, delay=delay):
                return submit(lambda: (local_engine.threading.Event().wait(delay), call())[1])

            recorder.pool = type("Pool", (), {"submit": staticmethod(slow)})
            run(model, recorder, lockstep=True, admission="elastic")
        found.append((recorder.ids, recorder.logp, recorder.entropy))
    assert found[0] == found[1]


@pytest.mark.parametrize("name", ["static", "aimd"])
def test_an_eviction_keeps_the_routes_of_the_first_reading(model, name):
    base, recorder = RouteRecorder(PROMPTS, turns=3), RouteRecorder(PROMPTS, turns=3)
    run(model, base, kv_budget=None, routes=True)
    assert run(model, recorder, admission=name, routes=True).admission.evictions > 0
    assert recorder.ids == base.ids
    for i, turns in base.routes.items():
        expected, found = np.concatenate(turns), np.concatenate(recorder.routes[i])
        # rounding may exchange experts of nearly equal weight; a lost record would be one in three
        assert (expected == found).mean() > 0.999


@pytest.mark.parametrize("name", ["static", "elastic"])
def test_offered_weights_with_a_budget(model, changed_weights, cached, name):
    engine = LocalEngine(model, slots=16, max_context=CONTEXT, kv_budget=BUDGET, admission=name)
    recorder = Offering(PROMPTS, engine, model, when=12, turns=4)
    base = Recorder(PROMPTS, turns=4)
    engine.converse(PROMPTS, PARAMS, recorder)
    assert engine.version == 1 and max(cached) <= BUDGET
    run(model, base, kv_budget=None)
    assert recorder.ids == base.ids  # equal weights: only the schedule differs


def test_the_policy_of_a_call_has_the_context_of_the_call(model):
    engine = LocalEngine(model, slots=8, max_context=CONTEXT, kv_budget=BUDGET)
    engine.converse(PROMPTS[:4], PARAMS, Recorder(PROMPTS[:4], turns=1), context=60)
    assert (engine.admission.budget, engine.admission.limit) == (BUDGET, 60)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"kv_budget": CONTEXT - 1}, "kv_budget=159 must be at least the context of 160 tokens"),
        ({"kv_budget": 0}, "kv_budget=0 must be"),
        ({"admission": "elastc"}, "unknown admission 'elastc': did you mean 'elastic'"),
    ],
)
def test_unusable_budgets(model, options, message):
    with pytest.raises(ValueError, match=message):
        LocalEngine(model, slots=2, max_context=CONTEXT, **options)
