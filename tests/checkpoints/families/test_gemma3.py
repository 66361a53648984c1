"""Gemma 3: 1 + w, windows, two rope bases, soft caps, the text part of an image-and-text checkpoint, its GGUF."""

from __future__ import annotations

import functools
import json

import pytest
import torch
from tests.checkpoints.parity import SHARED, gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf
from transformers import Gemma3Config, Gemma3ForConditionalGeneration
from transformers.models.gemma3 import modeling_gemma3

from assay.checkpoints import load, save
from assay.checkpoints.families.gemma3 import FAMILY
from assay.core.errors import AssayError

_GEMMA3 = SHARED | {
    "model_type": "gemma3_text",
    "intermediate_size": 48,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}

CASES = {
    "windows": _GEMMA3,
    "odd scale, grouped": _GEMMA3 | {"query_pre_attn_scalar": 24, "num_key_value_heads": 2},
    "logit soft cap": _GEMMA3 | {"final_logit_softcapping": 9.0},
    "linear rope, biases": _GEMMA3
    | {
        "attention_bias": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5_000.0},
        },
    },
}
REFUSED = {"use_bidirectional_attention": {"use_bidirectional_attention": True}}
_TOKENS = torch.arange(40)[None] * 7 % 96


def test_soft_caps_of_scores(tmp_path, monkeypatch):
    # transformers reads the entry but does not hand it to its attention function, so the test does
    capped = functools.partial(modeling_gemma3.eager_attention_forward, softcap=1.5)
    theirs = random_model(_GEMMA3 | {"attn_logit_softcapping": 1.5})
    plain = theirs(_TOKENS).logits
    monkeypatch.setattr(modeling_gemma3, "eager_attention_forward", capped)
    theirs.save_pretrained(tmp_path / "theirs")
    wanted = theirs(_TOKENS).logits
    assert gap(plain, wanted) > 1e-2
    assert gap(load(tmp_path / "theirs")(_TOKENS)[0], wanted) < 1e-4


def test_configs_from_before_transformers_5(tmp_path):
    theirs = random_model(CASES["linear rope, biases"])
    theirs.save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    new = FAMILY.read(raw)
    del raw["rope_parameters"], raw["layer_types"]
    old = {
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 5_000.0,
        "rope_scaling": {"type": "linear", "factor": 8.0},
    }
    assert FAMILY.read(raw | old | {"sliding_window_pattern": 2}).blocks[:2] == new.blocks[:2]


def test_the_text_part_of_an_image_and_text_checkpoint(tmp_path):
    text = {key: value for key, value in _GEMMA3.items() if key != "model_type"}
    vision = {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    theirs = Gemma3ForConditionalGeneration(
        Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=1)
    ).eval()
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    with torch.no_grad():
        assert gap(ours(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


def test_gguf_files(tmp_path, own_cache):
    theirs = random_model(
        _GEMMA3 | {"layer_types": ["sliding_attention"] * 5 + ["full_attention"], "num_hidden_layers": 6}
    )
    theirs.save_pretrained(tmp_path / "theirs")
    reference = load(tmp_path / "theirs")
    path = write_gguf(tmp_path / "tiny.gguf", *gguf_of(reference, FAMILY, _METADATA))
    assert gap(load(path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


_METADATA = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 6,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.key_length": 16,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "attention.sliding_window": 8,
    "rope.freq_base": 1_000_000.0,
}


def test_what_its_files_cannot_express_is_refused(tmp_path):
    theirs = random_model(_GEMMA3)
    theirs.save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    model.config.blocks[0].mixer.options["window"] = 4
    with pytest.raises(AssayError, match="gemma3 files cannot express sliding_attention layers with different windows"):
        save(model, tmp_path / "ours", family="gemma3")
