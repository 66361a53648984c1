"""What a model remembers of the tokens it has seen: one state a layer, and the list of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.config import TransformerConfig
from assay.core.errors import AssayError, Refused
from assay.core.format import Format
from assay.core.reading import Plan, Query, Reader, read_held
from assay.core.store import Store, distinct_bytes

# Turns queries or keys, as they are before rotation ("batch heads tokens dim"), to these positions ("batch tokens").
Turn = Callable[[Tensor, Tensor], Tensor]
# What is added to scores, from the positions of queries ("batch queries") and of each head's keys ("batch heads keys").
Bias = Callable[[Tensor, Tensor], Tensor | None]


@dataclass(frozen=True)
class Observed:
    """What a cache policy is shown of one append: the new tokens' queries, keys and values, before and after rotation."""

    q: Float[Tensor, "batch heads tokens dim"]
    k: Float[Tensor, "batch kv_heads tokens dim"]
    v: Float[Tensor, "batch kv_heads tokens dim_v"]
    q_unrotated: Float[Tensor, "batch heads tokens dim"]
    k_unrotated: Float[Tensor, "batch kv_heads tokens dim"]
    positions: Int[Tensor, "batch tokens"]
    valid: Bool[Tensor, "batch tokens"] | None
    scale: float  # what q @ k is multiplied by before the softmax
    softcap: float | None = None
    turn: Turn | None = None  # how the layer rotates; None where it does not
    bias: Bias | None = None  # what it adds to scores; None where it adds nothing


class State(ABC):
    """A mixer's memory of a batch of sequences."""

    seen: Int[Tensor, "batch"]  # valid tokens taken in so far, which may be more than what is stored
    store: Store | None = None  # of mixers that keep something for each token
    window: int | None = None  # such a mixer looks no further back than this
    observers: tuple[Callable[[Store, Observed], None], ...] = ()
    reader: Reader | None = None  # reads part of the store instead of all of it
    plan: Plan | None = None  # the reader's last one

    @abstractmethod
    def tensors(self) -> list[Tensor]: ...

    @abstractmethod
    def fork(self) -> State:
        """An independent copy. Observers stay behind: they belong to the run that set them."""

    @abstractmethod
    def reorder(self, index: Int[Tensor, "new_batch"]) -> State:
        """A copy whose sequence b is this one's sequence `index[b]`."""

    @abstractmethod
    def detach(self) -> State: ...

    @abstractmethod
    def rollback(self, tokens: int) -> None:
        """Forget the last `tokens` valid tokens of every sequence, or raise Refused."""

    def settle(self) -> None:
        """Encode what a format in groups holds in full and is due. Where observers look on, the one that chooses calls it."""

    @property
    def bytes(self) -> int:
        return distinct_bytes(self.tensors())


class AttentionState(State):
    """Keys and values of what a softmax layer has seen. With a window, what no later query can reach is dropped."""

    SLACK = 32  # tokens beyond the window that stay, so that a short rollback is possible and trimming is rare

    def __init__(
        self, batch: int, kv_heads: int, window: int | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.store: Store = Store(batch, kv_heads)
        self.window = window
        self.seen = torch.zeros(batch, dtype=torch.long, device=device)
        self.lost = torch.full_like(self.seen, -1)  # the last position that trimming has dropped

    def read(self, query: Query) -> Float[Tensor, "batch heads tokens dim_v"]:
        """What the state's reader reads for these queries; its plan is handed on to the next step."""
        if self.reader is None:
            return read_held(query, self.store)
        self.plan = self.reader.plan(query, self.store, self.plan)
        return self.reader.read(query, self.store, self.plan).out

    def every_score(self, what: str) -> None:
        """Raise Refused where a reader chooses what is read, for `what` exists only where all is."""
        if self.reader is not None:
            raise Refused(f"{what} need every key, but a reader chooses which are read: leave out one of the two")

    def advance(self, tokens: int, valid: Bool[Tensor, "batch tokens"] | None) -> None:
        """Count tokens that were appended and read; drop what has left the window and encode what is due."""
        self.seen = self.seen + (tokens if valid is None else valid.sum(1))
        if self.window is not None and max(self.store.counts) > self.window + 2 * self.SLACK:
            self._trim(self.window)
        if not self.observers:  # a policy that looks on chooses first
            self.settle()

    def settle(self) -> None:
        if self.store.settle():
            self.plan = None  # it is of the keys as they were

    def _trim(self, window: int) -> None:
        flat = self.store.flat()
        first = self.seen - window - self.SLACK
        stays = flat.positions >= first[flat.owner // self.store.kv_heads]
        self.store.keep(stays.nonzero()[:, 0], heads_alike=True)
        self.lost = torch.maximum(self.lost, first - 1)

    @classmethod
    def bytes_after(
        cls, tokens: int, kv_heads: int, dim: int, window: int | None, dtype: torch.dtype, *, dim_v: int | None = None
    ) -> int:
        """The `bytes` of one sequence after one piece of so many tokens, without making it."""
        if window is not None and tokens > window + 2 * cls.SLACK:
            tokens = window + cls.SLACK
        store, k = Store(1, kv_heads), torch.empty(1, kv_heads, tokens, dim, dtype=dtype, device="meta")
        store.append(k, k[..., :dim_v], positions=torch.empty(1, tokens, dtype=torch.long, device="meta"))
        return sum(t.numel() * t.element_size() for t in store.tensors())

    def tensors(self) -> list[Tensor]:
        return self.store.tensors() if self.store.arrays else []

    def _with(self, store: Store, seen: Tensor, lost: Tensor) -> AttentionState:
        copy = AttentionState(store.batch, store.kv_heads, self.window)
        copy.store, copy.seen, copy.lost, copy.reader = store, seen, lost, self.reader
        return copy

    def fork(self) -> AttentionState:
        return self._with(self.store.fork(), self.seen.clone(), self.lost)

    def reorder(self, index: Int[Tensor, "new_batch"]) -> AttentionState:
        return self._with(self.store.reorder(index), self.seen[index], self.lost[index])

    def detach(self) -> AttentionState:
        return self._with(self.store.detach(), self.seen, self.lost)

    def rollback(self, tokens: int) -> None:
        if tokens < 0:
            raise Refused(f"cannot roll back {tokens} tokens: give a number from 0 on")
        limits = self.seen - tokens
        if int(limits.min()) < 0:
            raise Refused(f"cannot roll back {tokens} tokens: only {int(self.seen.min())} were seen")
        needed = None if self.window is None else (limits - self.window + 1).clamp(min=0)
        if needed is not None and bool((self.lost >= needed).any()):
            raise Refused(f"cannot roll back {tokens} tokens: the window's older keys are no longer held")
        self.store.roll_back(limits)
        self.seen, self.plan = limits, None  # other keys may come to stand at the same positions


class ModelState:
    """The states of all layers of a model, and how many valid tokens each sequence has seen."""

    def __init__(self, layers: list[State], config: TransformerConfig | None = None) -> None:
        self.layers = layers
        self.config = config  # of the model that it was started by
        self.holder: object | None = None  # what holds it to a budget; a fork is free

    def belongs(self, config: TransformerConfig, runs: int) -> bool:
        """Whether it may be the state of a model so described, which has so many runs of blocks."""
        alike = self.config is None or self.config is config or self.config == config
        return alike and len(self.layers) == runs

    @property
    def seen(self) -> Int[Tensor, "batch"]:
        return self.layers[0].seen

    @property
    def bytes(self) -> int:
        return distinct_bytes([t for layer in self.layers for t in layer.tensors()])

    def growing(self) -> dict[int, Store]:
        """Stores of the layers that grow without end (no window): the ones a cache policy may act on."""
        return {i: s.store for i, s in enumerate(self.layers) if s.store is not None and s.window is None}

    def hold_in(self, format: Format) -> ModelState:
        """Hold keys and values in a number format from here on. Raises Refused once something is held."""
        stores = [s.store for s in self.layers if s.store is not None]
        if any(store.arrays for store in stores):
            raise Refused("a state that holds tokens already keeps its format: choose one at the start")
        for store in stores:
            store.format = format
        return self

    def settle(self) -> None:
        """Encode in every layer what a format in groups still holds in full and is due; nothing in other formats."""
        for layer in self.layers:
            layer.settle()

    def read_with(self, reader: Reader) -> ModelState:
        """Let a reader choose what is read in the layers that grow without end."""
        for layer in self.growing():
            self.layers[layer].reader = reader
        return self

    def fork(self) -> ModelState:
        return ModelState([s.fork() for s in self.layers], self.config)

    def reorder(self, index: Int[Tensor, "new_batch"]) -> ModelState:
        """A copy whose sequence b is this one's sequence `index[b]`. Raises AssayError for an index that names no sequence."""
        index = torch.as_tensor(index, device=self.seen.device)
        whole = not (index.is_floating_point() or index.dtype == torch.bool)
        if index.ndim != 1 or not len(index) or not whole or int(index.min()) < 0 or int(index.max()) >= len(self.seen):
            raise AssayError(
                f"reorder: give at least one of the sequences 0 to {len(self.seen) - 1}, not {index.tolist()}"
            )
        return ModelState([s.reorder(index.long()) for s in self.layers], self.config)

    def detach(self) -> ModelState:
        return ModelState([s.detach() for s in self.layers], self.config)

    def rollback(self, tokens: int) -> None:
        """Forget the last tokens in every layer, or raise Refused and change nothing."""
        if not isinstance(tokens, int) or isinstance(tokens, bool):
            raise Refused(f"cannot roll back {tokens!r} tokens: give a whole number")
        trial = self.fork()
        for layer in trial.layers:
            layer.rollback(tokens)
        for mine, rolled in zip(self.layers, trial.layers, strict=True):
            observers = mine.observers
            mine.__dict__.update(rolled.__dict__)
            mine.observers = observers
