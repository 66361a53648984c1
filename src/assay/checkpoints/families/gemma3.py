"""Gemma 3, text: norms before and after each sublayer, windows of local layers between global ones, two rope bases, QK-norm.

A folder stores w where a norm multiplies by 1 + w; GGUF files hold 1 + w already. Of an image-and-text checkpoint the text part is read.

seam: family
row: -
source: Gemma team 2025, Gemma 3 technical report (arXiv:2503.19786)
object: FAMILY
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import GGUF_NAMES, Family, cannot, from_gguf
from assay.checkpoints.families.decoder import (
    OLD_NAMES,
    decoder_names,
    minus_one,
    plus_one,
    read_decoder,
    scale_of,
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

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
_TEXT_DEFAULTS = {  # an image-and-text config leaves out what is as in the 4B text model
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
}


def read(raw: dict[str, Any]) -> TransformerConfig:
    raw = _TEXT_DEFAULTS | raw["text_config"] if "text_config" in raw else raw
    if raw.get("use_bidirectional_attention"):
        raise AssayError("Gemma 3 with use_bidirectional_attention (an embedding model) is not supported")
    every = raw.get("sliding_window_pattern", 6)
    layers = raw.get("layer_types") or [
        _LOCAL if (i + 1) % every else _GLOBAL for i in range(raw.get("num_hidden_layers", 0))
    ]
    head_dim = raw.get("head_dim") or 256
    own = {
        "scale": raw.get("query_pre_attn_scalar", 256) ** -0.5,
        "softcap": raw.get("attn_logit_softcapping"),
        "qk_norm": {"kind": "rms", "eps": raw.get("rms_norm_eps", 1e-6)},
    }
    local = {key: raw[key] for key in ("rope_parameters",) if raw.get(key)} | {
        "rope_theta": raw.get("rope_local_base_freq")
    }

    def attention(layer: int) -> dict[str, Any]:
        if layers[layer] == _LOCAL:
            window = raw.get("sliding_window") or 4096
            return own | {"window": window, "position": read_rope(local, 10_000.0, _LOCAL)}
        return own | {"window": None, "position": read_rope(raw, 1_000_000.0, _GLOBAL)}

    return read_decoder(
        raw,
        attention,
        tied=True,
        head_dim=head_dim,
        activation=raw.get("hidden_activation") or "gelu_pytorch_tanh",
        norms="sandwich",
        embed_scale=raw["hidden_size"] ** 0.5,
        logit_softcap=raw.get("final_logit_softcapping"),
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    meant = {"embed_scale": config.width**0.5, "logit_softcap": config.logit_softcap}
    written, attention = write_decoder(
        config, "gemma3", "window", "position", norms="sandwich", own={"softcap": None, "qk_norm": None}, **meant
    )
    norm = {"kind": "rms", "eps": config.norm.eps}
    if attention["qk_norm"] is None or {"kind": "rms", **attention["qk_norm"]} != norm:
        raise cannot("gemma3", f"qk_norm={attention['qk_norm']!r} (they mean {norm})")
    without_mlp_bias(written, "gemma3")
    kinds = [_LOCAL if block.mixer.options.get("window") else _GLOBAL for block in config.blocks]
    scale = scale_of(config, "gemma3", written["head_dim"]) ** -2
    return written | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": written.pop("hidden_act"),
        "layer_types": kinds,
        "sliding_window": _one(config, "window", _LOCAL, kinds) or 4096,
        "query_pre_attn_scalar": round(scale) if abs(scale - round(scale)) < 1e-6 else scale,
        "attn_logit_softcapping": attention["softcap"],
        "final_logit_softcapping": config.logit_softcap,
        "rope_parameters": {kind: _rope(config, kind, kinds) for kind in (_GLOBAL, _LOCAL)},
    }


def _one(config: TransformerConfig, option: str, kind: str, kinds: list[str]) -> Any:
    """The option that all layers of a kind share, None if there is no such layer."""
    found = [block.mixer.options.get(option) for block, of in zip(config.blocks, kinds, strict=True) if of == kind]
    if any(value != found[0] for value in found):
        raise cannot("gemma3", f"{kind} layers with different {option}s")
    return found[0] if found else None


def _rope(config: TransformerConfig, kind: str, kinds: list[str]) -> dict[str, Any]:
    if kind not in kinds:
        return {"rope_type": "default", "rope_theta": 1_000_000.0 if kind == _GLOBAL else 10_000.0}
    return write_rope(_one(config, "position", kind, kinds), "gemma3")


def read_gguf(file: GGUFFile) -> dict[str, Any]:
    raw = from_gguf(file, "gemma3", GGUF_KEYS | {"attention.sliding_window": "sliding_window"})
    rope = {"rope_theta": 1_000_000.0} | gguf_rope(file, "gemma3")
    raw["rope_parameters"] = {_GLOBAL: rope, _LOCAL: {"rope_theta": 10_000.0}}
    # the file does not say it; of the published sizes only the 27B scales by its width per head
    wide = raw["num_hidden_layers"] == 62
    raw["query_pre_attn_scalar"] = raw["hidden_size"] / raw["num_attention_heads"] if wide else raw.get("head_dim", 256)
    return raw


FAMILY = Family(
    name="gemma3",
    architectures=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    model_types=("gemma3_text", "gemma3"),
    gguf_architecture="gemma3",
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
        ignored=r"rotary_emb|^(model\.)?(vision_tower|multi_modal_projector)\.",
        renamed=(
            (r"^(model\.)?language_model\.(model\.)?", "model."),
            (r"^model\.lm_head", "lm_head"),
            OLD_NAMES,
        ),
    ),
    gguf=Layout(GGUF_NAMES),
)
