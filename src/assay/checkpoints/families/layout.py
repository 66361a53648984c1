"""How a file lays out what is ours: names, joined matrices, shapes.

Three namings meet here: ours (`blocks.3.mixer.q.weight`), a Hugging Face folder's and a GGUF file's. A layout maps ours to one of
theirs; `*` stands for the block's number, and the last word (weight, bias) is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor

Reshape = Callable[[str, "Tensor", TransformerConfig], "Tensor"]


def unchanged(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    return tensor


def as_usual(name: str, config: TransformerConfig) -> str:
    return name


Grouping = Callable[[TransformerConfig], tuple[int, tuple[int, ...]]]


@dataclass(frozen=True)
class Part:
    """Our tensor is part `index` of `of` that theirs joins along `axis`: equal ones, or as `grouped` says.

    `grouped`: config → (groups, shares). Theirs is then so many groups of rows, and in each of them every part has its share.
    """

    name: str
    index: int
    of: int
    axis: int
    grouped: Grouping | None = None

    def cut(self, whole: Tensor, config: TransformerConfig) -> Tensor:
        """Our tensor out of theirs. Raises RuntimeError where theirs does not divide so."""
        if self.of == 1:
            return whole
        if self.grouped is None:
            return whole.unflatten(self.axis, (self.of, -1)).select(self.axis - (self.axis < 0), self.index)
        groups, shares = self.grouped(config)
        rows = whole.unflatten(0, (groups, sum(shares), -1))
        return rows.narrow(1, sum(shares[: self.index]), shares[self.index]).flatten(0, 2)

    def join(self, parts: list[Tensor], config: TransformerConfig) -> Tensor:
        """Theirs from all of ours, in order."""
        import torch

        if len(parts) == 1:
            return parts[0]
        if self.grouped is None:
            return torch.cat(parts, self.axis)
        groups, _ = self.grouped(config)
        return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)


@dataclass(frozen=True)
class Absorbed:
    """Their tensor `name`, which ours has no place for since adding it to our tensor `into` says the same.

    `add`: (ours, theirs) → ours. `blank`: ours → what is written in its place, which adds nothing.
    """

    name: str
    into: str
    add: Callable[[Tensor, Tensor], Tensor]
    blank: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layout:
    """Names and shapes in one file format. `fold` turns theirs (already cut out of a joined one) into ours, `unfold` back.

    `turned`: a pattern of our names whose matrices the file holds as (in, out). `spelled`: (usual name, config) → the name to
    write, where it depends on the model.
    """

    names: dict[str, str | Part] | None  # None: the file uses our names
    turned: str = r"(?!)"
    fold: Reshape = unchanged
    unfold: Reshape = unchanged
    absorbed: tuple[Absorbed, ...] = ()
    ignored: str = r"(?!)"  # a pattern of names that carry nothing for us
    renamed: tuple[tuple[str, str], ...] = ()  # (pattern, replacement) that bring other spellings to the usual one
    spelled: Callable[[str, TransformerConfig], str] = as_usual

    def theirs(self, ours: str) -> Part:
        """Where our tensor lies in their file."""
        if self.names is None:
            return Part(ours, 0, 1, 0)
        stem, _, last = ours.rpartition(".")
        number = re.match(r"blocks\.(\d+)\.", stem)
        place = self.names.get(re.sub(r"^blocks\.\d+", "blocks.*", stem))
        if place is None:
            raise AssayError(
                f"{ours} has no place in this family's files; only models of the family's own layout can be written"
            )
        part = place if isinstance(place, Part) else Part(place, 0, 1, 0)
        name = part.name.replace("*", number[1]) if number else part.name
        return replace(part, name=f"{name}.{last}")

    def turn(self, ours: str, tensor: Tensor) -> Tensor:
        """A matrix of theirs as (out, in), and back."""
        return tensor.t() if tensor.ndim == 2 and re.search(self.turned, ours) else tensor

    def usual(self, name: str) -> str | None:
        """Their name in its usual spelling, None for a tensor to ignore."""
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return None if re.search(self.ignored, name) else name


def by_heads(config: TransformerConfig) -> tuple[int, tuple[int, ...]]:
    """A joined matrix in which each key-value head follows the queries that share it, and its value follows it."""
    heads, kv_heads = _heads(config)
    return kv_heads, (heads // kv_heads, 1, 1)


def one_after_another(config: TransformerConfig) -> tuple[int, tuple[int, ...]]:
    """A joined matrix of all queries, then all keys, then all values."""
    heads, kv_heads = _heads(config)
    return 1, (heads, kv_heads, kv_heads)


def _heads(config: TransformerConfig) -> tuple[int, int]:
    options = config.blocks[0].mixer.options
    return options["heads"], options.get("kv_heads") or options["heads"]


def fused(name: str, grouped: Grouping) -> dict[str, str | Part]:
    """Where q, k and v of a block lie that theirs joins into `name`."""
    return {f"blocks.*.mixer.{letter}": Part(name, index, 3, 0, grouped) for index, letter in enumerate("qkv")}
