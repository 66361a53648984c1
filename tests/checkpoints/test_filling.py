"""Hollow models: a shape without memory, but with everything that is computed rather than loaded."""

from __future__ import annotations

import pytest
import torch

from assay.checkpoints.filling import fill, hollow
from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.transformer import Transformer


def _config(width, vocabulary=50):
    attention = Spec("softmax", {"heads": 2, "position": {"part": "rope", "options": {}}})
    return TransformerConfig(vocabulary, width, (BlockConfig(attention, Spec("gated", {"hidden": 4 * width})),))


def test_matrices_of_a_hollow_model_have_no_memory():
    model = hollow(_config(1 << 14, 1 << 18))  # 4 G numbers of embedding alone
    stored = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    assert sum(p.numel() for p in model.parameters()) > 1 << 32
    assert sum(stored.values()) < 1 << 20


def test_what_is_computed_is_there_and_right():
    q, positions = torch.randn(1, 2, 5, 4), torch.arange(5)[None]
    whole, empty = (make(_config(8)).blocks[0].mixer.position for make in (Transformer, hollow))
    assert torch.equal(empty.rotate(q, q, positions)[0], whole.rotate(q, q, positions)[0])


def test_a_filled_model_is_the_one_its_tensors_come_from():
    whole = Transformer(_config(8)).eval()
    filled = fill(hollow(_config(8)), whole.state_dict(), torch.device("cpu"), torch.float32)
    tokens = torch.arange(7)[None]
    assert torch.equal(filled(tokens)[0], whole(tokens)[0])
    assert filled.embed.weight.data_ptr() == whole.embed.weight.data_ptr()


def test_a_tensor_too_few_is_an_error_and_never_a_hollow_one():
    tensors = Transformer(_config(8)).state_dict()
    del tensors["embed.weight"]
    with pytest.raises(RuntimeError, match="embed.weight"):
        fill(hollow(_config(8)), tensors, torch.device("cpu"), torch.float32)


def test_making_models_afterwards_is_as_ever():
    hollow(_config(8))
    assert Transformer(_config(8)).embed.weight.std() > 0
    assert torch.empty(3, 4).stride() == (4, 1)
