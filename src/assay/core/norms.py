"""RMSNorm and LayerNorm with a site for their scale."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from assay.core.config import NormConfig
from assay.core.errors import AssayError
from assay.core.linear import compiled
from assay.core.sites import Tap, site, wanted

FEW = 8192  # numbers, up to which starting kernels takes longer than what they do


class Norm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight, for `layer` of x - mean(x), plus a bias if it has one.

    Site `scale`: what x is divided by, "... 1".
    """

    sites = ("scale",)
    tap: Tap | None = None

    def __init__(self, width: int, config: NormConfig) -> None:
        super().__init__()
        if config.kind not in ("rms", "layer"):
            raise AssayError(f"norm {config.kind!r}: choose rms or layer")
        if isinstance(config.eps, bool) or not isinstance(config.eps, (int, float)) or not config.eps >= 0:
            raise AssayError(f"norm eps={config.eps!r}: give a number from 0 on")
        self.config = config
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if config.bias else None

    def forward(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        if wanted(self, "scale"):
            return self._explicit(x)
        weight, bias = self.weight, self.bias
        if x.dtype != weight.dtype:
            # the wider of both dtypes is computed in: weights may be stored in fewer bits, or x be a product in fewer
            dtype = torch.promote_types(x.dtype, weight.dtype)
            weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        if self.config.kind == "layer":
            return F.layer_norm(x.to(weight.dtype), weight.shape, weight, bias, self.config.eps)
        y = _rms(x, weight, self.config.eps)
        return y if bias is None else y + bias

    def _explicit(self, x: Float[Tensor, "... width"]) -> Float[Tensor, "... width"]:
        if self.config.kind == "layer":
            x = x - x.mean(-1, keepdim=True)
        scale = site(self, "scale", (x.square().mean(-1, keepdim=True) + self.config.eps).sqrt())
        y = x / scale * self.weight
        return y if self.bias is None else y + self.bias


def _rms(x: Float[Tensor, "... width"], weight: Float[Tensor, "width"], eps: float) -> Float[Tensor, "... width"]:
    """torch composes its own of a dozen small kernels on the CPU; this takes five, or one for a row, where that shows."""
    few = x.numel() <= FEW and x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    if few and not torch.is_grad_enabled() and (kernels := compiled()) is not None:
        return kernels.rms(x, weight, eps)
    if torch.is_grad_enabled() or x.device.type != "cpu" or weight.dtype not in (torch.float32, torch.float64):
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps)
    floor, root = _constants(x.shape[-1], eps, weight.dtype)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=weight.dtype)
    return (x * weight).div_(length.hypot_(floor).div_(root))


@functools.cache
def _constants(width: int, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """sqrt(width * eps) and sqrt(width), as tensors, which costs less than numbers do at every call."""
    with torch.inference_mode(False):
        return torch.tensor((width * eps) ** 0.5, dtype=dtype), torch.tensor(width**0.5, dtype=dtype)
