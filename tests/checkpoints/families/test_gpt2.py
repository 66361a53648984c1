"""GPT-2: joined and turned matrices."""

from __future__ import annotations

_GPT2 = {"model_type": "gpt2", "vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64}

CASES = {
    "tied": _GPT2,
    "untied, narrow feed-forward": _GPT2 | {"tie_word_embeddings": False, "n_inner": 48, "activation_function": "relu"},
}
