"""A plain feed-forward: down(act(up(x))), per token.

x: "batch tokens width"; hidden: "batch tokens hidden". Sites `pre` and `post` stand before and after the activation.

seam: channel
row: -
source: Vaswani et al. 2017 (arXiv:1706.03762)
object: MLP
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.linear import Linear, narrowed
from assay.core.mixer import Channel, Cost
from assay.core.sites import site, wanted
from assay.parts.channels.common import activation_named, fused, fuses


class MLP(Channel):
    sites = ("pre", "post")

    def __init__(self, width: int, *, hidden: int, activation: str = "gelu", bias: bool = False) -> None:
        super().__init__()
        whole("mlp", hidden=hidden)
        self.act = activation_named(activation)
        self.up = Linear(width, hidden, bias=bias)
        self.down = Linear(hidden, width, bias=bias)

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        inner = narrowed(x, getattr(self.up, "weight", None))
        if not wanted(self, "pre") and fuses(inner, self.up):
            post = fused(inner, self.up, self.act)
        else:
            post = self.act(site(self, "pre", self.up(inner)))
        return self.down(site(self, "post", post)).to(x.dtype)

    def cost(self, tokens: int) -> Cost:
        matrices = self.up.weight.numel() + self.down.weight.numel()
        return Cost(sum(p.numel() for p in self.parameters()), 2 * tokens * matrices, 0)
