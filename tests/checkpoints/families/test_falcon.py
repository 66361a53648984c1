"""Falcon: one key-value head or a few, one norm or two, joined in groups."""

from __future__ import annotations

import pytest
from tests.checkpoints.parity import SHARED, random_model

from assay.checkpoints import load, save
from assay.checkpoints.families.falcon import FAMILY
from assay.core.errors import AssayError

_FALCON = SHARED | {"model_type": "falcon"}
_NEW = _FALCON | {"new_decoder_architecture": True, "num_kv_heads": 2}

CASES = {
    "7B: one key-value head, one norm": _FALCON,
    "40B: two key-value heads, two norms": _NEW,
    "11B: two key-value heads, one norm": _NEW | {"num_ln_in_parallel_attn": 1, "ffn_hidden_size": 48},
    "every head its own keys, side by side, untied": _FALCON | {"multi_query": False, "tie_word_embeddings": False},
    "one after the other, biases": _FALCON | {"multi_query": False, "parallel_attn": False, "bias": True},
}
REFUSED = {
    "alibi (falcon-rw)": {"alibi": True},
    "two norms without new_decoder_architecture": {"num_ln_in_parallel_attn": 2},
    "new_decoder_architecture without parallel_attn": {"new_decoder_architecture": True, "parallel_attn": False},
}


def test_grouped_heads_in_sequential_blocks_are_refused(tmp_path):
    random_model(CASES["one after the other, biases"]).save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    for block in model.config.blocks:
        block.mixer.options["kv_heads"] = 2
    with pytest.raises(AssayError, match="falcon files cannot express heads that share a few keys"):
        save(model, tmp_path / "ours", family="falcon")


def test_a_width_that_heads_do_not_share_evenly_is_named():
    with pytest.raises(AssayError, match="a width of 34 to 4 heads"):
        FAMILY.read(_FALCON | {"hidden_size": 34})
