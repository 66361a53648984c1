"""Phi-3: joined matrices, a window, LongRoPE on both sides of the length it was trained at."""

from __future__ import annotations

import json

import pytest
from tests.checkpoints.parity import SHARED, random_model

from assay.checkpoints.families.phi3 import FAMILY
from assay.core.errors import AssayError

_PHI3 = SHARED | {"model_type": "phi3", "intermediate_size": 48, "num_key_value_heads": 2, "pad_token_id": None}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.5],
    "long_factor": [1.5, 2.0, 3.0, 7.0],
}

CASES = {
    "grouped": _PHI3,
    "a window": _PHI3 | {"num_key_value_heads": 4, "sliding_window": 8},
    "LongRoPE, texts as long as trained": _PHI3 | {"original_max_position_embeddings": 48, "rope_parameters": _LONG},
    "LongRoPE, longer texts": _PHI3 | {"original_max_position_embeddings": 16, "rope_parameters": _LONG},
    "4 mini: half of each head turns, tied": _PHI3
    | {
        "tie_word_embeddings": True,
        "original_max_position_embeddings": 16,
        "rope_parameters": _LONG
        | {"partial_rotary_factor": 0.5, "short_factor": [1.0, 1.2], "long_factor": [2.0, 5.0]},
    },
}
REFUSED = {"rope scaling other than LongRoPE's": {"rope_scaling": {"type": "ntk", "factor": 2.0}}}


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_configs_from_before_transformers_5(kind, tmp_path):
    random_model(CASES["LongRoPE, longer texts"]).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    new = FAMILY.read(raw)
    del raw["rope_parameters"]
    scaling = {"type": kind, "short_factor": _LONG["short_factor"], "long_factor": _LONG["long_factor"]}
    assert FAMILY.read(raw | {"rope_theta": 10_000.0, "rope_scaling": scaling}) == new


def test_a_config_without_divisors_names_them():
    with pytest.raises(AssayError, match="lacks short_factor, long_factor"):
        FAMILY.read(_PHI3 | {"rope_scaling": {"type": "longrope"}})
