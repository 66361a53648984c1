"""Norms by their formulas, on the fused path and on the one that somebody listens to."""

import pytest
import torch

from assay.core.config import NormConfig
from assay.core.errors import AssayError
from assay.core.norms import Norm
from assay.core.sites import Tap


def by_hand(x, norm):
    if norm.config.kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    y = x / (x.square().mean(-1, keepdim=True) + norm.config.eps).sqrt() * norm.weight
    return y if norm.bias is None else y + norm.bias


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("listened", [False, True])
def test_formula(kind, bias, listened):
    norm = Norm(10, NormConfig(kind, 0.1, bias)).double()
    for p in norm.parameters():
        torch.nn.init.normal_(p)
    x, heard = torch.randn(3, 5, 10, dtype=torch.float64) + 2, []
    if listened:
        norm.tap = Tap("", {"scale": [lambda _, scale: heard.append(scale) or scale]})
    torch.testing.assert_close(norm(x), by_hand(x, norm), rtol=0, atol=1e-12)
    assert [h.shape for h in heard] == [(3, 5, 1)] * listened


def test_an_edited_scale_divides():
    norm = Norm(4, NormConfig("rms", 0.0)).double()
    norm.tap = Tap("", {"scale": [lambda _, scale: torch.full_like(scale, 2.0)]})
    x = torch.randn(2, 4, dtype=torch.float64)
    torch.testing.assert_close(norm(x), x / 2)


@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.filterwarnings("error")
def test_weights_stored_in_bfloat16_leave_activations_in_float32(kind):
    norm = Norm(8, NormConfig(kind, 1e-6, True)).bfloat16()
    x = torch.randn(3, 8)
    y = norm(x)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, by_hand(x, norm), rtol=0, atol=1e-5)


def test_an_unknown_kind_is_refused():
    with pytest.raises(AssayError, match="choose rms or layer"):
        Norm(4, NormConfig("batch"))
