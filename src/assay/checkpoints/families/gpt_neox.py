"""GPT-NeoX and Pythia: LayerNorm, rope on a part of each head, attention and feed-forward side by side; q, k, v joined head by head.

seam: family
row: -
source: Black et al. 2022, GPT-NeoX-20B (arXiv:2204.06745); Biderman et al. 2023, Pythia (arXiv:2304.01373)
object: FAMILY
"""

from __future__ import annotations

from typing import Any

from assay.checkpoints.families.common import Family, cannot, required
from assay.checkpoints.families.layered import block_names, layered, taken_apart
from assay.checkpoints.families.layout import Layout, by_heads, fused
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig


def read(raw: dict[str, Any]) -> TransformerConfig:
    width, heads, layers, hidden, vocabulary = required(
        raw, "hidden_size", "num_attention_heads", "num_hidden_layers", "intermediate_size", "vocab_size"
    )
    own = {"rope_theta": raw.get("rotary_emb_base", 10_000.0), "partial_rotary_factor": raw.get("rotary_pct", 0.25)}
    rope = own | (raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    return layered(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        hidden=hidden,
        activation=raw.get("hidden_act", "gelu"),
        eps=raw.get("layer_norm_eps", 1e-5),
        context=raw.get("max_position_embeddings", 2048),
        tied=bool(raw.get("tie_word_embeddings", False)),
        attention_bias=raw.get("attention_bias", True),
        position=read_rope(raw | {"rope_parameters": rope}, partial=True),
        block={"parallel": bool(raw.get("use_parallel_residual", True))},
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    found = taken_apart(config, "gpt_neox")
    if found["kv_heads"] != found["heads"] or found["shared_norm"] or not found["bias"]:
        raise cannot("gpt_neox", "grouped heads, a norm that two sublayers share, or a feed-forward without bias")
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": found["heads"],
        "intermediate_size": found["hidden"],
        "hidden_act": found["activation"],
        "layer_norm_eps": config.norm.eps,
        "max_position_embeddings": config.context,
        "attention_bias": found["attention_bias"],
        "use_parallel_residual": found["parallel"],
        "tie_word_embeddings": config.tied,
        "rope_parameters": {"partial_rotary_factor": 1.0} | write_rope(found["position"], "gpt_neox", partial=True),
    }


_LAYER = "gpt_neox.layers.*."

FAMILY = Family(
    name="gpt_neox",
    architectures=("GPTNeoXForCausalLM",),
    model_types=("gpt_neox",),
    gguf_architecture="gptneox",
    read=read,
    write=write,
    folder=Layout(
        {"embed": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "unembed": "embed_out"}
        | block_names(
            norm1=_LAYER + "input_layernorm",
            norm2=_LAYER + "post_attention_layernorm",
            mixer__out=_LAYER + "attention.dense",
            channel__up=_LAYER + "mlp.dense_h_to_4h",
            channel__down=_LAYER + "mlp.dense_4h_to_h",
        )
        | fused(_LAYER + "attention.query_key_value", by_heads),
        ignored=r"\.attention\.(masked_)?bias$|rotary_emb\.inv_freq$",
        renamed=((r"^(?=layers\.|embed_in\.|final_layer_norm\.)", "gpt_neox."), (r"^lm_head\.", "embed_out.")),
    ),
)
