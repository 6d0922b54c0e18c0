"""Entropies of stored trajectories: exact from a model, bounded from top-k, and flat to work with.

- `rescore` runs trajectories through a model again (teacher forcing) and reads the entropy of the
  whole vocabulary at every sampled token. The same tokens under two checkpoints are comparable
  place by place; two samples never are.
- `entropy_bounds` is for servers that return only the most probable tokens. The rest of the mass
  decides the entropy of just those tokens that one looks for, so the result is an interval.
- `token_statistics` lays the sampled tokens of many trajectories out in flat columns (about 30
  bytes a token) for all else here and in `reflection`. Prompts and observations are left out: they
  were not chosen, and JSON and URLs would dominate.
- `high_entropy` marks the top share, by trajectory (rStar2-Agent, section 5.4), over all tokens
  (Beyond the 80/20 rule, arXiv 2506.01939) or above a fixed value. Ties go to the earlier token, so
  that exactly ceil(share n) are marked; `torch.quantile` fails beyond 2^24 elements.

-log p of the sampled token is not its entropy (only its mean is) and is never used as one.
Left out: a streaming percentile (10 million tokens fit), models over several devices.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drlib.analysis.rendering import is_right
from drlib.analysis.segments import gaps
from drlib.checks import require
from drlib.policy.kernels import token_logprobs
from drlib.policy.replay import record_routes
from drlib.rl.divergences import top_entropy_mask
from drlib.trajectory import Segment, ToolResult, Trajectory, iter_trajectories

FIXED = 0.672  # nats: the 80th percentile of Qwen3-8B (arXiv 2506.01939), and of no other model
STATUSES = ("none", "ok", "error", "empty")  # of the response that a token follows
_ROWS = 512  # tokens whose logits are held at a time where alternatives are wanted


def rescore(
    model,
    trajectories: Iterable[Trajectory],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    experts: bool = False,
    batch_tokens: int = 8192,
) -> Iterator[Trajectory]:
    """The same trajectories with what `model` says about their sampled tokens; a few at a time.

    model: a Hugging Face causal language model.
    temperature: of the rollout, above 0. top_k: alternatives to keep a token.
    experts: also record the experts of every token (softmax top-k routers, see `policy.replay`).
    batch_tokens: padded tokens in a forward pass, or one trajectory.

    Log-probabilities and entropies (nats, float32) are those of the full vocabulary. A token that
    nothing precedes gets NaN. ValueError: an id beyond the model's vocabulary, or a trajectory
    longer than its positions; a model in training mode.
    """
    size = model.get_input_embeddings().num_embeddings
    require(not model.training, "the model is in training mode; call model.eval() first")
    require(0 < temperature < math.inf, f"temperature must be finite and above 0: {temperature}")
    require(0 <= top_k <= size, f"top_k must lie in 0..{size}, the vocabulary, got {top_k}")
    how, batch = (model, _head(model), temperature, top_k, experts), []
    for t in chain(trajectories, [None]):  # None: the end
        if batch and (t is None or max(map(len, [*batch, t])) * (len(batch) + 1) > batch_tokens):
            yield from _rescored(batch, *how)
            batch = []
        batch.append(t)


def _rescored(batch, model, head, temperature, top_k, experts) -> list[Trajectory]:
    """Not a generator: between its yields the caller would have no gradients, and our hooks."""
    _check_fits(model, batch)
    ids_BT = torch.zeros(len(batch), max(1, *map(len, batch)), dtype=torch.long)
    for row_T, t in zip(ids_BT, batch):
        row_T[: len(t)] = torch.from_numpy(t.token_ids)
    real_BT = torch.arange(ids_BT.shape[1]) < torch.tensor([[len(t)] for t in batch])
    device, done = model.device, []
    inputs = dict(input_ids=ids_BT.to(device), attention_mask=real_BT.long().to(device))
    with torch.no_grad(), record_routes(model) if experts else nullcontext() as routes:
        out_BTX = head.run(**inputs, use_cache=False)[0]
        for b, t in enumerate(batch):
            at_N = torch.from_numpy(np.flatnonzero(t.generated[1:]))  # of the tokens before
            ids_N = ids_BT[b, at_N + 1].to(device)
            read = _read(out_BTX[b, at_N.to(device)], ids_N, head, temperature, top_k)
            changes = {name: _spread(t, values) for name, values in read.items()}
            if experts:
                by_row = routes.passes[0].unflatten(1, ids_BT.shape)[:, b, : len(t)]
                changes["routed_experts"] = by_row.transpose(0, 1).cpu().numpy().astype(np.uint16)
            done.append(replace(t, **changes))
    return done


class _Head(NamedTuple):
    """How logits come about: logits(rows of run(...)[0]). weight: the matrix, where that is all."""

    run: Callable
    logits: Callable[[Tensor], Tensor]
    weight: Tensor | None


def _head(model) -> _Head:
    """The head that gives the model's own logits, tried on a few tokens.

    Biases and caps are applied to a few rows at a time. Logits that come about in another way are
    taken whole: then a forward pass needs room for tokens x vocabulary numbers.
    """
    out, run = model.get_output_embeddings(), model.get_decoder()
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)

    def logits(hidden: Tensor) -> Tensor:
        return out(hidden) if cap is None else cap * torch.tanh(out(hidden) / cap)

    size = model.get_input_embeddings().num_embeddings
    ids_1T = torch.arange(min(4, size), device=model.device)[None]
    with torch.no_grad():
        theirs = model(input_ids=ids_1T, use_cache=False).logits
        ours = None if out is None else logits(run(input_ids=ids_1T, use_cache=False)[0])
    if ours is None or not torch.equal(theirs, ours):
        return _Head(model, lambda whole: whole, None)
    plain = cap is None and getattr(out, "bias", None) is None
    return _Head(run, logits, out.weight if plain else None)


def _check_fits(model, batch: list[Trajectory]) -> None:
    size = model.get_input_embeddings().num_embeddings
    longest = getattr(model.config, "max_position_embeddings", None) or math.inf
    for t in batch:
        fits = not len(t) or 0 <= t.token_ids.min() <= t.token_ids.max() < size
        require(
            fits,
            f"trajectory {t.id} has ids beyond the model's vocabulary of {size}: "
            "it was made with another tokenizer",
        )
        require(
            len(t) <= longest,
            f"trajectory {t.id} has {len(t)} tokens, the model {longest} "
            "positions: cut it, or take a model with a longer context",
        )


def _read(before_NX, ids_N, head: _Head, temperature: float, top_k: int) -> dict[str, Tensor]:
    """What is said about ids_N by the rows of `head.run` before them."""
    if head.weight is not None and not top_k:
        fit = head.weight.dtype in (torch.float32, torch.bfloat16)
        both = (before_NX, head.weight) if fit else (before_NX.float(), head.weight.float())
        logp_N, entropy_N = token_logprobs(*both, ids_N, temperature=temperature)
        return dict(logprobs=logp_N, entropies=entropy_N)
    parts = []
    for part_NX, ids in zip(before_NX.split(_ROWS), ids_N.split(_ROWS)):
        logp_NV = (head.logits(part_NX).float() / temperature).log_softmax(-1)
        entropy_N = torch.special.entr(logp_NV.exp()).sum(-1)
        tops = logp_NV.topk(top_k, dim=-1) if top_k else ()
        parts.append((logp_NV.gather(1, ids[:, None])[:, 0], entropy_N, *tops))
    names = ("logprobs", "entropies", "top_logprobs", "top_ids")
    return {name: torch.cat(some) for name, some in zip(names, zip(*parts))}


def _spread(trajectory: Trajectory, values_N: Tensor) -> np.ndarray:
    """Values of the sampled tokens, the first token's apart, in an array over all tokens."""
    values = values_N.cpu().numpy()
    ids = values.dtype.kind == "i"
    other, first, dtype = (-1, -1, np.int32) if ids else (0, np.nan, np.float32)
    out = np.full((len(trajectory), *values.shape[1:]), other, dtype)
    out[1:][trajectory.generated[1:]] = values
    out[:1][trajectory.generated[:1]] = first
    return out


def entropy_bounds(top_logprobs_NK: np.ndarray, vocabulary: int) -> tuple[np.ndarray, ...]:
    """(lowest_N, highest_N, tail_N): what the K most probable tokens say about the entropy, nats.

    top_logprobs_NK: best first, at temperature 1 and not cut by top-p or top-k. vocabulary: V.
    tail_N is the probability of the others: as few as can hold it (none is above the K-th) give the
    lower bound, all V - K alike the upper. At a tail of 5% the two are often a nat apart.

    ValueError: positive or NaN values, probabilities that add up to more than 1, K above V.
    """
    logp = np.asarray(top_logprobs_NK, np.float64)
    p, entr = np.exp(logp), lambda p: -p * np.log(np.where(p > 0, p, 1))
    require(
        logp.ndim == 2 and 1 <= logp.shape[1] <= vocabulary,
        "top_logprobs: need [N, K] with K "
        f"from 1 to the vocabulary of {vocabulary}, got {logp.shape}",
    )
    require((logp <= 1e-6).all(), "top_logprobs must not be NaN or positive")
    require((p.sum(-1) <= 1.001).all(), "top_logprobs add up to more than 1: a token twice?")
    known, rest = entr(p).sum(-1), vocabulary - logp.shape[1]
    tail = np.clip(1 - p.sum(-1), 0, 1) * (rest > 0)
    cap = np.minimum(p[:, -1], tail)
    full = np.floor(tail / np.where(cap > 0, cap, np.inf))
    low = full * entr(cap) + entr(np.clip(tail - full * cap, 0, None))
    high = entr(tail) + tail * math.log(max(1, rest))
    return known + np.minimum(low, high), known + high, tail


@dataclass(frozen=True)
class TokenTable:
    """The N sampled tokens of M trajectories, in order, one entry a token in each column.

    names: ids of the M trajectories; right_M: 1 right, 0 wrong, NaN not judged.
    row, position: int32, which trajectory, and where in it.
    token_id int32, segment uint8 (`Segment`), turn uint16, logprob and entropy float32 (nats).
    offset: int32, sampled tokens before it in its turn.
    since: int32, sampled tokens since the last tool response; -1 before the first, and after a
        person's words.
    status: uint8, of that response, an index into `STATUSES`.
    """

    names: list[str]
    right_M: np.ndarray
    row: np.ndarray
    position: np.ndarray
    token_id: np.ndarray
    segment: np.ndarray
    turn: np.ndarray
    logprob: np.ndarray
    entropy: np.ndarray
    offset: np.ndarray
    since: np.ndarray
    status: np.ndarray

    def __len__(self) -> int:
        return len(self.row)

    def inside(self, *segments: Segment) -> np.ndarray:
        """bool_N: the token is in one of the segments; in any where none is named."""
        return np.isin(self.segment, segments) if segments else np.ones(len(self), bool)

    def starts(self) -> np.ndarray:
        """Where each trajectory's tokens begin, and the end: int64[M + 1]."""
        return np.searchsorted(self.row, np.arange(len(self.names) + 1))

    def known(self, name: str) -> np.ndarray:
        """The column `entropy` or `logprob`; ValueError names the first token without a value."""
        values = getattr(self, name)
        bad = np.flatnonzero(~np.isfinite(values))
        at = bad[0] if len(bad) else 0
        require(
            not len(bad),
            f"{len(bad)} of {len(self)} tokens have no {name} (first: trajectory "
            f"{self.names[self.row[at]]}, token {self.position[at]}): run the file through a "
            "model with entropy.rescore",
        )
        return values


Source = str | Path | Iterable[Trajectory]
_UNUSED = ("routed_experts", "top_ids", "top_logprobs")  # here, and large


def token_statistics(source: Source) -> TokenTable:
    """The sampled tokens of a trajectory file (read as a stream) or of trajectories.

    ValueError: no trajectories, none with sampled tokens, an id twice, or responses without result.
    """
    path = isinstance(source, str | Path)
    stream = iter_trajectories(source, without=_UNUSED) if path else source
    rows = [(t.id, outcome(t), _columns(row, t)) for row, t in enumerate(stream)]
    names, right, parts = ([row[k] for row in rows] for k in range(3))
    require(
        any(len(part[0]) for part in parts),
        f"{len(names)} trajectories without a sampled token: nothing to analyse",
    )
    ((name, times),) = Counter(names).most_common(1)
    require(times == 1, f"the id {name!r} occurs {times} times; give each trajectory its own")
    return TokenTable(names, np.array(right), *map(np.concatenate, zip(*parts)))


def outcome(trajectory: Trajectory) -> float:
    """1 right, 0 wrong, NaN not judged: by its reward (right from 0.5 on), or, without one, by the
    right answer in its metadata."""
    if trajectory.reward is not None and not math.isnan(trajectory.reward):
        return float(trajectory.reward >= 0.5)
    if trajectory.metadata.get("right_answer") is None:
        return math.nan
    return float(is_right(trajectory))


def responses(trajectory: Trajectory) -> list[tuple[int, int, str]]:
    """(start, end, status) of each tool response that was followed by a sampled token.

    Tokens start..end-1 are what the environment wrote, template included, so that a response
    without text counts; a person's words do not. Status as in `STATUSES`. ValueError: more of them
    than tool results.
    """
    runs = [run for run in _observed(trajectory) if run[2]]
    results = trajectory.tool_results
    require(
        len(runs) <= len(results),
        f"trajectory {trajectory.id}: {len(runs)} tool responses "
        f"for {len(results)} tool results; give one ToolResult a response",
    )
    return [(start, end, status_of(result)) for (start, end, _), result in zip(runs, results)]


def _observed(trajectory: Trajectory) -> list[tuple[int, int, bool]]:
    """(start, end, whether it is a tool's response) of each run between sampled tokens."""
    runs = []
    for start, end in gaps(trajectory.generated):
        seen = {*trajectory.segments[start:end].tolist()}
        runs.append((start, end, Segment.TOOL_RESPONSE in seen or Segment.PROMPT not in seen))
    return runs


def status_of(result: ToolResult) -> str:
    if result.ok:
        return "ok" if result.text.strip() else "empty"
    return "empty" if result.error == "empty" else "error"


def _columns(row: int, t: Trajectory) -> tuple[np.ndarray, ...]:
    """The columns of `TokenTable` from `row` on, for one trajectory."""
    at = np.flatnonzero(t.generated[1:]) + 1  # what nothing precedes was drawn from nothing
    count = np.arange(len(at), dtype=np.int32)
    begins = np.diff(at, prepend=-2) > 1
    offset = count - np.maximum.accumulate(np.where(begins, count, 0))
    since, status = np.full(len(at), -1, np.int32), np.zeros(len(at), np.uint8)
    names = iter([name for *_, name in responses(t)])
    for _, end, response in _observed(t):
        first = np.searchsorted(at, end)
        since[first:] = count[first:] - first if response else -1
        status[first:] = STATUSES.index(next(names) if response else "none")
    unknown = np.full(len(t), np.nan, np.float32)
    entropies = unknown if t.entropies is None else t.entropies
    return (
        np.full(len(at), row, np.int32),
        at.astype(np.int32),
        t.token_ids[at],
        t.segments[at],
        t.turns[at],
        t.logprobs[at],
        entropies[at],
        offset.astype(np.int32),
        since,
        status,
    )


def high_entropy(
    table: TokenTable,
    share: float = 0.2,
    scope: Literal["trajectory", "batch", "fixed"] = "batch",
    *,
    within: np.ndarray | None = None,
    threshold: float = FIXED,
) -> np.ndarray:
    """bool_N: the tokens of high entropy, among those of `within` (bool_N; all when None).

    scope: the top `share` of each trajectory's tokens (rStar2-Agent), or of all ("batch", 80/20):
    exactly ceil(share n) of them, ties to the earlier one; or "fixed": entropy at or above
    `threshold` nats. ValueError: a share outside 0..1, an entropy that is not known.
    """
    require(0 <= share <= 1, f"share must lie in 0..1, got {share}")
    entropy = table.known("entropy")
    within = np.ones(len(table), bool) if within is None else within
    if scope == "fixed":
        return within & (entropy >= threshold)
    chosen = np.flatnonzero(within)
    cuts = np.searchsorted(table.row[chosen], np.arange(len(table.names) + 1))
    groups = zip(cuts, cuts[1:]) if scope == "trajectory" else [(0, len(chosen))]
    mask = np.zeros(len(table), bool)
    for start, end in groups:
        part = chosen[start:end]
        mask[part[top_share(entropy[part], share)]] = True
    return mask


def top_share(values: np.ndarray, share: float) -> np.ndarray:
    """Indices of the ceil(share n) largest values of a float column, in order; of equal ones the
    first: as `rl.divergences.top_entropy_mask` chooses the tokens that learn."""
    if share == 0:
        return np.empty(0, np.int64)
    values_1N = torch.from_numpy(np.ascontiguousarray(values))[None]
    everywhere_1N = torch.ones_like(values_1N, dtype=torch.bool)
    chosen_1N = top_entropy_mask(values_1N, everywhere_1N, share)
    return np.flatnonzero(chosen_1N[0].numpy())


def overlap(base: TokenTable, other: TokenTable, share: float = 0.2, bins: int = 10) -> dict:
    """How much of the high-entropy tokens two models share, on the same tokens.

    Returns `overlap`: |top(base) and top(other)| / |top(base)| by batch (`share` of the tokens
    each; chance gives `share`), and `base`, `change`, `tokens`: mean entropy under the base, mean
    change and number of tokens in `bins` bins of equally many, ordered by entropy under the base.

    Source: arXiv 2506.01939, section 3. ValueError: the tables hold other tokens.
    """
    columns = ("names", "row", "position", "token_id")
    same = all(np.array_equal(getattr(base, name), getattr(other, name)) for name in columns)
    require(
        same,
        "the two tables hold different tokens: run one file through both models "
        "(entropy.rescore); samples of two policies cannot be compared by place",
    )
    tops = [high_entropy(table, share) for table in (base, other)]
    before, after = base.known("entropy"), other.known("entropy")
    order = np.array_split(np.argsort(before, kind="stable"), min(bins, len(before)))
    return {
        "overlap": float((tops[0] & tops[1]).sum() / max(1, tops[0].sum())),
        "base": [float(before[some].mean()) for some in order],
        "change": [float((after[some] - before[some]).mean()) for some in order],
        "tokens": [len(some) for some in order],
    }


def summary(table: TokenTable) -> dict[str, float]:
    """What is told of a set of tokens first: sizes, mean, 80th percentiles, share near zero."""
    entropy, starts = table.known("entropy"), table.starts()
    own = [np.quantile(entropy[a:b], 0.8) for a, b in zip(starts, starts[1:]) if b > a]
    return {
        "trajectories": len(table.names),
        "tokens": len(table),
        "mean_entropy": float(entropy.mean(dtype=np.float64)),
        "p80_batch": float(np.quantile(entropy, 0.8)),
        "p80_trajectory": float(np.median(own)),
        "share_above_fixed": float((entropy >= FIXED).mean()),
        "share_below_0.01": float((entropy < 0.01).mean()),
    }


def token_texts(tokenizer, ids: Sequence[int] | np.ndarray) -> np.ndarray:
    """The text of each token, an object array; pieces add up to the decoded text.

    Each is decoded behind another token, because many tokenizers drop a leading space at the start.
    A token that is part of a character shows U+FFFD, and so does an id that the tokenizer does not
    have (models are padded, and may sample one). ValueError where those are more than 1 in 100.
    """
    unique, place, counts = np.unique(np.asarray(ids), return_inverse=True, return_counts=True)
    own = (unique >= 0) & (unique < len(tokenizer))
    odd, total = counts[~own].sum(), counts.sum()
    require(
        odd <= 0.01 * total,
        f"{odd} of {total} ids are none of the tokenizer's "
        f"{len(tokenizer)}: another one made the trajectories",
    )
    anchor = tokenizer.encode("a", add_special_tokens=False)
    before = tokenizer.decode(anchor)
    texts = np.full(len(unique), "\ufffd", object)
    for i in np.flatnonzero(own):
        texts[i] = tokenizer.decode([*anchor, int(unique[i])]).removeprefix(before)
    return texts[place.reshape(-1)]
