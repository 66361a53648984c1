"""Keys and values as flat pages with owners, so that heads may keep different counts and memory is really freed.

An owner is one key-value head of one sequence: `owner = batch_index * kv_heads + head`. While all owners hold about the
same number of tokens, each owner has a single page as long as its content (a dense layout); once counts differ much,
pages become small (`page` tokens) and an owner has as many as it needs. Readers see `pages()` and never care which.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core import coding, layout
from assay.core.columns import Columns
from assay.core.errors import AssayError
from assay.core.format import Format, GroupedFormat
from assay.core.pages import EMPTY, Flat, Pages, distinct_bytes


class Store(Columns):
    """Keys and values of one layer, as they are or in a number format.

    `kv_heads` key-value heads a sequence. `format`: what is held is encoded when it is appended (in groups of tokens: when
    it `settle`s) and decoded when it is read. `page`: tokens in a page once counts are uneven. `grain`: a dense layout grows by this
    many tokens at a time. Without gradients tensors are written in place; under gradients every change is functional.
    """

    def __init__(
        self, batch: int, kv_heads: int, *, page: int = 64, grain: int = 16, format: Format | None = None
    ) -> None:
        super().__init__()
        self.batch, self.kv_heads, self.page, self.grain, self.format = batch, kv_heads, page, grain, format
        self.counts = [0] * (batch * kv_heads)
        self.tables: dict[str, Tensor] = {}  # what a format in groups holds beside the arrays, see `core/coding.py`
        self.full: list[int] = []  # tokens of each owner that such a format still holds in full
        self.owner: Int[Tensor, "pages"] = torch.arange(batch * kv_heads)
        self.dtype: torch.dtype | None = None  # of keys and values as they were appended, and are read
        self.values_in_keys = 0  # values are so many first coordinates of the keys, and are not stored again
        self.heads_alike = True  # no head has lost a token that another kept

    @property
    def owners(self) -> int:
        return self.batch * self.kv_heads

    @property
    def dense(self) -> bool:
        """One page an owner."""
        return len(self.owner) == self.owners

    @property
    def even(self) -> bool:
        """Dense, and every owner holds equally many tokens."""
        return self.dense and self.counts.count(self.counts[0]) == len(self.counts)

    @property
    def bytes(self) -> int:
        return distinct_bytes(self.tensors()) if self.arrays else 0

    @property
    def coded_at_once(self) -> bool:
        """New tokens are read from their codes from the start."""
        return self.format is not None and not isinstance(self.format, GroupedFormat)

    def tensors(self) -> list[Tensor]:
        return [*self.arrays.values(), *self.tables.values(), *self.notes.values(), self.owner]

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(
        self,
        k: Float[Tensor, "batch kv_heads tokens dim"],
        v: Float[Tensor, "batch kv_heads tokens dim_v"],
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
        functional: bool = False,
    ) -> None:
        """Add tokens after what each owner holds; invalid tokens leave no trace.

        `functional`: write nothing in place, even where neither keys nor values have gradients (their readers may).
        """
        batch, heads, tokens, _ = k.shape
        if (batch, heads) != (self.batch, self.kv_heads):
            raise AssayError(f"keys of {batch} x {heads} heads appended to a store of {self.batch} x {self.kv_heads}")
        spread = positions.to(torch.int32)[:, None].expand(batch, heads, tokens)
        self.dtype = self.dtype or k.dtype
        there = None if valid is None else valid.repeat_interleave(heads, 0)
        new = coding.coded(self, k.flatten(0, 1), v.flatten(0, 1), there)
        new["positions"] = spread.reshape(self.owners, tokens)
        functional = functional or layout.needs_grad(*new.values(), *self.arrays.values())
        if there is None and self.even:
            self._append_even(new, tokens, functional)
        else:
            if there is None:
                there = torch.ones(self.owners, tokens, dtype=torch.bool, device=k.device)
            self._append_uneven(new, there, functional)

    def _append_even(self, new: dict[str, Tensor], tokens: int, functional: bool) -> None:
        held = self.counts[0]
        if not self.arrays:
            self._begin(new)
        if functional:
            self.arrays = {
                name: torch.cat([t[:, :held], self._new(name, new, tokens)], 1) for name, t in self.arrays.items()
            }
        else:
            if held + tokens > self.arrays["positions"].shape[1]:
                self.arrays = layout.grown(self.arrays, held + tokens, self.grain)
            for name, t in self.arrays.items():
                t[:, held : held + tokens] = new[name] if name in new else 0
        self.counts = [held + tokens] * self.owners
        self._written = slice(held, held + tokens)

    def _append_uneven(self, new: dict[str, Tensor], valid: Bool[Tensor, "owners tokens"], functional: bool) -> None:
        if not self.arrays:
            self._begin(new)
        held = torch.tensor(self.counts, device=valid.device)
        wanted = (held + valid.sum(1)).tolist()
        self._make_room(wanted)
        place = held[:, None] + valid.cumsum(1) - 1
        slots = self._slot(torch.arange(self.owners, device=valid.device)[:, None], place)[valid]
        for name, t in self.arrays.items():
            rows = t.flatten(0, 1)
            put = rows.index_copy if functional else rows.index_copy_
            added = new[name][valid].to(t.dtype) if name in new else rows.new_zeros(len(slots), *rows.shape[1:])
            self.arrays[name] = put(0, slots, added).view_as(t)
        self.counts = wanted
        self._written = (slots, valid)

    def _begin(self, new: dict[str, Tensor]) -> None:
        self.owner = self.owner.to(new["positions"].device)
        self.arrays = {name: t.new_empty(self.owners, 0, *t.shape[2:]) for name, t in new.items()}

    def _make_room(self, wanted: list[int]) -> None:
        size = self.arrays["positions"].shape[1]
        if self.dense:
            if max(*wanted, 1) > size:
                self.arrays = layout.grown(self.arrays, max(*wanted, 1), self.grain)
            return
        room = [n * size for n in torch.bincount(self.owner, minlength=self.owners).tolist()]
        if any(w > r for w, r in zip(wanted, room, strict=True)):
            self._lay_out([max(w, r) for w, r in zip(wanted, room, strict=True)], self.page)

    def _new(self, name: str, new: dict[str, Tensor], tokens: int) -> Tensor:
        t = self.arrays[name]
        return new[name] if name in new else t.new_zeros(self.owners, tokens, *t.shape[2:])

    # -- reading -----------------------------------------------------------------------------------------------------------

    def pages(self) -> Pages:
        k = coding.plain(self, "k")
        v = k[..., : self.values_in_keys] if self.values_in_keys else coding.plain(self, "v")
        return Pages(k, v, self.arrays["positions"], self.owner)

    def slots(self) -> Int[Tensor, "stored"]:
        """Index of each stored token among all slots, in the order of `flat()`."""
        return (self.arrays["positions"].flatten() != EMPTY).nonzero()[:, 0]

    def flat(self) -> Flat:
        slots, pages = self.slots(), self.pages()
        k, v, positions = (t.flatten(0, 1)[slots] for t in (pages.k, pages.v, pages.positions))
        return Flat(k, v, positions, self.owner[slots // pages.positions.shape[1]])

    def padded(self) -> Pages:
        """The same content with one page an owner, whatever the layout (for readers that want a matrix)."""
        if self.dense:
            return self.pages()
        copy = self.fork()
        copy._lay_out(copy.counts, max(*copy.counts, 1))
        return copy.pages()

    # -- changing what is held ----------------------------------------------------------------------------------------------

    def keep(self, indices: Int[Tensor, "kept"], *, heads_alike: bool = False) -> None:
        """Keep only these entries of `flat()`; order and true positions stay. Freed memory is really freed.

        `heads_alike`: the caller knows that all heads of a sequence keep the same positions.
        """
        if not self.arrays:
            return
        indices = indices.sort().values
        slots = self.slots()[indices]
        owner = self.owner[slots // self.arrays["positions"].shape[1]]
        counts = torch.bincount(owner, minlength=self.owners).tolist()
        self.heads_alike = self.kv_heads == 1 or (heads_alike and self.heads_alike)
        page = layout.page_for(counts, self.page, self.grain)
        self.arrays, self.owner = layout.moved(self.arrays, slots, counts, page, counts)
        self.counts, self._written = counts, None
        self._tidy()

    def settle(self) -> bool:
        """Encode the tokens that a format in groups is ready for; whether there were any."""
        return coding.settle(self)

    def _tidy(self) -> None:
        if self.tables:
            coding.tidy(self)

    def set_keys(self, indices: Int[Tensor, "some"], keys: Float[Tensor, "some dim"]) -> None:
        """Other keys in the place of those of these entries of `flat()`, held as the others are."""
        coding.replace_keys(self, self.slots()[indices], keys.to(self.dtype))

    def _lay_out(self, room: list[int], page: int) -> None:
        """Pages of this size, with room for so many tokens an owner."""
        self.arrays, self.owner = layout.moved(self.arrays, self.slots(), self.counts, page, room)
        self._written = None

    def _slot(self, owner: Tensor, place: Tensor) -> Tensor:
        return layout.slot_of(self.owner, self.owners, self.arrays["positions"].shape[1], owner, place)

    def roll_back(self, limits: Int[Tensor, "batch"]) -> None:
        """Forget every token of sequence b whose position is `limits[b]` or later."""
        if not self.arrays:
            return
        positions = self.arrays["positions"]
        gone = positions >= limits.to(positions.dtype)[self.owner // self.kv_heads][:, None]
        self.arrays["positions"] = positions.masked_fill(gone, EMPTY)
        held = torch.zeros(self.owners, dtype=torch.long, device=self.owner.device)
        held.index_add_(0, self.owner, (self.arrays["positions"] != EMPTY).sum(1))
        self.counts = held.tolist()
        self._written = None
        self._tidy()

    def fork(self) -> Store:
        copy = self._like(self.batch)
        copy.arrays = {name: t.clone() for name, t in self.arrays.items()}
        copy.notes = {name: t.clone() for name, t in self.notes.items()}
        copy.counts, copy.owner = list(self.counts), self.owner
        copy.tables, copy.full = dict(self.tables), list(self.full)
        return copy

    def detach(self) -> Store:
        copy = self._like(self.batch)
        copy.arrays = {name: t.detach() for name, t in self.arrays.items()}
        copy.notes = dict(self.notes)
        copy.counts, copy.owner = list(self.counts), self.owner
        copy.tables, copy.full = dict(self.tables), list(self.full)
        return copy

    def reorder(self, index: Int[Tensor, "new_batch"]) -> Store:
        """A store whose sequence b is this one's sequence `index[b]` (beams; repeats are copied)."""
        copy = self._like(len(index))
        owners = (index[:, None] * self.kv_heads + torch.arange(self.kv_heads, device=index.device)).flatten()
        copy.counts = [self.counts[i] for i in owners.tolist()]
        copy.notes = {name: t[index] for name, t in self.notes.items()}
        if not self.arrays:
            return copy
        picked = [(self.owner == o).nonzero()[:, 0] for o in owners.tolist()]
        copy.owner = torch.repeat_interleave(
            torch.arange(len(owners), device=index.device), torch.tensor([len(p) for p in picked], device=index.device)
        )
        copy.arrays = {name: t[torch.cat(picked)] for name, t in self.arrays.items()}
        copy.tables = dict(self.tables)
        copy._tidy()
        return copy

    def _like(self, batch: int) -> Store:
        copy = Store(batch, self.kv_heads, page=self.page, grain=self.grain, format=self.format)
        copy.heads_alike, copy.values_in_keys, copy.dtype = self.heads_alike, self.values_in_keys, self.dtype
        return copy


__all__ = ["EMPTY", "Flat", "Pages", "Store", "distinct_bytes"]
