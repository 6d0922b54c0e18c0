"""Chunked log-probabilities against float64, against each other, and their peak memory."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drlib.models.chunked_logprobs import fused_policy_gradient, token_logprobs

N, H, V = 75, 24, 1003
SMALL = (32, 200)  # cuts N and V into tiles of unequal size
ROOT = Path(__file__).resolve().parents[1]


def make_case(dtype=torch.float32, seed=0, n=N, device="cpu"):
    """Return hidden, weight (leaves), ids and two incoming gradients; the logits have std 4."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, H, generator=g)
    weight = torch.randn(V, H, generator=g) * 0.8
    ids = torch.randint(0, V, (n,), generator=g)
    ids[: min(n, 3)] = (hidden[:3] @ weight.t()).argmax(1)  # some ids are the most likely tokens
    a, b = torch.randn(2, n, generator=g).to(device)
    leaves = (x.to(device=device, dtype=dtype).requires_grad_() for x in (hidden, weight))
    return *leaves, ids.to(device), a, b


def reference_logprobs(hidden, weight, ids, temperature=1.0, dtype=torch.float64):
    """Return (leaves, logp, entropy) of the full head, in float64 by default."""
    h, w = (x.detach().to(dtype).requires_grad_() for x in (hidden, weight))
    log_p = ((h @ w.t()).double() / temperature).log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum(1)
    return (h, w), log_p.gather(1, ids[:, None]).squeeze(1), entropy


def gradients(loss, leaves):
    return torch.autograd.grad(loss, leaves)


def relative(ours, exact):
    return float((ours.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("temperature", [1.0, 0.7, 2.5])
@pytest.mark.parametrize("chunk", [None, SMALL])
def test_values_and_gradients_match_float64(temperature, chunk):
    hidden, weight, ids, a, b = make_case()
    logp, entropy = token_logprobs(hidden, weight, ids, temperature=temperature, chunk=chunk)
    leaves, logp64, entropy64 = reference_logprobs(hidden, weight, ids, temperature)
    assert logp.dtype == entropy.dtype == torch.float32
    assert (logp - logp64).abs().max() < 1e-5 and (entropy - entropy64).abs().max() < 1e-5
    for loss, loss64, bound in (
        ((a * logp).sum(), (a * logp64).sum(), 1e-6),
        # Alone, the entropy's gradient is a difference: plain float32 torch gives 1.8e-6 here.
        ((b * entropy).sum(), (b * entropy64).sum(), 2.5e-6),
        ((a * logp + b * entropy).sum(), (a * logp64 + b * entropy64).sum(), 1e-6),
    ):
        ours = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
        exact = torch.autograd.grad(loss64, leaves, retain_graph=True)
        assert all(relative(x, y) < bound for x, y in zip(ours, exact, strict=True))


def test_values_by_hand():
    # Logits (0, log 3) at T=1: p = (1/4, 3/4); the entropy is log 4 - 3/4 log 3.
    weight = torch.tensor([[1.0], [3.0]]).log()
    hidden = torch.ones(1, 1, requires_grad=True)
    logp, entropy = token_logprobs(hidden, weight, torch.tensor([1]), chunk=(1, 1))
    assert float(logp.detach().exp()) == pytest.approx(0.75, rel=1e-6)
    assert float(entropy.detach()) == pytest.approx(math.log(4) - 0.75 * math.log(3), rel=1e-6)
    (by_logp,) = torch.autograd.grad(logp.sum(), hidden, retain_graph=True)
    assert float(by_logp) == pytest.approx(0.25 * math.log(3), rel=1e-6)  # (1 - p_1) log 3
    (by_entropy,) = torch.autograd.grad(entropy.sum(), hidden)
    # -p_1 (log p_1 + H) log 3 = -3/16 log^2 3
    assert float(by_entropy) == pytest.approx(-3 / 16 * math.log(3) ** 2, rel=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [None, SMALL])
def test_fused_loss_matches_float64(temperature, chunk):
    hidden, weight, ids, a, _ = make_case()
    loss, logp, entropy = fused_policy_gradient(
        hidden, weight, ids, a, temperature=temperature, chunk=chunk
    )
    leaves, logp64, entropy64 = reference_logprobs(hidden, weight, ids, temperature)
    exact = gradients(-3 * (a * logp64).sum(), leaves)
    ours = gradients(3 * loss, (hidden, weight))  # the incoming gradient scales
    assert all(relative(x, y) < 1e-6 for x, y in zip(ours, exact, strict=True))
    assert abs(float(loss.detach() + (a * logp64).sum().detach())) < 1e-4
    assert (logp - logp64).abs().max() < 1e-5 and (entropy - entropy64).abs().max() < 1e-5
    assert not logp.requires_grad and not entropy.requires_grad


@settings(max_examples=25)
@given(rows=st.integers(1, 80), columns=st.integers(1, 1100), seed=st.integers(0, 99))
def test_tile_size_only_changes_rounding(rows, columns, seed):
    columns = max(columns, 40)  # narrower tiles are correct but slow
    hidden, weight, ids, a, b = make_case(seed=seed, n=20)
    results = []
    for chunk in (None, (rows, columns)):
        logp, entropy = token_logprobs(hidden, weight, ids, chunk=chunk)
        both = (a * logp + b * entropy).sum()
        results.append((logp.detach(), entropy.detach(), *gradients(both, (hidden, weight))))
        loss = fused_policy_gradient(hidden, weight, ids, a, chunk=chunk)[0]
        results[-1] += gradients(loss, (hidden, weight))
    for one, other in zip(*results, strict=True):
        assert relative(other, one.double()) < 1e-6


def test_large_logits_stay_precise_and_finite():
    # Certain tokens: p = 1 up to exp(-300); then everything is 0 and nothing is NaN.
    hidden, weight, ids, a, b = make_case()
    sharp = (hidden.detach() * 200).requires_grad_()
    logp, entropy = token_logprobs(sharp, weight, ids, chunk=SMALL)
    _, logp64, entropy64 = reference_logprobs(sharp, weight, ids)
    assert torch.isfinite(logp).all() and logp.min() < -500
    assert relative(logp.detach(), logp64.detach()) < 1e-6
    assert (entropy - entropy64).abs().max() < 1e-3
    assert all(torch.isfinite(g).all() for g in gradients((a * logp + b * entropy).sum(), sharp))


def test_bfloat16_is_as_exact_as_the_standard_head():
    hidden, weight, ids, a, _ = make_case(torch.bfloat16)
    leaves, logp64, _ = reference_logprobs(hidden, weight, ids)
    exact = gradients(-(a * logp64).sum(), leaves)
    naive_leaves, naive_logp, _ = reference_logprobs(hidden, weight, ids, dtype=torch.bfloat16)
    naive = gradients(-(a * naive_logp.float()).sum(), naive_leaves)
    logp, entropy = token_logprobs(hidden, weight, ids, chunk=SMALL)
    assert logp.dtype == entropy.dtype == torch.float32
    # Logits of up to 16 are rounded by at most 2**-8 of themselves, and so is their log-sum-exp.
    assert (logp - logp64).abs().max() < 2 * 16 * 2**-8
    assert (logp - naive_logp).abs().max() < 1e-4  # the same rounded logits, then float32
    recompute = gradients(-(a * logp).sum(), (hidden, weight))
    fused = gradients(
        fused_policy_gradient(hidden, weight, ids, a, chunk=SMALL)[0], (hidden, weight)
    )
    for ours in (recompute, fused):
        for gradient, theirs, true in zip(ours, naive, exact, strict=True):
            assert gradient.dtype == torch.bfloat16
            assert relative(gradient, true) < max(1.5 * relative(theirs, true), 2**-8)


def test_nearly_certain_bfloat16_token_has_a_gradient():
    # p = 1 - 5e-4: in bfloat16 p itself is 1, and p - 1 would be 0.
    hidden = torch.tensor([[1.0]], dtype=torch.bfloat16, requires_grad=True)
    weight = torch.tensor([[7.625], [0.0]], dtype=torch.bfloat16)
    exact = 7.625 / (1 + torch.tensor(7.625).exp())
    for loss in (
        token_logprobs(hidden, weight, torch.tensor([0]))[0].sum(),
        -fused_policy_gradient(hidden, weight, torch.tensor([0]), torch.ones(1))[0],
    ):
        (gradient,) = gradients(loss, hidden)
        torch.testing.assert_close(gradient.float(), exact.view(1, 1), rtol=2**-7, atol=0)


@pytest.mark.parametrize("requires", ["hidden", "weight", "neither", "no_grad"])
def test_only_required_gradients_are_computed(requires):
    hidden, weight, ids, a, b = make_case()
    whole = gradients((a * token_logprobs(hidden, weight, ids)[0]).sum(), (hidden, weight))
    hidden.requires_grad_(requires in ("hidden", "no_grad"))
    weight.requires_grad_(requires in ("weight", "no_grad"))
    with torch.set_grad_enabled(requires != "no_grad"):
        logp, _ = token_logprobs(hidden, weight, ids)
        loss, fused_logp, _ = fused_policy_gradient(hidden, weight, ids, a)
    torch.testing.assert_close(fused_logp, logp.detach())
    assert logp.requires_grad == loss.requires_grad == (requires in ("hidden", "weight"))
    if loss.requires_grad:
        leaf, expected = (hidden, whole[0]) if requires == "hidden" else (weight, whole[1])
        for ours in (gradients((a * logp).sum(), leaf)[0], -gradients(loss, leaf)[0]):
            assert relative(ours, expected.double()) < 1e-6


def test_strides_do_not_matter():
    hidden, weight, ids, a, _ = make_case()
    strided_hidden = torch.stack((hidden, hidden), 1).detach()[:, 0].requires_grad_()
    strided_weight = weight.detach().t().contiguous().t().requires_grad_()
    strided_ids = ids.repeat_interleave(2)[::2].int()
    assert not (strided_hidden.is_contiguous() or strided_weight.is_contiguous())
    for function in (
        lambda h, w, i: (a * token_logprobs(h, w, i, chunk=SMALL)[0]).sum(),
        lambda h, w, i: fused_policy_gradient(h, w, i, a, chunk=SMALL)[0],
    ):
        one = gradients(function(hidden, weight, ids), (hidden, weight))
        other = gradients(
            function(strided_hidden, strided_weight, strided_ids), (strided_hidden, strided_weight)
        )
        assert all(relative(x, y.double()) < 1e-6 for x, y in zip(other, one, strict=True))


def test_empty_input_has_zero_gradients():
    hidden, weight, ids, a, _ = make_case(n=0)
    logp, entropy = token_logprobs(hidden, weight, ids)
    loss, fused_logp, _ = fused_policy_gradient(hidden, weight, ids, a)
    assert logp.shape == entropy.shape == fused_logp.shape == (0,) and float(loss.detach()) == 0
    for total in (logp.sum() + entropy.sum(), loss):
        d_hidden, d_weight = gradients(total, (hidden, weight))
        assert d_hidden.shape == (0, H) and d_weight.shape == (V, H) and not d_weight.any()


def test_gradients_accumulate_over_micro_batches():
    hidden, weight, ids, a, _ = make_case()
    whole = gradients((a * token_logprobs(hidden, weight, ids)[0]).sum(), weight)[0]
    for part in (slice(0, 40), slice(40, N)):
        fused_policy_gradient(hidden[part], weight, ids[part], -a[part])[0].backward()
    assert relative(weight.grad, whole.double()) < 1e-6


def test_second_backward_passes_are_rejected():
    hidden, weight, ids, a, _ = make_case()
    logp = token_logprobs(hidden, weight, ids)[0]
    for loss in (logp.sum(), logp.square().sum(), fused_policy_gradient(hidden, weight, ids, a)[0]):
        with pytest.raises(RuntimeError, match="differentiated twice"):
            torch.autograd.grad(loss, hidden, create_graph=True)
    loss = fused_policy_gradient(hidden, weight, ids, a)[0]
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="available once: see token_logprobs"):
        loss.backward()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"hidden": torch.zeros(4, 3)}, "share H"),
        ({"weight": torch.zeros(9)}, "share H"),
        ({"weight": torch.zeros(9, 2, dtype=torch.bfloat16)}, "cast one of them"),
        ({"hidden": torch.zeros(4, 2).half(), "weight": torch.zeros(9, 2).half()}, "float16"),
        ({"weight": torch.zeros(0, 2)}, "at least one token"),
        ({"ids": torch.zeros(3, dtype=torch.long)}, r"shape \[4\]"),
        ({"ids": torch.zeros(4)}, "integers"),
        ({"ids": torch.tensor([0, 1, -100, 2])}, r"0\.\.8, got \[-100\]: drop padded"),
        ({"ids": torch.tensor([0, 1, 9, 2])}, r"got \[9\]"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"chunk": (0, 4)}, "chunk"),
        ({"chunk": (4, 4, 4)}, "chunk"),
        ({"chunk": 4}, "chunk"),
        ({"coefficient": torch.zeros(5)}, "coefficient_N must be floats"),
        ({"coefficient": torch.zeros(4, dtype=torch.long)}, "coefficient_N must be floats"),
        ({"coefficient": torch.zeros(4, requires_grad=True)}, "detach it"),
    ],
)
def test_invalid_arguments_are_rejected(change, message):
    given = {
        "hidden": torch.zeros(4, 2),
        "weight": torch.zeros(9, 2),
        "ids": torch.arange(4),
        "coefficient": torch.ones(4),
        "temperature": 1.0,
        "chunk": None,
    } | change
    head = [given[name] for name in ("hidden", "weight", "ids")]
    options = {name: given[name] for name in ("temperature", "chunk")}
    with pytest.raises(ValueError, match=message):
        fused_policy_gradient(*head, given["coefficient"], **options)
    if "coefficient" not in change:
        with pytest.raises(ValueError, match=message):
            token_logprobs(*head, **options)


MEMORY = """
import json, sys, torch
from pathlib import Path
from drlib.models.chunked_logprobs import fused_policy_gradient, token_logprobs

def kilobytes(field):
    status = Path("/proc/self/status").read_text()
    return next(int(l.split()[1]) for l in status.splitlines() if l.startswith(field))

def run(n, v):
    torch.manual_seed(0)
    hidden, weight = torch.randn(n, 8).requires_grad_(), torch.randn(v, 8).requires_grad_()
    ids, ones = torch.randint(0, v, (n,)), torch.ones(n)
    before = kilobytes("VmRSS")
    if sys.argv[1] == "recompute":
        logp, entropy = token_logprobs(hidden, weight, ids)
        (logp + entropy).sum().backward()
    elif sys.argv[1] == "fused":
        fused_policy_gradient(hidden, weight, ids, ones)[0].backward()
    else:
        (hidden @ weight.t()).log_softmax(1).gather(1, ids[:, None]).sum().backward()
    return kilobytes("VmHWM") - before

torch.set_num_threads(1)
run(16, 512)
print(run(2048, 60_000) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc: peak memory unread")
@pytest.mark.parametrize("form, bound_mb", [("recompute", 60), ("fused", 230), ("naive", None)])
def test_peak_memory_is_below_one_logit_matrix(form, bound_mb):
    # N x V float32 is 469 MB here; the ordinary chain holds two.
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, form], cwd=ROOT, capture_output=True, text=True, check=True
    )
    peak = json.loads(done.stdout)
    if bound_mb is None:
        assert peak > 900  # control: the measurement detects the peak
    else:
        assert peak < bound_mb


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is False")
@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_cuda_agrees_with_float64(dtype, bound):
    torch.backends.cuda.matmul.allow_tf32 = False
    hidden, weight, ids, a, b = make_case(dtype, device="cuda")
    leaves, logp64, entropy64 = reference_logprobs(hidden, weight, ids, 0.7)
    plain_again = reference_logprobs(hidden, weight, ids, 0.7)
    logp, entropy = token_logprobs(hidden, weight, ids, temperature=0.7, chunk=SMALL)
    ours = gradients((a * logp + b * entropy).sum(), (hidden, weight))
    exact = gradients((a * logp64 + b * entropy64).sum(), leaves)
    assert relative(logp.detach(), logp64.detach()) < bound
    assert relative(entropy.detach(), entropy64.detach()) < bound
    assert all(relative(x, y) < bound for x, y in zip(ours, exact, strict=True))
    exact = gradients(-(a * plain_again[1]).sum(), plain_again[0])
    loss = fused_policy_gradient(hidden, weight, ids, a, temperature=0.7, chunk=SMALL)[0]
    ours = gradients(loss, (hidden, weight))
    assert all(relative(x, y) < bound for x, y in zip(ours, exact, strict=True))
