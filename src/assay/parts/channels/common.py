"""Activations by the names that model configs use, and products fused with them where oneDNN does that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.errors import AssayError
from assay.core.linear import Linear, one_row

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}
ACTIVATIONS["gelu_fast"] = ACTIVATIONS["gelu_new"]


def activation_named(name: str) -> Callable[[Tensor], Tensor]:
    if name not in ACTIVATIONS:
        raise AssayError(f"activation {name!r} is unknown; there are {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


# how oneDNN calls them: the operation and its variant
_FUSED = {
    F.silu: ("swish", ""),
    F.relu: ("relu", ""),
    ACTIVATIONS["gelu_new"]: ("gelu", "tanh"),
    ACTIVATIONS["gelu_pytorch_tanh"]: ("gelu", "tanh"),
    F.gelu: ("gelu", "none"),
}


def fuses(x: Float[Tensor, "... width"], *layers: nn.Module) -> bool:
    """Whether `fused` may stand for these layers and an activation: many rows in bfloat16 on the CPU, and no gradients.

    The activation is then applied before the product is rounded and written, which spares whole passes over memory: half of
    the channel's time. (In float32, where products take several times longer, it gained nothing.)
    """
    if x.dtype != torch.bfloat16 or one_row(x) or torch.is_grad_enabled() or x.device.type != "cpu" or not _available():
        return False
    plain = all(type(layer) is Linear for layer in layers)
    return plain and all(p.dtype == x.dtype for layer in layers for p in layer.parameters())


def fused(
    x: Float[Tensor, "... width"],
    layer: Linear,
    act: Callable[[Tensor], Tensor] | None,
    times: Float[Tensor, "... out"] | None = None,
) -> Float[Tensor, "... out"]:
    """act(layer(x)), or layer(x) * times."""
    pointwise = torch.ops.mkldnn._linear_pointwise
    if times is not None:
        return pointwise.binary(x, times, layer.weight, layer.bias, "mul")
    operation, variant = _FUSED[act]
    return pointwise(x, layer.weight, layer.bias, operation, [], variant)


def _available() -> bool:
    """torch's own compiler uses these operators; a version may lack them, and a processor what they need for bfloat16."""
    there = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    return torch.backends.mkldnn.is_available() and there and torch.ops.mkldnn._is_mkldnn_bf16_supported()
