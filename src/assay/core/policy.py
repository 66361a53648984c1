"""What is kept of a growing cache: the interface of cache policies, and the driver that holds one to its budget."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.budget import Budget
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError
from assay.core.state import ModelState, Observed
from assay.core.store import Store


class Policy(ABC):
    """Scores what a store holds; the highest scores stay.

    Pins are arguments of every policy and are always kept: the first `sink` positions, the last `recent` tokens,
    and with `prompt` everything that was there when the prompt ended.
    """

    def __init__(self, *, sink: int = 4, recent: int = 32, prompt: bool = False) -> None:
        if sink < 0 or recent < 0:
            raise AssayError(f"pins must not be negative: sink={sink}, recent={recent}")
        self.sink, self.recent, self.prompt = sink, recent, prompt

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        """Called after every append to an eligible layer, prefill and decoding alike."""

    def finish_prefill(self, layer: int, store: Store) -> None:
        """Called once a layer when the whole context is in, before anything is dropped."""

    @abstractmethod
    def score(self, layer: int, store: Store) -> Float[Tensor, "stored"]:
        """One score for each entry of `store.flat()`; finite; higher is kept."""

    def allot(
        self, scores: Mapping[int, Float[Tensor, "stored"]], stores: Mapping[int, Store], budget: Int[Tensor, "batch"]
    ) -> dict[int, Int[Tensor, "owners"]]:
        """Tokens each owner may keep in each layer. `scores` have pins at +inf. The total must not exceed the equal split."""
        return {layer: equal_split(store, budget) for layer, store in stores.items()}

    def keep(
        self, layer: int, store: Store, scores: Float[Tensor, "stored"], budget: Int[Tensor, "owners"]
    ) -> Int[Tensor, "kept"]:
        """Indices into `store.flat()` that stay: as many an owner as its budget says (all, where it holds fewer)."""
        return top_per_owner(scores, store.flat().owner, budget)

    def explain(self, config: TransformerConfig) -> str | None:
        """One line where this policy cannot do all it should on such a model, else None."""
        return None


def equal_split(store: Store, budget: Int[Tensor, "batch"]) -> Int[Tensor, "owners"]:
    return budget.repeat_interleave(store.kv_heads)


def top_per_owner(
    scores: Float[Tensor, "stored"], owner: Int[Tensor, "stored"], budget: Int[Tensor, "owners"]
) -> Int[Tensor, "kept"]:
    """The indices of each owner's `budget[owner]` highest scores, ascending. Of equal scores the earlier entry stays."""
    by_score = scores.sort(descending=True, stable=True).indices
    order = by_score[owner[by_score].sort(stable=True).indices]
    held = torch.bincount(owner, minlength=len(budget))
    rank = torch.arange(len(owner), device=owner.device) - (held.cumsum(0) - held)[owner[order]]
    return order[rank < budget[owner[order]]].sort().values


class Compression:
    """One policy held to one budget on one running state.

    `attach(state)`, feed the context, `finish_prefill()`; while generating, `hold()` after every step: what is held never
    exceeds the budget by more than the tokens of the step just taken, and `slack` tokens are freed at once so that scores
    are not computed at every step.
    """

    def __init__(self, policy: Policy, budget: Budget | str | float, *, slack: int = 16) -> None:
        self.policy, self.budget, self.slack = policy, Budget.parse(budget), slack
        self.state: ModelState | None = None
        self.ceiling: Int[Tensor, "batch"] | None = None
        self.prompt_end: Int[Tensor, "batch"] | None = None
        self.peak_bytes = 0

    def attach(self, state: ModelState) -> Compression:
        """Listen to what the eligible layers append. Several compressions may listen to one prefill."""
        self.state = state
        for layer in state.growing():
            state.layers[layer].observers += (partial(self.policy.observe, layer),)
        return self

    def fork(self, state: ModelState, budget: Budget | str | float | None = None) -> Compression:
        """The same policy with what it has observed so far, on a fork of the state it observed."""
        twin = Compression(copy.deepcopy(self.policy), self.budget if budget is None else budget, slack=self.slack)
        twin.ceiling, twin.prompt_end = self.ceiling, self.prompt_end
        return twin.attach(state)

    def finish_prefill(self, *, context: Int[Tensor, "batch"] | None = None) -> None:
        """The context is in: fix the ceiling and compress to it. `context`: the length a ratio is taken of, if not what was seen."""
        state = self._running()
        stores = state.growing()
        self.peak_bytes = state.bytes
        self.prompt_end = state.seen.clone()
        self.ceiling = self.budget.tokens(state.seen if context is None else context, list(stores.values()))
        for layer, store in stores.items():
            self.policy.finish_prefill(layer, store)
        self._shrink(self.ceiling)

    def hold(self) -> None:
        """Bring the cache back under its ceiling, if a step has taken it above."""
        if self.ceiling is None:
            raise AssayError("hold() before finish_prefill(): the ceiling is not known yet")
        freed = torch.minimum(self.ceiling // 8, torch.tensor(self.slack))
        self._shrink(self.ceiling, self.ceiling - freed)

    def _shrink(self, ceiling: Int[Tensor, "batch"], target: Int[Tensor, "batch"] | None = None) -> None:
        state = self._running()
        stores = state.growing()
        if self.budget.everything or not stores or not _exceeds(list(stores.values()), ceiling):
            return
        target = ceiling if target is None else target
        self._refuse_too_small(target)
        scores = {
            layer: self.policy.score(layer, store).masked_fill(self._pinned(store), torch.inf)
            for layer, store in stores.items()
        }
        budgets = self.policy.allot(scores, stores, target)
        for layer, store in stores.items():
            store.keep(self.policy.keep(layer, store, scores[layer], budgets[layer]))

    def _pinned(self, store: Store) -> Bool[Tensor, "stored"]:
        state, flat = self._running(), store.flat()
        sequence = flat.owner // store.kv_heads
        pinned = (flat.positions < self.policy.sink) | (flat.positions >= state.seen[sequence] - self.policy.recent)
        if self.policy.prompt and self.prompt_end is not None:
            pinned |= flat.positions < self.prompt_end[sequence]
        return pinned

    def _refuse_too_small(self, target: Int[Tensor, "batch"]) -> None:
        state = self._running()
        pins = torch.full_like(target, self.policy.sink + self.policy.recent)
        if self.policy.prompt and self.prompt_end is not None:
            pins = torch.maximum(pins, self.prompt_end + self.policy.recent)
        pins = torch.minimum(pins, state.seen)
        if bool((target < pins).any()):
            worst = int((target - pins).argmin())
            raise AssayError(
                f"budget {self.budget} leaves {int(target[worst])} tokens but {int(pins[worst])} are pinned"
                f" (sink={self.policy.sink}, recent={self.policy.recent}, prompt={self.policy.prompt}): raise it or pin fewer"
            )

    def _running(self) -> ModelState:
        if self.state is None:
            raise AssayError("this compression is not attached to a state: call attach(state) first")
        return self.state


def _exceeds(stores: list[Store], ceiling: Int[Tensor, "batch"]) -> bool:
    """Whether some sequence holds more over all these layers than its ceiling allows (heads and layers may share unevenly)."""
    held = sum(torch.tensor(s.counts).view(s.batch, s.kv_heads).sum(1) for s in stores)
    return bool((held > ceiling.cpu() * sum(s.kv_heads for s in stores)).any())
