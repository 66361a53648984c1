"""Qwen3: norms on queries and keys, windows in upper layers, its GGUF."""

from __future__ import annotations

import torch
from tests.checkpoints.parity import SHARED, gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf

from assay.checkpoints import load
from assay.checkpoints.families.qwen3 import FAMILY

_QWEN3 = SHARED | {"model_type": "qwen3", "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16}

CASES = {
    "grouped": _QWEN3,
    "tied, biases": _QWEN3 | {"tie_word_embeddings": True, "attention_bias": True},
    "windows": _QWEN3 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
}
REFUSED = {"rope scaling of other kinds": {"rope_scaling": {"type": "ntk", "factor": 2.0}}}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_gguf_files(tmp_path, own_cache):
    theirs = random_model(_QWEN3 | {"rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"}})
    theirs.save_pretrained(tmp_path / "theirs")
    metadata = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 3,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1_000_000.0,
    }
    path = write_gguf(tmp_path / "tiny.gguf", *gguf_of(load(tmp_path / "theirs"), FAMILY, metadata))
    assert gap(load(path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


def test_windows_begin_at_a_layer():
    config = FAMILY.read(CASES["windows"])
    assert [block.mixer.options["window"] for block in config.blocks] == [None, 8, 8]
