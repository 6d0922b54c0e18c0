"""Forward pass of a Qwen3-MoE policy over a key-value cache.

This is the arithmetic half of the local engine; `engine` holds the scheduling half. It re-reads
the Hugging Face weights into fused copies: query, key and value in one matrix, RMSNorm gains
folded into the matrix that follows, rotary pairs laid out as complex numbers. It is an
independent forward pass, so a test holds it against the trainer's.

A cache row belongs to one request. Rows are contiguous, so a decode step works on the views
`rows[0:n]` and copies nothing; attention runs in blocks of rows, each only as long as its longest
request. Left out: paged caches (a row is `max_context` long), half precision, several devices.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

_ROW_BLOCK = 32  # rows whose attention shares one length
_DENSE_ROWS = 32  # up to here all experts at once beat sorting tokens by expert (measured)


class Decoder:
    """Fused weights and the key-value cache of `rows` requests of at most `max_context` tokens."""

    def __init__(self, model, rows: int, max_context: int):
        config = model.config
        if max_context > config.max_position_embeddings:
            raise ValueError(
                f"max_context={max_context} exceeds the model's max_position_embeddings="
                f"{config.max_position_embeddings}: lower it or build a longer model"
            )
        dense = config.mlp_only_layers or config.decoder_sparse_step != 1
        if dense or not config.norm_topk_prob:
            raise ValueError("the local engine needs norm_topk_prob and every layer sparse")
        self.config, self.rows, self.max_context = config, rows, max_context
        self.vocab_size = config.vocab_size
        self.dim, self.n_heads = config.head_dim, config.num_attention_heads
        self.n_kv = config.num_key_value_heads
        self.device = model.lm_head.weight.device
        shape = (config.num_hidden_layers, rows, self.n_kv, max_context, self.dim)
        self.keys = torch.zeros(shape, device=self.device)
        self.values = torch.zeros(shape, device=self.device)
        self.columns = torch.arange(max_context, device=self.device)
        pairs = torch.arange(0, self.dim, 2, device=self.device, dtype=torch.float32) / self.dim
        inv_freq = 1.0 / (config.rope_parameters["rope_theta"] ** pairs)
        angle = self.columns.float()[:, None] * inv_freq
        self.turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        self.load(model)

    @torch.no_grad()
    def load(self, model) -> None:
        """Re-read the weights of `model` (same shape as at construction)."""
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "head_dim", "num_experts"):
            if getattr(model.config, name) != getattr(self.config, name):
                raise ValueError(f"the new model differs in {name}: build a new engine for it")
        self.embedding = model.model.embed_tokens.weight.detach().float().clone()
        self.head = model.lm_head.weight.detach().float() * model.model.norm.weight.float()
        self.layers = [self._fuse(layer) for layer in model.model.layers]

    def _fuse(self, layer) -> dict[str, torch.Tensor]:
        """One layer's fused matrices, each stored [in, out] except the grouped expert weights."""
        attention, experts = layer.self_attn, layer.mlp.experts
        half = self.dim // 2
        # HF pairs coordinate i with i + half; as complex numbers the two must be neighbours.
        order = torch.arange(self.dim).view(2, half).t().reshape(-1)

        def paired(weight, heads):
            return weight.view(heads, self.dim, -1)[:, order].reshape(heads * self.dim, -1)

        query = paired(attention.q_proj.weight, self.n_heads)
        key = paired(attention.k_proj.weight, self.n_kv)
        qkv = torch.cat([query, key, attention.v_proj.weight]) * layer.input_layernorm.weight
        gains = [attention.q_norm.weight[order] * self.dim**-0.5] * self.n_heads
        gains += [attention.k_norm.weight[order]] * self.n_kv
        norm, down = layer.post_attention_layernorm.weight, experts.down_proj
        gate_up = experts.gate_up_proj * norm
        gate, up = gate_up.chunk(2, dim=1)
        hidden = gate_up.shape[-1]
        fused = {
            "qkv": qkv.t(),
            "qk_gain": torch.stack(gains),
            "out": attention.o_proj.weight.t(),
            "router": (layer.mlp.gate.weight * norm).t(),
            "gate_up": gate_up.transpose(1, 2),
            "down": down.transpose(1, 2),
            "dense_in": torch.cat([gate.reshape(-1, hidden), up.reshape(-1, hidden)]).t(),
            "dense_out": down.permute(0, 2, 1).reshape(-1, hidden),
        }
        return {k: v.detach().float().contiguous().clone() for k, v in fused.items()}

    # ---- the two passes

    def decode(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """Feed one token to each of rows 0..N-1 at its position; logits [N, V] of the next."""
        n = len(ids_N)
        blocks = self._row_blocks(positions_N)
        rows = torch.arange(n, device=self.device)
        turn = self.turn[positions_N]
        x = self.embedding[ids_N]
        for index, w in enumerate(self.layers):
            q, keys, values = self._qkv(index, x, w, turn, rows, positions_N)
            x = torch.addmm(x, self._attend_rows(q, keys, values, blocks), w["out"])
            x = self._experts(x, w)
        return self._logits(x)

    def prefill(self, rows: list[int], starts: list[int], chunks: list) -> torch.Tensor:
        """Feed each chunk (numpy ids) into its row from `start` on; logits [M, V] after its end.

        Linear layers see the tokens of all chunks end to end, with no padding; attention alone is
        padded to the longest chunk. The last layer goes on with the last token of a chunk only.
        """
        plan = _ChunkPlan(rows, starts, chunks, self.columns, self.device)
        turn = self.turn[plan.positions_T]
        x = self.embedding[plan.ids_T]
        for index, w in enumerate(self.layers):
            q, keys, values = self._qkv(index, x, w, turn, plan.rows_T, plan.positions_T)
            if index == len(self.layers) - 1:
                x, q = x[plan.last_M], q[plan.last_M]
                plan.keep_last_token()
            x = torch.addmm(x, self._attend_chunks(q, keys, values, plan), w["out"])
            x = self._experts(x, w)
        return self._logits(x)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cached tokens of a row to another row."""
        for cache in (self.keys, self.values):
            cache[:, target, :, :length] = cache[:, source, :, :length]

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` cached tokens of two rows."""
        for cache in (self.keys, self.values):
            kept = cache[:, a, :, :length].clone()
            cache[:, a, :, :length] = cache[:, b, :, :length]
            cache[:, b, :, :length] = kept

    # ---- parts

    def _logits(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(self._norm(x), self.head)

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), eps=self.config.rms_norm_eps)

    def _qkv(self, index, x, w, turn, rows_T, positions_T):
        """Rotated, scaled queries [T, heads, d]; the layer's caches, with keys and values added."""
        n_rotated = self.n_heads + self.n_kv
        qkv = torch.mm(self._norm(x), w["qkv"]).view(len(x), n_rotated + self.n_kv, self.dim)
        qk = self._norm(qkv[:, :n_rotated]).mul_(w["qk_gain"])
        pairs = torch.view_as_complex(qk.view(len(x), n_rotated, self.dim // 2, 2))
        qk = torch.view_as_real(pairs * turn).view(len(x), n_rotated, self.dim)
        keys, values = self.keys[index], self.values[index]
        keys[rows_T, :, positions_T] = qk[:, self.n_heads :]
        values[rows_T, :, positions_T] = qkv[:, n_rotated:]
        return qk[:, : self.n_heads], keys, values

    def _row_blocks(self, positions_N):
        """(first row, last row, length, additive mask) of each block of rows."""
        blocks = []
        for first in range(0, len(positions_N), _ROW_BLOCK):
            positions = positions_N[first : first + _ROW_BLOCK]
            length = int(positions.max()) + 1
            hidden = self.columns[:length] > positions[:, None]
            mask = torch.zeros(hidden.shape, device=self.device).masked_fill_(hidden, -torch.inf)
            mask = mask.repeat_interleave(self.n_kv, 0)[:, None]
            blocks.append((first, first + len(positions), length, mask))
        return blocks

    def _attend_rows(self, q, keys, values, blocks):
        """Attention of one query a row; the query heads of a KV head are one small matrix."""
        kv, group, dim = self.n_kv, self.n_heads // self.n_kv, self.dim
        q = q.reshape(-1, group, dim)
        out = torch.empty_like(q)
        for first, last, length, mask in blocks:
            k = keys[first:last].view(-1, self.max_context, dim)[:, :length]
            v = values[first:last].view(-1, self.max_context, dim)[:, :length]
            scores = torch.baddbmm(mask, q[first * kv : last * kv], k.transpose(1, 2))
            torch.bmm(torch.softmax(scores, -1), v, out=out[first * kv : last * kv])
        return out.view(-1, self.n_heads * dim)

    def _attend_chunks(self, q, keys, values, plan):
        padded = q.new_zeros(len(plan.rows), plan.width, self.n_heads, self.dim)
        padded[plan.chunk_T, plan.offset_T] = q
        k, v = keys[plan.rows, :, : plan.length], values[plan.rows, :, : plan.length]
        out = F.scaled_dot_product_attention(
            padded.transpose(1, 2), k, v, attn_mask=plan.visible, scale=1.0, enable_gqa=True
        )
        return out.transpose(1, 2)[plan.chunk_T, plan.offset_T].flatten(1)

    def _experts(self, x, w):
        """x plus the weighted outputs of each token's top experts."""
        k, n_experts = self.config.num_experts_per_tok, self.config.num_experts
        h = self._norm(x)
        weights, chosen = torch.softmax(torch.mm(h, w["router"]), -1).topk(k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        if len(x) <= _DENSE_ROWS:
            gate, up = torch.mm(h, w["dense_in"]).chunk(2, -1)
            share = torch.zeros(len(x), n_experts, device=self.device).scatter_(1, chosen, weights)
            inner = F.silu(gate).mul_(up).view(len(x), n_experts, -1).mul_(share[..., None])
            return torch.addmm(x, inner.view(len(x), -1), w["dense_out"])
        flat = chosen.view(-1)
        order = torch.argsort(flat)
        ends = torch.bincount(flat, minlength=n_experts).cumsum(0).to(torch.int32)
        gate, up = F.grouped_mm(h[order // k], w["gate_up"], offs=ends).chunk(2, -1)
        inner = F.silu(gate).mul_(up).mul_(weights.view(-1)[order, None])
        sorted_out = F.grouped_mm(inner, w["down"], offs=ends)
        out = torch.empty_like(sorted_out)
        out[order] = sorted_out
        return out.view(len(x), k, -1).sum(1).add_(x)


class _ChunkPlan:
    """Index tensors of one prefill call over ragged chunks (T tokens in M chunks)."""

    def __init__(self, rows, starts, chunks, columns, device):
        lengths = torch.tensor([len(chunk) for chunk in chunks])
        total, ends = int(lengths.sum()), lengths.cumsum(0)
        chunk_T = torch.repeat_interleave(torch.arange(len(chunks)), lengths)
        offset_T = torch.arange(total) - (ends - lengths)[chunk_T]
        starts_M = torch.tensor(starts)
        self.rows = torch.tensor(rows, device=device)
        self.chunk_T, self.offset_T = chunk_T.to(device), offset_T.to(device)
        self.rows_T = self.rows[self.chunk_T]
        self.positions_T = (starts_M[chunk_T] + offset_T).to(device)
        self.ids_T = torch.from_numpy(np.concatenate(chunks)).to(device)
        self.last_M = (ends - 1).to(device)
        self.width = int(lengths.max())
        self.length = int((starts_M + lengths).max())
        reach_MC = starts_M.to(device)[:, None] + columns[: self.width]
        self.visible = (columns[: self.length] <= reach_MC[..., None])[:, None]

    def keep_last_token(self):
        """From here on one query a chunk, at its last position."""
        last = self.offset_T[self.last_M]
        chunk = torch.arange(len(self.rows), device=self.rows.device)
        self.visible = self.visible[chunk, :, last][:, :, None]
        self.chunk_T, self.offset_T, self.width = chunk, torch.zeros_like(chunk), 1
