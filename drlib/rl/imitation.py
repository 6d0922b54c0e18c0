"""Losses that imitate: demonstrations (SFT, DFT) and a teacher on the policy's own samples.

All three are policy gradients in disguise, and the tests hold that: SFT is REINFORCE on the
demonstration with advantage 1 / pi hidden in it, DFT takes that 1 / pi out again, and on-policy
distillation is `policy_loss` with the teacher's opinion of each token as its advantage.

Left out: forward KL over the whole vocabulary and the generalised JSD (both need the teacher's
logits; TRL's DistillationTrainer has them), teachers with another tokenizer.
"""

import torch
from torch import Tensor

from drlib.rl.divergences import check_tokens, check_weights, in_loss, log_ratio
from drlib.rl.losses import LossConfig, policy_loss, sft_loss

__all__ = ["dft_loss", "distillation_advantages", "distillation_loss", "sft_loss"]


def dft_loss(
    logp_BT: Tensor, mask_BT: Tensor, denominator: float | Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Dynamic fine-tuning (arXiv 2508.05629): each token's NLL times its constant probability.

    The gradient is - p grad log p = - grad p: a token that the model holds impossible pulls little.

    Arguments and errors as `sft_loss`. Returns (loss, metrics): a scalar tensor; floats `tokens`,
    `nll` and `probability` (means).
    """
    check_tokens(logp_BT, mask_BT)
    masked_BT = in_loss("logp_BT", logp_BT, mask_BT)
    probability_BT = masked_BT.detach().exp()
    loss, _ = sft_loss(probability_BT * masked_BT, mask_BT, denominator)
    metrics = sft_loss(masked_BT.detach(), mask_BT)[1]
    mass = (probability_BT * mask_BT).double().sum().item()
    return loss, metrics | {"probability": mass / max(metrics["tokens"], 1.0)}


@torch.no_grad()
def distillation_advantages(logp_BT: Tensor, teacher_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """A_t = log pi_teacher - log pi, without gradient (GLM-5, section 3.5, eq. 2); 0 outside.

    In expectation over the policy's own tokens, A grad log pi is - grad KL(pi || teacher). No
    group and no baseline is needed: every token is judged by itself.

    logp_BT, teacher_logp_BT: float, nats, of the same tokens. mask_BT: bool. ValueError: shapes,
    dtypes, values not finite in the mask, more than 80 nats apart.
    """
    check_tokens(logp_BT, mask_BT, teacher_logp_BT=teacher_logp_BT)
    teacher_BT = in_loss("teacher_logp_BT", teacher_logp_BT, mask_BT)
    return -log_ratio(in_loss("logp_BT", logp_BT, mask_BT), teacher_BT, "teacher_logp")


def distillation_loss(
    logp_BT: Tensor,
    behaviour_logp_BT: Tensor,
    teacher_logp_BT: Tensor,
    mask_BT: Tensor,
    config: LossConfig | None = None,
    **arguments,
) -> tuple[Tensor, dict[str, float]]:
    """On-policy distillation: `policy_loss` with `distillation_advantages` (GLM-5, section 3.5).

    Arguments and errors as `policy_loss`; teacher_logp_BT: float, the sampled tokens'
    log-probabilities under the teacher. Returns (loss, metrics) as there, and `teacher_kl`: the k1
    estimate of KL(pi || teacher), nats per token of the mask.
    """
    check_tokens(logp_BT, mask_BT)
    mask_BT = mask_BT & (check_weights(arguments.get("weights_B"), logp_BT) > 0)[:, None]
    advantages_BT = distillation_advantages(logp_BT, teacher_logp_BT, mask_BT)
    loss, metrics = policy_loss(
        logp_BT, behaviour_logp_BT, advantages_BT, mask_BT, config, **arguments
    )
    total = advantages_BT[mask_BT].double().sum().item()
    return loss, metrics | {"teacher_kl": -total / max(int(mask_BT.sum()), 1)}
