"""What formats share: groups of neighbours, offsets and scales, and codes of a few bits packed into bytes."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from assay.core.arguments import whole
from assay.core.errors import AssayError
from assay.core.format import Encoded, Format


def grouped(x: Float[Tensor, "*rest dim"], group: int) -> Float[Tensor, "*rest groups group"]:
    """The last axis cut into groups of neighbours; 0 makes one group of it."""
    whole("number format", 0, group=group)
    size = group or x.shape[-1]
    if x.shape[-1] % size:
        fits = math.gcd(size, x.shape[-1])
        raise AssayError(
            f"groups of {size} do not divide an axis of {x.shape[-1]}: choose a group that does, or 0, as in int4(group={fits})"
        )
    return x.unflatten(-1, (-1, size))


def levelled(
    rows: Float[Tensor, "*rest group"], bits: int
) -> tuple[UInt8[Tensor, "*rest group"], Float[Tensor, "*rest"], Float[Tensor, "*rest"]]:
    """Codes from 0 to 2^bits - 1, and the offset and the scale of each row, both in float16."""
    most = 2**bits - 1
    low, high = rows.amin(-1).half(), rows.amax(-1)
    # a scale that float16 rounds down must still reach the highest number, within half a step
    scale = ((high - low.float()) / most).clamp(min=2.0**-24).half()
    codes = ((rows - low.float()[..., None]) / scale.float()[..., None]).round().clamp(0, most)
    return codes.to(torch.uint8), low, scale


def packed(codes: UInt8[Tensor, "*rest dim"], bits: int) -> UInt8[Tensor, "*rest bytes"]:
    """Codes of so many bits, 8 / bits neighbours in a byte, the first in the lowest bits."""
    if codes.shape[-1] % (8 // bits):
        raise AssayError(f"an axis of {codes.shape[-1]} does not fill whole bytes of {8 // bits} codes: use int8")
    apart = codes.unflatten(-1, (-1, 8 // bits))
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (apart << places).sum(-1, dtype=torch.uint8)


def unpacked(codes: UInt8[Tensor, "*rest bytes"], bits: int) -> UInt8[Tensor, "*rest dim"]:
    places = torch.arange(0, 8, bits, dtype=torch.uint8, device=codes.device)
    return (codes[..., None] >> places & 2**bits - 1).flatten(-2)


class Levels(Format):
    """Evenly spaced levels between the lowest and the highest number of each group of neighbours."""

    bits: int

    def __init__(self, group: int) -> None:
        whole("number format", 0, group=group)
        if group % (8 // self.bits):
            raise AssayError(
                f"{type(self).__name__.lower()}: group={group} does not fill whole bytes of {8 // self.bits} codes"
            )
        self.group = group

    def encode(self, x: Float[Tensor, "*rest dim"]) -> Encoded:
        codes, low, scale = levelled(grouped(x.float(), self.group), self.bits)
        return Encoded({"codes": packed(codes.flatten(-2), self.bits), "low": low, "scale": scale})

    def decode(self, encoded: Encoded) -> Float[Tensor, "*rest dim"]:
        codes, low, scale = (encoded.parts[n] for n in ("codes", "low", "scale"))
        rows = unpacked(codes, self.bits).float().unflatten(-1, (scale.shape[-1], -1))
        return (rows * scale.float()[..., None] + low.float()[..., None]).flatten(-2)
