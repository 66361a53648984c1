"""Keep the tokens whose keys stand out at one of three time scales: in the whole text, in their block, or lately.

For each key-value head, with unit keys u_t = k_t / ||k_t|| over what is stored:
  anchors      global: mean of all u; block: mean over t's block of true positions; window: mean of the last `window` up to t
  anomalies    a_j(t) = 1 - cos(u_t, anchor_j(t)); r_j(t) their ranks from 0 to 1 (equal anomalies, equal ranks)
  mixing       w = softmax over scales of (d_j / mean d) / temperature, d_j the variance (or kurtosis) of a_j
  gate         z_j(t) = standardised a_j(t); where max_j z_j(t) > gate the score is that scale's rank, else sum_j w_j r_j(t)
Heads share a layer's total: beyond pins each gets `floor` of an equal share, the rest goes by score mass above a common
threshold, which is the lowest score that the layer's total would keep if heads did not matter. With one key-value head a
layer, layers share instead.

The row leaves open, and these are choices: the mixing rule and its temperature, the gate at z > 2, the floor of 20 %,
the trailing window, blocks by position, and keys as stored (after rotation).

seam: policy
row: A54
source: NestedKV (row A54)
object: NestedKV
aliases: nested
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import Store
from assay.efficiency.cache.common import Rows, among, unit
from assay.efficiency.cache.shares import ONE_HEAD, rounded, sharing


class NestedKV(Policy):
    """`blocks`: tokens in a block. `weights`: three fixed weights instead of mixing. `gate`: None for no gate.

    `keys="before"` scores keys before rotation, which are then stored beside the others (and count as bytes).
    """

    def __init__(
        self,
        blocks: int = 64,
        window: int = 128,
        *,
        mixing: Literal["variance", "kurtosis"] = "variance",
        temperature: float = 1.0,
        weights: tuple[float, float, float] | None = None,
        gate: float | None = 2.0,
        floor: float = 0.2,
        keys: Literal["after", "before"] = "after",
        **pins: Any,
    ) -> None:
        super().__init__(**pins)
        if blocks < 1 or window < 1 or temperature <= 0:
            raise AssayError("nestedkv: blocks, window and temperature must be positive")
        if not 0 <= floor <= 1:
            raise AssayError(f"nestedkv: floor={floor} is no share; give a number from 0 to 1")
        if weights is not None and (len(weights) != 3 or min(weights) < 0):
            raise AssayError(f"nestedkv: weights={weights}; give three, for global, block and window, none negative")
        among("nestedkv", mixing=(mixing, ("variance", "kurtosis")), keys=(keys, ("after", "before")))
        self.blocks, self.window, self.mixing, self.temperature = blocks, window, mixing, temperature
        self.weights, self.gate, self.floor, self.keys = weights, gate, floor, keys

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        if self.keys == "before" and seen.k_unrotated is not seen.k:
            store.write_column(self.named("unrotated"), seen.k_unrotated)

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat, name = store.flat(), self.named("unrotated")
        rows = Rows(flat, store.owners)
        keys = rows.pad(unit(store.column(name) if name in store.arrays else flat.k))
        anomalies = self.anomalies(keys, rows.pad(flat.positions).long(), rows)
        ranks = torch.stack([_rank(a, rows) for a in anomalies])
        weights = self._weights(anomalies, rows)
        mixed = (weights[..., None] * ranks).sum(0)
        if self.gate is None:
            return rows.flat(mixed)
        surprise, scale = torch.stack([_standardised(a, rows) for a in anomalies]).max(0)
        return rows.flat(torch.where(surprise > self.gate, ranks.gather(0, scale[None])[0], mixed))

    def anomalies(
        self, keys: Float[Tensor, "owners longest dim"], positions: Int[Tensor, "owners longest"], rows: Rows
    ) -> Float[Tensor, "3 owners longest"]:
        """1 - cosine to the global, the block's and the trailing window's mean of unit keys."""
        keys = keys * rows.mask[..., None]
        overall = keys.sum(1, keepdim=True).expand_as(keys)
        count = int(positions.max()) // self.blocks + 1
        block = positions // self.blocks + torch.arange(rows.owners, device=keys.device)[:, None] * count
        sums = keys.new_zeros(rows.owners * count, keys.shape[-1]).index_add(0, block.flatten(), keys.flatten(0, 1))
        running = keys.double().cumsum(1)
        trailing = running.clone()
        trailing[:, self.window :] -= running[:, : -self.window]
        anchors = torch.stack([overall, sums[block], trailing.to(keys.dtype)])
        return 1 - (keys * unit(anchors)).sum(-1)

    def _weights(self, anomalies: Float[Tensor, "3 owners longest"], rows: Rows) -> Float[Tensor, "3 owners"]:
        if self.weights is not None:
            fixed = anomalies.new_tensor(self.weights)
            return (fixed / fixed.sum().clamp(min=1e-30))[:, None].expand(3, rows.owners)
        moment = 2 if self.mixing == "variance" else 4
        source = anomalies if self.mixing == "variance" else torch.stack([_standardised(a, rows) for a in anomalies])
        centred = (source - _mean(source, rows)[..., None]) * rows.mask
        telling = _mean(centred**moment, rows)
        return (telling / telling.mean(0).clamp(min=1e-30) / self.temperature).softmax(0)

    def allot(
        self, scores: Mapping[int, Float[Tensor, "stored"]], stores: Mapping[int, Store], budget: Int[Tensor, "batch"]
    ) -> dict[int, Int[Tensor, "owners"]]:
        found = {}
        for group in sharing(stores):
            found |= rounded(self._desired(group, scores, stores, budget), stores, budget)
        return found

    def _desired(
        self,
        group: list[int],
        scores: Mapping[int, Float[Tensor, "stored"]],
        stores: Mapping[int, Store],
        budget: Int[Tensor, "batch"],
    ) -> dict[int, Float[Tensor, "owners"]]:
        batch = len(budget)
        padded = [
            Rows(stores[layer].flat(), stores[layer].owners)
            .pad(scores[layer], -torch.inf)
            .view(batch, stores[layer].kv_heads, -1)
            for layer in group
        ]
        longest = max(p.shape[-1] for p in padded)
        fill = [torch.nn.functional.pad(p, (0, longest - p.shape[-1]), value=-torch.inf) for p in padded]
        together = torch.cat(fill, 1)
        heads = together.shape[1]
        place = (budget * heads).clamp(max=heads * longest) - 1
        ordered = together.flatten(1).sort(descending=True).values
        threshold = ordered.gather(1, place[:, None])[..., None]
        pinned = together == torch.inf
        mass = (together - threshold).masked_fill(pinned | ~threshold.isfinite(), 0).clamp(min=0).sum(-1)
        share = torch.where(mass.sum(1, keepdim=True) > 0, mass / mass.sum(1, keepdim=True), 1 / heads)
        pins = pinned.sum(-1)
        free = (budget * heads - pins.sum(1))[:, None]
        desired = pins + free * (self.floor / heads + (1 - self.floor) * share)
        parts = desired.split([stores[layer].kv_heads for layer in group], 1)
        return {layer: part.flatten() for layer, part in zip(group, parts, strict=True)}

    def limits(self, kv_heads: list[int]) -> str | None:
        return ONE_HEAD if set(kv_heads) == {1} else None


def _mean(values: Float[Tensor, "*scales owners longest"], rows: Rows) -> Float[Tensor, "*scales owners"]:
    return (values * rows.mask).sum(-1) / rows.held.clamp(min=1)


def _standardised(values: Float[Tensor, "owners longest"], rows: Rows) -> Float[Tensor, "owners longest"]:
    centred = values - _mean(values, rows)[:, None]
    return centred / _mean(centred**2, rows)[:, None].sqrt().clamp(min=1e-12)


def _rank(values: Float[Tensor, "owners longest"], rows: Rows) -> Float[Tensor, "owners longest"]:
    """The share of the others that are smaller; equal values have equal ranks."""
    ordered = values.masked_fill(~rows.mask, torch.inf).sort(1).values
    smaller = torch.searchsorted(ordered, values.contiguous())
    return smaller / (rows.held - 1).clamp(min=1)[:, None].to(values.dtype)
