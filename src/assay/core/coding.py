"""How a store holds keys and values: as they are, as codes of each token, or in groups of tokens that share scales.

In groups (`GroupedFormat`): a new token lies in full in a table of its own; `settle` encodes the oldest of each owner's full
tokens, `group` at a time, once `recent` younger ones are there. A token's slot holds its codes and a row: that of its group in
the tables of shared scales, or -1 - that of its numbers in the tables of full ones. So any token can be dropped without touching
another's codes; rows that nothing names any more are dropped by `tidy`. Tables are replaced, never written into.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.format import Encoded, GroupedFormat

if TYPE_CHECKING:
    from assay.core.store import Store

ROW, FULL, GROUP = "row", "full.", "group."


def coded(
    store: Store,
    k: Float[Tensor, "owners tokens dim"],
    v: Float[Tensor, "owners tokens dim_v"],
    valid: Bool[Tensor, "owners tokens"] | None,
) -> dict[str, Tensor]:
    """What an append writes into the store's arrays for these tokens."""
    format = store.format
    if format is None:
        return {"k": k, "v": v}
    if isinstance(format, GroupedFormat):
        return _in_full(store, format, k.detach(), v.detach(), valid)
    return {**_parts("k", format.encode(k.detach())), **coded_values(store, v)}


def coded_values(store: Store, v: Float[Tensor, "owners tokens dim_v"]) -> dict[str, Tensor]:
    if store.format is None or not v.shape[-1]:
        return {"v": v}
    return _parts("v", store.format.encode(v.detach()))


def _parts(name: str, encoded: Encoded) -> dict[str, Tensor]:
    return {f"{name}.{part}": t for part, t in encoded.parts.items()}


def plain(store: Store, name: str) -> Float[Tensor, "pages page dim"]:
    """Keys (`k`) or values (`v`) as they are read."""
    format, arrays = store.format, store.arrays
    if name in arrays or format is None:
        return arrays[name]
    if isinstance(format, GroupedFormat):
        return _from_groups(store, format, name)
    return format.decode(_of(arrays, f"{name}.")).to(store.dtype)


def _of(tensors: dict[str, Tensor], prefix: str) -> Encoded:
    return Encoded({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})


# -- tokens in groups ---------------------------------------------------------------------------------------------------------


def _in_full(
    store: Store, format: GroupedFormat, k: Tensor, v: Tensor, valid: Bool[Tensor, "owners tokens"] | None
) -> dict[str, Tensor]:
    owners, tokens, _ = k.shape
    there = torch.ones(owners, tokens, dtype=torch.bool, device=k.device) if valid is None else valid
    full = {FULL + "k": k[there], **({FULL + "v": v[there]} if v.shape[-1] else {})}
    own, shared = format.encode_keys(k.new_zeros(1, format.group, k.shape[-1]))
    if not store.tables:
        store.tables = {name: t[:0].clone() for name, t in full.items()}
        store.tables |= {GROUP + n: t[:0].clone() for n, t in shared.parts.items()}
        store.full = [0] * owners
    before = len(store.tables[FULL + "k"])
    store.tables |= {name: torch.cat([store.tables[name], t]) for name, t in full.items()}
    arrived = [tokens] * owners if valid is None else valid.sum(1).tolist()
    store.full = [a + b for a, b in zip(store.full, arrived, strict=True)]
    blank = {**_parts("k", own), **coded_values(store, v.new_zeros(1, 1, v.shape[-1]))}
    empty = {name: t.new_zeros(()).expand(owners, tokens, *t.shape[2:]) for name, t in blank.items()}
    return {**empty, ROW: (-before - there.flatten().cumsum(0).view(owners, tokens)).int()}


def _from_groups(store: Store, format: GroupedFormat, name: str) -> Float[Tensor, "pages page dim"]:
    arrays, tables = store.arrays, store.tables
    row, full = arrays[ROW].long(), tables[FULL + name]
    shared = _of(tables, GROUP).parts
    if not len(next(iter(shared.values()))):
        found = full.new_zeros(*row.shape, full.shape[-1])
    elif name == "k":
        at = row.clamp(min=0)
        found = format.decode_keys(_of(arrays, "k."), Encoded({part: t[at] for part, t in shared.items()}))
    else:
        found = format.decode(_of(arrays, "v."))
    found, waiting = found.to(full.dtype), (row < 0).nonzero(as_tuple=True)
    found[waiting] = full[-1 - row[waiting]]
    return found


def settle(store: Store) -> bool:
    """Encode what is ready, if anything is: of each owner whole groups of its oldest full tokens, but not the last `recent`."""
    format = store.format
    if not isinstance(format, GroupedFormat) or max(store.full, default=0) < format.recent + format.group:
        return False
    slots, row, owner = _named(store)
    slots, row, owner = (t[row < 0] for t in (slots, row, owner))
    held = torch.bincount(owner, minlength=store.owners)
    rank = torch.arange(len(owner), device=owner.device) - (held.cumsum(0) - held)[owner]
    ready = rank < ((held - format.recent).clamp(min=0) // format.group * format.group)[owner]
    slots, full = slots[ready], -1 - row[ready]
    own, shared = format.encode_keys(store.tables[FULL + "k"][full].unflatten(0, (-1, format.group)))
    groups = len(store.tables[next(n for n in store.tables if n.startswith(GROUP))])
    of = groups + torch.arange(len(slots), device=slots.device) // format.group
    written = {name: t.flatten(0, 1) for name, t in _parts("k", own).items()} | {ROW: of.int()}
    if FULL + "v" in store.tables:
        written |= coded_values(store, store.tables[FULL + "v"][full])
    _write(store, slots, written)
    store.tables |= {GROUP + n: torch.cat([store.tables[GROUP + n], t]) for n, t in shared.parts.items()}
    tidy(store)
    return True


def replace_keys(store: Store, slots: Int[Tensor, "some"], keys: Float[Tensor, "some dim"]) -> None:
    """Other keys for the tokens in these slots. In groups such tokens are held in full again."""
    format = store.format
    if not isinstance(format, GroupedFormat):
        new = {"k": keys} if format is None else _parts("k", format.encode(keys))
        _write(store, slots, {name: t.to(store.arrays[name].dtype) for name, t in new.items()})
        return
    full = {FULL + "k": keys}
    if FULL + "v" in store.tables:
        full[FULL + "v"] = plain(store, "v").flatten(0, 1)[slots]
    before = len(store.tables[FULL + "k"])
    store.tables |= {name: torch.cat([store.tables[name], t.to(store.tables[name].dtype)]) for name, t in full.items()}
    _write(store, slots, {ROW: (-1 - before - torch.arange(len(slots), device=slots.device)).int()})
    tidy(store)


def tidy(store: Store) -> None:
    """Drop the rows of the tables that no token names any more, and count each owner's full tokens anew."""
    slots, row, owner = _named(store)
    store.full = torch.bincount(owner[row < 0], minlength=store.owners).tolist()
    named = torch.zeros_like(store.arrays[ROW]).flatten()
    for prefix, mine, sign in ((FULL, row < 0, -1), (GROUP, row >= 0, 1)):
        at = torch.where(row < 0, -1 - row, row)[mine]
        used, place = at.unique(return_inverse=True)
        store.tables |= {name: t[used] for name, t in store.tables.items() if name.startswith(prefix)}
        named[slots[mine]] = (place if sign > 0 else -1 - place).int()
    store.arrays[ROW] = named.view_as(store.arrays[ROW])


def _named(store: Store) -> tuple[Int[Tensor, "stored"], Int[Tensor, "stored"], Int[Tensor, "stored"]]:
    """Slot, row and owner of each stored token."""
    slots = store.slots()
    return slots, store.arrays[ROW].flatten()[slots].long(), store.owner[slots // store.arrays[ROW].shape[1]]


def _write(store: Store, slots: Int[Tensor, "some"], new: dict[str, Tensor]) -> None:
    for name, t in new.items():
        array = store.arrays[name]
        store.arrays[name] = array.flatten(0, 1).index_copy(0, slots, t).view_as(array)
