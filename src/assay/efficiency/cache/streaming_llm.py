"""Keep the first tokens, the attention sinks, and a window of the last ones; positions may be counted within the cache.

score = position, so that beside the pinned sinks the latest tokens stay: the same set as `recent`.

With `rerotate` positions are those within the cache, as in the paper: of n kept tokens the keys stand at 0 ... n - 1, the next
query at n, so no distance ever exceeds what the cache holds. Rotary scores depend on distances alone, and between the window,
the queries and whatever is still to come distances are right as they are; what has to close are the gaps. So here the window
and the queries keep their positions and the sinks' keys move up behind the window's: a sink at s is turned to s + e, where e is
the number of tokens dropped so far. The scores are the paper's; a compression turns `sink` keys a head instead of all of them,
from a copy made before rotation (stored, counted as bytes), so that no rounding adds up.

What is not as in a policy that only drops: a kept key changes, and scores are no longer those of the whole model under a mask.
That needs rotary positions: without a rotation nothing is turned, and a bias on distances (ALiBi) keeps counting in the text.
Past its original length, dynamic scaling of rope makes turns depend on the text's length, which this does not follow.

seam: policy
row: -
source: Xiao et al. 2023, Efficient Streaming Language Models with Attention Sinks (arXiv:2309.17453)
object: StreamingLLM
aliases: streaming
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.state import ModelState, Observed, Turn
from assay.core.store import Store


class StreamingLLM(Policy):
    """`sink`, an argument of every policy, is the number of attention sinks (4 in the paper)."""

    def __init__(self, rerotate: bool = False, **pins: Any) -> None:
        super().__init__(**pins)
        if rerotate and self.prompt:
            raise AssayError(
                "streaming_llm: with rerotate the cache is sinks and a window, and no prompt is pinned: give sink=... instead"
            )
        self.rerotate = rerotate
        self.turns: dict[int, Turn] = {}  # the rotation of each layer

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        if not self.rerotate or seen.turn is None:
            return
        self.turns[layer] = seen.turn
        first = seen.positions < self.sink
        if seen.valid is not None:
            first = first & seen.valid
        sequence, token = first.nonzero(as_tuple=True)
        keys = seen.k_unrotated.transpose(1, 2)
        name = self.named("sinks")
        if name not in store.notes:
            store.notes[name] = keys.new_zeros(len(keys), self.sink, *keys.shape[2:])
        if len(token):
            store.notes[name][sequence, seen.positions[sequence, token]] = keys[sequence, token]

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        return store.flat().positions.to(torch.float64)

    def after_keep(self, layer: int, store: Store) -> None:
        if layer not in self.turns:
            return
        flat = store.flat()
        positions, owner = flat.positions.long(), flat.owner
        held = torch.bincount(owner, minlength=store.owners)
        last = positions.new_zeros(store.owners).scatter_reduce(0, owner, positions, "amax")
        dropped = (last + 1 - held)[owner]
        sinks = (positions < self.sink) & (dropped > 0)
        if bool(((positions >= self.sink) & (positions < dropped + self.sink)).any()):
            raise AssayError(
                "streaming_llm: rerotate counts positions within sinks and a window, but other tokens were kept too:"
                " leave out rerotate or what it is wrapped in"
            )
        if not bool(sinks.any()):
            return
        at, owner = positions[sinks], owner[sinks]
        keys = store.notes[self.named("sinks")][owner // store.kv_heads, at, owner % store.kv_heads]
        turned = self.turns[layer](keys[None, None], (at + dropped[sinks])[None])[0, 0]
        store.set_keys(sinks.nonzero()[:, 0], turned)

    def explain(self, state: ModelState) -> str | None:
        if (line := super().explain(state)) is not None or not self.rerotate or state.config is None:
            return line
        rotated = any(block.mixer.options.get("position") for block in state.config.blocks)
        return None if rotated else "no layer rotates its keys: rerotate changes nothing"
