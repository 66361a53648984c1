"""The last queries of each sequence, held in the store as a policy's notes: what policies need that let them vote."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import Bias, Observed
from assay.core.store import EMPTY, Store
from assay.efficiency.cache.common import attention_received


class LastQueries(Policy):
    """Holds the last `window` queries of each sequence, which count as bytes; what was rolled back since is left out."""

    part: str  # its name, for messages
    window: int

    def __init__(self, **pins: Any) -> None:
        super().__init__(**pins)
        self.logits: dict[int, tuple[float, float | None, Bias | None]] = {}  # scale, soft cap and bias of each layer

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        self.logits[layer] = seen.scale, seen.softcap, seen.bias
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

    def votes(
        self, layer: int, store: Store
    ) -> tuple[Float[Tensor, "stored"], Int[Tensor, "batch window"], Bool[Tensor, "batch window"]]:
        """The attention each stored token receives from the last queries, averaged over them and over a group's heads; the
        queries' positions, and which of them there are."""
        if self.named("queries") not in store.notes:
            raise AssayError(f"{self.part} has not seen this state's tokens: attach it before the context is fed")
        queries, positions = (store.notes[self.named(n)] for n in ("queries", "positions"))
        voting = positions != EMPTY
        scale, softcap, bias = self.logits[layer]
        votes = attention_received(
            queries.transpose(1, 2), positions, voting, store, scale=scale, softcap=softcap, bias=bias
        )
        sequence = store.flat().owner // store.kv_heads
        return votes / voting.sum(1).clamp(min=1)[sequence], positions, voting
