"""All options of `policy_loss`: gradient tables, identities by enumeration, combinations."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rl_examples import CLIPS, a_batch, gradient

from drlib.rl.advantages import leave_one_out, share_over_segments
from drlib.rl.divergences import top_entropy_mask
from drlib.rl.losses import LossConfig, kept_tokens, loss_denominator, merge_metrics, policy_loss


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    ("ratio", "ppo", "double_sided", "cispo"),  # d objective / d log pi at advantage (+1, -1)
    [
        (0.5, (0.5, 0), (0, 0), (0.5, -0.5)),
        (1.1, (1.1, -1.1), (1.1, -1.1), (1.1, -1.1)),
        (1.6, (0, -1.6), (0, 0), (1.28, -1.28)),
    ],
)
def test_gradient_by_ratio_and_sign(ratio, ppo, double_sided, cispo, advantage):
    behaviour_11 = torch.tensor([[-3.0]], dtype=torch.float64)
    arguments = behaviour_11, torch.tensor([advantage]), torch.ones(1, 1).bool()
    for clip, expected in (("ppo", ppo), ("double_sided", double_sided), ("cispo", cispo)):
        found = -gradient(behaviour_11 + math.log(ratio), *arguments, LossConfig(clip))
        assert found.item() == pytest.approx(expected[advantage < 0])
        metrics = policy_loss(behaviour_11 + math.log(ratio), *arguments, LossConfig(clip))[1]
        lost = found.item() == 0 or (clip == "cispo" and ratio > 1.28)
        assert metrics["clip_high"] + metrics["clip_low"] == lost
        if clip == "double_sided":
            side = "clip_high" if ratio > 1 else "clip_low"
            assert metrics[f"{side}_positive"] == (lost and advantage > 0)


def test_double_sided_needs_the_stop_gradient():
    logp_11 = torch.tensor([[-3.0]], requires_grad=True)  # a token of probability 0.05
    (logp_11.exp() / math.exp(-3.1) * logp_11).sum().backward()  # as printed, eq. 3: f(r) A log pi
    ratio = math.exp(0.1)
    assert logp_11.grad.item() == pytest.approx(ratio * (1 - 3.0), rel=1e-4)  # the wrong sign
    arguments = torch.tensor([[-3.1]]), torch.ones(1), torch.ones(1, 1).bool()
    ours = -gradient(logp_11, *arguments, LossConfig("double_sided"))
    assert ours.item() == pytest.approx(ratio, rel=1e-4)


def test_sequence_ratio_matches_gspo_gradient():
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    config = LossConfig("none", "sequence", level="sequence")
    found = gradient(logp_BT, behaviour_BT, advantages_B, mask_BT, config)
    tokens_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
    mean_B1 = ((logp_BT - behaviour_BT) * mask_BT).sum(dim=1, keepdim=True) / tokens_B1
    expected = mean_B1.exp() * advantages_B[:, None] * mask_BT / tokens_B1  # s A mean grad log pi
    live = mask_BT.any(dim=1).sum()
    torch.testing.assert_close(found, -expected.detach() / live)
    # clipping drops whole sequences
    narrow = LossConfig("double_sided", "sequence", 0.05, 0.05, level="sequence")
    kept_B1 = (mean_B1.exp() - 1).abs() < 0.05
    found = gradient(logp_BT, behaviour_BT, advantages_B, mask_BT, narrow)
    per_token = mean_B1.exp() * advantages_B[:, None] * mask_BT / tokens_B1 * kept_B1
    assert 0 < kept_B1.sum() < 6
    torch.testing.assert_close(found, -per_token.detach() / live)


@pytest.mark.parametrize("clip", CLIPS)
def test_dropped_tokens_have_no_sequence_gradient(clip):
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    for aggregate in ("token", "sequence"):
        config = LossConfig(clip, aggregate, 0.9, 9.0, level="sequence", top_entropy=0.4)
        entropies_BT = torch.rand(mask_BT.shape, generator=torch.Generator().manual_seed(5))
        kept_BT = kept_tokens(mask_BT, config, entropies_BT=entropies_BT)
        found = gradient(
            logp_BT, behaviour_BT, advantages_B, mask_BT, config, entropies_BT=entropies_BT
        )
        assert 0 < kept_BT.sum() < mask_BT.sum()
        assert (found[kept_BT] != 0).any() and (found[~kept_BT] == 0).all()


def test_clipping_favours_likely_actions_under_random_rewards():
    """Spurious Rewards, app. B: mu E[grad r (1{r < 1-e} - 1{r > 1+e})], all outcomes enumerated."""
    coins = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3).double()  # rewards of a group
    advantages_K = torch.stack([leave_one_out(row, [0, 0, 0])[0] for row in coins])
    logits_V = torch.tensor([1.2, 0.1, -0.5, -1.0], dtype=torch.float64, requires_grad=True)
    old_V = torch.tensor([0.5, 0.2, 0.2, 0.1], dtype=torch.float64)
    logp_V, ratio_V = logits_V.log_softmax(0), logits_V.softmax(0) / old_V
    low, high = ratio_V < 0.8, ratio_V > 1.2
    assert low.any() and high.any()
    mu = advantages_K.clamp(min=0).mean()
    bias = mu * (old_V * ratio_V * (low.double() - high.double())).sum()
    expected = torch.autograd.grad(bias, logits_V, retain_graph=True)[0]
    rows = torch.cartesian_prod(torch.arange(4), torch.arange(8))
    arguments = (old_V.log()[rows[:, :1]], advantages_K[rows[:, 1]], torch.ones(32, 1).bool())
    for clip, wanted in (("ppo", expected), ("none", torch.zeros_like(expected))):
        loss, _ = policy_loss(
            logp_V[rows[:, :1]],
            *arguments,
            LossConfig(clip, "token", 0.2, 0.2),
            weights_B=old_V[rows[:, 0]] / 8,
            denominator=1.0,
        )
        found = -torch.autograd.grad(loss, logits_V, retain_graph=True)[0]
        torch.testing.assert_close(found, wanted)


def test_old_log_probs_separate_clipping_and_correction():
    behaviour_BT = torch.tensor([[1.0, 1.0, 1.0, 1.0]]).double().log()
    old_BT = torch.tensor([[1.5, 3.0, 0.4, 1.0]]).double().log()  # old / behaviour
    logp_BT = old_BT + torch.tensor([[1.1, 1.1, 1.1, 2.0]]).double().log()
    arguments = logp_BT, behaviour_BT, torch.ones(1), torch.ones(1, 4).bool()
    expected = {
        "none": [1.1, 1.1, 1.1, 0],
        "truncate": [1.65, 2.2, 0.44, 0],
        "mask": [1.65, 0, 0.44, 0],
        "icepop": [1.65, 0, 0, 0],
    }
    for correction, pushes in expected.items():
        config = LossConfig(correction=correction, denominator="all")
        found = -4 * gradient(*arguments, config, old_logp_BT=old_BT)
        assert found[0].tolist() == pytest.approx(pushes)
    _, metrics = policy_loss(*arguments, config, old_logp_BT=old_BT)
    assert metrics["dropped_correction"] == 0.5 and metrics["clip_high"] == 0.25
    assert metrics["ratio_max"] == pytest.approx(2) and metrics["mismatch_max"] == pytest.approx(3)
    kept = gradient(*arguments, LossConfig(correction="icepop"), old_logp_BT=old_BT)
    assert -kept[0, 0].item() == pytest.approx(1.65 / 2)  # of the two that are kept
    # against the rollout engine itself the old log-probs only inform
    for clip in CLIPS:
        alone = gradient(*arguments, LossConfig(clip))
        beside = gradient(*arguments, LossConfig(clip), old_logp_BT=behaviour_BT)
        assert alone.equal(beside)
    double_sided = gradient(*arguments, LossConfig("double_sided"), old_logp_BT=old_BT)
    assert double_sided.equal(gradient(*arguments, LossConfig("double_sided")))


@pytest.mark.parametrize("scope", ["batch", "sequence"])
def test_only_top_entropy_tokens_have_gradient(scope):
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    entropies_BT = torch.rand(6, 7, generator=torch.Generator().manual_seed(1))
    arguments = behaviour_BT, advantages_B, mask_BT
    chosen_BT = top_entropy_mask(entropies_BT, mask_BT, 0.2, scope)
    everything = gradient(logp_BT, *arguments)
    found = {}
    for denominator in ("kept", "all"):
        config = LossConfig(top_entropy=0.2, entropy_scope=scope, denominator=denominator)
        found[denominator] = gradient(logp_BT, *arguments, config, entropies_BT=entropies_BT)
        metrics = policy_loss(logp_BT, *arguments, config, entropies_BT=entropies_BT)[1]
        dropped = 1 - (chosen_BT.sum() / mask_BT.sum()).item()
        assert metrics["dropped_entropy"] == pytest.approx(dropped)
    torch.testing.assert_close(found["all"], everything * chosen_BT)
    scale = mask_BT.sum() / chosen_BT.sum()
    torch.testing.assert_close(found["kept"], everything * chosen_BT * scale)


def test_per_token_advantages():
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    for clip in CLIPS:
        each = gradient(logp_BT, behaviour_BT, advantages_B, mask_BT, LossConfig(clip))
        spread_BT = advantages_B[:, None].expand(6, 7).masked_fill(~mask_BT, math.nan)
        assert gradient(logp_BT, behaviour_BT, spread_BT, mask_BT, LossConfig(clip)).equal(each)
    # two trajectories in one packed row
    row = [x.reshape(1, -1) for x in (logp_BT, behaviour_BT, spread_BT, mask_BT)]
    torch.testing.assert_close(gradient(*row, LossConfig(clip)).reshape(6, 7), each)


def test_resum_segments_share_an_advantage():
    advantages_S = share_over_segments(leave_one_out([1.0, 0.0], [0, 0]), [0, 0, 0, 1])
    logp_ST, mask_ST = torch.zeros(4, 2), torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]).bool()
    config = LossConfig(aggregate="sequence")
    assert loss_denominator(mask_ST, None, config) == 4  # 1 / sum n_g
    found = gradient(logp_ST, logp_ST, advantages_S, mask_ST, config)
    assert (-4 * found).tolist() == [[0.5, 0.5], [1, 0], [0.5, 0.5], [-0.5, -0.5]]
    # with the token mean, splitting a trajectory changes nothing
    whole, whole_mask = torch.zeros(2, 6), torch.tensor([[1] * 5 + [0], [1, 1] + [0] * 4]).bool()
    uncut = gradient(whole, whole, torch.tensor([1.0, -1.0]), whole_mask)[whole_mask]
    assert gradient(logp_ST, logp_ST, advantages_S, mask_ST)[mask_ST].equal(uncut)


SWITCHES = st.fixed_dictionaries(
    {
        "clip": st.sampled_from(CLIPS),
        "level": st.sampled_from(["token", "sequence"]),
        "aggregate": st.sampled_from(["token", "sequence", "constant"]),
        "correction": st.sampled_from(["none", "truncate", "mask", "icepop", "geometric"]),
        "correction_level": st.sampled_from(["token", "sequence"]),
        "kl_coef": st.sampled_from([0.0, 0.1]),
        "kl_estimator": st.sampled_from(["k1", "k2", "k3"]),
        "kl_unbiased": st.booleans(),
        "top_entropy": st.sampled_from([1.0, 0.4]),
        "denominator": st.sampled_from(["kept", "all"]),
    }
)


@given(SWITCHES, st.integers(0, 10**6))
@settings(max_examples=120)
def test_options_are_invariant_to_splits_padding_and_junk(chosen, seed):
    if chosen["clip"] == "double_sided":
        chosen["correction"] = "none"
    if chosen["aggregate"] == "constant":
        chosen["constant_tokens"] = 10
    config = LossConfig(**chosen, entropy_scope="sequence")  # a batch's depends on the split
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch(seed)
    rng = torch.Generator().manual_seed(seed)
    weights_B = torch.randint(0, 3, (6,), generator=rng).double()
    tensors = {"behaviour_logp_BT": behaviour_BT, "mask_BT": mask_BT}
    for name in ("old_logp_BT", "reference_logp_BT", "entropies_BT"):
        noise_BT = torch.randn(6, 7, generator=rng, dtype=torch.float64)
        tensors[name] = behaviour_BT + 0.3 * noise_BT
    used_BT = mask_BT & (weights_B > 0)[:, None]
    names = ("behaviour_logp_BT", "old_logp_BT", "entropies_BT")
    counted = kept_tokens(used_BT, config, **{n: tensors[n] for n in names})
    counted = counted if config.denominator == "kept" else used_BT

    def run(rows, junk=0.0, pad=0, denominator=None):
        leaf = logp_BT.detach()[rows].clone().requires_grad_()
        found = {k: v[rows] for k, v in tensors.items()}
        outside_BT = ~used_BT[rows]
        found = {
            k: v if k == "mask_BT" else torch.where(outside_BT, v + junk, v)
            for k, v in found.items()
        }
        found["logp_BT"] = torch.where(outside_BT, junk, leaf)
        found = {k: torch.nn.functional.pad(v, (0, pad)) for k, v in found.items()}
        loss, metrics = policy_loss(
            advantages_B=advantages_B[rows],
            weights_B=weights_B[rows],
            config=config,
            denominator=denominator,
            **found,
        )
        loss.backward()
        return leaf.grad, metrics

    whole, metrics = run(slice(0, 6))
    assert torch.isfinite(whole).all() and all(math.isfinite(v) for v in metrics.values())
    assert (whole[~used_BT] == 0).all()
    assert run(slice(0, 6), junk=math.nan)[0].equal(whole)
    torch.testing.assert_close(run(slice(0, 6), pad=3)[0], whole)
    total = loss_denominator(counted, weights_B, config)
    parts = [run(cut, denominator=total or None) for cut in (slice(0, 1), slice(1, 4), slice(4, 6))]
    torch.testing.assert_close(torch.cat([grad for grad, _ in parts]), whole)
    assert merge_metrics([m for _, m in parts]) == pytest.approx(metrics)
