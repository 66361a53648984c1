"""Never touch the prompt; keep generated tokens drawn at random, for each key-value head by itself.

Kept: the prompt, the last `recent` tokens, and of the rest a uniform draw. A token kept with frequency f in each of H
heads survives somewhere with probability 1 - (1 - f)^H. The paper draws anew at each compression; but a token that has
to survive every one of a row of fresh draws is the likelier lost the older it is. Uniform retention, which the method
is meant to have, needs a priority that a token is given once, on arrival (reservoir sampling): that is `draw=priority`,
the default; `draw=fresh` draws anew among the survivors and the newcomers each time.

seam: policy
row: D21
source: Random Attention (github.com/SalesforceAIResearch/Random-Attention)
object: RandomAttention
"""

from __future__ import annotations

from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from assay.core.policy import Policy
from assay.core.store import Store
from assay.efficiency.cache.common import among, draws


class RandomAttention(Policy):
    """The budget counts the prompt too, so it must be larger than the prompt. No score is computed, nothing is stored."""

    def __init__(
        self, seed: int = 0, draw: Literal["priority", "fresh"] = "priority", *, prompt: bool = True, **pins: Any
    ) -> None:
        super().__init__(prompt=prompt, **pins)
        among("random_attention", draw=(draw, ("priority", "fresh")))
        self.seed, self.draw = seed, draw

    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        flat = store.flat()
        seed = (self.seed, self.salt, layer)
        if self.draw == "priority":
            return draws(seed, flat.owner, flat.positions, store.kv_heads)
        # how far the sequence has come tells one draw from the next
        latest = flat.positions.new_zeros(store.owners).scatter_reduce(0, flat.owner, flat.positions, "amax")
        return draws((*seed, 1), flat.owner, flat.positions.long() << 31 | latest[flat.owner].long(), store.kv_heads)
