"""The law of channels, for every registered channel: each token by itself."""

from __future__ import annotations

import pytest
import torch
from tests.contracts.probe import SIZES, builds, make, randn
from torch.utils.flop_counter import FlopCounterMode

from assay.core.sites import Tap

WIDTH = SIZES["width"]
every_channel = pytest.mark.parametrize(("name", "chosen"), builds("channel"))


@every_channel
@pytest.mark.parametrize("tokens", [1, 2, 17, 127])
@torch.no_grad()
def test_tokens_do_not_meet(name, chosen, tokens):
    channel, x = make("channel", name, chosen), randn(2, tokens, WIDTH)
    y = channel(x)
    assert y.shape == x.shape
    assert y.abs().max() > 1e-3
    apart = torch.stack([torch.cat([channel(x[b : b + 1, t : t + 1])[0] for t in range(tokens)]) for b in range(2)])
    torch.testing.assert_close(apart, y, rtol=0, atol=1e-12)


@every_channel
def test_a_token_that_is_nan_spoils_no_other_and_no_gradient_of_another(name, chosen):
    channel, x = make("channel", name, chosen), randn(2, 9, WIDTH)
    wanted = channel(x)
    x[0, 3] = torch.nan
    x.requires_grad_()
    y = channel(x)
    others = torch.ones(2, 9, dtype=torch.bool)
    others[0, 3] = False
    torch.testing.assert_close(y[others], wanted[others], rtol=0, atol=1e-12)
    (gradient,) = torch.autograd.grad(y[others].square().sum(), x)
    assert gradient[others].isfinite().all()


@every_channel
def test_gradients_reach_every_parameter(name, chosen):
    channel, x = make("channel", name, chosen), randn(2, 5, WIDTH)
    for gradient in torch.autograd.grad(channel(x).square().sum(), list(channel.parameters())):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


@every_channel
@torch.no_grad()
def test_bfloat16_weights_stay_near_float32(name, chosen):
    exact, rounded = make("channel", name, chosen, torch.float32), make("channel", name, chosen, torch.bfloat16)
    for dtype in (torch.float32, torch.bfloat16):
        x = randn(2, 33, WIDTH, dtype=dtype)
        y, wanted = rounded(x), exact(x.float())
        assert y.dtype == dtype
        assert (y.float() - wanted).norm() < 0.1 * wanted.norm()


@every_channel
@torch.no_grad()
def test_cost_says_what_there_is_and_what_is_done(name, chosen):
    channel, x = make("channel", name, chosen), randn(1, 37, WIDTH)
    cost = channel.cost(37)
    with FlopCounterMode(display=False) as counter:
        channel(x)
    assert cost.parameters == sum(p.numel() for p in channel.parameters())
    assert cost.flops == counter.get_total_flops()
    assert cost.state_bytes == 0


@every_channel
@torch.no_grad()
def test_every_declared_site_fires_and_listening_changes_nothing(name, chosen):
    channel, x, heard = make("channel", name, chosen), randn(2, 5, WIDTH), []
    wanted = channel(x)
    channel.tap = Tap("", {site: [lambda where, value: heard.append(where) or value] for site in channel.sites})
    assert torch.equal(channel(x), wanted)
    assert set(heard) == set(channel.sites)
