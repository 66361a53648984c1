"""A mixture of experts against a loop over tokens, its limits, and its routing."""

from __future__ import annotations

import pytest
import torch

from assay.core.errors import AssayError
from assay.parts.channels.moe import MoE


def made(**options) -> MoE:
    torch.manual_seed(0)
    module = MoE(12, hidden=20, **options).double()
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return module


def test_equals_a_loop_over_tokens_forward_and_backward():
    module, x = made(), torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    wanted = torch.zeros_like(x)
    for b in range(2):
        for t in range(7):
            p = module.router(x[b, t]).softmax(-1)
            w, e = p.topk(2)
            w = w / w.sum()
            wanted[b, t] = sum(w[i] * module.experts[int(e[i])](x[b, t][None, None])[0, 0] for i in range(2))
    y = module(x)
    torch.testing.assert_close(y, wanted, rtol=0, atol=1e-12)
    wrt = [x, *module.parameters()]
    for one, other in zip(
        torch.autograd.grad(y.square().sum(), wrt), torch.autograd.grad(wanted.square().sum(), wrt), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def test_one_expert_is_the_plain_feed_forward():
    module, x = made(experts=1, top_k=1), torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(module(x), module.experts[0](x))
    assert module.routing.auxiliary.item() == pytest.approx(1)


def test_routing_tells_where_tokens_went_and_its_loss_moves_the_router():
    module, x = made(experts=3), torch.randn(2, 5, 12, dtype=torch.float64)
    module(x)
    assert module.routing.indices.shape == (2, 5, 2)
    torch.testing.assert_close(module.routing.weights.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(module.routing.auxiliary, module.router.weight)
    assert gradient.abs().sum() > 0


def test_more_choices_than_experts_is_refused():
    with pytest.raises(AssayError, match="top_k=5"):
        made(top_k=5)
