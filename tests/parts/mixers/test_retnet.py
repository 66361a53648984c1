"""Retention against its parallel form, and its limits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.parts.mixers.kit import X, heads_of, made, run

from assay.core.errors import AssayError
from assay.parts.mixers.decayed import step_by_step
from assay.parts.mixers.retnet import RetNet, turned


def written_out(mixer: RetNet, read: torch.Tensor) -> torch.Tensor:
    normed = read * (read.square().mean(-1, keepdim=True) + mixer.eps).rsqrt()
    return mixer.out(normed.transpose(1, 2).flatten(2) * F.silu(mixer.gate(X)))


@torch.no_grad()
def test_it_is_complex_attention_with_powers_of_the_decay():
    mixer, t = made(RetNet), torch.arange(70, dtype=torch.float64)
    q, k = (torch.view_as_complex(heads_of(part(X)).unflatten(-1, (4, 2)).contiguous()) for part in (mixer.q, mixer.k))
    theta = 10_000 ** -(torch.arange(4, dtype=torch.float64) / 3)
    turn = torch.polar(torch.ones(70, 4, dtype=torch.float64), t[:, None] * theta)
    scores = ((q * turn) @ (k * turn).conj().mT).real * 8**-0.5
    gamma = torch.tensor([31 / 32, 63 / 64], dtype=torch.float64)[:, None, None]
    powers = (gamma ** (t[:, None] - t)).tril()
    torch.testing.assert_close(
        run(mixer), written_out(mixer, (scores * powers) @ heads_of(mixer.v(X))), rtol=0, atol=1e-9
    )


@torch.no_grad()
def test_without_decay_and_rotation_it_is_linear_attention():
    mixer = made(RetNet, decays=[1.0, 1.0], rotate=False)
    q, k, v = (heads_of(part(X)) for part in (mixer.q, mixer.k, mixer.v))
    zero = torch.zeros(2, 2, 8, 16, dtype=torch.float64)
    read, _ = step_by_step(q, k * 8**-0.5, v, torch.zeros_like(q[..., :1]), zero)
    torch.testing.assert_close(run(mixer), written_out(mixer, read), rtol=0, atol=1e-9)


def test_only_distances_between_positions_matter():
    x = torch.randn(1, 1, 3, 8, dtype=torch.float64)
    here, there = (turned(x, torch.arange(3)[None] + shift) for shift in (0, 1000))
    torch.testing.assert_close(here @ here.mT, there @ there.mT, rtol=0, atol=1e-10)
    torch.testing.assert_close(here.norm(dim=-1), x.norm(dim=-1))


def test_bad_inputs_get_one_line():
    for options, why in (
        ({"heads": 3}, "width 16 does not divide into 3 heads: give head_dim"),
        ({"heads": 2, "head_dim": 3}, "head_dim 3 is odd"),
        ({"heads": 2, "decays": [0.5]}, "each of 2 heads"),
        ({"heads": 2, "decays": [0.5, 1.5]}, "above 0 and up to 1"),
        ({"heads": 2, "expand": 0.01}, "leaves no value"),
    ):
        with pytest.raises(AssayError, match=why):
            RetNet(16, **options)
