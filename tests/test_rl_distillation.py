"""On-policy distillation against exact values."""

import math

import pytest
import torch
from rl_examples import derivative, logs, two_policies

from drlib.rl.distillation import distillation_advantages, distillation_loss
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
