"""Keep the prompt tokens that the last queries attend to.

score_s = max over |s' - s| <= kernel // 2 of the mean over the last `window` queries t of softmax_s'(q_t . k_s' * scale),
averaged over the query heads of a group; the window's own keys stand above all others. While generating, the most recent
queries take the place of the prompt's last ones.

seam: policy
row: -
source: Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation (arXiv:2404.14469)
object: SnapKV
aliases: snap
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import Store
from assay.efficiency.cache.attending import QueryWindow, received
from assay.efficiency.cache.common import Rows, among


class SnapKV(Policy):
    """`window` queries vote, votes are pooled over `kernel` neighbours (`max` or `mean`). The queries are held in the store."""

    def __init__(self, window: int = 32, kernel: int = 7, pool: Literal["max", "mean"] = "max", **pins: Any) -> None:
        super().__init__(**pins)
        if window < 1 or kernel < 1 or kernel % 2 == 0:
            raise AssayError(f"snapkv: window={window} must be positive and kernel={kernel} odd")
        among("snapkv", pool=(pool, ("max", "mean")))
        self.window, self.kernel, self.pool = window, kernel, pool
        self.last = QueryWindow("snapkv", self.tag, window)

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.last.take(layer, store, seen)

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        queries, flat = self.last.held(layer, store), store.flat()
        first = queries.positions.masked_fill(~queries.voting, torch.iinfo(queries.positions.dtype).max).amin(1)
        in_window = flat.positions >= first[flat.owner // store.kv_heads]
        votes = received(queries, store).masked_fill(in_window, 0)
        rows = Rows(flat, store.owners)
        return rows.flat(self._pooled(rows.pad(votes))).masked_fill(in_window, 1 + 1e-6)

    def _pooled(self, votes: Float[Tensor, "owners longest"]) -> Float[Tensor, "owners longest"]:
        if self.pool == "max":
            return F.max_pool1d(votes[:, None], self.kernel, 1, self.kernel // 2)[:, 0]
        return F.avg_pool1d(votes[:, None], self.kernel, 1, self.kernel // 2)[:, 0]
