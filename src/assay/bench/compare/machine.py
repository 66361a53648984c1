"""What the numbers were made with: machine, versions, and the model's checksum."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import assay

if TYPE_CHECKING:
    from assay.core.transformer import Transformer


def machine(device: str) -> dict[str, Any]:
    """Processor, cores, memory and system; the accelerator's name where one is used."""
    found: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    try:
        found["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        pass
    if device.startswith("cuda"):
        found["accelerator"] = torch.cuda.get_device_name(torch.device(device))
    return found


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    return {"assay": assay.__version__, "torch": torch.__version__, "python": platform.python_version()}


def weights_checksum(model: Transformer) -> str:
    """SHA-256 over config and every weight, the first 16 digits. About a second for a gigabyte."""
    digest = hashlib.sha256(model.config.to_json().encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()[:16]
