"""On-policy distillation against exact values."""

import itertools
import math

import pytest
import torch
from rl_examples import derivative, logs, two_policies

from drlib.rl.distillation import (
    distillation_advantages,
    distillation_loss,
    full_distillation_loss,
)
from drlib.rl.losses import LossConfig


@pytest.mark.parametrize("seed", range(5))
def test_distillation_gradient_is_the_teacher_kl_gradient(seed):
    """E_{a ~ pi}[A grad log pi] = - grad KL(pi || teacher), by enumeration of the actions."""
    logits_V, logp_V, teacher_V = two_policies(seed)
    exact = (logp_V.exp() * (logp_V - teacher_V)).sum()
    arguments = logp_V[:, None], logp_V.detach()[:, None], teacher_V[:, None]
    loss, _ = distillation_loss(
        *arguments, torch.ones(6, 1).bool(), weights_B=logp_V.exp().detach(), denominator=1.0
    )
    torch.testing.assert_close(derivative(loss, logits_V), derivative(exact, logits_V))
    with_dis, _ = distillation_loss(
        *arguments,
        torch.ones(6, 1).bool(),
        LossConfig(clip="double_sided"),
        weights_B=logp_V.exp().detach(),
        denominator=1.0,
    )
    torch.testing.assert_close(derivative(with_dis, logits_V), derivative(exact, logits_V))


def test_distillation_by_hand():
    logp_BT, teacher_BT = logs([0.5, 0.5, 0.5]), logs([0.25, 0.75, 1e-9])
    mask_BT = torch.tensor([[True, True, False]])
    advantages = distillation_advantages(logp_BT, teacher_BT, mask_BT)[0].tolist()
    assert advantages == pytest.approx([math.log(0.5), math.log(1.5), 0])
    loss, metrics = distillation_loss(logp_BT, logp_BT, teacher_BT, mask_BT)
    assert loss.item() == pytest.approx(-(math.log(0.5) + math.log(1.5)) / 2)
    assert metrics["teacher_kl"] == pytest.approx(loss.item()) and metrics["tokens"] == 2
    with pytest.raises(ValueError, match="teacher_logp_BT has shape"):
        distillation_advantages(logp_BT, teacher_BT[:, 1:], mask_BT)
    with pytest.raises(ValueError, match="teacher_logp_BT is NaN"):
        distillation_loss(logp_BT, logp_BT, teacher_BT * math.nan, mask_BT)
    # an excluded sequence is not checked
    both = [torch.cat([x, x * math.nan]) for x in (logp_BT, teacher_BT)]
    _, again = distillation_loss(
        both[0], both[0], both[1], mask_BT.repeat(2, 1), weights_B=torch.tensor([1.0, 0.0])
    )
    assert again == metrics


def three_token_policies():
    """Return the logits of a policy with gradient and of a teacher, in three contexts."""
    generator = torch.Generator().manual_seed(0)
    logits_MV = torch.randn(3, 3, generator=generator, requires_grad=True)
    return logits_MV, torch.randn(3, 3, generator=generator)


def test_full_loss_and_gradient_are_those_of_the_enumerated_kl():
    logits_MV, teacher_MV = three_token_policies()
    exact = torch.zeros(())
    for row, teacher in zip(logits_MV, teacher_MV):
        p, q = row.exp() / row.exp().sum(), teacher.exp() / teacher.exp().sum()
        exact = exact + sum(p[v] * torch.log(p[v] / q[v]) for v in range(3))
    loss = full_distillation_loss(logits_MV, teacher_MV, 3.0)
    torch.testing.assert_close(loss, exact / 3)
    torch.testing.assert_close(derivative(loss, logits_MV), derivative(exact / 3, logits_MV))
    with pytest.raises(ValueError, match=r"teacher_logits_MV has shape \[3, 2\], not \[3, 3\]"):
        full_distillation_loss(logits_MV, teacher_MV[:, :2], 3.0)


def test_sampled_loss_is_unbiased_for_the_full_loss():
    """The mean over 27 sequences of one token per context, weighted by their probability."""
    logits_MV, teacher_MV = three_token_policies()
    logp_MV, teacher_logp_MV = logits_MV.log_softmax(-1), teacher_MV.log_softmax(-1)
    mean, expected = torch.zeros(3, 3), full_distillation_loss(logits_MV, teacher_MV, 3.0)
    value = 0.0
    for ids in itertools.product(range(3), repeat=3):
        ids_M1 = torch.tensor(ids)[:, None]
        logp_M1, teacher_M1 = logp_MV.gather(1, ids_M1), teacher_logp_MV.gather(1, ids_M1)
        loss, _ = distillation_loss(
            logp_M1, logp_M1.detach(), teacher_M1, torch.ones(3, 1).bool(), denominator=3.0
        )
        chance = logp_M1.detach().sum().exp()
        mean += chance * derivative(loss, logits_MV)
        value += chance.item() * loss.item()
    torch.testing.assert_close(mean, derivative(expected, logits_MV))
    assert value == pytest.approx(expected.item(), abs=1e-6)


def test_equal_policies_have_no_gradient():
    logits_MV, _ = three_token_policies()
    loss = full_distillation_loss(logits_MV, logits_MV.detach(), 3.0)
    assert loss.item() == 0 and derivative(loss, logits_MV).abs().max() == 0
