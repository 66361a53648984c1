"""Decide for each prompt, before decoding, whether to evict at all, and keep the whole cache where that looks unsafe.

From the last `window` queries of the context, for each layer:
  agreement    mean over pairs of query heads of the Jaccard overlap of the `share` of tokens that each reads most (or the cosine of
               their mean attention), over the tokens before the window
  signal       mean agreement of the early third of the layers - mean agreement of the late third
Where signal >= threshold the wrapped policy evicts; else the sequence stays whole. Then it holds more than the budget, as
`Compression.spared` says and every count of tokens and bytes shows. The decision is made once, when the context is in (one that is fed
in pieces stays whole until then); each sequence of a batch has its own.

Layers are those whose cache grows, for a policy is shown no others: of Gemma 3 270M's 18 layers 3, so that a third is one layer.
A threshold belongs to a model: `threshold_of(signals)` finds one from the signals of a few prompts (`Page.signals`). Without one
nothing is gated.
Top 5 % of tokens, Jaccard and Otsu's threshold are choices.

seam: policy
row: D52
source: PAGE (row D52)
object: Page
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from assay.core.arguments import whole
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import EMPTY, Store
from assay.efficiency.cache.attending import QueryWindow, attention
from assay.efficiency.cache.common import Rows, Wrapper, among

INFORMATIVE = 0.6  # the area under the curve that a gate's signal must exceed


class Page(Wrapper):
    """Around any policy. `threshold`: of the signal, which lies in [-1, 1]; 2 never evicts, -2 and None always do."""

    def __init__(
        self,
        inner: Policy,
        threshold: float | None = None,
        *,
        window: int = 32,
        share: float = 0.05,
        agreement: Literal["jaccard", "cosine"] = "jaccard",
        sink: int | None = None,
        recent: int | None = None,
        prompt: bool | None = None,
    ) -> None:
        super().__init__(inner, sink=sink, recent=recent, prompt=prompt)
        whole("page", window=window)
        among("page", agreement=(agreement, ("jaccard", "cosine")))
        if not 0 < share <= 1:
            raise AssayError(f"page: share={share} is no share of the tokens; give a number above 0 and up to 1")
        if threshold is not None and math.isnan(threshold):
            raise AssayError("page: threshold is not a number; give one from -2 to 2, or none")
        self.threshold, self.window, self.share, self.agreement = threshold, window, share, agreement
        self.queries = QueryWindow("page", self.tag, window)

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.inner.observe(layer, store, seen)
        if self.named("agreement") not in store.notes:
            self.queries.take(layer, store, seen)

    def finish_prefill(self, layer: int, store: Store) -> None:
        self.inner.finish_prefill(layer, store)
        if self.queries.holds(store) and not self.filling:
            store.notes[self.named("agreement")] = self._agreement(layer, store)
            self.queries.drop(store)

    def _agreement(self, layer: int, store: Store) -> Float[Tensor, "batch"]:
        queries, flat = self.queries.held(layer, store), store.flat()
        rows = Rows(flat, store.owners)
        pattern = attention(queries, store, rows).sum(2)
        at = rows.pad(flat.positions).long()[:, None].expand_as(pattern)
        by_position = pattern.new_zeros(*pattern.shape[:2], int(flat.positions.max()) + 1).scatter_add(2, at, pattern)
        found = []
        for heads, asking in zip(
            by_position.view(store.batch, -1, by_position.shape[2]), queries.positions, strict=True
        ):
            first = int(asking.masked_fill(asking == EMPTY, torch.iinfo(asking.dtype).max).min())
            before = first if first > 0 else int(asking.max()) + 1
            found.append(agreement(heads[:, :before], self.share, self.agreement))
        return torch.stack(found)

    def signals(self, stores: Mapping[int, Store]) -> Float[Tensor, "batch"]:
        """What the gate goes by. Raises AssayError before `finish_prefill` of a compression that listened to the context."""
        name = self.named("agreement")
        if not all(name in store.notes for store in stores.values()):
            raise AssayError("page has not seen this state's tokens: attach it before the context is fed")
        layers = torch.stack([store.notes[name] for store in stores.values()])
        third = max(1, len(layers) // 3)
        return layers[:third].mean(0) - layers[-third:].mean(0)

    def spares(self, stores: Mapping[int, Store]) -> Bool[Tensor, "batch"] | None:
        if self.threshold is None:
            return None
        if self.filling:  # nothing is decided yet, and what is dropped never comes back
            first = next(iter(stores.values()))
            return torch.ones(first.batch, dtype=torch.bool, device=first.owner.device)
        return self.signals(stores) < self.threshold

    def limits(self, kv_heads: list[int]) -> str | None:
        lines = [self.inner.limits(kv_heads)]
        if self.threshold is not None:
            lines.append("keeps the whole cache of a prompt where its gate says so, which may be more than the budget")
            if len(kv_heads) == 1:
                lines.append("one layer grows: there are no early and late ones to compare, so its signal is 0")
        return "; ".join(line for line in lines if line) or None


def agreement(
    read: Float[Tensor, "heads tokens"], share: float, how: Literal["jaccard", "cosine"] = "jaccard"
) -> Float[Tensor, ""]:
    """Mean over pairs of heads of how alike their attention is; 1 of a single head. `share` of the tokens are a head's top."""
    heads, tokens = read.shape
    if heads == 1 or not tokens:
        return read.new_ones(())
    if how == "cosine":
        alike = torch.nn.functional.normalize(read, dim=-1)
        alike = alike @ alike.mT
    else:
        top = max(1, round(share * tokens))
        chosen = torch.zeros_like(read).scatter(1, read.topk(top, dim=1).indices, 1)
        common = chosen @ chosen.mT
        alike = common / (2 * top - common)
    return (alike.sum() - alike.diagonal().sum()) / (heads * (heads - 1))


def threshold_of(
    signals: Sequence[float], rule: Literal["otsu", "gap"] = "otsu", *, harmed: Sequence[bool] | None = None
) -> float | None:
    """A threshold from the signals of some prompts: None where they tell nothing, so that nothing is gated.

    `otsu` parts them so that the two groups differ most in variance between them (Otsu 1979), `gap` at their largest gap. No labels
    are needed; where it is known which prompts eviction `harmed`, a signal whose area under the curve (low means harm) is
    0.6 or less is refused. Raises AssayError for fewer than two signals.
    """
    among("threshold_of", rule=(rule, ("otsu", "gap")))
    ordered = sorted(float(signal) for signal in signals)
    if len(ordered) < 2:
        raise AssayError(f"page: a threshold needs the signals of two prompts at least, not {len(ordered)}")
    if harmed is not None and area_under_curve(signals, harmed) <= INFORMATIVE:
        return None
    values = torch.tensor(ordered, dtype=torch.float64)
    below = torch.arange(1, len(values))
    if rule == "gap":
        parted = values.diff()
    else:
        low = values.cumsum(0)[:-1] / below
        high = (values.sum() - values.cumsum(0)[:-1]) / (len(values) - below)
        parted = below * (len(values) - below) * (high - low) ** 2 * (values.diff() > 0)
    cut = int(parted.argmax())
    return None if parted[cut] <= 0 else float((values[cut] + values[cut + 1]) / 2)


def area_under_curve(signals: Sequence[float], harmed: Sequence[bool]) -> float:
    """How often a prompt that eviction harmed has a lower signal than one that it spared, ties half; nan where all fared alike."""
    if len(signals) != len(harmed):
        raise AssayError(f"page: {len(signals)} signals of {len(harmed)} prompts")
    if len(set(map(bool, harmed))) < 2:
        return math.nan
    from scipy.stats import rankdata  # a third of a second, for those who need it

    ranks, low = rankdata([-float(signal) for signal in signals]), sum(map(bool, harmed))
    won = sum(rank for rank, one in zip(ranks, harmed, strict=True) if one) - low * (low + 1) / 2
    return float(won / (low * (len(signals) - low)))
