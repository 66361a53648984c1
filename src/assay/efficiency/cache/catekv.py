"""Keep little of heads that go on reading the same tokens, and nearly all of those that do not.

A head's reference window of queries chooses the `selected` share of the tokens before it that they read most; its variation is
CV = std / mean, over later windows, of the attention that the chosen tokens still receive; of a head that gives them less than `mean` on
average it is infinite. The `share` of key-value heads with the lowest variation are consistent, a key-value head having the largest of
its query heads', and those of infinite variation never. At a budget, adaptive heads keep everything, as far
as that leaves each consistent head its pins and `floor` of the rest of an equal share; consistent heads keep what the wrapped policy
chooses (`catekv(snapkv)` is nearest to the paper). With share 0 all heads are alike, and of a whole budget nothing is lost.

`consistent=[[layer, head], ...]` freezes the split that `consistent_heads(model, tokens)` finds on a calibration text, as the paper
does. Without it each prompt is its own calibration: its last `window * (steps + 1)` queries, which are held until it is in.
Where a layer has one key-value head, whole layers are consistent or adaptive.

Windows of 16 queries, 8 of them after the reference, 5 % of the tokens, a mean of a half, half of the heads and the floor of 20 % are
choices.

seam: policy
row: D47
source: CateKV (row D47); Jiang et al. 2025, CateKV: On Sequential Consistency for Long-Context LLM Inference Acceleration (ICML)
object: CateKV
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import EMPTY, Store
from assay.efficiency.cache.attending import QueryWindow, attention
from assay.efficiency.cache.common import Rows, Wrapper
from assay.efficiency.cache.shares import rounded

if TYPE_CHECKING:
    from assay.core.transformer import Transformer

ONE_HEAD = "one key-value head a layer: whole layers are consistent or adaptive"


class CateKV(Wrapper):
    """Around any policy, which chooses what a head keeps; this one says how much."""

    def __init__(
        self,
        inner: Policy,
        share: float = 0.5,
        *,
        consistent: tuple[tuple[int, int], ...] | None = None,
        window: int = 16,
        steps: int = 8,
        selected: float = 0.05,
        mean: float = 0.5,
        floor: float = 0.2,
        sink: int | None = None,
        recent: int | None = None,
        prompt: bool | None = None,
    ) -> None:
        super().__init__(inner, sink=sink, recent=recent, prompt=prompt)
        whole("catekv", window=window)
        whole("catekv", 2, steps=steps)
        for name, value in (("share", share), ("selected", selected), ("mean", mean), ("floor", floor)):
            if not 0 <= value <= 1:
                raise AssayError(f"catekv: {name}={value} is no share; give a number from 0 to 1")
        if consistent is not None and any(len(pair) != 2 for pair in consistent):
            raise AssayError(
                f"catekv: consistent={consistent}; give pairs of a layer and a head, as in [[5, 0], [11, 2]]"
            )
        self.share, self.window, self.selected, self.mean, self.floor = share, window, selected, mean, floor
        self.consistent = None if consistent is None else frozenset((layer, head) for layer, head in consistent)
        self.queries = QueryWindow("catekv", self.tag, window * (steps + 1))

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.inner.observe(layer, store, seen)
        if self.consistent is None and self.named("variation") not in store.notes:
            self.queries.take(layer, store, seen)

    def finish_prefill(self, layer: int, store: Store) -> None:
        self.inner.finish_prefill(layer, store)
        if self.queries.holds(store) and not self.filling:
            store.notes[self.named("variation")] = self._variations(layer, store)
            self.queries.drop(store)

    def _variations(self, layer: int, store: Store) -> Float[Tensor, "batch kv_heads"]:
        queries, flat = self.queries.held(layer, store), store.flat()
        rows = Rows(flat, store.owners)
        pattern, at = attention(queries, store, rows), rows.pad(flat.positions, EMPTY)
        found = []
        for read, positions, asking in zip(
            pattern, at, queries.positions.repeat_interleave(store.kv_heads, 0), strict=True
        ):
            voting = asking != EMPTY
            mass = masses(read[:, voting], asking[voting], positions, self.window, self.selected)
            found.append(variation(mass, self.mean).max())
        return torch.stack(found).view(store.batch, -1)

    def allot(
        self, scores: Mapping[int, Float[Tensor, "stored"]], stores: Mapping[int, Store], budget: Int[Tensor, "batch"]
    ) -> dict[int, Int[Tensor, "owners"]]:
        if self.consistent is None and all(self.queries.holds(store) for store in stores.values()):
            return self.inner.allot(scores, stores, budget)  # which heads are consistent shows once the context is in
        batch, kv_heads = len(budget), [store.kv_heads for store in stores.values()]
        few = self.split(stores)
        held = [torch.tensor(s.counts, device=budget.device).view(batch, -1) for s in stores.values()]
        pins = [
            torch.bincount(s.flat().owner[scores[layer].isposinf()], minlength=s.owners).view(batch, -1)
            for layer, s in stores.items()
        ]
        desired = shares(few, torch.cat(held, 1), torch.cat(pins, 1), budget, self.floor).split(kv_heads, 1)
        return rounded({la: d.flatten() for la, d in zip(stores, desired, strict=True)}, stores, budget)

    def split(self, stores: Mapping[int, Store]) -> Bool[Tensor, "batch heads"]:
        """Which heads are consistent, layer after layer. Raises AssayError where that is not known."""
        heads = [(layer, head) for layer, store in stores.items() for head in range(store.kv_heads)]
        first = next(iter(stores.values()))
        if self.consistent is not None:
            if strange := self.consistent - set(heads):
                raise AssayError(
                    f"catekv: no layer and head {min(strange)} grows here; heads are {heads[0]} to {heads[-1]}"
                )
            row = torch.tensor([head in self.consistent for head in heads], device=first.owner.device)
            return row.expand(first.batch, -1)
        name = self.named("variation")
        if not all(name in store.notes for store in stores.values()):
            raise AssayError("catekv has not seen this state's tokens: attach it before the context is fed")
        variations = torch.cat([store.notes[name] for store in stores.values()], 1)
        place = variations.argsort(dim=1, stable=True).argsort(dim=1)
        return (place < round(self.share * len(heads))) & variations.isfinite()

    def limits(self, kv_heads: list[int]) -> str | None:
        lines = [ONE_HEAD if set(kv_heads) == {1} else None, self.inner.limits(kv_heads)]
        return "; ".join(line for line in lines if line) or None


def masses(
    pattern: Float[Tensor, "*heads queries tokens"],
    asking: Int[Tensor, "queries"],
    positions: Int[Tensor, "tokens"],
    window: int,
    selected: float,
) -> Float[Tensor, "*heads steps"]:
    """Of each window of queries after the first, the attention to the tokens that the first one chose before itself.

    No steps, where there are not enough queries or tokens.
    """
    steps = len(asking) // window - 1
    before = (positions != EMPTY) & (positions < asking[0]) if len(asking) else positions != positions
    if steps < 1 or not bool(before.any()):
        return pattern.new_zeros(*pattern.shape[:-2], 0)
    pattern = pattern[..., : window * (steps + 1), before].unflatten(-2, (steps + 1, window)).mean(-2)
    top = max(1, round(selected * int(before.sum())))
    chosen = pattern[..., 0, :].topk(top, dim=-1).indices[..., None, :]
    return pattern[..., 1:, :].gather(-1, chosen.expand(*chosen.shape[:-2], steps, top)).sum(-1)


def variation(mass: Float[Tensor, "*heads steps"], least: float = 0.0) -> Float[Tensor, "*heads"]:
    """Standard deviation over mean. Infinite where the mean is below `least` or 0; 0 where there are no two steps to compare."""
    if mass.shape[-1] < 2:
        return mass.new_zeros(mass.shape[:-1])
    mean = mass.mean(-1)
    kept = (mean > 0) & (mean >= least)
    return torch.where(kept, mass.std(-1, correction=0) / mean.clamp(min=1e-30), torch.inf)


def shares(
    few: Bool[Tensor, "batch heads"],
    held: Int[Tensor, "batch heads"],
    pins: Int[Tensor, "batch heads"],
    budget: Int[Tensor, "batch"],
    floor: float,
) -> Float[Tensor, "batch heads"]:
    """Tokens for each head that add up to the budget of all: everything for adaptive heads, the rest for those marked `few`."""
    total, budget = (budget * few.shape[1]).double(), budget.double()
    number = few.sum(1).double()
    pinned = pins.amax(1).double()
    least = pinned + floor * (budget - pinned).clamp(min=0)
    left = total - (held * ~few).sum(1)
    small = torch.where(number == few.shape[1], budget, torch.maximum(left / number.clamp(min=1), least))
    large = (total - small * number) / (few.shape[1] - number).clamp(min=1)
    return torch.where(few, small[:, None], large[:, None])


def consistent_heads(
    model: Transformer, tokens: Int[Tensor, "1 tokens"], share: float = 0.5, **options: Any
) -> tuple[tuple[int, int], ...]:
    """The consistent heads of a model, as (layer, head), from one calibration text: for `CateKV(..., consistent=...)`."""
    from assay.efficiency.cache.recent import Recent

    policy, state = CateKV(Recent(), share, **options), model.start(1)
    stores = state.growing()
    for layer in stores:
        state.layers[layer].observers += (partial(policy.observe, layer),)
    with torch.no_grad():
        model(tokens, state, logits="none")
    for layer, store in stores.items():
        policy.finish_prefill(layer, store)
    heads = [(layer, head) for layer, store in stores.items() for head in range(store.kv_heads)]
    return tuple(head for head, few in zip(heads, policy.split(stores)[0].tolist(), strict=True) if few)
