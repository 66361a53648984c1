"""OPT: positions that begin at the third row, norms before or after, biases or none."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.parity import SHARED, gap, random_model

from assay.checkpoints import load, save
from assay.core.errors import AssayError

_OPT = SHARED | {"model_type": "opt", "ffn_dim": 48}

CASES = {
    "norms before": _OPT,
    "norms after the sums, untied": _OPT | {"do_layer_norm_before": False, "tie_word_embeddings": False},
    "no biases, GELU": _OPT | {"enable_bias": False, "activation_function": "gelu"},
    "no final norm": _OPT | {"_remove_final_layer_norm": True},
}
REFUSED = {
    "word_embed_proj_dim (350m)": {"word_embed_proj_dim": 16},
    "layer_norm_elementwise_affine false": {"layer_norm_elementwise_affine": False},
}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_the_first_two_rows_are_never_read(tmp_path):
    theirs = random_model(_OPT)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    rows = load_file(tmp_path / "theirs" / "model.safetensors")["model.decoder.embed_positions.weight"]
    assert rows.shape == (66, 32) and torch.equal(model.positions.weight, rows[2:])
    with pytest.raises(AssayError, match="the model has 64 positions; the text reaches 65"):
        model(torch.zeros(1, 65, dtype=torch.long))
    made = load_file(save(model, tmp_path / "ours") / "model.safetensors")["model.decoder.embed_positions.weight"]
    assert torch.equal(made[2:], rows[2:]) and not made[:2].any()


def test_names_without_a_prefix(tmp_path):
    theirs = random_model(_OPT)
    theirs.save_pretrained(tmp_path)
    tensors = {name.removeprefix("model."): t for name, t in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert gap(load(tmp_path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4
