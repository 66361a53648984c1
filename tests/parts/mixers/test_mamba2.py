"""Mamba-2 against its recurrence, written out token by token with its convolution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.parts.mixers.kit import X, made, run

from assay.core.errors import AssayError
from assay.parts.mixers.mamba2 import Mamba2


def written_out(mixer: Mamba2, u: torch.Tensor) -> torch.Tensor:
    """One sequence, one token after the other."""
    before = torch.cat([mixer.x(u), mixer.B(u), mixer.C(u)], -1)
    heads, dim, states = mixer.heads, mixer.head_dim, mixer.state_dim
    memory, out = torch.zeros(heads, states, dim, dtype=u.dtype), []
    for t in range(len(u)):
        mixed = mixer.convolution_bias.clone()
        for tap in range(mixer.taps):
            if t - tap >= 0:
                mixed = mixed + mixer.convolution[:, mixer.taps - 1 - tap] * before[t - tap]
        x, b, c = F.silu(mixed).split([heads * dim, states, states])
        x = x.view(heads, dim)
        step = F.softplus(mixer.step(u[t]) + mixer.step_bias)
        kept = torch.exp(-mixer.log_rate.exp() * step)
        memory = kept[:, None, None] * memory + step[:, None, None] * b[:, None] * x[:, None]
        y = (torch.einsum("hsd,s->hd", memory, c) + mixer.skip[:, None] * x).flatten() * F.silu(mixer.z(u[t]))
        out.append(mixer.out(y * (y.square().mean() + mixer.eps).rsqrt() * mixer.norm))
    return torch.stack(out)


@torch.no_grad()
def test_it_is_the_recurrence_as_published():
    mixer = made(Mamba2, state_dim=5)
    wanted = torch.stack([written_out(mixer, u) for u in X])
    torch.testing.assert_close(run(mixer), wanted, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_step_of_zero_passes_nothing_on():
    mixer = made(Mamba2, state_dim=5, taps=1)
    mixer.step_bias.fill_(-1e4)
    alone = torch.cat([run(mixer, X[:, t : t + 1]) for t in range(70)], 1)
    torch.testing.assert_close(run(mixer), alone, rtol=0, atol=1e-12)


def test_it_begins_with_steps_and_rates_as_published():
    mixer = Mamba2(64, heads=64)
    step, rate = F.softplus(mixer.step_bias), mixer.log_rate.exp()
    assert 0.0009 < step.min() < 0.003 < 0.03 < step.max() < 0.11
    assert 0.99 < rate.min() < 4 < 12 < rate.max() < 16.1


def test_bad_inputs_get_one_line():
    for options, why in (
        ({"heads": 3}, "2 x width 16 does not divide into 3 heads: give head_dim"),
        ({"heads": 2, "state_dim": 0}, "state_dim=0"),
        ({"heads": 2, "taps": 0}, "taps=0"),
    ):
        with pytest.raises(AssayError, match=why):
            Mamba2(16, **options)
