"""Bloom: ALiBi, a norm over the embeddings, q, k and v joined head by head."""

from __future__ import annotations

import json

import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.parity import gap, random_model

from assay.checkpoints import load
from assay.checkpoints.families.bloom import FAMILY

_BLOOM = {"model_type": "bloom", "vocab_size": 96, "hidden_size": 32, "n_layer": 3, "n_head": 4}

CASES = {
    "four heads": _BLOOM,
    "six heads, untied": _BLOOM | {"hidden_size": 48, "n_head": 6, "tie_word_embeddings": False},
}
REFUSED = {"apply_residual_connection_post_layernorm": {"apply_residual_connection_post_layernorm": True}}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_names_and_config_of_the_published_files(tmp_path):
    theirs = random_model(_BLOOM)
    theirs.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    old = {key: value for key, value in raw.items() if key not in ("hidden_size", "n_head")}
    assert FAMILY.read(old | {"n_embed": 32, "num_attention_heads": 4}) == FAMILY.read(raw)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    assert gap(load(tmp_path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4
