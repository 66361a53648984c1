"""Keep the tokens that queries still to come are expected to attend to, judged by what queries were like so far.

For each query head, with m and C the mean and covariance of its queries before rotation (those of sinks left out), and R the
mean of the rotations to the next `future` positions, future queries are taken as normal with mean R m and covariance R C R';
then the expected exponential score of key k is
  z_s = exp(scale * (R m) . k_s + scale^2 / 2 * k_s' (R C R') k_s)
  score_s = (mean over a group's heads of z_s / sum over stored s' of z_s' + epsilon) * ||v_s||
with sinks left out of the sum. The paper weighs values after the output projection, its public code as they are stored, and
so does this. A cap on scores is not modelled, nor a bias on distances. Queries that were rolled back stay in the statistics.

seam: policy
row: -
source: Devoto et al. 2025, Expected Attention: KV Cache Compression by Estimating Attention from Future Queries Distribution
  (arXiv:2510.00636)
object: ExpectedAttention
aliases: expected
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed, Turn
from assay.core.store import Store
from assay.efficiency.cache.common import SCORES, Rows

HEAVY = (
    "one key-value head a layer: the covariances it stores weigh as much as heads * head_dim / 2 tokens of the layer;"
    " covariance=False stores none"
)


class ExpectedAttention(Policy):
    """Stores a dim x dim matrix for each query head (none with `covariance=False`, which expects the mean query alone).

    In float32 that is as many bytes as group * dim / 2 stored tokens of each key-value head.
    """

    def __init__(self, future: int = 512, epsilon: float = 0.0, covariance: bool = True, **pins: Any) -> None:
        super().__init__(**pins)
        whole("expected_attention", future=future)
        if epsilon < 0:
            raise AssayError(f"expected_attention: epsilon={epsilon} is negative; give a number from 0 on")
        self.future, self.epsilon, self.covariance = future, epsilon, covariance
        self.layers: dict[int, tuple[float, Turn | None]] = {}  # scale and rotation of each layer

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.layers[layer] = seen.scale, seen.turn
        counted = seen.positions >= self.sink
        if seen.valid is not None:
            counted = counted & seen.valid
        queries = torch.where(counted[:, None, :, None], wide(seen.q_unrotated), 0)
        self._add(store, "queries", counted.sum(1))
        self._add(store, "sum", queries.sum(2))
        if self.covariance:
            self._add(store, "products", queries.mT @ queries)

    def _add(self, store: Store, what: str, more: Tensor) -> None:
        name = self.named(what)
        store.notes[name] = store.notes[name] + more if name in store.notes else more

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        if self.named("sum") not in store.notes:
            raise AssayError("expected_attention has not seen this state's tokens: attach it before the context is fed")
        flat = store.flat()
        rows = Rows(flat, store.owners)
        keys, scale = rows.pad(wide(flat.k)), self.layers[layer][0]
        mean, covariance = self._to_come(layer, store, flat.positions, flat.owner)
        scores = scale * mean @ keys.mT
        if covariance is not None:
            scores = scores + scale**2 / 2 * torch.einsum("osd,ogde,ose->ogs", keys, covariance, keys)
        # a key that stands aside must not be NaN, even where all of them do
        aside = ~rows.mask | (rows.pad(flat.positions) < self.sink)
        scores = scores.masked_fill(aside[:, None], torch.finfo(scores.dtype).min)
        weight = (rows.flat(scores.softmax(-1).mean(1)) + self.epsilon) * wide(flat.v).norm(dim=-1)
        sinks = flat.positions < self.sink
        highest = weight.new_zeros(store.owners).scatter_reduce(0, flat.owner, weight, "amax")
        return torch.where(sinks, highest[flat.owner], weight)

    def limits(self, kv_heads: list[int]) -> str | None:
        return HEAVY if self.covariance and set(kv_heads) == {1} else None

    def _to_come(
        self, layer: int, store: Store, positions: Int[Tensor, "stored"], owner: Int[Tensor, "stored"]
    ) -> tuple[Float[Tensor, "owners group dim"], Float[Tensor, "owners group dim dim"] | None]:
        """Mean and covariance of the queries to come, rotated."""
        seen = store.notes[self.named("queries")].clamp(min=1)[:, None, None]
        mean = store.notes[self.named("sum")] / seen
        covariance = None
        if self.covariance:
            covariance = store.notes[self.named("products")] / seen[..., None] - mean[..., :, None] * mean[..., None, :]
        turn = self.layers[layer][1]
        if turn is not None:
            last = positions.new_zeros(store.batch).scatter_reduce(0, owner // store.kv_heads, positions, "amax")
            average = _average(turn, last.long() + 1, self.future, mean)
            mean = mean @ average
            if covariance is not None:
                covariance = average.mT[:, None] @ covariance @ average[:, None]
        dim = mean.shape[-1]
        mean = mean.reshape(store.owners, -1, dim)
        return mean, None if covariance is None else covariance.reshape(store.owners, -1, dim, dim)


def _average(
    turn: Turn, first: Int[Tensor, "batch"], count: int, like: Float[Tensor, "batch heads dim"]
) -> Float[Tensor, "batch dim dim"]:
    """What the mean of `count` rotations, from position `first` on, makes of each unit vector: x @ this is x, turned."""
    batch, _, dim = like.shape
    units = torch.eye(dim, dtype=like.dtype, device=like.device)[None, :, None]
    total = like.new_zeros(batch, dim, dim)
    block = max(1, SCORES // (batch * dim * dim))
    for begin in range(0, count, block):
        at = first[:, None] + torch.arange(begin, min(begin + block, count), device=first.device)
        total += turn(units.expand(batch, dim, at.shape[1], dim), at).sum(2)
    return total / count
