"""Routes of experts in TRL's step: replayed where that was asked for, watched in any case.

`drlib.models.routing_replay` says what replay is; here are its two sources in a batch of TRL's layout
(prompts padded on the left, completions on the right), [B, T, L, k] so that TRL shuffles and cuts
routes with their rows:

- R2: what the old policy chose in the trainer's pass before the update.
- R3: what the sampling engine chose, from the rollout function's field "routed_experts". The
  policy before the update is scored under the same routes, so that the ratio compares weights only.

Hooks stay until the micro-batch's backward pass is over, which recomputation needs. Metrics are of
a whole optimiser step over all processes: an expert's load in one micro-batch is mostly noise.

Left out: routers without softmax top-k, and routes of the reference policy (it keeps its own).
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor, nn

from drlib.models.routing_replay import (
    agreement,
    expert_load,
    record_routes,
    replay_routes,
    router_entropy,
)
from drlib.trajectory import NO_RECORD
from drlib.validation import require, require_one_of

Routed = Literal["none", "r2", "r3"]
GIVEN = "routed_experts"  # a rollout function's field; in TRL's batch: `trl_batch.ROUTES`


class _Sizes(NamedTuple):
    layers: int
    experts: int
    chosen: int  # experts a token


class Routing:
    """Records, replays and counts the routes of one trainer's model.

    mode: what the loss replays: nothing, the old policy's routes or the sampling engine's.

    ValueError: a mode beside "none" for a model without softmax top-k routers.
    """

    def __init__(self, model: nn.Module, mode: Routed = "none"):
        require_one_of(mode, get_args(Routed), "routing")
        self.mode, self.sizes = mode, _sizes(model)
        require(
            mode == "none" or self.sizes is not None,
            f'routing="{mode}" replays experts, and {type(model).__name__} has no softmax top-k '
            'routers: use routing="none"',
        )
        self._sums: dict[str, Tensor] = {}

    def placed(self, given: Sequence[Any] | None, seen_BT: Tensor) -> Tensor | None:
        """The sampling engine's routes as int16 [B, T, L, k] on the CPU, -1 for no record.

        given: of each row an array [tokens, L, k], prompt included, all of them or all but the
            last (which is never fed); uint16 65535 is no record. seen_BT: 1 on tokens.

        ValueError: "r3" without them, or shapes that do not fit.
        """
        require(
            self.mode != "r3" or given is not None,
            f'routing="r3" replays the sampling engine\'s routes: the rollout function must return '
            f'"{GIVEN}"',
        )
        if given is None or self.sizes is None:
            return None
        layers, _, k = self.sizes
        require(len(given) == len(seen_BT), f"{GIVEN}: {len(given)} for {len(seen_BT)} rows")
        placed_BTLK = torch.full((*seen_BT.shape, layers, k), -1, dtype=torch.int16)
        for i, (routes, seen_T) in enumerate(zip(given, seen_BT.cpu().bool())):
            routes_TLK = torch.from_numpy(np.array(routes, dtype=np.int32, order="C"))
            got, tokens = [*routes_TLK.shape], int(seen_T.sum())
            fits = got in ([tokens, layers, k], [tokens - 1, layers, k])
            require(fits, f"{GIVEN} of row {i}: {got}, need {[tokens, layers, k]} [tokens, L, k]")
            at_T = seen_T.nonzero()[: got[0], 0]
            routes_TLK = routes_TLK.masked_fill(routes_TLK == NO_RECORD, -1)
            placed_BTLK[i, at_T] = routes_TLK.to(torch.int16)
        return placed_BTLK

    def open(
        self, stack: ExitStack, model: nn.Module, routes_BTLK: Tensor | None, rows: int = 0
    ) -> record_routes | None:
        """Watch, and if the mode says so replay, the next passes of `model` until `stack` closes.

        rows: of one pass, where the batch is run in several. What the recorder sees are the
        router's own choices. None: the model has no experts.
        """
        if self.sizes is None:
            return None
        model = _Unwrapped(model)
        recorder = stack.enter_context(record_routes(model))  # before replay: the own choices
        if routes_BTLK is not None and self.mode != "none":
            parts = routes_BTLK.split(rows or len(routes_BTLK))
            stack.enter_context(replay_routes(model, [_by_layer(part) for part in parts]))
        return recorder

    @contextmanager
    def old_policy(
        self, model: nn.Module, batch_shape: torch.Size, routes_BTLK: Tensor | None, rows: int
    ) -> Iterator[list[Tensor]]:
        """Around the old policy's passes over a batch [B, T], `rows` at a time.

        Gives a list; after the block it holds, in mode "r2", the batch's routes [B, T, L, k].
        """
        found: list[Tensor] = []
        with ExitStack() as stack:
            wanted = routes_BTLK if self.mode == "r3" else None
            recorder = None
            if self.mode != "none":
                recorder = self.open(stack, model, wanted, rows)
            yield found
        if self.mode == "r2":
            routes_LNK = torch.cat(recorder.passes, dim=1).cpu()
            found.append(routes_LNK.transpose(0, 1).reshape(*batch_shape, *self._by_token))

    @property
    def _by_token(self) -> tuple[int, int]:
        return self.sizes.layers, self.sizes.chosen

    @torch.no_grad()
    def count(
        self,
        own_LNK: Tensor,
        routes_BTLK: Tensor | None,
        seen_BT: Tensor,
        router_logits: Sequence[Tensor] | None,
    ) -> None:
        """Add one micro-batch to the step: its routers' own choices, and those on record."""
        real_N = seen_BT.reshape(-1).bool()
        own_LNK = own_LNK.masked_fill(~real_N[:, None], -1)
        used_LNK, tokens = own_LNK, real_N.sum().double()
        sums = {"tokens": tokens, "known": tokens * 0, "same_L": tokens.new_zeros(len(own_LNK))}
        if routes_BTLK is not None:
            known_LNK = _by_layer(routes_BTLK).to(own_LNK)
            sums["known"] = ((known_LNK[0, :, 0] >= 0) & real_N).sum().double()
            sums["same_L"] = agreement(own_LNK, known_LNK).nan_to_num() * sums["known"]
            if self.mode != "none":
                used_LNK = torch.where((known_LNK >= 0) & real_N[:, None], known_LNK, own_LNK)
        sums["load_LE"] = expert_load(used_LNK, self.sizes.experts).double() * tokens
        if router_logits is not None:
            entropy_L = router_entropy([of_layer[real_N] for of_layer in router_logits])
            sums["entropy_L"] = entropy_L.double() * tokens
        for name, value in sums.items():
            self._sums[name] = value + self._sums.get(name, 0)

    def metrics(self, total=lambda tensor: tensor) -> dict[str, float]:
        """Of the step since the last call; {} if nothing was counted. `total`: sum over processes.

        moe/max_violation: load of the busiest expert over the mean load, minus 1, in the worst
        layer (0: even); its mean over layers; router_entropy: mean, nats; rerouted: share of the
        tokens on record that the router would send to other experts now, mean over layers.
        """
        if not self._sums:
            return {}
        names, parts = [*self._sums], [*self._sums.values()]
        flat = total(torch.cat([part.reshape(-1) for part in parts]).float()).double()
        pieces = flat.split([part.numel() for part in parts])
        sums = {n: piece.view_as(part) for n, piece, part in zip(names, pieces, parts)}
        self._sums = {}
        load_LE = sums["load_LE"]
        violation_L = load_LE.amax(dim=1) / load_LE.mean(dim=1) - 1
        found = {
            "moe/max_violation": violation_L.max(),
            "moe/max_violation_mean": violation_L.mean(),
        }
        if "entropy_L" in sums:
            found["moe/router_entropy"] = sums["entropy_L"].mean() / sums["tokens"]
        if sums["known"] > 0:
            found["moe/rerouted"] = 1 - sums["same_L"].mean() / sums["known"]
        return {name: float(value) for name, value in found.items()}


def _by_layer(routes_BTLK: Tensor) -> Tensor:
    """As `replay_routes` takes them: experts_LNK with N = B x T."""
    return routes_BTLK.flatten(0, 1).transpose(0, 1)


def _sizes(model: nn.Module) -> _Sizes | None:
    """None for a model that `record_routes` finds no routers in."""
    try:
        hooks = record_routes(model)
    except ValueError:
        return None
    hooks.close()
    config = model.config.get_text_config()
    return _Sizes(hooks.n_layers, config.num_experts, config.num_experts_per_tok)


class _Unwrapped:
    """A model's modules under the names they had before activation checkpointing wrapped layers.

    FSDP2's own recomputation puts a wrapper between the stack of layers and each layer.
    """

    WRAPPER = "._checkpoint_wrapped_module"

    def __init__(self, model: nn.Module):
        self._model = model

    def modules(self) -> Iterator[nn.Module]:
        return self._model.modules()

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]:
        for name, module in self._model.named_modules():
            yield name.replace(self.WRAPPER, ""), module

    def get_submodule(self, name: str) -> nn.Module:
        return dict(self.named_modules())[name]  # a wrapper's name goes to what it wraps
