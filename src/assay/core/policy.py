"""What is kept of a growing cache: the interface of cache policies."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.arguments import whole
from assay.core.state import ModelState, Observed
from assay.core.store import Store

_made = itertools.count()


class Policy(ABC):
    """Scores what a store holds; the highest scores stay.

    Pins are arguments of every policy and are always kept: the first `sink` positions, the last `recent` tokens,
    and with `prompt` everything that was there when the prompt first ended. What a policy must remember lies in the
    store under `self.named(...)`, so that forks and reordering carry it and its bytes count.
    """

    bounded = True  # False: keeps everything, whatever the budget
    inner: Policy | None = None  # what a wrapper wraps
    brief = False  # its columns serve the compaction at the end of a prefill only and are dropped there
    filling = False  # now: more of the context is to come, what goes is dropped between two pieces of it

    def __init__(self, *, sink: int = 4, recent: int = 32, prompt: bool = False) -> None:
        whole("pins", 0, sink=sink, recent=recent)
        self.sink, self.recent, self.prompt = sink, recent, prompt
        self.salt = 0
        self.tag = f"{type(self).__name__}{next(_made)}"

    def observe(self, layer: int, store: Store, seen: Observed) -> None:
        """Called after every append to an eligible layer, prefill and decoding alike, without gradients."""

    def finish_prefill(self, layer: int, store: Store) -> None:
        """Called once a layer when the whole context is in, before anything of it is dropped.

        Of a context that is fed in pieces, after each piece (with `filling`, all but the last time): then `store` holds
        what the pieces before have left and the new piece, and earlier calls have seen the rest. A further turn calls it
        again in the same way.
        """

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

    def spares(self, stores: Mapping[int, Store]) -> Bool[Tensor, "batch"] | None:
        """Sequences that stay whole, whatever the budget, because a gate says so; None of a policy without a gate."""
        return None

    def after_keep(self, layer: int, store: Store) -> None:
        """Called once what was not kept is gone, for policies that change what stays."""

    def limits(self, kv_heads: list[int]) -> str | None:
        """One line where this policy cannot do all it should with so many key-value heads in each growing layer."""
        return None

    def explain(self, state: ModelState) -> str | None:
        """One line where this policy cannot act (fully) on a model that starts with such a state, else None."""
        heads = growing_heads(state)
        return (
            self.limits(heads)
            if heads
            else "no layer grows without end (each has a window or a fixed state): nothing to compress"
        )

    def chain(self) -> Iterator[Policy]:
        """This policy, the one it wraps, and so on inwards."""
        yield self
        if self.inner is not None:
            yield from self.inner.chain()

    def named(self, what: str) -> str:
        """The name, in a store, of something this policy remembers."""
        return f"{self.tag}/{what}"

    def reseed(self, salt: int) -> None:
        """Other random draws than those of the same policy with another salt (one for each example, say)."""
        for policy in self.chain():
            policy.salt = salt


def growing_heads(state: ModelState) -> list[int]:
    """Key-value heads of each run of a layer whose cache grows without end."""
    return [store.kv_heads for store in state.growing().values()]


def equal_split(store: Store, budget: Int[Tensor, "batch"]) -> Int[Tensor, "owners"]:
    return budget.repeat_interleave(store.kv_heads)


def top_per_owner(
    scores: Float[Tensor, "stored"], owner: Int[Tensor, "stored"], budget: Int[Tensor, "owners"]
) -> Int[Tensor, "kept"]:
    """The indices of each owner's `budget[owner]` highest scores, ascending. Of equal scores the earlier entry stays."""
    return (rank_per_owner(scores, owner, len(budget)) < budget[owner]).nonzero()[:, 0]


def rank_per_owner(scores: Float[Tensor, "stored"], owner: Int[Tensor, "stored"], owners: int) -> Int[Tensor, "stored"]:
    """0 for an owner's highest score, 1 for the next, and so on."""
    by_score = scores.sort(descending=True, stable=True).indices
    order = by_score[owner[by_score].sort(stable=True).indices]
    held = torch.bincount(owner, minlength=owners)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(owner), device=owner.device) - (held.cumsum(0) - held)[owner[order]]
    return rank
