"""Keep the heavy hitters, the tokens that have received most attention so far, and the most recent ones.

score_s = sum over all queries t >= s so far of softmax_s(q_t . k_s * scale), averaged over the query heads of a group;
it goes on accumulating while generating. Half of a head's budget goes to its latest tokens, half to the highest scores.

seam: policy
row: -
source: Zhang et al. 2023, H2O: Heavy-Hitter Oracle (arXiv:2306.14048)
object: H2O
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy, rank_per_owner, top_per_owner
from assay.core.state import Observed
from assay.core.store import Store
from assay.efficiency.cache.common import attention_received


class H2O(Policy):
    """`local`: the share of the budget that goes to the latest tokens (the paper's half). One number a token is stored."""

    def __init__(self, local: float = 0.5, **pins: Any) -> None:
        super().__init__(**pins)
        if not 0 <= local <= 1:
            raise AssayError(f"h2o: local={local} is no share; give a number from 0 to 1")
        self.local = local

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        received = attention_received(
            seen.q, seen.positions, seen.valid, store, scale=seen.scale, softcap=seen.softcap, bias=seen.bias
        )
        name = self.named("received")
        before = store.column(name) if name in store.arrays else 0
        store.set_column(name, before + received)

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        if (name := self.named("received")) not in store.arrays:
            raise AssayError("h2o has not seen this state's tokens: attach it before the context is fed")
        return store.column(name)

    def keep(
        self, layer: int, store: Store, scores: Float[Tensor, "stored"], budget: Int[Tensor, "owners"]
    ) -> Int[Tensor, "kept"]:
        flat = store.flat()
        latest = rank_per_owner(flat.positions, flat.owner, store.owners) < (budget * self.local).long()[flat.owner]
        # pins, which are infinite, come before the latest; both before any heavy hitter
        finite = torch.where(latest & ~scores.isinf(), torch.finfo(scores.dtype).max, scores)
        return top_per_owner(finite, flat.owner, budget)
