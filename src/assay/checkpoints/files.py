"""Small things about files that all of the room needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from assay.core.errors import AssayError


def read_json(path: Path, default: Any = None) -> Any:
    """The JSON object in `path`; `default`, if one is given, where there is no such file. Raises AssayError if it cannot be read."""
    if default is not None and not path.exists():
        return default
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AssayError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise AssayError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise AssayError(f"{path} holds a {type(found).__name__}, not an object")
    return found
