"""Mistral: Llama's shape, with one sliding window in all layers (version 0.1) or none.

Its GGUF files say that they are Llama's; llama.cpp knows no window there, so neither does what is loaded from one.

seam: family
row: -
source: Jiang et al. 2023, Mistral 7B (arXiv:2310.06825)
object: FAMILY
"""

from __future__ import annotations

from typing import Any

from assay.checkpoints.families.common import Family, cannot
from assay.checkpoints.families.decoder import (
    OLD_NAMES,
    decoder_names,
    read_decoder,
    usual_scale,
    windows,
    without_mlp_bias,
    write_decoder,
)
from assay.checkpoints.families.layout import Layout
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

_DEFAULTS = {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131_072}


def read(raw: dict[str, Any]) -> TransformerConfig:
    if raw.get("layer_types"):
        raise AssayError("Mistral with layer_types (windows in some layers, as Ministral has) is not supported")
    raw = _DEFAULTS | raw
    attention = {"position": read_rope(raw), "window": raw["sliding_window"]}
    return read_decoder(raw, lambda layer: attention, tied=False, activation=raw.get("hidden_act", "silu"))


def write(config: TransformerConfig) -> dict[str, Any]:
    written, attention = write_decoder(config, "mistral", "window")
    usual_scale(config, "mistral", written["head_dim"])
    without_mlp_bias(written, "mistral")
    if written.pop("attention_bias"):
        raise cannot("mistral", "attention with bias")
    kinds, window = windows(config, "mistral")
    if len(set(kinds)) > 1:
        raise cannot("mistral", "a window in some layers only")
    return written | {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": window,
        "rope_parameters": write_rope(attention["position"], "mistral"),
    }


FAMILY = Family(
    name="mistral",
    architectures=("MistralForCausalLM",),
    model_types=("mistral",),
    gguf_architecture=None,
    read=read,
    write=write,
    folder=Layout(decoder_names(), ignored=r"rotary_emb\.inv_freq$", renamed=(OLD_NAMES,)),
)
