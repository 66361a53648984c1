"""Gated DeltaNet: a matrix memory that decays, and corrects what it holds under a key instead of adding to it.

S_t = a_t S_{t-1} + b_t k_t (v_t - a_t S_{t-1}^T k_t)^T,  o_t = S_t^T q_t, with unit q and k, a decay a_t in (0, 1) and a
writing strength b_t in (0, 1) from the token. q, k, v pass a short causal convolution and silu; o passes a gated RMSNorm.
x: "batch tokens width"; S: "batch heads key_dim value_dim".

Many tokens run in chunks: within a chunk all corrections are one triangular solve, between chunks S is carried.

seam: mixer
row: -
source: Yang et al. 2024, Gated Delta Networks (arXiv:2412.06464); decay as in Mamba-2 (arXiv:2405.21060)
object: GatedDeltaNet
aliases: gdn
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


class GatedDeltaNet(DeltaRule):
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
        eps: float = 1e-6,
    ) -> None:
        super().__init__("gated_deltanet", width, heads, head_dim, expand, taps, chunk, eps)
        self.gate, self.decay = Linear(width, heads * self.value_dim), Linear(width, heads)
        # decay rates spread over orders of magnitude, steps between 0.001 and 0.1, as in Mamba-2
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.decay_bias = nn.Parameter(inverse_softplus_of_steps(heads))

    def decays(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens heads"]:
        return -wide(self.log_rate).exp() * F.softplus(wide(self.decay(x)) + self.decay_bias)

    def gated(
        self, normed: Float[Tensor, "batch heads tokens value_dim"], x: Float[Tensor, "batch tokens width"]
    ) -> Float[Tensor, "batch heads tokens value_dim"]:
        return normed * by_head(F.silu(self.gate(x)), self.heads)
