"""Keep the first tokens and the last ones: attention sinks and a window.

score = position, so that beside the pinned sinks the latest tokens stay. `streaming_llm` is the published method, which can
count positions within the cache; this is the dull baseline of the same set.

seam: policy
row: -
source: -
object: Recent
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.policy import Policy
from assay.core.store import Store


class Recent(Policy):
    """`sink`, an argument of every policy, is the number of attention sinks (4 in the paper)."""

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        return store.flat().positions.to(torch.float64)
