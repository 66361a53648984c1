"""Keep the first tokens and the last ones: attention sinks and a window.

score = position, so that beside the pinned sinks the latest tokens stay. Keys keep the positions they were made at,
where the paper numbers the positions anew within the cache (which matters only past the trained context).

seam: policy
row: -
source: Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks (arXiv:2309.17453)
object: Recent
aliases: streaming_llm
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
