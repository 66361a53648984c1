"""OLMo 2: norms after the sublayers, and over all heads of a query."""

from __future__ import annotations

import pytest
from tests.checkpoints.parity import SHARED, random_model

from assay.checkpoints import load, save
from assay.core.errors import AssayError

_OLMO2 = SHARED | {"model_type": "olmo2", "intermediate_size": 48}

CASES = {
    "plain": _OLMO2,
    "grouped, biases, tied": _OLMO2 | {"num_key_value_heads": 2, "attention_bias": True, "tie_word_embeddings": True},
}
REFUSED = {"clip_qkv": {"clip_qkv": 8.0}}


@pytest.mark.parametrize("other", ["qwen3", "gemma3"])
def test_no_family_with_norms_on_single_heads_takes_it(tmp_path, other):
    random_model(_OLMO2).save_pretrained(tmp_path / "theirs")
    with pytest.raises(AssayError, match=f"{other} files cannot express"):
        save(load(tmp_path / "theirs"), tmp_path / "ours", family=other)
