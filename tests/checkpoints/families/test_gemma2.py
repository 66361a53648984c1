"""Gemma 2: 1 + w, windows in every other layer, soft caps, its GGUF."""

from __future__ import annotations

import json

import pytest
import torch
from tests.checkpoints.parity import SHARED, gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf

from assay.checkpoints import load, save
from assay.checkpoints.families.gemma2 import FAMILY
from assay.core.errors import AssayError

_GEMMA2 = SHARED | {
    "model_type": "gemma2",
    "intermediate_size": 48,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 9.0,
}

CASES = {
    "windows, soft caps": _GEMMA2,
    "odd scale, one key-value head": _GEMMA2 | {"query_pre_attn_scalar": 24, "num_key_value_heads": 1},
    "no caps, biases, no window": _GEMMA2
    | {
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "attention_bias": True,
        "layer_types": ["full_attention"] * 3,
    },
}
REFUSED = {"use_bidirectional_attention": {"use_bidirectional_attention": True}}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_entries_left_out_mean_what_they_do_in_transformers(tmp_path):
    theirs = random_model(SHARED | {"model_type": "gemma2", "intermediate_size": 48})
    theirs.save_pretrained(tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    left = {key: whole[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size")}
    left |= {key: whole[key] for key in ("intermediate_size", "num_hidden_layers", "max_position_embeddings")}
    assert FAMILY.read(left) == FAMILY.read(whole)
    assert [block.mixer.options["window"] for block in FAMILY.read(left).blocks] == [4096, None, 4096]


def test_gguf_files(tmp_path, own_cache):
    theirs = random_model(_GEMMA2)
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
        "attention.sliding_window": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 9.0,
    }
    path = write_gguf(tmp_path / "tiny.gguf", *gguf_of(load(tmp_path / "theirs"), FAMILY, metadata))
    assert gap(load(path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


def test_what_its_files_cannot_express_is_refused(tmp_path):
    random_model(_GEMMA2).save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    model.config.blocks[0].mixer.options["window"] = 4
    with pytest.raises(AssayError, match="gemma2 files cannot express windows of different sizes"):
        save(model, tmp_path / "ours", family="gemma2")
