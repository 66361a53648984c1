"""Phi-3 and Phi-4-mini: Llama's shape with q, k and v in one matrix, gate and up in another; long texts by LongRoPE.

seam: family
row: -
source: Abdin et al. 2024, Phi-3 technical report (arXiv:2404.14219)
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
from assay.checkpoints.families.layout import Layout, Part, fused, one_after_another
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig

_DEFAULTS = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096}
_OLD_KINDS = {"su": "longrope", "yarn": "longrope"}  # what the first files called it


def read(raw: dict[str, Any]) -> TransformerConfig:
    raw = _DEFAULTS | raw
    rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    kind = rope.pop("rope_type", rope.pop("type", "default"))
    raw["rope_parameters"] = {"partial_rotary_factor": raw.get("partial_rotary_factor", 1.0)} | rope
    raw["rope_parameters"]["rope_type"] = _OLD_KINDS.get(kind, kind)
    attention = {"position": read_rope(raw, partial=True), "window": raw.get("sliding_window")}
    return read_decoder(raw, lambda layer: attention, tied=False, activation=raw.get("hidden_act", "silu"))


def write(config: TransformerConfig) -> dict[str, Any]:
    written, attention = write_decoder(config, "phi3", "window")
    usual_scale(config, "phi3", written["head_dim"])
    if written.pop("head_dim") != config.width // written["num_attention_heads"]:
        raise cannot("phi3", "heads that do not share out the width")
    without_mlp_bias(written, "phi3")
    if written.pop("attention_bias"):
        raise cannot("phi3", "attention with bias")
    kinds, window = windows(config, "phi3")
    if len(set(kinds)) > 1:
        raise cannot("phi3", "a window in some layers only")
    rope = {"partial_rotary_factor": 1.0} | write_rope(attention["position"], "phi3", partial=True)
    if rope["rope_type"] not in ("default", "longrope"):
        raise cannot("phi3", f"rope scaling {rope['rope_type']!r}")
    return written | {
        "architectures": ["Phi3ForCausalLM"],
        "model_type": "phi3",
        "sliding_window": window,
        "original_max_position_embeddings": rope.get("original_max_position_embeddings", config.context),
        "rope_parameters": rope,
    }


_NAMES = decoder_names() | fused("model.layers.*.self_attn.qkv_proj", one_after_another)
_NAMES |= {
    f"blocks.*.channel.{ours}": Part("model.layers.*.mlp.gate_up_proj", index, 2, 0)
    for index, ours in enumerate(("gate", "up"))
}

FAMILY = Family(
    name="phi3",
    architectures=("Phi3ForCausalLM",),
    model_types=("phi3",),
    gguf_architecture="phi3",
    read=read,
    write=write,
    folder=Layout(_NAMES, ignored=r"rotary_emb\.inv_freq$", renamed=(OLD_NAMES,)),
)
