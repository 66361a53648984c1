"""Kimi Delta Attention: the gated delta rule in which every key channel has a decay of its own.

S'_t = Diag(a_t) S_{t-1},  S_t = S'_t + b_t k_t (v_t - S'_t^T k_t)^T,  o_t = S_t^T q_t, with unit q and k, a writing strength b_t
in (0, 1), and a_t = exp(-e^{r_h} softplus(W_2 W_1 x_t + c)) with W_1 of rank head_dim. q, k, v pass a short causal convolution
and silu. The output is W_o [sigmoid(W_4 W_3 x) * norm(o)], norm being an RMS norm of each head.
x: "batch tokens width"; S: "batch heads key_dim value_dim".

seam: mixer
row: -
source: Kimi Team 2025, Kimi Linear (arXiv:2510.26692); initialisation of the decay as in its code (flash-linear-attention)
object: KDA
aliases: kimi_delta_attention
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.dtypes import wide
from assay.core.linear import Linear
from assay.parts.mixers.delta import DeltaRule
from assay.parts.mixers.recurrent import by_head, inverse_softplus_of_steps


class KDA(DeltaRule):
    """`expand`: value_dim over head_dim. `taps`: of the convolution. `chunk`: tokens solved at once."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        expand: float = 1.0,
        taps: int = 4,
        chunk: int = 64,
        eps: float = 1e-5,
    ) -> None:
        super().__init__("kda", width, heads, head_dim, expand, taps, chunk, eps)
        keys, values, rank = heads * self.key_dim, heads * self.value_dim, self.value_dim
        self.decay_down, self.decay_up = Linear(width, rank), Linear(rank, keys)
        self.gate_down, self.gate_up = Linear(width, rank), Linear(rank, values, bias=True)
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.decay_bias = nn.Parameter(inverse_softplus_of_steps(keys))

    def decays(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens heads key_dim"]:
        step = F.softplus(wide(self.decay_up(self.decay_down(x))) + self.decay_bias)
        return -wide(self.log_rate).exp()[:, None] * step.unflatten(-1, (self.heads, -1))

    def gated(
        self, normed: Float[Tensor, "batch heads tokens value_dim"], x: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch heads tokens value_dim"]:
        return normed * by_head(self.gate_up(self.gate_down(x)).sigmoid(), self.heads)
