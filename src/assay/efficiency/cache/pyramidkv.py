"""Give lower layers more of the budget than higher ones, along a straight line: budgets by layer for any policy.

Beside its pins, layer l of m growing layers may keep
  free * (top + (bottom - top) * l / (m - 1)) tokens a head,  bottom = 1 / beta,  top = 2 - bottom,
where free is the budget beside the pins; so the layers' mean is the budget. Where the first layer holds fewer than its share,
it keeps all and the last one's share grows by the rest. Rounded so that the total is exact. The pins take the part of the
paper's local window, which every layer keeps in full.

seam: policy
row: -
source: Cai et al. 2024, PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling (arXiv:2406.02069)
object: PyramidKV
aliases: pyramid
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.store import Store
from assay.efficiency.cache.common import Wrapper
from assay.efficiency.cache.shares import rounded
from assay.efficiency.cache.snapkv import SnapKV

ONE_LAYER = "one layer grows without end: there are no other layers to share the budget with"


class PyramidKV(Wrapper):
    """Around `inner`, or around snapkv as published where none is given. `beta`: how steep (20 in the paper, 1 is flat)."""

    def __init__(
        self,
        inner: Policy | None = None,
        beta: float = 20.0,
        *,
        sink: int | None = None,
        recent: int | None = None,
        prompt: bool | None = None,
    ) -> None:
        super().__init__(SnapKV() if inner is None else inner, sink=sink, recent=recent, prompt=prompt)
        if beta < 1:
            raise AssayError(f"pyramidkv: beta={beta} would turn the pyramid over; give a number from 1 on")
        self.beta = beta

    def allot(
        self, scores: Mapping[int, Float[Tensor, "stored"]], stores: Mapping[int, Store], budget: Int[Tensor, "batch"]
    ) -> dict[int, Int[Tensor, "owners"]]:
        heads = torch.tensor([store.kv_heads for store in stores.values()], device=budget.device)
        pins = {layer: _by_head(scores[layer].isinf(), store).amax(1) for layer, store in stores.items()}
        first = next(iter(stores))
        free = (budget - pins[first]).clamp(min=0).double()
        held = torch.tensor(stores[first].counts, device=budget.device).view(len(budget), -1).amax(1)
        top = torch.minimum(free * (2 - 1 / self.beta), held - pins[first])
        # 0 at the first layer, 1 at the last; a single layer gets the mean
        way = torch.linspace(0, 1, len(stores), dtype=torch.double, device=budget.device)
        shares = top[:, None] + (2 * free - 2 * top)[:, None] * way
        # layers of unlike numbers of heads weigh unlike in the total
        mean = (shares * heads).sum(1, keepdim=True) / heads.sum()
        shares = shares * torch.where(mean > 0, free[:, None] / mean, 1)
        desired = {
            layer: (pins[layer] + shares[:, at]).repeat_interleave(store.kv_heads)
            for at, (layer, store) in enumerate(stores.items())
        }
        return rounded(desired, stores, budget)

    def limits(self, kv_heads: list[int]) -> str | None:
        mine = ONE_LAYER if len(kv_heads) == 1 else None
        return "; ".join(dict.fromkeys(line for line in (mine, self.inner.limits(kv_heads)) if line)) or None


def _by_head(pinned: Tensor, store: Store) -> Int[Tensor, "batch kv_heads"]:
    return torch.bincount(store.flat().owner[pinned], minlength=store.owners).view(store.batch, -1)
