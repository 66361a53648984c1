"""Read GGUF files: the header in one pass, tensors memory-mapped and dequantised row slice by row slice.

Layout: llama.cpp, docs "GGUF" version 2 and 3 (little-endian). The dequantisers are those of the `gguf` package; its reader is not
used, because it makes an array of every vocabulary string (24 s on a 262,144-token vocabulary, against 0.3 s here).
"""

from __future__ import annotations

import mmap
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from assay.core.errors import AssayError

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MOST_ENTRIES = 1 << 20  # no real header comes near; a larger count means garbage
_CHUNK_ROWS = 1024  # slices that stay in the cache dequantise three times as fast as whole matrices


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor lies. `shape` is in torch order (the file stores it reversed), `start` and `size` are bytes in the file."""

    name: str
    shape: tuple[int, ...]
    kind: Any
    start: int
    size: int


class GGUFFile:
    """An open GGUF file. `metadata`: key → value (numeric arrays as numpy); `tensors`: name → TensorInfo.

    Raises AssayError when the file is missing, not a GGUF, truncated or corrupt.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise AssayError(f"cannot read {self.path}: {getattr(error, 'strerror', None) or error}") from None
        try:
            self.metadata, self.tensors = _Header(self._map).read()
        except (struct.error, UnicodeDecodeError, OverflowError, MemoryError, ValueError, KeyError) as error:
            raise AssayError(f"{self.path} is truncated or corrupt: {_reason(error)}; fetch the file again") from None
        for tensor in self.tensors.values():
            if tensor.start + tensor.size > len(self._map):
                missing = tensor.start + tensor.size - len(self._map)
                raise AssayError(
                    f"{self.path} is truncated: tensor {tensor.name} ends {missing:,} bytes after the end of the file; fetch it again"
                )

    def read(self, name: str) -> np.ndarray:
        """The tensor `name` dequantised to float32, in its torch shape."""
        from gguf.quants import dequantize

        tensor = self.tensors[name]
        rows = prod(tensor.shape[:-1])
        raw = np.frombuffer(self._map, np.uint8, tensor.size, tensor.start).reshape(rows, -1)
        out = np.empty((rows, tensor.shape[-1]), np.float32)

        def one(start: int) -> None:
            out[start : start + _CHUNK_ROWS] = dequantize(raw[start : start + _CHUNK_ROWS], tensor.kind)

        try:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(one, range(0, rows, _CHUNK_ROWS)))
        except NotImplementedError:
            raise AssayError(
                f"{self.path}: tensor {name} is stored as {tensor.kind.name}, which cannot be dequantised"
            ) from None
        return out.reshape(tensor.shape)


class _Header:
    """A cursor over the mapped header."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 0

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if self.data[:4] != b"GGUF":
            raise ValueError("it does not begin with the GGUF mark")
        version, tensors, entries = struct.unpack_from("<IQQ", self.data, 4)
        self.at = 24
        if version not in (2, 3):
            raise ValueError(f"GGUF version {version} is not 2 or 3 (little-endian)")
        if max(tensors, entries) > _MOST_ENTRIES:
            raise ValueError(f"its header announces {tensors:,} tensors and {entries:,} entries")
        metadata = {}
        for _ in range(entries):
            key = self.string()
            metadata[key] = self.value(self.scalar("<I"))
        infos = [self.tensor() for _ in range(tensors)]
        align = int(metadata.get("general.alignment", 32))
        base = -(-self.at // align) * align
        return metadata, {i.name: TensorInfo(i.name, i.shape, i.kind, i.start + base, i.size) for i in infos}

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        if self.at + length > len(self.data):
            raise ValueError("a string runs past the end of the file")
        text = self.data[self.at : self.at + length]
        self.at += length
        return text.decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item, length = self.scalar("<I"), self.scalar("<Q")
        if length > len(self.data):
            raise ValueError("an array is longer than the file")
        if item in (_STRING, _ARRAY):
            return [self.value(item) for _ in range(length)]
        values = np.frombuffer(self.data, np.dtype(_SCALARS[item]), length, self.at)
        self.at += values.nbytes
        return values

    def tensor(self) -> TensorInfo:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, rank = self.string(), self.scalar("<I")
        if not 1 <= rank <= 4:
            raise ValueError(f"tensor {name} has {rank} dimensions")
        shape = tuple(self.scalar("<Q") for _ in range(rank))[::-1]
        kind, start = GGMLQuantizationType(self.scalar("<I")), self.scalar("<Q")
        block, size = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise ValueError(f"tensor {name} has rows of {shape[-1]}, no multiple of {kind.name}'s block of {block}")
        return TensorInfo(name, shape, kind, start, prod(shape) // block * size)


def _reason(error: Exception) -> str:
    if isinstance(error, struct.error):
        return "the header ends early"
    if isinstance(error, UnicodeDecodeError):
        return "a string is not UTF-8"
    if isinstance(error, KeyError):
        return f"unknown value type {error}"
    return str(error) or type(error).__name__
