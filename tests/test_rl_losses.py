"""Losses against values by hand, REINFORCE, and bookkeeping identities."""

import math

import pytest
import torch
from rl_examples import CLIPS, a_batch, gradient

from drlib.rl.advantages import exponential, uniform
from drlib.rl.losses import (
    LossConfig,
    loss_denominator,
    merge_metrics,
    policy_loss,
)

AGGREGATES = [
    LossConfig(),
    LossConfig(aggregate="sequence"),
    LossConfig(aggregate="constant", constant_tokens=10),
]


def test_loss_and_gradient_by_hand():
    # ratios 1.5 and 0.5, advantages 1 and -1: both clipped, at 1.28 and at 0.8
    logp_BT = torch.tensor([[1.5], [0.5]], dtype=torch.float64).log().requires_grad_()
    zeros_BT, mask_BT = torch.zeros(2, 1, dtype=torch.float64), torch.ones(2, 1, dtype=torch.bool)
    advantages_B = torch.tensor([1.0, -1.0])
    loss, metrics = policy_loss(logp_BT, zeros_BT, advantages_B, mask_BT)
    loss.backward()
    assert loss.item() == pytest.approx(-(1.28 - 0.8) / 2)
    assert logp_BT.grad.tolist() == [[0.0], [0.0]]
    assert metrics["clip_high"] == 0.5 and metrics["clip_low"] == 0.5
    assert metrics["ratio_min"] == pytest.approx(0.5) and metrics["ratio_max"] == pytest.approx(1.5)
    assert metrics["ratio_mean"] == pytest.approx(1.0) and metrics["tokens"] == 2
    assert metrics["abs_dlogp"] == pytest.approx((math.log(1.5) + math.log(2)) / 2)
    # with the signs exchanged, the minimum is the unclipped term
    flipped = gradient(logp_BT, zeros_BT, -advantages_B, mask_BT)
    assert flipped.tolist() == [[pytest.approx(1.5 / 2)], [pytest.approx(-0.5 / 2)]]
    plain = gradient(logp_BT, zeros_BT, advantages_B, mask_BT, LossConfig(clip="none"))
    assert plain.tolist() == [[pytest.approx(-1.5 / 2)], [pytest.approx(0.5 / 2)]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "epsilon_low", "epsilon_high", "clipped"),
    [
        (1.25, 1.0, 0.2, 0.2, True),
        (1.25, 1.0, 0.2, 0.28, False),
        (1.25, -1.0, 0.2, 0.2, False),
        (0.7, -1.0, 0.2, 0.28, True),
        (0.7, -1.0, 0.4, 0.28, False),
        (0.7, 1.0, 0.2, 0.28, False),
    ],
)
def test_ppo_clips_one_side_per_sign(ratio, advantage, epsilon_low, epsilon_high, clipped):
    config = LossConfig(epsilon_low=epsilon_low, epsilon_high=epsilon_high)
    logp_BT = torch.tensor([[ratio]]).log()
    arguments = (torch.zeros(1, 1), torch.tensor([advantage]), torch.ones(1, 1, dtype=torch.bool))
    expected = 0.0 if clipped else -ratio * advantage
    assert gradient(logp_BT, *arguments, config).item() == pytest.approx(expected)
    metrics = policy_loss(logp_BT, *arguments, config)[1]
    assert metrics["clip_high" if advantage > 0 else "clip_low"] == float(clipped)
    assert metrics["clip_low" if advantage > 0 else "clip_high"] == 0.0


@pytest.mark.parametrize("config", AGGREGATES, ids=lambda c: c.aggregate)
@pytest.mark.parametrize("clip", CLIPS)
def test_on_policy_gradient_is_reinforce(config, clip):
    logp_BT, _, advantages_B, mask_BT = a_batch()
    for epsilon in (1e-9, 0.01, 0.9):
        config = LossConfig(clip, config.aggregate, epsilon, epsilon, config.constant_tokens)
        actual = gradient(logp_BT, logp_BT.detach(), advantages_B, mask_BT, config)
        nonempty_B = mask_BT.any(dim=1)
        per_token_BT = mask_BT * advantages_B[:, None]
        if config.aggregate == "token":
            expected = per_token_BT / mask_BT.sum()
        elif config.aggregate == "sequence":
            expected = (
                per_token_BT / mask_BT.sum(dim=1, keepdim=True).clamp(min=1) / nonempty_B.sum()
            )
        else:
            expected = per_token_BT / (10 * nonempty_B.sum())
        torch.testing.assert_close(actual, -expected)


def test_aggregate_token_weights():
    mask_BT = torch.zeros(2, 100, dtype=torch.bool)
    mask_BT[0, :10] = True
    mask_BT[1] = True
    logp_BT, advantages_B = torch.zeros(2, 100), torch.ones(2)
    ratios = []
    for config in AGGREGATES:
        grad = gradient(logp_BT, logp_BT, advantages_B, mask_BT, config)
        ratios.append((grad[0, 0] / grad[1, 0]).item())
    assert ratios == pytest.approx([1.0, 10.0, 1.0])


@pytest.mark.parametrize("config", AGGREGATES, ids=lambda c: c.aggregate)
def test_micro_batches_sum_with_a_global_denominator(config):
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    weights_B = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.5, 1.0])
    whole = gradient(logp_BT, behaviour_BT, advantages_B, mask_BT, config, weights_B=weights_B)
    cuts = [slice(0, 1), slice(1, 2), slice(2, 6)]
    total = sum(loss_denominator(mask_BT[cut], weights_B[cut], config) for cut in cuts)
    parts = [
        gradient(
            logp_BT[cut],
            behaviour_BT[cut],
            advantages_B[cut],
            mask_BT[cut],
            config,
            weights_B=weights_B[cut],
            denominator=total,
        )
        for cut in cuts
    ]
    torch.testing.assert_close(torch.cat(parts), whole)
    wrong = gradient(logp_BT[:1], behaviour_BT[:1], advantages_B[:1], mask_BT[:1], config)
    assert not torch.allclose(wrong, whole[:1])  # control: a per-batch denominator is wrong


@pytest.mark.parametrize("config", AGGREGATES, ids=lambda c: c.aggregate)
def test_weights_exclude_and_duplicate_sequences(config):
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    rows = [0, 2, 2, 3]
    expected = gradient(
        *(t[rows] for t in (logp_BT, behaviour_BT)), advantages_B[rows], mask_BT[rows], config
    )
    weights_B = torch.tensor([1.0, 0.0, 2.0, 1.0, 0.0, 0.0])
    actual = gradient(logp_BT, behaviour_BT, advantages_B, mask_BT, config, weights_B=weights_B)
    torch.testing.assert_close(actual[2], expected[1] + expected[2])
    torch.testing.assert_close(actual[[0, 3]], expected[[0, 3]])
    assert actual[[1, 4, 5]].abs().max() == 0


def test_values_outside_the_mask_do_not_matter():
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    advantages_B[1] = float("nan")
    weights_B = torch.tensor([1.0, 0, 1, 1, 1, 1])
    arguments = dict(weights_B=weights_B)
    before = gradient(logp_BT, behaviour_BT, advantages_B, mask_BT, **arguments)
    loss = policy_loss(logp_BT, behaviour_BT, advantages_B, mask_BT, **arguments)[0]
    for junk in (float("nan"), float("inf"), -1e30):
        corrupted = logp_BT.detach().masked_fill(~mask_BT, junk)
        corrupted[1] = junk
        other = behaviour_BT.masked_fill(~mask_BT, -junk)
        assert policy_loss(corrupted, other, advantages_B, mask_BT, **arguments)[0].equal(loss)
        assert gradient(corrupted, other, advantages_B, mask_BT, **arguments).equal(before)


def test_padding_does_not_matter():
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    pad = torch.nn.functional.pad
    expected, metrics = policy_loss(logp_BT, behaviour_BT, advantages_B, mask_BT)
    padded, padded_metrics = policy_loss(
        pad(logp_BT, (0, 5)), pad(behaviour_BT, (0, 5)), advantages_B, pad(mask_BT, (0, 5))
    )
    torch.testing.assert_close(padded, expected)
    assert padded_metrics == metrics


def test_empty_batch_has_zero_loss_and_gradient():
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    none_B = torch.zeros(6)
    for given in (None, 0.0, 12.0):
        loss, metrics = policy_loss(
            logp_BT, behaviour_BT, advantages_B, mask_BT, weights_B=none_B, denominator=given
        )
        loss.backward()
        assert loss.item() == 0 and metrics["tokens"] == 0
        assert logp_BT.grad.abs().max() == 0
        assert all(math.isfinite(value) for value in metrics.values())


def test_merged_metrics_match_the_full_batch():
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch(shift=0.6)
    whole = policy_loss(logp_BT, behaviour_BT, advantages_B, mask_BT)[1]
    empty = torch.zeros_like(mask_BT[:1])
    parts = [
        policy_loss(logp_BT[cut], behaviour_BT[cut], advantages_B[cut], mask_BT[cut])[1]
        for cut in (slice(0, 2), slice(2, 6))
    ]
    parts.append(policy_loss(logp_BT[:1], behaviour_BT[:1], advantages_B[:1], empty)[1])
    assert whole["clip_high"] > 0 and whole["clip_low"] > 0
    assert merge_metrics(parts) == pytest.approx(whole)
    with pytest.raises(ValueError, match="same keys"):
        merge_metrics([whole, {"tokens": 1.0}])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"clip": "dapo"},
            'clip must be "ppo", "double_sided", "cispo", "log_likelihood" or "none"',
        ),
        ({"level": "turn"}, "level must be"),
        ({"correction": "tis"}, "correction must be"),
        ({"correction_level": "batch"}, "correction_level must be"),
        ({"correction_bounds": (0, 2)}, "need a correction"),
        ({"correction": "mask", "correction_bounds": (2, 3)}, "low <= 1 <= high"),
        ({"correction": "mask", "clip": "double_sided"}, "mismatch: use another clip"),
        ({"kl_coef": -1.0}, "kl_coef"),
        ({"kl_coef": float("nan")}, "kl_coef"),
        ({"kl_estimator": "k4"}, "kl_estimator must be"),
        ({"top_entropy": 0.0}, "top_entropy"),
        ({"top_entropy": 20}, "top_entropy"),
        ({"entropy_scope": "step"}, "entropy_scope must be"),
        ({"denominator": "tokens"}, "denominator must be"),
        ({"aggregate": "mean"}, "aggregate must be"),
        ({"epsilon_low": 1.0}, "epsilon_low"),
        ({"clip": "double_sided", "epsilon_high": 0.0}, "both epsilons above 0"),
        ({"epsilon_low": -0.1}, "epsilon_low"),
        ({"epsilon_high": float("inf")}, "epsilon_high"),
        ({"epsilon_high": float("nan")}, "epsilon_high"),
        ({"aggregate": "constant"}, "constant_tokens"),
        ({"constant_tokens": 5}, "constant_tokens"),
        ({"aggregate": "constant", "constant_tokens": 0}, r"constant_tokens must be in \[1, inf\)"),
    ],
)
def test_invalid_settings_are_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        LossConfig(**settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: a.update(mask_BT=a["mask_BT"].float()), "mask_BT must be boolean"),
        (lambda a: a.update(logp_BT=a["logp_BT"].bfloat16()), "pass logp_BT.float"),
        (lambda a: a.update(mask_BT=a["mask_BT"][:, 1:]), "drop the first token"),
        (lambda a: a.update(behaviour_logp_BT=a["behaviour_logp_BT"][1:]), "behaviour_logp_BT has"),
        (lambda a: a.update(advantages_B=a["advantages_B"][None]), "advantages_B needs"),
        (lambda a: a.update(config=LossConfig(correction="mask")), "needs old_logp_BT"),
        (lambda a: a.update(config=LossConfig(kl_coef=0.1)), "needs reference_logp_BT"),
        (lambda a: a.update(config=LossConfig(top_entropy=0.2)), "needs entropies_BT"),
        (lambda a: a.update(old_logp_BT=a["logp_BT"][:, 1:]), "old_logp_BT has shape"),
        (lambda a: a.update(old_logp_BT=a["logp_BT"] * torch.nan), "old_logp_BT is NaN"),
        (lambda a: a.update(reference_logp_BT=a["logp_BT"] - 500), "reference_logp. reaches"),
        (lambda a: a["advantages_B"].fill_(float("nan")), "advantages_B is NaN"),
        (lambda a: a["behaviour_logp_BT"].fill_(float("nan")), "behaviour_logp_BT is NaN"),
        (lambda a: a["behaviour_logp_BT"].fill_(-500), "same temperature"),
        (lambda a: a.update(logp_BT=a["logp_BT"].detach() * torch.inf), "logp_BT is NaN"),
        (lambda a: a.update(logp_BT=a["logp_BT"][0]), r"shape \[B, T\]"),
        (lambda a: a.update(weights_B=torch.ones(5)), "weights_B needs"),
        (lambda a: a.update(weights_B=-torch.ones(6)), "weights_B must be"),
        (lambda a: a.update(denominator=0), "denominator is 0.0"),
        (lambda a: a.update(denominator=float("nan")), "denominator is nan"),
    ],
)
def test_invalid_batches_are_rejected(change, message):
    names = ("logp_BT", "behaviour_logp_BT", "advantages_B", "mask_BT")
    arguments = dict(zip(names, a_batch(), strict=True))
    change(arguments)
    with pytest.raises(ValueError, match=message):
        policy_loss(**arguments)


# ---------------------------------------------------------------- offline and random rewards


def test_log_likelihood_ignores_the_behaviour_policy():
    logp_BT, behaviour_BT, advantages_B, mask_BT = a_batch()
    config = LossConfig(clip="log_likelihood")
    actual = gradient(logp_BT, behaviour_BT, advantages_B, mask_BT, config)
    torch.testing.assert_close(actual, -(mask_BT * advantages_B[:, None]) / mask_BT.sum())


@pytest.mark.parametrize(
    ("estimator", "expected"), [(uniform, 0.5), (exponential, math.exp(2) / (math.exp(2) + 1))]
)
def test_reward_weighted_cloning_exceeds_cloning_on_mixed_data(estimator, expected):
    """Half of the data is the good arm. Cloning copies this share; weights raise it to e^2 : 1."""
    theta_V = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    behaviour_B1 = torch.full((2, 1), 0.5, dtype=torch.float64).log()
    rewards_B = torch.tensor([1.0, 0.0], dtype=torch.float64)
    weights_B = estimator(rewards_B, torch.zeros(2, dtype=torch.long))
    mask_B1 = torch.ones(2, 1, dtype=torch.bool)
    for _ in range(400):
        logp_B1 = theta_V.log_softmax(0)[:, None]
        config = LossConfig(clip="log_likelihood")
        loss, _ = policy_loss(logp_B1, behaviour_B1, weights_B, mask_B1, config)
        (gradient_V,) = torch.autograd.grad(loss, theta_V)
        theta_V = (theta_V - gradient_V).detach().requires_grad_()
    assert (theta_V.softmax(0) @ rewards_B).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("epsilons", [(0.2, 0.2), (0.1, 0.28)])
def test_clip_bias_of_a_random_reward_by_enumeration(seed, epsilons):
    """Spurious Rewards (arXiv 2506.10947), appendix B.1.2: the reward knows nothing of the action.

    Without a clip the expected gradient is 0. With it, it is mu E[grad r (1{r < 1 - low} - 1{r > 1
    + high})] with mu = P(A > 0) E[A | A > 0]: towards actions that have become rarer, and away
    from those that have become more frequent.
    """
    low, high = epsilons
    rng = torch.Generator().manual_seed(seed)
    old_V = torch.randn(5, generator=rng, dtype=torch.float64).log_softmax(0)
    theta_V = (old_V + 0.5 * torch.randn(5, generator=rng, dtype=torch.float64)).requires_grad_()
    # every action with every advantage: -1 with probability 3/5, 1.5 with 2/5
    advantages_A = torch.tensor([-1.0, 1.5], dtype=torch.float64)
    chances_A = torch.tensor([0.6, 0.4], dtype=torch.float64)
    mu = 0.4 * 1.5

    def expected_gradient(clip):
        loss, _ = policy_loss(
            theta_V.log_softmax(0).repeat(2)[:, None],
            old_V.repeat(2)[:, None],
            advantages_A.repeat_interleave(5),
            torch.ones(10, 1, dtype=torch.bool),
            LossConfig(clip=clip, epsilon_low=low, epsilon_high=high),
            weights_B=old_V.exp().repeat(2) * chances_A.repeat_interleave(5),
            denominator=1.0,
        )
        return torch.autograd.grad(-loss, theta_V)[0]

    ratio_V = (theta_V.log_softmax(0) - old_V).exp()
    sides_V = (ratio_V < 1 - low).double() - (ratio_V > 1 + high).double()
    assert sides_V.abs().sum() > 0
    (bias_V,) = torch.autograd.grad(mu * (old_V.exp() * ratio_V * sides_V).sum(), theta_V)
    torch.testing.assert_close(expected_gradient("none"), torch.zeros_like(theta_V))
    torch.testing.assert_close(expected_gradient("ppo"), bias_V)
    assert bias_V.norm() > 0.01
