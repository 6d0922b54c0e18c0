"""A batch of TRL's layout: which tokens are in the loss, and the rows that are worth a pass.

Prompts are padded on the left, completions on the right: ids [B, P + C]. All rows of a micro-batch
are as long as the longest of the whole generation batch, and most rows may have nothing to teach: a
group whose rewards are all equal has advantages of zero. `live_rows` leaves those away, and the
columns that then hold padding alone. The loss and its gradient stay what they were.

Left out: batches with images (they come back as they are); moving rows from one micro-batch to
another, as processes that share a model must make the same number of passes.
"""

from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Any]
PROMPT, COMPLETION = ("prompt_ids", "prompt_mask"), ("completion_ids", "completion_mask")
ROUTES = "routes_BTLK"  # of experts, prompt and completion


def loss_mask(batch: Batch) -> Tensor:
    """Tokens [B, C] that the model sampled: no padding, no tool responses."""
    return (batch["completion_mask"] * batch.get("tool_mask", 1)).bool()


def loss_weighed(batch: Batch) -> Tensor:
    """Those of `loss_mask` that the filter left in the loss."""
    return loss_mask(batch) & (batch["loss_weights"] > 0)[:, None]


def sequences(batch: Batch) -> tuple[Tensor, Tensor]:
    """(ids [B, P + C], 1 on tokens [B, P + C])."""
    ids_BT, seen_BT = (torch.cat([batch[p], batch[c]], dim=1) for p, c in zip(PROMPT, COMPLETION))
    return ids_BT, seen_BT


def live_tokens(batch: Batch, kl: bool) -> Tensor:
    """Tokens of each row [B] that have a gradient: in the loss, with an advantage or (`kl`) a pull
    towards the reference."""
    tokens_B = loss_weighed(batch).sum(dim=1)
    return tokens_B if kl else tokens_B * (batch["advantages"] != 0)


def live_rows(batch: Batch, kl: bool) -> Batch:
    """The rows that have a gradient, without the columns that are padding in all of them.

    One row stays where none has: the shortest, as every process must make its pass.
    """
    kept_B = live_tokens(batch, kl) > 0
    _, seen_BT = sequences(batch)
    if not kept_B.any():
        kept_B[seen_BT.sum(dim=1).argmin()] = True
    width = batch[PROMPT[0]].size(1)
    used_T = seen_BT[kept_B].any(dim=0)
    used_T[width] = True  # a completion of no tokens is none
    of_prompt, of_completion = used_T[:width], used_T[width:]
    completions_BC = batch[COMPLETION[0]].shape
    rows = {}
    for name, value in batch.items():
        if not isinstance(value, Tensor) or value.ndim == 0:
            rows[name] = value
        elif name in PROMPT:
            rows[name] = value[kept_B][:, of_prompt]
        elif name == ROUTES:
            kept_there, used_there = kept_B.to(value.device), used_T.to(value.device)
            rows[name] = value[kept_there][:, used_there]
        elif value.shape[:2] == completions_BC:
            rows[name] = value[kept_B][:, of_completion]
        elif value.shape == kept_B.shape:
            rows[name] = value[kept_B]
        else:
            return batch  # images, of which a row may have several
    return rows
