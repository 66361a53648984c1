"""What the configs and names of Llama's many descendants have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from assay.checkpoints.families.common import Part, cannot, required, shared, trunk
from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig

_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "out": "o_proj", "q_norm": "q_norm", "k_norm": "k_norm"}


def decoder_names(**other: str) -> dict[str, str | Part]:
    """The tensor names that Llama started; `other` replaces or adds some (`norm2="…"`)."""
    block = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
    block |= {f"mixer.{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()}
    block |= {f"channel.{ours}": f"mlp.{ours}_proj" for ours in ("gate", "up", "down")} | other
    top: dict[str, str | Part] = {"embed": "model.embed_tokens", "final_norm": "model.norm", "unembed": "lm_head"}
    return top | {f"blocks.*.{ours}": f"model.layers.*.{theirs}" for ours, theirs in block.items()}


def read_decoder(
    raw: dict[str, Any],
    attention: Callable[[int], dict[str, Any]],
    *,
    tied: bool,
    head_dim: int | None = None,
    activation: str = "silu",
    norms: str = "pre",
    **trunk_options: Any,
) -> TransformerConfig:
    """Our config; `attention(layer)` gives what is the family's own about a layer's attention, the rest are the family's defaults."""
    width, heads, hidden, layers, vocabulary = required(
        raw, "hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers", "vocab_size"
    )
    bias = bool(raw.get("attention_bias", False))
    common = {
        "heads": heads,
        "kv_heads": raw.get("num_key_value_heads") or heads,
        "head_dim": raw.get("head_dim") or head_dim or width // heads,
        "bias": bias,
    }
    feed = {"hidden": hidden, "activation": activation, "bias": bool(raw.get("mlp_bias", False))}
    blocks = (BlockConfig(Spec("softmax", common | attention(i)), Spec("gated", feed), norms) for i in range(layers))
    return TransformerConfig(
        vocab_size=vocabulary,
        width=width,
        blocks=tuple(blocks),
        norm=NormConfig("rms", raw.get("rms_norm_eps", 1e-6)),
        context=raw.get("max_position_embeddings", 2048),
        tied=bool(raw.get("tie_word_embeddings", tied)),
        **trunk_options,
    )


def write_decoder(
    config: TransformerConfig,
    family: str,
    *varying: str,
    norms: str = "pre",
    own: dict[str, Any] | None = None,
    **meant: Any,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """config.json's contents, and the attention options all layers share.

    `varying`: attention options that may differ between layers; `own`: those that are the family's own, with the value for absence;
    `meant`: the trunk's options that the family's files stand for. Raises AssayError for what they cannot express.
    """
    trunk(config, family, **meant)
    if config.norm.kind != "rms" or config.norm.bias:
        raise cannot(family, f"norms of kind {config.norm}")
    if any(b.norms != norms or b.parallel for b in config.blocks):
        raise cannot(family, f"blocks that are not {norms}-norm one after the other")
    only = {"heads": None, "kv_heads": None, "head_dim": None, "bias": False, "position": None}
    attention = shared(config, family, "mixer", "softmax", *varying, "scale", **only, **(own or {}))
    feed = shared(config, family, "channel", "gated", hidden=None, activation="silu", bias=False)
    heads = attention["heads"]
    written = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": feed["hidden"],
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": heads,
        "num_key_value_heads": attention["kv_heads"] or heads,
        "head_dim": attention["head_dim"] or config.width // heads,
        "attention_bias": attention["bias"],
        "rms_norm_eps": config.norm.eps,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.tied,
        "mlp_bias": feed["bias"],
        "hidden_act": feed["activation"],
    }
    return written, attention


def scale_of(config: TransformerConfig, family: str, head_dim: int) -> float:
    """The scale of the scores, which must be the same in all layers; head_dim^-1/2 where none is given."""
    found = {block.mixer.options.get("scale") or head_dim**-0.5 for block in config.blocks}
    if len(found) > 1:
        raise cannot(family, "layers whose attention has different scales")
    return found.pop()
