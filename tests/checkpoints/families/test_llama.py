"""Llama: old spellings of its config, and its GGUF's order of rows and rope divisors."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from tests.checkpoints.parity import SHARED, gap, random_model
from tests.checkpoints.tiny_gguf import gguf_of, write_gguf

from assay.checkpoints import load, save
from assay.checkpoints.families.llama import FAMILY
from assay.core.config import BlockConfig, Spec, TransformerConfig
from assay.core.errors import AssayError
from assay.core.transformer import Transformer

_LLAMA = SHARED | {"model_type": "llama", "intermediate_size": 48, "num_key_value_heads": 2}


def _rope(**rope):
    return _LLAMA | {"rope_parameters": {"rope_theta": 10_000.0} | rope}


_RULE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}

CASES = {
    "2": _LLAMA | {"num_key_value_heads": 4},
    "grouped, tied": _LLAMA | {"tie_word_embeddings": True, "head_dim": 16},
    "biases": _LLAMA | {"attention_bias": True, "mlp_bias": True},
    "3.1 rope": _rope(rope_type="llama3", original_max_position_embeddings=16, **_RULE),
    "linear rope": _rope(rope_type="linear", factor=4.0),
    "dynamic rope": _rope(rope_type="dynamic", factor=2.0) | {"max_position_embeddings": 16},
    "LongRoPE": _rope(
        rope_type="longrope",
        factor=4.0,
        original_max_position_embeddings=16,
        short_factor=[1.0, 1.1, 1.2, 1.5],
        long_factor=[1.5, 2.0, 3.0, 7.0],
    ),
    "yarn rope": _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
}
REFUSED = {
    "rope scaling of other kinds": {"rope_scaling": {"type": "ntk", "factor": 2.0}},
    "partial_rotary_factor": {"partial_rotary_factor": 0.5},
}
_TOKENS = torch.arange(40)[None] * 7 % 96
_METADATA = {
    "context_length": 64,
    "embedding_length": 32,
    "block_count": 3,
    "feed_forward_length": 48,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.freq_base": 500_000.0,
    "rope.dimension_count": 8,
}


@pytest.mark.parametrize("label", ["2", "3.1 rope", "linear rope", "dynamic rope", "yarn rope"])
def test_configs_from_before_transformers_5(label, tmp_path):
    random_model(CASES[label]).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    new = FAMILY.read(raw)
    rope = raw.pop("rope_parameters")
    old = {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type")} | rope}
    if old["rope_scaling"] == {"type": "default"}:
        old["rope_scaling"] = None
    assert FAMILY.read(raw | old) == new


def test_rope_of_an_unknown_kind_is_refused():
    with pytest.raises(AssayError, match="rope scaling 'proportional' is not supported; there are default, linear"):
        FAMILY.read(_rope(rope_type="proportional", factor=2.0))


def test_a_config_without_a_size_names_it():
    with pytest.raises(AssayError, match="lacks intermediate_size"):
        FAMILY.read(SHARED | {"model_type": "llama"})


def _neighbours(name, tensor):
    """What llama.cpp's converter does to q and k."""
    heads = {"q": 4, "k": 2}.get(name.split(".")[-2])
    return tensor if heads is None else tensor.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(tensor.shape)


def _saved_gguf(folder, config, **extra):
    theirs = random_model(config)
    theirs.save_pretrained(folder / "theirs")
    architecture, metadata, tensors = gguf_of(load(folder / "theirs"), FAMILY, _METADATA, _neighbours)
    return theirs, write_gguf(folder / "tiny.gguf", architecture, metadata, tensors | extra)


def test_gguf_rows_are_put_back_in_order(tmp_path, own_cache):
    theirs, path = _saved_gguf(tmp_path, _rope(rope_theta=500_000.0))
    assert gap(load(path)(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


def test_gguf_divisors_give_llama_3_1_rope(tmp_path, own_cache):
    base = 500_000.0 ** (-np.arange(4) / 4)
    turns = 8192 / (2 * math.pi / base)
    smooth = (turns - 1) / 3
    divisors = np.where(turns > 4, 1, np.where(turns < 1, 32, 1 / ((1 - smooth) / 32 + smooth)))
    config = _rope(
        rope_theta=500_000.0, rope_type="llama3", original_max_position_embeddings=8192, **_RULE | {"factor": 32.0}
    )
    theirs, path = _saved_gguf(tmp_path, config, **{"rope_freqs.weight": divisors})
    model = load(path)
    scaling = model.config.blocks[0].mixer.options["position"]["options"]["scaling"]
    assert scaling == {"kind": "llama3", "factor": 32.0, "low": 1.0, "high": 4.0, "original": 8192}
    assert gap(model(_TOKENS)[0], theirs(_TOKENS).logits) < 1e-4


def test_gguf_divisors_of_another_rule_are_refused(tmp_path, own_cache):
    _, path = _saved_gguf(tmp_path, _LLAMA, **{"rope_freqs.weight": np.array([1.0, 3.0, 5.0, 7.0])})
    with pytest.raises(AssayError, match="rope_freqs do not follow Llama 3's rule"):
        load(path)


def test_a_model_built_here_is_saved_and_loaded(tmp_path):
    options = {"heads": 2, "position": {"part": "rope", "options": {}}}
    block = BlockConfig(Spec("softmax", options), Spec("gated", {"hidden": 12}))
    model = Transformer(TransformerConfig(vocab_size=20, width=8, blocks=(block, block), tied=False)).eval()
    again = load(save(model, tmp_path / "made"))
    tokens = torch.arange(9)[None]
    assert again.family == "llama" and torch.equal(model(tokens)[0], again(tokens)[0])


def test_heads_that_turn_in_part_are_not_written_as_whole_ones(tmp_path):
    options = {"heads": 2, "position": {"part": "rope", "options": {"fraction": 0.5}}}
    block = BlockConfig(Spec("softmax", options), Spec("gated", {"hidden": 12}))
    model = Transformer(TransformerConfig(vocab_size=20, width=8, blocks=(block, block), tied=False)).eval()
    with pytest.raises(AssayError, match="llama files cannot express heads that turn in part"):
        save(model, tmp_path / "made", family="llama")
    again, tokens = load(save(model, tmp_path / "made")), torch.arange(9)[None]
    assert again.family == "phi3" and torch.equal(model(tokens)[0], again(tokens)[0])


def test_a_model_that_its_files_cannot_express_is_refused(tmp_path):
    block = BlockConfig(Spec("softmax", {"heads": 2}), Spec("gated", {"hidden": 12}), parallel=True)
    model = Transformer(TransformerConfig(vocab_size=20, width=8, blocks=(block,)))
    with pytest.raises(AssayError, match="llama files cannot express blocks that are not pre-norm one after the other"):
        save(model, tmp_path / "made", family="llama")
    assert not (tmp_path / "made").exists()
