"""EleutherAI's lm-evaluation-harness run on models of assay, under a cache policy."""

from importlib import import_module
from typing import Any

_HOMES = {"CachedLM": "cached_lm", "evaluate": "run"}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
