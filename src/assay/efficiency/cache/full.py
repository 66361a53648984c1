"""Keep everything: what every other policy is compared with.

seam: policy
row: -
source: -
object: Full
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from assay.core.policy import Policy
from assay.core.store import Store


class Full(Policy):
    """Its budget is everything; a smaller one is refused."""

    bounded = False

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat = store.flat()
        return flat.positions.new_zeros(len(flat.positions), dtype=flat.k.dtype)
