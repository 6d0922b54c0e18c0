"""KL estimators, corrections and token selection against exact values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_examples import F64, derivative, logs, two_policies

from drlib.rl.divergences import (
    importance_correction,
    kl_estimate,
    mismatch_metrics,
    top_entropy_mask,
    weight_metrics,
)
from drlib.rl.losses import LossConfig, policy_loss

# ---------------------------------------------------------------------------------------------
# KL


def test_kl_estimators_by_hand():
    logp, reference = math.log(0.5), math.log(0.25)
    values = [
        kl_estimate(torch.tensor(logp), torch.tensor(reference), k).item()
        for k in ("k1", "k2", "k3")
    ]
    assert values == pytest.approx([math.log(2), math.log(2) ** 2 / 2, 0.5 - 1 + math.log(2)])


@pytest.mark.parametrize("seed", range(5))
def test_kl_estimators_in_expectation(seed):
    logits_V, logp_V, reference_V = two_policies(seed)
    exact = (logp_V.exp() * (logp_V - reference_V)).sum()
    backward = (reference_V.exp() * (reference_V - logp_V)).sum()
    p_V = logp_V.exp().detach()
    k1_V, k2_V, k3_V = (kl_estimate(logp_V, reference_V, k) for k in ("k1", "k2", "k3"))
    assert (p_V * k1_V).sum().item() == pytest.approx(exact.item())
    assert (p_V * k3_V).sum().item() == pytest.approx(exact.item())
    assert (k3_V >= 0).all() and (k1_V < 0).any()
    # as losses on samples: k1 has no gradient, k2 the KL's, k3 that of the reverse KL
    close = torch.testing.assert_close
    close(derivative((p_V * k1_V).sum(), logits_V), torch.zeros(6, dtype=F64))
    close(derivative((p_V * k2_V).sum(), logits_V), derivative(exact, logits_V))
    close(derivative((p_V * k3_V).sum(), logits_V), derivative(backward, logits_V))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_unbiased_kl_gradient_is_exact_off_policy(estimator):
    logits_V, logp_V, reference_V = two_policies(3)
    behaviour_V = torch.linspace(-1, 1, 6, dtype=F64).log_softmax(0)
    exact = (logp_V.exp() * (logp_V - reference_V)).sum()
    found = {}
    for unbiased in (True, False):
        config = LossConfig(kl_coef=0.7, kl_estimator=estimator, kl_unbiased=unbiased)
        loss, metrics = policy_loss(
            logp_V[:, None],
            behaviour_V[:, None],
            torch.zeros(6),
            torch.ones(6, 1).bool(),
            config,
            reference_logp_BT=reference_V[:, None],
            weights_B=behaviour_V.exp(),
            denominator=1.0,
        )
        found[unbiased] = derivative(loss, logits_V)
    torch.testing.assert_close(found[True], 0.7 * derivative(exact, logits_V))
    assert not torch.allclose(found[False], found[True], rtol=1e-2)
    estimates_V = kl_estimate(logp_V, reference_V, estimator)
    assert metrics["kl"] == pytest.approx(estimates_V.mean().item())


def test_kl_rejects_invalid_inputs():
    with pytest.raises(ValueError, match='kl_estimator must be "k1"'):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")
    with pytest.raises(ValueError, match=r"\|logp - reference_logp\| reaches 90 nats"):
        kl_estimate(torch.zeros(1), torch.full((1,), -90.0), "k3")
    with pytest.raises(ValueError, match="reaches nan nats"):
        kl_estimate(torch.full((1,), -torch.inf), torch.full((1,), -torch.inf), "k1")


# ---------------------------------------------------------------------------------------------
# engine mismatch


def corrected(kind, **settings):
    """Return the weights of one sequence of ratios 0.25, 0.8, 1, 1.25, 4 and a masked 1000."""
    old_BT = logs([0.25, 0.8, 1.0, 1.25, 4.0, 1000.0])
    mask_BT = torch.tensor([[True] * 5 + [False]])
    weights = importance_correction(old_BT, torch.zeros_like(old_BT), mask_BT, kind, **settings)
    return weights[0].tolist()


@pytest.mark.parametrize(
    ("kind", "settings", "expected"),
    [
        ("truncate", {}, [0.25, 0.8, 1, 1.25, 2, 0]),
        ("truncate", {"bounds": (0.5, 3)}, [0.5, 0.8, 1, 1.25, 3, 0]),
        ("mask", {}, [0.25, 0.8, 1, 1.25, 0, 0]),
        ("icepop", {}, [0, 0.8, 1, 1.25, 0, 0]),
        ("icepop", {"bounds": (0.9, 1.25 + 1e-9)}, [0, 0, 1, 1.25, 0, 0]),
        ("geometric", {}, [1, 1, 1, 1, 1, 0]),  # the ratios multiply to 1
        ("mask", {"level": "sequence"}, [1, 1, 1, 1, 1, 0]),
    ],
)
def test_corrections_by_hand(kind, settings, expected):
    assert corrected(kind, **settings) == pytest.approx(expected)


def test_sequence_corrections_apply_to_whole_sequences():
    old_BT = torch.full((2, 100), 0.02, dtype=F64)
    old_BT[1] = 0.005
    zeros_BT, mask_BT = torch.zeros_like(old_BT), torch.ones(2, 100).bool()
    weights = importance_correction(old_BT, zeros_BT, mask_BT, "geometric")
    assert weights.tolist() == [[0.0] * 100, [1.0] * 100]  # means e^.02 and e^.005, bound 1.01
    product = importance_correction(old_BT, zeros_BT, mask_BT, "truncate", level="sequence")
    assert product[0].tolist() == [2.0] * 100  # e^2 capped
    assert product[1].tolist() == pytest.approx([math.exp(0.5)] * 100)


def test_only_the_product_ratio_rejects_long_sequences():
    rng = torch.Generator().manual_seed(0)
    accepted = {"product": [], "geometric": []}
    for length in (50, 800, 12_800):
        # zero-mean noise of the log ratio: the mismatch per token does not depend on the length
        noise_BT = 0.02 * torch.randn(200, length, generator=rng)
        arguments = noise_BT, torch.zeros_like(noise_BT), torch.ones_like(noise_BT).bool()
        product = importance_correction(*arguments, "icepop", level="sequence")
        accepted["product"].append((product > 0).double().mean().item())
        geometric = importance_correction(*arguments, "geometric")
        accepted["geometric"].append((geometric > 0).double().mean().item())
    assert accepted["product"][0] == 1.0 and accepted["product"][2] < 0.35
    assert accepted["geometric"][0] > 0.99 and accepted["geometric"][1:] == [1.0, 1.0]


def test_mismatch_and_effective_sample_size():
    old_BT, zeros_BT = logs([2.0, 0.5, 9.0]), torch.zeros(1, 3, dtype=F64)
    mask_BT = torch.tensor([[True, True, False]])
    metrics = mismatch_metrics(old_BT, zeros_BT, mask_BT)
    assert metrics == {"mismatch_max": pytest.approx(2), "mismatch_kl": pytest.approx(0.25)}
    assert weight_metrics(old_BT, mask_BT)["ess"] == pytest.approx(1.25**2 / 2.125)
    one_BT = logs([1.0, 1e-30, 1e-30, 1e-30])
    assert weight_metrics(one_BT, torch.ones(1, 4).bool())["ess"] == pytest.approx(0.25)
    assert set(weight_metrics(old_BT, ~mask_BT & mask_BT).values()) == {1.0}
    # k3 on the behaviour's samples estimates KL(behaviour || old)
    _, logp_V, other_V = two_policies(1)
    kl = sum(
        p.exp()
        * mismatch_metrics(o[None, None], p[None, None], torch.ones(1, 1).bool())["mismatch_kl"]
        for p, o in zip(logp_V.detach(), other_V)
    )
    assert kl.item() == pytest.approx((logp_V.exp() * (logp_V - other_V)).sum().item())


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("tis", {}, 'correction must be "truncate"'),
        ("mask", {"bounds": (1.1, 2.0)}, "low <= 1 <= high"),
        ("mask", {"bounds": (0.5, math.inf)}, "low <= 1 <= high"),
        ("mask", {"level": "batch"}, "level must be"),
    ],
)
def test_invalid_corrections_are_rejected(kind, settings, message):
    with pytest.raises(ValueError, match=message):
        corrected(kind, **settings)


# ---------------------------------------------------------------------------------------------
# token selection

ENTROPIES = st.lists(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.5, 0.5, 1.0, 2.0]), st.booleans()), min_size=3, max_size=3
    ),
    min_size=1,
    max_size=5,
)


def select_by_brute_force(entropies_BT, mask_BT, per_hundred, scope):
    at = [(b, t) for b in range(len(mask_BT)) for t in range(mask_BT.shape[1]) if mask_BT[b, t]]
    rows = [at] if scope == "batch" else [[x for x in at if x[0] == b] for b in range(len(mask_BT))]
    kept = set()
    for row in rows:
        row.sort(key=lambda x: (-entropies_BT[x].item(), x))
        kept |= set(row[: -(-per_hundred * len(row) // 100)])
    return kept


@given(ENTROPIES, st.integers(1, 100), st.sampled_from(["batch", "sequence"]))
@settings(max_examples=150)
def test_top_entropy_share_is_exact_and_ties_prefer_earlier(batch, per_hundred, scope):
    entropies_BT = torch.tensor([[h for h, _ in row] for row in batch])
    mask_BT = torch.tensor([[m for _, m in row] for row in batch])
    selected_BT = top_entropy_mask(entropies_BT, mask_BT, per_hundred / 100, scope)
    assert selected_BT.dtype == torch.bool
    kept = {tuple(x) for x in selected_BT.nonzero().tolist()}
    assert kept == select_by_brute_force(entropies_BT, mask_BT, per_hundred, scope)


def test_top_entropy_share_is_decimal_exact():
    ones = torch.ones(1, 25)
    assert top_entropy_mask(ones, ones.bool(), 0.28).sum() == 7  # 0.28 * 25 = 7.000000000000001
    assert top_entropy_mask(ones, ones.bool(), 1.0).all()
    tied = torch.zeros(50, 100)  # large enough that an unstable sort would show
    assert top_entropy_mask(tied, tied == 0, 0.1).flatten().int().tolist() == [1] * 500 + [0] * 4500
    assert top_entropy_mask(ones, ~ones.bool(), 0.2).sum() == 0
    assert top_entropy_mask(torch.zeros(0, 4), torch.zeros(0, 4).bool(), 0.2).shape == (0, 4)


def test_tokens_outside_the_mask_are_never_selected():
    entropies_BT = torch.tensor([[math.nan, 1.0, math.inf, 0.5]])
    mask_BT = torch.tensor([[False, True, False, True]])
    for scope in ("batch", "sequence"):
        selected_BT = top_entropy_mask(entropies_BT, mask_BT, 0.5, scope)
        assert selected_BT.tolist() == [[False, True, False, False]]
    with pytest.raises(ValueError, match="entropies_BT is NaN"):
        top_entropy_mask(entropies_BT, ~mask_BT, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.ones(1, 2), torch.ones(1, 2).bool(), 0.0), r"share \(top_entropy\) must be"),
        ((torch.ones(1, 2), torch.ones(1, 2).bool(), 20), r"share \(top_entropy\) must be"),
        ((torch.ones(1, 2), torch.ones(1, 2).bool(), 0.2, "step"), "entropy_scope must be"),
        ((torch.ones(1, 2), torch.ones(1, 2), 0.2), "mask_BT must be boolean"),
        ((torch.ones(1, 2), torch.ones(1, 3).bool(), 0.2), "mask_BT has shape"),
        ((torch.ones(2), torch.ones(2).bool(), 0.2), "entropies_BT must be float"),
    ],
)
def test_invalid_selections_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        top_entropy_mask(*arguments)
