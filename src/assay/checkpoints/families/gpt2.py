"""GPT-2: LayerNorm, learned positions, biases everywhere, a plain feed-forward; q, k and v in one matrix.

Folders store matrices as (in, out); GGUF files have turned them already.

seam: family
row: -
source: Radford et al. 2019, Language models are unsupervised multitask learners
object: FAMILY
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from assay.checkpoints.families.common import GGUF_NAMES, Family, cannot, from_gguf, required
from assay.checkpoints.families.layered import all_biased, block_names, layered, plain_heads, taken_apart
from assay.checkpoints.families.layout import Layout, Part
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from assay.checkpoints.gguf_file import GGUFFile


def read(raw: dict[str, Any]) -> TransformerConfig:
    for entry, usual in (
        ("scale_attn_by_inverse_layer_idx", False),
        ("scale_attn_weights", True),
        ("add_cross_attention", False),
    ):
        if raw.get(entry, usual) != usual:
            raise AssayError(f"GPT-2 with {entry}={raw[entry]} is not supported")
    width, heads, layers, positions, vocabulary = required(
        raw, "n_embd", "n_head", "n_layer", "n_positions", "vocab_size"
    )
    return layered(
        vocabulary=vocabulary,
        width=width,
        layers=layers,
        heads=heads,
        hidden=raw.get("n_inner") or 4 * width,
        activation=raw.get("activation_function", "gelu_new"),
        eps=raw.get("layer_norm_epsilon", 1e-5),
        context=positions,
        learned_positions=positions,
        tied=bool(raw.get("tie_word_embeddings", True)),
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    found = taken_apart(config, "gpt2", learned_positions=config.context)
    plain_heads(found, "gpt2")
    all_biased(found, "gpt2")
    if found["position"]:
        raise cannot("gpt2", f"the position {found['position']}")
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_embd": config.width,
        "n_head": found["heads"],
        "n_layer": len(config.blocks),
        "n_positions": config.context,
        "n_inner": found["hidden"],
        "activation_function": found["activation"],
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


def _joined(name: str, axis: int) -> dict[str, str | Part]:
    return {f"blocks.*.mixer.{letter}": Part(name, index, 3, axis) for index, letter in enumerate("qkv")}


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
        | block_names(
            norm1="transformer.h.*.ln_1",
            norm2="transformer.h.*.ln_2",
            mixer__out="transformer.h.*.attn.c_proj",
            channel__up="transformer.h.*.mlp.c_fc",
            channel__down="transformer.h.*.mlp.c_proj",
        )
        | _joined("transformer.h.*.attn.c_attn", -1),
        turned=r"^blocks\.",
        ignored=r"\.attn\.(masked_)?bias$",
        renamed=((r"^(?=h\.|wte\.|wpe\.|ln_f\.)", "transformer."),),
    ),
    gguf=Layout(GGUF_NAMES | _joined("blk.*.attn_qkv", 0)),
)
