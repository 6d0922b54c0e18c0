"""Forward pass of a dense Llama-like model over a key-value cache, for `local_engine`.

transformers' `generate` copies the whole cache at every token and reads the context again at every
turn; here the cache stays in place for all turns of a conversation, and equal prompts are read
once. Weights and cache are bfloat16 or float32; the residual stream and the norms are float32, as
in a trainer under autocast, so log-probabilities agree up to the rounding of bfloat16.

Supported: `llama` (SmolLM2) and `qwen3`, without biases, sliding windows or scaled positions.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from drlib.models.decoder import Decoder

SUPPORTED = ("llama", "qwen3")  # config.model_type


def find_unsupported(config: Any) -> str:
    """Return the property of a model that this decoder does not support, or ""."""
    if config.model_type not in SUPPORTED:
        return f"a {config.model_type}"
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope != "default":
        return f"scaled positions (rope_type={rope})"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "biases"
    if getattr(config, "use_sliding_window", False):
        return "a sliding window"
    return "" if config.hidden_act == "silu" else f"the activation {config.hidden_act}"


class DenseDecoder(Decoder):
    """Fused weights and the key-value cache of `rows` requests.

    Args:
        dtype: of weights and cache.

    Raises:
        ValueError: the model is not supported, or `max_context` exceeds its positions.
    """

    fixed_sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads")

    def __init__(self, model, rows: int, max_context: int, dtype: torch.dtype = torch.bfloat16):
        self.dtype = dtype
        super().__init__(model, rows, max_context)

    def _check(self, config) -> None:
        fault = find_unsupported(config)
        if fault:
            raise ValueError(f"the local engine does not support {fault}: set engine.name=hf")

    def load(self, model) -> None:
        """Copy the weights of `model`, of the same shape as at construction."""
        super().load(model)
        self.head = self._pack(self.head)

    def decode(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        """Feed one token to each of rows 0..N-1 at its position; return the next logits [N, V]."""
        n, group = len(ids_N), self.n_heads // self.n_kv
        length = int(positions_N.max()) + 1
        visible = (self.columns[:length] <= positions_N[:, None])[:, None, None]
        visible = visible.expand(n, 1, group, length)

        def attend(q, keys, values):  # the query heads of a KV head are rows of one matrix
            out = F.scaled_dot_product_attention(
                q.view(n, self.n_kv, group, self.dim),
                keys[:n, :, :length],
                values[:n, :, :length],
                attn_mask=visible,
                scale=1.0,
            )
            return out.reshape(n, -1)

        return self._forward(ids_N, torch.arange(n, device=self.device), positions_N, attend)

    def _pack(self, weight: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the product with a matrix [out, in], packed once for bfloat16 on a CPU.

        torch repacks the matrix at every call, which takes as long as the product of few rows.
        """
        weight = weight.detach().to(self.dtype, copy=True)
        can_pack = self.dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()
        if self.device.type != "cpu" or not can_pack:
            return partial(F.linear, weight=weight)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, self.rows)
        product = torch.ops.mkldnn._linear_pointwise
        return lambda x: product(x, packed, None, "none", [], "")

    def _fuse(self, layer) -> dict[str, Any]:
        """Return one layer's products with its fused matrices, norm gains included."""
        attention, mlp = layer.self_attn, layer.mlp
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        qkv = torch.cat([p.weight.float() for p in projections]) * (
            self.root * layer.input_layernorm.weight.float()
        )
        gate_up = torch.cat([mlp.gate_proj.weight.float(), mlp.up_proj.weight.float()]) * (
            self.root * layer.post_attention_layernorm.weight.float()
        )
        matrices = {
            "qkv": qkv,
            "out": attention.o_proj.weight,
            "gate_up": gate_up,
            "down": mlp.down_proj.weight,
        }
        fused: dict[str, Any] = {name: self._pack(weight) for name, weight in matrices.items()}
        if hasattr(attention, "q_norm"):
            gains = [attention.q_norm.weight] * self.n_heads
            gains += [attention.k_norm.weight] * self.n_kv
            fused["qk_gain"] = torch.stack(gains).detach().float() * self.dim**0.5
        return fused

    def _forward(self, ids_T, rows_T, positions_T, attend, last_M=None) -> torch.Tensor:
        """Cache the tokens; return logits after each token, or after tokens `last_M` only."""
        x = self.embedding[ids_T].float()
        turn = self.turn[positions_T]
        n_rotated = self.n_heads + self.n_kv
        for keys, values, w in zip(*self.cache, self.layers):
            qkv = w["qkv"](self._norm(x).to(self.dtype))
            qkv = qkv.view(len(x), n_rotated + self.n_kv, self.dim)
            qk = qkv[:, :n_rotated].float()
            if "qk_gain" in w:
                qk = self._norm(qk).mul_(w["qk_gain"])
            # coordinates i and i + half form a complex number
            first, second = qk.chunk(2, dim=-1)
            cos, sin = turn.real, turn.imag
            qk = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
            keys[rows_T, :, positions_T] = qk[:, self.n_heads :].to(self.dtype)
            values[rows_T, :, positions_T] = qkv[:, n_rotated:]
            q = (qk[:, : self.n_heads] * self.dim**-0.5).to(self.dtype)
            if last_M is not None and w is self.layers[-1]:
                x, q = x[last_M], q[last_M]
            x = x + w["out"](attend(q, keys, values))
            gate, up = w["gate_up"](self._norm(x).to(self.dtype)).chunk(2, dim=-1)
            x = x + w["down"](F.silu(gate).mul_(up))
        return self.head(self._norm(x).to(self.dtype)).float()
