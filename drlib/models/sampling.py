"""Sampling of one token per row of logits by inverse CDF, in torch operators on any device.

On a CPU the local engine uses `drlib.models.kernels.draw`, which is equivalent without top-p.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from drlib.validation import require

_CDF_BLOCK = 64  # vocabulary entries per block of the two-level search


def sample(logits_NV, uniforms_N, temperature: float, top_p: float):
    """Sample one token per row by inverse CDF.

    Args:
        logits_NV: float [N, V].
        uniforms_N: float64 in [0, 1).
        temperature: 0 is argmax.
        top_p: nucleus threshold.

    Returns:
        (ids_N, logp_N, entropy_N) in nats, of the sampled distribution after temperature and top-p;
        at temperature 0 those of the temperature-1 distribution.
    """
    if temperature == 0:
        logp = torch.log_softmax(logits_NV, -1)
        ids = logits_NV.argmax(-1)
        return ids, logp.gather(1, ids[:, None])[:, 0], -(logp.exp() * logp).sum(-1)
    if temperature != 1:
        logits_NV = logits_NV / temperature
    probs = torch.softmax(logits_NV, -1)
    if top_p < 1:
        probs = _nucleus(probs, top_p)
    ids = _inverse_cdf(probs, uniforms_N)
    logp = probs.gather(1, ids[:, None])[:, 0].log()
    if top_p < 1:
        return ids, logp, -torch.xlogy(probs, probs).sum(-1)
    # H = log Z - E[logit] avoids the logarithm of every token.
    log_z = logits_NV.gather(1, ids[:, None])[:, 0] - logp
    return ids, logp, log_z - (probs * logits_NV).sum(-1)


@dataclass(frozen=True)
class Forks:
    """Another temperature at forking tokens (Beyond the 80/20 rule, arXiv 2506.01939, section 4).

    Args:
        entropy: nats; positions where the model's distribution has at least this entropy fork.
        temperature: at these positions; all others keep that of the call.

    Raises:
        ValueError: a negative entropy, or a temperature that is not positive.
    """

    entropy: float
    temperature: float

    def __post_init__(self):
        require(self.entropy >= 0, f"entropy={self.entropy} of forks must be at least 0 nats")
        require(self.temperature > 0, f"temperature={self.temperature} of forks must be above 0")


def redraw_forks(drawn, logits_NV, uniforms_N: np.ndarray, temperature: float, forks: Forks):
    """Draw the forking tokens again at their own temperature.

    Log-probabilities and entropies stay those of the training policy, at the temperature of the
    call (1 if greedy), as the loss computes them. They do not contain the change at the forks.

    Args:
        drawn: (ids_N, logp_N, entropy_N), numpy, drawn from `logits_NV` at `temperature`.

    Returns:
        The same arrays with other tokens at forks.
    """
    ids_N, logps_N, entropies_N = drawn
    at = np.flatnonzero(entropies_N >= forks.entropy)
    if len(at):
        logits_MV = logits_NV[torch.from_numpy(at).to(logits_NV.device)]
        uniforms_M = torch.from_numpy(uniforms_N[at]).to(logits_NV.device)
        ids_M = sample(logits_MV, uniforms_M, forks.temperature, 1.0)[0]
        logp_MV = torch.log_softmax(logits_MV / (temperature or 1.0), -1)
        ids_N[at] = ids_M.cpu().numpy()
        logps_N[at] = logp_MV.gather(1, ids_M[:, None])[:, 0].cpu().numpy()
    return ids_N, logps_N, entropies_N


def _nucleus(probs_NV, top_p: float):
    """Keep the smallest set with probability at least `top_p`, renormalised."""
    ordered, index = probs_NV.sort(dim=-1, descending=True, stable=True)
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
    truncated = torch.zeros_like(probs_NV).scatter_(1, index, ordered)
    return truncated / truncated.sum(-1, keepdim=True)


def _inverse_cdf(probs_NV, uniforms_N):
    """Return the first id whose cumulative probability exceeds the uniform, in two levels."""
    n, v = probs_NV.shape
    if v % _CDF_BLOCK:
        probs_NV = F.pad(probs_NV, (0, _CDF_BLOCK - v % _CDF_BLOCK))
    blocked = probs_NV.view(n, -1, _CDF_BLOCK)
    cumulated = blocked.sum(-1).double().cumsum(-1)
    target = (uniforms_N * cumulated[:, -1])[:, None]
    block = torch.searchsorted(cumulated, target, right=True).clamp_(max=blocked.shape[1] - 1)
    before = torch.where(block > 0, cumulated.gather(1, (block - 1).clamp(min=0)), 0.0)
    inside = blocked[torch.arange(n, device=probs_NV.device), block[:, 0]]
    within = torch.searchsorted(inside.double().cumsum(-1), target - before, right=True)
    within.clamp_(max=_CDF_BLOCK - 1)
    # Rounding at a block's end may select a token of probability zero; take the block's top.
    is_zero = inside.gather(1, within) == 0
    within = torch.where(is_zero, inside.argmax(-1, keepdim=True), within)
    return (block * _CDF_BLOCK + within)[:, 0]
