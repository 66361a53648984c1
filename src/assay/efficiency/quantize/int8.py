"""Eight-bit integers with one scale for each group of numbers.

code = round(x / scale), scale = max|x| / 127 over `group` neighbours on the last axis (0: the whole axis).

seam: format
row: -
source: Dettmers et al. 2022, LLM.int8() (arXiv:2208.07339), absmax quantisation
object: Int8
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.format import Encoded, Format
from assay.efficiency.quantize.common import grouped


class Int8(Format):
    """`group`: numbers that share a scale; it must divide the last axis."""

    def __init__(self, group: int = 0) -> None:
        self.group = group

    def encode(self, x: Float[Tensor, "*rest dim"]) -> Encoded:
        rows = grouped(x.float(), self.group)
        scale = rows.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        codes = (rows / scale[..., None]).round().clamp(-127, 127).to(torch.int8)
        return Encoded({"codes": codes.flatten(-2), "scale": scale})

    def decode(self, encoded: Encoded) -> Float[Tensor, "*rest dim"]:
        codes, scale = encoded.parts["codes"], encoded.parts["scale"]
        return (codes.float().unflatten(-1, (scale.shape[-1], -1)) * scale[..., None]).flatten(-2)
