"""Smooth what a token receives over time: an exponential moving average of attention, refreshed now and then or not at all.

s_t(i) = beta s_{t-1}(i) + (1 - beta) a_t(i), a_t(i) the attention that token i receives from query t, averaged over the query heads of a
group; reported divided by 1 - beta^t. Every query counts while the context is read. While generating,
  refresh R    every R-th step counts, from the first one on; in between scores stand still and nothing is computed (Lazy)
  frozen       the first step counts and no other (score-free)
  new tokens   start at the mean score of what is held (`start=zero`: at zero, so that beta -> 1 is the cumulative average of H2O)
`scorer` swaps a_t: `value` a_t ||v||; `entropy` heads weighed by 1 - H / log n; `knorm` -||k||, `keydiff` -cos(k, mean key) and `recency`,
which know no queries, so that time does not enter; `learned` a ridge regression of the average's logarithm on ||k||, ||v||, the cosine
to the mean key and the place in the text, fitted to each head's tokens as they are held.

beta = 0.9, R = 16 for Lazy and the mean as a start are choices. The paper adds up layers with weights into one ranking; here each layer and
key-value head has its own, which no positive weight of its layer changes.

seam: policy
row: D20
source: InertiaKV (row D20)
object: InertiaKV
aliases: inertia
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.dtypes import wide
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import Store
from assay.efficiency.cache.attending import Queries, attention
from assay.efficiency.cache.common import SCORES, Rows, among, unit

TIMELESS = ("knorm", "keydiff", "recency")
SCORERS = ("attention", "value", "entropy", "learned", *TIMELESS)


class InertiaKV(Policy):
    """`beta` 0 is the last counted step alone. `scored` counts steps whose attention was computed, layer by layer."""

    def __init__(
        self,
        beta: float = 0.9,
        refresh: int = 1,
        frozen: bool = False,
        scorer: Literal["attention", "value", "entropy", "knorm", "keydiff", "recency", "learned"] = "attention",
        start: Literal["mean", "zero"] = "mean",
        **pins: Any,
    ) -> None:
        super().__init__(**pins)
        if not 0 <= beta < 1:
            raise AssayError(f"inertiakv: beta={beta}; give a number from 0 on and below 1")
        whole("inertiakv", refresh=refresh)
        among("inertiakv", scorer=(scorer, SCORERS), start=(start, ("mean", "zero")))
        self.beta, self.refresh, self.frozen, self.scorer, self.start = beta, refresh, frozen, scorer, start
        self.scored = 0

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        if self.scorer in TIMELESS:
            return
        counts = self._counts(store, seen)
        self._age(store, seen, counts)
        self.scored += int(counts.any(0).sum())
        if bool(counts.any()):
            later = counts.sum(1, keepdim=True) - counts.cumsum(1)
            weights = (1 - self.beta) * self.beta ** later.double()
            average = store.column(self.named("average"))
            received = self._received(store, Queries.of(seen, counts), weights)
            store.set_column(self.named("average"), average + received)

    def finish_prefill(self, layer: int, store: Store) -> None:
        if self.named("average") in store.arrays and not self.filling:
            store.notes[self.named("steps")] = store.notes[self.named("steps")].clamp(min=0)

    def _generating(self, store: Store) -> bool:
        return bool((store.notes[self.named("steps")] >= 0).all())

    def _counts(self, store: Store, seen: Observed) -> Bool[Tensor, "batch tokens"]:
        """Which of the new tokens' queries enter the average."""
        valid = torch.ones_like(seen.positions, dtype=torch.bool) if seen.valid is None else seen.valid
        steps = store.notes.setdefault(self.named("steps"), torch.full_like(seen.positions[:, 0], -1))
        if not self._generating(store):
            return valid
        step = steps[:, None] + valid.cumsum(1) - 1
        store.notes[self.named("steps")] = steps + valid.sum(1)
        return valid & ((step == 0) if self.frozen else (step % self.refresh == 0))

    def _age(self, store: Store, seen: Observed, counts: Bool[Tensor, "batch tokens"]) -> None:
        """Let older averages fade by as many steps as count now, and give the new tokens theirs."""
        average, counted = self.named("average"), self.named("counted")
        flat = store.flat()
        before = store.notes.get(counted, torch.zeros_like(counts.sum(1)))
        store.notes[counted] = before + counts.sum(1)
        if average not in store.arrays:
            store.set_column(average, wide(flat.k[:, 0]).new_zeros(len(flat.owner)))
            return
        held = store.column(average)
        began = torch.zeros(store.owners, dtype=held.dtype, device=held.device)
        if self.start == "mean" and self._generating(store):
            total, number = (began.index_add(0, flat.owner, x) for x in (held, torch.ones_like(held)))
            new = seen.positions.shape[1] if seen.valid is None else seen.valid.sum(1).repeat_interleave(store.kv_heads)
            began = total / (number - new).clamp(min=1)  # the new ones' own averages are still zero
        fade = self.beta ** counts.sum(1).to(held.dtype)
        store.set_column(average, held * fade[flat.owner // store.kv_heads])
        since = counts.sum(1, keepdim=True) - counts.cumsum(1) + counts.long()
        faded = self.beta ** since.to(held.dtype)
        store.write_column(average, began.view(store.batch, -1, 1) * faded[:, None])

    def _received(
        self, store: Store, queries: Queries, weights: Float[Tensor, "batch tokens"]
    ) -> Float[Tensor, "stored"]:
        """The weighed sum over queries of what each stored token receives from them."""
        flat = store.flat()
        rows = Rows(flat, store.owners)
        group = queries.q.shape[1] // store.kv_heads
        total = wide(flat.k[:, 0]).new_zeros(store.owners, rows.longest)
        for at, part in queries.parts(max(1, SCORES // (group * max(1, total.numel())))):
            pattern = attention(part, store, rows)
            if self.scorer == "entropy":
                pattern = pattern * telling(pattern)[..., None]
            weight = weights[:, at].repeat_interleave(store.kv_heads, 0)
            total += torch.einsum("ogql,oq->ol", pattern, weight.to(pattern.dtype)) / group
        received = rows.flat(total)
        return received * wide(flat.v).norm(dim=-1) if self.scorer == "value" else received

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat = store.flat()
        if self.scorer == "knorm":
            return (
                -wide(flat.k).norm(dim=-1).float()
            )  # keys of one word differ by rounding alone, which must not decide
        if self.scorer == "recency":
            return flat.positions.double()
        if self.scorer == "keydiff":
            return -_likeness(store)
        if (name := self.named("average")) not in store.arrays:
            raise AssayError("inertiakv has not seen this state's tokens: attach it before the context is fed")
        counted = store.notes[self.named("counted")].double()
        average = store.column(name)
        average = average / (1 - self.beta**counted)[flat.owner // store.kv_heads].clamp(min=1e-30).to(average.dtype)
        return learned(store, average) if self.scorer == "learned" else average


def telling(pattern: Float[Tensor, "*rest tokens"]) -> Float[Tensor, "*rest"]:
    """1 - H / log n: 1 where all attention goes to one of the n tokens that are read, 0 where it is spread evenly."""
    entropy = torch.special.entr(pattern).sum(-1)
    most = (pattern > 0).sum(-1).to(pattern.dtype).log()
    return torch.where(most > 0, 1 - entropy / most.clamp(min=1e-30), 1)


def _likeness(store: Store) -> Float[Tensor, "stored"]:
    """Cosine of each key to its head's mean unit key."""
    flat = store.flat()
    keys = unit(flat.k)
    return (keys * unit(Rows(flat, store.owners).pad(keys).sum(1))[flat.owner]).sum(-1)


def learned(store: Store, average: Float[Tensor, "stored"], ridge: float = 0.01) -> Float[Tensor, "stored"]:
    """The logarithm of `average` as a ridge regression on four features predicts it, for each key-value head by itself."""
    flat = store.flat()
    rows = Rows(flat, store.owners)
    features = (wide(flat.k).norm(dim=-1), wide(flat.v).norm(dim=-1), _likeness(store), flat.positions)
    x = rows.pad(torch.stack([f.to(average.dtype) for f in features], -1))
    y = rows.pad((average + 1e-12).log())
    count = rows.held.clamp(min=1)[:, None]
    x = (x - (x.sum(1) / count)[:, None]) * rows.mask[..., None]
    y = (y - y.sum(1, keepdim=True) / count) * rows.mask
    x = x / (x.square().sum(1) / count).sqrt().clamp(min=1e-12)[:, None]
    gram = x.mT @ x + ridge * count[..., None] * torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    return rows.flat((x @ torch.linalg.solve(gram, x.mT @ y[..., None]))[..., 0])
