"""Falcon: rope, one key-value head or a few, attention and feed-forward side by side under one norm (7B, 11B) or two (40B, 180B).

seam: family
row: -
source: Almazrouei et al. 2023, The Falcon series (arXiv:2311.16867)
object: FAMILY
"""

from __future__ import annotations

from typing import Any

from assay.checkpoints.families.common import Family, cannot, required
from assay.checkpoints.families.layered import block_names, layered, taken_apart
from assay.checkpoints.families.layout import Layout, by_heads, fused
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError


def read(raw: dict[str, Any]) -> TransformerConfig:
    raw = raw | ({"hidden_size": raw["n_embed"]} if raw.get("n_embed") else {})
    width, heads, layers, vocabulary = required(
        raw, "hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size"
    )
    if raw.get("alibi"):
        raise AssayError(
            "Falcon with alibi (falcon-rw) is not supported: it was trained with biases rounded to bfloat16"
        )
    new, side_by_side = bool(raw.get("new_decoder_architecture", False)), bool(raw.get("parallel_attn", True))
    norms = raw.get("num_ln_in_parallel_attn") or (2 if new else 1)
    if (new and not side_by_side) or norms not in (1, 2) or (norms == 2 and not new):
        raise AssayError(
            f"Falcon with new_decoder_architecture={new}, parallel_attn={side_by_side} and num_ln_in_parallel_attn={norms} "
            "is no published kind and not supported"
        )
    kv_heads = (raw.get("num_kv_heads") or heads) if new else 1 if raw.get("multi_query", True) else heads
    return layered(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        hidden=raw.get("ffn_hidden_size") or 4 * width,
        activation=raw.get("activation", "gelu"),
        eps=raw.get("layer_norm_epsilon", 1e-5),
        context=raw.get("max_position_embeddings", 2048),
        tied=bool(raw.get("tie_word_embeddings", True)),
        kv_heads=kv_heads,
        bias=bool(raw.get("bias", False)),
        position=read_rope(raw),
        block={"parallel": side_by_side, "shared_norm": side_by_side and norms == 1},
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    found = taken_apart(config, "falcon")
    if found["bias"] != found["attention_bias"]:
        raise cannot("falcon", "biases in some matrices only")
    heads, kv_heads = found["heads"], found["kv_heads"]
    new = found["parallel"] and (not found["shared_norm"] or kv_heads not in (1, heads))
    if not new and kv_heads not in (1, heads):
        raise cannot("falcon", "heads that share a few keys in blocks that are not parallel")
    return {
        "architectures": ["FalconForCausalLM"],
        "model_type": "falcon",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": heads,
        "num_kv_heads": kv_heads,
        "multi_query": kv_heads == 1,
        "new_decoder_architecture": new,
        "parallel_attn": found["parallel"],
        "num_ln_in_parallel_attn": (1 if found["shared_norm"] else 2) if new else None,
        "ffn_hidden_size": found["hidden"],
        "activation": found["activation"],
        "bias": found["bias"],
        "alibi": False,
        "layer_norm_epsilon": config.norm.eps,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.tied,
        "rope_parameters": write_rope(found["position"], "falcon"),
    }


def _two_norms(name: str, config: TransformerConfig) -> str:
    """Two norms side by side have names of their own."""
    block = config.blocks[0]
    if block.parallel and not block.shared_norm:
        return name.replace("input_layernorm", "ln_attn").replace("post_attention_layernorm", "ln_mlp")
    return name


_LAYER = "transformer.h.*."

FAMILY = Family(
    name="falcon",
    architectures=("FalconForCausalLM",),
    model_types=("falcon",),
    gguf_architecture="falcon",
    read=read,
    write=write,
    folder=Layout(
        {"embed": "transformer.word_embeddings", "final_norm": "transformer.ln_f", "unembed": "lm_head"}
        | block_names(
            norm1=_LAYER + "input_layernorm",
            norm2=_LAYER + "post_attention_layernorm",
            mixer__out=_LAYER + "self_attention.dense",
            channel__up=_LAYER + "mlp.dense_h_to_4h",
            channel__down=_LAYER + "mlp.dense_4h_to_h",
        )
        | fused(_LAYER + "self_attention.query_key_value", by_heads),
        ignored=r"rotary_emb\.inv_freq$",
        renamed=(
            (r"^(?=h\.|word_embeddings\.|ln_f\.)", "transformer."),
            (r"\.ln_attn\.", ".input_layernorm."),
            (r"\.ln_mlp\.", ".post_attention_layernorm."),
        ),
        spelled=_two_norms,
    ),
)
