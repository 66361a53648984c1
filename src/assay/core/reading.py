"""How queries read what a store holds: the default dense reader, and the interface of readers that read less."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core import attention
from assay.core.store import Pages, Store


@dataclass(frozen=True)
class Query:
    """New tokens' queries and the rule of what they may read."""

    q: Float[Tensor, "batch heads tokens dim"]
    positions: Int[Tensor, "batch tokens"]
    scale: float
    window: int | None
    valid: Bool[Tensor, "batch tokens"] | None = None


@dataclass(frozen=True)
class Out:
    """What was read. Outs over disjoint keys merge through `lse`; `pairs` counts the query-key products that were computed."""

    out: Float[Tensor, "batch heads tokens dim_v"]
    lse: Float[Tensor, "batch heads tokens"]
    pairs: int


@dataclass(frozen=True)
class Plan:
    """Which pages each owner's new queries read, and whatever the reader wants to find again at the next step."""

    pages: Pages
    read: Bool[Tensor, "pages"]
    notes: Any = None


class Reader(ABC):
    """Chooses pages by a plan, then reads those alone. What a plan does not name is never touched, not even multiplied by zero."""

    @abstractmethod
    def plan(self, query: Query, store: Store, previous: Plan | None) -> Plan:
        """What to read. `previous` is the plan of the step before on the same state."""

    @abstractmethod
    def read(self, query: Query, store: Store, plan: Plan) -> Out: ...

    def certificate(self, query: Query, store: Store, plan: Plan) -> Float[Tensor, "batch heads tokens"] | None:
        """A bound on the attention mass that was not read, in [0, 1], or None."""
        return None


def read_held(query: Query, store: Store, pages: Pages | None = None) -> Float[Tensor, "batch heads tokens dim_v"]:
    """Dense attention over all that is held. `pages`: the store's pages where values are something made from them."""
    pages = store.pages() if pages is None else pages
    if store.even and query.q.shape[2] == 1 and (first := _first_read(query, store, pages)) is not None:
        held = store.counts[0]
        rows = query.q.reshape(store.owners, -1, query.q.shape[-1])
        read = attention.attend_all(rows, pages.k[:, first:held], pages.v[:, first:held], query.scale)
        return read.view(*query.q.shape[:3], -1)
    if store.dense:
        return attention.attend_dense(
            query.q, pages, query.positions, scale=query.scale, window=query.window, heads_alike=store.heads_alike
        )
    return attention.attend_pages(
        query.q, pages, query.positions, scale=query.scale, window=query.window, kv_heads=store.kv_heads
    )[0]


def _first_read(query: Query, store: Store, pages: Pages) -> int | None:
    """From which held token on one new token reads everything; None where only a mask can tell."""
    held = store.counts[0]
    if query.window is None or not held:
        return 0
    first = max(0, held - query.window)
    reach = query.positions[:, 0].repeat_interleave(store.kv_heads) - (held - 1 - first)
    return first if bool((pages.positions[:, first] == reach).all()) else None
