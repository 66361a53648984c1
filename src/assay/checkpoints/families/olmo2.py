"""OLMo 2: Llama's shape with norms after the sublayers alone, and a norm over the whole width of queries and of keys.

seam: family
row: -
source: OLMo team 2024, 2 OLMo 2 Furious (arXiv:2501.00656)
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
    without_mlp_bias,
    write_decoder,
)
from assay.checkpoints.families.layout import Layout
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError


def read(raw: dict[str, Any]) -> TransformerConfig:
    if raw.get("clip_qkv") is not None:
        raise AssayError("OLMo with clip_qkv (bounded queries, keys and values) is not supported")
    raw = {"rms_norm_eps": 1e-5} | raw
    norm = {"kind": "rms", "eps": raw["rms_norm_eps"]}
    attention = {"qk_norm": norm, "qk_norm_whole": True, "position": read_rope(raw)}
    return read_decoder(
        raw, lambda layer: attention, tied=False, activation=raw.get("hidden_act", "silu"), norms="post"
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    own = {"qk_norm": None, "qk_norm_whole": False}
    written, attention = write_decoder(config, "olmo2", norms="post", own=own)
    norm = {"kind": "rms", "eps": config.norm.eps}
    if not attention["qk_norm_whole"] or {"kind": "rms", **(attention["qk_norm"] or {})} != norm:
        raise cannot("olmo2", f"qk_norm={attention['qk_norm']!r} (they mean {norm} over all heads)")
    usual_scale(config, "olmo2", written["head_dim"])
    if written.pop("head_dim") != config.width // written["num_attention_heads"]:
        raise cannot("olmo2", "heads that do not share out the width")
    without_mlp_bias(written, "olmo2")
    return written | {
        "architectures": ["Olmo2ForCausalLM"],
        "model_type": "olmo2",
        "rope_parameters": write_rope(attention["position"], "olmo2"),
    }


FAMILY = Family(
    name="olmo2",
    architectures=("Olmo2ForCausalLM",),
    model_types=("olmo2",),
    gguf_architecture="olmo2",
    read=read,
    write=write,
    folder=Layout(
        decoder_names(norm1_post="post_attention_layernorm", norm2_post="post_feedforward_layernorm"),
        ignored=r"rotary_emb\.inv_freq$",
        renamed=(OLD_NAMES,),
    ),
)
