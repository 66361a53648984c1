"""Keep the tokens whose keys span most: ridge leverage scores of the keys alone.

score_i = k_i^T (sum_j k_j k_j^T + ridge I)^-1 k_i for each key-value head, over what is stored and on keys as stored. It is the
log-determinant of a linear Gaussian channel, approximated one token at a time. No query enters; ridge = `ridge` times the
mean eigenvalue is a choice.

seam: policy
row: -
source: CapKV: Rethinking KV Cache Eviction via a Unified Information-Theoretic Objective, 2026 (arXiv:2604.25975)
object: CapKV
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.store import Store
from assay.efficiency.cache.common import Rows
from assay.efficiency.cache.leverage import leverage, ridge_of


class CapKV(Policy):
    """`ridge`: a share of the mean eigenvalue of the keys' second moment."""

    def __init__(self, ridge: float = 0.01, **pins: Any) -> None:
        super().__init__(**pins)
        if not ridge > 0:
            raise AssayError(f"capkv: ridge={ridge} must be positive")
        self.ridge = ridge

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat = store.flat()
        rows = Rows(flat, store.owners)
        keys = rows.pad(wide(flat.k))
        return rows.flat(leverage(keys, ridge_of(keys, self.ridge)))
