"""How much a cache may hold: a ratio of the context (`0.25`), tokens (`512tok`) or bytes (`4MiB`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.sizes import bytes_holding, tokens_within
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

    @classmethod
    def matching(cls, share: float, *, tokens: int, stores: Sequence[Store]) -> Budget:
        """The bytes that this share comes to of what these layers would hold of a whole context, one sequence.

        `stores`: growing stores that hold something, so that their tensors are known; of a state in full precision for a
        share of its bytes. Given to a compression of a state in another format, as many tokens stay as fit.
        """
        if not share > 0:
            raise AssayError(f"a share of {share} leaves no bytes: give a number above 0")
        whole = sum(int(bytes_holding(s, torch.full((s.kv_heads,), tokens))) for s in stores)
        if whole < 1:
            raise AssayError("no layer's cache grows without end: there are no bytes to match")
        return cls("bytes", max(1, int(share * whole)))

    def tokens(
        self, context: Int[Tensor, "batch"], stores: Sequence[Store], passing: Collection[str] = ()
    ) -> Int[Tensor, "batch"]:
        """Tokens that each key-value head of a sequence may hold on average, for contexts of these lengths.

        Bytes are what the layers' tensors may hold where heads share evenly, everything that is stored for the tokens
        counted; a compression gives fewer tokens where heads do not. Columns whose names begin with one of `passing` do not count.
        """
        if self.kind == "ratio":
            return torch.clamp((context * self.amount + 1e-9).floor().long(), min=1)
        held = int(self.amount) if self.kind == "tokens" else tokens_within(self.amount, stores, passing)
        return torch.full_like(context, held)

    def __str__(self) -> str:
        if self.kind == "ratio":
            return f"{self.amount:g}"
        if self.kind == "tokens":
            return f"{int(self.amount)}tok"
        for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
            if self.amount % unit == 0:
                return f"{int(self.amount // unit)}{name}"
        return f"{int(self.amount)}B"
