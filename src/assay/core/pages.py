"""What a store shows of its content: by page, or token by token; and what tensors really take up."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

EMPTY = -1  # the position of a slot that holds no token


@dataclass(frozen=True)
class Pages:
    """What is stored, by page. Slots whose position is -1 are empty. `owner` is sorted."""

    k: Float[Tensor, "pages page dim"]
    v: Float[Tensor, "pages page dim_v"]
    positions: Int[Tensor, "pages page"]
    owner: Int[Tensor, "pages"]


@dataclass(frozen=True)
class Flat:
    """What is stored, token by token, owner after owner and in the order of arrival."""

    k: Float[Tensor, "stored dim"]
    v: Float[Tensor, "stored dim_v"]
    positions: Int[Tensor, "stored"]
    owner: Int[Tensor, "stored"]


def distinct_bytes(tensors: list[Tensor]) -> int:
    """Bytes of the distinct storages behind `tensors`: views of one storage count once, and whole."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())
