"""Qwen3: norms on queries and keys, windows in upper layers."""

from __future__ import annotations

from tests.checkpoints.parity import SHARED

_QWEN3 = SHARED | {"model_type": "qwen3", "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 16}

CASES = {
    "grouped": _QWEN3,
    "tied, biases": _QWEN3 | {"tie_word_embeddings": True, "attention_bias": True},
    "windows": _QWEN3 | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
}
