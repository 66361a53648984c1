"""Linear layers as a decoder uses them: many rows at once in prefill and training, one row at a time in decoding.

A one-row product only reads the weight once, so its speed is the memory's. Kernels compiled by numba reach it, where that is
installed; which of torch's own comes nearest differs between machines and number formats. Weights may be stored in 16 bits
while activations are in float32: a product is then computed in whichever of the two is faster, and comes back in the
activations' dtype.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

SHORT = (torch.bfloat16, torch.float16)


@functools.cache
def fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices in hardware; without, torch emulates it more slowly than float32."""
    has = torch.cpu.get_capabilities()
    allowed = torch.backends.cpu.get_cpu_capability() not in ("AVX2", "DEFAULT")  # less than there is, if so asked
    return allowed and bool(has.get("amx_bf16") or has.get("avx512_bf16"))


def one_row(x: Tensor) -> bool:
    return x.numel() == x.shape[-1]


def narrowed(x: Float[Tensor, "... width"], weight: Tensor | None) -> Float[Tensor, "... width"]:
    """x in the dtype that products with `weight` are computed in, so that what several products share is rounded once."""
    if weight is None or weight.dtype not in SHORT or x.dtype == weight.dtype:
        return x
    if one_row(x) and has_kernel(x, weight):
        return x
    if x.device.type != "cpu" or one_row(x) or (weight.dtype == torch.bfloat16 and fast_bfloat16()):
        return x.to(weight.dtype)
    return x


def has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether the compiled kernels multiply these: a row in float32, with a weight in float32 or bfloat16, on the CPU, no gradients."""
    return (
        x.dtype == torch.float32
        and weight.dtype in (torch.float32, torch.bfloat16)
        and weight.device.type == "cpu"
        and not torch.is_grad_enabled()
        and weight.is_contiguous()
        and compiled() is not None
    )


@functools.cache
def compiled() -> ModuleType | None:
    """The kernels compiled by numba (`assay.core.one_row`), if it is installed and they work in this process."""
    try:
        from assay.core import one_row
    except (ImportError, RuntimeError):  # not installed, or nowhere to keep what it compiles
        return None
    return one_row if one_row.works() else None


os.register_at_fork(after_in_child=compiled.cache_clear)


def product(x: Float[Tensor, "... width"], weight: Float[Tensor, "out width"]) -> Float[Tensor, "... out"]:
    """`x @ weight.T` in x's dtype, whatever the weight is stored in."""
    if one_row(x) and has_kernel(x, weight):
        return compiled().product(x, weight)
    if x.dtype != weight.dtype:
        inner = narrowed(x, weight)
        return F.linear(x, weight.to(x.dtype)) if inner is x else product(inner, weight).to(x.dtype)
    if one_row(x) and x.device.type == "cpu" and not torch.is_grad_enabled():
        return kernel(x.dtype)(x, weight)
    return F.linear(x, weight)


def _vector(x: Float[Tensor, "... width"], weight: Float[Tensor, "out width"]) -> Float[Tensor, "... out"]:
    return torch.mv(weight, x.view(-1)).view(*x.shape[:-1], -1)


def _halves(x: Float[Tensor, "... width"], weight: Float[Tensor, "out width"]) -> Float[Tensor, "... out"]:
    """The rows of the weight in two halves, as a batch of two products: each thread then reads one half in order."""
    if len(weight) % 2 or not weight.is_contiguous():
        return F.linear(x, weight)
    halves = weight.view(2, -1, weight.shape[1]).mT
    return torch.bmm(x.view(1, 1, -1).expand(2, 1, -1), halves).view(*x.shape[:-1], -1)


# which kernel reads a weight fastest for one row, measured with 2 threads; any other machine uses F.linear
FASTEST: dict[tuple[str, torch.dtype], Callable[[Tensor, Tensor], Tensor]] = {
    ("AVX2", torch.float32): _halves,
    ("AVX2", torch.bfloat16): _vector,
    ("AVX512", torch.float32): _vector,
    ("AVX512", torch.bfloat16): _vector,
}


@functools.cache
def kernel(dtype: torch.dtype) -> Callable[[Tensor, Tensor], Tensor]:
    """How this machine multiplies one row with a weight of this dtype."""
    return FASTEST.get((torch.backends.cpu.get_cpu_capability(), dtype), F.linear)


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
