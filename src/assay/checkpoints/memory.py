"""How much memory a model takes, and whether there is that much."""

from __future__ import annotations

import os
from pathlib import Path

from torch import device as Device
from torch import dtype as DType

from assay.core.errors import AssayError
from assay.core.transformer import Transformer


def weight_bytes(model: Transformer, dtype: DType) -> int:
    """Bytes of the model's parameters in `dtype`."""
    return sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize


def free_bytes(device: Device) -> int | None:
    """Bytes that can still be taken on a device; None where nobody can say."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    free = [value for value in (_linux(), _container()) if value is not None]
    if free:
        return min(free)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return None


def check_fits(name: str, needed: int, device: Device, dtype: DType) -> None:
    """Raise AssayError if `needed` bytes are not there."""
    free = free_bytes(device)
    if free is not None and needed > free:
        kind = str(dtype).removeprefix("torch.")
        mend = "a smaller model" if dtype.itemsize <= 2 else "dtype='bfloat16' or a smaller model"
        raise AssayError(
            f"{name} takes {needed / 2**30:.1f} GiB in {kind}, and {device.type} has {free / 2**30:.1f} GiB free; use {mend}"
        )


def _linux() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def _container() -> int | None:
    """What a control group still allows; file pages it holds can be dropped and do not count."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
        files = next(
            int(line.split()[1])
            for line in (group / "memory.stat").read_text().splitlines()
            if line.startswith("file ")
        )
        return None if limit == "max" else int(limit) - used + files
    except (OSError, ValueError, StopIteration):
        return None
