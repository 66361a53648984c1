"""Repair what a policy keeps: swap kept tokens whose keys have a kept twin for dropped tokens that have none.

Given the kept set S of one head, and cosines of keys before rotation:
  orphan   a dropped i with cos(k_i, k_j) < t for every j in S
  donor    a kept j, not pinned, with a twin in S: cos(k_j, k_j') >= t
The most isolated orphan (lowest best cosine) takes the place of the donor with most twins, again and again, until there
are no orphans or donors left or `cap` of the budget has been swapped. Links are counted anew after every swap. A donor
whose removal would orphan an earlier donor, or at least as many tokens as the swap cures, is passed over; so every swap
lowers the number of orphans and no donor becomes one.

t = 0.9, cap = 10 %, keys before rotation and the order of donors are choices. Keys before rotation are stored from the
context's beginning until the repair at the end of prefill, and dropped then; with `generating` they stay (and count as
bytes) and every later compaction is repaired too. Of a context fed in pieces every piece's compaction is repaired.

seam: policy
row: D51
source: TwinKV (row D51)
object: TwinKV
aliases: twin
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import Store
from assay.efficiency.cache.common import SCORES, Rows, Wrapper, among, unit


class TwinKV(Wrapper):
    """Around any policy, at the same budget. `threshold` above 1 or `cap` 0 change nothing."""

    def __init__(
        self,
        inner: Policy,
        threshold: float = 0.9,
        cap: float = 0.1,
        keys: Literal["before", "after"] = "before",
        generating: bool = False,
        *,
        sink: int | None = None,
        recent: int | None = None,
        prompt: bool | None = None,
    ) -> None:
        super().__init__(inner, sink=sink, recent=recent, prompt=prompt)
        if not 0 <= cap <= 1:
            raise AssayError(f"twinkv: cap={cap} is no share of the budget; give a number from 0 to 1")
        among("twinkv", keys=(keys, ("before", "after")))
        self.threshold, self.cap, self.keys, self.generating = threshold, cap, keys, generating
        self.brief = not generating

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.inner.observe(layer, store, seen)
        if self.keys == "after" or seen.k_unrotated is seen.k or self._done(store):
            return
        store.write_column(self.named("unrotated"), seen.k_unrotated)

    def keep(
        self, layer: int, store: Store, scores: Float[Tensor, "stored"], budget: Int[Tensor, "owners"]
    ) -> Int[Tensor, "kept"]:
        chosen = self.inner.keep(layer, store, scores, budget)
        if len(chosen) == len(scores) or self._done(store):
            return chosen
        flat, name = store.flat(), self.named("unrotated")
        rows = Rows(flat, store.owners)
        held = torch.zeros_like(flat.owner, dtype=torch.bool)
        held[chosen] = True
        kept = rows.pad(held.long()).bool()
        keys = rows.pad(unit(store.column(name) if name in store.arrays else flat.k))
        pinned = rows.pad(scores.isinf().long()).bool()
        most = (self.cap * kept.sum(1) + 1e-9).long() * self._due(store, rows, kept)
        repaired = repair(keys, kept, rows.mask, pinned, most, self.threshold).kept
        if self._done(store):
            store.forget(name)
        return rows.flat(repaired).nonzero()[:, 0]

    def _done(self, store: Store) -> bool:
        note = store.notes.get(self.named("repaired"))
        return note is not None and bool(note.all())

    def _due(self, store: Store, rows: Rows, kept: Bool[Tensor, "owners longest"]) -> Bool[Tensor, "owners"]:
        """Owners to repair: those of a sequence that drops something; after prefill the first time only, unless `generating`."""
        drops = (kept.sum(1) < rows.held).view(store.batch, -1).any(1)
        name, always = self.named("repaired"), self.generating or self.filling
        before = torch.zeros_like(drops) if always else store.notes.get(name, torch.zeros_like(drops))
        if not always:
            store.notes[name] = before | drops
        return (drops & ~before).repeat_interleave(store.kv_heads)


@dataclass(frozen=True)
class Repair:
    """The kept sets after repair, and the swaps in their order: (owner, orphan taken in, donor given up)."""

    kept: Bool[Tensor, "owners longest"]
    swaps: list[tuple[int, int, int]]


def repair(
    keys: Float[Tensor, "owners longest dim"],
    kept: Bool[Tensor, "owners longest"],
    present: Bool[Tensor, "owners longest"],
    pinned: Bool[Tensor, "owners longest"],
    most: Int[Tensor, "owners"],
    threshold: float,
) -> Repair:
    """Swap at most `most[o]` tokens of each owner. `keys` have unit length."""
    kept, twins, nearest = kept.clone(), *_links(keys, kept, threshold)
    passed, given_up = torch.zeros_like(kept), torch.zeros_like(kept)
    left, at = most.clone(), torch.arange(len(keys), device=keys.device)
    swaps: list[tuple[int, int, int]] = []
    while True:
        orphans = present & ~kept & (twins == 0)
        donors = kept & ~pinned & ~passed & (twins > 0)
        active = orphans.any(1) & donors.any(1) & (left > 0)
        if not bool(active.any()):
            return Repair(kept, swaps)
        orphan = nearest.masked_fill(~orphans, torch.inf).argmin(1)
        donor = twins.masked_fill(~donors, -1).argmax(1)
        near = _cosines(keys, torch.stack([orphan, donor], 1))
        linked = near >= threshold
        linked[at, 0, orphan] = linked[at, 1, donor] = False
        after = twins + linked[:, 0].int() - linked[:, 1].int()
        lost = present & ~kept & (twins > 0) & (after == 0)
        lost[at, orphan] = False
        cured = (orphans & (after > 0)).sum(1) + 1
        fair = active & (lost.sum(1) < cured) & ~(lost & given_up).any(1)
        passed[at, donor] |= active & ~fair
        kept[at, orphan] |= fair
        kept[at, donor] &= ~fair
        given_up[at, donor] |= fair
        twins = torch.where(fair[:, None], after, twins)
        nearest = torch.where(fair[:, None], torch.maximum(nearest, near[:, 0]), nearest)
        left -= fair.long()
        done = fair.nonzero()[:, 0]
        swaps += zip(done.tolist(), orphan[done].tolist(), donor[done].tolist(), strict=True)


def _cosines(
    keys: Float[Tensor, "owners longest dim"], of: Int[Tensor, "owners some"]
) -> Float[Tensor, "owners some longest"]:
    rows = keys.gather(1, of[..., None].expand(-1, -1, keys.shape[-1]))
    return (rows @ keys.mT).clamp(max=1)


def _links(
    keys: Float[Tensor, "owners longest dim"], kept: Bool[Tensor, "owners longest"], threshold: float
) -> tuple[Int[Tensor, "owners longest"], Float[Tensor, "owners longest"]]:
    """For each token the number of its kept twins, itself apart, and the cosine to the nearest kept key."""
    owners, longest = kept.shape
    twins, nearest = [], []
    block = max(1, SCORES // max(1, owners * longest))
    for begin in range(0, longest, block):
        at = torch.arange(begin, min(begin + block, longest), device=keys.device)
        near = (keys[:, at] @ keys.mT).clamp(max=1).masked_fill(~kept[:, None], -torch.inf)
        near[:, torch.arange(len(at)), at] = -torch.inf
        twins.append((near >= threshold).sum(-1, dtype=torch.int32))
        nearest.append(near.amax(-1))
    return torch.cat(twins, 1), torch.cat(nearest, 1)
