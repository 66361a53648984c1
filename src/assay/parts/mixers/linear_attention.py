"""Linear attention: softmax's kernel replaced by a product of feature maps, so that the past is one matrix a head.

S_t = S_{t-1} + phi(k_t) v_t^T, n_t = n_{t-1} + phi(k_t), o_t = S_t^T phi(q_t) / (n_t . phi(q_t)), phi(x) = elu(x) + 1.
x: "batch tokens width"; S: "batch heads head_dim head_dim". n is held as S's last column, of values that are all 1.

seam: mixer
row: -
source: Katharopoulos et al. 2020, Transformers are RNNs (arXiv:2006.16236)
object: LinearAttention
"""

from __future__ import annotations

from collections.abc import Callable

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
from assay.parts.mixers.recurrent import RecurrentMixer, by_head, dim_of_head, joined

FEATURES: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": lambda x: F.elu(x) + 1,
    "relu": F.relu,
    "softmax": lambda x: x.softmax(-1),
    "identity": lambda x: x,
}


class LinearAttention(RecurrentMixer):
    """`feature`: phi, of elu (+ 1), relu, softmax over a head's channels, identity. `normalise`: divide by n . phi(q)."""

    sites = ("q", "k", "v", "state", "z")

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_dim: int | None = None,
        feature: str = "elu",
        normalise: bool = True,
        chunk: int = 64,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        whole("linear_attention", heads=heads, head_dim=head_dim, chunk=chunk)
        if feature not in FEATURES:
            raise AssayError(f"linear_attention: feature {feature!r}; choose {', '.join(FEATURES)}")
        if feature == "identity" and normalise:
            raise AssayError("linear_attention: identity features may sum to zero; choose others or normalise=False")
        self.heads, self.dim = heads, dim_of_head(width, heads, head_dim)
        self.feature, self.normalise, self.chunk, self.eps = feature, normalise, chunk, eps
        self.q, self.k, self.v = (Linear(width, heads * self.dim) for _ in "qkv")
        self.out = Linear(heads * self.dim, width)
        self.products = 2 * heads * self.dim * (self.dim + normalise)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"memory": (self.heads, self.dim, self.dim + self.normalise)}

    def mix(
        self,
        x: Float[Tensor, "batch tokens width"],
        held: RecurrentState,
        packing: Packing,
        positions: Int[Tensor, "..."],
    ) -> tuple[Float[Tensor, "batch tokens width"], dict[str, Tensor]]:
        phi = FEATURES[self.feature]
        q, k, v = (by_head(wide(part(x)), self.heads) for part in (self.q, self.k, self.v))
        q, k, v = site(self, "q", phi(q)), site(self, "k", phi(k)), site(self, "v", v)
        k = packing.silence(k.transpose(1, 2)).transpose(1, 2)
        values = torch.cat([v, torch.ones_like(v[..., :1])], -1) if self.normalise else v
        read, memory = mixed(q, k, values, torch.zeros_like(v[..., :1]), held["memory"], self.chunk)
        if self.normalise:
            read = read[..., :-1] / (read[..., -1:] + self.eps)
        z = site(self, "z", read.to(x.dtype))
        return self.out(joined(z)), {"memory": site(self, "state", memory)}
