"""Read only the pages of keys that could score high for the query at hand.

For each page, low and high are the smallest and largest value of each key coordinate; for a query q no key of the page scores above
  bound = scale * sum_i max(q_i low_i, q_i high_i).
Of each key-value head the `pages` pages with the highest bound (over the group's query heads and new tokens) are read, the first and
the last always. low and high are kept between steps and brought up to date for new tokens, so that a step does not read all keys.

Certificate: the attention mass left unread is at most  R / (R + e^lse),  R = sum over unread pages of tokens * e^bound.

seam: reader
row: -
source: Tang et al. 2024, Quest (arXiv:2406.10774)
object: Quest
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.errors import AssayError
from assay.core.pages import EMPTY, Pages
from assay.core.reading import Out, Plan, Query, Reader
from assay.core.store import Store
from assay.efficiency.sparse.common import place_in_owner, read_pages, small_pages


@dataclass(frozen=True)
class Ranges:
    """Of each page the smallest and largest keys, how many tokens they cover, and the first token's position."""

    low: Float[Tensor, "pages dim"]
    high: Float[Tensor, "pages dim"]
    held: Int[Tensor, "pages"]
    first: Int[Tensor, "pages"]


class Quest(Reader):
    """`size`: tokens in a page; `pages`: how many are read of each key-value head."""

    def __init__(self, pages: int = 16, size: int = 16) -> None:
        whole("quest", pages=pages, size=size)
        if pages < 2 or size < 1:
            raise AssayError(
                f"quest: pages={pages}, size={size}; the first and the last page are always read, so give at least 2 and 1"
            )
        self.pages, self.size = pages, size

    def plan(self, query: Query, store: Store, previous: Plan | None) -> Plan:
        pages = small_pages(store, self.size)
        ranges = _ranges(pages, previous)
        bound = _bounds(query, store, pages, ranges).amax((1, 2)).masked_fill(ranges.held == 0, -torch.inf)
        ends = _ends(pages, ranges)
        ranked = bound.masked_fill(ends, torch.inf)
        order = ranked.sort(descending=True, stable=True).indices
        order = order[pages.owner[order].sort(stable=True).indices]
        rank = place_in_owner(pages.owner[order])
        read = torch.zeros_like(ends)
        read[order[rank < self.pages]] = True
        return Plan(pages, read & (ranges.held > 0), ranges)

    def read(self, query: Query, store: Store, plan: Plan) -> Out:
        return read_pages(query, store, plan)

    def certificate(self, query: Query, store: Store, plan: Plan) -> Float[Tensor, "batch heads tokens"]:
        lse = read_pages(query, store, plan).lse
        bound = _bounds(query, store, plan.pages, plan.notes)
        mass = bound + plan.notes.held.clamp(min=1).log()[:, None, None]
        mass = mass.masked_fill((plan.read | (plan.notes.held == 0))[:, None, None], -torch.inf)
        batch, heads, tokens = query.q.shape[:3]
        shape = (store.owners, heads // store.kv_heads, tokens)
        top = torch.full(shape, torch.finfo(mass.dtype).min, dtype=mass.dtype, device=mass.device)
        top = top.scatter_reduce(0, plan.pages.owner[:, None, None].expand_as(mass), mass, "amax")
        unread = torch.zeros_like(top).index_add(0, plan.pages.owner, (mass - top[plan.pages.owner]).exp())
        unread = (top + unread.log()).reshape(batch, heads, tokens)
        return torch.sigmoid(unread - lse)


def _ranges(pages: Pages, previous: Plan | None) -> Ranges:
    """Ranges of these pages. A full page that the last plan knew, with the same first token and count, is not read again."""
    there = pages.positions != EMPTY
    held, first = there.sum(1), pages.positions[:, 0]
    stale = torch.ones_like(held, dtype=torch.bool)
    dim = pages.k.shape[-1]
    low, high = pages.k.new_zeros(len(held), dim), pages.k.new_zeros(len(held), dim)
    old = None if previous is None else previous.notes
    if old is not None:
        match = _match(pages, previous.pages)
        known = match >= 0
        at = match.clamp(min=0)
        known &= (
            (old.first[at] == first) & (old.held[at] == held) & (previous.pages.positions[at] == pages.positions).all(1)
        )
        low, high = torch.where(known[:, None], old.low[at], low), torch.where(known[:, None], old.high[at], high)
        stale = ~known
    at = stale.nonzero()[:, 0]
    keys, mask = pages.k[at], there[at, :, None]
    low[at] = keys.masked_fill(~mask, torch.inf).amin(1).nan_to_num(posinf=0.0)
    high[at] = keys.masked_fill(~mask, -torch.inf).amax(1).nan_to_num(neginf=0.0)
    return Ranges(low, high, held, first)


def _match(pages: Pages, before: Pages) -> Int[Tensor, "pages"]:
    """For each page the one at the same place of the same owner before, or -1."""

    if before.positions.shape[1] != pages.positions.shape[1]:
        return torch.full_like(pages.owner, -1)
    most = int(max(len(pages.owner), len(before.owner)))
    table = torch.full(((int(max(pages.owner.max(), before.owner.max())) + 1) * most,), -1, device=pages.owner.device)
    table[before.owner * most + place_in_owner(before.owner)] = torch.arange(
        len(before.owner), device=before.owner.device
    )
    return table[pages.owner * most + place_in_owner(pages.owner)]


def _bounds(query: Query, store: Store, pages: Pages, ranges: Ranges) -> Float[Tensor, "pages group tokens"]:
    """The highest score that any key of a page can have, for each query that reads this owner."""
    batch, heads, tokens, dim = query.q.shape
    rows = (query.q * query.scale).reshape(store.owners, -1, tokens, dim)[pages.owner]
    high = torch.einsum("pgtd,pd->pgt", rows.clamp(min=0), ranges.high)
    return high + torch.einsum("pgtd,pd->pgt", rows.clamp(max=0), ranges.low)


def _ends(pages: Pages, ranges: Ranges) -> Bool[Tensor, "pages"]:
    """The first and the last page of each owner that hold anything."""
    there, place = ranges.held > 0, place_in_owner(pages.owner)
    last = torch.bincount(pages.owner, weights=there.double()).long()[pages.owner] - 1
    return there & ((place == 0) | (place == last))
