"""Chunked log-probabilities: hidden states to log-probs and entropies without an N x V tensor.

With 150,000 tokens in the vocabulary the logits of one micro-batch are gigabytes, and the ordinary
chain (logits, log-softmax, entropy, gradients) holds several copies; on a CPU the first access to
that memory costs more than arithmetic. Here logits exist one tile at a time, in buffers allocated
once per call. A tile of n tokens and c vocabulary entries yields its maximum m and, of z - m, the
sums S of exp and M of z exp, which combine exactly: lse = m + log S, H = log S - M / S.

Two variants, because the gradient determines what can be discarded:

- `token_logprobs` ("recompute") keeps only the log-sum-exp and recomputes each tile in the backward
  pass: four matrix products instead of three. For any loss on log-probabilities and entropies.
- `fused_policy_gradient` is given every token's weight (strictly on-policy: advantage divided by
  the denominator), so it computes gradients in the forward pass: three products, the backward pass
  only scales, no gradient through the entropy.

Gradients, with temperature T, z = h W^T / T, p = softmax(z), incoming a (log-prob), b (entropy):
    d log p_id / d z_j = 1[j = id] - p_j,    d H / d z_j = -p_j (log p_j + H),
    dz_j = a 1[j = id] - p_j (a + b H + b log p_j),    dh = dz W / T,    dW = dz^T h / T.

bfloat16: logits are rounded as in every bfloat16 head; log-sum-exp, softmax and entropy are
float32. Partial products of dh and dW are rounded once each and added in float32.

Not supported: float64 and float16 inputs, a bias, logit soft-capping, double backward (an error).
There is no Triton kernel: on CUDA these are the same torch calls, not measured yet.
"""

import math
from functools import cache

import torch
from torch import Tensor
from torch.autograd import Function

# Rows and columns of a tile. CPU: fastest of six measured (H=512); CUDA: common values, untuned.
TILES = {"cpu": (256, 4096), "cuda": (4096, 8192)}
# Bytes of the block of whole rows in `fused_policy_gradient` when `chunk` is None.
BLOCK_BYTES = {"cpu": 128 * 10**6, "cuda": 2 * 10**9}


def token_logprobs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    ids_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log-probability of each token and entropy of its distribution, both differentiable.

    Args:
        hidden_NH: float32 or bfloat16 [N, H], the last hidden states; any strides.
        weight_VH: [V, H], the output matrix, same dtype and device. Either may not require
            gradients.
        ids_N: int [N] in 0..V-1. Drop masked positions first: each row costs the same.
        temperature: of the softmax, finite and above 0.
        chunk: (rows, columns) of a tile; None for the device's default. Affects rounding only.

    Returns:
        (logp_N, entropy_N) in nats, float32. Non-finite inputs give NaN, as in torch.

    Raises:
        ValueError: wrong shapes or dtypes, an id out of range, or a temperature or chunk that is
            not positive.
        RuntimeError: two devices, or differentiating twice.
    """
    _check(hidden_NH, weight_VH, ids_N, temperature, chunk)
    chunk = chunk or TILES["cuda" if hidden_NH.is_cuda else "cpu"]
    return _TokenLogprobs.apply(hidden_NH, weight_VH, ids_N.long(), 1 / temperature, chunk)


def fused_policy_gradient(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    ids_N: Tensor,
    coefficient_N: Tensor,
    *,
    temperature: float = 1.0,
    chunk: tuple[int, int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the policy-gradient loss -sum_n coefficient_n log p_n and compute its gradients.

    Only the loss is differentiable; log-probabilities and entropies are for metrics, and there is
    **no gradient through the entropy**. A loss whose weights depend on the log-probabilities (a
    ratio, a KL term) needs `token_logprobs`; without gradients that is cheaper too. The first
    backward pass takes the gradients; a second one is an error. In bfloat16, a weight gradient over
    several blocks is accumulated in float32, which takes V x H more memory.

    Args:
        hidden_NH, weight_VH, ids_N, temperature: as for `token_logprobs`.
        coefficient_N: float [N], constant weight of each token, such as advantage / denominator.
        chunk: (rows, columns); a block of `rows` tokens holds its logits over the whole vocabulary.
            None takes as many rows as fit in 128 MB (2 GB on CUDA).

    Returns:
        (loss, logp_N, entropy_N).

    Raises:
        ValueError: as `token_logprobs`, or a coefficient that is not [N] or requires gradients.
    """
    c, n = coefficient_N, [*ids_N.shape]
    _check(
        hidden_NH,
        weight_VH,
        ids_N,
        temperature,
        chunk,
        [
            (
                c.is_floating_point() and [*c.shape] == n,
                f"coefficient_N must be floats of shape {n}, got {c.dtype} {[*c.shape]}",
            ),
            (not c.requires_grad, "coefficient_N is a constant: detach it, or use token_logprobs"),
        ],
    )
    if chunk is None:
        device = "cuda" if hidden_NH.is_cuda else "cpu"
        rows = BLOCK_BYTES[device] // (len(weight_VH) * hidden_NH.element_size())
        chunk = max(1, rows // 16 * 16), TILES[device][1]
    head = hidden_NH, weight_VH, ids_N.long(), 1 / temperature, chunk
    return _FusedPolicyGradient.apply(*head, coefficient_N)


def _check(hidden, weight, ids, temperature, chunk, more=()) -> None:
    """Raise ValueError for invalid arguments, and unless each of `more` holds."""
    h, w, n = ([*x.shape] for x in (hidden, weight, ids))
    outside = ids[(ids < 0) | (ids >= len(weight))][:1].tolist()
    whole = isinstance(chunk, tuple) and [type(c) is int and c > 0 for c in chunk] == [True] * 2
    for condition, message in (
        (
            len(h) == len(w) == 2 and h[1] == w[1],
            f"hidden_NH [N, H] and weight_VH [V, H] must share H, got {h} and {w}",
        ),
        (w[0], "weight_VH has no rows: a vocabulary needs at least one token"),
        (
            hidden.dtype == weight.dtype and hidden.dtype in (torch.float32, torch.bfloat16),
            f"need two float32 or bfloat16, got {hidden.dtype}, {weight.dtype}: cast one of them",
        ),
        (
            n == h[:1] and not ids.is_floating_point() and ids.dtype != torch.bool,
            f"ids_N must be integers of shape {h[:1]}, got {ids.dtype} {n}",
        ),
        (
            not outside,
            f"ids_N must lie in 0..{len(weight) - 1}, got {outside}: "
            "drop padded positions before the head",
        ),
        (
            math.isfinite(temperature) and temperature > 0,
            f"temperature must be finite and above 0, got {temperature}",
        ),
        (chunk is None or whole, f"chunk must be (rows, columns), integers above 0, got {chunk}"),
        *more,
    ):
        if not condition:
            raise ValueError(message)


def _unset(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate memory that a product will overwrite.

    bfloat16 starts with zeros: if the left factor's rows are not aligned, some CPUs (with AMX) add
    0 times the previous content, which may be NaN.
    """
    make = like.new_zeros if dtype == torch.bfloat16 else like.new_empty
    return make(shape, dtype=dtype)


class _Head:
    """One call: its tiles, their shared buffers, and per-row results."""

    def __init__(self, hidden, weight, ids, scale: float, chunk: tuple[int, int]):
        self.hidden, self.weight, self.ids, self.scale = hidden, weight, ids, scale
        self.rows, self.columns = (  # at least one, so that products write zeros without tokens
            [slice(i, min(i + size, length)) for i in range(0, max(length, 1), size)]
            for length, size in zip((len(hidden), len(weight)), chunk)
        )
        # buffer(name, n, c): uninitialised [n, c], shared by all tiles of that shape
        self.buffer = cache(lambda name, n, c, dtype=torch.float32: _unset(hidden, (n, c), dtype))
        # float64, because a float32 log-sum-exp of 20 is rounded by 1e-6
        self.found_4N = hidden.new_zeros(4, len(hidden), dtype=torch.float64)
        self.tiles_4KN = self.found_4N.new_zeros(4, len(self.columns), len(hidden))

    def logits(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        tokens, part = self.hidden[rows], self.weight[columns]
        out = self.buffer("logits", len(tokens), len(part), tokens.dtype) if out is None else out
        return torch.mm(tokens, part.t(), out=out)

    def _targets(self, rows, columns) -> tuple[Tensor, Tensor]:
        """Return (bool [n]: the id is in the tile; int [n, 1]: its column in the tile, or any)."""
        local, width = self.ids[rows] - columns.start, columns.stop - columns.start
        return (local >= 0) & (local < width), local.clamp(0, width - 1)[:, None]

    def collect(self, k: int, rows: slice, logits: Tensor) -> None:
        """Compute tiles_4KN of a tile: maximum, sum exp, sum z exp, and the id's z if present."""
        top = logits.amax(1).float().mul_(self.scale)
        z, e = self.buffer("z", *logits.shape), self.buffer("e", *logits.shape)
        torch.add(-top[:, None], logits, alpha=self.scale, out=z)  # converts bfloat16 to float32
        total = torch.exp(z, out=e).sum(1)
        inside, local = self._targets(rows, self.columns[k])
        target = (logits.gather(1, local).squeeze(1).double() * self.scale).where(inside, 0)
        self.tiles_4KN[:, k, rows] = torch.stack((top, total, e.mul_(z).sum(1), target))

    def combine(self, rows: slice = slice(None)) -> None:
        """Compute found_4N: log-probability, entropy, maximum and log-sum-exp minus maximum."""
        top_KN, total_KN, moment_KN, target_KN = self.tiles_4KN[:, :, rows]
        top_N = top_KN.amax(0)
        shift_KN = top_KN - top_N
        total_N = (shift_KN.exp() * total_KN).sum(0)
        moment_N = (shift_KN.exp() * (moment_KN + shift_KN * total_KN)).sum(0)
        lse_N = total_N.log()
        logp_N, entropy_N = target_KN.sum(0) - top_N - lse_N, lse_N - moment_N / total_N
        self.found_4N[:, rows] = torch.stack((logp_N, entropy_N, top_N, lse_N))

    def add_product(self, total, left, right, overwrite: bool) -> None:
        """Compute total (+)= left @ right; `total` may have a wider dtype than the factors."""
        if total.dtype == left.dtype:
            total.addmm_(left, right, beta=0 if overwrite else 1)
        else:
            partial = torch.mm(left, right, out=self.buffer("partial", *total.shape, left.dtype))
            total.copy_(partial) if overwrite else total.add_(partial)

    def differentiate(self, rows, columns, logits, a_N, b_N) -> None:
        """Overwrite a tile of logits with dz. With p = e / S and log p = z - m - log S,

        a 1[j = id] - p (a + b H + b log p) = a 1[j = id] - e (a + b (H - log S) + b (z - m)) / S.
        """
        _, entropy, top, log_total = self.found_4N[:, rows]
        a, share, narrow = a_N[rows] * self.scale, (-log_total).exp(), logits.dtype != torch.float32
        work = self.buffer("z", *logits.shape) if narrow else logits
        torch.add(-top.float()[:, None], logits, alpha=self.scale, out=work)
        if b_N is None:
            work.exp_().mul_(-(a * share).float()[:, None])
        else:
            b = b_N[rows] * self.scale * share
            by_e = a * share + b * (entropy - log_total)
            e = torch.exp(work, out=self.buffer("e", *work.shape))
            work.mul_(-b.float()[:, None]).sub_(by_e.float()[:, None]).mul_(e)
        inside, local = self._targets(rows, columns)
        # In float32, before rounding: at p = 1 - 1e-3 a rounded p would lose the gradient.
        work.scatter_add_(1, local, (a * inside).float()[:, None])
        if narrow:
            logits.copy_(work)

    def add_gradients(self, blocks, tile, a_N, b_N, d_hidden, d_weight) -> None:
        """Add dz W to d_hidden (float32) and dz^T h to d_weight; None if not needed.

        Columns are the outer loop, so dW of a column tile is complete before the next begins.

        Args:
            blocks: of rows.
            tile: tile(rows, columns) returns their logits.
            a_N, b_N: incoming gradients of log-probabilities and entropies (or None).
        """
        for columns in self.columns:
            own = total = None if d_weight is None else d_weight[columns]
            if own is not None and own.dtype != torch.float32 and len(blocks) > 1:
                total = self.buffer("d_weight", *own.shape)
            for rows in blocks:
                dz = tile(rows, columns)
                self.differentiate(rows, columns, dz, a_N, b_N)
                if d_hidden is not None:
                    self.add_product(d_hidden[rows], dz, self.weight[columns], columns.start == 0)
                if total is not None:
                    self.add_product(total, dz.t(), self.hidden[rows], rows.start == 0)
            if total is not own:
                own.copy_(total)


class _TokenLogprobs(Function):
    @staticmethod
    def forward(ctx, hidden, weight, ids, scale, chunk):
        head = _Head(hidden, weight, ids, scale, chunk)
        for k, columns in enumerate(head.columns):
            for rows in head.rows:
                head.collect(k, rows, head.logits(rows, columns))
        head.combine()
        # An entropy used only as a metric must not cost a pass: its gradient stays None.
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, ids, head.found_4N)
        ctx.options = scale, chunk
        return tuple(row_N.float() for row_N in head.found_4N[:2])

    @staticmethod
    def backward(ctx, by_logp, by_entropy):
        # torch's once_differentiable would silently treat a gradient penalty as a constant.
        if torch.is_grad_enabled():  # in a backward pass: create_graph=True
            raise RuntimeError(
                "token_logprobs cannot be differentiated twice: set create_graph=False"
            )
        hidden, weight, ids, found = ctx.saved_tensors
        head = _Head(hidden, weight, ids, *ctx.options)
        head.found_4N = found
        by_logp = torch.zeros_like(found[0]) if by_logp is None else by_logp.double()
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        d_hidden = _unset(hidden, hidden.shape, torch.float32) if for_hidden else None
        d_weight = _unset(weight, weight.shape, weight.dtype) if for_weight else None
        head.add_gradients(head.rows, head.logits, by_logp, by_entropy, d_hidden, d_weight)
        return d_hidden.to(hidden.dtype) if for_hidden else None, d_weight, None, None, None


class _FusedPolicyGradient(Function):
    @staticmethod
    def forward(ctx, hidden, weight, ids, scale, chunk, coefficient):
        head, by_logp = _Head(hidden, weight, ids, scale, chunk), -coefficient.double()
        for_hidden, for_weight = ctx.needs_input_grad[:2]
        wide = torch.float32 if len(head.rows) > 1 else weight.dtype
        d_hidden = _unset(hidden, hidden.shape, torch.float32) if for_hidden else None
        d_weight = _unset(weight, weight.shape, wide) if for_weight else None
        # Wider than V: a row stride of a power of two would map rows to the same cache sets.
        memory = _unset(hidden, (head.rows[0].stop, len(weight) + 16), hidden.dtype)
        for rows in head.rows:
            block = memory[: rows.stop - rows.start, : len(weight)]
            for k, columns in enumerate(head.columns):
                head.collect(k, rows, head.logits(rows, columns, out=block[:, columns]))
            head.combine(rows)

            def tile(_, columns, block=block):
                return block[:, columns]

            head.add_gradients([rows], tile, by_logp, None, d_hidden, d_weight)
        ctx.gradients = [d if d is None else d.to(hidden.dtype) for d in (d_hidden, d_weight)]
        logp, entropy = (row_N.float() for row_N in head.found_4N[:2])
        ctx.mark_non_differentiable(logp, entropy)
        return (by_logp * head.found_4N[0]).sum().float(), logp, entropy

    @staticmethod
    def backward(ctx, grad_loss, *_):
        if torch.is_grad_enabled() or ctx.gradients is None:
            raise RuntimeError(
                "fused_policy_gradient cannot be differentiated twice, and its "
                "gradients are available once: see token_logprobs"
            )
        gradients, ctx.gradients = ctx.gradients, None
        for gradient in gradients:
            if gradient is not None and float(grad_loss) != 1:
                gradient.mul_(grad_loss)
        return *gradients, None, None, None, None
