"""A gated feed-forward: down(act(gate(x)) * up(x)), per token.

x: "batch tokens width"; hidden: "batch tokens hidden". Site `pre` is gate(x), `post` what goes into `down`.

seam: channel
row: -
source: Shazeer 2020, GLU variants (arXiv:2002.05202)
object: Gated
aliases: swiglu, geglu
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.linear import Linear, narrowed
from assay.core.mixer import Channel, Cost
from assay.core.sites import site, wanted
from assay.parts.channels.common import activation_named, fused, fuses


class Gated(Channel):
    sites = ("pre", "post")

    def __init__(self, width: int, *, hidden: int, activation: str = "silu", bias: bool = False) -> None:
        super().__init__()
        whole("gated", hidden=hidden)
        self.act = activation_named(activation)
        self.gate = Linear(width, hidden, bias=bias)
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        inner = narrowed(x, getattr(self.gate, "weight", None))
        if not wanted(self, "pre") and fuses(inner, self.gate, self.up):
            post = fused(inner, self.up, None, times=fused(inner, self.gate, self.act))
        else:
            post = self.act(site(self, "pre", self.gate(inner))) * self.up(inner)
        return self.down(site(self, "post", post)).to(x.dtype)

    def cost(self, tokens: int) -> Cost:
        matrices = sum(m.weight.numel() for m in (self.gate, self.up, self.down))
        return Cost(sum(p.numel() for p in self.parameters()), 2 * tokens * matrices, 0)
