"""Reasoning as descent: how likely the right answer becomes, token by token (RaML).

RaML (arXiv 2505.19815) reads each token of a thought as a step of descent on the loss of the right
answer. That loss is measured here after every prefix of a stored trajectory. Changes are signed
differences in nats: relative ones explode where the loss is near 0, absolute ones cannot tell help
from harm. A class of tokens is compared with as many others of the same third of the trajectory:
the loss falls most in certain places, whatever stands there. The prefix is computed once; answers
branch off its key-value cache, many in a batch.

Left out: smoothing (a figure's business), filter-wise normalised directions, summaries.
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

BRIDGE = "</think><answer>"  # of our format (`drlib.chat.tool_calls`)
RESPONSE = "tool response"  # the class of changes that observations make


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
    """Mean -log p (nats a token) of an answer after each context[:end] + bridge: losses_P, float64.

    model: a Hugging Face causal language model in eval mode, without sliding windows or recurrent
    states. prefix_ends: P lengths in 1..T, in any order. batch_tokens: cached and new ones in a
    forward pass. ValueError: an argument out of range, another model, a loss that is not finite.
    """
    context = [int(i) for i in context_ids]
    bridge = [int(i) for i in bridge_ids]
    answer = [int(i) for i in answer_ids]
    ends_P = np.array(prefix_ends, int)
    _check_answer(model, context, ends_P, bridge, answer)
    each, place_P = np.unique(ends_P, return_inverse=True)
    branch = bridge + answer[:-1]
    cache = None
    cached = 0  # tokens in it
    losses: list[float] = []
    for ends in split_by_size(each.tolist(), lambda end: end + len(branch), batch_tokens):
        # the prefix grows: its last token begins the branch, whose logits may be the answer's first
        more = context[cached : max(ends[-1] - 1, 1)]
        if more:
            cache = _extend_cache(model, more, cache)
            cached += len(more)
        rows_BS = [[context[end - 1], *branch] for end in ends]
        losses += _branch_losses(model, cache, cached, ends, rows_BS, answer)
    require(np.isfinite(losses).all(), "a loss is not finite: check the model's weights")
    return np.array(losses)[place_P]


def _check_answer(model, context: list[int], ends_P, bridge: list[int], answer: list[int]) -> None:
    """ValueError: what `answer_losses` cannot be asked."""
    vocabulary = len(model.get_input_embeddings().weight)
    longest = getattr(model.config, "max_position_embeddings", None) or math.inf
    require(bool(answer), "the answer has no tokens; give one that tokenises to something")
    require(
        len(ends_P) > 0 and ends_P.min() >= 1 and ends_P.max() <= len(context),
        f"prefix ends must be one or more of 1..{len(context)}, got {ends_P.tolist()}",
    )
    require(
        max(context + bridge + answer) < vocabulary,
        f"another tokenizer made these ids: they are beyond the model's vocabulary of {vocabulary}",
    )
    require(
        ends_P.max() + len(bridge + answer) <= longest,
        f"prefix, bridge and answer exceed the model's {longest} positions",
    )
    require(not model.training, "the model is in training mode; call model.eval() first")


def _extend_cache(model, ids: list[int], cache):
    """The cache of keys and values, grown by `ids`."""
    ids_1T = torch.tensor([ids], device=model.device)
    out = model(input_ids=ids_1T, past_key_values=cache, use_cache=True, logits_to_keep=1)
    cache = out.past_key_values
    require(
        cache.is_croppable and not any(cache.is_sliding),
        f"{type(model).__name__} has "
        "sliding windows or recurrent states: its cache cannot be shared",
    )
    return cache


def _branch_losses(
    model, cache, cached: int, ends: list[int], rows_BS: list[list[int]], answer: list[int]
) -> list[float]:
    """Mean -log p of the answer at the end of each row, a branch off the cached prefix.

    A row sees the prefix up to its own end only, though the cache may reach further. The cache is
    left as it was.
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
    """The answer's loss after P prefixes of a trajectory of `tokens` tokens.

    ends_P: their lengths, ascending. losses_P: nats a token of the answer. starts_P: whether a turn
    begins there, after the prompt or a tool response. stride: sampled tokens a point.
    """

    ends_P: np.ndarray
    losses_P: np.ndarray
    starts_P: np.ndarray
    tokens: int
    stride: int

    @property
    def deltas_P(self) -> np.ndarray:
        """Change of the loss since the point before, nats; negative is progress, the first NaN."""
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
    """The loss of `answer` along a stored trajectory, at temperature 1.

    Points: the start of every turn, and after each `stride` sampled tokens of `segments` (and after
    the last of a turn) up to the given answer. No answer can follow inside a call: the change at a
    response is that of call and response together.

    answer: None takes metadata["right_answer"]. bridge: text between prefix and answer, tokenised
        by itself; one that closes a thought gets one to close where none is open. Other formats:
        "\\n\\n**Final Answer**\\n\\\\boxed{", or `own_words`.
    think: False takes the thoughts out of the context and measures the starts of turns only.
    """
    if answer is None:
        answer = trajectory.metadata.get("right_answer")
    require(answer is not None, f"trajectory {trajectory.id} names no right_answer; pass answer=")
    require(stride >= 1, f"stride must be at least 1, got {stride}")
    ends_P, starts_P = _select_prefixes(trajectory, stride, segments if think else ())
    # without thoughts the context is shorter, and so are the prefixes in it
    thought_T = trajectory.generated & (trajectory.segments == Segment.THINK)
    kept_T = ~thought_T | think
    lengths_P = np.cumsum(kept_T)[ends_P - 1]
    # at the start of a turn no thought is open yet
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
    """(ends_P, starts_P) of a `Curve`: the prefixes to measure, and which begin a turn.

    That is the start of each turn up to the answer, and in it each `stride`-th token of `segments`
    and the last one.
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
    """A bridge in the policy's words: its last turn up to where it first says `answer`.

    Goes with segments=(): a turn begins with it. ValueError where that turn does not say it.
    """
    text = tokenizer.decode(trajectory.token_ids[_split_turns(trajectory)[-1]])
    require(answer in text, f"the last turn of trajectory {trajectory.id} does not say {answer!r}")
    return text.partition(answer)[0]


def _split_turns(trajectory: Trajectory) -> list[list[int]]:
    """The places of the sampled tokens, a list a turn."""
    at = np.flatnonzero(trajectory.generated)
    require(len(at) and at[0], f"trajectory {trajectory.id} needs a prompt and sampled tokens")
    return [run.tolist() for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)]


def token_class_deltas(
    curve: LossCurve, trajectory: Trajectory, classes: Mapping[str, np.ndarray], seed: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """{name: (deltas_K, matched_K)}: changes at the tokens of a class, and at a partner of each.

    classes: masks bool[T], such as of reflection tokens; "tool response" is added. Tokens without a
    point are left out. Partners are drawn without replacement from the points in no class, in the
    same third of the trajectory; NaN where none is left. ValueError: what does not fit.
    """
    require(
        curve.tokens == len(trajectory) and curve.stride == 1,
        "need the curve of trajectory "
        f"{trajectory.id} with stride=1, so that a change belongs to one token",
    )
    rng = np.random.default_rng(seed)
    token_P = curve.ends_P - 1  # the token that a change belongs to
    members = {RESPONSE: curve.starts_P & (token_P > token_P[0])}
    for name, mask_T in classes.items():
        require(
            np.shape(mask_T) == (curve.tokens,) and name != RESPONSE,
            f"class {name!r} needs another name or a mask of {curve.tokens} tokens",
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
    """loss(model) in the plane of two random directions around the weights: losses_XY, float64.

    A direction has the norm of its parameter; embeddings and output matrix stay. grid: places along
    both; 0, 0 are the weights. They are put back bit for bit, whatever `loss` raises. Memory: three
    copies of them. ValueError: no grid, a loss that is NaN.
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
    """Gaussian noise for each parameter, with that parameter's norm."""
    drawn = [torch.randn(p.shape, generator=generator).to(p) for p in weights]
    return [d * (p.norm() / d.norm()) for d, p in zip(drawn, weights)]


def support_set(groups_N: Sequence, m: int, seed: int) -> Tensor:
    """Select the m random rollouts of each question to train on: keep_N, bool (RaML).

    groups_N: the question of each. The mask is for loss weights: advantages are computed over all.
    ValueError where a question has fewer than m.
    """
    groups_N = np.asarray(groups_N)
    rng = np.random.default_rng(seed)
    keep_N = torch.zeros(len(groups_N), dtype=torch.bool)
    for group in np.unique(groups_N):
        at = np.flatnonzero(groups_N == group)
        require(1 <= m <= len(at), f"cannot keep {m} of the {len(at)} rollouts of question {group}")
        keep_N[rng.permutation(at)[:m]] = True
    return keep_N
