"""What decoders with LayerNorm and a plain feed-forward (GPT-2 and those after it) have in common."""

from __future__ import annotations

from typing import Any

from assay.checkpoints.families.common import cannot, shared, trunk
from assay.checkpoints.families.decoder import usual_scale
from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.errors import AssayError


def layered(
    *,
    vocabulary: int,
    width: int,
    layers: int,
    heads: int,
    hidden: int,
    activation: str,
    eps: float,
    context: int,
    tied: bool,
    kv_heads: int | None = None,
    bias: bool = True,
    attention_bias: bool | None = None,
    position: dict[str, Any] | None = None,
    block: dict[str, Any] | None = None,
    **trunk_options: Any,
) -> TransformerConfig:
    """Our config. `bias`: of all matrices, `attention_bias`: of attention's, where they differ; `block`: further entries of each block."""
    if width % heads:
        raise AssayError(f"config.json gives a width of {width} to {heads} heads, which do not share it evenly")
    attention = {
        "heads": heads,
        "kv_heads": kv_heads or heads,
        "head_dim": width // heads,
        "bias": bias if attention_bias is None else attention_bias,
    }
    if position is not None:
        attention["position"] = position
    feed = {"hidden": hidden, "activation": activation, "bias": bias}
    return TransformerConfig(
        vocab_size=vocabulary,
        width=width,
        blocks=(BlockConfig(Spec("softmax", attention), Spec("mlp", feed), **(block or {})),) * layers,
        norm=NormConfig("layer", eps, bias=True),
        context=context,
        tied=tied,
        **trunk_options,
    )


def taken_apart(config: TransformerConfig, family: str, norms: str = "pre", **meant: Any) -> dict[str, Any]:
    """What `layered` was given, as far as blocks are concerned, with `parallel` and `shared_norm`.

    `meant`: the trunk's options that the family's files stand for. Raises AssayError for what no such family can express.
    """
    trunk(config, family, **meant)
    if config.norm.kind != "layer" or not config.norm.bias:
        raise cannot(family, "a model without LayerNorm and its bias")
    first = config.blocks[0]
    if any((b.norms, b.parallel, b.shared_norm) != (norms, first.parallel, first.shared_norm) for b in config.blocks):
        raise cannot(family, f"blocks that are not all {norms}-norm, or not wired alike")
    only = {"heads": None, "kv_heads": None, "head_dim": None, "bias": False, "out_bias": None, "position": None}
    attention = shared(config, family, "mixer", "softmax", "scale", **only)
    feed = shared(config, family, "channel", "mlp", hidden=None, activation="gelu", bias=False)
    heads = attention["heads"]
    if attention["head_dim"] not in (None, config.width // heads):
        raise cannot(family, "heads that do not share out the width")
    if attention["out_bias"] not in (None, attention["bias"]):
        raise cannot(family, "biases on q, k and v without one on what attention gives, or the reverse")
    usual_scale(config, family, config.width // heads)
    return {
        "heads": heads,
        "kv_heads": attention["kv_heads"] or heads,
        "hidden": feed["hidden"],
        "activation": feed["activation"],
        "bias": feed["bias"],
        "attention_bias": attention["bias"],
        "position": attention["position"],
        "parallel": first.parallel,
        "shared_norm": first.parallel and first.shared_norm,
    }


def plain_heads(found: dict[str, Any], family: str) -> None:
    """Raise AssayError where heads share keys, or blocks are parallel."""
    if found["kv_heads"] != found["heads"]:
        raise cannot(family, "grouped heads")
    if found["parallel"]:
        raise cannot(family, "parallel blocks")


def all_biased(found: dict[str, Any], family: str) -> None:
    """Raise AssayError unless every matrix has a bias."""
    if not (found["bias"] and found["attention_bias"]):
        raise cannot(family, "a model without biases")


def block_names(**names: str) -> dict[str, str]:
    """Names by our names within a block, `__` for a dot."""
    return {f"blocks.*.{key.replace('__', '.')}": value for key, value in names.items()}
