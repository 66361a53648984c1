"""Pretrained models in and out: Hugging Face folders, GGUF files, hub ids, bundled checkpoints. Importing this imports no torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "load": "loading",
    "save": "saving",
    "models": "catalogue",
    "Entry": "catalogue",
    "cache_folder": "cache",
    "Tokenizer": "tokenizer",
    "GGUFFile": "gguf_file",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
