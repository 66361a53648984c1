"""BERT's encoder: LayerNorm after each sum and over the embeddings, learned positions, every token reading every other.

Read for its hidden states: the pooler is left out, and there is no head that predicts tokens. Texts are single segments, so the
embedding of segment 0 is added to the positions; what is written has an embedding of segments that adds nothing.

seam: family
row: -
source: Devlin et al. 2018, BERT (arXiv:1810.04805)
object: FAMILY
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import Family, cannot, required, shared, trunk
from assay.checkpoints.families.layout import Absorbed, Layout
from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor


def read(raw: dict[str, Any]) -> TransformerConfig:
    for entry, usual in (("position_embedding_type", "absolute"), ("is_decoder", False)):
        if raw.get(entry, usual) != usual:
            raise AssayError(f"BERT with {entry}={raw[entry]!r} is not supported")
    width, heads, layers, hidden, positions, vocabulary = required(
        raw,
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "intermediate_size",
        "max_position_embeddings",
        "vocab_size",
    )
    attention = Spec("bidirectional", {"heads": heads, "bias": True})
    feed = Spec("mlp", {"hidden": hidden, "activation": raw.get("hidden_act", "gelu"), "bias": True})
    return TransformerConfig(
        vocab_size=vocabulary,
        width=width,
        blocks=(BlockConfig(attention, feed, "after_sum"),) * layers,
        norm=NormConfig("layer", raw.get("layer_norm_eps", 1e-12), bias=True),
        context=positions,
        learned_positions=positions,
        embed_norm=True,
        final_norm=False,
        causal=False,
        readout=False,
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    encoder = {"embed_norm": True, "final_norm": False, "causal": False, "tied": True, "readout": False}
    trunk(config, "bert", learned_positions=config.context, **encoder)
    attention = shared(config, "bert", "mixer", "bidirectional", heads=None, kv_heads=None, bias=False)
    feed = shared(config, "bert", "channel", "mlp", hidden=None, activation="gelu", bias=False)
    if attention["kv_heads"] not in (None, attention["heads"]):
        raise cannot("bert", "grouped heads")
    if not (attention["bias"] and feed["bias"]) or config.norm.kind != "layer" or not config.norm.bias:
        raise cannot("bert", "a model without biases or LayerNorm")
    if any(b.norms != "after_sum" for b in config.blocks):
        raise cannot("bert", "blocks whose norms do not stand after the sum")
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": feed["hidden"],
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": attention["heads"],
        "max_position_embeddings": config.context,
        "type_vocab_size": _SEGMENTS,
        "hidden_act": feed["activation"],
        "layer_norm_eps": config.norm.eps,
    }


_SEGMENTS = 2


def _first_segment(positions: Tensor, segments: Tensor) -> Tensor:
    return positions + segments[0]


def _no_segments(positions: Tensor) -> Tensor:
    return positions.new_zeros(_SEGMENTS, positions.shape[1])


_BLOCK = {
    **{
        f"mixer.{letter}": f"attention.self.{word}" for letter, word in {"q": "query", "k": "key", "v": "value"}.items()
    },
    "mixer.out": "attention.output.dense",
    "norm1_post": "attention.output.LayerNorm",
    "channel.up": "intermediate.dense",
    "channel.down": "output.dense",
    "norm2_post": "output.LayerNorm",
}

FAMILY = Family(
    name="bert",
    architectures=("BertModel",),
    model_types=("bert",),
    gguf_architecture="bert",
    read=read,
    write=write,
    folder=Layout(
        {
            "embed": "embeddings.word_embeddings",
            "positions": "embeddings.position_embeddings",
            "embed_norm": "embeddings.LayerNorm",
            "unembed": "cls.predictions.decoder",
        }
        | {f"blocks.*.{ours}": f"encoder.layer.*.{theirs}" for ours, theirs in _BLOCK.items()},
        absorbed=(
            Absorbed(
                "embeddings.token_type_embeddings.weight", "positions.weight", add=_first_segment, blank=_no_segments
            ),
        ),
        ignored=r"^pooler\.|\.position_ids$",
        renamed=((r"^bert\.", ""), (r"LayerNorm\.gamma$", "LayerNorm.weight"), (r"LayerNorm\.beta$", "LayerNorm.bias")),
    ),
    causal=False,
)
