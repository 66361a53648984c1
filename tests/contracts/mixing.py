"""Feeding a mixer as the trunk does: whole, or in pieces with a state."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from tests.contracts.probe import SIZES, builds
from torch import Tensor

from assay.core import registry
from assay.core.mixer import Mixer
from assay.core.state import State

WIDTH = SIZES["width"]


def _mixers(causal: bool) -> pytest.MarkDecorator:
    chosen = [made for made in builds("mixer") if registry.get(made.values[0], "mixer").causal == causal]
    return pytest.mark.parametrize(("name", "chosen"), chosen)


every_causal_mixer = _mixers(causal=True)
every_bidirectional_mixer = _mixers(causal=False)


def positions_of(seen: Tensor, valid: Tensor) -> Tensor:
    return (seen[:, None] + valid.cumsum(1) - 1).clamp(min=0)


def whole(mixer: Mixer, x: Tensor, valid: Tensor | None = None) -> Tensor:
    batch, tokens, _ = x.shape
    there = torch.ones(batch, tokens, dtype=torch.bool) if valid is None else valid
    y, state = mixer(x, positions=positions_of(torch.zeros(batch, dtype=torch.long), there), valid=valid)
    assert state is None, "without a state the sequence ends: none comes back"
    return y


def feed(mixer: Mixer, x: Tensor, state: State, cut: list[int], valid: Tensor | None = None) -> Tensor:
    there = torch.ones(x.shape[:2], dtype=torch.bool) if valid is None else valid
    out = []
    for piece, ok in zip(x.split(cut, 1), there.split(cut, 1), strict=True):
        y, after = mixer(piece, state, positions=positions_of(state.seen, ok), valid=None if valid is None else ok)
        assert after is state
        out.append(y)
    return torch.cat(out, 1)


def cuts(tokens: int) -> Iterator[list[int]]:
    """All at once, one by one, and at random."""
    yield [tokens]
    yield [1] * tokens
    draw = random.Random(tokens)
    for most in (3, 20, 80):
        sizes: list[int] = []
        while sum(sizes) < tokens:
            sizes.append(min(draw.randint(1, most), tokens - sum(sizes)))
        yield sizes


def close(a: Tensor, b: Tensor, atol: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)
