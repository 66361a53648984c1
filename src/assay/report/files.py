"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

from assay.core.errors import AssayError


def write_atomically(path: Path, text: str) -> None:
    """Write beside and rename, so that a reader sees the old file or the new one, never half of one.

    Raises AssayError where the disk is full or the folder cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(beside, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        try:
            beside.unlink(missing_ok=True)
        except OSError:
            pass
        raise AssayError(f"could not write {path}: {error.strerror or error}") from None
