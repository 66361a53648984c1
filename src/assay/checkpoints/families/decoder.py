"""What the configs and names of Llama's many descendants have in common."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import cannot, required, shared, trunk
from assay.checkpoints.families.layout import Part
from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig

if TYPE_CHECKING:
    from torch import Tensor

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
OLD_NAMES = r"^(?=layers\.|embed_tokens\.|norm\.)", "model."  # files of a model without its readout have no prefix
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
    if "out_bias" not in (own or {}) and any(
        block.mixer.options.get("out_bias") not in (None, block.mixer.options.get("bias", False))
        for block in config.blocks
    ):
        raise cannot(family, "biases on q, k and v without one on what attention gives, or the reverse")
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


def usual_scale(config: TransformerConfig, family: str, head_dim: int) -> None:
    """Raise AssayError unless scores are scaled by head_dim^-1/2 in all layers."""
    if not math.isclose(scale_of(config, family, head_dim), head_dim**-0.5):
        raise cannot(family, "a scale of the scores other than head_dim^-1/2")


def without_mlp_bias(written: dict[str, Any], family: str) -> None:
    """Take the entry `mlp_bias` out. Raises AssayError where it says that there is one."""
    if written.pop("mlp_bias"):
        raise cannot(family, "a feed-forward with bias")


def windows(config: TransformerConfig, family: str) -> tuple[list[str], int | None]:
    """`layer_types`, and the window that all layers with one share. Raises AssayError for windows of different sizes."""
    found = [block.mixer.options.get("window") for block in config.blocks]
    if len(set(found) - {None}) > 1:
        raise cannot(family, f"windows of different sizes {found}")
    kinds = [_GLOBAL if window is None else _LOCAL for window in found]
    return kinds, next((window for window in found if window), None)


def plus_one(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    """Where files hold w and a norm multiplies by 1 + w."""
    return tensor.float() + 1 if "norm" in name else tensor


def minus_one(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    return tensor.float() - 1 if "norm" in name else tensor
