"""The grid: model x policies x budgets x tasks, measured cell by cell. `compare` is the whole of it.

Importing this imports no torch.
"""

from importlib import import_module
from typing import Any

_HOMES = {"compare": "run", "Result": "result", "Settings": "settings", "summarise": "summarise", "open_run": "result"}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
