"""The interfaces of what a block is made of: mixers, positions and channels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from assay.core.sites import Tap
from assay.core.state import Bias, State


@dataclass(frozen=True)
class Cost:
    """Parameters, multiply-adds x 2 of a forward pass over so many tokens from an empty state, and bytes of the state after it."""

    parameters: int
    flops: int
    state_bytes: int


class Mixer(nn.Module, ABC):
    """How tokens exchange information: one method for any number of tokens.

    The law: any way of cutting a sequence into pieces gives the same outputs. Outputs at invalid tokens are zero, and a
    state stays as if they had not been.
    """

    causal: bool = True
    sites: tuple[str, ...] = ()
    tap: Tap | None = None

    @abstractmethod
    def forward(
        self,
        x: Float[Tensor, "batch tokens width"],
        state: State | None = None,
        *,
        positions: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch tokens"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens width"], State | None]:
        """With `state`, go on from it and return it, moved on. Without, the sequence starts here and ends here: no state comes back."""

    @abstractmethod
    def start(self, batch: int) -> State:
        """The state of `batch` sequences that have seen nothing."""

    @abstractmethod
    def cost(self, tokens: int) -> Cost: ...


class Position(nn.Module, ABC):
    """Where a token stands, told to attention by rotating queries and keys and/or by a bias on scores."""

    biased: bool = False  # whether `bias` returns anything

    @abstractmethod
    def rotate(
        self,
        q: Float[Tensor, "batch heads tokens dim"],
        k: Float[Tensor, "batch kv_heads tokens dim"],
        positions: Int[Tensor, "batch tokens"],
    ) -> tuple[Float[Tensor, "batch heads tokens dim"], Float[Tensor, "batch kv_heads tokens dim"]]: ...

    def bias(
        self, q_positions: Int[Tensor, "batch queries"], k_positions: Int[Tensor, "batch heads keys"]
    ) -> Float[Tensor, "batch heads queries keys"] | None:
        """Added to the scores; None where there is nothing to add."""
        return None


def bias_of(position: Position | None) -> Bias | None:
    """What a position adds to scores; None where it adds nothing."""
    return None if position is None or not position.biased else position.bias


class Channel(nn.Module, ABC):
    """What a block does to each token by itself."""

    sites: tuple[str, ...] = ()
    tap: Tap | None = None

    @abstractmethod
    def forward(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]: ...

    @abstractmethod
    def cost(self, tokens: int) -> Cost: ...
