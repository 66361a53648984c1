"""Qwen3 (dense): Llama's shape with an RMSNorm on every head's query and key.

seam: family
row: -
source: Qwen team 2025, Qwen3 technical report (arXiv:2505.09388)
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


def read(raw: dict[str, Any]) -> TransformerConfig:
    window = raw.get("sliding_window") if raw.get("use_sliding_window") else None
    kinds = raw.get("layer_types")
    norm = {"kind": "rms", "eps": raw.get("rms_norm_eps", 1e-6)}

    def attention(layer: int) -> dict[str, Any]:
        slides = kinds[layer] == "sliding_attention" if kinds else layer >= raw.get("max_window_layers", 28)
        return {"qk_norm": norm, "position": read_rope(raw), "window": window if slides else None}

    return read_decoder(raw, attention, tied=False, head_dim=128, activation=raw.get("hidden_act", "silu"))


def write(config: TransformerConfig) -> dict[str, Any]:
    norm = {"kind": "rms", "eps": config.norm.eps}
    written, attention = write_decoder(config, "qwen3", "window", own={"qk_norm": None})
    if attention["qk_norm"] is None or {"kind": "rms", **attention["qk_norm"]} != norm:
        raise cannot("qwen3", f"qk_norm={attention['qk_norm']!r} (they mean {norm})")
    usual_scale(config, "qwen3", written["head_dim"])
    without_mlp_bias(written, "qwen3")
    kinds, window = windows(config, "qwen3")
    return written | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "layer_types": kinds,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "rope_parameters": write_rope(attention["position"], "qwen3"),
    }


def read_gguf(file: GGUFFile) -> dict[str, Any]:
    return from_gguf(file, "qwen3", GGUF_KEYS) | {"rope_parameters": gguf_rope(file, "qwen3")}


FAMILY = Family(
    name="qwen3",
    architectures=("Qwen3ForCausalLM",),
    model_types=("qwen3",),
    gguf_architecture="qwen3",
    read=read,
    write=write,
    read_gguf=read_gguf,
    folder=Layout(decoder_names(), ignored=r"rotary_emb\.inv_freq$", renamed=(OLD_NAMES,)),
    gguf=Layout(GGUF_NAMES),
)
