"""On-policy distillation: reverse KL to a teacher on the policy's own samples.

`distillation_loss` estimates it from the sampled tokens: `policy_loss` with the teacher's log-ratio
of each token as advantage. `full_distillation_loss` sums over the vocabulary: equal in expectation,
without sampling noise. Teacher and student must share a tokenizer.
"""

import torch
from torch import Tensor

from drlib.rl.divergences import check_tokens, check_weights, log_ratio, mask_values
from drlib.rl.losses import LossConfig, policy_loss
from drlib.validation import require


@torch.no_grad()
def distillation_advantages(logp_BT: Tensor, teacher_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return A_t = log pi_teacher - log pi, without gradient (GLM-5, section 3.5, eq. 2).

    In expectation over the policy's own tokens, A grad log pi is - grad KL(pi || teacher). Every
    token is judged by itself, so no group and no baseline is needed.

    Args:
        logp_BT, teacher_logp_BT: float, nats, of the same tokens.
        mask_BT: bool, the tokens to learn from.

    Returns:
        advantages_BT, float, 0 outside the mask.

    Raises:
        ValueError: shapes or dtypes differ, a value in the mask is not finite, or the two differ by
            more than 80 nats.
    """
    check_tokens(logp_BT, mask_BT, teacher_logp_BT=teacher_logp_BT)
    teacher_BT = mask_values("teacher_logp_BT", teacher_logp_BT, mask_BT)
    return -log_ratio(mask_values("logp_BT", logp_BT, mask_BT), teacher_BT, "teacher_logp")


def distillation_loss(
    logp_BT: Tensor,
    behaviour_logp_BT: Tensor,
    teacher_logp_BT: Tensor,
    mask_BT: Tensor,
    config: LossConfig | None = None,
    **arguments,
) -> tuple[Tensor, dict[str, float]]:
    """`policy_loss` with `distillation_advantages` (GLM-5, section 3.5).

    Args:
        logp_BT, behaviour_logp_BT, teacher_logp_BT: float, nats, of the same tokens under the
            policy, the rollout engine and the teacher.
        mask_BT: bool.
        config, arguments: passed to `policy_loss`.

    Returns:
        (loss, metrics); `teacher_kl` is the k1 estimate of KL(pi || teacher), nats per masked
        token.

    Raises:
        ValueError: as `policy_loss`.
    """
    check_tokens(logp_BT, mask_BT)
    weights_B = check_weights(arguments.get("weights_B"), logp_BT)
    mask_BT = mask_BT & (weights_B > 0)[:, None]
    advantages_BT = distillation_advantages(logp_BT, teacher_logp_BT, mask_BT)
    loss, metrics = policy_loss(
        logp_BT, behaviour_logp_BT, advantages_BT, mask_BT, config, **arguments
    )
    total = advantages_BT[mask_BT].double().sum().item()
    metrics["teacher_kl"] = -total / max(int(mask_BT.sum()), 1)
    return loss, metrics


def full_distillation_loss(
    logits_MV: Tensor, teacher_logits_MV: Tensor, denominator: float
) -> Tensor:
    """Return sum_m KL(pi_m || teacher_m) / denominator, over the vocabulary of each token.

    Args:
        logits_MV, teacher_logits_MV: float [M, V], divided by the sampling temperature; only the
            first have a gradient.
        denominator: usually M.

    Raises:
        ValueError: shapes differ.
    """
    require(
        logits_MV.shape == teacher_logits_MV.shape,
        f"teacher_logits_MV has shape {[*teacher_logits_MV.shape]}, not {[*logits_MV.shape]}",
    )
    logp_MV = logits_MV.float().log_softmax(dim=-1)
    teacher_MV = teacher_logits_MV.float().log_softmax(dim=-1)
    # the gradient through the log-ratio is sum_v grad p_v = 0: without it, equal policies have a
    # gradient of exactly 0
    return (logp_MV.exp() * (logp_MV - teacher_MV).detach()).sum() / denominator
