"""Clips: the treatment of tokens whose importance ratio has left 1; one registered function each.

A clip is a function `(logp_BT, log_ratio_BT, advantages_BT, config) -> surrogate_BT`: each token's
contribution to the objective, which is maximised. `log_ratio_BT` is log r at the selected level and
has the gradient of `logp_BT`; `advantages_BT` may be [B, 1]; `config` is the `LossConfig`, for its
epsilons. `LossConfig(clip=NAME)` selects a clip, also one of your own:

    @CLIPS.register("half")
    def half(logp_BT, log_ratio_BT, advantages_BT, config): ...

On-policy, all clips have the gradient of REINFORCE; "log_likelihood" has it on any data.
"""

import torch
from torch import Tensor

from drlib.registry import Registry

CLIPS = Registry("clip")


@CLIPS.register("ppo")
def ppo(logp_BT: Tensor, log_ratio_BT: Tensor, advantages_BT: Tensor, config) -> Tensor:
    """min(r A, clip(r, 1 - epsilon_low, 1 + epsilon_high) A).

    The gradient stops where r has moved in A's favour (Tongyi eq. 4; the asymmetric range is DAPO's
    clip-higher).
    """
    ratio_BT = log_ratio_BT.exp()
    clipped_BT = ratio_BT.clamp(1 - config.epsilon_low, 1 + config.epsilon_high)
    return torch.minimum(ratio_BT * advantages_BT, clipped_BT * advantages_BT)


@CLIPS.register("double_sided")
def double_sided(logp_BT: Tensor, log_ratio_BT: Tensor, advantages_BT: Tensor, config) -> Tensor:
    """Gradient r A grad log pi strictly inside the range and none outside, whatever A's sign.

    GLM-5 eq. 3-5; r is relative to the rollout engine, never to `old_logp_BT`.
    """
    # a constant: with its gradient the loss would have r A (1 + log pi), of the wrong sign
    ratio_BT = log_ratio_BT.exp().detach()
    inside_BT = (ratio_BT > 1 - config.epsilon_low) & (ratio_BT < 1 + config.epsilon_high)
    return ratio_BT * inside_BT * advantages_BT * logp_BT


@CLIPS.register("cispo")
def cispo(logp_BT: Tensor, log_ratio_BT: Tensor, advantages_BT: Tensor, config) -> Tensor:
    """Gradient min(r, 1 + epsilon_high) A grad log pi everywhere (MiniMax-M1)."""
    capped_BT = log_ratio_BT.exp().detach().clamp(max=1 + config.epsilon_high)
    return capped_BT * advantages_BT * logp_BT


@CLIPS.register("log_likelihood")
def log_likelihood(logp_BT: Tensor, log_ratio_BT: Tensor, advantages_BT: Tensor, config) -> Tensor:
    """A log pi, without a ratio: cloning of stored rollouts, weighted by the advantage.

    With the estimators "uniform", "reward" and "exponential": behaviour cloning, cloning of
    successes and reward-weighted regression (Peters and Schaal, ICML 2007).
    """
    return advantages_BT * logp_BT


@CLIPS.register("none")
def unclipped(logp_BT: Tensor, log_ratio_BT: Tensor, advantages_BT: Tensor, config) -> Tensor:
    """r A: plain importance sampling."""
    return log_ratio_BT.exp() * advantages_BT
