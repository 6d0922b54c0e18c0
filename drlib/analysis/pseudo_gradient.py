"""Reasoning as descent: the loss of the right answer along a trajectory (RaML).

RaML (arXiv 2505.19815) interprets each thought token as a descent step on the loss of the right
answer. This module measures that loss after prefixes of a stored trajectory.

Changes are signed differences in nats. Relative changes diverge when the loss is near 0, and
absolute changes do not distinguish progress from regress. A class of tokens is compared with the
same number of other tokens in the same third of the trajectory, because the loss depends on
position. The prefix is computed once; answers are scored in batches from its key-value cache.

Not included: smoothing, filter-wise normalised directions.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drlib.training.packing import split_by_size
from drlib.trajectory import Segment, Trajectory
from drlib.validation import require

BRIDGE = "</think><answer>"  # text between thought and answer (`drlib.chat.tool_calls`)
RESPONSE = "tool response"  # class of the changes at tool responses


@torch.no_grad()
def answer_losses(
    model,
    context_ids: Sequence[int],
    prefix_ends: Sequence[int],
    answer_ids: Sequence[int],
    bridge_ids: Sequence[int] = (),
    *,
    batch_tokens: int = 8192,
) -> np.ndarray:
    """Compute the mean -log p of an answer after context[:end] + bridge for each prefix end.

    Args:
        model: Hugging Face causal language model in eval mode, without sliding windows or
            recurrent states.
        context_ids: T token ids.
        prefix_ends: P prefix lengths in 1..T, in any order.
        answer_ids: token ids of the answer.
        bridge_ids: token ids between prefix and answer.
        batch_tokens: maximum tokens per forward pass, cached tokens included.

    Returns:
        losses_P: nats per answer token, float64.

    Raises:
        ValueError: an argument out of range, an unsupported model, or a non-finite loss.

    """
    context = [int(i) for i in context_ids]
    bridge = [int(i) for i in bridge_ids]
    answer = [int(i) for i in answer_ids]
    ends_P = np.array(prefix_ends, int)
    _check_answer(model, context, ends_P, bridge, answer)
    each, place_P = np.unique(ends_P, return_inverse=True)
    branch = bridge + answer[:-1]
    cache = None
    cached = 0  # tokens in the cache
    losses: list[float] = []
    for ends in split_by_size(each.tolist(), lambda end: end + len(branch), batch_tokens):
        # extend the cached prefix up to the last token, which starts each branch: its logits may
        # predict the first answer token
        more = context[cached : max(ends[-1] - 1, 1)]
        if more:
            cache = _extend_cache(model, more, cache)
            cached += len(more)
        rows_BS = [[context[end - 1], *branch] for end in ends]
        losses += _branch_losses(model, cache, cached, ends, rows_BS, answer)
    require(bool(np.isfinite(losses).all()), "a loss is not finite: check the model's weights")
    return np.array(losses)[place_P]


def _check_answer(model, context: list[int], ends_P, bridge: list[int], answer: list[int]) -> None:
    """Raise ValueError for invalid arguments of `answer_losses`."""
    vocabulary = len(model.get_input_embeddings().weight)
    longest = getattr(model.config, "max_position_embeddings", None) or math.inf
    require(bool(answer), "the answer has no tokens; pass a non-empty answer")
    require(
        len(ends_P) > 0 and ends_P.min() >= 1 and ends_P.max() <= len(context),
        f"prefix_ends must have values in 1..{len(context)}, got {ends_P.tolist()}",
    )
    require(
        max(context + bridge + answer) < vocabulary,
        f"ids exceed the model's vocabulary of {vocabulary}; use the tokenizer of this model",
    )
    require(
        ends_P.max() + len(bridge + answer) <= longest,
        f"prefix, bridge and answer exceed the model's {longest} positions",
    )
    require(not model.training, "the model is in training mode; call model.eval() first")


def _extend_cache(model, ids: list[int], cache):
    """Return the key-value cache extended by `ids`."""
    ids_1T = torch.tensor([ids], device=model.device)
    out = model(input_ids=ids_1T, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache = out.past_key_values
    require(
        cache.is_croppable and not any(cache.is_sliding),
        f"{type(model).__name__} has sliding windows or recurrent states, so branches cannot "
        "share its cache; use a model with full attention",
    )
    return cache


def _branch_losses(
    model, cache, cached: int, ends: list[int], rows_BS: list[list[int]], answer: list[int]
) -> list[float]:
    """Return the mean -log p of the answer at the end of each row, continuing cached prefixes.

    Each row attends to the cache up to its own prefix end. The cache is restored afterwards.
    """
    ids_BS = torch.tensor(rows_BS, device=model.device)
    length = ids_BS.shape[1]
    starts_B1 = torch.tensor(ends, device=model.device)[:, None] - 1
    prefix_BC = torch.arange(cached, device=model.device) < starts_B1
    seen_BC = torch.cat([prefix_BC, torch.ones_like(ids_BS, dtype=torch.bool)], dim=1)
    cache.batch_repeat_interleave(len(ends))
    out = model(
        input_ids=ids_BS,
        attention_mask=seen_BC.long(),
        past_key_values=cache,
        use_cache=True,
        position_ids=starts_B1 + torch.arange(length, device=model.device),
        logits_to_keep=len(answer),
    )
    cache.crop(-length)
    cache.batch_select_indices(torch.tensor([0], device=model.device))
    answers_N = torch.tensor(answer * len(ends), device=model.device)
    loss_N = F.cross_entropy(out.logits.float().flatten(0, 1), answers_N, reduction="none")
    return loss_N.double().view(len(ends), -1).mean(1).tolist()


@dataclass(frozen=True, eq=False)
class LossCurve:
    """Loss of the answer after P prefixes of a trajectory.

    Attributes:
        ends_P: prefix lengths, ascending.
        losses_P: nats per answer token.
        starts_P: True if a turn begins after the prefix (after the prompt or a tool response).
        tokens: number of tokens of the trajectory.
        stride: sampled tokens per point.

    """

    ends_P: np.ndarray
    losses_P: np.ndarray
    starts_P: np.ndarray
    tokens: int
    stride: int

    @property
    def deltas_P(self) -> np.ndarray:
        """Change of the loss from the previous point, nats; negative is progress, first is NaN."""
        return np.diff(self.losses_P, prepend=np.nan)


def pseudo_gradient(
    model,
    tokenizer,
    trajectory: Trajectory,
    answer: str | None = None,
    *,
    stride: int = 1,
    bridge: str = BRIDGE,
    think: bool = True,
    segments: Sequence[Segment] = (Segment.THINK,),
    batch_tokens: int = 8192,
) -> LossCurve:
    """Compute the loss of an answer along a stored trajectory, at temperature 1 (RaML).

    Points are the start of every turn, every `stride`-th sampled token of `segments`, and the last
    such token of a turn, up to the given answer. An answer cannot start inside a tool call, so the
    change at a response includes that of the call.

    Args:
        model: Hugging Face causal language model in eval mode, see `answer_losses`.
        tokenizer: tokenizer of the model.
        trajectory: stored trajectory.
        answer: answer to score; default: metadata["right_answer"].
        stride: sampled tokens per point.
        bridge: text between prefix and answer, tokenised separately. If it starts with "</think>",
            "<think>" is prepended at turn starts. Other formats:
            "\\n\\n**Final Answer**\\n\\\\boxed{", or `extract_bridge`.
        think: False removes the thoughts from the context and measures turn starts only.
        segments: segments with points.
        batch_tokens: maximum tokens per forward pass.

    Returns:
        The losses, as a `LossCurve`.

    Raises:
        ValueError: no answer, a stride below 1, or an argument that `answer_losses` rejects.

    """
    if answer is None:
        answer = trajectory.metadata.get("right_answer")
    require(answer is not None, f"trajectory {trajectory.id} has no right_answer; pass answer=")
    require(stride >= 1, f"stride must be at least 1, got {stride}")
    ends_P, starts_P = _select_prefixes(trajectory, stride, segments if think else ())
    # without thoughts the context is shorter, and so are the prefixes in it
    thought_T = trajectory.generated & (trajectory.segments == Segment.THINK)
    kept_T = ~thought_T | think
    lengths_P = np.cumsum(kept_T)[ends_P - 1]
    # at the start of a turn no thought is open, so open one for the bridge to close
    at_start = f"<think>{bridge}" if bridge.startswith("</think>") else bridge
    losses_P = np.zeros(len(ends_P))
    for some_P, text in ((starts_P, at_start), (~starts_P, bridge)):
        if some_P.any():
            losses_P[some_P] = answer_losses(
                model,
                trajectory.token_ids[kept_T],
                lengths_P[some_P],
                tokenizer.encode(answer, add_special_tokens=False),
                tokenizer.encode(text, add_special_tokens=False),
                batch_tokens=batch_tokens,
            )
    return LossCurve(ends_P, losses_P, starts_P, len(trajectory), stride)


def _select_prefixes(
    trajectory: Trajectory, stride: int, segments: Sequence[Segment]
) -> tuple[np.ndarray, np.ndarray]:
    """Return (ends_P, starts_P) of a `LossCurve`.

    Prefixes end at the start of each turn up to the answer, at every `stride`-th token of
    `segments` in a turn, and at the last such token.
    """
    segments_T = trajectory.segments
    turns = _split_turns(trajectory)
    answered = (t for turn in turns for t in turn if segments_T[t] == Segment.ANSWER)
    last = next(answered, len(segments_T))
    points: dict[int, bool] = {}
    for turn in turns:
        inside = [t for t in turn if segments_T[t] in segments and t < last]
        if turn[0] <= last:
            points[turn[0]] = True
        for t in [*inside[stride - 1 :: stride], *inside[-1:]]:
            points[t + 1] = False
    ends_P = sorted(points)
    return np.array(ends_P), np.array([points[end] for end in ends_P])


def extract_bridge(tokenizer, trajectory: Trajectory, answer: str) -> str:
    """Return the text of the last turn before `answer`, as a bridge in the policy's own words.

    Use it with segments=(), because the text starts a turn.

    Raises:
        ValueError: the last turn does not contain `answer`.

    """
    text = tokenizer.decode(trajectory.token_ids[_split_turns(trajectory)[-1]])
    require(
        answer in text, f"the last turn of trajectory {trajectory.id} does not contain {answer!r}"
    )
    return text.partition(answer)[0]


def _split_turns(trajectory: Trajectory) -> list[list[int]]:
    """Return the positions of the sampled tokens, one list per turn."""
    at = np.flatnonzero(trajectory.generated)
    require(
        len(at) > 0 and bool(at[0]), f"trajectory {trajectory.id} needs a prompt and sampled tokens"
    )
    return [run.tolist() for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)]


def token_class_deltas(
    curve: LossCurve, trajectory: Trajectory, classes: Mapping[str, np.ndarray], seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the loss changes at the tokens of each class, and at matched control tokens.

    Controls are drawn without replacement from the points outside all classes, in the same third
    of the trajectory.

    Args:
        curve: losses of the trajectory with stride 1.
        trajectory: the trajectory.
        classes: masks bool [T] by name, such as reflection tokens. The class "tool response" is
            added. Tokens without a point are ignored.
        seed: seed of the draws.

    Returns:
        {name: (deltas_K, matched_K)} in nats; NaN if no control is left.

    Raises:
        ValueError: a curve of another trajectory or stride, or an invalid class.

    """
    require(
        curve.tokens == len(trajectory) and curve.stride == 1,
        f"need the curve of trajectory {trajectory.id} with stride=1: each change must belong to "
        "one token",
    )
    rng = np.random.default_rng(seed)
    token_P = curve.ends_P - 1  # token of each change
    members = {RESPONSE: curve.starts_P & (token_P > token_P[0])}
    for name, mask_T in classes.items():
        require(
            np.shape(mask_T) == (curve.tokens,) and name != RESPONSE,
            f"class {name!r} needs a mask of {curve.tokens} tokens and a name other than "
            f"{RESPONSE!r}",
        )
        members[name] = np.asarray(mask_T, bool)[token_P] & ~curve.starts_P
    third_P = 3 * token_P // curve.tokens
    free_P = ~np.any([*members.values(), curve.starts_P], axis=0)
    found = {}
    for name, at_P in members.items():
        matched_P = np.full(len(token_P), np.nan)
        for third in range(3):
            mine = np.flatnonzero(at_P & (third_P == third))
            others = np.flatnonzero(free_P & (third_P == third))
            partners = rng.permutation(others)[: len(mine)]
            partnered = rng.permutation(mine)[: len(partners)]
            matched_P[partnered] = curve.deltas_P[partners]
        found[name] = curve.deltas_P[at_P], matched_P[at_P]
    return found


@torch.no_grad()
def landscape(model, loss: Callable, grid: Sequence[float], seed: int) -> np.ndarray:
    """Compute the loss in a plane of two random directions around the weights.

    Each direction has the norm of its parameter; embeddings and output matrix are not changed. The
    weights are restored bit-identically, even if `loss` raises. Needs memory for three copies of
    the weights.

    Args:
        model: Hugging Face causal language model.
        loss: function from the model to a number.
        grid: coordinates along both directions; (0, 0) is the model.
        seed: seed of the directions.

    Returns:
        losses_XY, float64.

    Raises:
        ValueError: an empty grid, or a NaN loss.

    """
    require(len(grid) > 0, "the grid is empty")
    skipped = {id(model.get_output_embeddings().weight)}
    skipped |= {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    weights = [p for p in model.parameters() if id(p) not in skipped]
    kept = [p.clone() for p in weights]
    generator = torch.Generator().manual_seed(seed)
    right = _random_direction(weights, generator)
    up = _random_direction(weights, generator)
    losses = []
    try:
        for x in map(float, grid):
            for y in map(float, grid):
                for p, start, dx, dy in zip(weights, kept, right, up):
                    p.copy_(start.add(dx, alpha=x).add_(dy, alpha=y))
                losses.append(float(loss(model)))
                require(not math.isnan(losses[-1]), f"the loss is NaN at {x}, {y}; narrow the grid")
    finally:
        for p, start in zip(weights, kept):
            p.copy_(start)
    return np.array(losses).reshape(len(grid), -1)


def _random_direction(weights: Sequence[Tensor], generator: torch.Generator) -> list[Tensor]:
    """Return Gaussian noise for each parameter, scaled to the norm of the parameter."""
    drawn = [torch.randn(p.shape, generator=generator).to(p) for p in weights]
    return [d * (p.norm() / d.norm()) for d, p in zip(drawn, weights)]


def support_set(groups_N: Sequence, m: int, seed: int) -> Tensor:
    """Select m random rollouts of each question to train on (RaML, arXiv 2505.19815).

    Use the mask as loss weights; advantages are computed over all rollouts.

    Args:
        groups_N: question of each of N rollouts.
        m: rollouts per question.
        seed: seed of the selection.

    Returns:
        keep_N: mask of the selected rollouts, bool.

    Raises:
        ValueError: a question has fewer than m rollouts, or m is below 1.

    """
    groups_N = np.asarray(groups_N)
    rng = np.random.default_rng(seed)
    keep_N = torch.zeros(len(groups_N), dtype=torch.bool)
    for group in np.unique(groups_N):
        at = np.flatnonzero(groups_N == group)
        require(1 <= m <= len(at), f"cannot keep {m} of the {len(at)} rollouts of question {group}")
        keep_N[rng.permutation(at)[:m]] = True
    return keep_N
