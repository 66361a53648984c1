"""Bloom: ALiBi instead of positions, LayerNorm over the embeddings too, biases everywhere; q, k, v joined head by head.

seam: family
row: -
source: BigScience 2022, BLOOM (arXiv:2211.05100)
object: FAMILY
"""

from __future__ import annotations

from typing import Any

from assay.checkpoints.families.common import Family, cannot, required
from assay.checkpoints.families.layered import all_biased, block_names, layered, plain_heads, taken_apart
from assay.checkpoints.families.layout import Layout, by_heads, fused
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

_ALIBI = {"part": "alibi", "options": {}}
_OLD_NAMES = {"n_embed": "hidden_size", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}


def read(raw: dict[str, Any]) -> TransformerConfig:
    if raw.get("apply_residual_connection_post_layernorm"):
        raise AssayError("Bloom with apply_residual_connection_post_layernorm is not supported")
    raw = raw | {now: raw[old] for old, now in _OLD_NAMES.items() if raw.get(old) is not None}
    width, heads, layers, vocabulary = required(raw, "hidden_size", "n_head", "n_layer", "vocab_size")
    return layered(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        hidden=4 * width,
        activation="gelu_new",
        eps=raw.get("layer_norm_epsilon", 1e-5),
        context=raw.get("seq_length") or 2048,
        tied=bool(raw.get("tie_word_embeddings", True)),
        position=_ALIBI,
        embed_norm=True,
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    found = taken_apart(config, "bloom", embed_norm=True)
    plain_heads(found, "bloom")
    all_biased(found, "bloom")
    if (found["position"] or {}).get("part") != "alibi":
        raise cannot("bloom", f"the position {found['position']} (only alibi)")
    if found["activation"] not in ("gelu_new", "gelu_pytorch_tanh") or found["hidden"] != 4 * config.width:
        raise cannot("bloom", "a feed-forward other than of four times the width with gelu_new")
    return {
        "architectures": ["BloomForCausalLM"],
        "model_type": "bloom",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "n_layer": len(config.blocks),
        "n_head": found["heads"],
        "layer_norm_epsilon": config.norm.eps,
        "seq_length": config.context,
        "tie_word_embeddings": config.tied,
    }


_LAYER = "transformer.h.*."

FAMILY = Family(
    name="bloom",
    architectures=("BloomForCausalLM",),
    model_types=("bloom",),
    gguf_architecture="bloom",
    read=read,
    write=write,
    folder=Layout(
        {
            "embed": "transformer.word_embeddings",
            "embed_norm": "transformer.word_embeddings_layernorm",
            "final_norm": "transformer.ln_f",
            "unembed": "lm_head",
        }
        | block_names(
            norm1=_LAYER + "input_layernorm",
            norm2=_LAYER + "post_attention_layernorm",
            mixer__out=_LAYER + "self_attention.dense",
            channel__up=_LAYER + "mlp.dense_h_to_4h",
            channel__down=_LAYER + "mlp.dense_4h_to_h",
        )
        | fused(_LAYER + "self_attention.query_key_value", by_heads),
        renamed=((r"^(?=h\.|word_embeddings|ln_f\.)", "transformer."),),
    ),
)
