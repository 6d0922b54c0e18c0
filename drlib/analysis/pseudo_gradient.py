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
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drlib.checks import require
from drlib.training.batches import portions
from drlib.trajectory import Segment, Trajectory

BRIDGE = "</think><answer>"  # of our format (`drlib.format`)
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
    context, bridge, answer = ([*map(int, ids)] for ids in (context_ids, bridge_ids, answer_ids))
    ends_P, vocabulary = np.array(prefix_ends, int), len(model.get_input_embeddings().weight)
    longest = getattr(model.config, "max_position_embeddings", None) or math.inf
    require(bool(answer), "the answer has no tokens; give one that tokenises to something")
    require(
        len(ends_P) > 0 and ends_P.min() >= 1 and ends_P.max() <= len(context),
        f"prefix ends must be one or more of 1..{len(context)}, got {prefix_ends}",
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
    each, place_P = np.unique(ends_P, return_inverse=True)
    # the last token of a prefix begins its branch: its logits may be the answer's first
    tail, cache, done, losses = bridge + answer[:-1], None, 0, []
    tensor = partial(torch.tensor, device=model.device)
    for ends in portions(each.tolist(), lambda end: end + len(tail), batch_tokens):
        if more := context[done : max(ends[-1] - 1, 1)]:
            out = model(
                input_ids=tensor([more]), past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            cache, done = out.past_key_values, done + len(more)
            require(
                cache.is_croppable and not any(cache.is_sliding),
                f"{type(model).__name__} has "
                "sliding windows or recurrent states: its cache cannot be shared",
            )
        ids_BS = tensor([[context[end - 1], *tail] for end in ends])
        starts_B1 = tensor(ends)[:, None] - 1
        seen_BC = torch.cat([tensor(range(done)) < starts_B1, ids_BS >= 0], dim=1)
        cache.batch_repeat_interleave(len(ends))
        out = model(
            input_ids=ids_BS,
            attention_mask=seen_BC.long(),
            past_key_values=cache,
            use_cache=True,
            position_ids=starts_B1 + tensor(range(ids_BS.shape[1])),
            logits_to_keep=len(answer),
        )
        cache.crop(-ids_BS.shape[1])  # as it was
        cache.batch_select_indices(tensor([0]))
        answers_N = tensor(answer * len(ends))
        loss_N = F.cross_entropy(out.logits.float().flatten(0, 1), answers_N, reduction="none")
        losses += loss_N.double().view(len(ends), -1).mean(1).tolist()
    require(np.isfinite(losses).all(), "a loss is not finite: check the model's weights")
    return np.array(losses)[place_P]


@dataclass(frozen=True, eq=False)
class Curve:
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
) -> Curve:
    """The loss of `answer` along a stored trajectory, at temperature 1.

    Points: the start of every turn, and after each `stride` sampled tokens of `segments` (and after
    the last of a turn) up to the given answer. No answer can follow inside a call: the change at a
    response is that of call and response together.

    answer: None takes metadata["right_answer"]. bridge: text between prefix and answer, tokenised
        by itself; one that closes a thought gets one to close where none is open. Other formats:
        "\\n\\n**Final Answer**\\n\\\\boxed{", or `own_words`.
    think: False takes the thoughts out of the context and measures the starts of turns only.
    """
    answer = trajectory.metadata.get("right_answer") if answer is None else answer
    require(answer is not None, f"trajectory {trajectory.id} names no right_answer; pass answer=")
    require(stride >= 1, f"stride must be at least 1, got {stride}")
    runs, of_T, points = _runs(trajectory), trajectory.segments, {}
    last = next((t for run in runs for t in run if of_T[t] == Segment.ANSWER), len(of_T))
    for run in runs:
        inside = [t for t in run if think and of_T[t] in segments and t < last]
        points |= {run[0]: True} if run[0] <= last else {}
        points |= {t + 1: False for t in [*inside[stride - 1 :: stride], *inside[-1:]]}
    ends_P, starts_P = (np.array(column) for column in zip(*sorted(points.items())))
    kept_T = ~(trajectory.generated & (trajectory.segments == Segment.THINK)) | think
    lengths_P, losses_P = np.cumsum(kept_T)[ends_P - 1], np.zeros(len(ends_P))
    opened = "<think>" * bridge.startswith("</think>") + bridge
    for some_P, text in ((starts_P, opened), (~starts_P, bridge)):
        if some_P.any():
            ids = [tokenizer.encode(part, add_special_tokens=False) for part in (answer, text)]
            losses_P[some_P] = answer_losses(
                model,
                trajectory.token_ids[kept_T],
                lengths_P[some_P],
                *ids,
                batch_tokens=batch_tokens,
            )
    return Curve(ends_P, losses_P, starts_P, len(trajectory), stride)


def own_words(tokenizer, trajectory: Trajectory, answer: str) -> str:
    """A bridge in the policy's words: its last turn up to where it first says `answer`.

    Goes with segments=(): a turn begins with it. ValueError where that turn does not say it.
    """
    text = tokenizer.decode(trajectory.token_ids[_runs(trajectory)[-1]])
    require(answer in text, f"the last turn of trajectory {trajectory.id} does not say {answer!r}")
    return text.partition(answer)[0]


def _runs(trajectory: Trajectory) -> list[list[int]]:
    """The places of the sampled tokens, a list a turn."""
    at = np.flatnonzero(trajectory.generated)
    require(len(at) and at[0], f"trajectory {trajectory.id} needs a prompt and sampled tokens")
    return [run.tolist() for run in np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)]


def token_class_deltas(
    curve: Curve, trajectory: Trajectory, classes: Mapping[str, np.ndarray], seed: int
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
    rng, token_P = np.random.default_rng(seed), curve.ends_P - 1
    members = {RESPONSE: curve.starts_P & (token_P > token_P[0])}
    for name, mask_T in classes.items():
        require(
            np.shape(mask_T) == (curve.tokens,) and name != RESPONSE,
            f"class {name!r} needs another name or a mask of {curve.tokens} tokens",
        )
        members[name] = np.asarray(mask_T, bool)[token_P] & ~curve.starts_P
    third_P, found = 3 * token_P // curve.tokens, {}
    free_P = ~np.any([*members.values(), curve.starts_P], axis=0)
    for name, at_P in members.items():
        matched_P = np.full(len(token_P), np.nan)
        for third in range(3):
            mine, others = (np.flatnonzero(x_P & (third_P == third)) for x_P in (at_P, free_P))
            drawn = rng.permutation(others)[: len(mine)]
            matched_P[rng.permutation(mine)[: len(drawn)]] = curve.deltas_P[drawn]
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
    embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    skipped = {id(m.weight) for m in (model.get_output_embeddings(), *embeddings)}
    weights = [p for p in model.parameters() if id(p) not in skipped]
    kept, generator = [p.clone() for p in weights], torch.Generator().manual_seed(seed)
    planes = [[torch.randn(p.shape, generator=generator).to(p) for p in weights] for _ in "xy"]
    a, b = ([d * (p.norm() / d.norm()) for d, p in zip(plane, weights)] for plane in planes)
    losses = []
    try:
        for x, y in ((float(x), float(y)) for x in grid for y in grid):
            for p, w, dx, dy in zip(weights, kept, a, b):
                p.copy_(w.add(dx, alpha=x).add_(dy, alpha=y))
            losses.append(float(loss(model)))
            require(not math.isnan(losses[-1]), f"the loss is NaN at {x}, {y}; narrow the grid")
    finally:
        for p, w in zip(weights, kept):
            p.copy_(w)
    return np.array(losses).reshape(len(grid), -1)


def support_set(groups_N: Sequence, m: int, seed: int) -> Tensor:
    """Which rollouts are trained on when each question keeps m random ones: keep_N, bool (RaML).

    groups_N: the question of each. The mask is for loss weights: advantages are computed over all.
    ValueError where a question has fewer than m.
    """
    groups_N, rng = np.asarray(groups_N), np.random.default_rng(seed)
    keep_N = torch.zeros(len(groups_N), dtype=torch.bool)
    for group in np.unique(groups_N):
        at = np.flatnonzero(groups_N == group)
        require(1 <= m <= len(at), f"cannot keep {m} of the {len(at)} rollouts of question {group}")
        keep_N[rng.permutation(at)[:m]] = True
    return keep_N
