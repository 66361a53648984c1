"""A mixture of experts: a router sends each token to `top_k` of several gated feed-forwards.

p = softmax(router(x)); y = sum over the top_k experts e of w_e down_e(act(gate_e x) * up_e x), with w = p, renormalised to sum to
one over the chosen if `renormalise`. Auxiliary loss (load balance): experts * sum_e share_e mean(p_e), 1 when the load is even.
x: "batch tokens width". Site `router` is p: "batch tokens experts".

seam: channel
row: -
source: Shazeer et al. 2017 (arXiv:1701.06538); the loss as in Switch Transformers, Fedus et al. 2021 (arXiv:2101.03961)
object: MoE
aliases: mixture_of_experts
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from assay.core import registry
from assay.core.arguments import whole
from assay.core.errors import AssayError
from assay.core.linear import Linear
from assay.core.mixer import Channel, Cost
from assay.core.sites import site


@dataclass(frozen=True)
class Routing:
    """Where the tokens of the last forward pass went. `auxiliary` has a gradient for the router."""

    weights: Float[Tensor, "batch tokens top_k"]
    indices: Int[Tensor, "batch tokens top_k"]
    auxiliary: Float[Tensor, ""]


class MoE(Channel):
    """`hidden` is one expert's, and `expert` the channel that each of them is. `routing` of the last pass is kept until the next."""

    sites = ("router",)

    def __init__(
        self,
        width: int,
        *,
        hidden: int,
        experts: int = 4,
        top_k: int = 2,
        activation: str = "silu",
        renormalise: bool = True,
        expert: str = "gated",
    ) -> None:
        super().__init__()
        whole("moe", hidden=hidden, experts=experts, top_k=top_k)
        if not 1 <= top_k <= experts:
            raise AssayError(f"top_k={top_k}: choose between 1 and the number of experts, {experts}")
        self.top_k, self.renormalise = top_k, renormalise
        self.router = Linear(width, experts)
        self.experts = nn.ModuleList(
            registry.get(expert, "channel")(width, hidden=hidden, activation=activation) for _ in range(experts)
        )
        self.routing: Routing | None = None

    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        probability = site(self, "router", self.router(x).softmax(-1))
        weights, indices = probability.topk(self.top_k, -1)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True)
        self.routing = Routing(weights, indices, self._balance(probability, indices))
        flat, out = x.flatten(0, 1), torch.zeros_like(x).flatten(0, 1)
        choice, share = indices.flatten(0, 1), weights.flatten(0, 1)
        for number, expert in enumerate(self.experts):
            token, place = (choice == number).nonzero(as_tuple=True)
            if len(token):
                read = expert(flat[token][None])[0]
                out = out.index_add(0, token, read * share[token, place, None])
        return out.view_as(x)

    def _balance(self, probability: Tensor, indices: Tensor) -> Float[Tensor, ""]:
        experts = len(self.experts)
        load = torch.bincount(indices.flatten(), minlength=experts) / indices.numel()
        return experts * (load.to(probability.dtype) * probability.flatten(0, 1).mean(0)).sum()

    def cost(self, tokens: int) -> Cost:
        expert = self.experts[0].cost(tokens)
        flops = 2 * tokens * self.router.weight.numel() + self.top_k * expert.flops
        return Cost(sum(p.numel() for p in self.parameters()), flops, 0)
