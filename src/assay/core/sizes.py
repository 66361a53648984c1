"""How many bytes a store would take up if its heads held so many tokens: reckoned from its tensors, without making it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.coding import FULL, GROUP
from assay.core.format import GroupedFormat
from assay.core.pages import distinct_bytes
from assay.core.store import Store


def bytes_holding(
    store: Store, counts: Int[Tensor, "*cases kv_heads"], passing: Collection[str] = ()
) -> Int[Tensor, "*cases"]:
    """Bytes of one sequence by itself whose heads hold so many tokens, laid out as `Store.keep` does.

    Positions, columns, notes, scales and empty slots count; columns and notes whose names begin with one of `passing` do not.
    Of a format in groups: as many groups as the counts fill. The store must hold something, so that its tensors are known.
    """
    slots, pages = _laid_out(counts, store.page, store.grain)
    slot = slot_bytes(store, passing)
    notes = sum(_row(t) for name, t in store.notes.items() if name.partition("/")[0] not in passing)
    found = slots * slot + pages * store.owner.element_size() + notes
    if isinstance(store.format, GroupedFormat):
        groups = (counts - store.format.recent).clamp(min=0) // store.format.group
        full = counts - groups * store.format.group
        tables = {kind: sum(_row(t) for n, t in store.tables.items() if n.startswith(kind)) for kind in (FULL, GROUP)}
        found = found + groups.sum(-1) * tables[GROUP] + full.sum(-1) * tables[FULL]
    return found


def slot_bytes(store: Store, passing: Collection[str] = ()) -> int:
    """Bytes of one slot in all arrays."""
    return sum(_row(t[0]) for name, t in store.arrays.items() if name.partition("/")[0] not in passing)


def held_bytes(store: Store, passing: Collection[str] = ()) -> int:
    """Bytes of the distinct storages as they are, without what policies so named remember."""
    gone = [t for n, t in (*store.arrays.items(), *store.notes.items()) if n.partition("/")[0] in passing]
    return store.bytes - distinct_bytes(gone)


def _row(t: Tensor) -> int:
    """Bytes of one entry along the first axis."""
    return t.shape[1:].numel() * t.element_size()


def _laid_out(
    counts: Int[Tensor, "*cases kv_heads"], page: int, grain: int
) -> tuple[Int[Tensor, "*cases"], Int[Tensor, "*cases"]]:
    """Slots and pages; the rule of `layout.page_for`."""
    heads = counts.shape[-1]
    dense = -(-counts.amax(-1).clamp(min=1) // grain) * grain * heads
    exact, paged = (-(-counts // page)).sum(-1), (-(-counts.clamp(min=1) // page)).sum(-1)
    together = dense <= 1.25 * exact * page
    return torch.where(together, dense, paged * page), torch.where(together, heads, paged)


MOST = 2**20  # tokens of a head beyond which a budget in bytes is not reckoned


def tokens_within(amount: float, stores: Sequence[Store], passing: Collection[str] = ()) -> int:
    """The most tokens that every head of one sequence may hold in all these layers within so many bytes."""
    if not stores:
        return MOST
    least = sum(s.kv_heads * slot_bytes(s, passing) for s in stores)
    most = min(MOST, int(amount // least) + 1) if least else MOST
    cases = torch.arange(most + 1)
    total = sum(bytes_holding(s, cases[:, None].expand(-1, s.kv_heads), passing) for s in stores)
    fits = (total <= amount).nonzero()
    return int(fits[-1]) if len(fits) else 0


def most_within(
    amount: float,
    stores: Mapping[int, Store],
    allot: Callable[[Int[Tensor, "batch"]], dict[int, Int[Tensor, "owners"]]],
    least: Int[Tensor, "batch"],
    most: Int[Tensor, "batch"],
    passing: Collection[str] = (),
) -> dict[int, Int[Tensor, "owners"]]:
    """What `allot` gives each owner for the most tokens at which every sequence, by itself, stays within so many bytes.

    Heads that share unevenly lie in pages that are not full; `least` is given where not even that many tokens fit.
    """

    def fits(budgets: Mapping[int, Int[Tensor, "owners"]]) -> Bool[Tensor, "batch"]:
        total = torch.zeros_like(most)
        for layer, store in stores.items():
            counts = torch.minimum(budgets[layer], torch.tensor(store.counts, device=most.device))
            total += bytes_holding(store, counts.view(store.batch, store.kv_heads), passing)
        return total <= amount

    budgets = allot(most)
    fitting = fits(budgets)
    if bool(fitting.all()):
        return budgets
    low, high = torch.where(fitting, most, least), most
    while bool((high - low > 1).any()):
        middle = (low + high) // 2
        fitting = fits(allot(middle))
        low, high = torch.where(fitting, middle, low), torch.where(fitting, high, middle)
    return allot(low)
