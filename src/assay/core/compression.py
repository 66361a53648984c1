"""One cache policy held to one budget on one running state: the driver that asks, counts and drops."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from assay.core.budget import Budget
from assay.core.errors import AssayError
from assay.core.policy import Policy
from assay.core.sizes import held_bytes, most_within, slot_bytes
from assay.core.state import ModelState, Observed
from assay.core.store import Store


class Compression:
    """One policy held to one budget on one running state.

    `attach(state)`, feed the context, `finish_prefill()`; while generating, `hold()` after every step: what is held
    never exceeds the budget by more than the tokens of the step just taken, and up to `slack` tokens are freed at once
    so that scores are not computed at every step. `finish_piece` in between bounds what a long context holds while it is
    fed (`assay.core.prefill` does all of this). Each sequence of a batch is treated as if it were alone.
    """

    def __init__(self, policy: Policy, budget: Budget | str | float, *, slack: int = 16) -> None:
        if not isinstance(policy, Policy):
            raise AssayError(f"a cache is held to a budget by a Policy, not by a {type(policy).__name__}")
        self.policy, self.budget, self.slack = policy, Budget.parse(budget), slack
        if not policy.bounded and not self.budget.everything:
            raise AssayError(f"a policy that keeps everything cannot hold a budget of {self.budget}: give it 1")
        self.state: ModelState | None = None
        self.ceiling: list[int] | None = None  # tokens a key-value head may hold on average, by sequence
        self.pins: list[int] = []
        self.prompt_end: Int[Tensor, "batch"] | None = None
        self.peak_bytes = 0

    def attach(self, state: ModelState) -> Compression:
        """Listen to what the eligible layers append. Several compressions may listen to one prefill."""
        self.state = state
        for layer in state.growing():
            state.layers[layer].observers += (_Listener(self.policy, layer),)
        return self

    def fork(
        self,
        state: ModelState,
        budget: Budget | str | float | None = None,
        *,
        index: Sequence[int] | Int[Tensor, "new_batch"] | None = None,
    ) -> Compression:
        """The same policy with what it has observed so far, on a fork of the state it observed, or on `reorder(index)` of it.

        Raises AssayError where the state has another number of sequences.
        """
        twin = Compression(copy.deepcopy(self.policy), self.budget if budget is None else budget, slack=self.slack)
        mine = range(len(self._running().seen)) if index is None else [int(i) for i in index]
        if len(mine) != len(state.seen):
            raise AssayError(
                f"{len(mine)} sequences were compressed, the state has {len(state.seen)}: give reorder's index"
            )
        twin.ceiling = None if self.ceiling is None else [self.ceiling[i] for i in mine]
        twin.pins = [self.pins[i] for i in mine] if self.pins else []
        twin.prompt_end = None if self.prompt_end is None else self.prompt_end[list(mine)]
        return twin.attach(state)

    @torch.no_grad()
    def finish_piece(self, ends: Int[Tensor, "batch"], *, context: Int[Tensor, "batch"] | None = None) -> None:
        """A piece of a context is in and more will come: bring the cache under the ceiling that the whole one will have.

        `ends`: how many tokens each sequence will have seen when all pieces are in; `context` as in `finish_prefill`, to
        which the last piece belongs. With a budget of everything nothing happens. Raises AssayError as that does.
        """
        if self.budget.everything:
            self._measure()
            self._running().settle()
        else:
            self._finish(ends, context, filling=True)

    @torch.no_grad()
    def finish_prefill(self, *, context: Int[Tensor, "batch"] | None = None) -> None:
        """The context is in: fix the ceiling and compress to it. Called again after a further turn, it fixes a new ceiling.

        `context`: the length that a ratio is taken of, if not what was seen. What other policies remembered in this
        state is dropped. Raises AssayError where the budget is smaller than the pins.
        """
        self._finish(self._running().seen, context, filling=False)

    def _finish(self, ends: Int[Tensor, "batch"], context: Int[Tensor, "batch"] | None, *, filling: bool) -> None:
        state = self._running()
        stores = state.growing()
        if not self.budget.everything:
            if state.holder not in (None, self):
                raise AssayError("another policy holds this state to its budget already: fork the state before")
            state.holder = self
        self._forget_others(stores)
        self._measure()
        if self.prompt_end is None:
            self.prompt_end = ends.clone()
        for policy in self.policy.chain():
            policy.filling = filling
        for layer, store in stores.items():
            self.policy.finish_prefill(layer, store)
        passing = self._passing()
        lengths = ends if context is None else context.to(ends.device)
        self.ceiling = self.budget.tokens(lengths, list(stores.values()), passing).tolist()
        if not self.budget.everything and stores:
            self.pins = self._count_pins(lengths)
            self._shrink(self.ceiling)
        state.settle()
        self._fit(passing if filling else set())

    @torch.no_grad()
    def hold(self) -> None:
        """Bring the cache back under its ceiling, if a step has taken it above."""
        if self.ceiling is None:
            raise AssayError("hold() before finish_prefill(): the ceiling is not known yet")
        if not self.budget.everything and self.pins:  # without a growing layer there is nothing to hold
            spared = [c - min(c // 8, self.slack) for c in self.ceiling]
            self._shrink([max(s, min(c, p)) for s, c, p in zip(spared, self.ceiling, self.pins, strict=True)])
        self._running().settle()
        self._fit(set())

    def _measure(self) -> None:
        self.peak_bytes = max(self.peak_bytes, self._running().bytes)

    def _shrink(self, target: list[int]) -> None:
        state = self._running()
        stores = state.growing()
        above = self._above(list(stores.values()))
        if any(above):
            above = [over and not whole for over, whole in zip(above, self.spared, strict=True)]
        if not any(above):
            return
        self._measure()
        scores = {
            layer: self.policy.score(layer, store).masked_fill(self._pinned(store), torch.inf)
            for layer, store in stores.items()
        }
        device = state.seen.device
        budgets = self._allotted(scores, stores, torch.tensor(target, device=device))
        untouched = ~torch.tensor(above, device=device)
        for layer, store in stores.items():
            everything = untouched.repeat_interleave(store.kv_heads)
            budget = budgets[layer].masked_fill(everything, max(store.counts))
            store.keep(self.policy.keep(layer, store, scores[layer], budget))
            self.policy.after_keep(layer, store)
            state.layers[layer].plan = None  # a reader's plan is of the keys that were

    @property
    def spared(self) -> list[bool]:
        """Which sequences the policy's gate keeps whole: only these may hold more than the budget."""
        state = self._running()
        found = self.policy.spares(state.growing())
        return [False] * len(state.seen) if found is None else found.tolist()

    def _allotted(
        self, scores: Mapping[int, Tensor], stores: Mapping[int, Store], target: Int[Tensor, "batch"]
    ) -> dict[int, Int[Tensor, "owners"]]:
        """What each owner may keep. Of a budget in bytes, the most at which pages of uneven heads fit, sequence by sequence."""
        if self.budget.kind != "bytes":
            return self.policy.allot(scores, stores, target)
        least = torch.tensor(self.pins, device=target.device).clamp(max=target)
        return most_within(
            self.budget.amount,
            stores,
            lambda tokens: self.policy.allot(scores, stores, tokens),
            least,
            target,
            self._passing(),
        )

    def _passing(self) -> set[str]:
        return {p.tag for p in self.policy.chain() if p.brief}

    def _fit(self, passing: set[str]) -> None:
        """Of a budget in bytes: lower the ceiling until what is really held is within it.

        It may not be at once where groups of tokens have lost some of theirs, where a policy keeps other numbers of tokens than
        it was allotted, or once generated tokens lie in new pages. Columns of `passing` do not count.
        """
        if self.budget.kind != "bytes" or not self.pins or any(self.spared):
            return
        stores, batch = list(self._running().growing().values()), len(self.pins)
        heads = sum(s.kv_heads for s in stores)
        while sum(held_bytes(s, passing) for s in stores) > self.budget.amount * batch:
            brief = self._passing()  # what these remember may be gone after the next compaction
            over = sum(held_bytes(s, brief) for s in stores) - self.budget.amount * batch
            token = sum(s.kv_heads * slot_bytes(s, brief) for s in stores)
            fewer = max(1, int(over // (token * batch)))
            held = [sum(sum(s.counts[b * s.kv_heads : (b + 1) * s.kv_heads]) for s in stores) for b in range(batch)]
            lower = [
                max(p, min(c, h // heads - fewer)) for p, c, h in zip(self.pins, self.ceiling or [], held, strict=True)
            ]
            if all(h <= n * heads for h, n in zip(held, lower, strict=True)):
                return  # nothing but pins is left
            self.ceiling = lower
            self._shrink(lower)
            self._running().settle()

    def _above(self, stores: list[Store]) -> list[bool]:
        """Which sequences hold more over all these layers than the ceiling allows (heads and layers may share unevenly)."""
        batch = len(self.ceiling or [])
        if not stores or not self.ceiling:
            return [False] * batch
        heads = sum(s.kv_heads for s in stores)
        return [
            sum(sum(s.counts[b * s.kv_heads : (b + 1) * s.kv_heads]) for s in stores) > self.ceiling[b] * heads
            for b in range(batch)
        ]

    def _pinned(self, store: Store) -> Bool[Tensor, "stored"]:
        state, flat = self._running(), store.flat()
        sequence = flat.owner // store.kv_heads
        pinned = (flat.positions < self.policy.sink) | (flat.positions >= state.seen[sequence] - self.policy.recent)
        if self.policy.prompt and self.prompt_end is not None:
            pinned |= flat.positions < self.prompt_end[sequence]
        return pinned

    def _count_pins(self, lengths: Int[Tensor, "batch"]) -> list[int]:
        policy, ceiling, ends = self.policy, self.ceiling or [], self.prompt_end
        first = (
            [max(policy.sink, end) if policy.prompt else policy.sink for end in ends.tolist()]
            if ends is not None
            else []
        )
        pins = [f + policy.recent for f in first]
        for allowed, pinned, length in zip(ceiling, pins, lengths.tolist(), strict=True):
            if allowed < pinned:
                raise AssayError(
                    f"budget {self.budget} leaves {allowed} tokens (context: {length}) but {pinned} are pinned"
                    f" (sink={policy.sink}, recent={policy.recent}, prompt={policy.prompt}): raise it or pin fewer"
                )
            if allowed < 1:
                raise AssayError(f"budget {self.budget} holds not even one token: raise it")
        return pins

    def _forget_others(self, stores: Mapping[int, Store]) -> None:
        mine = set() if self.budget.everything else {p.tag for p in self.policy.chain()}
        for store in stores.values():
            for name in store.remembered():
                if name.partition("/")[0] not in mine:
                    store.forget(name)
        for layer in stores:
            held = self._running().layers[layer]
            listening = [o for o in held.observers if isinstance(o, _Listener)]
            gone = [o for o in listening if (o.policy is self.policy) == self.budget.everything]
            held.observers = tuple(o for o in held.observers if o not in gone)

    def _running(self) -> ModelState:
        if self.state is None:
            raise AssayError("this compression is not attached to a state: call attach(state) first")
        return self.state


class _Listener:
    """Hands what one layer appends to one policy."""

    def __init__(self, policy: Policy, layer: int) -> None:
        self.policy, self.layer = policy, layer

    @torch.no_grad()
    def __call__(self, store: Store, seen: Observed) -> None:
        self.policy.observe(self.layer, store, seen)
