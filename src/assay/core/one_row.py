"""What a decoding step does most, compiled by numba: a row times a weight, and the RMS norm of a row.

The product reads its weight once, in order, on every thread, which is all that counts: torch's own kernels reach between a
third and two thirds of the memory's speed, depending on the machine. The norm is one call instead of five. Optional:
`assay.core.linear.compiled` asks for this module and goes on without it where numba is not installed.
"""

from __future__ import annotations

import os

import numba
import numpy as np
import torch
from jaxtyping import Float
from numba import njit, prange
from torch import Tensor

_PARALLEL = {"parallel": True, "fastmath": True, "nogil": True, "cache": True}
_forked: list[int] = []  # the process was forked from one that may have run kernels: OpenMP threads do not survive that
os.register_at_fork(after_in_child=lambda: _forked.append(os.getpid()))


@njit(**_PARALLEL)
def _float32(weight, x, y):
    rows, width = weight.shape
    for i in prange(rows):
        total = np.float32(0)
        for j in range(width):
            total += weight[i, j] * x[j]
        y[i] = total


@njit(**_PARALLEL)
def _bfloat16(weight, x, y):
    """`weight` as its bits: a bfloat16 is the upper half of a float32."""
    rows, width = weight.shape
    for i in prange(rows):
        total = np.float32(0)
        for j in range(width):
            total += np.uint32(np.uint32(weight[i, j]) << np.uint32(16)).view(np.float32) * x[j]
        y[i] = total


@njit(fastmath=True, nogil=True, cache=True)
def _rms(x, weight, eps, y):
    rows, width = x.shape
    for i in range(rows):
        total = np.float32(0)
        for j in range(width):
            total += x[i, j] * x[i, j]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + np.float32(eps))
        for j in range(width):
            y[i, j] = x[i, j] * scale * weight[j]


def product(x: Float[Tensor, "... width"], weight: Float[Tensor, "out width"]) -> Float[Tensor, "... out"]:
    """`x @ weight.T` in float32 for one row of float32 and a contiguous weight in float32 or bfloat16 on the CPU; no gradients."""
    y = torch.empty(*x.shape[:-1], len(weight))
    kernel, bits = (_float32, weight) if weight.dtype == torch.float32 else (_bfloat16, weight.view(torch.uint16))
    _use_threads(torch.get_num_threads())
    kernel(bits.detach().numpy(), x.detach().reshape(-1).numpy(), y.view(-1).numpy())
    return y


def rms(x: Float[Tensor, "... width"], weight: Float[Tensor, "width"], eps: float) -> Float[Tensor, "... width"]:
    """x / sqrt(mean(x^2) + eps) * weight in float32 on one thread; no gradients."""
    y = torch.empty(x.shape)
    width = x.shape[-1]
    _rms(x.detach().reshape(-1, width).numpy(), weight.detach().numpy(), eps, y.view(-1, width).numpy())
    return y


def _use_threads(count: int) -> None:
    count = min(count, numba.config.NUMBA_NUM_THREADS)
    if numba.get_num_threads() != count:
        numba.set_num_threads(count)


def works() -> bool:
    """Whether the kernels give the right answer in this process, on threads that several callers may share."""
    if _forked:
        return False
    draw = torch.Generator().manual_seed(0)
    x, weight = torch.randn(1, 37, generator=draw), torch.randn(11, 37, generator=draw)
    right = all(
        torch.allclose(product(x, w), x @ w.float().T, rtol=1e-4, atol=1e-4) for w in (weight, weight.bfloat16())
    )
    normed = torch.nn.functional.rms_norm(x, (37,), weight[0], 1e-6)
    right = right and torch.allclose(rms(x, weight[0].contiguous(), 1e-6), normed, rtol=1e-4, atol=1e-4)
    return right and numba.threading_layer() in ("omp", "tbb")
