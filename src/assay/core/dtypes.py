"""In which precision to compute."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """In float32 at least: half precision is for storing; scores and recurrences computed in it forget what they add."""
    return x if x.dtype == torch.float64 else x.float()
