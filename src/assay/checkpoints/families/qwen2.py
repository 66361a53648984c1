"""Qwen2 and Qwen2.5 (dense): Llama's shape with biases on q, k and v alone, and windows in upper layers if asked for.

seam: family
row: -
source: Qwen team 2024, Qwen2 technical report (arXiv:2407.10671)
object: FAMILY
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import GGUF_NAMES, Family, cannot, from_gguf
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
from assay.checkpoints.families.llama import GGUF_KEYS, gguf_rope
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig

if TYPE_CHECKING:
    from assay.checkpoints.gguf_file import GGUFFile

_DEFAULTS = {"num_key_value_heads": 32, "sliding_window": 4096, "max_position_embeddings": 32_768}


def read(raw: dict[str, Any]) -> TransformerConfig:
    raw = _DEFAULTS | raw
    kinds = raw.get("layer_types")
    window = raw["sliding_window"] if raw.get("use_sliding_window") else None

    def attention(layer: int) -> dict[str, Any]:
        slides = kinds[layer] == "sliding_attention" if kinds else layer >= raw.get("max_window_layers", 28)
        return {"bias": True, "out_bias": False, "position": read_rope(raw), "window": window if slides else None}

    return read_decoder(raw, attention, tied=False, activation=raw.get("hidden_act", "silu"))


def write(config: TransformerConfig) -> dict[str, Any]:
    written, attention = write_decoder(config, "qwen2", "window", own={"out_bias": None})
    if not written.pop("attention_bias") or attention["out_bias"] is not False:
        raise cannot("qwen2", "attention other than with biases on q, k and v alone")
    usual_scale(config, "qwen2", written["head_dim"])
    if written.pop("head_dim") != config.width // written["num_attention_heads"]:
        raise cannot("qwen2", "heads that do not share out the width")
    without_mlp_bias(written, "qwen2")
    kinds, window = windows(config, "qwen2")
    return written | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "layer_types": kinds,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "rope_parameters": write_rope(attention["position"], "qwen2"),
    }


def read_gguf(file: GGUFFile) -> dict[str, Any]:
    return from_gguf(file, "qwen2", GGUF_KEYS) | {"rope_parameters": gguf_rope(file, "qwen2")}


FAMILY = Family(
    name="qwen2",
    architectures=("Qwen2ForCausalLM",),
    model_types=("qwen2",),
    gguf_architecture="qwen2",
    read=read,
    write=write,
    read_gguf=read_gguf,
    folder=Layout(decoder_names(), ignored=r"rotary_emb\.inv_freq$", renamed=(OLD_NAMES,)),
    gguf=Layout(GGUF_NAMES),
)
