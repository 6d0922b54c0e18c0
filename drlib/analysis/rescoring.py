"""Rescore stored trajectories with a model: exact log-probabilities, entropies, experts.

`rescore` runs trajectories through a model by teacher forcing and computes the entropy over the
full vocabulary at every sampled token. Two checkpoints can then be compared token by token. If the
output layer is a plain matrix, log-probabilities are computed in chunks
(`models.chunked_logprobs`).

Not supported: models on several devices.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drlib.models.chunked_logprobs import token_logprobs
from drlib.models.routing_replay import record_routes
from drlib.trajectory import Trajectory
from drlib.validation import require

LOGITS_CHUNK = 512  # tokens per chunk of logits, if alternatives are needed


class _Scoring(NamedTuple):
    """Arguments of `rescore`, and the output head of the model."""

    model: torch.nn.Module
    head: "_LogitsHead"
    temperature: float
    top_k: int
    experts: bool


def rescore(
    model,
    trajectories: Iterable[Trajectory],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    experts: bool = False,
    batch_tokens: int = 8192,
) -> Iterator[Trajectory]:
    """Yield the trajectories with log-probabilities and entropies of `model`, in batches.

    Args:
        model: Hugging Face causal language model in eval mode.
        trajectories: stored trajectories.
        temperature: sampling temperature of the rollouts, above 0.
        top_k: number of alternatives to record per token.
        experts: also record the experts of every token (softmax top-k routers, see
            `models.routing_replay`).
        batch_tokens: maximum padded tokens per forward pass; a longer trajectory has its own.

    Yields:
        Copies with `logprobs` and `entropies` over the full vocabulary (nats, float32; NaN at a
        sampled first token), and `top_ids`, `top_logprobs`, `routed_experts` if requested.

    Raises:
        ValueError: an argument out of range, an id outside the vocabulary, a trajectory longer
            than the context, or a model in training mode.

    """
    size = model.get_input_embeddings().num_embeddings
    require(not model.training, "the model is in training mode; call model.eval() first")
    require(
        0 < temperature < math.inf, f"temperature must be finite and above 0, got {temperature}"
    )
    require(0 <= top_k <= size, f"top_k must be in 0..{size} (vocabulary), got {top_k}")
    scoring = _Scoring(model, _find_head(model), temperature, top_k, experts)
    batch: list[Trajectory] = []
    for trajectory in trajectories:
        longest = max(map(len, [*batch, trajectory]))
        if batch and longest * (len(batch) + 1) > batch_tokens:
            yield from _rescore_batch(batch, scoring)
            batch = []
        batch.append(trajectory)
    if batch:
        yield from _rescore_batch(batch, scoring)


def _rescore_batch(batch: list[Trajectory], scoring: _Scoring) -> list[Trajectory]:
    """Rescore a batch. Returns a list, so that no_grad and the hooks end before control does."""
    model, head = scoring.model, scoring.head
    _check_fits(model, batch)
    ids_BT, real_BT = _pad_batch(batch)
    done = []
    with torch.no_grad(), record_routes(model) if scoring.experts else nullcontext() as routes:
        inputs = dict(
            input_ids=ids_BT.to(model.device), attention_mask=real_BT.long().to(model.device)
        )
        out_BTX = head.run(**inputs, use_cache=False)[0]
        for b, trajectory in enumerate(batch):
            # the logits of the previous token predict a sampled token
            before_N = torch.from_numpy(np.flatnonzero(trajectory.generated[1:]))
            ids_N = ids_BT[b, before_N + 1].to(model.device)
            scores = _score_tokens(out_BTX[b, before_N.to(model.device)], ids_N, scoring)
            changes: dict[str, Any] = {  # fields of the trajectory
                name: _scatter_values(trajectory, values_N) for name, values_N in scores.items()
            }
            if scoring.experts:
                routes_LBTK = routes.passes[0].unflatten(1, ids_BT.shape)
                routes_TLK = routes_LBTK[:, b, : len(trajectory)].transpose(0, 1)
                changes["routed_experts"] = routes_TLK.cpu().numpy().astype(np.uint16)
            done.append(replace(trajectory, **changes))
    return done


def _pad_batch(batch: list[Trajectory]) -> tuple[Tensor, Tensor]:
    """Return token ids padded with zeros, and the mask of real tokens: [B, T] each."""
    width = max(1, *map(len, batch))
    ids_BT = torch.zeros(len(batch), width, dtype=torch.long)
    for row_T, trajectory in zip(ids_BT, batch):
        row_T[: len(trajectory)] = torch.from_numpy(trajectory.token_ids)
    lengths_B1 = torch.tensor([[len(trajectory)] for trajectory in batch])
    return ids_BT, torch.arange(width) < lengths_B1


class _LogitsHead(NamedTuple):
    """Output head of a model.

    Attributes:
        run: forward pass; its first output is the input of `logits`.
        logits: function from rows of that output to logits.
        weight: output matrix, if the head is a plain matrix; else None.

    """

    run: Callable
    logits: Callable[[Tensor], Tensor]
    weight: Tensor | None


def _find_head(model) -> _LogitsHead:
    """Find a head that reproduces the model's logits, checked on a few tokens.

    Biases and soft caps are applied in chunks. For other heads the forward pass computes all
    logits, which needs memory for tokens x vocabulary values.
    """
    decoder = model.get_decoder()
    out = model.get_output_embeddings()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def logits(hidden: Tensor) -> Tensor:
        return out(hidden) if cap is None else cap * torch.tanh(out(hidden) / cap)

    # the head must be bit-identical to the model's own logits
    size = model.get_input_embeddings().num_embeddings
    ids_1T = torch.arange(min(4, size), device=model.device)[None]
    with torch.no_grad():
        theirs = model(input_ids=ids_1T, use_cache=False).logits
        ours = None if out is None else logits(decoder(input_ids=ids_1T, use_cache=False)[0])
    if ours is None or not torch.equal(theirs, ours):
        return _LogitsHead(model, lambda whole: whole, None)
    plain = cap is None and getattr(out, "bias", None) is None
    return _LogitsHead(decoder, logits, out.weight if plain else None)


def _check_fits(model, batch: list[Trajectory]) -> None:
    """Raise ValueError if ids exceed the vocabulary or tokens exceed the positions of the model."""
    size = model.get_input_embeddings().num_embeddings
    longest = getattr(model.config, "max_position_embeddings", None) or math.inf
    for t in batch:
        known = not len(t) or 0 <= t.token_ids.min() <= t.token_ids.max() < size
        require(
            known,
            f"trajectory {t.id} has ids beyond the model's vocabulary of {size}: "
            "use the model that sampled it, or one with the same tokenizer",
        )
        require(
            len(t) <= longest,
            f"trajectory {t.id} has {len(t)} tokens, the model {longest} "
            "positions: truncate it, or use a model with a longer context",
        )


def _score_tokens(before_NX: Tensor, ids_N: Tensor, scoring: _Scoring) -> dict[str, Tensor]:
    """Score ids_N from the preceding rows of `head.run`; keys are fields of a Trajectory."""
    head, top_k = scoring.head, scoring.top_k
    if head.weight is not None and not top_k:
        weight_VX = head.weight
        if weight_VX.dtype not in (torch.float32, torch.bfloat16):  # types that the kernel supports
            before_NX = before_NX.float()
            weight_VX = weight_VX.float()
        logp_N, entropy_N = token_logprobs(
            before_NX, weight_VX, ids_N, temperature=scoring.temperature
        )
        return {"logprobs": logp_N, "entropies": entropy_N}
    parts: dict[str, list[Tensor]] = {}
    for some_NX, some_ids_N in zip(before_NX.split(LOGITS_CHUNK), ids_N.split(LOGITS_CHUNK)):
        logp_NV = (head.logits(some_NX).float() / scoring.temperature).log_softmax(-1)
        part = {
            "logprobs": logp_NV.gather(1, some_ids_N[:, None])[:, 0],
            "entropies": torch.special.entr(logp_NV.exp()).sum(-1),
        }
        if top_k:
            part["top_logprobs"], part["top_ids"] = logp_NV.topk(top_k, dim=-1)
        for name, values in part.items():
            parts.setdefault(name, []).append(values)
    return {name: torch.cat(some) for name, some in parts.items()}


def _scatter_values(trajectory: Trajectory, values_N: Tensor) -> np.ndarray:
    """Scatter the values of sampled tokens (without the first token) into an array of all tokens.

    Observed tokens get 0 (ids: -1), a sampled first token NaN (ids: -1).
    """
    values = values_N.cpu().numpy()
    are_ids = values.dtype.kind == "i"
    shape = (len(trajectory), *values.shape[1:])
    spread = np.full(shape, -1, np.int32) if are_ids else np.zeros(shape, np.float32)
    spread[1:][trajectory.generated[1:]] = values
    spread[:1][trajectory.generated[:1]] = -1 if are_ids else np.nan
    return spread
