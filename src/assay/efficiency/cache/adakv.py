"""Give each head the share of its layer's budget that its scores earn: per-head budgets for any policy.

The layer's heads compete for the layer's total; head i wins n_i of the highest scores and may keep
(1 - safeguard) n_i + safeguard * total / heads tokens, rounded so that the total is exact. Where every growing layer has
one key-value head there is nothing to share within a layer, and the layers share one total instead.

seam: policy
row: -
source: Feng et al. 2024, Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation (arXiv:2407.11550)
object: AdaKV
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy, rank_per_owner
from assay.core.store import Store
from assay.efficiency.cache.common import Wrapper
from assay.efficiency.cache.shares import ONE_HEAD, rounded, sharing


class AdaKV(Wrapper):
    """`safeguard`: the part of the budget that is split evenly, so that no head starves (the authors' 0.2)."""

    def __init__(
        self,
        inner: Policy,
        safeguard: float = 0.2,
        *,
        sink: int | None = None,
        recent: int | None = None,
        prompt: bool | None = None,
    ) -> None:
        super().__init__(inner, sink=sink, recent=recent, prompt=prompt)
        if not 0 <= safeguard <= 1:
            raise AssayError(f"adakv: safeguard={safeguard} is no share; give a number from 0 to 1")
        self.safeguard = safeguard

    def allot(
        self, scores: Mapping[int, Float[Tensor, "stored"]], stores: Mapping[int, Store], budget: Int[Tensor, "batch"]
    ) -> dict[int, Int[Tensor, "owners"]]:
        found = {}
        for group in sharing(stores):
            found |= self._among(group, scores, stores, budget)
        return found

    def _among(
        self,
        group: list[int],
        scores: Mapping[int, Float[Tensor, "stored"]],
        stores: Mapping[int, Store],
        budget: Int[Tensor, "batch"],
    ) -> dict[int, Int[Tensor, "owners"]]:
        owners = [stores[layer].flat().owner for layer in group]
        heads = sum(stores[layer].kv_heads for layer in group)
        sequence = torch.cat([o // stores[layer].kv_heads for layer, o in zip(group, owners, strict=True)])
        # equal scores are won in the order of their rank in their own head, so that equal heads win equally many
        inner = torch.cat(
            [rank_per_owner(scores[la], o, stores[la].owners) for la, o in zip(group, owners, strict=True)]
        )
        together = torch.cat([scores[layer] for layer in group])
        turn = inner.sort(stable=True).indices
        place = torch.empty_like(turn)
        place[turn] = rank_per_owner(together[turn], sequence[turn], len(budget))
        won = (place < (budget * heads)[sequence]).split([len(o) for o in owners])
        desired = {
            layer: (1 - self.safeguard) * torch.bincount(o[w], minlength=stores[layer].owners)
            + self.safeguard * budget.repeat_interleave(stores[layer].kv_heads)
            for layer, o, w in zip(group, owners, won, strict=True)
        }
        return rounded(desired, stores, budget)

    def limits(self, kv_heads: list[int]) -> str | None:
        mine = ONE_HEAD if set(kv_heads) == {1} else None
        return "; ".join(dict.fromkeys(line for line in (mine, self.inner.limits(kv_heads)) if line)) or None
