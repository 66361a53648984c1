"""Keep tokens drawn at random: the dull baseline that every method has to beat.

Each key-value head draws by itself. A token's priority is drawn once, when it arrives, and the highest stay, so that
every token that is not pinned is kept with the same probability however often the cache is compressed. The prompt is
not protected; `random_attention` is the same with the prompt kept.

seam: policy
row: -
source: -
object: Random
"""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from assay.core.policy import Policy
from assay.core.store import Store
from assay.efficiency.cache.common import draws


class Random(Policy):
    """`seed`: equal seeds keep equal positions. Draws depend on layer, head and position alone, not on the batch."""

    def __init__(self, seed: int = 0, **pins: Any) -> None:
        super().__init__(**pins)
        self.seed = seed

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat = store.flat()
        return draws((self.seed, self.salt, layer), flat.owner, flat.positions, store.kv_heads)
