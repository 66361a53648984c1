"""Activations by the names that model configs use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from assay.core.errors import AssayError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTIVATIONS:
        raise AssayError(f"activation {name!r} is unknown; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]
