"""Gemma 2: norms before and after each sublayer, a window in every other layer, capped scores and logits.

A folder stores w where a norm multiplies by 1 + w; GGUF files hold 1 + w already.

seam: family
row: -
source: Gemma team 2024, Gemma 2 (arXiv:2408.00118)
object: FAMILY
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import GGUF_NAMES, Family, from_gguf
from assay.checkpoints.families.decoder import (
    OLD_NAMES,
    decoder_names,
    minus_one,
    plus_one,
    read_decoder,
    scale_of,
    windows,
    without_mlp_bias,
    write_decoder,
)
from assay.checkpoints.families.layout import Layout
from assay.checkpoints.families.llama import GGUF_KEYS, gguf_rope
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.checkpoints.gguf_file import GGUFFile

_LOCAL = "sliding_attention"
_DEFAULTS = {
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "max_position_embeddings": 8192,
}


def read(raw: dict[str, Any]) -> TransformerConfig:
    if raw.get("use_bidirectional_attention"):
        raise AssayError("Gemma 2 with use_bidirectional_attention (an embedding model) is not supported")
    raw = _DEFAULTS | raw
    kinds = raw.get("layer_types")

    def attention(layer: int) -> dict[str, Any]:
        local = kinds[layer] == _LOCAL if kinds else layer % 2 == 0
        return {
            "scale": raw["query_pre_attn_scalar"] ** -0.5,
            "softcap": raw["attn_logit_softcapping"],
            "window": raw["sliding_window"] if local else None,
            "position": read_rope(raw),
        }

    return read_decoder(
        raw,
        attention,
        tied=True,
        head_dim=256,
        activation=raw.get("hidden_activation") or "gelu_pytorch_tanh",
        norms="sandwich",
        embed_scale=raw["hidden_size"] ** 0.5,
        logit_softcap=raw["final_logit_softcapping"],
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    meant = {"embed_scale": config.width**0.5, "logit_softcap": config.logit_softcap}
    written, attention = write_decoder(config, "gemma2", "window", norms="sandwich", own={"softcap": None}, **meant)
    without_mlp_bias(written, "gemma2")
    kinds, window = windows(config, "gemma2")
    scale = scale_of(config, "gemma2", written["head_dim"]) ** -2
    return written | {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": written.pop("hidden_act"),
        "layer_types": kinds,
        "sliding_window": window or 4096,
        "query_pre_attn_scalar": round(scale) if abs(scale - round(scale)) < 1e-6 else scale,
        "attn_logit_softcapping": attention["softcap"],
        "final_logit_softcapping": config.logit_softcap,
        "rope_parameters": write_rope(attention["position"], "gemma2"),
    }


def read_gguf(file: GGUFFile) -> dict[str, Any]:
    keys = {
        "attention.sliding_window?": "sliding_window",
        "attn_logit_softcapping?": "attn_logit_softcapping",
        "final_logit_softcapping?": "final_logit_softcapping",
    }
    raw = from_gguf(file, "gemma2", GGUF_KEYS | keys) | {"rope_parameters": gguf_rope(file, "gemma2")}
    # the file does not say it; of the published sizes only the 27B scales by its width per head
    wide = raw["num_hidden_layers"] == 46
    raw["query_pre_attn_scalar"] = raw["hidden_size"] / raw["num_attention_heads"] if wide else raw.get("head_dim", 256)
    return raw


FAMILY = Family(
    name="gemma2",
    architectures=("Gemma2ForCausalLM",),
    model_types=("gemma2",),
    gguf_architecture="gemma2",
    read=read,
    write=write,
    read_gguf=read_gguf,
    folder=Layout(
        decoder_names(
            norm1_post="post_attention_layernorm",
            norm2="pre_feedforward_layernorm",
            norm2_post="post_feedforward_layernorm",
        ),
        fold=plus_one,
        unfold=minus_one,
        ignored=r"rotary_emb",
        renamed=(OLD_NAMES,),
    ),
    gguf=Layout(GGUF_NAMES),
)
