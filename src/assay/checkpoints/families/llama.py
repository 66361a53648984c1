"""Llama 2 and 3: RMSNorm before each sublayer, grouped-query attention with rope, a gated feed-forward.

Its GGUF files store the rows of q and k in the order of interleaved rope; loading undoes that. Llama 3.1's rope scaling is a
tensor of divisors there, from which the numbers of its rule are recovered.

seam: family
row: -
source: Touvron et al. 2023, Llama 2 (arXiv:2307.09288); Llama team 2024 (arXiv:2407.21783)
object: FAMILY
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.checkpoints.families.common import GGUF_NAMES, Family, from_gguf
from assay.checkpoints.families.decoder import OLD_NAMES, decoder_names, read_decoder, usual_scale, write_decoder
from assay.checkpoints.families.layout import Layout
from assay.checkpoints.families.rotary import read_rope, write_rope
from assay.core.config import TransformerConfig
from assay.core.errors import AssayError

if TYPE_CHECKING:
    from torch import Tensor

    from assay.checkpoints.gguf_file import GGUFFile


def read(raw: dict[str, Any]) -> TransformerConfig:
    return read_decoder(
        raw, lambda layer: {"position": read_rope(raw)}, tied=False, activation=raw.get("hidden_act", "silu")
    )


def write(config: TransformerConfig) -> dict[str, Any]:
    written, attention = write_decoder(config, "llama")
    usual_scale(config, "llama", written["head_dim"])
    return written | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_parameters": write_rope(attention["position"], "llama"),
    }


def read_gguf(file: GGUFFile) -> dict[str, Any]:
    raw = from_gguf(file, "llama", GGUF_KEYS | {"rope.dimension_count?": "head_dim"})
    raw["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    raw["rope_parameters"] = gguf_rope(file, "llama")
    if "rope_freqs.weight" in file.tensors:
        raw["rope_parameters"] |= _llama3_rule(file.read("rope_freqs.weight"), raw["rope_parameters"]["rope_theta"])
    return raw


def gguf_rope(file: GGUFFile, architecture: str) -> dict[str, Any]:
    """`rope_parameters` from a GGUF's metadata."""
    entries = {key.removeprefix(f"{architecture}.rope."): value for key, value in file.metadata.items()}
    rope: dict[str, Any] = {"rope_theta": entries.get("freq_base", 10_000.0)}
    kind = entries.get("scaling.type", "none")
    if kind != "none":
        rope |= {"rope_type": kind, "factor": entries.get("scaling.factor", 1.0)}
        if "scaling.original_context_length" in entries:
            rope["original_max_position_embeddings"] = entries["scaling.original_context_length"]
    return rope


def _llama3_rule(divisors: np.ndarray, theta: float) -> dict[str, Any]:
    """Every published Llama 3 uses one rule with different factors; a tensor that does not follow it is refused."""
    rule = {"rope_type": "llama3", "factor": float(divisors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    turns = 8192 / (2 * math.pi) * theta ** (-np.arange(len(divisors)) / len(divisors))
    blend = ((turns - 1) / 3).clip(0, 1)
    if not np.allclose(1 / divisors, blend + (1 - blend) / rule["factor"], rtol=1e-3):
        raise AssayError("this GGUF's rope_freqs do not follow Llama 3's rule, the only one that is supported")
    return rule | {"original_max_position_embeddings": 8192}


def _neighbours_to_halves(name: str, tensor: Tensor, config: TransformerConfig) -> Tensor:
    options = config.blocks[0].mixer.options
    heads = {"q": options["heads"], "k": options["kv_heads"]}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.unflatten(0, (heads, -1, 2)).transpose(1, 2).reshape(tensor.shape)


GGUF_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv?": "num_key_value_heads",
    "attention.key_length?": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}

FAMILY = Family(
    name="llama",
    architectures=("LlamaForCausalLM",),
    model_types=("llama",),
    gguf_architecture="llama",
    read=read,
    write=write,
    read_gguf=read_gguf,
    folder=Layout(decoder_names(), ignored=r"rotary_emb\.inv_freq$", renamed=(OLD_NAMES,)),
    gguf=Layout(GGUF_NAMES, fold=_neighbours_to_halves, ignored=r"^rope_freqs\.weight$"),
)
