"""The decoder on a CPU: torch's matrix products with compiled kernels between them.

`decoder.Decoder` computes the same in torch operators on any device; `local_engine.create_decoder`
selects. A test compares both with the trainer's forward pass.
"""

import numpy as np
import torch
import torch.nn.functional as F

from drlib.models import kernels
from drlib.models.decoder import Decoder
from drlib.models.kernels import LANES


class CompiledDecoder(Decoder):
    """A `Decoder` on the kernels of `drlib.models.kernels`; single-threaded except products."""

    def __init__(self, model, rows: int, max_context: int, routes: bool = False):
        super().__init__(model, rows, max_context, routes)
        config = self.config
        turn_Cp = self.turn.squeeze(1)
        self.cos_Cp, self.sin_Cp = (
            part_Cp.contiguous().numpy() for part_Cp in (turn_Cp.real, turn_Cp.imag)
        )
        self.floor_h = np.float32(config.hidden_size * config.rms_norm_eps)
        self.floor_d = np.float32(self.dim * config.rms_norm_eps)
        self.no_bias_E = torch.zeros(config.num_experts)

    def make_cache(self) -> None:
        blocks = -(-self.max_context // LANES)
        width = -(-self.dim // LANES) * LANES
        rows = self.config.num_hidden_layers, self.rows, self.n_kv
        self.keys = np.zeros((*rows, blocks, self.dim, LANES), np.float32)
        self.values = np.zeros((*rows, blocks * LANES, width), np.float32)

    def copy_row(self, source: int, target: int, length: int) -> None:
        blocks = -(-length // LANES)
        self.keys[:, target, :, :blocks] = self.keys[:, source, :, :blocks]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def swap_rows(self, a: int, b: int, length: int) -> None:
        blocks = -(-length // LANES)
        self.keys[:, [a, b], :, :blocks] = self.keys[:, [b, a], :, :blocks]
        self.values[:, [a, b], :, :length] = self.values[:, [b, a], :, :length]

    def decode(self, ids_N: torch.Tensor, positions_N: torch.Tensor) -> torch.Tensor:
        return self._compute(ids_N, np.arange(len(ids_N)), positions_N.numpy())

    def prefill(self, rows: list[int], starts: list[int], chunks: list) -> torch.Tensor:
        lengths_M = np.array([len(chunk) for chunk in chunks])
        ends_M = lengths_M.cumsum()
        shifts_M = starts - (ends_M - lengths_M)  # position minus index
        positions_T = np.arange(ends_M[-1]) + np.repeat(shifts_M, lengths_M)
        ids_T = torch.from_numpy(np.concatenate(chunks))
        return self._compute(ids_T, np.repeat(rows, lengths_M), positions_T, ends_M - 1)

    def draw(self, logits_NV, uniforms_N, temperature, top_p):
        if top_p < 1:
            return super().draw(logits_NV, uniforms_N, temperature, top_p)
        n = len(logits_NV)
        drawn = np.empty(n, np.int64), np.empty(n, np.float32), np.empty(n, np.float32)
        kernels.draw(logits_NV.numpy(), uniforms_N, float(temperature), *drawn)
        return drawn

    def _compute(self, ids_T, rows_T, positions_T, last_M=None) -> torch.Tensor:
        """Cache the tokens; return logits after each token, or after tokens `last_M` only."""
        self.expert_ids = []
        x_TH = self.embedding[ids_T]
        h_TH = torch.empty_like(x_TH)
        kernels.normalise(x_TH.numpy(), self.floor_h, h_TH.numpy())
        for keys, values, w in zip(self.keys, self.values, self.layers):
            qkv_TW = torch.mm(h_TH, w["qkv"]).numpy()
            place = rows_T, positions_T, keys, values
            gain = w["qk_gain"].numpy(), self.floor_d
            kernels.rotate(qkv_TW, *gain, self.cos_Cp, self.sin_Cp, *place)
            if last_M is not None and w is self.layers[-1]:
                x_TH, h_TH, qkv_TW = x_TH[last_M], h_TH[last_M], qkv_TW[last_M]
                place = rows_T[last_M], positions_T[last_M], keys, values
            read_TW = torch.empty(len(x_TH), self.n_heads * self.dim)
            kernels.attend(qkv_TW, *place, read_TW.numpy())
            x_TH.addmm_(read_TW, w["out"])
            kernels.normalise(x_TH.numpy(), self.floor_h, h_TH.numpy())
            self._add_experts(x_TH, h_TH, w)
        return F.linear(h_TH, self.head)

    def _add_experts(self, x_TH, h_TH, w) -> None:
        """Add the outputs of each token's experts to x_TH, and write its norm to h_TH."""
        k = self.config.num_experts_per_tok
        experts_Tk, place_Tk = np.empty((2, len(x_TH), k), np.int64)
        copies_MH = torch.empty(experts_Tk.size, h_TH.shape[1])
        share_M = np.empty(experts_Tk.size, np.float32)
        ends_E = torch.empty(self.config.num_experts, dtype=torch.int32)
        logits_TE = torch.mm(h_TH, w["router"])
        inputs = h_TH.numpy(), logits_TE.numpy(), w.get("router_bias", self.no_bias_E).numpy()
        kernels.route(*inputs, experts_Tk, place_Tk, copies_MH.numpy(), share_M, ends_E.numpy())
        if self.routes:
            self.expert_ids.append(torch.from_numpy(experts_Tk))
        gate_up_MJ = F.grouped_mm(copies_MH, w["gate_up"], offs=ends_E)
        inner_MI = torch.empty(len(copies_MH), gate_up_MJ.shape[1] // 2)
        kernels.gate(gate_up_MJ.numpy(), share_M, inner_MI.numpy())
        out_MH = F.grouped_mm(inner_MI, w["down"], offs=ends_E)
        kernels.combine(x_TH.numpy(), out_MH.numpy(), place_Tk, self.floor_h, h_TH.numpy())
