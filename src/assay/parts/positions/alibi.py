"""Linear biases: scores fall with distance, by a slope of each head's own. Nothing rotates and nothing is learned.

score_ts - slope_h |t - s|; of n = 2^m heads the slopes are 2^(-8/n), 2^(-16/n), ..., 2^-8. For other n: those of the next lower
power of two, then every second one of the next higher.

seam: position
row: -
source: Press, Smith and Lewis 2021, Train short, test long (arXiv:2108.12409)
object: Alibi
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from assay.core.mixer import Position


class Alibi(Position):
    """How many heads there are is read off the keys."""

    biased = True

    def __init__(self, head_dim: int | None = None) -> None:
        super().__init__()

    def rotate(
        self,
        q: Float[Tensor, "batch heads tokens dim"],
        k: Float[Tensor, "batch kv_heads tokens dim"],
        positions: Int[Tensor, "batch tokens"],
    ) -> tuple[Float[Tensor, "batch heads tokens dim"], Float[Tensor, "batch kv_heads tokens dim"]]:
        return q, k

    def bias(
        self, q_positions: Int[Tensor, "batch queries"], k_positions: Int[Tensor, "batch heads keys"]
    ) -> Float[Tensor, "batch heads queries keys"]:
        distance = (q_positions[:, None, :, None] - k_positions[:, :, None, :]).abs()
        return -slopes(k_positions.shape[1]).to(distance.device)[:, None, None] * distance


@functools.cache
def slopes(heads: int) -> Float[Tensor, "heads"]:
    """The slope of each head, in float32."""
    power = 1 << (heads.bit_length() - 1)
    whole = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    between = [2 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)]
    with torch.inference_mode(False), torch.device("cpu"):
        return torch.tensor(whole + between, dtype=torch.float32)
