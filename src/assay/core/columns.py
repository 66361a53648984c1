"""What policies keep in a store: columns, a number or more for each stored token, and notes, one for each sequence."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Tensor

from assay.core.errors import AssayError


class Columns(ABC):
    """The part of a store that holds what policies remember. Columns move with their tokens; all of it counts as bytes."""

    def __init__(self) -> None:
        self.arrays: dict[str, Tensor] = {}  # keys, values, "positions" and columns, each (pages, page, ...)
        self.notes: dict[str, Tensor] = {}  # what a policy remembers of each sequence, (batch, ...)
        self._written: slice | tuple[Tensor, Tensor] | None = None  # where the last append went

    @abstractmethod
    def slots(self) -> Int[Tensor, "stored"]:
        """Index of each stored token among all slots, in the order of `flat()`."""

    def write_column(self, name: str, values: Float[Tensor, "batch kv_heads tokens *rest"]) -> None:
        """Side data for the tokens of the last `append`; what belongs to its invalid tokens is ignored."""
        values = values.detach().flatten(0, 1)
        pages, size = self.arrays["positions"].shape[:2]
        if name not in self.arrays:
            self.arrays[name] = values.new_zeros(pages, size, *values.shape[2:])
        column = self.arrays[name]
        if isinstance(self._written, slice):
            column[:, self._written] = values
        elif self._written is not None:
            slots, valid = self._written
            column.flatten(0, 1)[slots] = values[valid]
        else:
            raise AssayError(f"column {name}: write it right after an append")

    def column(self, name: str) -> Float[Tensor, "stored *rest"]:
        """Side data aligned with `flat()`."""
        return self.arrays[name].flatten(0, 1)[self.slots()]

    def set_column(self, name: str, values: Float[Tensor, "stored *rest"]) -> None:
        pages, size = self.arrays["positions"].shape[:2]
        column = values.new_zeros(pages * size, *values.shape[1:])
        column[self.slots()] = values
        self.arrays[name] = column.view(pages, size, *values.shape[1:])

    def remembered(self) -> list[str]:
        """Names of the columns and notes that policies keep here (`tag/name`)."""
        return [name for name in (*self.arrays, *self.notes) if "/" in name]

    def forget(self, name: str) -> None:
        """Drop a column or a note, if there is one of that name."""
        self.arrays.pop(name, None)
        self.notes.pop(name, None)
