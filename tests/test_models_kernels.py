"""Compiled kernels against plain numpy, and both decoders against each other.

Run: python -m pytest tests/test_models_kernels.py
"""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from numba import TypingError, njit

from drlib.config import ROOT
from drlib.models import kernels
from drlib.models.compiled_decoder import CompiledDecoder
from drlib.models.decoder import Decoder
from drlib.models.engine import SamplingParams
from drlib.models.kernels import LANES
from drlib.models.local_engine import LocalEngine, create_decoder
from drlib.models.moe import PolicyShape, build_policy
from drlib.models.router_bias import add_router_bias
from drlib.models.sampling import sample
from tests.engine_examples import V, small_model
from tests.test_models_local_engine import Recorder, compare_with_trainer, make_prompts
from tests.test_models_routes import RouteRecorder
from tests.waiting import HANG_S

model = small_model


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# Without the on-disk cache, which would not notice changes of called functions.
@njit
def apply_exp(x_N, out_N):
    for i in range(len(x_N)):
        out_N[i] = kernels.exp(x_N[i])


@njit
def load_and_store(array, index, out):
    kernels.store(out, 0, kernels.load(array, index))


# ---- numbers


def test_exponential_accuracy_and_underflow():
    x = -np.geomspace(1e-9, 87, 200_001).astype(np.float32)
    x[0] = 0
    found = np.empty_like(x)
    apply_exp(x, found)
    expected = np.exp(x.astype(np.float64))
    assert found[0] == 1
    assert np.abs(found / expected - 1).max() < 2e-7
    ends = np.array([-88.5, -1e4, -np.inf, np.nan], np.float32)
    apply_exp(ends, ends)
    assert ends[:3].tolist() == [0, 0, 0] and np.isnan(ends[3])


def test_load_and_store_use_the_index():
    array, out = numbers(50), np.zeros(LANES, np.float32)
    load_and_store(array, 7, out)
    assert np.array_equal(out, array[7 : 7 + LANES])
    for strided in (array[::2], numbers(4, 50), array.astype(np.float64)):
        with pytest.raises((TypingError, AssertionError)):  # numba refuses to compile it
            load_and_store(strided, 0, out)


def test_function_without_a_file_is_compiled_without_cache():
    namespace = {}
    exec("def twice(x):\n    return 2 * x", namespace)  # numba cannot cache it without a file
    assert kernels.jit(namespace["twice"])(21) == 42


def test_normalise_matches_rms_norm():
    x, found = numbers(5, 24), np.empty((5, 24), np.float32)
    x[3] = 0
    kernels.normalise(x, np.float32(24e-6), found)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).sum(1, keepdims=True) + 24e-6)
    assert np.allclose(found, expected, atol=1e-6) and not found[3].any()


# ---- attention


@pytest.mark.parametrize("dim, n_kv, group", [(16, 2, 4), (4, 1, 1), (24, 3, 2), (40, 1, 3)])
def test_attention_ignores_later_positions(dim, n_kv, group):
    """Lengths around every block boundary; values after the length are NaN."""
    lengths = [1, 2, LANES - 1, LANES, LANES + 1, 3 * LANES, 3 * LANES + 1]
    rows, context = len(lengths) + 1, 4 * LANES
    k, v = numbers(2, rows, n_kv, context, dim)
    query = numbers(len(lengths), n_kv * group, dim, seed=1)
    row_T = np.arange(len(lengths))[
        ::-1
    ].copy()  # row 0 belongs to the last token, one row is unused
    width = -(-dim // LANES) * LANES
    values = np.full((rows, n_kv, context, width), np.nan, np.float32)
    keys = np.full((rows, n_kv, context // LANES, dim, LANES), np.nan, np.float32)
    expected = np.empty((len(lengths), n_kv * group, dim))
    for t, (row, length) in enumerate(zip(row_T, lengths)):
        for head in range(n_kv):
            for j in range(length):
                keys[row, head, j // LANES, :, j % LANES] = k[row, head, j]
                values[row, head, j, :dim] = v[row, head, j]
            for g in range(head * group, (head + 1) * group):
                scores = k[row, head, :length].astype(np.float64) @ query[t, g]
                weights = np.exp(scores - scores.max())
                expected[t, g] = weights / weights.sum() @ v[row, head, :length]
    found = np.empty((len(lengths), n_kv * group * dim), np.float32)
    # keys and values follow the queries in the same row
    qkv = np.concatenate([query.reshape(len(lengths), -1), numbers(len(lengths), 8)], axis=1)
    kernels.attend(qkv, row_T, np.array(lengths) - 1, keys, values, found)
    assert np.allclose(found, expected.reshape(found.shape), atol=2e-6)


def test_rotate_normalises_rotates_and_caches():
    dim, n_heads, n_kv, rows, context = 8, 4, 2, 3, 2 * LANES
    qkv = numbers(2, (n_heads + 2 * n_kv) * dim)
    gain, angle = numbers(n_heads + n_kv, dim, seed=1), numbers(context, dim // 2, seed=2)
    row_T, position_T = np.array([2, 0]), np.array([LANES + 1, 5])
    keys = np.zeros((rows, n_kv, 2, dim, LANES), np.float32)
    values = np.zeros((rows, n_kv, context, LANES), np.float32)
    heads = qkv.reshape(2, -1, dim).astype(np.float64).copy()
    kernels.rotate(
        qkv, gain, np.float32(1e-3), np.cos(angle), np.sin(angle), row_T, position_T, keys, values
    )
    rotated = heads[:, : n_heads + n_kv]
    rotated = rotated / np.sqrt((rotated**2).sum(-1, keepdims=True) + 1e-3) * gain
    turn = np.exp(1j * angle[position_T])[:, None]
    pairs = (rotated[..., ::2] + 1j * rotated[..., 1::2]) * turn
    expected = np.stack([pairs.real, pairs.imag], axis=-1).reshape(rotated.shape)
    assert np.allclose(qkv.reshape(2, -1, dim)[:, : n_heads + n_kv], expected, atol=1e-6)
    for t, (row, position) in enumerate(zip(row_T, position_T)):
        kept = keys[row, :, position // LANES, :, position % LANES]
        assert np.allclose(kept, expected[t, n_heads:], atol=1e-6)
        assert np.allclose(values[row, :, position, :dim], heads[t, n_heads + n_kv :], atol=1e-6)
    assert np.count_nonzero(keys) == np.count_nonzero(values) == 2 * n_kv * dim


# ---- experts


@pytest.mark.parametrize("biased", [False, True])
def test_routes_are_top_k_and_copies_are_sorted_by_expert(biased):
    n, n_experts, k, width = 37, 8, 3, 5
    h, logits = numbers(n, width), 2 * numbers(n, n_experts, seed=1)
    bias = 0.3 * numbers(n_experts, seed=2) * biased
    chosen, place = np.empty((2, n, k), np.int64)
    copies, share = np.empty((n * k, width), np.float32), np.empty(n * k, np.float32)
    ends = np.empty(n_experts, np.int32)
    kernels.route(h, logits, bias, chosen, place, copies, share, ends)
    probs = torch.softmax(torch.from_numpy(logits).double(), -1)
    expected = (probs + torch.from_numpy(bias)).topk(k, -1).indices
    assert np.array_equal(chosen, expected.numpy())
    gates = probs.gather(1, expected)
    assert np.allclose(share[place], gates / gates.sum(-1, keepdim=True), atol=1e-6)
    assert sorted(place.ravel()) == list(range(n * k))
    assert np.array_equal(ends, np.bincount(chosen.ravel(), minlength=n_experts).cumsum())
    assert np.array_equal(np.searchsorted(ends, place, side="right"), chosen)
    assert np.array_equal(copies[place], np.repeat(h[:, None], k, axis=1))


def test_gate_and_combine_by_hand():
    gate_up, share = numbers(6, 20), np.abs(numbers(6, seed=1))
    gate_up[0, :10] = [0, -0.0, 1e-9, -1e-9, 20, -20, 90, -90, 300, -300]
    inner = np.empty((6, 10), np.float32)
    kernels.gate(gate_up, share, inner)
    gates, ups = gate_up[:, :10].astype(np.float64), gate_up[:, 10:]
    expected = share[:, None] * gates / (1 + np.exp(-gates)) * ups
    assert np.allclose(inner, expected, rtol=1e-6, atol=1e-9)

    x, normed, place = (
        numbers(3, 10, seed=2),
        np.empty((3, 10), np.float32),
        [[0, 5], [3, 1], [4, 2]],
    )
    total = x + inner[[0, 3, 4]] + inner[[5, 1, 2]]
    kernels.combine(x, inner, np.array(place), np.float32(1e-5), normed)
    assert np.allclose(x, total, atol=1e-6)
    assert np.allclose(normed, total / np.sqrt((total**2).sum(1, keepdims=True) + 1e-5), atol=1e-6)


# ---- sampling


def draw_tokens(logits, uniforms, temperature):
    n = len(logits)
    found = np.empty(n, np.int64), np.empty(n, np.float32), np.empty(n, np.float32)
    kernels.draw(logits.copy(), uniforms, temperature, *found)
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.7])
@pytest.mark.parametrize("vocabulary", [40, 64, 70, 1000])  # blocks of 64: less, one, more
def test_draw_matches_torch(temperature, vocabulary):
    n = 3000
    logits = 4 * numbers(n, vocabulary)
    uniforms = np.random.default_rng(1).random(n)
    uniforms[:3] = 0.0, 0.5, np.nextafter(1.0, 0.0)
    ids, logps, entropies = draw_tokens(logits, uniforms, temperature)
    expected, _, _ = sample(torch.from_numpy(logits), torch.from_numpy(uniforms), temperature, 1.0)
    # A uniform within rounding of a CDF boundary may select either token.
    same = ids == expected.numpy()
    assert same.mean() > 0.999 and (temperature > 0 or same.all())
    exact = torch.log_softmax(torch.from_numpy(logits).double() / (temperature or 1), -1)
    assert np.allclose(logps, exact[np.arange(n), ids], rtol=1e-6, atol=1e-6)
    assert np.allclose(entropies, -(exact.exp() * exact).sum(-1), rtol=1e-6, atol=1e-6)


def test_draw_at_extreme_uniforms():
    logits = np.full((4, 130), -300, np.float32)
    logits[:, 70:73] = [0.0, 1.0, 2.0]
    uniforms = np.array([0.0, 0.5, np.nextafter(1.0, 0.0), 1.0])
    ids, logps, _ = draw_tokens(logits, uniforms, 1.0)
    assert ids.tolist()[:3] == [70, 72, 72] and np.isfinite(logps[:3]).all()
    assert 0 <= ids[3] < 130


# ---- the decoders


def test_cpu_model_uses_the_compiled_decoder(model):
    assert type(create_decoder(model, 2, 32)) is CompiledDecoder


def test_kernels_are_compiled_once(model):
    """A second signature would cost seconds of compilation during a run."""
    kernel_functions = [kernels.normalise, kernels.rotate, kernels.attend, kernels.route]
    kernel_functions += [kernels.gate, kernels.combine, kernels.draw]
    engine = LocalEngine(model, slots=2, max_context=64, routes=True)
    for temperature in (0, 1, 0.5):
        params = SamplingParams(temperature=temperature, max_tokens=3)
        engine.converse(make_prompts(5), params, Recorder(make_prompts(5)))
    LocalEngine(add_router_bias(model), slots=2, max_context=64).generate([[1, 2]], params)
    assert [len(loop.signatures) for loop in kernel_functions] == [1] * len(kernel_functions)


# Attention over 1 to 100 positions; a process of its own per call.
ATTENTION = """
import hashlib
import numpy as np
from drlib.models import kernels
kv_heads, dim, context, tokens = 2, 32, 208, 100
draw = np.random.default_rng(0).standard_normal
keys = draw((1, kv_heads, context // 16, dim, 16)).astype(np.float32)
values = draw((1, kv_heads, context, dim)).astype(np.float32)
queries = draw((tokens, 4 * kv_heads * dim)).astype(np.float32)
out = np.empty((tokens, 2 * kv_heads * dim), np.float32)
rows = np.zeros(tokens, np.int64)
kernels.attend(queries, rows, np.arange(tokens), keys, values, out)
print(hashlib.sha256(out.tobytes()).hexdigest())
"""


def test_empty_cache_gives_the_same_bits(tmp_path):
    """The process that compiles the kernels computes what those compute that load them."""
    options = dict(cwd=ROOT, capture_output=True, text=True, check=True, timeout=HANG_S)
    options["env"] = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    program = [sys.executable, "-c", ATTENTION]
    compiled = subprocess.run(program, **options).stdout
    assert [*tmp_path.rglob("*attend*.nbc")]
    assert subprocess.run(program, **options).stdout == compiled


def test_numba_is_imported_lazily():
    program = "import sys, drlib.training.grpo, drlib.evaluation.evaluate, drlib.app; "
    program += "sys.exit(int(bool({'numba', 'llvmlite'} & set(sys.modules))))"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=HANG_S).returncode == 0


@pytest.mark.parametrize("slots", [3, 48])
def test_both_decoders_sample_the_same_tokens(model, slots, monkeypatch):
    """Turns, parked rows, copies and moves; ids, log-probabilities, entropies and routes."""
    prompts = make_prompts(20, seed=4) * 2
    params = SamplingParams(max_tokens=12, stop_ids=(1, 2, 3, 4), seed=8)
    runs = []
    for kind in (CompiledDecoder, Decoder):
        monkeypatch.setattr(
            "drlib.models.local_engine.create_decoder", lambda *given, k=kind: k(*given[:4])
        )
        with ThreadPoolExecutor(2) as pool:
            run = RouteRecorder(prompts, turns=4, pool=pool)
            engine = LocalEngine(model, slots=slots, max_context=200, lockstep=True, routes=True)
            engine.converse(prompts, params, run)
        assert type(engine._decoder) is kind
        logp_error, entropy_error = compare_with_trainer(model, run)
        assert len(logp_error) > 1000 and logp_error.max() < 1e-4
        assert logp_error.mean() < 1e-6 and entropy_error.mean() < 5e-6
        runs.append(run)
    ours, torchs = runs
    assert ours.ids == torchs.ids and ours.reasons == torchs.reasons
    for i in range(len(prompts)):
        for one, other in zip(ours.routes[i], torchs.routes[i], strict=True):
            assert np.array_equal(one, other)


@pytest.mark.parametrize("head_dim, heads, kv_heads", [(4, 4, 4), (24, 4, 1), (32, 2, 1)])
def test_decoder_matches_the_trainer_for_any_head_width(head_dim, heads, kv_heads):
    shape = PolicyShape(
        vocab_size=V, hidden=48, layers=2, heads=heads, kv_heads=kv_heads, head_dim=head_dim
    )
    policy = build_policy(shape, seed=3, init="plain").eval()
    ids_NT = torch.randint(0, V, (3, 40), generator=torch.Generator().manual_seed(0))
    decoder = create_decoder(policy, rows=3, max_context=64)
    with torch.inference_mode():
        expected_NTV = policy(ids_NT).logits
        chunks = [ids_T[:17].numpy() for ids_T in ids_NT]
        found_NV = decoder.prefill([0, 1, 2], [0, 0, 0], chunks)
        torch.testing.assert_close(found_NV, expected_NTV[:, 16], atol=1e-5, rtol=1e-4)
        for t in range(17, 40):
            found_NV = decoder.decode(ids_NT[:, t].contiguous(), torch.full((3,), t))
            torch.testing.assert_close(found_NV, expected_NTV[:, t], atol=1e-5, rtol=1e-4)


def test_nan_weights_give_nan_and_a_usable_engine(model):
    """Diverged weights give NaN, ids of the vocabulary, and an engine that still works."""
    diverged = copy.deepcopy(model)
    with torch.no_grad():
        diverged.model.layers[1].self_attn.v_proj.weight[0, 0] = torch.nan
    engine, params = LocalEngine(model, slots=2, max_context=64), SamplingParams(max_tokens=20)
    before = engine.generate([[1, 2, 3]], params)
    engine.update_weights(diverged)
    (said,) = engine.generate([[1, 2, 3]], params)
    assert np.isnan(said.logprobs).all() and np.isnan(said.entropies).all()
    assert all(0 <= token < V for token in said.token_ids)
    engine.update_weights(model)
    assert engine.generate([[1, 2, 3]], params) == before
