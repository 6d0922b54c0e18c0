"""Routes of experts in the local loop: the choices that an update replays, in its line of tokens.

`drlib.models.routing_replay` says what replay is. R2 replays what the policy before the update
chose, R3 what the engine chose when it sampled; then the policy before the update is scored under
the same routes, so that a ratio compares weights alone. TRL's step has its own half of this
(`drlib.training.routing`).
"""

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np
import torch
from torch import Tensor

from drlib.models.routing_replay import agreement, record_routes, replay_routes
from drlib.training.packing import PackedBatch
from drlib.trajectory import NO_RECORD, Trajectory
from drlib.validation import require

Routes = list[np.ndarray]  # of each trajectory uint16 [T, L, k]


def engine_routes(trajectories: Sequence[Trajectory]) -> Routes:
    """Return the engine's routes; ValueError names trajectories without routes."""
    missing = [t.id for t in trajectories if t.routed_experts is None]
    require(
        not missing, f"the engine reported no routes of {missing[:3]}: make it with routes=True"
    )
    return [t.routed_experts for t in trajectories]


class PackedReplay:
    """Replays routes in one forward pass over packed samples.

    Tokens with a record go to the experts in `routes`, all others to those that the model selects.

    Attributes:
        rerouted: after the pass, the share of recorded tokens that the model would have sent
            elsewhere,
            mean over layers.
    """

    def __init__(self, model, tokens: PackedBatch, routes: Routes | None):
        self.rerouted = 0.0
        self._stack = ExitStack()
        self._model = model
        self._placed_LNK = None if routes is None else _placed(model, tokens, routes)

    def __enter__(self) -> "PackedReplay":
        if self._placed_LNK is not None:
            # the recorder's hooks come first: it sees the model's own choices
            self._own = self._stack.enter_context(record_routes(self._model))
            self._stack.enter_context(replay_routes(self._model, self._placed_LNK))
        return self

    def __exit__(self, *error) -> None:
        self._stack.__exit__(*error)
        if self._placed_LNK is not None and error[0] is None:
            same_L = agreement(self._own.passes[0], self._placed_LNK)
            self.rerouted = 1.0 - float(same_L.mean())


def prompts_in_common(
    trajectories: Sequence[Trajectory], prompts: Sequence[int], routes: Routes | None
) -> list[int]:
    """Return how many prompt tokens each sample may share with equal prompts.

    0 if an equal prompt was routed differently, because then it cannot be stored once for both.
    """
    if routes is None:
        return [*prompts]
    first: dict[bytes, np.ndarray] = {}
    found = []
    for trajectory, n, routes_TLK in zip(trajectories, prompts, routes):
        kept_PLK = first.setdefault(trajectory.token_ids[:n].tobytes(), routes_TLK[:n])
        found.append(n if np.array_equal(kept_PLK, routes_TLK[:n]) else 0)
    return found


def _placed(model, tokens: PackedBatch, routes: Routes) -> Tensor:
    """Concatenate the routes: int16 [T, L, k], -1 without a record."""
    shape = model.config.num_hidden_layers, model.config.num_experts_per_tok
    placed_NLK = np.full((len(tokens.ids_N), *shape), -1, np.int16)
    joined_NLK = np.concatenate(tokens.own(routes))
    known_NLK = joined_NLK != NO_RECORD
    placed_NLK[known_NLK] = joined_NLK[known_NLK]
    return torch.from_numpy(placed_NLK).transpose(0, 1)


def of_samples(tokens: PackedBatch, chosen_LNK: Tensor) -> Routes:
    """Split the routes of a recorded pass over `tokens` by sample."""
    return [part.numpy().astype(np.uint16) for part in tokens.split(chosen_LNK.transpose(0, 1))]
