"""GPT-2: LayerNorm, learned positions, biases everywhere, a plain feed-forward; q, k and v in one matrix.

Folders store matrices as (in, out); GGUF files have turned them already.

seam: family
row: -
source: Radford et al. 2019, Language models are unsupervised multitask learners
object: FAMILY
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import (
    GGUF_NAMES,
    Family,
    Layout,
    Part,
    cannot,
    from_gguf,
    required,
    shared,
    trunk,
)
from assay.checkpoints.families.decoder import scale_of
from assay.core.config import BlockConfig, NormConfig, Spec, TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.checkpoints.gguf_file import GGUFFile


def read(raw: dict[str, Any]) -> TransformerConfig:
    if (
        raw.get("scale_attn_by_inverse_layer_idx")
        or raw.get("scale_attn_weights") is False
        or raw.get("add_cross_attention")
    ):
        raise AssayError("GPT-2 with scaled or cross attention of its own is not supported")
    width, heads, layers, positions, vocabulary = required(
        raw, "n_embd", "n_head", "n_layer", "n_positions", "vocab_size"
    )
    attention = {"heads": heads, "kv_heads": heads, "head_dim": width // heads, "bias": True}
    hidden = raw.get("n_inner") or 4 * width
    feed = {"hidden": hidden, "activation": raw.get("activation_function", "gelu_new"), "bias": True}
    return TransformerConfig(
        vocab_size=vocabulary,
        width=width,
        blocks=(BlockConfig(Spec("softmax", attention), Spec("mlp", feed)),) * layers,
        norm=NormConfig("layer", raw.get("layer_norm_epsilon", 1e-5), bias=True),
        context=positions,
        learned_positions=positions,
        tied=bool(raw.get("tie_word_embeddings", True)),
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    trunk(config, "gpt2", learned_positions=config.context)
    attention = shared(
        config, "gpt2", "mixer", "softmax", "scale", heads=None, kv_heads=None, head_dim=None, bias=False
    )
    feed = shared(config, "gpt2", "channel", "mlp", hidden=None, activation="gelu", bias=False)
    heads = attention["heads"]
    each = config.width // heads
    if attention["kv_heads"] not in (None, heads) or attention["head_dim"] not in (None, each):
        raise cannot("gpt2", "grouped heads or heads that do not share out the width")
    if not (attention["bias"] and feed["bias"]) or config.norm.kind != "layer" or not config.norm.bias:
        raise cannot("gpt2", "a model without biases or LayerNorm")
    if any(b.norms != "pre" or b.parallel for b in config.blocks) or not math.isclose(
        scale_of(config, "gpt2", each), each**-0.5
    ):
        raise cannot("gpt2", "blocks that are not pre-norm with scores scaled by head_dim^-1/2")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_embd": config.width,
        "n_head": heads,
        "n_layer": len(config.blocks),
        "n_positions": config.context,
        "n_inner": feed["hidden"],
        "activation_function": feed["activation"],
        "layer_norm_epsilon": config.norm.eps,
        "tie_word_embeddings": config.tied,
    }


def read_gguf(file: GGUFFile) -> dict[str, Any]:
    keys = {
        "context_length": "n_positions",
        "embedding_length": "n_embd",
        "block_count": "n_layer",
        "feed_forward_length": "n_inner",
        "attention.head_count": "n_head",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    }
    raw = from_gguf(file, "gpt2", keys)
    if "output.weight" in file.tensors:  # llama.cpp writes the embedding twice
        raw["tie_word_embeddings"] = bool((file.read("output.weight") == file.read("token_embd.weight")).all())
    return raw


def _turn(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    return tensor.t().contiguous() if tensor.ndim == 2 and name.startswith("blocks.") else tensor


def _names(**names: str | Part) -> dict[str, str | Part]:
    return {f"blocks.*.{key.replace('__', '.')}": value for key, value in names.items()}


FAMILY = Family(
    name="gpt2",
    architectures=("GPT2LMHeadModel",),
    model_types=("gpt2",),
    gguf_architecture="gpt2",
    read=read,
    write=write,
    read_gguf=read_gguf,
    folder=Layout(
        {
            "embed": "transformer.wte",
            "positions": "transformer.wpe",
            "final_norm": "transformer.ln_f",
            "unembed": "lm_head",
        }
        | _names(
            norm1="transformer.h.*.ln_1",
            norm2="transformer.h.*.ln_2",
            mixer__q=Part("transformer.h.*.attn.c_attn", 0, 3, -1),
            mixer__k=Part("transformer.h.*.attn.c_attn", 1, 3, -1),
            mixer__v=Part("transformer.h.*.attn.c_attn", 2, 3, -1),
            mixer__out="transformer.h.*.attn.c_proj",
            channel__up="transformer.h.*.mlp.c_fc",
            channel__down="transformer.h.*.mlp.c_proj",
        ),
        fold=_turn,
        unfold=_turn,
        ignored=r"\.attn\.(masked_)?bias$",
        renamed=((r"^(?=h\.|wte\.|wpe\.|ln_f\.)", "transformer."),),
    ),
    gguf=Layout(
        GGUF_NAMES
        | _names(
            mixer__q=Part("blk.*.attn_qkv", 0, 3, 0),
            mixer__k=Part("blk.*.attn_qkv", 1, 3, 0),
            mixer__v=Part("blk.*.attn_qkv", 2, 3, 0),
        ),
    ),
)
