"""What recurrent mixers share: a state of plain tensors, padding moved out of the way, and a short causal convolution."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from assay.core.errors import Refused
from assay.core.state import State


class RecurrentState(State):
    """Named tensors with the batch first, of a fixed size. Every change replaces them, so gradients may flow through."""

    def __init__(self, batch: int, device: torch.device | str = "cpu", **held: Tensor) -> None:
        self.held = held
        self.seen = torch.zeros(batch, dtype=torch.long, device=device)

    def __getitem__(self, name: str) -> Tensor:
        return self.held[name]

    def advance(self, tokens: int, valid: Bool[Tensor, "batch tokens"] | None, **held: Tensor) -> None:
        self.held = {**self.held, **held}
        self.seen = self.seen + (tokens if valid is None else valid.sum(1))

    def tensors(self) -> list[Tensor]:
        return list(self.held.values())

    def _with(self, held: dict[str, Tensor], seen: Tensor) -> RecurrentState:
        copy = RecurrentState(len(seen), seen.device, **held)
        copy.seen = seen
        return copy

    def fork(self) -> RecurrentState:
        return self._with({name: t.clone() for name, t in self.held.items()}, self.seen.clone())

    def reorder(self, index: Int[Tensor, "new_batch"]) -> RecurrentState:
        return self._with({name: t[index] for name, t in self.held.items()}, self.seen[index])

    def detach(self) -> RecurrentState:
        return self._with({name: t.detach() for name, t in self.held.items()}, self.seen)

    def rollback(self, tokens: int) -> None:
        if tokens:
            raise Refused(f"cannot roll back {tokens} tokens: a recurrent state keeps no past; fork it before")


class Packing:
    """Moves each row's valid tokens to its front, in order, so that a recurrence meets padding only when it is done."""

    def __init__(self, valid: Bool[Tensor, "batch tokens"] | None) -> None:
        self.valid = None if valid is None or bool(valid.all()) else valid
        if self.valid is not None:
            self.order = (~self.valid).long().sort(dim=1, stable=True).indices
            self.front: Bool[Tensor, "batch tokens"] = self.valid.gather(1, self.order)

    @property
    def lengths(self) -> Int[Tensor, "batch"] | None:
        """Valid tokens of each row; None where all are."""
        return None if self.valid is None else self.valid.sum(1)

    def pack(self, x: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Valid tokens first, zeros after them."""
        if self.valid is None:
            return x
        moved = x.gather(1, self.order[..., None].expand_as(x))
        return torch.where(self.front[..., None], moved, 0)

    def unpack(self, y: Float[Tensor, "batch tokens width"]) -> Float[Tensor, "batch tokens width"]:
        """Back to their places; zero at invalid tokens."""
        if self.valid is None:
            return y
        back = torch.zeros_like(y).scatter(1, self.order[..., None].expand_as(y), y)
        return torch.where(self.valid[..., None], back, 0)

    def silence(self, x: Float[Tensor, "batch tokens *rest"]) -> Float[Tensor, "batch tokens *rest"]:
        """Zero what a packed sequence holds after its valid tokens."""
        if self.valid is None:
            return x
        return torch.where(self.front.reshape(*self.front.shape, *[1] * (x.ndim - 2)), x, 0)


def causal_convolution(
    x: Float[Tensor, "batch tokens width"],
    weight: Float[Tensor, "width taps"],
    before: Float[Tensor, "batch taps-1 width"],
    lengths: Int[Tensor, "batch"] | None,
) -> tuple[Float[Tensor, "batch tokens width"], Float[Tensor, "batch taps-1 width"]]:
    """Each channel's own filter over the last `taps` tokens, and the tail that the next piece needs.

    `before`: the last inputs of earlier pieces; `lengths`: valid tokens at the front of each row (None: all).
    """
    taps = weight.shape[1]
    padded = torch.cat([before, x], 1)
    y = F.conv1d(padded.mT, weight[:, None], groups=x.shape[-1]).mT
    if lengths is None:
        return y, padded[:, padded.shape[1] - (taps - 1) :].clone()  # a view would hold on to the whole piece
    at = lengths[:, None] + torch.arange(taps - 1, device=x.device)
    return y, padded.gather(1, at[..., None].expand(-1, -1, x.shape[-1]))
