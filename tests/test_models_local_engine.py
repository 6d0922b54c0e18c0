"""LocalEngine: parity with the trainer, per-request randomness, turns and errors.

Uses a small random model on token ids, without a tokenizer.
"""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from drlib.models.decoder import Decoder
from drlib.models.local_engine import Completion, LocalEngine, SamplingParams
from drlib.models.moe import PolicyShape, build_policy
from drlib.models.sampling import sample
from tests.engine_examples import SHAPE, V, small_engine, small_model

model = small_model
engine = small_engine


def make_prompts(n, seed=0, low=3, high=30):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, V, rng.integers(low, high)).tolist() for _ in range(n)]


class Recorder:
    """Environment that replies `turns - 1` times with ids drawn from (request, turn)."""

    def __init__(self, prompts, turns=3, pool=None):
        self.ids = [list(p) for p in prompts]
        self.logp = [[None] * len(p) for p in prompts]
        self.entropy = [[None] * len(p) for p in prompts]
        self.done = [0] * len(prompts)
        self.reasons = [[] for _ in prompts]
        self.turns, self.pool = turns, pool

    def __call__(self, i, completion):
        self.ids[i] += completion.token_ids
        self.logp[i] += completion.logprobs
        self.entropy[i] += completion.entropies
        self.reasons[i].append(completion.finish_reason)
        self.done[i] += 1
        if self.done[i] == self.turns or completion.finish_reason == "context":
            return None
        rng = np.random.default_rng([i, self.done[i]])
        reply = rng.integers(0, V, rng.integers(1, 25)).tolist()
        self.ids[i] += reply
        self.logp[i] += [None] * len(reply)
        self.entropy[i] += [None] * len(reply)
        return reply if self.pool is None else self.pool.submit(lambda: reply)


def trainer_logprobs(model, ids):
    """Return log-probs [T-1, V] of each next token by the trainer's forward pass."""
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)


def compare_with_trainer(model, recorder):
    logp_error, entropy_error = [], []
    for ids, logps, entropies in zip(recorder.ids, recorder.logp, recorder.entropy):
        reference = trainer_logprobs(model, ids)
        for t, (logp, entropy) in enumerate(zip(logps, entropies)):
            if logp is None:
                continue
            row = reference[t - 1]
            logp_error.append(abs(row[ids[t]].item() - logp))
            entropy_error.append(abs(-(row.exp() * row).sum().item() - entropy))
    return np.array(logp_error), np.array(entropy_error)


@pytest.mark.parametrize("slots", [3, 48])
def test_logprobs_match_the_trainer_over_several_turns(model, slots):
    prompts = make_prompts(20) * 2  # each prompt twice: fed once, then copied
    recorder = Recorder(prompts)
    params = SamplingParams(max_tokens=15, stop_ids=(1, 2, 3, 4), seed=5)
    LocalEngine(model, slots=slots, max_context=200).converse(prompts, params, recorder)
    logp_error, entropy_error = compare_with_trainer(model, recorder)
    assert len(logp_error) > 1000
    assert logp_error.mean() < 1e-6 and logp_error.max() < 1e-4
    assert entropy_error.mean() < 5e-6


def test_logprobs_match_the_trainer_with_futures(model, engine):
    prompts = make_prompts(24, seed=3)
    with ThreadPoolExecutor(4) as pool:
        recorder = Recorder(prompts, turns=4, pool=pool)
        engine.converse(prompts, SamplingParams(max_tokens=8, seed=1), recorder)
    assert recorder.done == [4] * 24
    logp_error, _ = compare_with_trainer(model, recorder)
    assert logp_error.mean() < 1e-6


def test_samples_are_independent_of_slots_order_and_futures(model, engine):
    prompts = make_prompts(15, seed=7)
    params = SamplingParams(max_tokens=12, stop_ids=(5, 6, 7), seed=9)
    base = Recorder(prompts)
    engine.converse(prompts, params, base)
    for slots in (1, 64):
        other = Recorder(prompts)
        LocalEngine(model, slots=slots, max_context=200).converse(prompts, params, other)
        assert other.ids == base.ids
    with ThreadPoolExecutor(3) as pool:
        parked = Recorder(prompts, pool=pool)
        engine.converse(prompts, params, parked)
    assert parked.ids == base.ids
    selected = [14, 4, 9, 0]
    first = engine.generate(prompts, params)
    subset = engine.generate([prompts[i] for i in selected], params, keys=selected)
    assert [c.token_ids for c in subset] == [first[i].token_ids for i in selected]


def test_keys_and_seeds_select_the_random_stream(engine):
    prompt = make_prompts(1)[0]

    def draw(seed, keys):
        params = SamplingParams(max_tokens=20, seed=seed)
        return [c.token_ids for c in engine.generate([prompt] * len(keys), params, keys=keys)]

    a, b, again = draw(0, [3, 4, 3])
    assert a == again and a != b
    assert draw(1, [3])[0] != a


def test_greedy_is_argmax_with_temperature_one_logprobs(model, engine):
    prompts = make_prompts(5, seed=11)
    completions = engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=6))
    for prompt, completion in zip(prompts, completions):
        reference = trainer_logprobs(model, prompt + completion.token_ids)[len(prompt) - 1 :]
        assert reference.argmax(-1).tolist() == completion.token_ids
        assert completion.logprobs == pytest.approx(reference.max(-1).values.tolist(), abs=1e-4)
        entropies = (-(reference.exp() * reference).sum(-1)).tolist()
        assert completion.entropies == pytest.approx(entropies, abs=1e-4)


def sampling_distribution(logits, temperature, top_p):
    """Return the sampling distribution in plain Python floats."""
    scaled = [x / temperature for x in logits]
    weights = [np.exp(x - max(scaled)) for x in scaled]
    probs = [w / sum(weights) for w in weights]
    kept, total = set(), 0.0
    for token in sorted(range(len(probs)), key=lambda t: -probs[t]):
        if total >= top_p:
            break
        kept.add(token)
        total += probs[token]
    return np.array([p / total if t in kept else 0.0 for t, p in enumerate(probs)])


@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.7, 1.0), (1.3, 0.8), (1.0, 0.35)])
@pytest.mark.parametrize("vocab", [128, 70])  # a multiple of the CDF's block, and not
def test_sampling_distribution_against_brute_force(temperature, top_p, vocab):
    rng = np.random.default_rng(vocab)
    logits = rng.normal(0, 2, vocab)
    expected = sampling_distribution(logits, temperature, top_p)
    n = 20_000
    uniforms = torch.from_numpy((np.arange(n) + 0.5) / n)  # a grid: no sampling noise
    rows = torch.tensor(logits, dtype=torch.float32).expand(n, -1)
    ids, logp, entropy = sample(rows, uniforms, temperature, top_p)
    share = np.bincount(ids.numpy(), minlength=vocab) / n
    assert np.abs(share - expected).max() <= 1.5 / n
    assert np.allclose(logp.numpy(), np.log(expected[ids.numpy()]), atol=1e-5)
    positive = expected[expected > 0]
    assert np.allclose(entropy.numpy(), -(positive * np.log(positive)).sum(), atol=1e-5)


def test_sample_at_extreme_uniforms():
    logits = torch.full((3, 128), -torch.inf)
    logits[:, 70:73] = torch.tensor([0.0, 1.0, 2.0])
    uniforms = torch.tensor([0.0, 0.5, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    probs_only = torch.nan_to_num(logits, neginf=-200.0)
    ids, logp, _ = sample(probs_only, uniforms, 1.0, 1.0)
    assert ids.tolist() == [70, 72, 72] and torch.isfinite(logp).all()


def test_top_p_reports_the_truncated_distribution(model, engine):
    prompt = make_prompts(1, seed=13)[0]
    params = SamplingParams(temperature=0.8, top_p=0.6, max_tokens=1, seed=2)
    logits = trainer_logprobs(model, prompt + [0])[-1].tolist()
    expected = sampling_distribution(logits, 0.8, 0.6)
    completions = engine.generate([prompt] * 50, params)
    for completion in completions:
        token = completion.token_ids[0]
        assert expected[token] > 0
        assert completion.logprobs[0] == pytest.approx(np.log(expected[token]), abs=1e-4)
    assert len({c.token_ids[0] for c in completions}) > 5


def test_finish_reasons(engine):
    prompt = [9, 8, 7]
    free = engine.generate([prompt], SamplingParams(max_tokens=10, seed=4))[0]
    assert free.finish_reason == "length" and len(free.token_ids) == 10
    assert len(free.logprobs) == len(free.entropies) == 10
    stop = free.token_ids[4]
    cut = free.token_ids.index(stop) + 1
    stopped = engine.generate([prompt], SamplingParams(max_tokens=10, stop_ids=(stop,), seed=4))[0]
    assert stopped.finish_reason == "stop" and stopped.token_ids == free.token_ids[:cut]
    pair = tuple(free.token_ids[5:7])
    params = SamplingParams(max_tokens=10, stop_sequences=((1, 1, 1), pair), seed=4)
    by_pair = engine.generate([prompt], params)[0]
    assert by_pair.finish_reason == "stop" and by_pair.token_ids == free.token_ids[:7]
    reasons = []
    engine.converse(
        [prompt],
        SamplingParams(max_tokens=10, seed=4),
        lambda i, c: reasons.append((c.finish_reason, c.token_ids)),
        context=8,
    )
    assert reasons == [("context", free.token_ids[:5])]


def test_stop_sequence_matches_sampled_tokens_only(engine):
    first = engine.generate([[5, 6]], SamplingParams(max_tokens=1, seed=3))[0].token_ids[0]
    params = SamplingParams(max_tokens=3, stop_sequences=((6, first),), seed=3)
    assert engine.generate([[5, 6]], params)[0].finish_reason == "length"


def test_reply_overflowing_the_context_ends_the_request(engine):
    seen = []

    def respond(i, completion):
        seen.append(completion)
        return [1] * 16 if len(seen) == 1 else None

    engine.converse([[1, 2]], SamplingParams(max_tokens=4), respond, context=20)
    assert [len(c.token_ids) for c in seen] == [4, 0]
    assert seen[1] == Completion([], [], [], "context")


def test_reply_leaving_one_token_is_used(engine):
    seen = []

    def respond(i, completion):
        seen.append(completion)
        return [1] * 13 if len(seen) == 1 else None

    engine.converse([[1, 2]], SamplingParams(max_tokens=4), respond, context=20)
    assert [(len(c.token_ids), c.finish_reason) for c in seen] == [(4, "length"), (1, "context")]


def test_other_requests_continue_while_a_tool_runs(engine):
    release, order = threading.Event(), []

    def slow_tool():
        assert release.wait(30)
        return [3, 3]

    with ThreadPoolExecutor(1) as pool:

        def respond(i, completion):
            order.append(i)
            if i == 0 and order.count(0) == 1:
                return pool.submit(slow_tool)
            if order.count(1) == 3 and i == 1:
                release.set()  # only now the tool of request 0 returns
            return [4] if i == 1 and order.count(1) < 3 else None

        engine.converse([[1], [2]], SamplingParams(max_tokens=3), respond)
    assert order[-1] == 0 and order.count(0) == 2 and order.count(1) == 3


def test_tools_of_all_rows_run_concurrently(engine):
    barrier = threading.Barrier(8, timeout=30)  # breaks unless eight tools run at once

    def tool():
        barrier.wait()
        return None

    with ThreadPoolExecutor(8) as pool:
        engine.converse(
            [[i] for i in range(8)], SamplingParams(max_tokens=2), lambda i, c: pool.submit(tool)
        )


def test_lockstep_is_bit_identical_for_any_tool_timing(model):
    prompts = make_prompts(20, seed=21)
    params = SamplingParams(max_tokens=9, stop_ids=(1, 2, 3), seed=6)
    engine = LocalEngine(model, slots=6, max_context=200, lockstep=True)

    class Delayed(Recorder):
        def __call__(self, i, completion):
            reply = super().__call__(i, completion)
            delays = self.delays

            def tool():
                threading.Event().wait(delays[(i + self.done[i]) % len(delays)])
                return reply

            return None if reply is None else self.pool.submit(tool)

    runs = []
    with ThreadPoolExecutor(6) as pool:
        for delays in ((0.0,), (0.003, 0.0, 0.01), (0.01, 0.006)):
            run = Delayed(prompts, pool=pool)
            run.delays = delays
            engine.converse(prompts, params, run)
            runs.append((run.ids, run.logp, run.entropy))
    assert runs[0] == runs[1] == runs[2]


def test_tool_and_callback_errors_keep_the_engine_usable(engine):
    prompts = make_prompts(12)
    before = engine.generate(prompts, SamplingParams(max_tokens=5))

    def fail():
        raise OSError("the index is gone")

    with ThreadPoolExecutor(1) as pool, pytest.raises(OSError, match="the index is gone"):
        engine.converse(prompts, SamplingParams(max_tokens=5), lambda i, c: pool.submit(fail))
    with pytest.raises(ValueError, match="reply to request .* holds id 9999"):
        engine.converse(prompts, SamplingParams(max_tokens=5), lambda i, c: [9999])
    after = engine.generate(prompts, SamplingParams(max_tokens=5))
    assert [c.token_ids for c in after] == [c.token_ids for c in before]


def test_update_weights_changes_completions_and_version(model):
    engine = LocalEngine(model, slots=4, max_context=64)
    params = SamplingParams(max_tokens=10)
    before = engine.generate([[1, 2, 3]], params)[0]
    assert engine.version == 0
    other = build_policy(SHAPE, seed=77, init="plain")
    engine.update_weights(other)
    after = engine.generate([[1, 2, 3]], params)[0]
    assert engine.version == 1 and after.token_ids != before.token_ids
    new = LocalEngine(other, slots=4, max_context=64).generate([[1, 2, 3]], params)[0]
    assert after == new
    with torch.no_grad():
        other.lm_head.weight.zero_()  # the engine holds copies: a training step must not affect it
    assert engine.generate([[1, 2, 3]], params)[0] == new
    with pytest.raises(ValueError, match="differs in vocab_size"):
        engine.update_weights(build_policy(PolicyShape(vocab_size=300), seed=0, init="plain"))


def test_small_hidden_states_are_normalised_like_the_trainer(model):
    """Covers states so small that the norm's epsilon dominates, and states of exactly zero."""
    short = copy.deepcopy(model)
    with torch.no_grad():
        short.model.embed_tokens.weight.mul_(1e-3)
        short.model.embed_tokens.weight[:2] = 0.0
    decoder, ids = Decoder(short, rows=8, max_context=16), torch.arange(8)
    with torch.inference_mode():
        found_NV = decoder.decode(ids, torch.zeros(8, dtype=torch.long))
        expected_NV = short(ids[:, None]).logits[:, 0]
    assert short.model.embed_tokens.weight[2:8].square().mean() < model.config.rms_norm_eps
    torch.testing.assert_close(found_NV, expected_NV, atol=1e-5, rtol=1e-5)


def test_dense_and_grouped_experts_agree(model):
    few = Decoder(model, rows=64, max_context=16)
    ids = torch.arange(64)
    with torch.inference_mode():
        grouped = few.decode(ids, torch.zeros(64, dtype=torch.long))
        dense = few.decode(ids[:20], torch.zeros(20, dtype=torch.long))
    assert torch.allclose(grouped[:20], dense, atol=2e-5)
