"""Retention (RetNet): linear attention whose heads forget at fixed rates and whose queries and keys rotate with position.

S_t = gamma S_{t-1} + k_t v_t^T, o_t = S_t^T q_t, gamma_h = 1 - 2^{-5-h}; q and k of position p turn by p theta_i, with
theta from 1 down to 1/10000 over the pairs of neighbours; k is scaled by key_dim^-1/2. The output is W_o [silu(W_g x) * norm(o)],
norm being an RMS norm of each head without weights. Values are `expand` times as wide as keys.
x: "batch tokens width"; S: "batch heads key_dim value_dim".

The paper's three rescalings of the scores change nothing after that norm but rounding, so they are left out.

seam: mixer
row: -
source: Sun et al. 2023, Retentive Network (arXiv:2307.08621); rotation and initialisation as in its code (torchscale)
object: RetNet
aliases: retention
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.sites import site
from assay.parts.mixers.common import Packing, RecurrentState
from assay.parts.mixers.decayed import mixed
from assay.parts.mixers.recurrent import RecurrentMixer, by_head, dim_of_head, draw_xavier, joined, widened


class RetNet(RecurrentMixer):
    """`decays`: gamma of each head, instead of the paper's. `rotate`: whether positions turn queries and keys."""

    sites = ("q", "k", "v", "state", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        expand: float = 2.0,
        decays: list[float] | None = None,
        rotate: bool = True,
        chunk: int = 64,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        whole("retnet", heads=heads, head_dim=head_dim, chunk=chunk)
        self.heads, self.key_dim = heads, dim_of_head(width, heads, head_dim)
        self.value_dim, self.rotate, self.chunk, self.eps = widened("retnet", self.key_dim, expand), rotate, chunk, eps
        if rotate and self.key_dim % 2:
            raise AssayError(f"retnet turns pairs: head_dim {self.key_dim} is odd; give an even one or rotate=False")
        self.decays = [1 - 2.0 ** (-5 - head) for head in range(heads)] if decays is None else list(decays)
        if len(self.decays) != heads or not all(0 < gamma <= 1 for gamma in self.decays):
            raise AssayError(f"retnet: decays={decays}; give one above 0 and up to 1 for each of {heads} heads")
        keys, values = heads * self.key_dim, heads * self.value_dim
        self.q, self.k, self.v = Linear(width, keys), Linear(width, keys), Linear(width, values)
        self.gate, self.out = Linear(width, values), Linear(values, width)
        draw_xavier(self, 2**-2.5)
        draw_xavier(self.out, 1.0)
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
        k = k * self.key_dim**-0.5
        if self.rotate:
            q, k = turned(q, positions), turned(k, positions)
        q, k, v = site(self, "q", q), site(self, "k", k), site(self, "v", v)
        gammas = torch.tensor(self.decays, dtype=q.dtype, device=q.device).log()
        decay = packing.silence(gammas.expand(*x.shape[:2], -1)).transpose(1, 2)[..., None]
        read, memory = mixed(q, k, v, decay, held["memory"], self.chunk)
        normed = F.rms_norm(read, (self.value_dim,), eps=self.eps).to(x.dtype)
        z = site(self, "z", normed * by_head(F.silu(self.gate(x)), self.heads))
        return self.out(joined(z)), {"memory": site(self, "state", memory)}


def turned(
    x: Float[Tensor, "batch heads tokens dim"], positions: Int[Tensor, "batch tokens"]
) -> Float[Tensor, "batch heads tokens dim"]:
    """Each pair of neighbours turned by position times its own angle."""
    pairs = x.shape[-1] // 2
    angles = 10_000.0 ** -torch.linspace(0, 1, pairs, dtype=x.dtype, device=x.device)
    angle = positions[:, None, :, None].to(x.dtype) * angles
    even, odd = x.unflatten(-1, (pairs, 2)).unbind(-1)
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1).flatten(-2)
