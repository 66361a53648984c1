"""The plain feed-forward by its formula, and as the limit of the gated one."""

import torch

from assay.parts.channels.gated import Gated
from assay.parts.channels.mlp import MLP


def test_formula():
    channel = MLP(6, hidden=10, activation="relu", bias=True).double()
    for p in channel.parameters():
        torch.nn.init.normal_(p)
    x = torch.randn(2, 3, 6, dtype=torch.float64)
    hidden = (x @ channel.up.weight.T + channel.up.bias).clamp(min=0)
    torch.testing.assert_close(channel(x), hidden @ channel.down.weight.T + channel.down.bias)


def test_a_gated_one_whose_other_branch_is_one_is_plain():
    plain, gated = MLP(6, hidden=10, bias=True), Gated(6, hidden=10, activation="gelu", bias=True)
    gated.gate.load_state_dict(plain.up.state_dict())
    gated.down.load_state_dict(plain.down.state_dict())
    torch.nn.init.zeros_(gated.up.weight)
    torch.nn.init.ones_(gated.up.bias)
    x = torch.randn(2, 3, 6)
    torch.testing.assert_close(gated(x), plain(x))
