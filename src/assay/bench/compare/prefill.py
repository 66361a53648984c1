"""One pass over a context while several policies look on; then a fork of its cache for each policy and budget."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.compression import Compression
from assay.core.policy import Policy
from assay.core.state import ModelState, Observed
from assay.core.store import Store

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


class Prefill:
    """The state after the context and what each policy has noted in it.

    `seconds`: of the model alone; `observing[name]`: of that policy on top of it.
    """

    def __init__(self, model: Transformer, context: Int[Tensor, "1 tokens"], policies: Mapping[str, Policy]) -> None:
        self.observing = dict.fromkeys(policies, 0.0)
        self.state = model.start(1)
        self.listening = {name: Compression(policy, "1").attach(self.state) for name, policy in policies.items()}
        names = {id(policy): name for name, policy in policies.items()}
        for layer in self.state.growing():
            held = self.state.layers[layer]
            held.observers = tuple(self._timed(names[id(o.policy)], o) for o in held.observers)
        began = now(context.device)
        model(context, self.state, logits="none")
        self.seconds = now(context.device) - began - sum(self.observing.values())

    def _timed(self, name: str, observer: Callable[[Store, Observed], None]) -> Callable[[Store, Observed], None]:
        def observe(store: Store, seen: Observed) -> None:
            began = now(seen.k.device)
            observer(store, seen)
            self.observing[name] += now(seen.k.device) - began

        return observe

    def fork(self, name: str | None, budget: str) -> tuple[ModelState, Compression | None]:
        """An independent copy of the cache; for a policy with its compression attached, for None what the model itself holds."""
        state = self.state.fork()
        if name is not None:
            return state, self.listening[name].fork(state, budget)
        for store in state.growing().values():
            for column in store.remembered():
                store.forget(column)
        return state, None


def now(device: torch.device) -> float:
    """Seconds, once what was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
