"""Keep the prompt tokens that the last queries attend to.

score_s = max over |s' - s| <= kernel // 2 of the mean over the last `window` queries t of softmax_s'(q_t . k_s' * scale),
averaged over the query heads of a group; the window's own keys stand above all others. While generating, the most recent
queries take the place of the prompt's last ones.

seam: policy
row: -
source: Li et al. 2024, SnapKV: LLM Knows What You are Looking for Before Generation (arXiv:2404.14469)
object: SnapKV
aliases: snap
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Observed
from assay.core.store import EMPTY, Store
from assay.efficiency.cache.common import Rows, among, attention_received


class SnapKV(Policy):
    """`window` queries vote, votes are pooled over `kernel` neighbours (`max` or `mean`). The queries are held in the store."""

    def __init__(self, window: int = 32, kernel: int = 7, pool: Literal["max", "mean"] = "max", **pins: Any) -> None:
        super().__init__(**pins)
        if window < 1 or kernel < 1 or kernel % 2 == 0:
            raise AssayError(f"snapkv: window={window} must be positive and kernel={kernel} odd")
        among("snapkv", pool=(pool, ("max", "mean")))
        self.window, self.kernel, self.pool = window, kernel, pool
        self.logits: dict[int, tuple[float, float | None]] = {}  # scale and soft cap of each layer

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.logits[layer] = seen.scale, seen.softcap
        queries, positions = seen.q[:, :, -self.window :], seen.positions[:, -self.window :]
        if seen.valid is not None:
            queries, positions = seen.q, seen.positions.masked_fill(~seen.valid, EMPTY)
        if (name := self.named("positions")) in store.notes:
            before = store.notes[name]
            # what was rolled back since must not vote
            stale = before >= torch.where(positions == EMPTY, before.max() + 1, positions).amin(1, keepdim=True)
            positions = torch.cat([before.masked_fill(stale, EMPTY), positions], 1)
            queries = torch.cat([store.notes[self.named("queries")].transpose(1, 2), queries], 2)
        last = (positions != EMPTY).sort(dim=1, stable=True).indices[:, -self.window :]
        store.notes[name] = positions.gather(1, last)
        rows = torch.arange(len(last), device=last.device)[:, None]
        store.notes[self.named("queries")] = queries.transpose(1, 2)[rows, last]

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        if self.named("queries") not in store.notes:
            raise AssayError("snapkv has not seen this state's tokens: attach it before the context is fed")
        flat = store.flat()
        queries, positions = (store.notes[self.named(n)] for n in ("queries", "positions"))
        voting = positions != EMPTY
        scale, softcap = self.logits[layer]
        votes = attention_received(queries.transpose(1, 2), positions, voting, store, scale=scale, softcap=softcap)
        votes = votes / voting.sum(1).clamp(min=1)[flat.owner // store.kv_heads]
        first = positions.masked_fill(~voting, torch.iinfo(positions.dtype).max).amin(1)
        in_window = flat.positions >= first[flat.owner // store.kv_heads]
        votes = votes.masked_fill(in_window, 0)
        rows = Rows(flat, store.owners)
        return rows.flat(self._pooled(rows.pad(votes))).masked_fill(in_window, 1 + 1e-6)

    def _pooled(self, votes: Float[Tensor, "owners longest"]) -> Float[Tensor, "owners longest"]:
        if self.pool == "max":
            return F.max_pool1d(votes[:, None], self.kernel, 1, self.kernel // 2)[:, 0]
        return F.avg_pool1d(votes[:, None], self.kernel, 1, self.kernel // 2)[:, 0]
