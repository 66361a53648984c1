"""Queries, the window of the last ones that a policy holds in the store, and what each of them attends to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.attention import softmax_or_zero, visible
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.state import Bias, Observed
from assay.core.store import EMPTY, Store
from assay.efficiency.cache.common import Rows, attention_received, group_bias


@dataclass(frozen=True)
class Queries:
    """Queries of a batch at their true positions, `EMPTY` where a sequence has fewer of them."""

    q: Float[Tensor, "batch heads queries dim"]
    positions: Int[Tensor, "batch queries"]
    scale: float
    softcap: float | None
    bias: Bias | None = None

    @classmethod
    def of(cls, seen: Observed, voting: Bool[Tensor, "batch tokens"]) -> Queries:
        """Those tokens of one append that are `voting`."""
        return cls(seen.q, seen.positions.masked_fill(~voting, EMPTY), seen.scale, seen.softcap, seen.bias)

    @property
    def voting(self) -> Bool[Tensor, "batch queries"]:
        return self.positions != EMPTY

    def parts(self, size: int) -> Iterator[tuple[slice, Queries]]:
        """At most `size` queries at a time, and where they stand."""
        for begin in range(0, self.q.shape[2], size):
            at = slice(begin, begin + size)
            yield at, replace(self, q=self.q[:, :, at], positions=self.positions[:, at])


class QueryWindow:
    """The last `window` queries of each sequence. They lie in the store under a policy's `tag`: forks carry them, they count as bytes."""

    def __init__(self, part: str, tag: str, window: int) -> None:
        self.part, self.tag, self.window = part, tag, window
        self.logits: dict[int, tuple[float, float | None, Bias | None]] = {}  # scale, soft cap and bias of each layer

    def take(self, layer: int, store: Store, seen: Observed) -> None:
        self.logits[layer] = seen.scale, seen.softcap, seen.bias
        queries, positions = seen.q[:, :, -self.window :], seen.positions[:, -self.window :]
        if seen.valid is not None:
            queries, positions = seen.q, seen.positions.masked_fill(~seen.valid, EMPTY)
        if self.holds(store):
            before = store.notes[f"{self.tag}/positions"]
            # what was rolled back since must not vote
            stale = before >= torch.where(positions == EMPTY, before.max() + 1, positions).amin(1, keepdim=True)
            positions = torch.cat([before.masked_fill(stale, EMPTY), positions], 1)
            queries = torch.cat([store.notes[f"{self.tag}/queries"].transpose(1, 2), queries], 2)
        last = (positions != EMPTY).sort(dim=1, stable=True).indices[:, -self.window :]
        store.notes[f"{self.tag}/positions"] = positions.gather(1, last)
        rows = torch.arange(len(last), device=last.device)[:, None]
        store.notes[f"{self.tag}/queries"] = queries.transpose(1, 2)[rows, last]

    def holds(self, store: Store) -> bool:
        return f"{self.tag}/queries" in store.notes

    def held(self, layer: int, store: Store) -> Queries:
        """In the order they came. Raises AssayError where none were seen."""
        if not self.holds(store):
            raise AssayError(f"{self.part} has not seen this state's tokens: attach it before the context is fed")
        queries, positions = (store.notes[f"{self.tag}/{name}"] for name in ("queries", "positions"))
        return Queries(queries.transpose(1, 2), positions, *self.logits[layer])

    def drop(self, store: Store) -> None:
        for name in ("queries", "positions"):
            store.forget(f"{self.tag}/{name}")


def received(queries: Queries, store: Store) -> Float[Tensor, "stored"]:
    """The attention that each stored token receives, averaged over those queries that vote and over a group's heads."""
    total = attention_received(
        queries.q,
        queries.positions,
        queries.voting,
        store,
        scale=queries.scale,
        softcap=queries.softcap,
        bias=queries.bias,
    )
    voters = queries.voting.sum(1).clamp(min=1)
    return total / voters[store.flat().owner // store.kv_heads]


def attention(queries: Queries, store: Store, rows: Rows) -> Float[Tensor, "owners group queries longest"]:
    """Softmax attention of each query head to what its key-value head holds; zero of queries that do not vote."""
    flat = store.flat()
    keys, at = rows.pad(wide(flat.k)), rows.pad(flat.positions, EMPTY)
    q = wide(queries.q).unflatten(1, (store.kv_heads, -1)).flatten(0, 1) * queries.scale
    scores = q @ keys[:, None].mT
    if queries.softcap is not None:
        scores = queries.softcap * (scores / queries.softcap).tanh()
    positions = queries.positions.repeat_interleave(store.kv_heads, 0)
    if queries.bias is not None:
        owner = torch.arange(len(at), device=at.device)
        scores = scores + group_bias(queries.bias, positions, at, owner, store.kv_heads, queries.q.shape[1])
    mask = visible(positions, at, None)
    return softmax_or_zero(scores.masked_fill(~mask[:, None], -torch.inf))
