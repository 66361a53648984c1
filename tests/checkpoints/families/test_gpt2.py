"""GPT-2: joined and turned matrices, names without a prefix, its GGUF."""

from __future__ import annotations

import torch
from safetensors.torch import load_file, save_file
from tests.checkpoints.parity import gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf

from assay.checkpoints import load
from assay.checkpoints.families.gpt2 import FAMILY

_GPT2 = {"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}

CASES = {
    "tied": _GPT2,
    "untied, narrow feed-forward": _GPT2 | {"tie_word_embeddings": False, "n_inner": 48, "activation_function": "relu"},
}
REFUSED = {
    "scale_attn_by_inverse_layer_idx": {"scale_attn_by_inverse_layer_idx": True},
    "scale_attn_weights false": {"scale_attn_weights": False},
    "add_cross_attention": {"add_cross_attention": True},
}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_the_first_checkpoints_have_no_prefix_and_keep_their_masks(tmp_path):
    theirs = random_model(_GPT2)
    theirs.save_pretrained(tmp_path)
    tensors = {
        name.removeprefix("transformer."): tensor for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    tensors["h.0.attn.bias"] = torch.ones(1, 1, 64, 64).tril()
    save_file(tensors, tmp_path / "model.safetensors")
    assert gap(load(tmp_path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


def test_gguf_files(tmp_path, own_cache):
    theirs = random_model(_GPT2)
    theirs.save_pretrained(tmp_path / "theirs")
    metadata = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 3,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-5,
    }
    path = write_gguf(tmp_path / "tiny.gguf", *gguf_of(load(tmp_path / "theirs"), FAMILY, metadata))
    assert gap(load(path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4
