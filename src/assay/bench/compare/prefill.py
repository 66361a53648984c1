"""One pass over a context while several policies look on; then a fork of its cache for each policy and budget."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.budget import Budget
from assay.core.compression import Compression
from assay.core.format import Format
from assay.core.policy import Policy
from assay.core.prefill import prefill
from assay.core.state import ModelState, Observed
from assay.core.store import Store

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


class Prefill:
    """The state after the context and what each policy has noted in it, in one number format for all.

    `seconds`: of the model alone; `observing[name]`: of that policy on top of it. With `chunk` the context is read in
    pieces between which a policy drops tokens: each policy and budget then reads it by itself (`apart`).
    """

    def __init__(
        self,
        model: Transformer,
        context: Int[Tensor, "1 tokens"],
        policies: Mapping[str, Policy],
        *,
        format: Format | None = None,
        chunk: int = 0,
    ) -> None:
        self.model, self.context, self.policies, self.format, self.chunk = model, context, policies, format, chunk
        self.observing = dict.fromkeys(policies, 0.0)
        self.state = self._start()
        looking = {} if chunk else policies
        self.listening = {name: Compression(policy, "1").attach(self.state) for name, policy in looking.items()}
        names = {id(policy): name for name, policy in looking.items()}
        for layer in self.state.growing():
            held = self.state.layers[layer]
            held.observers = tuple(self._timed(names[id(o.policy)], o) for o in held.observers)
        began = now(context.device)
        prefill(model, context, self.state, chunk=chunk or None, logits="none")
        self.seconds = now(context.device) - began - sum(self.observing.values())

    def _start(self) -> ModelState:
        state = self.model.start(1)
        return state if self.format is None else state.hold_in(self.format)

    def apart(self, name: str, budget: Budget, tokens: Int[Tensor, "1"]) -> tuple[ModelState, Compression, float]:
        """The context read once more, in pieces, under this policy alone; and the seconds of that. `tokens`: of the whole context."""
        state = self._start()
        held = Compression(copy.deepcopy(self.policies[name]), budget).attach(state)
        began = now(self.context.device)
        prefill(self.model, self.context, state, chunk=self.chunk, held=held, context=tokens, logits="none")
        return state, held, now(self.context.device) - began

    def _timed(self, name: str, observer: Callable[[Store, Observed], None]) -> Callable[[Store, Observed], None]:
        def observe(store: Store, seen: Observed) -> None:
            began = now(seen.k.device)
            observer(store, seen)
            self.observing[name] += now(seen.k.device) - began

        return observe

    def fork(self, name: str | None, budget: Budget | str) -> tuple[ModelState, Compression | None]:
        """An independent copy of the cache; for a policy with its compression attached, for None what the model itself holds."""
        state = self.state.fork()
        if name is not None:
            return state, self.listening[name].fork(state, budget)
        for store in state.growing().values():
            for column in store.remembered():
                store.forget(column)
        state.settle()
        return state, None


def now(device: torch.device) -> float:
    """Seconds, once what was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
