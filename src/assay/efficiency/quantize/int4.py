"""Four-bit integers, two in a byte, with an offset and a scale for each group of numbers.

code = round((x - low) / scale) in 0..15, scale = (high - low) / 15 over `group` neighbours on the last axis.

seam: format
row: -
source: Liu et al. 2024, KIVI (arXiv:2402.02750), asymmetric groups
object: Int4
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from assay.core.errors import AssayError
from assay.core.format import Encoded, Format
from assay.efficiency.quantize.common import grouped


class Int4(Format):
    """`group`: numbers that share an offset and a scale (0: the whole last axis). Both are held in float16."""

    def __init__(self, group: int = 32) -> None:
        if group % 2:
            raise AssayError(f"int4: group={group} is odd, but two codes share a byte")
        self.group = group

    def encode(self, x: Float[Tensor, "*rest dim"]) -> Encoded:
        rows = grouped(x.float(), self.group)
        low, high = rows.amin(-1).half(), rows.amax(-1)
        # a scale that float16 rounds down must still reach the highest number, within half a step
        scale = ((high - low.float()) / 15).clamp(min=2.0**-24).half()
        codes = ((rows - low.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 15).to(torch.uint8)
        even, odd = codes.flatten(-2).unflatten(-1, (-1, 2)).unbind(-1)
        return Encoded({"codes": even | odd << 4, "low": low, "scale": scale})

    def decode(self, encoded: Encoded) -> Float[Tensor, "*rest dim"]:
        codes, low, scale = (encoded.parts[n] for n in ("codes", "low", "scale"))
        both = torch.stack([codes & 15, codes >> 4], -1).flatten(-2).float()
        return (both.unflatten(-1, (scale.shape[-1], -1)) * scale.float()[..., None] + low.float()[..., None]).flatten(
            -2
        )
