"""In how many bits numbers are held: the interface of number formats."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Encoded:
    """Numbers as codes. `parts` are the tensors that are stored; each has the leading axes of what was encoded."""

    parts: dict[str, Tensor]

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.parts.values())


class Format(ABC):
    """A way of writing the last axis of a tensor in few bits, every other axis by itself.

    The law: encoding what was decoded changes nothing; every part keeps the leading axes, so that entries can be moved,
    dropped and appended without decoding; `bytes` is what the parts hold.
    """

    @abstractmethod
    def encode(self, x: Float[Tensor, "*rest dim"]) -> Encoded: ...

    @abstractmethod
    def decode(self, encoded: Encoded) -> Float[Tensor, "*rest dim"]:
        """Float32 numbers, of the shape that was encoded."""


class GroupedFormat(Format):
    """A format of caches in which the keys of `group` tokens of a head share scales; values are written token by token.

    Each head's last `recent` tokens, and those older ones that do not fill a group yet, are held as they are. So a piece
    reads its own tokens, and what was recent when it came, in full.
    """

    group: int
    recent: int

    @abstractmethod
    def encode_keys(self, k: Float[Tensor, "groups group dim"]) -> tuple[Encoded, Encoded]:
        """What each token holds for itself ("groups group ..."), and what the tokens of a group share ("groups ...")."""

    @abstractmethod
    def decode_keys(self, own: Encoded, shared: Encoded) -> Float[Tensor, "*rest dim"]:
        """Float32 keys, of `own` ("*rest ...") and `shared` once for each token ("*rest ...")."""
