"""Read and write folders of safetensors: one file or shards with an index, memory-mapped, written atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from assay.core.errors import AssayError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsFolder:
    """The tensors of a folder by name; each is mapped when it is asked for, not copied.

    Raises AssayError when there is no safetensors file, when a shard named by the index is missing, or when a file is truncated or corrupt.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._files = {path: open_safetensors(path) for path in _weight_files(self.folder)}
        self._where = {name: file for file in self._files.values() for name in file.keys()}
        missing = [name for name in _indexed(self.folder) if name not in self._where]
        if missing:
            raise AssayError(f"{self.folder}: the index names tensors that no shard holds: {listed(missing)}")

    def names(self) -> list[str]:
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._where[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """The tensor in its stored dtype."""
        return self._where[name].get_tensor(name)


def write_safetensors(folder: Path, tensors: Mapping[str, Tensor], shard_bytes: int | None = None) -> None:
    """Write `model.safetensors`, or shards of at most `shard_bytes` (where a tensor allows) and their index.

    Files appear under their names only when complete. Raises AssayError when the disk is full or not writable.
    """
    from safetensors.torch import save_file

    shards = list(_shards(tensors, shard_bytes))
    names = (
        [SINGLE]
        if len(shards) == 1
        else [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
    )
    for name, shard in zip(names, shards, strict=True):
        whole = {key: tensor.detach().contiguous().cpu() for key, tensor in shard.items()}
        atomically(folder / name, lambda path, whole=whole: save_file(whole, path, metadata={"format": "pt"}))
    if len(shards) > 1:
        where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        index = json.dumps({"metadata": {"total_size": size}, "weight_map": where}, indent=1)
        atomically(folder / INDEX, lambda path: path.write_text(index))


def atomically(target: Path, write) -> None:
    """Call `write(path)` on a temporary neighbour and move it to `target` when it is on disk."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except Exception as error:
        if isinstance(error, OSError) or "No space" in str(error) or "I/O error" in str(error):
            raise AssayError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from None
        raise
    finally:
        temporary.unlink(missing_ok=True)


def listed(names: list[str], most: int = 6) -> str:
    """`names` for a one-line message: the first few and how many more."""
    return ", ".join(sorted(names)[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _weight_files(folder: Path) -> list[Path]:
    indexed = sorted({folder / file for file in _indexed(folder).values()})
    files = indexed or ([folder / SINGLE] if (folder / SINGLE).exists() else [])
    if not files:
        other = [p.name for p in folder.glob("*.bin")] + [p.name for p in folder.glob("*.pt*")]
        why = f" (it holds {listed(other)}, which may run code when opened and is never read)" if other else ""
        raise AssayError(f"{folder} holds no {SINGLE}{why}")
    for path in files:
        if not path.exists():
            raise AssayError(f"{folder}: shard {path.name} named by {INDEX} is missing")
    return files


def _indexed(folder: Path) -> dict[str, str]:
    path = folder / INDEX
    if not path.exists():
        return {}
    try:
        where = json.loads(path.read_text())["weight_map"]
        if not all(Path(file).name == file for file in where.values()):
            raise ValueError("a shard outside the folder")
        return where
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise AssayError(f"{path} is no index of safetensors: {error}") from None


def open_safetensors(path: Path) -> Any:
    """The open file. Raises AssayError where it is truncated or corrupt."""
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise AssayError(f"{path} is truncated or corrupt ({error}); fetch the file again") from None


def _shards(tensors: Mapping[str, Tensor], limit: int | None) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        size += tensor.numel() * tensor.element_size()
        if shard and limit and size > limit:
            yield shard
            shard, size = {}, tensor.numel() * tensor.element_size()
        shard[name] = tensor
    yield shard
