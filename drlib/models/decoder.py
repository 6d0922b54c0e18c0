"""Forward pass of a Qwen3-MoE policy over a key-value cache.

This is the arithmetic of `local_engine`. It copies the Hugging Face weights into fused matrices:
query, key and value in one, RMSNorm gains and the square root of the width folded into the next
matrix, rotary pairs as complex numbers. It is independent of the trainer's forward pass, and a test
compares the two. It runs on any device; on a CPU `compiled_decoder.CompiledDecoder` is at least 1.5
times as fast.

A cache row belongs to one request. Rows are contiguous, so a decode step works on the views
`rows[0:n]` without copies; attention runs in blocks of rows, each up to its longest request.
"""

import numpy as np
import torch
import torch.nn.functional as F

from drlib.models.sampling import sample

_ROW_BLOCK = 32  # rows that share one attention length
_DENSE_ROWS = 32  # up to here computing all experts beats sorting by expert (measured)


class Decoder:
    """Fused weights and the key-value cache of `rows` requests of at most `max_context` tokens.

    routes: record the experts of the last pass in `expert_ids`, int64 [T, k] per layer. In the last
        layer a prefill computes only the last token of each chunk: [M, k].
    """

    dtype = torch.float32  # of weights and cache
    # configuration of the first weights that later ones must have, too
    fixed_sizes: tuple[str, ...] = (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "head_dim",
        "num_experts",
    )

    def __init__(self, model, rows: int, max_context: int, routes: bool = False):
        config = model.config
        self.routes = routes
        self.expert_ids: list[torch.Tensor] = []
        if max_context > config.max_position_embeddings:
            raise ValueError(
                f"max_context={max_context} exceeds the model's max_position_"
                f"embeddings={config.max_position_embeddings}: lower it or build a "
                "longer model"
            )
        self._check(config)
        self.config, self.rows, self.vocab_size = config, rows, config.vocab_size
        self.n_heads = config.num_attention_heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // self.n_heads
        self.n_kv = config.num_key_value_heads
        self.device = model.lm_head.weight.device
        # width -> sqrt(width * epsilon) of an RMSNorm; there are two widths
        self.floor = {
            width: torch.tensor((width * config.rms_norm_eps) ** 0.5, device=self.device)
            for width in (config.hidden_size, self.dim)
        }
        self.max_context = max_context
        self.make_cache()
        self.columns = torch.arange(max_context, device=self.device)
        pairs = torch.arange(0, self.dim, 2, device=self.device, dtype=torch.float32) / self.dim
        inv_freq = 1.0 / (config.rope_parameters["rope_theta"] ** pairs)
        angle = self.columns.float()[:, None] * inv_freq
        self.turn = torch.polar(torch.ones_like(angle), angle)[:, None]
        self.load(model)

    def _check(self, config) -> None:
        """Raise ValueError for a model that this decoder does not support."""
        dense = config.mlp_only_layers or config.decoder_sparse_step != 1
        if dense or not config.norm_topk_prob:
            raise ValueError("the local engine needs norm_topk_prob and every layer sparse")

    def make_cache(self) -> None:
        """Allocate the key-value cache."""
        shape = 2, self.config.num_hidden_layers, self.rows, self.n_kv, self.max_context, self.dim
        self.cache = torch.zeros(shape, device=self.device, dtype=self.dtype)

    @torch.no_grad()
    def load(self, model) -> None:
        """Copy the weights of `model`, of the same shape as at construction."""
        for name in self.fixed_sizes:
            if getattr(model.config, name) != getattr(self.config, name):
                raise ValueError(f"the new model differs in {name}: build a new engine for it")
        self.embedding = model.model.embed_tokens.weight.detach().to(self.dtype, copy=True)
        self.root = self.config.hidden_size**0.5  # of the width, which `_norm` omits
        head_gain = self.root * model.model.norm.weight.float()
        self.head = (model.lm_head.weight.detach().float() * head_gain).to(self.dtype)
        self.layers = [self._fuse(layer) for layer in model.model.layers]

    def _fuse(self, layer) -> dict[str, torch.Tensor]:
        """Return one layer's fused matrices, stored [in, out] except grouped expert weights."""
        attention, experts = layer.self_attn, layer.mlp.experts
        half = self.dim // 2
        # HF pairs coordinates i and i + half; as complex numbers they must be adjacent.
        order = torch.arange(self.dim).view(2, half).t().reshape(-1)

        def paired(weight, heads):
            return weight.view(heads, self.dim, -1)[:, order].reshape(heads * self.dim, -1)

        query = paired(attention.q_proj.weight, self.n_heads)
        key = paired(attention.k_proj.weight, self.n_kv)
        qkv = torch.cat([query, key, attention.v_proj.weight])
        qkv = qkv * (self.root * layer.input_layernorm.weight)
        # for queries the square root of the width cancels with the attention scale
        gains = [attention.q_norm.weight[order]] * self.n_heads
        gains += [attention.k_norm.weight[order] * self.dim**0.5] * self.n_kv
        norm, down = self.root * layer.post_attention_layernorm.weight, experts.down_proj
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
        fused = {k: v.detach().float().contiguous().clone() for k, v in fused.items()}
        bias_E = getattr(layer.mlp.gate, "bias_E", None)  # drlib.models.router_bias
        return fused if bias_E is None else fused | {"router_bias": bias_E.float().clone()}

    # ---- decode and prefill

    def decode(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """Feed one token to each of rows 0..N-1 at its position; return the next logits [N, V]."""
        kv, group, n = self.n_kv, self.n_heads // self.n_kv, len(ids_N)
        blocks = []  # (first row, last row, length, additive mask)
        for first in range(0, n, _ROW_BLOCK):
            positions = positions_N[first : first + _ROW_BLOCK]
            length = int(positions.max()) + 1
            hidden = self.columns[:length] > positions[:, None]
            mask = torch.zeros(hidden.shape, device=self.device, dtype=self.dtype)
            mask = mask.masked_fill_(hidden, -torch.inf)
            mask = mask.repeat_interleave(kv, 0)[:, None]
            blocks.append((first, first + len(positions), length, mask))

        def attend(q, *cache):  # one query per row: query heads of a KV head form a matrix
            q = q.reshape(-1, group, self.dim)
            out = torch.empty_like(q)
            for first, last, length, mask in blocks:
                rows = slice(first * kv, last * kv)
                k, v = (c[first:last].view(-1, *c.shape[2:])[:, :length] for c in cache)
                scores = torch.baddbmm(mask, q[rows], k.transpose(1, 2))
                torch.bmm(torch.softmax(scores, -1), v, out=out[rows])
            return out.view(n, -1)

        return self._forward(ids_N, torch.arange(n, device=self.device), positions_N, attend)

    def prefill(self, rows: list[int], starts: list[int], chunks: list) -> torch.Tensor:
        """Feed each chunk (numpy ids) into its row at `start`; return logits [M, V] after each
        chunk.

        Linear layers process the T tokens of all chunks packed, without padding; only attention is
        padded to the longest chunk. The last layer continues with the last token of each chunk
        only.
        """
        lengths_M, starts_M, rows_M = (
            torch.tensor(values, device=self.device)
            for values in ([len(chunk) for chunk in chunks], starts, rows)
        )
        each_M, ends_M = torch.arange(len(rows), device=self.device), lengths_M.cumsum(0)
        chunk_T = torch.repeat_interleave(each_M, lengths_M)
        offset_T = torch.arange(len(chunk_T), device=self.device) - (ends_M - lengths_M)[chunk_T]
        reach_MC = starts_M[:, None] + self.columns[: int(lengths_M.max())]
        length = int((starts_M + lengths_M).max())
        visible = (self.columns[:length] <= reach_MC[..., None])[:, None]

        def attend(q, keys, values):
            at, mask = (chunk_T, offset_T), visible
            if len(q) == len(rows):  # one query per chunk, at its last position
                at = each_M, torch.zeros_like(each_M)
                mask = visible[each_M, :, lengths_M - 1][:, :, None]
            padded = q.new_zeros(len(rows), mask.shape[2], self.n_heads, self.dim)
            padded[at] = q
            out = F.scaled_dot_product_attention(
                padded.transpose(1, 2),
                keys[rows_M, :, :length],
                values[rows_M, :, :length],
                attn_mask=mask,
                scale=1.0,
                enable_gqa=True,
            )
            return out.transpose(1, 2)[at].flatten(1)

        ids_T = torch.from_numpy(np.concatenate(chunks)).to(self.device)
        positions_T = starts_M[chunk_T] + offset_T
        return self._forward(ids_T, rows_M[chunk_T], positions_T, attend, ends_M - 1)

    def _forward(self, ids_T, rows_T, positions_T, attend, last_M=None) -> torch.Tensor:
        """Cache the tokens; return logits after each token, or after tokens `last_M` only.

        attend(queries [T, heads, d] rotated and scaled, the layer's keys, its values): [T, heads d]
        """
        self.expert_ids = []
        x, turn = self.embedding[ids_T], self.turn[positions_T]
        n_rotated = self.n_heads + self.n_kv
        for keys, values, w in zip(*self.cache, self.layers):
            qkv = torch.mm(self._norm(x), w["qkv"]).view(len(x), n_rotated + self.n_kv, self.dim)
            qk = self._norm(qkv[:, :n_rotated]).mul_(w["qk_gain"])
            pairs = torch.view_as_complex(qk.view(len(x), n_rotated, self.dim // 2, 2))
            qk = torch.view_as_real(pairs * turn).view(len(x), n_rotated, self.dim)
            keys[rows_T, :, positions_T] = qk[:, self.n_heads :]
            values[rows_T, :, positions_T] = qkv[:, n_rotated:]
            q = qk[:, : self.n_heads]
            if last_M is not None and w is self.layers[-1]:
                x, q = x[last_M], q[last_M]
            x = self._experts(torch.addmm(x, attend(q, keys, values), w["out"]), w)
        return F.linear(self._norm(x), self.head)

    def draw(self, logits_NV, uniforms_N: np.ndarray, temperature: float, top_p: float):
        """Sample one token per row as `sampling.sample`: (ids, log-probs, entropies), numpy [N].

        The logits may be overwritten.
        """
        uniforms_N = torch.from_numpy(uniforms_N).to(logits_NV.device)
        drawn = sample(logits_NV, uniforms_N, temperature, top_p)
        return tuple(values_N.cpu().numpy() for values_N in drawn)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` cached tokens of a row to another row."""
        self.cache[:, :, target, :, :length] = self.cache[:, :, source, :, :length]

    def swap_rows(self, a: int, b: int, length: int) -> None:
        """Exchange the first `length` cached tokens of two rows."""
        self.cache[:, :, [a, b], :, :length] = self.cache[:, :, [b, a], :, :length]

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        """RMSNorm divided by the square root of the width: x / sqrt(|x|^2 + width eps).

        Three operations; torch's RMSNorm takes twice as long on a CPU.
        """
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return x / length.hypot_(self.floor[x.shape[-1]])

    def _experts(self, x, w):
        """Return x plus the weighted outputs of each token's top experts."""
        k, n_experts = self.config.num_experts_per_tok, self.config.num_experts
        h = self._norm(x)
        probs = torch.softmax(torch.mm(h, w["router"]), -1)
        if "router_bias" in w:
            expert_ids = (probs + w["router_bias"]).topk(k, -1).indices
            weights = probs.gather(1, expert_ids)
        else:
            weights, expert_ids = probs.topk(k, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        if self.routes:
            self.expert_ids.append(expert_ids)
        if len(x) <= _DENSE_ROWS:
            gate, up = torch.mm(h, w["dense_in"]).chunk(2, -1)
            share = torch.zeros(len(x), n_experts, device=self.device).scatter_(
                1, expert_ids, weights
            )
            inner = F.silu(gate).mul_(up).view(len(x), n_experts, -1).mul_(share[..., None])
            return torch.addmm(x, inner.view(len(x), -1), w["dense_out"])
        flat = expert_ids.view(-1)
        order = torch.argsort(flat)
        ends = torch.bincount(flat, minlength=n_experts).cumsum(0).to(torch.int32)
        gate, up = F.grouped_mm(h[order // k], w["gate_up"], offs=ends).chunk(2, -1)
        inner = F.silu(gate).mul_(up).mul_(weights.view(-1)[order, None])
        sorted_out = F.grouped_mm(inner, w["down"], offs=ends)
        out = torch.empty_like(sorted_out)
        out[order] = sorted_out
        return out.view(len(x), k, -1).sum(1).add_(x)
