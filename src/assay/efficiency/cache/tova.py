"""Keep the tokens that the last query attends to: one choice for all heads of a layer.

score_s = mean over the layer's query heads of softmax_s(q_last . k_s * scale); a head that no longer holds s gives it
nothing. The paper drops the lowest token at every step; here several are dropped at once, judged by the same query
(`Compression(slack=0)` drops one a step). The paper does not shield the last token itself; `recent` does.

seam: policy
row: -
source: Oren et al. 2024, Transformers are Multi-State RNNs (arXiv:2401.06104)
object: TOVA
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import Store
from assay.efficiency.cache.attending import QueryWindow, received


class TOVA(Policy):
    """Holds one query a head. As all heads score alike, per-head budgets such as adakv's change nothing."""

    def __init__(self, **pins: Any) -> None:
        super().__init__(**pins)
        self.last = QueryWindow("tova", self.tag, 1)

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.last.take(layer, store, seen)

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        votes, flat = received(self.last.held(layer, store), store), store.flat()
        reach = int(flat.positions.max()) + 1
        at = (flat.owner // store.kv_heads) * reach + flat.positions
        return votes.new_zeros(store.batch * reach).index_add(0, at, votes)[at] / store.kv_heads
