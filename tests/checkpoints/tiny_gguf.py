"""Small GGUF files for tests, written with the `gguf` package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from torch import Tensor

from assay.checkpoints.families.common import Family
from assay.core.transformer import Transformer

LETTERS = [chr(97 + i) for i in range(26)]


def gguf_of(
    model: Transformer, family: Family, metadata: dict[str, Any], change: Callable[[str, Tensor], Tensor] | None = None
) -> tuple[str, dict[str, Any], dict[str, np.ndarray]]:
    """Architecture, metadata and tensors of a GGUF that holds the model; `change(our name, tensor)` reshapes as llama.cpp does."""
    parts: dict[str, list[np.ndarray]] = {}
    for name, parameter in model.named_parameters():
        tensor = change(name, parameter.detach()) if change else parameter.detach()
        parts.setdefault(family.gguf.theirs(name).name, []).append(tensor.numpy())
    return family.gguf_architecture, metadata, {name: np.concatenate(found) for name, found in parts.items()}


def write_gguf(path: Path, architecture: str, metadata: dict[str, Any], tensors: dict[str, np.ndarray]) -> Path:
    """A float32 GGUF with a small SentencePiece-like vocabulary."""
    writer = GGUFWriter(path, architecture)
    for key, value in metadata.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{key}", value)
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "\u2581", *LETTERS, "ab", "\u2581a"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([3, 3, 3, 3] + [1] * (len(tokens) - 4))
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    for name, tensor in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(tensor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
