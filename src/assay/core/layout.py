"""Where a store's tokens lie: arrays of pages, grown, moved and addressed. Every array is (pages, page, ...)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.pages import EMPTY

Arrays = dict[str, Tensor]


def filler(name: str) -> int:
    """What an empty slot holds."""
    return EMPTY if name == "positions" else 0


def needs_grad(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def slot_of(owner: Int[Tensor, "pages"], owners: int, page: int, of: Tensor, place: Tensor) -> Tensor:
    """Among all slots the one of the `place`-th token of owner `of`. `owner` names each page's owner, sorted."""
    first = torch.searchsorted(owner, torch.arange(owners, device=owner.device))
    return (first[of] + place // page) * page + place % page


def grown(arrays: Mapping[str, Tensor], tokens: int, grain: int) -> Arrays:
    """The same pages with room for `tokens`, rounded up to the grain."""
    size = -(-tokens // grain) * grain
    found = {}
    for name, t in arrays.items():
        larger = t.new_full((t.shape[0], size, *t.shape[2:]), filler(name))
        if needs_grad(t):
            larger = torch.cat([t, larger[:, t.shape[1] :]], 1)
        else:
            larger[:, : t.shape[1]] = t
        found[name] = larger
    return found


def moved(
    arrays: Mapping[str, Tensor], slots: Int[Tensor, "kept"], counts: list[int], page: int, room: list[int]
) -> tuple[Arrays, Int[Tensor, "pages"]]:
    """Pages of another size that hold the tokens in these slots, `counts` an owner in order, with room for `room`; and their owners."""
    device, owners = slots.device, torch.arange(len(counts), device=slots.device)
    need = torch.tensor([max(1, -(-c // page)) for c in room], device=device)
    owner = torch.repeat_interleave(owners, need)
    count = torch.tensor(counts, device=device)
    rank = torch.arange(len(slots), device=device) - torch.repeat_interleave(count.cumsum(0) - count, count)
    target = slot_of(owner, len(counts), page, torch.repeat_interleave(owners, count), rank)
    found = {}
    for name, t in arrays.items():
        rows = t.new_full((len(owner) * page, *t.shape[2:]), filler(name))
        found[name] = rows.index_copy(0, target, t.flatten(0, 1)[slots]).unflatten(0, (len(owner), page))
    return found, owner


def page_for(counts: list[int], page: int, grain: int) -> int:
    """One page an owner, unless owners differ so much that small pages hold a quarter less."""
    dense = -(-max(max(counts), 1) // grain) * grain
    paged = sum(-(-c // page) for c in counts) * page
    return dense if dense * len(counts) <= 1.25 * paged else page
