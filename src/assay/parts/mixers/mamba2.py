"""Mamba-2: a state space whose decay is one number a head, so that it runs as decayed linear attention (SSD).

S_t = e^{-a_h d_t} S_{t-1} + d_t B_t x_t^T,  y_t = S_t^T C_t + D_h x_t, with a step d_t = softplus(W_d u_t + c_h). x, B and C come
from the token u_t through a short causal convolution with bias and silu; B and C are shared by all heads. The output is
W_o norm(y * silu(W_z u)), norm being an RMS norm over all heads together.
u: "batch tokens width"; x: "batch heads tokens head_dim"; S: "batch heads state_dim head_dim".

seam: mixer
row: -
source: Dao and Gu 2024, Transformers are SSMs (arXiv:2405.21060); initialisation as in its code (mamba_ssm)
object: Mamba2
aliases: ssd
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.sites import site
from assay.parts.mixers.common import Packing, RecurrentState, causal_convolution
from assay.parts.mixers.decayed import mixed
from assay.parts.mixers.recurrent import RecurrentMixer, by_head, inverse_softplus_of_steps, joined


class Mamba2(RecurrentMixer):
    """`head_dim`: by default a head's share of `expand` times the width. `state_dim`: of B and C. `taps`: of the convolution."""

    sites = ("q", "k", "v", "decay", "state", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        expand: int = 2,
        state_dim: int = 128,
        taps: int = 4,
        chunk: int = 64,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        whole("mamba2", heads=heads, head_dim=head_dim, expand=expand, state_dim=state_dim, taps=taps, chunk=chunk)
        if head_dim is None and expand * width % heads:
            raise AssayError(f"{expand} x width {width} does not divide into {heads} heads: give head_dim")
        self.heads, self.head_dim, self.state_dim = heads, head_dim or expand * width // heads, state_dim
        self.taps, self.chunk, self.eps = taps, chunk, eps
        inner = heads * self.head_dim
        self.x, self.z = Linear(width, inner), Linear(width, inner)
        self.B, self.C, self.step = Linear(width, state_dim), Linear(width, state_dim), Linear(width, heads)
        self.out = Linear(inner, width)
        bound = 1 / math.sqrt(taps)
        self.convolution = nn.Parameter(torch.empty(inner + 2 * state_dim, taps).uniform_(-bound, bound))
        self.convolution_bias = nn.Parameter(torch.empty(inner + 2 * state_dim).uniform_(-bound, bound))
        self.log_rate = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.step_bias = nn.Parameter(inverse_softplus_of_steps(heads))
        self.skip = nn.Parameter(torch.ones(heads))
        self.norm = nn.Parameter(torch.ones(inner))
        self.products = 2 * inner * state_dim + self.convolution.numel()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            "memory": (self.heads, self.state_dim, self.head_dim),
            "tail": (self.taps - 1, self.heads * self.head_dim + 2 * self.state_dim),
        }

    def mix(
        self,
        x: Float[Tensor, "batch tokens width"],
        held: RecurrentState,
        packing: Packing,
        positions: Int[Tensor, "..."],
    ) -> tuple[Float[Tensor, "batch tokens width"], dict[str, Tensor]]:
        together = wide(torch.cat([self.x(x), self.B(x), self.C(x)], -1))
        convolved, tail = causal_convolution(together, wide(self.convolution), held["tail"], packing.lengths)
        inner, b, c = F.silu(convolved + self.convolution_bias).split(
            [self.heads * self.head_dim, self.state_dim, self.state_dim], -1
        )
        q, k = (site(self, name, t[:, None].expand(-1, self.heads, -1, -1)) for name, t in (("q", c), ("k", b)))
        v = site(self, "v", by_head(inner, self.heads))
        step = packing.silence(F.softplus(wide(self.step(x)) + self.step_bias)).transpose(1, 2)[..., None]
        decay = site(self, "decay", -wide(self.log_rate).exp()[:, None, None] * step)
        read, memory = mixed(q, k, step * v, decay, held["memory"], self.chunk)
        y = joined(read + self.skip[:, None, None] * v) * F.silu(wide(self.z(x)))
        z = site(self, "z", F.rms_norm(y, self.norm.shape, wide(self.norm), self.eps).to(x.dtype))
        return self.out(z), {"memory": site(self, "state", memory), "tail": tail}
