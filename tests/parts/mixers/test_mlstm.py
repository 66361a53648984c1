"""mLSTM: chunks equal single steps and the unstabilised definition; the scale changes nothing but the range of numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.parts.mixers.kit import made, run
from torch import Tensor

from assay.core.errors import AssayError
from assay.parts.mixers.mlstm import MLSTM, chunked, step_by_step


def drawn(tokens: int, spread: float = 1.0) -> list[Tensor]:
    g = torch.Generator().manual_seed(tokens)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    forget, write = F.logsigmoid(randn(2, 3, tokens) * spread), randn(2, 3, tokens) * spread
    inputs = (*(randn(2, 3, tokens, 4) for _ in "qkv"), forget, write, randn(2, 3, 4, 5), randn(2, 3))
    return [t.requires_grad_() for t in inputs]


@pytest.mark.parametrize("spread", [1.0, 8.0])
@pytest.mark.parametrize("tokens", [1, 2, 17, 127])
@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_chunks_equal_single_steps_forward_and_backward(tokens, chunk, spread):
    inputs = drawn(tokens, spread)
    found = []
    for rule in (step_by_step, chunked):
        h, memory, scale = rule(*inputs, chunk)
        true = memory * (scale - scale.detach().mean()).exp()[..., None, None]
        found.append((h, true, scale, *torch.autograd.grad(h.sin().sum() + true.sin().sum(), inputs)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


@torch.no_grad()
def test_it_is_the_unstabilised_definition():
    q, k, v, forget, write, *_ = drawn(50)
    memory, n, wanted = torch.zeros(2, 3, 4, 4, dtype=torch.float64), torch.zeros(2, 3, 4, dtype=torch.float64), []
    for t in range(50):
        f, i = forget[:, :, t].exp(), write[:, :, t].exp()
        memory = f[..., None, None] * memory + i[..., None, None] * k[:, :, t, :, None] * v[:, :, t, None]
        n = f[..., None] * n + i[..., None] * k[:, :, t]
        under = (n * q[:, :, t]).sum(-1, keepdim=True).abs().clamp(min=1)
        wanted.append((memory * q[:, :, t, :, None]).sum(-2) / under)
    zeros = torch.zeros(2, 3, 4, 5, dtype=torch.float64), torch.zeros(2, 3, dtype=torch.float64)
    h, *_ = chunked(q, k, v, forget, write, *zeros, 16)
    torch.testing.assert_close(h, torch.stack(wanted, 2), rtol=0, atol=1e-10)


def test_huge_gates_stay_finite_in_float32_with_their_gradients():
    inputs = [t.detach().float().requires_grad_() for t in drawn(70, 300.0)]
    for rule in (step_by_step, chunked):
        h, memory, scale = rule(*inputs, 16)
        assert all(t.isfinite().all() for t in (h, memory, scale, *torch.autograd.grad(h.sum(), inputs)))


@torch.no_grad()
def test_a_closed_input_gate_leaves_the_skip_alone():
    mixer = made(MLSTM)
    mixer.input.weight.zero_()
    mixer.input.bias.fill_(-700.0)
    first = run(mixer)
    mixer.v.zero_()
    torch.testing.assert_close(run(mixer), first, rtol=0, atol=1e-12)
    assert first.abs().max() > 1e-3


def test_bad_inputs_get_one_line():
    for options, why in (
        ({"heads": 3}, "2 x width 16 does not divide into 3 heads"),
        ({"heads": 2, "block": 5}, "blocks of 5"),
        ({"heads": 2, "expand": 0}, "expand=0"),
    ):
        with pytest.raises(AssayError, match=why):
            MLSTM(16, **options)
