"""Routing replay for mixtures of experts: record the experts of each token, and replay them.

Expert selection is a step function: a rounding error in the rollout engine routes a token to other
experts and its log-probability jumps. Replay takes the *selection* from a record and everything
else from the policy in training: the gate of a recorded expert is its current router probability,
renormalised over the recorded ones, so the router still gets its gradient (MiniRL, arXiv
2512.01374; R3, arXiv 2510.11370). R2 replays the routes of the training engine's old policy, R3
those of the inference engine: one hook, two sources. MiniRL found no gain strictly on-policy, R2
best at 2 updates per batch, R3 from 4 on, with clipping.

It uses forward hooks on the Hugging Face routers, removed when the context ends. Records belong to
a forward *pass* of the decoder stack: its number is passed to the layers as a keyword argument,
which gradient checkpointing keeps, so a recomputed layer replays its own pass. Tokens without a
record (padding, an unread last token) keep their native experts; router logits, and so the
load-balancing loss, are unchanged.

The routes of a pass are one tensor `experts_LNK`, int [L, N, k]: the k experts of each of N tokens
(B x T flattened, padding included) in L sparse layers, best first; all -1 for a token without a
record. Statistics exclude those, so `experts_LNK.masked_fill(~real_N[:, None], -1)` excludes
padding.

Routers with sigmoid scores or expert groups are not supported.
"""

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer


def _routers(module: nn.Module) -> list[nn.Module]:
    needs = ("top_k", "num_experts", "norm_topk_prob", "weight")
    return [m for m in module.modules() if all(hasattr(m, name) for name in needs)]


def compute_gates(router: nn.Module, logits_NE: Tensor, experts_NK: Tensor) -> Tensor:
    """Return the gates of the selected experts [N, k], bit-identical to the router's own."""
    probs_NE = torch.softmax(logits_NE, dtype=torch.float, dim=-1)
    gates_NK = probs_NE.gather(1, experts_NK)
    if router.norm_topk_prob:
        gates_NK = gates_NK / gates_NK.sum(dim=-1, keepdim=True)
    return gates_NK.to(logits_NE.dtype)


class _Hooks(ExitStack):
    """Identifies pass and layer of each router call, recomputation included."""

    def __init__(self, model: nn.Module):
        super().__init__()
        layers = [
            (name, module, router)
            for name, module in model.named_modules()
            if isinstance(module, GradientCheckpointingLayer)
            for router in _routers(module)
        ]
        if not layers or len(layers) != len(_routers(model)):
            raise ValueError(
                f"{type(model).__name__} has no experts that can be replayed: need "
                "softmax top-k routers in its decoder layers"
            )
        self.n_layers, self.number = len(layers), -1  # index of the last started pass
        self.key = f"routing_pass_{id(self)}"  # contexts may be nested
        self.awaits: dict[tuple[int, int], bool] = {}  # (pass, layer) -> to be recomputed
        stack = model.get_submodule(".".join(layers[0][0].split(".")[:-2]))
        self.enter_context(stack.register_forward_pre_hook(self._begin, with_kwargs=True))
        for i, (_, layer, router) in enumerate(layers):
            enter, route = partial(self._enter, i), partial(self._route, i)
            self.enter_context(layer.register_forward_pre_hook(enter, with_kwargs=True))
            self.enter_context(router.register_forward_hook(route))

    @abstractmethod
    def _route(self, i: int, router, args, output):
        """Process the output of the router of sparse layer `i`."""

    def _begin(self, stack, args, kwargs):
        self.number += 1
        # A reentrant checkpoint disables gradients in the layers, so check them here.
        return args, kwargs | {self.key: (self.number, torch.is_grad_enabled())}

    def _enter(self, i: int, layer, args, kwargs):
        if self.key not in kwargs:
            raise RuntimeError(
                f"sparse layer {i} is recomputed for an input that no forward pass "
                "here had; run both passes inside the same context"
            )
        self.at, learns = kwargs.pop(self.key)
        self.again = (self.at, i) in self.awaits
        checkpointed = learns and layer.gradient_checkpointing and layer.training
        self.awaits[self.at, i] = checkpointed and not self.again
        return args, kwargs


class record_routes(_Hooks):  # a context manager, named like a function
    """Context manager that records the experts of every forward pass.

    `passes` has int16 [L, N, k] per pass; inside `replay_routes`, the replayed experts.

    Raises:
        ValueError: no softmax top-k routers.
    """

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.passes: list[Tensor] = []

    def _route(self, i: int, router, args, output) -> None:
        if self.again:  # recomputation is not a new pass
            return
        if i == 0:  # the previous pass may have failed
            self._layers: list[Tensor] = []
        self._layers.append(output[2].to(torch.int16))
        if i == self.n_layers - 1:
            self.passes.append(torch.stack(self._layers))


class replay_routes(_Hooks):
    """Context manager that routes tokens to the recorded experts.

    Args:
        model: a Hugging Face model with softmax top-k routers (Qwen3-MoE), or a wrapper of one.
        routes: experts_LNK of each forward pass, in order, or one tensor for one pass: records of
            the old policy (R2) or of the inference engine (R3).

    Raises:
        ValueError: layers, tokens, experts per token or expert numbers do not fit the model, or a
            token has an expert twice.
        RuntimeError: more or fewer forward passes than routes; or, with gradient checkpointing,
            backward was not called inside the context (it would recompute with other experts).
    """

    def __init__(self, model: nn.Module, routes: Tensor | Sequence[Tensor]):
        self.routes = [routes] if isinstance(routes, Tensor) else list(routes)
        super().__init__(model)

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        if error[0] is None and self.number + 1 < len(self.routes):
            raise RuntimeError(f"{len(self.routes)} routes for {self.number + 1} forward passes")
        if error[0] is None and (awaited := sum(self.awaits.values())):
            raise RuntimeError(
                f"{awaited} checkpointed layers were not recomputed before "
                "replay_routes ended; call backward inside it"
            )

    def _route(self, i: int, router, args, output) -> tuple:
        if self.at >= len(self.routes):
            raise RuntimeError(
                f"forward pass {self.at + 1} has no routes, {len(self.routes)} were "
                "given; need one experts_LNK a pass, in order"
            )
        logits_NE, scores_NK, native_NK = output
        routes_LNK, name = self.routes[self.at], f"routes of pass {self.at + 1}"
        need, dtype = [self.n_layers, *native_NK.shape], routes_LNK.dtype
        if [*routes_LNK.shape] != need or dtype.is_floating_point:
            got = f"{dtype} {[*routes_LNK.shape]}"
            raise ValueError(
                f"{name}: got {got}, need integers {need} [layers, tokens, k]; replay "
                "the padded or packed rows that were recorded"
            )
        recorded_NK = routes_LNK[i].to(native_NK)
        sorted_NK = recorded_NK.sort(dim=-1).values
        possible_N = (sorted_NK[:, 1:] > sorted_NK[:, :-1]).all(-1) & (sorted_NK[:, 0] >= 0)
        possible_N &= sorted_NK[:, -1] < router.num_experts
        if not bool((possible_N | (sorted_NK == -1).all(-1)).all()):
            raise ValueError(
                f"{name}, layer {i}: a token's experts must be distinct and below "
                f"{router.num_experts}, or all -1 (no record)"
            )
        # Check the router's arithmetic, without a graph: recomputation must save the same tensors.
        if not torch.equal(compute_gates(router, logits_NE.detach(), native_NK), scores_NK):
            raise ValueError(f"{type(router).__name__}: scores are not the softmax of its logits")
        experts_NK = torch.where(recorded_NK >= 0, recorded_NK, native_NK)
        return logits_NE, compute_gates(router, logits_NE, experts_NK), experts_NK


def expert_load(experts_LNK: Tensor, experts: int) -> Tensor:
    """Return each expert's share of the known selections, [L, E]; rows sum to 1."""
    if int(experts_LNK.max()) >= experts:
        raise ValueError(f"routes name expert {int(experts_LNK.max())} of {experts}")
    counts_LE = torch.stack(
        [torch.bincount(x_NK[x_NK >= 0].long(), minlength=experts) for x_NK in experts_LNK]
    )
    return counts_LE / counts_LE.sum(dim=1, keepdim=True).clamp(min=1)


def agreement(a_LNK: Tensor, b_LNK: Tensor) -> Tensor:
    """Return the share of tokens known in both with the same set of experts, [L]."""
    if a_LNK.shape != b_LNK.shape:
        raise ValueError(f"records of shapes {list(a_LNK.shape)} and {list(b_LNK.shape)}")
    same_LN = (a_LNK.sort(dim=-1).values == b_LNK.sort(dim=-1).values).all(dim=-1)
    known_LN = (a_LNK[..., 0] >= 0) & (b_LNK[..., 0] >= 0)
    return (same_LN & known_LN).sum(dim=1) / known_LN.sum(dim=1)


def router_entropy(router_logits: Sequence[Tensor]) -> Tensor:
    """Return the mean entropy of the routers' distributions, [L], nats; log E if uniform.

    router_logits: [N, E] per layer, as returned with `output_router_logits`.
    """
    logp_LNE = torch.stack(list(router_logits)).float().log_softmax(-1)
    return -(logp_LNE.exp() * logp_LNE).sum(-1).mean(1)
