"""Gated linear attention: a matrix memory in which every key channel forgets at a rate that the token chooses.

S_t = Diag(a_t) S_{t-1} + k_t v_t^T, o_t = S_t^T q_t key_dim^-1/2, a_t = sigmoid(W_2 W_1 x_t + b)^{1/16} with W_1 of rank 16. The
output is W_o [silu(W_g x) * norm(o)], norm being an RMS norm of each head. Values are `expand` times as wide as keys.
x: "batch tokens width"; S: "batch heads key_dim value_dim".

seam: mixer
row: -
source: Yang et al. 2023, Gated Linear Attention (arXiv:2312.06635); initialisation as in its code (flash-linear-attention)
object: GatedLinearAttention
aliases: gated_linear_attention
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.sites import site
from assay.parts.mixers.common import Packing, RecurrentState
from assay.parts.mixers.decayed import mixed
from assay.parts.mixers.recurrent import RecurrentMixer, by_head, draw_xavier, joined, widened


class GatedLinearAttention(RecurrentMixer):
    """`head_dim`: of keys, by default half of a head's share of the width. `rank` of W_1; `temperature`: the gate's root."""

    sites = ("q", "k", "v", "decay", "state", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        expand: float = 2.0,
        rank: int = 16,
        temperature: float = 16.0,
        chunk: int = 64,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        whole("gla", heads=heads, head_dim=head_dim, rank=rank, chunk=chunk)
        if head_dim is None and width % (2 * heads):
            raise AssayError(
                f"width {width} does not divide into {heads} heads of keys of half the width: give head_dim"
            )
        if temperature <= 0:
            raise AssayError(f"gla: temperature={temperature}; give a number above 0")
        self.heads, self.key_dim = heads, head_dim or width // (2 * heads)
        self.value_dim, self.temperature = widened("gla", self.key_dim, expand), temperature
        self.chunk, self.eps = chunk, eps
        keys, values = heads * self.key_dim, heads * self.value_dim
        self.q, self.k, self.v = Linear(width, keys), Linear(width, keys), Linear(width, values)
        self.decay_down, self.decay_up = Linear(width, rank), Linear(rank, keys, bias=True)
        self.gate, self.out = Linear(width, values), Linear(values, width)
        self.norm = nn.Parameter(torch.ones(self.value_dim))
        draw_xavier(self, 2**-2.5)
        self.products = 2 * heads * self.key_dim * self.value_dim

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.heads, self.key_dim, self.value_dim)}

    def mix(
        self,
        x: Float[Tensor, "batch tokens width"],
        held: RecurrentState,
        packing: Packing,
        positions: Int[Tensor, "..."],
    ) -> tuple[Float[Tensor, "batch tokens width"], dict[str, Tensor]]:
        q, k, v = (by_head(wide(part(x)), self.heads) for part in (self.q, self.k, self.v))
        q, k, v = site(self, "q", q * self.key_dim**-0.5), site(self, "k", k), site(self, "v", v)
        gate = F.logsigmoid(wide(self.decay_up(self.decay_down(x)))) / self.temperature
        decay = site(self, "decay", by_head(packing.silence(gate), self.heads))
        read, memory = mixed(q, k, v, decay, held["memory"], self.chunk)
        normed = F.rms_norm(read, self.norm.shape, wide(self.norm), self.eps).to(x.dtype)
        z = site(self, "z", normed * by_head(F.silu(self.gate(x)), self.heads))
        return self.out(joined(z)), {"memory": site(self, "state", memory)}
