"""Keep whole chunks of neighbouring tokens instead of single ones, by the scores of any policy.

Chunk c of a sequence is the positions [c * length, (c + 1) * length). Its score is the mean of the inner policy's scores over
the tokens of it that are held, in all heads of the layer together, and its tokens share that score; so the heads of a layer
keep the same chunks, best first. Where the budget ends inside a chunk, the chunk's first tokens are kept, so that budgets
stay exact. Pins act by token: the pinned tokens of a chunk stay whatever becomes of the rest, and count in its mean.

The authors reuse one layer's choice in the next ones to save time; here each layer chooses for itself.

seam: policy
row: -
source: Liu et al. 2025, ChunkKV: Semantic-Preserving KV Cache Compression (arXiv:2502.00299)
object: ChunkKV
aliases: chunk
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.policy import Policy
from assay.core.store import Store
from assay.efficiency.cache.common import Wrapper


class ChunkKV(Wrapper):
    """`length`: tokens in a chunk (10 in the paper). A length of 1 lets each token stand for itself, one choice for all heads."""

    def __init__(
        self,
        inner: Policy,
        length: int = 10,
        *,
        sink: int | None = None,
        recent: int | None = None,
        prompt: bool | None = None,
    ) -> None:
        super().__init__(inner, sink=sink, recent=recent, prompt=prompt)
        whole("chunkkv", length=length)
        self.length = length

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        scores, flat = wide(self.inner.score(layer, store)), store.flat()
        chunk = flat.positions // self.length
        chunks = int(chunk.max()) + 1
        at = (flat.owner // store.kv_heads) * chunks + chunk
        total = scores.new_zeros(store.batch * chunks).index_add(0, at, scores)
        held = torch.bincount(at, minlength=store.batch * chunks)
        return (total / held.clamp(min=1))[at]
