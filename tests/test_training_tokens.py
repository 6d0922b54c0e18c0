"""Rollout weights in the loss, and the selection of tokens by entropy.

Run: python -m pytest tests/test_training_tokens.py
"""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from drlib.rl.losses import policy_loss
from drlib.training.batch import RolloutBatch, compute_advantages
from drlib.training.distributed import Ranks
from drlib.training.grpo import check_rl_settings
from drlib.training.learner import (
    accumulate_gradients,
    loss_config,
    mark_top_share,
    select_learning_tokens,
)
from tests.loop_examples import cold_start, learned, rollout_shards, settings

start = cold_start
batch = rollout_shards
USUAL = {"rl.filter.overlong": "keep", "trainer.balance_coef": 0.0}


def make_batch(trajectories, config, weights=None) -> RolloutBatch:
    advantages_N, weights_N, _ = compute_advantages(trajectories, config)
    return RolloutBatch(trajectories, advantages_N, weights_N if weights is None else weights)


def gradient_of(start, shares, config) -> tuple[dict, torch.Tensor]:
    """Return (metrics, the gradient in one vector) of one update from the cold start."""
    model = copy.deepcopy(start.policy)
    row = accumulate_gradients(model, shares, config, Ranks(), start.chat.tokenizer.pad_token_id)
    return row, torch.cat([p.grad.flatten() for p in model.parameters()])


def assert_equal_gradients(ours, theirs):
    assert (ours - theirs).norm() < 1e-5 * theirs.norm() and theirs.norm() > 0


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_weight_two_matches_two_copies(start, batch, aggregate):
    config = settings(**USUAL, rl__loss__aggregate=aggregate)
    once = make_batch(batch[0], config)
    twice = torch.ones(len(batch[0]))
    twice[:6] = 2.0
    weighed = replace(once, weights_N=twice)
    both = [*range(len(batch[0])), *range(6)]
    copies = replace(once.of(both), weights_N=torch.ones(len(both)))
    row, ours = gradient_of(start, [weighed], config)
    _, theirs = gradient_of(start, [copies], config)
    assert_equal_gradients(ours, theirs)
    assert row["tokens"] == sum(int(t.generated.sum()) for t in batch[0])  # each counted once
    assert not torch.allclose(ours, gradient_of(start, [once], config)[1])


def test_weights_are_scale_invariant(start, batch):
    config = settings(**USUAL)
    once = make_batch(batch[0], config)
    half = replace(once, weights_N=torch.full((len(batch[0]),), 0.5))
    ours, theirs = (gradient_of(start, [share], config)[1] for share in (half, once))
    assert_equal_gradients(ours, theirs)


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf])
def test_invalid_weights_are_rejected(batch, wrong):
    weights = torch.ones(len(batch[0]))
    weights[3] = wrong
    with pytest.raises(ValueError, match="finite and at least 0"):
        make_batch(batch[0], settings(), weights)


def test_mark_top_share_ranks_across_sequences():
    scores = [np.float32([0.1, 0.9]), np.float32([]), np.float32([0.5, 0.9, 0.9])]
    found = mark_top_share(scores, 0.4)  # 2 of 5
    assert [mask.tolist() for mask in found] == [[False, True], [], [False, True, False]]
    found = mark_top_share(scores, 0.41)  # ceil(2.05) = 3
    assert [mask.tolist() for mask in found] == [[False, True], [], [False, True, True]]
    assert mark_top_share([np.float32([])], 0.2)[0].tolist() == []


def test_batch_scope_ranks_over_all_shards(start, batch):
    """Compare with sorting all entropies; the shard of a rollout does not matter."""
    config = settings(**USUAL, rl__loss__top_entropy=0.2)
    shares = [make_batch(shard, config) for shard in batch]
    found = select_learning_tokens(shares, "batch", config, Ranks())
    everything = np.concatenate([t.entropies[t.generated] for shard in batch for t in shard])
    masks = [m[t.generated] for s in found for m, t in zip(s.learning, s.trajectories)]
    chosen = np.concatenate(masks)
    assert chosen.sum() == math.ceil(0.2 * len(everything))
    assert everything[chosen].min() >= everything[~chosen].max()
    outside = [m[~t.generated].any() for s in found for m, t in zip(s.learning, s.trajectories)]
    assert not any(outside)
    assert select_learning_tokens(shares, "mini", config, Ranks()) == shares


def test_top_entropy_gradient_matches_policy_loss(start, batch):
    """`policy_loss` ranks the entropies of one padded batch itself."""
    config = settings(**USUAL, rl__loss__top_entropy=0.3, rl__loss__entropy_scope="mini")
    trajectories = batch[0] + batch[1]
    row, ours = gradient_of(
        start, [make_batch(batch[0], config), make_batch(batch[1], config)], config
    )

    def padded(values):
        return pad_sequence([torch.as_tensor(v) for v in values], batch_first=True)[:, 1:]

    model = copy.deepcopy(start.policy)
    ids = pad_sequence([torch.as_tensor(t.token_ids).long() for t in trajectories], True)
    logp = model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
    logp = logp[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    advantages, weights, _ = compute_advantages(trajectories, config)
    mask = padded([t.generated for t in trajectories])
    loss, metrics = policy_loss(
        logp,
        logp.detach(),
        advantages,
        mask,
        loss_config(config),
        weights_B=weights,
        entropies_BT=padded([t.entropies for t in trajectories]),
    )
    loss.backward()
    theirs = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert_equal_gradients(ours, theirs)
    assert row["learning_tokens"] == math.ceil(0.3 * int(mask.sum()))
    assert metrics["dropped_entropy"] == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize("scope", ["batch", "mini", "micro"])
def test_denominator_all_scales_the_gradient_by_the_share(start, batch, tmp_path, scope):
    rows = {}
    for denominator in ("kept", "all"):
        changes = {"rl.loss.top_entropy": 0.25, "rl.loss.denominator": denominator}
        changes |= {"rl.loss.entropy_scope": scope, **USUAL}
        rows[denominator] = learned(start, batch, tmp_path / denominator, **changes)[1]
    kept, every = rows["kept"], rows["all"]
    assert kept["tokens"] == kept["learning_tokens"] == every["learning_tokens"] < every["tokens"]
    share = kept["tokens"] / every["tokens"]
    assert share == pytest.approx(0.25, abs=0.01)
    assert every["grad_norm"] == pytest.approx(share * kept["grad_norm"], rel=1e-4)


def test_scopes_and_kinds_select_different_tokens(start, batch, tmp_path):
    weights = {}
    for changes in (
        {"rl.loss.top_entropy": 1.0},
        {"rl.loss.entropy_scope": "micro"},
        {"rl.loss.entropy_scope": "batch"},
        {"rl.loss.entropy_tokens": "bottom"},
        {"rl.loss.entropy_tokens": "random"},
        {"rl.loss.entropy_tokens": "random", "seed": 1},
    ):
        name = "-".join(map(str, [*changes, *changes.values()]))
        changes = {"rl.loss.top_entropy": 0.2, **USUAL, **changes}
        weights[name] = learned(start, batch, tmp_path / name, **changes)[0]
    vectors = list(weights.values())
    for i, batch_indices in enumerate(vectors):
        assert not any(torch.equal(batch_indices, other) for other in vectors[:i])


def test_top_and_bottom_tokens_are_complementary(start, batch):
    config = settings(**USUAL, rl__loss__top_entropy=0.2)
    masks = {}
    for kind, share in (("top", 0.2), ("bottom", 0.8), ("random", 0.2)):
        of_kind = config.derive(rl__loss__top_entropy=share, rl__loss__entropy_tokens=kind)
        (found,) = select_learning_tokens(
            [make_batch(batch[0], of_kind)], "batch", of_kind, Ranks()
        )
        masks[kind] = np.concatenate(found.learning)
    n = sum(int(t.generated.sum()) for t in batch[0])
    assert masks["top"].sum() == masks["random"].sum() == math.ceil(0.2 * n)
    assert (masks["top"] & masks["bottom"]).sum() <= 1  # both are rounded up
    assert 0.1 < (masks["top"] & masks["random"]).sum() / masks["top"].sum() < 0.3


def test_micro_scope_selects_the_share_per_micro_batch(start, batch):
    """Each micro-batch selects its own share; rollouts without advantage count as well."""
    from drlib.training import learner

    config = settings(**USUAL, rl__loss__top_entropy=0.2, rl__loss__entropy_scope="micro")
    config = config.derive(trainer__micro_batch_tokens=config.rollout.max_context_tokens)
    share = make_batch(batch[0], config)
    live = share.advantages_N != 0
    assert live.any() and not live.all()
    found = learner._select_by_micro_batch(share, loss_config(config), config)
    total = 0
    for indices in (live.nonzero().flatten().tolist(), (~live).nonzero().flatten().tolist()):
        for batch_indices in learner._batches(share.trajectories, indices, config):
            n = sum(int(share.trajectories[i].generated.sum()) for i in batch_indices)
            assert sum(int(found.learning[i].sum()) for i in batch_indices) == math.ceil(0.2 * n)
            total += 1
    assert total > 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rl.loss.top_entropy": 0.0}, "rl.loss.top_entropy"),
        ({"rl.loss.entropy_tokens": "random"}, "set rl.loss.top_entropy"),
        ({"rl.loss.denominator": "all"}, "rl.loss.top_entropy or rl.loss.correction"),
        ({"rl.loss.kl_estimator": "k1"}, "set rl.loss.kl_coef"),
        ({"rl.loss.kl_unbiased": True}, "set rl.loss.kl_coef"),
        ({"rl.loss.correction_high": 2.0}, "correction_bounds need a correction"),
        (
            {
                "rl.loss.correction": "mask",
                "rl.off_policy.staleness": 1,
                "rl.loss.correction_low": 1.5,
            },
            "correction_bounds must be",
        ),
        ({"rl.filter.low_weight": 0.0}, "rl.filter.low_weight"),
        ({"rl.reward.overlong_buffer": 10**6}, "exceeds rollout.max_context_tokens"),
        ({"rl.reward.labels": "wrong", "rl.reward.name": "random"}, "rl.reward.name=exact_match"),
        ({"rl.sampling.adaptive_group": True, "rl.group": 3}, "rl.group to 4"),
        ({"rl.sampling.adaptive_group": True, "rl.agent": "react+resum"}, "set a single agent"),
        ({"rl.sampling.adaptive_group": True, "rl.agent": "heavy:n=2"}, "set a single agent"),
    ],
)
def test_incompatible_settings_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        check_rl_settings(settings(**changes))
