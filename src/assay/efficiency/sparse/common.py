"""What readers share: a store seen as small pages, and attention over the pages of a plan alone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from assay.core.attention import attend_pages
from assay.core.pages import EMPTY, Pages
from assay.core.reading import Out, Plan, Query
from assay.core.store import Store


def small_pages(store: Store, size: int) -> Pages:
    """The store's pages cut into pages of `size` tokens; whole pages are a view, the last may be filled up with empty slots."""
    pages = store.pages()
    missing = -pages.positions.shape[1] % size
    k, v = (F.pad(t, (0, 0, 0, missing)) if missing else t for t in (pages.k, pages.v))
    positions = F.pad(pages.positions, (0, missing), value=EMPTY) if missing else pages.positions
    count = positions.shape[1] // size
    cut = (t.reshape(-1, size, *t.shape[2:]) for t in (k, v, positions))
    return Pages(*cut, owner=pages.owner.repeat_interleave(count))


def read_pages(query: Query, store: Store, plan: Plan) -> Out:
    """Attention over the pages that the plan reads; the others are not touched."""
    chosen = plan.read.nonzero()[:, 0]
    part = Pages(*(t[chosen] for t in (plan.pages.k, plan.pages.v, plan.pages.positions, plan.pages.owner)))
    out, lse = attend_pages(
        query.q, part, query.positions, scale=query.scale, window=query.window, kv_heads=store.kv_heads
    )
    heads, tokens = query.q.shape[1:3]
    return Out(out, lse, len(chosen) * part.positions.shape[1] * heads // store.kv_heads * tokens)


def place_in_owner(owner: Int[Tensor, "pages"]) -> Int[Tensor, "pages"]:
    """The how-manieth page of its owner each is; `owner` is sorted."""
    count = torch.bincount(owner)
    return torch.arange(len(owner), device=owner.device) - (count.cumsum(0) - count)[owner]
