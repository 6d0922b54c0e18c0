"""Muon for hidden matrices, AdamW for the rest, and the learning-rate schedule.

`torch.optim.Muon` supports only 2-D parameters. The experts of a layer are one 3-D tensor, so this
version orthogonalises a stack of matrices at once. Embeddings, norms and routers use AdamW, as
recommended by Muon's author. Source: K. Jordan et al., "Muon" (2024): momentum, then five
Newton-Schulz steps per matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drlib.training.distributed import all_sum, trained_parameters
from drlib.training.run_folder import NotFinite

SKIPPED = "the gradient is not finite"  # metric "skipped" of a step
MOST_SKIPPED = 5  # consecutive steps


def orthogonalise(g_NMK: Tensor) -> Tensor:
    """Approximate the nearest semi-orthogonal matrices; singular values end in about 0.7..1.2."""
    a, b, c = 3.4445, -4.7750, 2.0315  # coefficients of the quintic iteration
    tall = g_NMK.size(-2) > g_NMK.size(-1)
    x = g_NMK.mT if tall else g_NMK
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised per matrix, for parameters of 2 or 3 dimensions.

    Ranks have equal gradients. Each orthogonalises a share of the parameters and exchanges the
    updates; the result is bit-identical to one process.
    """

    def __init__(self, params: Iterable[Tensor], lr: float):
        super().__init__(params, {"lr": lr, "momentum": 0.95})

    @torch.no_grad()
    def step(self) -> None:
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        for group in self.param_groups:
            updates, params = [], [p for p in group["params"] if p.grad is not None]
            for i, p in enumerate(params):
                buffer = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buffer.lerp_(p.grad, 1 - group["momentum"])
                nesterov = p.grad.lerp(buffer, group["momentum"])
                updates.append(orthogonalise(nesterov) if i % size == rank else torch.zeros_like(p))
            for p, update in zip(params, all_sum(updates)):
                scale = max(1.0, p.size(-2) / p.size(-1)) ** 0.5
                p.add_(update, alpha=-group["lr"] * scale)


def split_parameters(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """Return (hidden matrices, other parameters); routers and embeddings are among the others."""
    matrices, rest = [], []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        hidden = p.ndim >= 2 and "embed" not in name and "lm_head" not in name
        (matrices if hidden and not name.endswith("gate.weight") else rest).append(p)
    return matrices, rest


_adamw = partial(torch.optim.AdamW, betas=(0.9, 0.95), weight_decay=0.0)


class Optimizers:
    """Optimizers that step, save and load together."""

    def __init__(self, parts: dict[str, torch.optim.Optimizer]):
        self.parts = parts  # one parameter group each

    @staticmethod
    def muon_adam(model: nn.Module, muon_lr: float, adam_lr: float) -> Optimizers:
        """Build Muon for hidden matrices and AdamW for the rest; muon_lr=0: AdamW for all."""
        if muon_lr == 0:
            return Optimizers.adam(model, adam_lr)
        matrices, rest = split_parameters(model)
        return Optimizers({"muon": Muon(matrices, lr=muon_lr), "adam": _adamw(rest, lr=adam_lr)})

    @staticmethod
    def adam(model: nn.Module, lr: float) -> Optimizers:
        """Build AdamW for all trained parameters, as in RL."""
        return Optimizers({"adam": _adamw(trained_parameters(model), lr=lr)})

    def step(self, factor: float) -> None:
        """Take one update at `factor` times each base learning rate, then clear the gradients."""
        for optimizer in self.parts.values():
            optimizer.param_groups[0]["lr"] = optimizer.defaults["lr"] * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def forget(self) -> None:
        """Clear moments and step counts."""
        for optimizer in self.parts.values():
            optimizer.state.clear()

    def state_dict(self) -> dict:
        return {name: optimizer.state_dict() for name, optimizer in self.parts.items()}

    def load_state_dict(self, state: dict) -> None:
        for name, optimizer in self.parts.items():
            optimizer.load_state_dict(state[name])


class GradientWatch:
    """Skips updates with non-finite gradients, which would make all weights NaN."""

    def __init__(self):
        self.skipped = 0  # consecutive steps

    def usable(self, is_finite: bool) -> bool:
        """Return True if the step can be taken; raise NotFinite after MOST_SKIPPED failures in a
        row.
        """
        self.skipped = 0 if is_finite else self.skipped + 1
        if self.skipped == MOST_SKIPPED:
            raise NotFinite(
                f"{SKIPPED} in {MOST_SKIPPED} consecutive steps (all were skipped; the last "
                "checkpoint is "
                "valid): set model.dtype=float32, a lower learning rate or another loss"
            )
        return is_finite


def schedule(step: int, steps: int, warmup: int, decay_share: float, floor: float = 0.0) -> float:
    """Return the learning-rate factor: linear warm-up, constant, linear decay to `floor`.

    Args:
        step: counted from 0.
        decay_share: share of the steps in the decay.
    """
    if step < warmup:
        return (step + 1) / (warmup + 1)
    decay, left = decay_share * steps, steps - step
    return 1.0 if left >= decay else floor + (1.0 - floor) * left / max(decay, 1.0)
