"""Mistral: one window in all layers, or none."""

from __future__ import annotations

import pytest
from tests.checkpoints.parity import SHARED, random_model

from assay.checkpoints import load, save
from assay.checkpoints.families.mistral import FAMILY
from assay.core.errors import AssayError

_MISTRAL = SHARED | {"model_type": "mistral", "intermediate_size": 48, "num_key_value_heads": 2, "sliding_window": 8}

CASES = {
    "0.1, a window": _MISTRAL,
    "0.3, none": _MISTRAL | {"sliding_window": None, "head_dim": 16, "rope_parameters": {"rope_theta": 1e6}},
}
REFUSED = {"layer_types (Ministral)": {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}}


def test_a_config_that_says_nothing_of_the_window_means_the_first_version():
    said_nothing = {key: value for key, value in _MISTRAL.items() if key != "sliding_window"}
    config = FAMILY.read(said_nothing)
    assert {block.mixer.options["window"] for block in config.blocks} == {4096}
    assert FAMILY.read(said_nothing | {"sliding_window": None}).blocks[0].mixer.options["window"] is None


def test_windows_in_some_layers_are_refused(tmp_path):
    random_model(_MISTRAL).save_pretrained(tmp_path / "theirs")
    model = load(tmp_path / "theirs")
    for number, block in enumerate(model.config.blocks):
        block.mixer.options.update(window=8 if number else None)
    with pytest.raises(AssayError, match="mistral files cannot express a window in some layers only"):
        save(model, tmp_path / "ours", family="mistral")
