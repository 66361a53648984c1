"""assay takes Transformers apart: one Transformer made of named parts, each measured.

The names below are imported when they are first used, so that `import assay` and the command line start without torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load": "assay.checkpoints",
    "save": "assay.checkpoints",
    "compare": "assay.bench.compare",
    "record": "assay.core.sites",
    "edit": "assay.core.sites",
    "Transformer": "assay.core.transformer",
    "TransformerConfig": "assay.core.config",
    "BlockConfig": "assay.core.config",
    "NormConfig": "assay.core.config",
    "Spec": "assay.core.config",
    "embed": "assay.domains.language",
    "parse": "assay.core.expressions",
    "build": "assay.core.expressions",
    "cards": "assay.core.registry",
    "find": "assay.core.registry",
    "get": "assay.core.registry",
    "AssayError": "assay.core.errors",
    "Refused": "assay.core.errors",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    # `assay.compare` is the function; caching it here keeps a later import of a submodule from hiding it
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
