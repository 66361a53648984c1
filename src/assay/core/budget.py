"""How much a cache may hold: a ratio of the context (`0.25`), tokens (`512tok`) or bytes (`4MiB`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.store import Store

UNITS = {"b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9}

MOST = 10**18  # far above any cache, and still a whole number in every tensor


@dataclass(frozen=True)
class Budget:
    """`amount` of `kind`. A ratio is of the tokens in the eligible (global, growing) layers; bytes are of those layers, a sequence."""

    kind: Literal["ratio", "tokens", "bytes"]
    amount: float

    @classmethod
    def parse(cls, text: str | float | Budget) -> Budget:
        """Raises AssayError for what is no budget, is not positive, or is a ratio above 1."""
        if isinstance(text, Budget):
            return text
        found = re.fullmatch(r"\s*([0-9.]+(?:e-?\d+)?)\s*(tok|[kmg]i?b|b)?\s*", str(text), re.IGNORECASE)
        try:
            amount = float(found[1]) if found else 0.0
        except ValueError:
            amount = 0.0
        if found is None or amount <= 0:
            raise AssayError(
                f"budget {text!r}: write a ratio in (0, 1] such as 0.25, tokens such as 512tok, or bytes such as 4MiB"
            )
        unit = (found[2] or "").lower()
        if amount * UNITS.get(unit, 1) > MOST:
            raise AssayError(
                f"budget {text!r} is more than any cache: a ratio, tokens or bytes up to {MOST:.0e} are meant"
            )
        if not unit and amount > 1:
            raise AssayError(f"budget {text!r}: a ratio lies in (0, 1]; for tokens write {text}tok")
        if unit == "tok":
            if amount != int(amount):
                raise AssayError(f"budget {text!r}: tokens are whole")
            return cls("tokens", amount)
        return cls("bytes", amount * UNITS[unit]) if unit else cls("ratio", amount)

    @property
    def everything(self) -> bool:
        return self.kind == "ratio" and self.amount == 1

    def tokens(
        self, context: Int[Tensor, "batch"], stores: list[Store], passing: set[str] | frozenset[str] = frozenset()
    ) -> Int[Tensor, "batch"]:
        """Tokens that each key-value head of a sequence may hold on average, for contexts of these lengths.

        Bytes are what the layers' tensors may hold, rounded down to whole grains of the store (heads that keep different
        counts round up to pages: at most a page a head more). Columns whose names begin with one of `passing` do not count.
        """
        if self.kind == "ratio":
            return torch.clamp((context * self.amount + 1e-9).floor().long(), min=1)
        if self.kind == "tokens":
            return torch.full_like(context, int(self.amount))
        fixed = sum(t.numel() * t.element_size() // s.batch for s in stores for t in (*s.notes.values(), s.owner))
        held = int((self.amount - fixed) // max(1, bytes_per_token(stores, passing)))
        grain = max((s.grain for s in stores), default=1)
        return torch.full_like(context, max(held - held % grain if held >= grain else held, 0))

    def __str__(self) -> str:
        if self.kind == "ratio":
            return f"{self.amount:g}"
        if self.kind == "tokens":
            return f"{int(self.amount)}tok"
        for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if self.amount % unit == 0:
                return f"{int(self.amount // unit)}{name}"
        return f"{int(self.amount)}B"


def bytes_per_token(stores: list[Store], passing: set[str] | frozenset[str] = frozenset()) -> int:
    """What one token costs a sequence over all these layers, positions and columns included."""
    return sum(
        s.kv_heads * t[0, 0].numel() * t.element_size()
        for s in stores
        for name, t in s.arrays.items()
        if name.partition("/")[0] not in passing and t.shape[1]
    )
