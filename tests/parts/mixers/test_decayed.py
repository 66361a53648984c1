"""Decayed linear attention: chunks equal single steps, whatever the decay and the size of a chunk, and no exponent overflows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from assay.parts.mixers.decayed import chunked, step_by_step


def drawn(tokens: int, decays: int, strength: float = 0.3) -> list[Tensor]:
    g = torch.Generator().manual_seed(tokens)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    decay = -randn(2, 3, tokens, decays).exp() * strength
    inputs = (randn(2, 3, tokens, 8), randn(2, 3, tokens, 8), randn(2, 3, tokens, 5), decay, randn(2, 3, 8, 5))
    return [t.requires_grad_() for t in inputs]


@pytest.mark.parametrize("decays", [1, 8])
@pytest.mark.parametrize("tokens", [1, 2, 17, 127])
@pytest.mark.parametrize("chunk", [1, 16, 24, 64])
def test_chunks_equal_single_steps_forward_and_backward(tokens, chunk, decays):
    inputs = drawn(tokens, decays)
    found = []
    for read, memory in (step_by_step(*inputs), chunked(*inputs, chunk)):
        gradients = torch.autograd.grad(read.sin().sum() + memory.square().sum(), inputs)
        found.append((read, memory, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


@pytest.mark.parametrize("decays", [1, 8])
def test_strong_decay_does_not_overflow_and_forgets_all_but_the_token_itself(decays):
    q, k, v, decay, memory = drawn(70, decays, strength=0.0)
    read, last = chunked(q, k, v, decay - 300, memory, 64)
    torch.testing.assert_close(read, (q * k).sum(-1, keepdim=True) * v, rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(read.sum() + last.sum(), [q, k, v, decay, memory])
    assert all(g.isfinite().all() for g in gradients)


def test_equal_channel_decays_are_one_decay():
    q, k, v, decay, memory = drawn(100, 1)
    for one, other in zip(
        chunked(q, k, v, decay, memory, 64), chunked(q, k, v, decay.expand(-1, -1, -1, 8), memory, 64), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)
