"""Random Llama and Qwen3 models as checkpoint folders that assay and its peers can both read: the same numbers on every machine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file


@dataclass(frozen=True)
class Size:
    """`sharpness`: how far queries and keys are scaled up, so that attention picks some tokens as a trained model's does."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocabulary: int = 512
    sharpness: float = 1.5


TINY = Size(width=32, layers=3, heads=4, kv_heads=2, head_dim=16, hidden=64, vocabulary=96)
MEDIUM = Size(width=512, layers=8, heads=8, kv_heads=4, head_dim=64, hidden=1536)

FAMILIES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def write_checkpoint(folder: Path, family: str, size: Size, seed: int = 0) -> Path:
    """Config and float32 weights, drawn in the order of their names from a generator whose stream numpy keeps frozen."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(family, size), indent=1))
    draw = np.random.RandomState(seed)
    tensors = {}
    for name, shape in sorted(_shapes(family, size).items()):
        values = draw.standard_normal(shape)
        if len(shape) == 1:
            values = 1 + 0.1 * values
        elif "embed" not in name:
            sharp = size.sharpness if "q_proj" in name or "k_proj" in name else 1.0
            values = values * sharp / shape[1] ** 0.5
        tensors[name] = values.astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def some_tokens(length: int, vocabulary: int, seed: int) -> list[int]:
    """Tokens that repeat as words of a text do: a few often, most seldom."""
    ranks = np.random.RandomState(seed).zipf(1.3, size=length)
    return (3 + ranks % (vocabulary - 3)).tolist()


def _config(family: str, size: Size) -> dict:
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "intermediate_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _shapes(family: str, size: Size) -> dict[str, tuple[int, ...]]:
    width, hidden, keys = size.width, size.hidden, size.kv_heads * size.head_dim
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (size.vocabulary, width),
        "lm_head.weight": (size.vocabulary, width),
        "model.norm.weight": (width,),
    }
    for layer in range(size.layers):
        block = {
            "self_attn.q_proj": (size.heads * size.head_dim, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, size.heads * size.head_dim),
            "mlp.gate_proj": (hidden, width),
            "mlp.up_proj": (hidden, width),
            "mlp.down_proj": (width, hidden),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        if family == "qwen3":
            block |= {"self_attn.q_norm": (size.head_dim,), "self_attn.k_norm": (size.head_dim,)}
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in block.items()}
    return found
