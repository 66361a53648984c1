"""Keep the tokens whose keys differ most from the average key.

score_t = -cos(k_t, mean_s k_s / ||k_s||), for each key-value head, over what is stored.

seam: policy
row: -
source: Park et al. 2025, KeyDiff: Key Similarity-Based KV Cache Eviction (arXiv:2504.15364)
object: KeyDiff
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.core.policy import Policy
from assay.core.store import Store
from assay.efficiency.cache.common import Rows, unit


class KeyDiff(Policy):
    """Needs no queries and no attention, so it can act at any time."""

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat = store.flat()
        keys = unit(flat.k)
        anchors = Rows(flat, store.owners).pad(keys).sum(1)
        return -(keys * unit(anchors)[flat.owner]).sum(-1)
