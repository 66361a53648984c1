"""The gated feed-forward by its formula, its limit, and its bad inputs."""

import pytest
import torch
import torch.nn.functional as F

from assay.core.errors import AssayError
from assay.parts.channels.common import ACTIVATIONS
from assay.parts.channels.gated import Gated

BY_HAND = {
    "silu": lambda x: x * torch.sigmoid(x),
    "swish": lambda x: x * torch.sigmoid(x),
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "gelu_new": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "gelu_pytorch_tanh": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
}
BY_HAND["gelu_fast"] = BY_HAND["gelu_new"]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_formula(activation, bias):
    channel = Gated(6, hidden=10, activation=activation, bias=bias).double()
    for p in channel.parameters():
        torch.nn.init.normal_(p)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    gate, up, down = ((m.weight, m.bias) for m in (channel.gate, channel.up, channel.down))
    wanted = F.linear(BY_HAND[activation](F.linear(x, *gate)) * F.linear(x, *up), *down)
    torch.testing.assert_close(channel(x), wanted)


def test_an_unknown_activation_is_refused_with_those_there_are():
    with pytest.raises(AssayError, match="activation 'tanhh' is unknown; there are silu, "):
        Gated(4, hidden=4, activation="tanhh")
