"""OPT: GPT-2's shape with ReLU, unjoined q, k and v, and learned positions that begin at the third row of their table.

seam: family
row: -
source: Zhang et al. 2022, OPT (arXiv:2205.01068)
object: FAMILY
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import Family, cannot, required
from assay.checkpoints.families.layered import block_names, layered, plain_heads, taken_apart
from assay.checkpoints.families.layout import Layout
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor

_OFFSET = 2  # rows before the first position, which only padding ever read


def read(raw: dict[str, Any]) -> TransformerConfig:
    width, heads, layers, hidden, positions, vocabulary = required(
        raw,
        "hidden_size",
        "num_attention_heads",
        "num_hidden_layers",
        "ffn_dim",
        "max_position_embeddings",
        "vocab_size",
    )
    if raw.get("word_embed_proj_dim", width) not in (None, width):
        raise AssayError("OPT with word_embed_proj_dim (embeddings narrower than its blocks, as 350m) is not supported")
    if raw.get("layer_norm_elementwise_affine") is False:
        raise AssayError("OPT with layer_norm_elementwise_affine false (norms without weights) is not supported")
    before = raw.get("do_layer_norm_before", True)
    return layered(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        hidden=hidden,
        activation=raw.get("activation_function", "relu"),
        eps=1e-5,
        context=positions,
        tied=bool(raw.get("tie_word_embeddings", True)),
        bias=raw.get("enable_bias", True),
        block={"norms": "pre" if before else "after_sum"},
        learned_positions=positions,
        final_norm=bool(before and not raw.get("_remove_final_layer_norm", False)),
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    norms = config.blocks[0].norms
    if norms not in ("pre", "after_sum") or (norms == "after_sum" and config.final_norm):
        raise cannot("opt", f"{norms}-norm blocks" + " and a final norm" * config.final_norm)
    found = taken_apart(config, "opt", norms, learned_positions=config.context, final_norm=config.final_norm)
    plain_heads(found, "opt")
    if found["position"]:
        raise cannot("opt", f"the position {found['position']}")
    if found["bias"] != found["attention_bias"] or config.norm.eps != 1e-5:
        raise cannot("opt", "biases in some matrices only, or norms with an eps other than 1e-5")
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "word_embed_proj_dim": config.width,
        "num_hidden_layers": len(config.blocks),
        "num_attention_heads": found["heads"],
        "ffn_dim": found["hidden"],
        "activation_function": found["activation"],
        "max_position_embeddings": config.context,
        "enable_bias": found["bias"],
        "do_layer_norm_before": norms == "pre",
        "_remove_final_layer_norm": norms == "pre" and not config.final_norm,
        "tie_word_embeddings": config.tied,
    }


def _from_third_row(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    return tensor[_OFFSET:] if name == "positions.weight" else tensor


def _two_rows_more(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    if name != "positions.weight":
        return tensor
    more = tensor.new_zeros(len(tensor) + _OFFSET, tensor.shape[1])
    more[_OFFSET:] = tensor
    return more


_LAYER = "model.decoder.layers.*."

FAMILY = Family(
    name="opt",
    architectures=("OPTForCausalLM",),
    model_types=("opt",),
    gguf_architecture=None,
    read=read,
    write=write,
    folder=Layout(
        {
            "embed": "model.decoder.embed_tokens",
            "positions": "model.decoder.embed_positions",
            "final_norm": "model.decoder.final_layer_norm",
            "unembed": "lm_head",
        }
        | block_names(
            norm1=_LAYER + "self_attn_layer_norm",
            norm1_post=_LAYER + "self_attn_layer_norm",
            norm2=_LAYER + "final_layer_norm",
            norm2_post=_LAYER + "final_layer_norm",
            mixer__q=_LAYER + "self_attn.q_proj",
            mixer__k=_LAYER + "self_attn.k_proj",
            mixer__v=_LAYER + "self_attn.v_proj",
            mixer__out=_LAYER + "self_attn.out_proj",
            channel__up=_LAYER + "fc1",
            channel__down=_LAYER + "fc2",
        ),
        fold=_from_third_row,
        unfold=_two_rows_more,
        renamed=((r"^decoder\.", "model.decoder."),),
    ),
)
