"""Eight bits: half a step of error at most; a model of int8 weights is smaller and near."""

from __future__ import annotations

import torch

from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer
from assay.efficiency.quantize.int8 import Int8
from assay.efficiency.quantize.weights import quantize_weights, weight_bytes


def test_error_is_half_a_step_at_most():
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
    step = x.abs().amax(-1, keepdim=True) / 127
    assert ((Int8().decode(Int8().encode(x)) - x).abs() <= step / 2 * 1.0001).all()


def test_a_model_with_int8_weights_is_smaller_near_and_a_copy():
    torch.manual_seed(0)
    block = BlockConfig(Spec("softmax", {"heads": 4}), Spec("gated", {"hidden": 256}))
    model = Transformer(TransformerConfig(30, 64, (block,) * 2))
    tokens = torch.randint(30, (2, 9))
    with torch.no_grad():
        before, _ = model(tokens)
        made = quantize_weights(model, Int8())
        after, _ = made(tokens)
        assert torch.equal(model(tokens)[0], before)
    embedding = model.embed.weight.numel() * 4
    assert weight_bytes(made) - embedding < 0.3 * (weight_bytes(model) - embedding)
    assert 0 < (after - before).norm() < 0.05 * before.norm()
