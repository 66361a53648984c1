"""Llama: config both ways, and its GGUF's order of rows."""

from __future__ import annotations

from tests.checkpoints.parity import SHARED

_LLAMA = SHARED | {"model_type": "llama", "intermediate_size": 48, "num_key_value_heads": 2}


def _rope(**rope):
    return _LLAMA | {"rope_parameters": {"rope_theta": 10_000.0} | rope}


CASES = {
    "2": _LLAMA | {"num_key_value_heads": 4},
    "grouped, tied": _LLAMA | {"tie_word_embeddings": True, "head_dim": 16},
    "biases": _LLAMA | {"attention_bias": True, "mlp_bias": True},
    "3.1 rope": _rope(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16
    ),
    "linear rope": _rope(rope_type="linear", factor=4.0),
    "dynamic rope": _rope(rope_type="dynamic", factor=2.0) | {"max_position_embeddings": 16},
    "yarn rope": _rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
}
