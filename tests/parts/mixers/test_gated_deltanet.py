"""Gated DeltaNet: the chunked rule equals the recurrence as written, and the memory is exact for orthonormal keys."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from assay.parts.mixers.delta import chunked, step_by_step


def drawn(tokens: int, seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(randn(2, 3, tokens, 8), dim=-1) for _ in "qk")
    decay, beta = -randn(2, 3, tokens).exp() * 0.3, randn(2, 3, tokens).sigmoid()
    return [t.requires_grad_() for t in (q, k, randn(2, 3, tokens, 5), decay, beta, randn(2, 3, 8, 5))]


@pytest.mark.parametrize("tokens", [1, 2, 17, 127])
@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_chunks_equal_single_steps_forward_and_backward(tokens, chunk):
    inputs = drawn(tokens)
    weights = torch.randn(2, 3, tokens, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for rule in (step_by_step, chunked):
        read, memory = rule(*inputs, chunk)
        gradients = torch.autograd.grad((read * weights).sum() + memory.square().sum(), inputs)
        found.append((read, memory, *gradients))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_orthonormal_keys_are_recalled_exactly_and_rewritten_not_added_to():
    keys = torch.eye(4, dtype=torch.float64).expand(1, 1, 4, 4)
    values = torch.randn(1, 1, 8, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    twice = torch.cat([keys, keys], 2)
    ones, nothing = torch.ones(1, 1, 8, dtype=torch.float64), torch.zeros(1, 1, 4, 3, dtype=torch.float64)
    _, memory = chunked(twice, twice, values, ones * 0, ones, nothing, 16)
    torch.testing.assert_close(memory, values[:, :, 4:], rtol=0, atol=1e-12)


def test_strong_decay_does_not_overflow():
    q, k, v, _, beta, memory = drawn(40)
    decay = torch.full((2, 3, 40), -300.0, dtype=torch.float64)
    read, last = chunked(q, k, v, decay, beta, memory, 40)
    assert read.isfinite().all()
    assert last.isfinite().all()
