"""On-policy distillation: `policy_loss` with a teacher's opinion of each token as its advantage.

Function only: no run uses it yet. Left out: divergences over the whole vocabulary, teachers with
another tokenizer.
"""

import torch
from torch import Tensor

from drlib.rl.divergences import check_tokens, check_weights, log_ratio, mask_values
from drlib.rl.losses import LossConfig, policy_loss


@torch.no_grad()
def distillation_advantages(logp_BT: Tensor, teacher_logp_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """A_t = log pi_teacher - log pi, without gradient (GLM-5, section 3.5, eq. 2).

    In expectation over the policy's own tokens, A grad log pi is - grad KL(pi || teacher): no
    group and no baseline is needed, every token is judged by itself.

    logp_BT, teacher_logp_BT: float, nats, of the same tokens. mask_BT: bool, those to learn from.
    Returns advantages_BT, float, 0 outside the mask. ValueError: shapes or dtypes do not fit, a
    value in the mask is not finite, or the two are more than 80 nats apart.
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
    """`policy_loss` with `distillation_advantages` (GLM-5, section 3.5); function only: no run
    uses it yet.

    logp_BT, behaviour_logp_BT, teacher_logp_BT: float, nats, of the same tokens under the policy,
    the engine that sampled them and the teacher. mask_BT: bool. config and `arguments`: those of
    `policy_loss`. Returns (loss, metrics), and among these `teacher_kl`: the k1 estimate of
    KL(pi || teacher), nats per token of the mask. ValueError as `policy_loss`.
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
