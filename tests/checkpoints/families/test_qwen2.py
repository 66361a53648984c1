"""Qwen2: biases on q, k and v alone, windows in upper layers, its GGUF."""

from __future__ import annotations

import pytest
import torch
from tests.checkpoints.parity import SHARED, gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf

from assay.checkpoints import load, save
from assay.checkpoints.families.qwen2 import FAMILY
from assay.core.errors import AssayError

_QWEN2 = SHARED | {"model_type": "qwen2", "intermediate_size": 48, "num_key_value_heads": 2}

CASES = {
    "grouped": _QWEN2,
    "tied, yarn rope": _QWEN2
    | {
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_theta": 1e6,
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "windows": _QWEN2 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
}
REFUSED = {"rope scaling of pictures (mrope)": {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_gguf_files(tmp_path, own_cache):
    theirs = random_model(_QWEN2 | {"rope_parameters": {"rope_theta": 1_000_000.0, "rope_type": "default"}})
    theirs.save_pretrained(tmp_path / "theirs")
    metadata = {
        "context_length": 64,
        "embedding_length": 32,
        "block_count": 3,
        "feed_forward_length": 48,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1_000_000.0,
    }
    path = write_gguf(tmp_path / "tiny.gguf", *gguf_of(load(tmp_path / "theirs"), FAMILY, metadata))
    assert gap(load(path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


@pytest.mark.parametrize("other", ["llama", "qwen3", "mistral"])
def test_no_other_family_takes_its_biases(tmp_path, other):
    random_model(_QWEN2).save_pretrained(tmp_path / "theirs")
    with pytest.raises(AssayError, match=f"{other} files cannot express biases on q, k and v without one"):
        save(load(tmp_path / "theirs"), tmp_path / "ours", family=other)
