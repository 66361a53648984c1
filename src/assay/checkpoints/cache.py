"""Converted copies of checkpoints in the user's cache folder, so that dequantising is paid once."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from assay.core.errors import AssayError

_FORMAT = 1  # goes up when what a copy holds changes; older copies are then left alone and made anew
_WHOLE = 512 << 20  # files up to this size are read whole, in about half a second
_BLOCK, _BLOCKS = 1 << 16, 512


def cache_folder() -> Path:
    """ASSAY_CACHE, or `assay` in XDG_CACHE_HOME, or ~/.cache/assay."""
    if own := os.environ.get("ASSAY_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "assay"


def checksum(path: Path) -> str:
    """SHA-256 of a file; of a large one, of its size, its first blocks and blocks spread evenly over the rest."""
    digest = hashlib.sha256()
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            return hashlib.file_digest(file, "sha256").hexdigest()
        digest.update(str(size).encode())
        digest.update(file.read(16 << 20))
        for number in range(_BLOCKS):
            file.seek((size - _BLOCK) * number // (_BLOCKS - 1))
            digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def copy_folder(stem: str, key: str) -> Path:
    """Where the converted copy of the source with this checksum lies, or would."""
    return cache_folder() / "checkpoints" / f"{stem}-{key[:16]}-{_FORMAT}"


def store_copy(folder: Path, size: int, write: Callable[[Path], None]) -> bool:
    """Have `write(path)` fill a new folder and move it to `folder` when complete. False, with a message, where that is not possible.

    `size`: bytes it will take, about.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < size * 1.02 + (64 << 20):
            raise OSError(f"{size / 2**30:.1f} GiB are needed and {free / 2**30:.1f} GiB free")
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".part-") as temporary:
            made = Path(temporary) / folder.name
            made.mkdir()
            write(made)
            if not folder.exists():
                made.rename(folder)
    except (OSError, AssayError) as error:
        reason = getattr(error, "strerror", None) or error
        logging.getLogger("assay").warning(
            "no converted copy is kept in %s (%s); the next load takes as long", folder.parent, reason
        )
        return False
    return True


def drop_copy(folder: Path) -> None:
    """Remove a copy that cannot be read."""
    shutil.rmtree(folder, ignore_errors=True)
