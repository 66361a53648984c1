"""Linear layers as a decoder uses them: many rows at once in prefill and training, one row at a time in decoding.

A one-row product only reads the weight once, so its speed is the memory's. Which of torch's kernels comes nearest to that
differs between machines and number formats. Weights stored in bfloat16 keep activations in float32.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


@functools.cache
def fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware; without, torch emulates it more slowly than float32."""
    has = torch.cpu.get_capabilities()
    return bool(has.get("amx_bf16") or has.get("avx512_bf16"))


def product(x: Float[Tensor, "... width"], weight: Float[Tensor, "out width"]) -> Float[Tensor, "... out"]:
    """`x @ weight.T` in x's dtype, whatever the weight is stored in."""
    if x.dtype == weight.dtype:
        if x.numel() == x.shape[-1] and not torch.is_grad_enabled() and x.device.type == "cpu":
            return _one_row(x, weight)
        return F.linear(x, weight)
    if x.device.type != "cpu" or fast_bfloat16() or x.numel() == x.shape[-1]:
        return product(x.to(weight.dtype), weight).to(x.dtype)
    return F.linear(x, weight.to(x.dtype))


def _one_row(x: Float[Tensor, "... width"], weight: Float[Tensor, "out width"]) -> Float[Tensor, "... out"]:
    return torch.mv(weight, x.reshape(-1)).view(*x.shape[:-1], -1)


class Linear(nn.Module):
    """y = x W^T + b; `weight` is (out, in) as in torch."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Float[Tensor, "... inputs"]) -> Float[Tensor, "... outputs"]:
        y = product(x, self.weight)
        return y if self.bias is None else y + self.bias


class Embedding(nn.Module):
    """Rows of a table; float32 whatever the table is stored in."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, index: Tensor) -> Float[Tensor, "... width"]:
        rows = F.embedding(index, self.weight)
        return rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
